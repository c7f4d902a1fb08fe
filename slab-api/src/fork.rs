//! `fork`: all locks are taken before it, in lock order, and given back after.
//!
//! Between `prepare` and the end of `parent` or `child` the forking thread passes
//! through the held locks, because the handlers of other libraries may allocate
//! then (see [`page_alloc::sync::FutexLock`]). One thread at a time is in there; a fork
//! inside one of its own fork handlers counts once. Signals wait while the locks are
//! taken and given back: a handler that forks must find all of them held, or none.

use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

use page_alloc::os::SignalsBlocked;
use page_alloc::sync::{FutexLock, Patience, enter_fork, is_forking, leave_fork};

use crate::registry::{self, Backend};

/// Forks that the forking thread is inside of, one in a handler of the other.
static DEPTH: AtomicU32 = AtomicU32::new(0);

fn each_lock(f: impl Fn(&FutexLock)) {
    crate::debug::with_raw_locks(&f);
    registry::with_raw_locks(&f);
    registry::for_each(|cache| (cache.backend.locks)(cache, &mut |lock| f(lock)));
}

/// Before the fork: takes every lock.
pub fn prepare() {
    if is_forking() {
        DEPTH.fetch_add(1, Relaxed);
        return;
    }
    // The child must not find another thread in the middle of reading them.
    crate::config::settings();
    let _signals = SignalsBlocked::new();
    let patience = Patience::of_this_thread();
    if !enter_fork(patience) {
        // Another thread forks and waits for a lock that this one, interrupted, holds.
        return;
    }
    DEPTH.store(1, Relaxed);
    each_lock(|lock| lock.fork_prepare(patience));
    page_alloc::fork::prepare(patience);
}

/// After the fork, in the parent.
pub fn parent() {
    if !is_forking() || DEPTH.fetch_sub(1, Relaxed) > 1 {
        return;
    }
    let _signals = SignalsBlocked::new();
    page_alloc::fork::parent();
    each_lock(FutexLock::fork_parent);
    leave_fork();
}

/// After the fork, in the child: frees the locks and the slots of the threads that
/// do not exist here.
///
/// # Safety
/// Only in the child of a fork that ran [`prepare`], before it starts threads.
pub unsafe fn child() {
    if is_forking() && DEPTH.fetch_sub(1, Relaxed) > 1 {
        return;
    }
    let _signals = SignalsBlocked::new();
    leave_fork();
    // SAFETY: as promised by the caller.
    unsafe { page_alloc::fork::child() };
    crate::secure::forked();
    each_lock(FutexLock::fork_child);
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
