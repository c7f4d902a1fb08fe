//! The suite that every backend runs: what [`ObjectCache`] promises, and `Heap` on
//! top of it, whatever the design below.
//!
//! `slab_api::conformance_tests!(Backend);` in a test file makes a `#[test]` of each
//! check; [`run`] runs them all; each can be called by itself. Some change process-wide
//! settings, so all hold one lock. They use the system's malloc for their own records.
//!
//! ```text
//!   conformance.rs        one cache: layout, content, bulk, constructors, misuse, limits
//!   conformance/edges.rs  many caches, threads that exit, refusals of the kernel
//!   conformance/growth.rs a heap that grows, and what idles in it (a process of its own)
//!   conformance/heap.rs   Heap: malloc's operations
//!   conformance/quiet.rs  Heap after a churn and a trim
//! ```

use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::ScopedJoinHandle;

use page_alloc::{config, granule, topology};

use crate::misuse::{self, OnError};
use crate::percpu;
use crate::{CacheDesc, CacheError, DestroyError, MAX_OBJECT, ObjectCache};

mod edges;
mod growth;
mod heap;
mod quiet;

pub use edges::*;
pub use growth::*;
pub use heap::*;
pub use quiet::*;

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Misuse goes by in silence, and counted, while this lives.
struct Quiet;

impl Quiet {
    fn new() -> Self {
        misuse::set_on_error(OnError::Ignore);
        Self
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        misuse::set_on_error(OnError::Abort);
    }
}

/// Hands the names of all checks to another macro.
#[doc(hidden)]
#[macro_export]
macro_rules! __conformance_checks {
    ($backend:ty, $expand:ident) => {
        $crate::$expand!($backend:
            descriptions alignment content bulk constructors destroy misuse_is_detected
            exhaustion threads churn oracle shrink_gives_back
            ids lines_are_kept_apart many_caches extended_misuse late_frees
            destroy_takes_from_threads refusals shrink_keeps_what_is_in_use
            slabs_end_in_guards
            heap_sizes heap_alignment heap_realloc heap_zeroing heap_misuse heap_oracle
            heap_threads heap_trimmed heap_trimmed_misuse heap_trimmed_under_load);
    };
}

