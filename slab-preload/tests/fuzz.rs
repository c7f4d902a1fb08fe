//! Random operations of several threads on the heaps that the library is made of, against an
//! oracle of addresses; and the same with each kind of system call failing at its k-th request.
//!
//! `PROPTEST_CASES=10000 cargo test -p slab-preload --test fuzz` runs longer.

use std::collections::BTreeMap;
use std::sync::Mutex;

use page_alloc::os::{self, Call};
use proptest::prelude::*;
use proptest::strategy::ValueTree as _;
use slab_api::{Heap, ObjectCache};

static UNIFIED: Heap<slab_unified::Unified> = Heap::new();
static SLUB: Heap<slub::Slub> = Heap::new();
static CLASSIC: Heap<slab_classic::Classic> = Heap::new();

const SLOTS: usize = 64;
const THREADS: usize = 3;

/// What is done to a slot.
#[derive(Clone, Debug)]
enum Op {
    Malloc(usize),
    Zeroed(usize),
    Aligned(u32, usize),
    Resize(usize),
    Free,
    FreeSized,
    Trim,
}

fn size() -> impl Strategy<Value = usize> {
    prop_oneof![
        8 => 0usize..600,
        4 => 0usize..40_000,
        1 => 0usize..5_000_000,
    ]
}

fn op() -> impl Strategy<Value = (usize, Op)> {
    let op = prop_oneof![
        5 => size().prop_map(Op::Malloc),
        3 => size().prop_map(Op::Zeroed),
        2 => (4u32..23, size()).prop_map(|(shift, size)| Op::Aligned(shift, size)),
        4 => size().prop_map(Op::Resize),
        4 => Just(Op::Free),
        2 => Just(Op::FreeSized),
        1 => Just(Op::Trim),
    ];
    (0..SLOTS, op)
}

/// A block in use; the address as a number, as it changes threads.
#[derive(Debug)]
struct Block {
    at: usize,
    size: usize,
    tag: u8,
    /// Allocated by a plain malloc or realloc: its size names its class.
    plain: bool,
}

impl Block {
    fn bytes(&self) -> &[u8] {
        // SAFETY: a block of the heap under test, which its owner in the test alone uses.
        unsafe { std::slice::from_raw_parts(self.at as *const u8, self.size) }
    }

    fn fill(&mut self) {
        // SAFETY: as above.
        unsafe { (self.at as *mut u8).write_bytes(self.tag, self.size) };
    }

    fn check(&self, upto: usize) {
        let wrong = self.bytes()[..upto].iter().position(|b| *b != self.tag);
        assert_eq!(wrong, None, "{self:?} was overwritten");
    }
}

/// Address ranges in use, by start. Every byte that may be used counts.
#[derive(Default)]
struct Oracle(Mutex<BTreeMap<usize, usize>>);

impl Oracle {
    fn claim(&self, at: usize, len: usize) {
        let mut ranges = self.0.lock().expect("no panic");
        let below = ranges.range(..at + len).next_back();
        assert!(
            below.is_none_or(|(start, length)| start + length <= at),
            "{at:#x}+{len} overlaps {below:?}"
        );
        ranges.insert(at, len);
    }

    fn disclaim(&self, at: usize) {
        self.0.lock().expect("no panic").remove(&at).expect("known");
    }
}

/// Runs one thread's part; whether anything failed for lack of memory.
fn part<B: ObjectCache>(
    heap: &Heap<B>,
    slots: &[Mutex<Option<Block>>],
    oracle: &Oracle,
    ops: &[(usize, Op)],
) -> bool {
    let mut failed = false;
    for (n, (slot, op)) in ops.iter().enumerate() {
        let mut slot = slots[*slot].lock().expect("no panic");
        let tag = (n % 255) as u8 + 1;
        let old = slot.take();
        if let Some(old) = &old {
            old.check(old.size);
            oracle.disclaim(old.at);
        }
        // SAFETY: blocks are this heap's, freed once and used by one thread at a time.
        let (p, size, plain) = unsafe {
            match (op, old) {
                (Op::Resize(size), Some(old)) => {
                    let p = heap.realloc(old.at as *mut u8, *size);
                    if p.is_null() {
                        failed = true;
                        old.check(old.size);
                        oracle.claim(old.at, heap.usable_size(old.at as *const u8));
                        *slot = Some(old);
                        continue;
                    }
                    let kept = Block {
                        at: p as usize,
                        size: *size,
                        ..old
                    };
                    kept.check(old.size.min(*size));
                    // A block kept in place may still be of its alignment's class.
                    (p, *size, old.plain)
                }
                (op, old) => {
                    if let Some(old) = old {
                        let p = old.at as *mut u8;
                        match op {
                            Op::FreeSized if old.plain => heap.free_sized(p, old.size),
                            _ => heap.free(p),
                        }
                    }
                    match *op {
                        Op::Malloc(size) | Op::Resize(size) => (heap.malloc(size), size, true),
                        Op::Zeroed(size) => {
                            let p = heap.alloc_zeroed(size);
                            if !p.is_null() {
                                let bytes = std::slice::from_raw_parts(p, size);
                                assert!(bytes.iter().all(|b| *b == 0), "not zero");
                            }
                            (p, size, true)
                        }
                        Op::Aligned(shift, size) => {
                            let p = heap.memalign(1 << shift, size);
                            assert!((p as usize).is_multiple_of(1 << shift), "{p:p} {shift}");
                            (p, size, false)
                        }
                        Op::Free | Op::FreeSized => continue,
                        Op::Trim => {
                            heap.trim();
                            continue;
                        }
                    }
                }
            }
        };
        if p.is_null() {
            failed = true;
            continue;
        }
        assert!((p as usize).is_multiple_of(16));
        // SAFETY: in use.
        let usable = unsafe { heap.usable_size(p) };
        assert!(usable >= size);
        oracle.claim(p as usize, usable);
        let mut block = Block {
            at: p as usize,
            size,
            tag,
            plain,
        };
        block.fill();
        *slot = Some(block);
    }
    failed
}

