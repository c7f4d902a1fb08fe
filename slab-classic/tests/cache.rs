//! The classic cache from outside: counters, tunables, colours, constructors, reaps,
//! thread exit, misuse of destroy.

use std::collections::HashSet;
use std::ptr::NonNull;
use std::sync::Mutex;

use page_alloc::{PAGE_SIZE, page_of};
use slab_api::{CacheDesc, DestroyError, ObjectCache};
use slab_classic::{Classic, Placement, TuneError, set_reap_interval};

/// The tests of this file look at slots and counters: one at a time.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> std::sync::MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(|e| e.into_inner())
}

fn take(cache: Classic, n: usize) -> Vec<NonNull<u8>> {
    (0..n).map(|_| cache.alloc().unwrap()).collect()
}

fn give(cache: Classic, objects: impl IntoIterator<Item = NonNull<u8>>) {
    for p in objects {
        // SAFETY: the tests pass each object once.
        unsafe { cache.free(p) };
    }
}

fn count(cache: Classic, name: &str) -> u64 {
    cache.info().counter(name).unwrap()
}

#[test]
fn batches_pass_through_the_shared_array() {
    let _alone = alone();
    let cache = Classic::create(&CacheDesc::new("batches", 64)).unwrap();
    let objects = take(cache, 2000);
    cache.validate().unwrap();
    assert_eq!(cache.info().in_use, 2000);
    assert!(count(cache, "refill") >= 2000 / 60);
    assert!(count(cache, "grow") >= 2000 / 64);
    assert_eq!(count(cache, "flush"), 0);
    give(cache, objects);
    cache.validate().unwrap();
    let info = cache.info();
    assert_eq!(info.in_use, 0);
    // 2000 frees: 120 stay in the array, 480 in the shared one, the rest is flushed
    // to slabs, of which all but the free limit's go back.
    assert!(count(cache, "flush") >= (2000 - 120) / 60);
    assert!(count(cache, "shared_flush") >= 480 / 60);
    assert!(count(cache, "destroy_slab") > 0);
    assert!(
        count(cache, "grow_array") >= 3,
        "the array grew to its limit"
    );
    assert!(info.queued <= 600 && info.queued >= 480);
    let again = take(cache, 300);
    assert!(count(cache, "shared_refill") > 0);
    give(cache, again);
    assert!(cache.shrink() > 0);
    assert_eq!((cache.info().slabs, cache.info().queued), (0, 0));
    cache.destroy().unwrap();
}

#[test]
fn newest_object_first() {
    let _alone = alone();
    let cache = Classic::create(&CacheDesc::new("lifo", 128)).unwrap();
    let objects = take(cache, 3);
    give(cache, objects.clone());
    let again = take(cache, 3);
    assert!(again.iter().eq(objects.iter().rev()));
    give(cache, again);
    cache.destroy().unwrap();
}

#[test]
fn without_colouring_every_slab_starts_alike() {
    let _alone = alone();
    slab_classic::set_colouring(false);
    let cache = Classic::create(&CacheDesc::new("plain", 1008).align(16)).unwrap();
    let info = cache.info();
    let objects = take(cache, info.objects_per_slab * 40);
    slab_classic::set_colouring(true);
    for p in &objects {
        let head = page_of(p.as_ptr()).unwrap().head().address() as usize;
        assert_eq!((p.as_ptr() as usize - head) % info.stride, 0);
    }
    give(cache, objects);
    cache.validate().unwrap();
    cache.destroy().unwrap();
}

