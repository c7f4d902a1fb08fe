//! The historical design from outside: its constants and counters, expiry, traffic
//! between threads, thread exit, fork.

use std::collections::HashSet;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, mpsc};
use std::time::{Duration, Instant};

use slab_api::{CacheDesc, DestroyError, ObjectCache, fork};
use slab_unified::v4::{UnifiedV4, set_expiry_interval, simulate_llcs};

/// The tests of this file look at slots and counters, and one forks: one at a time.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    let guard = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    // No expiry but where it is asked for.
    set_expiry_interval(1 << 40);
    simulate_llcs(1);
    guard
}

fn cache(name: &str, size: usize) -> UnifiedV4 {
    UnifiedV4::create(&CacheDesc::new(name, size).no_merge()).expect("a cache")
}

fn take(cache: UnifiedV4) -> usize {
    cache.alloc().expect("memory").as_ptr().expose_provenance()
}

fn give(cache: UnifiedV4, p: usize) {
    let p = NonNull::new(std::ptr::with_exposed_provenance_mut(p)).expect("not null");
    // SAFETY: callers pass objects of `cache` that they own.
    unsafe { cache.free(p) };
}

fn give_all(cache: UnifiedV4, objects: impl IntoIterator<Item = usize>) {
    objects.into_iter().for_each(|p| give(cache, p));
}

fn count(cache: UnifiedV4, name: &str) -> u64 {
    cache
        .info()
        .counter(name)
        .expect("a counter of this design")
}

fn end(cache: UnifiedV4) {
    cache.validate().expect("valid");
    assert_eq!(cache.info().in_use, 0);
    cache.destroy().expect("nothing in use");
}

#[test]
fn constants_are_the_historical_ones() {
    let _alone = alone();
    for (size, max, batch) in [
        (64, 120, 60),
        (256, 120, 60),
        (512, 54, 27),
        (2048, 24, 12),
        (8192, 8, 4),
    ] {
        let cache = cache("v4-constants", size);
        assert_eq!(cache.info().tunables, (max, batch, 10), "{size}");
        // The first refill is a whole batch already, as far as the first slab has one.
        let p = take(cache);
        let first = batch.min(cache.info().objects_per_slab);
        assert_eq!(cache.info().queued, first - 1, "{size}");
        give(cache, p);
        end(cache);
    }
}

#[test]
fn refills_take_runs() {
    let _alone = alone();
    // 64 objects a slab: bits in the page's record.
    let cache = cache("v4-runs", 64);
    let first = take(cache);
    assert_eq!(count(cache, "runs"), 1, "60 objects are one run");
    // The last of the run in address order is the first to leave.
    assert_eq!(first % 4096, 59 * 64);
    let mut objects: Vec<usize> = (1..64 * 4).map(|_| take(cache)).chain([first]).collect();
    assert_eq!(count(cache, "new_slab"), 4);
    objects.sort_unstable();
    objects.dedup();
    assert_eq!(objects.len(), 64 * 4, "no object twice");
    // Every other object: all runs are of one.
    let (free, mut objects): (Vec<usize>, Vec<usize>) =
        objects.iter().partition(|p| (**p / 64).is_multiple_of(2));
    give_all(cache, free);
    cache.shrink();
    let before = count(cache, "runs");
    objects.push(take(cache));
    assert_eq!(count(cache, "runs") - before, 60);
    cache.validate().expect("valid");
    give_all(cache, objects);
    end(cache);
}

#[test]
fn batches_pass_through_the_shared_queue() {
    let _alone = alone();
    for size in [64, 32] {
        let cache = cache("v4-batches", size);
        let objects: Vec<usize> = (0..2000).map(|_| take(cache)).collect();
        assert_eq!(cache.info().in_use, 2000);
        assert_eq!(count(cache, "flush"), 0);
        cache.validate().expect("valid");
        give_all(cache, objects);
        cache.validate().expect("valid");
        let info = cache.info();
        assert_eq!(info.in_use, 0);
        // 600 fit the shared queue, 120 the slot's; the rest went to the slabs.
        assert_eq!(count(cache, "shared_flush"), 600 / 60);
        assert!(count(cache, "flush") > count(cache, "shared_flush"));
        assert!(info.queued > 600 && info.queued <= 720, "{info:?}");
        assert!(count(cache, "discard_slab") > 0);
        let again: Vec<usize> = (0..300).map(|_| take(cache)).collect();
        assert!(count(cache, "shared_refill") > 0);
        give_all(cache, again);
        assert!(cache.shrink() > 0);
        assert_eq!((cache.info().slabs, cache.info().queued), (0, 0));
        end(cache);
    }
}

