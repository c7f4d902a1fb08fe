//! The debug heap as a Rust program uses it: against an oracle, from several threads, and with
//! faults planted. (Reports in full are tests of slab-preload.)

use std::alloc::{GlobalAlloc, Layout};
use std::ptr::NonNull;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use proptest::prelude::*;
use slab_api::debug::{DebugHeap, Flags};
use slab_api::misuse::{self, OnError};
use slab_unified::Unified;

/// Faults are counted for the process: one test at a time.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> std::sync::MutexGuard<'static, ()> {
    misuse::set_on_error(OnError::Ignore);
    ALONE
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// How many faults `f` made the heap find.
fn faults(f: impl FnOnce()) -> u64 {
    let before = misuse::detected();
    f();
    misuse::detected() - before
}

static HEAP: DebugHeap<Unified> = DebugHeap::with("FZPU");

#[derive(Clone, Debug)]
enum Op {
    Take { size: usize, align: u32, zero: bool },
    Resize(usize, usize),
    Give(usize),
    Shrink,
}

fn op() -> impl Strategy<Value = Op> {
    let size = prop_oneof![0..200usize, 0..40_000usize, 0..300_000usize];
    prop_oneof![
        4 => (size.clone(), prop_oneof![Just(4u32), 0..14u32], any::<bool>())
            .prop_map(|(size, align, zero)| Op::Take { size, align, zero }),
        2 => (any::<usize>(), size).prop_map(|(n, size)| Op::Resize(n, size)),
        3 => any::<usize>().prop_map(Op::Give),
        1 => Just(Op::Shrink),
    ]
}

struct Block {
    at: NonNull<u8>,
    size: usize,
    fill: u8,
}

impl Block {
    fn check(&self, bytes: usize) {
        // SAFETY: a block in use.
        let content = unsafe { std::slice::from_raw_parts(self.at.as_ptr(), bytes) };
        assert!(content.iter().all(|b| *b == self.fill));
    }