#[test]
fn colours_move_and_keep_alignment() {
    let _alone = alone();
    // 3 objects and a rest of 1024 bytes a page; 16 colours of 64 bytes.
    let cache = Classic::create(&CacheDesc::new("colours", 1008).align(16)).unwrap();
    let info = cache.info();
    let objects = take(cache, info.objects_per_slab * 40);
    let starts: HashSet<usize> = objects
        .iter()
        .map(|p| {
            let head = page_of(p.as_ptr()).unwrap().head().address() as usize;
            (p.as_ptr() as usize - head) % info.stride
        })
        .collect();
    let rest = (PAGE_SIZE << info.slab_order) - info.objects_per_slab * info.stride;
    assert_eq!(starts.len(), (rest / 64).max(1));
    assert!(starts.iter().all(|start| start % 64 == 0 && *start <= rest));
    give(cache, objects);
    cache.validate().unwrap();
    cache.destroy().unwrap();

    for (size, align) in [
        (1280, 256),
        (2304, 256),
        (3328, 256),
        (400, 128),
        (5000, 512),
    ] {
        let cache = Classic::create(&CacheDesc::new("aligned", size).align(align)).unwrap();
        let objects = take(cache, 200);
        assert!(
            objects
                .iter()
                .all(|p| (p.as_ptr() as usize).is_multiple_of(align))
        );
        let moved = count(cache, "colour_moves");
        let info = cache.info();
        let rest = (PAGE_SIZE << info.slab_order) - info.objects_per_slab * info.stride;
        assert_eq!(moved > 0, rest / align.max(64) > 1, "{size} {align}");
        give(cache, objects);
        cache.validate().unwrap();
        cache.destroy().unwrap();
    }
}

#[test]
fn tunables_change_while_it_runs() {
    let _alone = alone();
    let cache = Classic::create(&CacheDesc::new("tuned", 64)).unwrap();
    assert_eq!(cache.info().tunables, (120, 60, 8));
    let objects = take(cache, 500);
    give(cache, objects);
    assert_eq!(cache.tune(0, 1, 1), Err(TuneError::Limit));
    assert_eq!(cache.tune(8, 9, 1), Err(TuneError::Batchcount));
    assert_eq!(cache.info().tunables, (120, 60, 8));
    cache.tune(8, 4, 0).unwrap();
    assert_eq!(cache.info().tunables, (8, 4, 0));
    cache.validate().unwrap();
    let shared = count(cache, "shared_flush");
    let objects = take(cache, 300);
    give(cache, objects);
    assert!(cache.info().queued <= 8, "{}", cache.info().queued);
    assert_eq!(count(cache, "shared_flush"), shared, "none is shared");
    cache.tune(1000, 500, 2).unwrap();
    let objects = take(cache, 20_000);
    give(cache, objects);
    let queued = cache.info().queued;
    assert!((1500..=2000).contains(&queued), "{queued}");
    cache.validate().unwrap();
    cache.destroy().unwrap();
}

#[test]
fn constructor_runs_once_an_object() {
    let _alone = alone();
    const STATE: u64 = 0x600d_0b1e;
    unsafe fn construct(p: *mut u8) {
        // SAFETY: the object has 96 bytes.
        unsafe { p.cast::<u64>().write(STATE) };
    }
    let desc = CacheDesc::new("constructed", 96).constructor(construct);
    for placement in [
        Placement::Outside,
        Placement::InFreeObject,
        Placement::AtEnd,
    ] {
        let cache = Classic::create_placed(&desc, placement).unwrap();
        let objects = take(cache, 1000);
        for (i, p) in objects.iter().enumerate() {
            // SAFETY: ours, 96 bytes.
            unsafe {
                assert_eq!(p.cast::<u64>().read(), STATE);
                // In the constructed state, but known again.
                p.cast::<u64>().add(1).write(i as u64);
            }
        }
        // Free objects keep their content, in arrays and in slabs.
        give(cache, objects);
        let mut seen = HashSet::new();
        let objects = take(cache, 1000);
        for p in &objects {
            // SAFETY: ours, 96 bytes.
            unsafe {
                assert_eq!(p.cast::<u64>().read(), STATE);
                seen.insert(p.cast::<u64>().add(1).read());
            }
        }
        assert!(seen.len() > 100, "most came back as they were");
        give(cache, objects);
        cache.validate().unwrap();
        cache.destroy().unwrap();
    }
}

