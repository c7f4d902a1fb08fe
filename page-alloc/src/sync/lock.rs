//! The lock that malloc itself may hold: a futex, an owner, and a way through
//! `fork`.
//!
//! ```text
//!   word: [ WAITERS | FORK_HELD | WAS_OWNED | owner's thread id : 29 ]   0 = free
//! ```
//! It allocates nothing, so the allocator can use it (parking_lot's slow path
//! allocates a queue node and would recurse). The owner is recorded for `fork`:
//! the handlers of other libraries may allocate while our `prepare` handler
//! already holds every lock, and a `fork` may come from a signal handler that
//! interrupted this very thread inside the allocator. So `prepare` marks each
//! lock `FORK_HELD`, a lock that this thread owns already is not waited for but
//! marked `WAS_OWNED`, and the forking thread passes through marked locks until
//! the parent's or child's handler takes the marks away.

use core::sync::atomic::{AtomicU32, Ordering};

use lock_api::RawMutex;

use crate::os;
use crate::slot;

const WAITERS: u32 = 1 << 31;
const FORK_HELD: u32 = 1 << 30;
const WAS_OWNED: u32 = 1 << 29;
const OWNER: u32 = WAS_OWNED - 1;

/// The thread that is inside `fork`, or 0.
static FORKER: AtomicU32 = AtomicU32::new(0);

/// A mutex around data, on the futex lock.
pub type Lock<T> = lock_api::Mutex<FutexLock, T>;

/// The kernel's id of the calling thread.
#[inline]
pub fn tid() -> u32 {
    slot::thread_id()
}

/// Lets the calling thread pass through the locks that `fork`'s prepare handler
/// holds (`true`), or ends that (`false`).
pub fn bypass_for_fork(on: bool) {
    FORKER.store(if on { tid() } else { 0 }, Ordering::Relaxed);
}

/// The raw lock. Use it through [`Lock`].
#[derive(Debug)]
#[repr(transparent)]
pub struct FutexLock(AtomicU32);

/// How a guard holds the lock: `true` when it only passed through a lock that
/// `fork` holds for this thread, and so has nothing to release.
#[derive(Debug)]
pub struct Passed(bool);

// SAFETY: the word changes from 0 to an owner only by a compare-exchange, so at
// most one thread holds the lock; the one exception is the forking thread, which
// is then the only one that runs inside the allocator (every other is blocked on
// a held lock).
unsafe impl RawMutex for FutexLock {
    #[allow(clippy::declare_interior_mutable_const)]
    const INIT: Self = Self(AtomicU32::new(0));
    type Guard = Passed;

