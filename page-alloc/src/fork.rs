//! The page layer's part in `fork`: its locks, in lock order.

use crate::arena::GROWTH;
use crate::cpu;
use crate::meta;
use crate::pcp;
use crate::purge;
use crate::reclaim;
use crate::remap;
use crate::slot;
use crate::sync::{FutexLock, Lock, Patience};
use crate::zone;

/// The raw lock inside a lock, for the handlers.
pub(crate) fn raw<T>(lock: &Lock<T>) -> &FutexLock {
    // SAFETY: the fork handlers mark, take and release raw locks in pairs.
    unsafe { lock.raw() }
}

fn each_lock(f: impl Fn(&FutexLock)) {
    reclaim::with_raw_lock(&f);
    purge::with_raw_lock(&f);
    pcp::with_raw_lock(&f);
    for zone in zone::zones() {
        f(raw(zone));
    }
    f(raw(&GROWTH));
    cpu::with_raw_lock(&f);
    meta::with_raw_lock(&f);
}

/// Takes the page layer's locks. After those of the layers above, and inside
/// [`enter_fork`](crate::sync::enter_fork).
pub fn prepare(patience: Patience) {
    each_lock(|lock| lock.fork_prepare(patience));
}

/// Gives them back in the parent.
pub fn parent() {
    each_lock(FutexLock::fork_parent);
}

/// Frees them in the child, and what threads that do not exist here held.
///
/// # Safety
/// Only in the child of `fork`, before it starts threads.
pub unsafe fn child() {
    slot::forget_thread_id();
    remap::after_fork();
    reclaim::after_fork();
    each_lock(FutexLock::fork_child);
    cpu::after_fork();
    // SAFETY: as promised by the caller.
    unsafe { pcp::after_fork() };
}