/// Runs `f` in a thread on a CPU; false when the process may not run there.
fn on_cpu(cpu: usize, f: impl FnOnce() + Send) -> bool {
    std::thread::scope(|scope| {
        let thread = scope.spawn(move || {
            // SAFETY: a plain set of CPUs on the stack.
            let moved = unsafe {
                let mut set: libc::cpu_set_t = std::mem::zeroed();
                libc::CPU_SET(cpu, &mut set);
                libc::sched_setaffinity(0, size_of_val(&set), &raw const set) == 0
            };
            if moved {
                f();
            }
            moved
        });
        thread.join().expect("the thread ends well")
    })
}

#[test]
fn each_llc_has_a_shared_queue() {
    let _alone = alone();
    simulate_llcs(2);
    let cache = cache("v4-llcs", 64);
    assert!(on_cpu(0, || {
        let objects: Vec<usize> = (0..1000).map(|_| take(cache)).collect();
        give_all(cache, objects);
    }));
    let shared = cache.info().queued;
    assert_eq!(shared, 600, "the thread's own queue ended with it");
    let other = on_cpu(1, || {
        let p = take(cache);
        assert_eq!(
            count(cache, "shared_refill"),
            0,
            "another LLC's stays there"
        );
        give(cache, p);
    });
    if !other {
        eprintln!("one CPU only: the second LLC is not tested");
    }
    assert!(on_cpu(0, || {
        let p = take(cache);
        assert_eq!(count(cache, "shared_refill"), 1);
        give(cache, p);
    }));
    end(cache);
}

#[test]
fn idle_queues_expire_in_slow_paths() {
    let _alone = alone();
    set_expiry_interval(5);
    let idle = cache("v4-idle", 128);
    let busy = cache("v4-busy", 256);
    let queued = std::thread::scope(|scope| {
        // A thread of its own: a slot that has not expired yet.
        let thread = scope.spawn(|| {
            let objects: Vec<usize> = (0..900).map(|_| take(idle)).collect();
            give_all(idle, objects);
            let before = idle.info().queued;
            let until = Instant::now() + Duration::from_secs(20);
            while idle.info().queued > 0 && Instant::now() < until {
                // Slow paths of another cache.
                let objects: Vec<usize> = (0..300).map(|_| take(busy)).collect();
                give_all(busy, objects);
                std::thread::sleep(Duration::from_millis(1));
            }
            (before, idle.info().queued)
        });
        thread.join().expect("no thread fails")
    });
    assert!(queued.0 > 600, "{queued:?}");
    assert_eq!(queued.1, 0, "all went back without anybody's asking");
    assert!(count(idle, "expire") > 0);
    end(idle);
    end(busy);
}

#[test]
fn every_object_is_accounted_for_across_threads() {
    let _alone = alone();
    set_expiry_interval(1);
    let cache = cache("v4-traffic", 48);
    let threads = 6;
    let (senders, receivers): (Vec<_>, Vec<_>) = (0..threads)
        .map(|_| mpsc::sync_channel::<Vec<usize>>(2))
        .unzip();
    let kept: Vec<usize> = std::thread::scope(|scope| {
        let work = |n: usize, to: mpsc::SyncSender<Vec<usize>>, from: mpsc::Receiver<_>| {
            scope.spawn(move || {
                let mut kept = Vec::new();
                for round in 0..150 {
                    let mut objects: Vec<usize> = (0..100 + 40 * n).map(|_| take(cache)).collect();
                    for p in &objects {
                        let at: *mut usize = std::ptr::with_exposed_provenance_mut(*p);
                        // SAFETY: ours, of 48 bytes.
                        unsafe { at.write(*p) };
                    }
                    kept.extend(objects.pop());
                    let _ = to.try_send(objects).map_err(|back| match back {
                        mpsc::TrySendError::Full(objects)
                        | mpsc::TrySendError::Disconnected(objects) => give_all(cache, objects),
                    });
                    let received: Vec<Vec<usize>> = from.try_iter().collect();
                    for p in received.into_iter().flatten() {
                        let at: *const usize = std::ptr::with_exposed_provenance(p);
                        // SAFETY: sent by the thread that owned it.
                        assert_eq!(unsafe { at.read() }, p, "somebody else wrote to it");
                        give(cache, p);
                    }
                    if round % 50 == 49 {
                        cache.shrink();
                    }
                }
                drop(to);
                give_all(cache, from.iter().flatten());
                kept
            })
        };
        let mut senders = senders.into_iter();
        let last = senders.next();
        let next = senders.chain(last);
        let workers: Vec<_> = next
            .zip(receivers)
            .enumerate()
            .map(|(n, (to, from))| work(n, to, from))
            .collect();
        workers
            .into_iter()
            .flat_map(|worker| worker.join().expect("no thread fails"))
            .collect()
    });
    let distinct: HashSet<usize> = kept.iter().copied().collect();
    assert_eq!(distinct.len(), threads * 150, "an object handed out twice");
    cache.validate().expect("valid");
    assert_eq!(cache.info().in_use, kept.len());
    assert_eq!(cache.destroy(), Err(DestroyError::Busy(kept.len())));
    give_all(cache, kept);
    cache.validate().expect("valid");
    assert!(cache.shrink() > 0);
    let info = cache.info();
    assert_eq!((info.in_use, info.slabs, info.queued), (0, 0, 0));
    end(cache);
}