#[test]
fn every_placement_serves() {
    let _alone = alone();
    for placement in [
        Placement::Outside,
        Placement::InFreeObject,
        Placement::AtEnd,
    ] {
        for size in [16, 48, 200, 1024, 4096, 20_000] {
            let desc = CacheDesc::new("placed", size);
            let cache = Classic::create_placed(&desc, placement).unwrap();
            for _ in 0..3 {
                let objects = take(cache, 700);
                let distinct: HashSet<_> = objects.iter().map(|p| p.as_ptr() as usize).collect();
                assert_eq!(distinct.len(), 700);
                for p in &objects {
                    // SAFETY: ours, of `size` bytes.
                    unsafe { p.as_ptr().write_bytes(0xa5, size) };
                }
                cache.validate().unwrap();
                let (odd, even): (Vec<_>, Vec<_>) =
                    objects.iter().enumerate().partition(|(i, _)| i % 2 == 1);
                give(cache, even.into_iter().map(|(_, p)| *p));
                cache.validate().unwrap();
                give(cache, odd.into_iter().map(|(_, p)| *p));
                cache.validate().unwrap();
            }
            cache.destroy().unwrap();
        }
    }
}

#[test]
fn bulk_takes_and_gives_in_one_go() {
    let _alone = alone();
    let cache = Classic::create(&CacheDesc::new("bulk", 64)).unwrap();
    let mut out = [std::ptr::null_mut(); 1000];
    for n in [1, 7, 60, 119, 120, 121, 500, 1000] {
        assert_eq!(cache.alloc_bulk(&mut out[..n]), n);
        let distinct: HashSet<_> = out[..n].iter().collect();
        assert_eq!(distinct.len(), n);
        assert_eq!(cache.info().in_use, n);
        cache.validate().unwrap();
        // SAFETY: each was taken above.
        unsafe { cache.free_bulk(&out[..n]) };
        assert_eq!(cache.info().in_use, 0);
        cache.validate().unwrap();
    }
    cache.destroy().unwrap();
}

#[test]
fn thread_exit_flushes_and_busy_caches_stay() {
    let _alone = alone();
    let cache = Classic::create(&CacheDesc::new("exit", 256)).unwrap();
    let kept = std::thread::spawn(move || {
        let mut objects = take(cache, 200);
        let kept = objects.split_off(190);
        give(cache, objects);
        kept.iter().map(|p| p.as_ptr() as usize).collect::<Vec<_>>()
    })
    .join()
    .unwrap();
    assert_eq!(cache.info().in_use, 10);
    cache.validate().unwrap();
    assert_eq!(cache.destroy(), Err(DestroyError::Busy(10)));
    assert_eq!(cache.info().queued, 0, "the thread's array was flushed");
    for p in kept {
        give(
            cache,
            NonNull::new(std::ptr::with_exposed_provenance_mut(p)),
        );
    }
    cache.validate().unwrap();
    cache.destroy().unwrap();
}

#[test]
fn late_frees_go_to_the_slabs() {
    let _alone = alone();
    struct Late(Classic, Vec<NonNull<u8>>);
    impl Drop for Late {
        fn drop(&mut self) {
            // Runs in a key's destructor after the slot is gone, or before: both
            // must work.
            give(self.0, self.1.drain(..));
            give(self.0, take(self.0, 3));
        }
    }
    unsafe extern "C" fn drop_late(late: *mut libc::c_void) {
        // SAFETY: the value set below, once.
        drop(unsafe { Box::from_raw(late.cast::<Late>()) });
    }
    let cache = Classic::create(&CacheDesc::new("late", 64)).unwrap();
    // The allocator's key is created first, so its destructor runs first.
    give(cache, take(cache, 1));
    let mut key = 0;
    // SAFETY: a plain key creation.
    let created = unsafe { libc::pthread_key_create(&raw mut key, Some(drop_late)) };
    assert_eq!(created, 0);
    std::thread::spawn(move || {
        let late = Box::new(Late(cache, take(cache, 50)));
        // SAFETY: the key exists.
        unsafe { libc::pthread_setspecific(key, Box::into_raw(late).cast()) };
    })
    .join()
    .unwrap();
    assert_eq!(cache.info().in_use, 0);
    cache.validate().unwrap();
    cache.destroy().unwrap();
}