    #[inline]
    fn lock(&self) -> Passed {
        // Acquire: pairs with the release in `unlock`.
        if self
            .0
            .compare_exchange(0, tid(), Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
        {
            Passed(false)
        } else {
            self.lock_slow()
        }
    }

    #[inline]
    fn try_lock(&self) -> Option<Passed> {
        if self
            .0
            .compare_exchange(0, tid(), Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
        {
            return Some(Passed(false));
        }
        self.is_held_by_fork().then_some(Passed(true))
    }

    #[inline]
    unsafe fn unlock(&self, Passed(through): Passed) {
        // Release: publishes what was written under the lock.
        if !through && self.0.swap(0, Ordering::Release) & WAITERS != 0 {
            self.wake();
        }
    }

    #[inline]
    fn is_locked(&self) -> bool {
        self.0.load(Ordering::Relaxed) != 0
    }
}

impl FutexLock {
    /// Whether the calling thread is to pass through: it is inside `fork` and this
    /// lock is held for it, or it runs in the child on top of the frame that held the
    /// lock when a signal handler forked. Waiting for that frame would be for ever.
    fn is_held_by_fork(&self) -> bool {
        let word = self.0.load(Ordering::Relaxed);
        (word & FORK_HELD != 0 && FORKER.load(Ordering::Relaxed) == tid())
            || (word & WAS_OWNED != 0 && word & OWNER == tid())
    }

    #[cold]
    fn wake(&self) {
        os::futex_wake(&self.0, 1);
    }

    #[cold]
    fn lock_slow(&self) -> Passed {
        if self.is_held_by_fork() {
            return Passed(true);
        }
        let me = tid();
        if self.0.load(Ordering::Relaxed) & OWNER == me {
            owned_already();
        }
        // A holder keeps the lock for well under a microsecond: spin a little,
        // unless somebody already sleeps.
        for _ in 0..60 {
            let word = self.0.load(Ordering::Relaxed);
            if word == 0
                && self
                    .0
                    .compare_exchange(0, me, Ordering::Acquire, Ordering::Relaxed)
                    .is_ok()
            {
                return Passed(false);
            }
            if word & WAITERS != 0 {
                break;
            }
            core::hint::spin_loop();
        }
        loop {
            let word = self.0.load(Ordering::Relaxed);
            if word == 0 {
                // Others may still sleep: take the lock with the mark set.
                let mine = me | WAITERS;
                if self
                    .0
                    .compare_exchange(0, mine, Ordering::Acquire, Ordering::Relaxed)
                    .is_ok()
                {
                    return Passed(false);
                }
                continue;
            }
            let marked = word | WAITERS;
            if word != marked
                && self
                    .0
                    .compare_exchange(word, marked, Ordering::Relaxed, Ordering::Relaxed)
                    .is_err()
            {
                continue;
            }
            os::futex_wait(&self.0, marked);
        }
    }

    /// `fork`'s prepare handler: takes the lock for the forking thread, or marks
    /// it when that thread was interrupted while it held it.
    pub fn fork_prepare(&self) {
        let me = tid();
        if self.0.load(Ordering::Relaxed) & OWNER == me {
            self.0.fetch_or(FORK_HELD | WAS_OWNED, Ordering::Relaxed);
        } else {
            let _ = self.lock();
            self.0.fetch_or(FORK_HELD, Ordering::Relaxed);
        }
    }

    /// The parent's handler: gives back what [`Self::fork_prepare`] took.
    pub fn fork_parent(&self) {
        let word = self.0.load(Ordering::Relaxed);
        if word & FORK_HELD == 0 {
            return;
        }
        if word & WAS_OWNED != 0 {
            self.0
                .fetch_and(!(FORK_HELD | WAS_OWNED), Ordering::Relaxed);
        } else if self.0.swap(0, Ordering::Release) & WAITERS != 0 {
            self.wake();
        }
    }

    /// The child's handler: no other thread exists any more, so the lock is free
    /// unless the interrupted frame below `fork` holds it.
    pub fn fork_child(&self) {
        let word = self.0.load(Ordering::Relaxed);
        let mine = if word & WAS_OWNED != 0 {
            tid() | WAS_OWNED
        } else {
            0
        };
        self.0.store(mine, Ordering::Relaxed);
    }
}

/// A signal handler allocates on top of the frame that holds the lock: waiting would
/// be for ever.
#[cold]
fn owned_already() -> ! {
    os::write(
        2,
        b"slab: a signal handler that interrupted the allocator called it again\n",
    );
    // SAFETY: abort has no preconditions.
    unsafe { libc::abort() }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn counts_exactly_under_contention() {
        static COUNT: Lock<u64> = Lock::new(0);
        std::thread::scope(|s| {
            for _ in 0..8 {
                s.spawn(|| {
                    for _ in 0..50_000 {
                        *COUNT.lock() += 1;
                    }
                });
            }
        });
        assert_eq!(*COUNT.lock(), 400_000);
    }

    #[test]
    fn forking_thread_passes_held_locks_and_gives_them_back() {
        let free = FutexLock::INIT;
        let owned = FutexLock::INIT;
        let held = owned.lock();
        free.fork_prepare();
        owned.fork_prepare();
        bypass_for_fork(true);
        for lock in [&free, &owned] {
            let passed = lock.lock();
            // SAFETY: the line above "took" it, passing through.
            unsafe { lock.unlock(passed) };
            assert!(lock.is_locked(), "passing through must not release");
        }
        bypass_for_fork(false);
        free.fork_parent();
        owned.fork_parent();
        assert!(!free.is_locked());
        assert!(owned.is_locked(), "the interrupted frame still holds it");
        // SAFETY: taken at the top.
        unsafe { owned.unlock(held) };
        assert!(!owned.is_locked());
    }
}