/// Makes a `#[test]` of each check for a backend.
#[macro_export]
macro_rules! conformance_tests {
    ($backend:ty: $($name:ident)*) => {
        $(#[test]
        fn $name() {
            $crate::conformance::$name::<$backend>();
        })*
    };
    ($backend:ty) => {
        $crate::__conformance_checks!($backend, conformance_tests);
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __conformance_run {
    ($backend:ty: $($name:ident)*) => {
        $($crate::conformance::$name::<$backend>();)*
    };
}

/// Runs all checks, one after the other; panics at the first that fails.
pub fn run<C: ObjectCache>() {
    crate::__conformance_checks!(C, __conformance_run);
}

fn cache<C: ObjectCache>(desc: CacheDesc<'_>) -> C {
    C::create(&desc.no_merge()).expect("a cache")
}

fn take<C: ObjectCache>(cache: C) -> usize {
    cache.alloc().expect("memory").as_ptr().expose_provenance()
}

fn at(p: usize) -> *mut u8 {
    std::ptr::with_exposed_provenance_mut(p)
}

fn give<C: ObjectCache>(cache: C, p: usize) {
    // SAFETY: the checks give back what they took from the same cache, once.
    unsafe { cache.free(NonNull::new(at(p)).expect("not null")) };
}

fn end<C: ObjectCache>(cache: C) {
    cache.validate().expect("valid");
    assert_eq!(cache.info().in_use, 0);
    cache.destroy().expect("nothing in use");
}

/// Waits until threads are gone, their exit hooks included: the end of a scope alone
/// waits for their closures only.
fn join_all<'s>(threads: impl IntoIterator<Item = ScopedJoinHandle<'s, ()>>) {
    for thread in threads {
        thread.join().expect("the thread ends well");
    }
}

fn random(seed: &mut u64) -> usize {
    *seed = seed
        .wrapping_mul(6364136223846793005)
        .wrapping_add(1442695040888963407);
    (*seed >> 33) as usize
}

/// Bad descriptions are refused with the right error.
pub fn descriptions<C: ObjectCache>() {
    let _alone = alone();
    let refused = |desc: CacheDesc<'_>| C::create(&desc).map(|_| ()).expect_err("must be refused");
    assert_eq!(refused(CacheDesc::new("none", 0)), CacheError::Size);
    assert_eq!(
        refused(CacheDesc::new("huge", MAX_OBJECT + 1)),
        CacheError::Size
    );
    assert_eq!(
        refused(CacheDesc::new("odd", 64).align(48)),
        CacheError::Align
    );
    assert_eq!(
        refused(CacheDesc::new("far", 64).align(8192)),
        CacheError::Align
    );
}

/// Every size and alignment: aligned, distinct, large enough.
pub fn alignment<C: ObjectCache>() {
    let _alone = alone();
    for size in [
        1usize, 8, 16, 17, 48, 64, 100, 192, 500, 1024, 1500, 4096, 5000, 9216, 22528, 32768,
    ] {
        for align in [1, 16, 64, 256, 4096] {
            if size.next_multiple_of(align) > MAX_OBJECT {
                continue;
            }
            let cache: C = cache(CacheDesc::new("alignment", size).align(align));
            let mut objects: Vec<usize> = (0..40).map(|_| take(cache)).collect();
            for (n, p) in objects.iter().enumerate() {
                assert!(p.is_multiple_of(align.max(16)), "{size}/{align}: {p:#x}");
                // SAFETY: ours, `size` bytes.
                unsafe { at(*p).write_bytes(n as u8, size) };
            }
            for (n, p) in objects.iter().enumerate() {
                // SAFETY: as above.
                let whole = (0..size).all(|i| unsafe { at(*p).add(i).read() } == n as u8);
                assert!(whole, "{size}/{align}: objects overlap");
            }
            objects.sort_unstable();
            assert!(objects.windows(2).all(|w| w[1] - w[0] >= size));
            for p in objects {
                give(cache, p);
            }
            end(cache);
        }
    }
}

/// What is written stays, while other objects come and go.
pub fn content<C: ObjectCache>() {
    let _alone = alone();
    let cache: C = cache(CacheDesc::new("content", 72));
    let kept: Vec<usize> = (0..500).map(|_| take(cache)).collect();
    for (n, p) in kept.iter().enumerate() {
        // SAFETY: ours, 72 bytes.
        unsafe { at(*p).write_bytes(n as u8, 72) };
    }
    for _ in 0..50 {
        let others: Vec<usize> = (0..300).map(|_| take(cache)).collect();
        for p in others {
            // SAFETY: ours, 72 bytes.
            unsafe { at(p).write_bytes(0xee, 72) };
            give(cache, p);
        }
    }
    for (n, p) in kept.into_iter().enumerate() {
        // SAFETY: ours, 72 bytes.
        assert!((0..72).all(|i| unsafe { at(p).add(i).read() } == n as u8));
        give(cache, p);
    }
    end(cache);
}

/// Bulk calls give and take what single ones would.
pub fn bulk<C: ObjectCache>() {
    let _alone = alone();
    let cache: C = cache(CacheDesc::new("bulk", 128));
    for n in [0, 1, 7, 64, 250, 3000] {
        let mut out = vec![std::ptr::null_mut(); n];
        assert_eq!(cache.alloc_bulk(&mut out), n);
        assert_eq!(cache.info().in_use, n);
        let mut sorted: Vec<usize> = out.iter().map(|p| *p as usize).collect();
        sorted.sort_unstable();
        assert!(sorted.windows(2).all(|w| w[1] - w[0] >= 128), "distinct");
        for p in &sorted {
            assert_ne!(
                granule::cell(at(*p))
                    .expect("ours")
                    .load(std::sync::atomic::Ordering::Relaxed),
                0
            );
        }
        // SAFETY: taken above, given back once.
        unsafe { cache.free_bulk(&out) };
        assert_eq!(cache.info().in_use, 0);
    }
    end(cache);
}

/// Constructors run once an object, and objects stay constructed.
pub fn constructors<C: ObjectCache>() {
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
    static RUNS: AtomicUsize = AtomicUsize::new(0);
    unsafe fn construct(p: *mut u8) {
        RUNS.fetch_add(1, Relaxed);
        // SAFETY: a fresh object of 56 bytes.
        unsafe { p.write_bytes(0x3d, 56) };
    }
    let _alone = alone();
    RUNS.store(0, Relaxed);
    let cache: C = cache(CacheDesc::new("constructed", 56).constructor(construct));
    for _ in 0..20 {
        let objects: Vec<usize> = (0..400).map(|_| take(cache)).collect();
        for p in &objects {
            // SAFETY: ours, 56 bytes.
            assert!((0..56).all(|i| unsafe { at(*p).add(i).read() } == 0x3d));
        }
        for p in objects {
            give(cache, p);
        }
    }
    let info = cache.info();
    let made = RUNS.load(Relaxed);
    assert!(
        made >= 400 && made >= info.objects(),
        "{made} runs, {info:?}"
    );
    assert!(made <= 20 * 400, "constructed again for a reuse");
    end(cache);
}

/// A cache with objects in use is not destroyed, and goes on working.
pub fn destroy<C: ObjectCache>() {
    let _alone = alone();
    let cache: C = cache(CacheDesc::new("busy", 200));
    let objects: Vec<usize> = (0..30).map(|_| take(cache)).collect();
    assert_eq!(cache.destroy(), Err(DestroyError::Busy(30)));
    let more = take(cache);
    for p in objects.into_iter().chain([more]) {
        give(cache, p);
    }
    let id = cache.id();
    cache.destroy().expect("nothing in use");
    assert!(C::from_id(id).is_none());
}

/// Double, interior, misaligned and foreign frees are noticed, and harm nothing.
pub fn misuse_is_detected<C: ObjectCache>() {
    let _alone = alone();
    let _quiet = Quiet::new();
    let cache: C = cache(CacheDesc::new("misuse", 64));
    let other: C = self::cache(CacheDesc::new("other", 64));
    let objects: Vec<usize> = (0..50).map(|_| take(cache)).collect();
    let stranger = take(other);
    let mut expected = misuse::detected();
    let mut bad = |p: usize| {
        give(cache, p);
        expected += 1;
        assert_eq!(
            misuse::detected(),
            expected,
            "a free of {p:#x} went unnoticed"
        );
    };
    let local = 0u128;
    give(cache, objects[0]);
    bad(objects[0]);
    give(cache, objects[1]);
    bad(objects[0]);
    bad(objects[2] + 16);
    bad(objects[2] + 1);
    bad((&raw const local) as usize);
    bad(0x1234_5678_9000);
    bad(stranger);
    std::thread::scope(|s| {
        join_all([s.spawn(|| bad(objects[1]))]);
    });
    assert_eq!(cache.info().in_use, 48);
    for p in &objects[2..] {
        give(cache, *p);
    }
    give(other, stranger);
    end(cache);
    end(other);
}

/// Out of memory is told by `None`, and over when memory is back.
pub fn exhaustion<C: ObjectCache>() {
    let _alone = alone();
    let cache: C = cache(CacheDesc::new("exhaustion", 4096));
    let limit = page_alloc::committed_bytes() + (8 << 20);
    config::set_arena_max(limit);
    let mut objects = Vec::new();
    while let Some(p) = cache.alloc() {
        objects.push(p.as_ptr().expose_provenance());
        assert!(objects.len() < 1 << 20, "the limit does not hold");
    }
    assert!(cache.alloc().is_none(), "and stays so");
    let count = objects.len();
    for p in objects {
        give(cache, p);
    }
    let again: Vec<usize> = (0..count / 2).map(|_| take(cache)).collect();
    config::set_arena_max(usize::MAX);
    for p in again {
        give(cache, p);
    }
    end(cache);
}

/// Four threads pass objects around; every object is owned by one at a time.
pub fn threads<C: ObjectCache>() {
    const THREADS: usize = 4;
    let _alone = alone();
    let cache: C = cache(CacheDesc::new("threads", 80));
    let (senders, receivers): (Vec<_>, Vec<_>) =
        (0..THREADS).map(|_| mpsc::channel::<Vec<usize>>()).unzip();
    std::thread::scope(|s| {
        let mut handles = Vec::new();
        for (me, receiver) in receivers.into_iter().enumerate() {
            let senders = senders.clone();
            handles.push(s.spawn(move || {
                let mut seed = me as u64 + 99;
                let mut mine: Vec<usize> = Vec::new();
                let stamp = |p: usize| {
                    // SAFETY: ours, 80 bytes.
                    unsafe { at(p).cast::<u64>().write(p as u64 ^ 0x55) };
                };
                let check = |p: usize| {
                    // SAFETY: ours, 80 bytes.
                    let found = unsafe { at(p).cast::<u64>().read() };
                    assert_eq!(found, p as u64 ^ 0x55, "two owners wrote to one object");
                };
                for _ in 0..2000 {
                    for _ in 0..random(&mut seed) % 40 {
                        let p = take(cache);
                        stamp(p);
                        mine.push(p);
                    }
                    let keep = random(&mut seed) % (mine.len() + 1);
                    let batch = mine.split_off(keep);
                    let _ = senders[random(&mut seed) % THREADS].send(batch);
                    for p in receiver
                        .try_iter()
                        .flatten()
                        .chain(mine.drain(..mine.len() / 4))
                    {
                        check(p);
                        // SAFETY: ours; spoils the stamp for whoever frees it too.
                        unsafe { at(p).cast::<u64>().write(0) };
                        give(cache, p);
                    }
                }
                drop(senders);
                for p in mine.into_iter().chain(receiver.into_iter().flatten()) {
                    check(p);
                    give(cache, p);
                }
            }));
        }
        drop(senders);
        join_all(handles);
    });
    end(cache);
}

/// Threads that end leave nothing behind.
pub fn churn<C: ObjectCache>() {
    let _alone = alone();
    let cache: C = cache(CacheDesc::new("churn", 112));
    let mut slabs = 0;
    for round in 0..300 {
        std::thread::spawn(move || {
            let objects: Vec<usize> = (0..100).map(|_| take(cache)).collect();
            for p in objects {
                give(cache, p);
            }
        })
        .join()
        .expect("the thread ends well");
        assert_eq!(cache.info().in_use, 0);
        if round == 20 {
            slabs = cache.info().slabs;
        }
    }
    let info = cache.info();
    // CPUs' queues may have grown since, and a node may have been used first since.
    let queues = if percpu::on() {
        percpu::queued(cache.id()).div_ceil(info.objects_per_slab)
    } else {
        0
    };
    assert!(
        info.slabs <= (slabs + 2) * topology::nodes() + queues,
        "{} slabs, {slabs} at first, {queues} in queues",
        info.slabs
    );
    end(cache);
}

/// Random operations against a map of what is in use, by address.
pub fn oracle<C: ObjectCache>() {
    let _alone = alone();
    for seed in 1..4u64 {
        let mut seed = seed;
        let caches: Vec<(C, usize)> = [16, 96, 1000, 6000]
            .into_iter()
            .map(|size| (cache(CacheDesc::new("oracle", size)), size))
            .collect();
        let mut live: BTreeMap<usize, (usize, u8)> = BTreeMap::new();
        for step in 0..30_000 {
            if random(&mut seed) % 100 < 55 && live.len() < 3000 {
                let which = random(&mut seed) % caches.len();
                let (cache, size) = caches[which];
                let p = take(cache);
                let below = live.range(..=p).next_back();
                assert!(
                    below.is_none_or(|(q, (w, _))| q + caches[*w].1 <= p),
                    "overlap below"
                );
                let above = live.range(p..).next();
                assert!(above.is_none_or(|(q, _)| p + size <= *q), "overlap above");
                // SAFETY: ours.
                unsafe { at(p).write_bytes(step as u8, size) };
                live.insert(p, (which, step as u8));
            } else if let Some((p, (which, fill))) = {
                let from = random(&mut seed) << 12;
                let key = live
                    .range(from..)
                    .next()
                    .or_else(|| live.iter().next())
                    .map(|(p, _)| *p);
                key.and_then(|p| live.remove_entry(&p))
            } {
                let (cache, size) = caches[which];
                // SAFETY: ours.
                let whole = (0..size).all(|i| unsafe { at(p).add(i).read() } == fill);
                assert!(whole, "somebody wrote to an object in use");
                give(cache, p);
            }
            if step % 5000 == 0 {
                for (which, (cache, _)) in caches.iter().enumerate() {
                    let expected = live.values().filter(|(w, _)| *w == which).count();
                    assert_eq!(cache.info().in_use, expected);
                    cache.validate().expect("valid");
                }
            }
        }
        for (p, (which, _)) in live {
            give(caches[which].0, p);
        }
        for (cache, _) in caches {
            end(cache);
        }
    }
}

/// shrink gives the pages of empty slabs back.
pub fn shrink_gives_back<C: ObjectCache>() {
    let _alone = alone();
    let cache: C = cache(CacheDesc::new("shrink", 512));
    let objects: Vec<usize> = (0..5000).map(|_| take(cache)).collect();
    for p in objects {
        give(cache, p);
    }
    cache.shrink();
    let info = cache.info();
    assert_eq!(
        (info.slabs, info.queued, info.in_use),
        (0, 0, 0),
        "{info:?}"
    );
    end(cache);
}

/// The suite with CPUs for slots; then on CPUs without slots, where every operation takes
/// the locked paths. Skipped, with a word, where there are no restartable sequences.
///
/// # Panics
/// When the backend does not conform, or the paths that are meant were not taken.
pub fn run_on_cpus<C: ObjectCache>() {
    if let Err(why) = percpu::start() {
        assert!(std::env::var_os("CI").is_none(), "{why}");
        println!("skipped: {why}");
        return;
    }
    run::<C>();
    let counts = percpu::counts();
    assert!(counts.refills > 0 && counts.flushes > 0, "{counts:?}");
    assert!(
        counts.trims > 0 || page_alloc::cpu::stops() > 0,
        "caches were ended: {counts:?}"
    );
    let bypasses = counts.bypasses;
    page_alloc::cpu::set_cpus(0);
    run::<C>();
    assert!(
        percpu::counts().bypasses > bypasses + 1000,
        "{:?}",
        percpu::counts()
    );
}