#[test]
fn free_pages_inside_slabs_go_back() {
    let _alone = alone();
    // 16 objects in slabs of four pages: a page's worth of neighbours is one page.
    let cache = cache("v4-gaps", 1024);
    assert_eq!(cache.info().slab_order, 2);
    let objects: Vec<usize> = (0..16 * 40).map(|_| take(cache)).collect();
    let (keep, free): (Vec<usize>, Vec<usize>) =
        objects.into_iter().partition(|p| (p >> 10) % 16 == 0);
    give_all(cache, free);
    cache.shrink();
    assert!(cache.discard_gaps(true) >= 2 * 30);
    cache.validate().expect("valid");
    give_all(cache, keep);
    end(cache);
}

/// Takes objects in several threads, which get the lost threads' slots; true when all
/// are distinct and stay as they were written.
fn objects_are_distinct(cache: UnifiedV4) -> bool {
    const EACH: usize = 1500;
    let work = move || -> Vec<usize> {
        let objects: Vec<usize> = (0..EACH)
            .filter_map(|_| cache.alloc())
            .map(|p| p.as_ptr().expose_provenance())
            .collect();
        for p in &objects {
            let at: *mut usize = std::ptr::with_exposed_provenance_mut(*p);
            // SAFETY: ours, of 64 bytes.
            unsafe { at.write(*p) };
        }
        objects
    };
    let threads: Vec<_> = (0..4).map(|_| std::thread::spawn(work)).collect();
    // All threads first: what is freed below may be handed out again.
    let objects: Vec<usize> = threads
        .into_iter()
        .flat_map(|thread| thread.join().unwrap_or_default())
        .collect();
    let mut seen = HashSet::new();
    for p in &objects {
        let at: *const usize = std::ptr::with_exposed_provenance(*p);
        // SAFETY: an object in use, 64 bytes.
        if unsafe { at.read() } != *p || !seen.insert(*p) {
            return false;
        }
    }
    give_all(cache, objects);
    seen.len() == 4 * EACH
}

#[test]
fn children_inherit_whole_caches() {
    let _alone = alone();
    set_expiry_interval(1);
    let cache = cache("v4-fork", 64);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let worker = |thread: usize| {
            let stop = &stop;
            scope.spawn(move || {
                let mut held = Vec::new();
                while !stop.load(Ordering::Relaxed) {
                    held.extend((0..200 + 250 * thread).map(|_| take(cache)));
                    give_all(cache, held.drain(..));
                }
            })
        };
        let threads: Vec<_> = (0..3).map(worker).collect();
        let mut statuses = Vec::new();
        for _ in 0..40 {
            fork::prepare();
            // SAFETY: the child uses what fork::child repaired, and leaves by _exit.
            let pid = unsafe { libc::fork() };
            if pid == 0 {
                // SAFETY: in the child, after `prepare`; alarm ends one that hangs.
                unsafe {
                    libc::alarm(20);
                    fork::child();
                    libc::_exit(i32::from(!objects_are_distinct(cache)));
                }
            }
            fork::parent();
            let mut status = 0;
            // SAFETY: waits for the child made above.
            unsafe { libc::waitpid(pid, &raw mut status, 0) };
            statuses.push(status);
            if status != 0 {
                break;
            }
        }
        // Before any assertion: the scope waits for the threads.
        stop.store(true, Ordering::Relaxed);
        threads
            .into_iter()
            .for_each(|t| t.join().expect("no thread fails"));
        assert!(statuses.iter().all(|status| *status == 0), "{statuses:?}");
    });
    end(cache);
}
