//! The sub-tests that a job of reaim is made of, and the job files that say how many of each.
//!
//! Each sub-test takes what it works on from the heap under test, computes something that it returns (so that nothing
//! can be left out) and gives everything back.

use crate::objects::Objects;
use crate::rng::Rng;
use crate::workloads::store::{Buf, Owned};

/// A sub-test: from random numbers to a checksum.
pub type SubTest = fn(&mut Rng) -> u64;

/// A line of a job file: a sub-test and how often a user runs it.
pub struct Entry {
    /// Its name.
    pub name: &'static str,
    /// Times in each user's list.
    pub weight: usize,
    /// What is run.
    pub test: SubTest,
}

/// The job files.
pub const FILES: [&str; 2] = ["multiuser", "compute"];

/// The job file called `name`: the same sub-tests, weighted after AIM7's mixes.
pub fn file<O: Objects>(name: &str) -> Option<Vec<Entry>> {
    let tests: [(&'static str, SubTest, usize, usize); 10] = [
        ("list_search", list_search::<O>, 2, 1),
        ("list_sort", list_sort::<O>, 2, 2),
        ("string_copy", string_copy::<O>, 2, 1),
        ("array_growth", array_growth::<O>, 1, 1),
        ("tree", tree::<O>, 2, 1),
        ("small_records", small_records::<O>, 3, 1),
        ("page_buffers", page_buffers::<O>, 2, 1),
        ("messages", messages::<O>, 2, 0),
        ("matrix", matrix::<O>, 1, 4),
        ("sieve", sieve::<O>, 0, 3),
    ];
    let column = FILES.iter().position(|file| *file == name)?;
    let entries = tests
        .into_iter()
        .map(|(name, test, multiuser, compute)| Entry {
            name,
            weight: [multiuser, compute][column],
            test,
        });
    Some(entries.filter(|entry| entry.weight > 0).collect())
}

struct Node<O: Objects> {
    key: u64,
    payload: [u64; 4],
    next: Option<Owned<O, Node<O>>>,
}

/// A list of `count` nodes with random keys.
fn list<O: Objects>(rng: &mut Rng, count: usize) -> Option<Owned<O, Node<O>>> {
    let mut first = None;
    for _ in 0..count {
        let key = rng.next_u64() >> 40;
        first = Some(Owned::new(Node {
            key,
            payload: [key; 4],
            next: first,
        }));
    }
    first
}

/// Ends a list node by node, in the order of its links; the sum of what was in it.
fn end_list<O: Objects>(mut first: Option<Owned<O, Node<O>>>) -> u64 {
    let mut sum = 0u64;
    while let Some(node) = first {
        let node = node.into_inner();
        sum = sum
            .wrapping_mul(31)
            .wrapping_add(node.key ^ node.payload[3]);
        first = node.next;
    }
    sum
}

fn list_search<O: Objects>(rng: &mut Rng) -> u64 {
    let first = list::<O>(rng, 300);
    let mut found = 0;
    for _ in 0..30 {
        let wanted = rng.next_u64() >> 40;
        let mut node = first.as_ref();
        while let Some(here) = node {
            found += u64::from(here.key < wanted);
            node = here.next.as_ref();
        }
    }
    end_list(first) ^ found
}

/// Merge sort of a list: nodes are relinked, not copied.
fn list_sort<O: Objects>(rng: &mut Rng) -> u64 {
    let mut nodes: Vec<Owned<O, Node<O>>> = Vec::new();
    let mut rest = list::<O>(rng, 400);
    while let Some(mut node) = rest {
        rest = node.next.take();
        nodes.push(node);
    }
    nodes.sort_by_key(|node| node.key);
    let mut first = None;
    for mut node in nodes.into_iter().rev() {
        node.next = first;
        first = Some(node);
    }
    let mut previous = 0;
    let mut node = first.as_ref();
    let mut rises = 0u64;
    while let Some(here) = node {
        rises += u64::from(here.key >= previous);
        previous = here.key;
        node = here.next.as_ref();
    }
    end_list(first);
    rises
}

fn string_copy<O: Objects>(rng: &mut Rng) -> u64 {
    let mut sum = 0;
    let mut strings: Vec<Buf<O>> = Vec::with_capacity(64);
    for _ in 0..64 {
        let len = 8 + rng.below(240);
        strings.push(Buf::filled(len, b'a' + (len % 26) as u8));
    }
    for round in 0..4 {
        for place in 0..strings.len() {
            let copy = Buf::copy_of(&strings[(place * 7 + round) % 64]);
            sum += u64::from(copy[copy.len() - 1]);
            strings[place] = copy;
        }
    }
    sum
}

fn array_growth<O: Objects>(rng: &mut Rng) -> u64 {
    let mut array = Buf::<O>::filled(16, 0);
    let mut used = 0;
    for _ in 0..20_000 {
        if used == array.len() {
            array = array.grown(2 * used);
        }
        array[used] = rng.next_u64() as u8;
        used += 1;
    }
    array[..used].iter().map(|byte| u64::from(*byte)).sum()
}

struct Leaf<O: Objects> {
    key: u64,
    left: Option<Owned<O, Leaf<O>>>,
    right: Option<Owned<O, Leaf<O>>>,
}

/// Inserts into a search tree and takes the smallest out again, in turn.
fn tree<O: Objects>(rng: &mut Rng) -> u64 {
    let mut root: Option<Owned<O, Leaf<O>>> = None;
    let mut sum = 0u64;
    for turn in 0..600 {
        let key = rng.next_u64() >> 32;
        let mut place = &mut root;
        while let Some(leaf) = place {
            place = if key < leaf.key {
                &mut leaf.left
            } else {
                &mut leaf.right
            };
        }
        *place = Some(Owned::new(Leaf {
            key,
            left: None,
            right: None,
        }));
        if turn % 3 == 2 {
            let mut place = &mut root;
            while place.as_ref().is_some_and(|leaf| leaf.left.is_some()) {
                let Some(leaf) = place else { break };
                place = &mut leaf.left;
            }
            if let Some(leaf) = place.take() {
                let leaf = leaf.into_inner();
                sum = sum.wrapping_add(leaf.key);
                *place = leaf.right;
            }
        }
    }
    sum
}

fn small_records<O: Objects>(rng: &mut Rng) -> u64 {
    let mut live: Vec<Option<Buf<O>>> = (0..128).map(|_| None).collect();
    let mut sum = 0;
    for turn in 0..1000 {
        let place = rng.below(live.len());
        if let Some(record) = live[place].take() {
            sum += u64::from(record[0]);
        }
        live[place] = Some(Buf::filled(16 + turn % 112, turn as u8));
    }
    sum
}

fn page_buffers<O: Objects>(rng: &mut Rng) -> u64 {
    let mut sum = 0;
    for _ in 0..4 {
        let mut pages: Vec<Buf<O>> = (0..8).map(|i| Buf::filled(4096, i)).collect();
        let at = rng.below(4096);
        for i in 1..pages.len() {
            let byte = pages[i - 1][at].wrapping_add(1);
            pages[i][at] = byte;
        }
        sum += u64::from(pages[7][at]);
    }
    sum
}

/// Producer and consumer through a queue of messages of mixed sizes.
fn messages<O: Objects>(rng: &mut Rng) -> u64 {
    let mut queue: std::collections::VecDeque<Buf<O>> = std::collections::VecDeque::new();
    let mut sum = 0;
    for turn in 0..400 {
        queue.push_back(Buf::filled(64 << rng.below(5), turn as u8));
        if queue.len() > 32 || turn % 4 == 3 {
            sum += queue
                .pop_front()
                .map_or(0, |message| u64::from(message[63]));
        }
    }
    sum
}

/// Order of the matrices.
const N: usize = 48;

/// Multiplies two matrices of 64-bit numbers into a third, each a large object.
fn matrix<O: Objects>(rng: &mut Rng) -> u64 {
    let mut fresh = || {
        let mut matrix = Buf::<O>::filled(N * N * 8, 0);
        for cell in matrix.chunks_exact_mut(8) {
            cell.copy_from_slice(&(rng.next_u64() >> 48).to_le_bytes());
        }
        matrix
    };
    let (a, b) = (fresh(), fresh());
    let mut product = Buf::<O>::filled(N * N * 8, 0);
    multiply(&a, &b, &mut product)
}

/// Arithmetic, compiled once: in each backend's copy of a generic function the compiler may do
/// well or not, and a backend's figure would say which (it was fourfold).
#[inline(never)]
fn multiply(a: &[u8], b: &[u8], product: &mut [u8]) -> u64 {
    let get = |matrix: &[u8], row: usize, column: usize| {
        let at = (row * N + column) * 8;
        let cell: [u8; 8] = matrix[at..at + 8].try_into().unwrap_or_default();
        u64::from_le_bytes(cell)
    };
    for row in 0..N {
        for column in 0..N {
            let sum = (0..N).fold(0u64, |sum, k| {
                sum.wrapping_add(get(a, row, k).wrapping_mul(get(b, k, column)))
            });
            let at = (row * N + column) * 8;
            product[at..at + 8].copy_from_slice(&sum.to_le_bytes());
        }
    }
    get(product, N - 1, N - 1)
}

/// Counts primes below the length of a large object.
fn sieve<O: Objects>(_: &mut Rng) -> u64 {
    count_primes(&mut Buf::<O>::filled(20_000, 0))
}

/// Compiled once, as [`multiply`].
#[inline(never)]
fn count_primes(composite: &mut [u8]) -> u64 {
    let mut primes = 0;
    for number in 2..composite.len() {
        if composite[number] == 0 {
            primes += 1;
            let mut multiple = number * number;
            while multiple < composite.len() {
                composite[multiple] = 1;
                multiple += number;
            }
        }
    }
    primes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::{Cached, SystemMalloc};

    #[test]
    fn every_allocator_computes_the_same() {
        for name in FILES {
            let ours = file::<Cached<slub::Slub>>(name).unwrap();
            let system = file::<SystemMalloc>(name).unwrap();
            assert!(ours.len() >= 8);
            for (a, b) in ours.iter().zip(&system) {
                let (mut one, mut other) = (Rng::new(5), Rng::new(5));
                assert_eq!((a.test)(&mut one), (b.test)(&mut other), "{}", a.name);
            }
        }
        assert!(file::<SystemMalloc>("disk").is_none());
    }

    #[test]
    fn sub_tests_compute_what_they_say() {
        assert_eq!(sieve::<SystemMalloc>(&mut Rng::new(1)), 2262);
        // Sorted: every key is at least the one before.
        assert_eq!(list_sort::<SystemMalloc>(&mut Rng::new(1)), 400);
    }
}