#[test]
fn idle_arrays_are_reaped() {
    let _alone = alone();
    set_reap_interval(5);
    let idle = Classic::create(&CacheDesc::new("idle", 64)).unwrap();
    let busy = Classic::create(&CacheDesc::new("busy", 4096)).unwrap();
    give(idle, take(idle, 2000));
    let before = idle.info();
    assert!(before.queued >= 480);
    let start = std::time::Instant::now();
    // Slow paths of one cache reap the others too.
    while idle.info().queued > 0 || idle.info().slabs > 0 {
        give(busy, take(busy, 50));
        assert!(start.elapsed().as_secs() < 30, "{:?}", idle.info());
    }
    set_reap_interval(2000);
    assert!(count(idle, "reap") > 5);
    idle.validate().unwrap();
    busy.validate().unwrap();
    idle.destroy().unwrap();
    busy.destroy().unwrap();
}

#[test]
fn threads_account_for_every_object() {
    const THREADS: usize = 4;
    const ROUNDS: usize = 400;
    let _alone = alone();
    set_reap_interval(3);
    for size in [32, 192, 1024, 6000] {
        let cache = Classic::create(&CacheDesc::new("stress", size)).unwrap();
        // Objects that wait for any thread to free them, with their fill.
        let pool: Mutex<Vec<(usize, u8)>> = Mutex::new(Vec::new());
        let live: Mutex<HashSet<usize>> = Mutex::new(HashSet::new());
        std::thread::scope(|scope| {
            let worker = |thread: usize| {
                let (pool, live) = (&pool, &live);
                scope.spawn(move || {
                    let mut seed = thread as u64 * 7919 + 1;
                    let mut next = |below: usize| {
                        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1);
                        (seed >> 33) as usize % below
                    };
                    for _ in 0..ROUNDS {
                        let n = next(60) + 1;
                        let fresh = take(cache, n);
                        let fill = next(256) as u8;
                        {
                            let mut live = live.lock().unwrap();
                            for p in &fresh {
                                assert!(live.insert(p.as_ptr() as usize), "handed out twice");
                            }
                        }
                        for p in &fresh {
                            // SAFETY: ours, of `size` bytes.
                            unsafe { p.as_ptr().write_bytes(fill, size) };
                        }
                        let mut leaving: Vec<(usize, u8)> = {
                            let mut pool = pool.lock().unwrap();
                            pool.extend(fresh.iter().map(|p| (p.as_ptr() as usize, fill)));
                            let n = next(pool.len() + 1).min(80);
                            (0..n)
                                .map(|_| {
                                    let at = next(pool.len());
                                    pool.swap_remove(at)
                                })
                                .collect()
                        };
                        for (p, fill) in leaving.drain(..) {
                            let at: *mut u8 = std::ptr::with_exposed_provenance_mut(p);
                            // SAFETY: an object in use that this thread took over.
                            let intact =
                                unsafe { at.read() == fill && at.add(size - 1).read() == fill };
                            assert!(intact, "somebody wrote to the object");
                            assert!(live.lock().unwrap().remove(&p));
                            give(cache, NonNull::new(at));
                        }
                    }
                })
            };
            // The scope waits for the closures only; a join, for the slots' end too.
            let threads: Vec<_> = (0..THREADS).map(worker).collect();
            threads.into_iter().for_each(|t| t.join().unwrap());
        });
        let rest = pool.into_inner().unwrap();
        assert_eq!(cache.info().in_use, rest.len());
        cache.validate().unwrap();
        for (p, _) in rest {
            give(
                cache,
                NonNull::new(std::ptr::with_exposed_provenance_mut(p)),
            );
        }
        assert_eq!(cache.info().in_use, 0);
        cache.validate().unwrap();
        assert!(count(cache, "flush") > 0 && count(cache, "refill") > 0);
        cache.destroy().unwrap();
    }
    set_reap_interval(2000);
}
