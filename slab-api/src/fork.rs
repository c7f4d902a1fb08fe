//! `fork`: all locks are taken before it, in lock order, and given back after.
//!
//! Between `prepare` and the end of `parent` or `child` the forking thread passes
//! through the held locks, because the handlers of other libraries may allocate
//! then (see [`page_alloc::sync::FutexLock`]). A fork inside a fork handler counts
//! once.

use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

use page_alloc::sync::{FutexLock, bypass_for_fork};

use crate::registry::{self, Backend};

static DEPTH: AtomicU32 = AtomicU32::new(0);

fn each_cache_lock(f: fn(&FutexLock)) {
    registry::for_each(|cache| (cache.backend.locks)(cache, &mut |lock| f(lock)));
}

/// Before the fork: takes every lock.
pub fn prepare() {
    if DEPTH.fetch_add(1, Relaxed) > 0 {
        return;
    }
    // The child must not find another thread in the middle of reading them.
    crate::config::settings();
    crate::debug::with_raw_locks(FutexLock::fork_prepare);
    registry::with_raw_locks(FutexLock::fork_prepare);
    each_cache_lock(FutexLock::fork_prepare);
    page_alloc::fork::prepare();
    bypass_for_fork(true);
}

/// After the fork, in the parent.
pub fn parent() {
    if DEPTH.fetch_sub(1, Relaxed) > 1 {
        return;
    }
    bypass_for_fork(false);
    page_alloc::fork::parent();
    each_cache_lock(FutexLock::fork_parent);
    registry::with_raw_locks(FutexLock::fork_parent);
    crate::debug::with_raw_locks(FutexLock::fork_parent);
}

/// After the fork, in the child: frees the locks and the slots of the threads that
/// do not exist here.
///
/// # Safety
/// Only in the child of a fork that ran [`prepare`], before it starts threads.
pub unsafe fn child() {
    if DEPTH.fetch_sub(1, Relaxed) > 1 {
        return;
    }
    bypass_for_fork(false);
    // SAFETY: as promised by the caller.
    unsafe { page_alloc::fork::child() };
    crate::secure::forked();
    each_cache_lock(FutexLock::fork_child);
    registry::with_raw_locks(FutexLock::fork_child);
    crate::debug::with_raw_locks(FutexLock::fork_child);
    crate::debug::after_fork();
    let mut done: [Option<&'static Backend>; 8] = [None; 8];
    registry::for_each(|cache| {
        for cell in &mut done {
            match cell {
                Some(b) if core::ptr::eq(*b, cache.backend) => return,
                Some(_) => {}
                None => {
                    *cell = Some(cache.backend);
                    // SAFETY: as promised by the caller.
                    unsafe { (cache.backend.after_fork)() };
                    return;
                }
            }
        }
    });
}