/// Runs all threads' parts and frees everything; whether anything failed for lack of memory.
fn run<B: ObjectCache>(heap: &Heap<B>, ops: &[(usize, Op)]) -> bool {
    let slots: Vec<Mutex<Option<Block>>> = (0..SLOTS).map(|_| Mutex::new(None)).collect();
    let oracle = Oracle::default();
    let failed = std::thread::scope(|scope| {
        let parts: Vec<_> = ops
            .chunks(ops.len().div_ceil(THREADS).max(1))
            .map(|ops| scope.spawn(|| part(heap, &slots, &oracle, ops)))
            .collect();
        let all = parts.into_iter().map(|part| part.join().expect("no panic"));
        all.fold(false, |any, failed| any | failed)
    });
    for block in slots
        .into_iter()
        .filter_map(|slot| slot.into_inner().expect("no panic"))
    {
        block.check(block.size);
        // SAFETY: in use, used no more.
        unsafe { heap.free(block.at as *mut u8) };
    }
    failed
}

/// Faults are planted in the process: one test at a time.
static ALONE: Mutex<()> = Mutex::new(());

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(40) })]

    #[test]
    fn no_block_overlaps_another(ops in prop::collection::vec(op(), 1..600)) {
        let _alone = ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        prop_assert!(!run(&UNIFIED, &ops));
        prop_assert!(!run(&SLUB, &ops));
        prop_assert!(!run(&CLASSIC, &ops));
    }
}

/// Lets large blocks, side by side, grow: those with a neighbour move, by their page tables where
/// that is granted.
fn outgrow<B: ObjectCache>(heap: &Heap<B>) {
    const SIZE: usize = 16 << 20;
    let mut blocks: Vec<Block> = (1..=4)
        .map(|tag| Block {
            at: heap.malloc(SIZE) as usize,
            size: SIZE,
            tag,
            plain: true,
        })
        .collect();
    blocks.retain(|block| block.at != 0);
    for block in &mut blocks {
        block.fill();
    }
    for block in &mut blocks {
        // SAFETY: a block of this heap, in use.
        let new = unsafe { heap.realloc(block.at as *mut u8, 2 * SIZE) };
        if !new.is_null() {
            (block.at, block.size) = (new as usize, 2 * SIZE);
        }
        block.check(SIZE);
    }
    for block in blocks {
        // SAFETY: as above, for the last time.
        unsafe { heap.free(block.at as *mut u8) };
    }
}

/// Each kind of system call fails at its k-th request, for every k up to 12 and onwards for good: null
/// at worst, nothing lost, and all is well afterwards.
#[test]
fn every_system_call_fails_at_every_turn() {
    let _alone = ALONE
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner());
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let strategy = prop::collection::vec(op(), 200..300);
    let mut refused = [0; 4];
    for (index, call) in [Call::Reserve, Call::Commit, Call::Advise, Call::Remap]
        .into_iter()
        .enumerate()
    {
        let before = os::refusals(call);
        // What random blocks may never come to.
        os::inject(call, true);
        outgrow(&UNIFIED);
        outgrow(&SLUB);
        outgrow(&CLASSIC);
        os::inject(call, false);
        for k in 1..=12 {
            let ops = strategy
                .new_tree(&mut runner)
                .expect("operations")
                .current();
            for forever in [false, true] {
                let plant = |on| {
                    if forever {
                        os::inject(call, on)
                    } else {
                        os::inject_nth(call, u32::from(on) * k)
                    }
                };
                plant(true);
                run(&UNIFIED, &ops);
                plant(true);
                run(&SLUB, &ops);
                plant(true);
                run(&CLASSIC, &ops);
                plant(false);
                assert!(!run(&UNIFIED, &ops), "{call:?} {k}: does not recover");
                assert!(!run(&SLUB, &ops), "{call:?} {k}: does not recover");
                assert!(!run(&CLASSIC, &ops), "{call:?} {k}: does not recover");
                UNIFIED.trim();
            }
        }
        refused[index] = os::refusals(call) - before;
    }
    // (Address space was reserved before; advice and moves are asked for all the time.)
    assert!(refused[2] > 0 && refused[3] > 0, "{refused:?}");
    println!("refused: {refused:?}");
}
