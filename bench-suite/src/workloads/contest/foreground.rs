//! The foreground job: parse a generated source tree and index it.
//!
//! ```text
//!  files ──taken one by one by each thread──┐
//!                                           ▼
//!   tokens: a list, one node a word   ──>  index: hash table of names ──> uses (a growing array)
//!   blocks: a tree, one node a brace           all indices are read and freed by one thread at the end
//! ```
//! Names are strings of their own; nodes, tables and arrays grow and shrink as a compiler's do.

use crate::objects::Objects;
use crate::workloads::crew::{cpu_of, thread_cpu};
use crate::workloads::ctree::Tree;
use crate::workloads::store::{Buf, Owned, taken};
use crate::workloads::{STACK, die, pin};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::Builder;
use std::time::{Duration, Instant};

/// What one run of the job took.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Work {
    /// From the first file to the last object freed.
    pub time: Duration,
    /// CPU time of its threads.
    pub cpu: Duration,
    /// Objects taken.
    pub objects: u64,
    /// Names found: the same for the same tree, whoever found them.
    pub uses: u64,
}

const BUCKETS: usize = 256;

struct Token<O: Objects> {
    text: Buf<O>,
    line: u32,
    next: Option<Owned<O, Token<O>>>,
}

struct Block<O: Objects> {
    start: u32,
    end: u32,
    inner: Option<Owned<O, Block<O>>>,
    next: Option<Owned<O, Block<O>>>,
}

struct Name<O: Objects> {
    text: Buf<O>,
    /// Lines, four bytes each; the array doubles when it is full.
    lines: Buf<O>,
    used: usize,
    next: Option<Owned<O, Name<O>>>,
}

/// Names and where they are used.
struct Index<O: Objects> {
    buckets: Vec<Option<Owned<O, Name<O>>>>,
}

impl<O: Objects> Index<O> {
    fn new() -> Self {
        Self {
            buckets: (0..BUCKETS).map(|_| None).collect(),
        }
    }

    fn add(&mut self, text: &[u8], line: u32) {
        let hash = text.iter().fold(0x811c_9dc5u32, |hash, byte| {
            (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193)
        });
        let bucket = &mut self.buckets[hash as usize % BUCKETS];
        let mut place = bucket.as_mut();
        while let Some(name) = place {
            if *name.text == *text {
                name.add(line);
                return;
            }
            place = name.next.as_mut();
        }
        let mut name = Name {
            text: Buf::copy_of(text),
            lines: Buf::filled(16, 0),
            used: 0,
            next: bucket.take(),
        };
        name.add(line);
        *bucket = Some(Owned::new(name));
    }

    /// Uses of all names; the names end on the way.
    fn consume(self) -> u64 {
        let mut uses = 0;
        for mut bucket in self.buckets {
            while let Some(name) = bucket {
                let mut name = name.into_inner();
                uses += name.used as u64;
                std::hint::black_box(name.text.len());
                bucket = name.next.take();
            }
        }
        uses
    }
}