    fn fill(&mut self, fill: u8) {
        self.fill = fill;
        // SAFETY: a block in use.
        unsafe { self.at.write_bytes(fill, self.size) };
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// Blocks are aligned, distinct, exactly as large as asked for, keep their bytes, and the
    /// heap finds nothing wrong with itself.
    #[test]
    fn behaves_as_a_heap(ops in prop::collection::vec(op(), 1..120)) {
        let _alone = alone();
        let mut blocks: Vec<Block> = Vec::new();
        let before = misuse::detected();
        for (n, op) in ops.into_iter().enumerate() {
            let fill = n as u8 | 1;
            match op {
                Op::Take { size, align, zero } => {
                    let align = 1usize << align;
                    let p = if zero && align <= 16 {
                        HEAP.alloc_zeroed(size)
                    } else {
                        HEAP.memalign(align, size)
                    };
                    let at = NonNull::new(p).expect("memory");
                    prop_assert!((p as usize).is_multiple_of(align.max(16)));
                    let mut block = Block { at, size, fill: 0 };
                    if zero && align <= 16 {
                        block.check(size);
                    }
                    block.fill(fill);
                    blocks.push(block);
                }
                Op::Resize(..) | Op::Give(_) if blocks.is_empty() => {}
                Op::Resize(n, size) => {
                    let n = n % blocks.len();
                    let block = &mut blocks[n];
                    // SAFETY: a block in use; the old pointer is forgotten.
                    let p = unsafe { HEAP.realloc(block.at.as_ptr(), size) };
                    let kept = block.size.min(size);
                    *block = Block { at: NonNull::new(p).expect("memory"), size, fill: block.fill };
                    block.check(kept);
                    block.fill(fill);
                }
                Op::Give(n) => {
                    let block = blocks.swap_remove(n % blocks.len());
                    block.check(block.size);
                    // SAFETY: a block in use, used no more.
                    unsafe { HEAP.free(block.at.as_ptr()) };
                }
                Op::Shrink => {
                    HEAP.trim();
                }
            }
        }
        for block in &blocks {
            block.check(block.size);
            // SAFETY: a block in use.
            prop_assert_eq!(unsafe { HEAP.usable_size(block.at.as_ptr()) }, block.size);
        }
        prop_assert_eq!(HEAP.validate(), 0);
        for block in blocks {
            // SAFETY: a block in use, used no more.
            unsafe { HEAP.free(block.at.as_ptr()) };
        }
        HEAP.trim();
        prop_assert_eq!(misuse::detected(), before);
    }
}

/// Threads allocate, free each other's blocks and resize, while one checks all objects: what
/// changes meanwhile is no fault.
#[test]
fn checking_meanwhile_finds_nothing() {
    let _alone = alone();
    static BLOCKS: Mutex<Vec<usize>> = Mutex::new(Vec::new());
    let stop = AtomicBool::new(false);
    let found = faults(|| {
        std::thread::scope(|scope| {
            let workers: Vec<_> = (0..3usize)
                .map(|thread| {
                    scope.spawn(move || {
                        for n in 0..20_000usize {
                            let p = HEAP.malloc((n * 37 + thread * 101) % 700);
                            // SAFETY: ours; the resized block replaces it.
                            let p = unsafe { HEAP.realloc(p, (n * 53) % 900) };
                            let mut blocks = BLOCKS.lock().expect("no panic");
                            blocks.push(p.expose_provenance());
                            if blocks.len() > 50 {
                                let at = blocks.swap_remove(n % 50);
                                drop(blocks);
                                // SAFETY: taken out of the list, so nobody else frees it.
                                unsafe { HEAP.free(std::ptr::with_exposed_provenance_mut(at)) };
                            }
                        }
                    })
                })
                .collect();
            let checker = scope.spawn(|| {
                let mut rounds = 0;
                while !stop.load(Ordering::Relaxed) || rounds == 0 {
                    assert_eq!(HEAP.check_objects(), 0);
                    rounds += 1;
                }
            });
            for worker in workers {
                worker.join().expect("no panic");
            }
            stop.store(true, Ordering::Relaxed);
            checker.join().expect("no panic");
        });
    });
    assert_eq!(found, 0);
}

/// Of threads that free the same object at once, all but one are told.
#[test]
fn a_race_of_double_frees_is_won_once() {
    let _alone = alone();
    for _ in 0..500 {
        let at = HEAP.malloc(100).expose_provenance();
        let told = faults(|| {
            std::thread::scope(|scope| {
                for _ in 0..4 {
                    // SAFETY: not sound by itself: it is the fault that the heap must find.
                    scope.spawn(move || unsafe {
                        HEAP.free(std::ptr::with_exposed_provenance_mut(at));
                    });
                }
            });
        });
        assert_eq!(told, 3);
    }
}

/// Each planted fault is found once, and repaired.
#[test]
fn planted_faults() {
    let _alone = alone();
    let p = HEAP.malloc(50);
    // SAFETY: inside the heap's memory, though not inside the block: that is the fault.
    unsafe {
        for at in [-1isize, 50, 63, 79] {
            *p.offset(at) ^= 0xff;
            assert_eq!(faults(|| assert_eq!(HEAP.check_objects(), 1)), 1, "{at}");
            assert_eq!(HEAP.validate(), 1, "{at}: found once more, and repaired");
            assert_eq!(HEAP.validate(), 0, "{at}: repaired");
        }
        HEAP.free(p);
        for at in [0, 30, 63, 70] {
            *p.offset(at) ^= 0xff;
            assert_eq!(faults(|| assert_eq!(HEAP.check_objects(), 1)), 1, "{at}");
            assert_eq!(HEAP.validate(), 1, "{at}: found once more, and repaired");
            assert_eq!(HEAP.validate(), 0, "{at}: repaired");
        }
        assert_eq!(faults(|| HEAP.free(p)), 1, "freed before");
        assert_eq!(faults(|| assert!(HEAP.realloc(p, 9).is_null())), 1);
        assert_eq!(faults(|| assert_eq!(HEAP.usable_size(p), 0)), 1);
        assert_eq!(faults(|| HEAP.free(p.add(8))), 1, "into it");
        let q = HEAP.malloc(10);
        assert_eq!(faults(|| HEAP.free_sized(q, 11)), 1);
        assert_eq!(faults(|| HEAP.free_sized(q, 10)), 0);
    }
}

/// As a global allocator: layouts come back as they went.
#[test]
fn serves_layouts() {
    let _alone = alone();
    let found = faults(|| {
        for (size, align) in [(1, 1), (24, 8), (100, 64), (5000, 4096), (70_000, 8192)] {
            let layout = Layout::from_size_align(size, align).expect("a layout");
            // SAFETY: the layout is not empty; the block comes back with it.
            unsafe {
                let p = HEAP.alloc(layout);
                assert!((p as usize).is_multiple_of(align));
                p.write_bytes(1, size);
                let p = GlobalAlloc::realloc(&HEAP, p, layout, size * 2);
                assert_eq!(*p.add(size - 1), 1);
                let twice = Layout::from_size_align(size * 2, align).expect("a layout");
                HEAP.dealloc(p, twice);
            }
        }
    });
    assert_eq!(found, 0);
}

/// A heap whose text names other caches serves as a plain one, and takes its own back.
#[test]
fn other_caches_are_plain() {
    let _alone = alone();
    let heap: DebugHeap<Unified> = DebugHeap::with("Z:malloc-64");
    assert_eq!(
        Flags::of_cache(b"Z:malloc-64", "malloc-64"),
        Flags::RED_ZONE
    );
    let found = faults(|| {
        for (size, usable) in [(60, 60), (50, 50), (40, 48), (40_000, 40_960)] {
            let p = heap.malloc(size);
            // SAFETY: a block in use, then used no more.
            unsafe {
                assert_eq!(heap.usable_size(p), usable);
                heap.free(p);
            }
        }
    });
    assert_eq!(found, 0);
    heap.trim();
}
