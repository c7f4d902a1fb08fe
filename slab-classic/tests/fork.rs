//! Fork while other threads refill and flush: the child takes over their arrays, and
//! no object is in two of them.

use std::collections::HashSet;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};

use slab_api::{CacheDesc, ObjectCache, fork};
use slab_classic::{Classic, set_reap_interval};

/// Takes objects in several threads, which get the lost threads' slots; true when all
/// are distinct and stay as they were written.
fn objects_are_distinct(cache: Classic) -> bool {
    const EACH: usize = 1500;
    let threads: Vec<_> = (0..4)
        .map(|_| {
            std::thread::spawn(move || {
                let objects: Vec<usize> = (0..EACH)
                    .filter_map(|_| cache.alloc())
                    .map(|p| p.as_ptr() as usize)
                    .collect();
                for p in &objects {
                    let at: *mut usize = std::ptr::with_exposed_provenance_mut(*p);
                    // SAFETY: ours, of 64 bytes.
                    unsafe { at.write(*p) };
                }
                objects
            })
        })
        .collect();
    // All threads first: what is freed below may be handed out again.
    let objects: Vec<usize> = threads
        .into_iter()
        .flat_map(|thread| thread.join().unwrap_or_default())
        .collect();
    let mut seen = HashSet::new();
    for p in &objects {
        let at: *mut usize = std::ptr::with_exposed_provenance_mut(*p);
        // SAFETY: an object in use, 64 bytes.
        if unsafe { at.read() } != *p || !seen.insert(*p) {
            return false;
        }
    }
    for p in &objects {
        if let Some(p) = NonNull::new(std::ptr::with_exposed_provenance_mut(*p)) {
            // SAFETY: an object in use, once.
            unsafe { cache.free(p) };
        }
    }
    seen.len() == 4 * EACH
}

#[test]
fn children_inherit_whole_caches() {
    set_reap_interval(1);
    let cache = Classic::create(&CacheDesc::new("fork", 64)).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let worker = |thread: usize| {
            let stop = &stop;
            scope.spawn(move || {
                let mut held = Vec::new();
                while !stop.load(Ordering::Relaxed) {
                    for _ in 0..200 + 50 * thread {
                        held.push(cache.alloc().unwrap());
                    }
                    for p in held.drain(..) {
                        // SAFETY: taken above.
                        unsafe { cache.free(p) };
                    }
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
                    libc::alarm(10);
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
        threads.into_iter().for_each(|t| t.join().unwrap());
        assert!(statuses.iter().all(|status| *status == 0), "{statuses:?}");
    });
    cache.validate().unwrap();
    assert_eq!(cache.info().in_use, 0);
    cache.destroy().unwrap();
}