impl<O: Objects> Name<O> {
    fn add(&mut self, line: u32) {
        let at = self.used * 4;
        if at == self.lines.len() {
            let mut double = Buf::filled(2 * at, 0);
            double[..at].copy_from_slice(&self.lines);
            self.lines = double;
        }
        self.lines[at..at + 4].copy_from_slice(&line.to_le_bytes());
        self.used += 1;
    }
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

/// A file's tokens, the last one first.
fn tokens<O: Objects>(text: &str) -> Option<Owned<O, Token<O>>> {
    let bytes = text.as_bytes();
    let (mut at, mut line, mut last) = (0, 1u32, None);
    while at < bytes.len() {
        let from = at;
        at += 1;
        match bytes[from] {
            b'\n' => line += 1,
            byte if byte.is_ascii_whitespace() => {}
            byte => {
                while is_word(byte) && at < bytes.len() && is_word(bytes[at]) {
                    at += 1;
                }
                last = Some(Owned::new(Token {
                    text: Buf::copy_of(&bytes[from..at]),
                    line,
                    next: last,
                }));
            }
        }
    }
    last
}

/// Parses one file into `index`.
fn parse<O: Objects>(text: &str, index: &mut Index<O>) {
    let mut token = tokens::<O>(text);
    // Tokens come last first, so a closing brace opens a block.
    let mut open: Vec<Owned<O, Block<O>>> = Vec::new();
    let mut done: Option<Owned<O, Block<O>>> = None;
    while let Some(here) = token {
        let mut here = here.into_inner();
        token = here.next.take();
        match here.text[0] {
            b'}' => open.push(Owned::new(Block {
                start: here.line,
                end: here.line,
                inner: None,
                next: None,
            })),
            b'{' => {
                if let Some(mut block) = open.pop() {
                    block.start = here.line;
                    let outer = match open.last_mut() {
                        Some(outer) => &mut outer.inner,
                        None => &mut done,
                    };
                    block.next = outer.take();
                    *outer = Some(block);
                }
            }
            first if is_word(first) && !first.is_ascii_digit() => index.add(&here.text, here.line),
            _ => {}
        }
    }
    std::hint::black_box(lines_in(done.as_ref()));
    // Sibling blocks one by one: a file has many, and they nest but a few deep.
    while let Some(block) = done {
        done = block.into_inner().next;
    }
}

fn lines_in<O: Objects>(mut block: Option<&Owned<O, Block<O>>>) -> u64 {
    let mut lines = 0;
    while let Some(here) = block {
        lines += u64::from(here.end.saturating_sub(here.start)) + lines_in(here.inner.as_ref());
        block = here.next.as_ref();
    }
    lines
}

fn panicked() -> ! {
    die("contest: a thread of the foreground panicked")
}

/// Runs the job: `passes` times over the tree, on `threads` threads.
pub fn run<O: Objects>(
    tree: &Tree,
    passes: usize,
    threads: usize,
    cpus: Option<(usize, usize)>,
) -> Work {
    let began = Instant::now();
    let mut work = Work::default();
    let objects = taken();
    for _ in 0..passes {
        pass::<O>(tree, threads, cpus, &mut work);
    }
    work.objects += taken() - objects;
    work.time = began.elapsed();
    work
}

fn pass<O: Objects>(tree: &Tree, threads: usize, cpus: Option<(usize, usize)>, work: &mut Work) {
    let next = AtomicUsize::new(0);
    let finished: Mutex<Vec<Index<O>>> = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        let members: Vec<_> = (0..threads)
            .map(|number| {
                let (next, finished) = (&next, &finished);
                let body = move || {
                    pin(cpu_of(cpus, number));
                    while let Some(file) = tree.files.get(next.fetch_add(1, Ordering::Relaxed)) {
                        let mut index = Index::<O>::new();
                        parse(&file.text, &mut index);
                        let mut finished = finished.lock().unwrap_or_else(|_| panicked());
                        finished.push(index);
                    }
                    (thread_cpu(), taken())
                };
                let member = Builder::new().stack_size(STACK).spawn_scoped(scope, body);
                member.unwrap_or_else(|e| die(&format!("contest: cannot start a thread: {e}")))
            })
            .collect();
        for member in members {
            let (cpu, objects) = member.join().unwrap_or_else(|_| panicked());
            work.cpu += cpu;
            work.objects += objects;
        }
    });
    // The link step: one thread reads and ends what the others made.
    let before = thread_cpu();
    let indices = finished.into_inner().unwrap_or_else(|_| panicked());
    work.uses += indices.into_iter().map(Index::consume).sum::<u64>();
    work.cpu += thread_cpu() - before;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::SystemMalloc;
    use crate::workloads::ctree;

    #[test]
    fn every_name_of_the_tree_is_counted_once() {
        let tree = ctree::generate(2);
        // The reference: a split into words, without any of the structures above.
        let names = |text: &str| {
            text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
                .filter(|word| word.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_'))
                .count() as u64
        };
        let expected: u64 = tree.files.iter().map(|file| names(&file.text)).sum();
        for threads in [1, 3] {
            let work = run::<SystemMalloc>(&tree, 2, threads, None);
            assert_eq!(work.uses, 2 * expected);
            assert!(work.objects > 2 * expected);
        }
    }

    #[test]
    fn blocks_nest() {
        let mut index = Index::<SystemMalloc>::new();
        parse("int f(void)\n{\n\tif (x) {\n\t\ty();\n\t}\n}\n", &mut index);
        assert_eq!(index.consume(), 6);
    }
}
