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
//!
//! A thread that was interrupted inside the allocator cannot keep the lock order:
//! another may hold the lock it asks for and wait for the one it has. It therefore
//! waits for [`PATIENCE_MS`] at most and forks without the rest. The child of such a
//! fork may call only what is safe in a signal handler, by POSIX, so it misses nothing.

use core::sync::atomic::{AtomicU32, Ordering};

use lock_api::RawMutex;

use crate::os;
use crate::slot;

const WAITERS: u32 = 1 << 31;
const FORK_HELD: u32 = 1 << 30;
const WAS_OWNED: u32 = 1 << 29;
const OWNER: u32 = WAS_OWNED - 1;

/// Held by the thread that is inside `fork`: one at a time prepares.
static FORK: FutexLock = FutexLock::INIT;

/// What the `fork` of an interrupted thread waits for all locks together; milliseconds.
/// A holder that waits for nobody is gone in microseconds, unless it was preempted. The
/// wait is a sleep: a handler that used its timer's period of processor time would be
/// called again before the thread below it had run.
pub const PATIENCE_MS: u64 = 20;

/// Until when `fork`'s prepare handler waits for locks.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    until_ms: Option<u64>,
}

impl Patience {
    /// What the calling thread can afford: any time, unless it was interrupted while it
    /// held a lock.
    pub fn of_this_thread() -> Self {
        Self {
            until_ms: slot::holds_locks().then(|| os::now_ms() + PATIENCE_MS),
        }
    }

    fn left_ms(self) -> Option<u64> {
        self.until_ms
            .map(|until| until.saturating_sub(os::now_ms()))
    }
}

/// A mutex around data, on the futex lock.
pub type Lock<T> = lock_api::Mutex<FutexLock, T>;

/// The kernel's id of the calling thread.
#[inline]
pub fn tid() -> u32 {
    slot::thread_id()
}

/// Makes the calling thread the one that forks: it passes through the locks that
/// [`FutexLock::fork_prepare`] takes from here on. False when its patience ended first.
pub fn enter_fork(patience: Patience) -> bool {
    FORK.lock_within(patience)
}

/// Whether the calling thread is between [`enter_fork`] and [`leave_fork`].
pub fn is_forking() -> bool {
    FORK.is_mine()
}

/// Ends what [`enter_fork`] began, in the parent or in the child.
pub fn leave_fork() {
    if FORK.0.swap(0, Ordering::Release) & WAITERS != 0 {
        FORK.wake();
    }
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
        // Counted before it is taken, and until after it is free again: a signal handler
        // must not find a lock held by a thread that says it holds none.
        let me = slot::count_lock();
        // Acquire: pairs with the release in `unlock`.
        if self
            .0
            .compare_exchange(0, me, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
        {
            Passed(false)
        } else {
            self.lock_slow()
        }
    }

    #[inline]
    fn try_lock(&self) -> Option<Passed> {
        let me = slot::count_lock();
        if self
            .0
            .compare_exchange(0, me, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
        {
            return Some(Passed(false));
        }
        let passed = self.is_held_by_fork().then_some(Passed(true));
        if passed.is_none() {
            slot::uncount_lock();
        }
        passed
    }

    #[inline]
    unsafe fn unlock(&self, Passed(through): Passed) {
        // Release: publishes what was written under the lock.
        if !through && self.0.swap(0, Ordering::Release) & WAITERS != 0 {
            self.wake();
        }
        slot::uncount_lock();
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
        (word & FORK_HELD != 0 && FORK.is_mine())
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
        self.sleep_until_mine(Patience { until_ms: None });
        Passed(false)
    }

    /// Takes the lock, asleep while another has it; false when the patience ended first.
    fn sleep_until_mine(&self, patience: Patience) -> bool {
        let me = tid();
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
                    return true;
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
            match patience.left_ms() {
                Some(0) => return false,
                left => os::futex_wait(&self.0, marked, left),
            }
        }
    }

    /// Whether the calling thread owns the lock.
    fn is_mine(&self) -> bool {
        self.0.load(Ordering::Relaxed) & OWNER == tid()
    }

    /// Takes the lock for `fork`, uncounted; false when the patience ended first.
    fn lock_within(&self, patience: Patience) -> bool {
        if patience.until_ms.is_some() {
            return self.sleep_until_mine(patience);
        }
        let _ = self.lock();
        slot::uncount_lock();
        true
    }

    /// `fork`'s prepare handler: takes the lock for the forking thread, or marks
    /// it when that thread was interrupted while it held it. Leaves it to its holder
    /// when the patience ends first.
    pub fn fork_prepare(&self, patience: Patience) {
        if self.is_mine() {
            self.0.fetch_or(FORK_HELD | WAS_OWNED, Ordering::Relaxed);
        } else if self.lock_within(patience) {
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
    /// unless the interrupted frame below `fork` holds it. (After a fork that ran out of
    /// patience before it marked that one, it is free all the same, and the frame's own
    /// release changes nothing.)
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

    /// Held by a test that forks, as it were: another's patience would end before it did.
    static ONE_FORKS: std::sync::Mutex<()> = std::sync::Mutex::new(());

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
        let _alone = ONE_FORKS.lock().unwrap();
        let free = FutexLock::INIT;
        let owned = FutexLock::INIT;
        let held = owned.lock();
        let patience = Patience::of_this_thread();
        assert!(enter_fork(patience));
        free.fork_prepare(patience);
        owned.fork_prepare(patience);
        for lock in [&free, &owned] {
            let passed = lock.lock();
            // SAFETY: the line above "took" it, passing through.
            unsafe { lock.unlock(passed) };
            assert!(lock.is_locked(), "passing through must not release");
        }
        free.fork_parent();
        owned.fork_parent();
        leave_fork();
        assert!(!free.is_locked());
        assert!(owned.is_locked(), "the interrupted frame still holds it");
        // SAFETY: taken at the top.
        unsafe { owned.unlock(held) };
        assert!(!owned.is_locked());
    }

    /// Two locks against their order: a thread that holds one is interrupted and forks,
    /// while another holds the second and waits for the first.
    #[test]
    fn an_interrupted_thread_does_not_wait_for_a_lock_whose_holder_waits_for_it() {
        let _alone = ONE_FORKS.lock().unwrap();
        let (first, second) = (FutexLock::INIT, FutexLock::INIT);
        let held = first.lock();
        std::thread::scope(|s| {
            s.spawn(|| {
                let passed = second.lock();
                let waited = first.lock();
                // SAFETY: taken by the two lines above.
                unsafe {
                    first.unlock(waited);
                    second.unlock(passed);
                }
            });
            while first.0.load(Ordering::Relaxed) & WAITERS == 0 {
                os::yield_cpu();
            }
            let patience = Patience::of_this_thread();
            assert!(enter_fork(patience));
            second.fork_prepare(patience);
            first.fork_prepare(patience);
            assert_eq!(second.0.load(Ordering::Relaxed) & FORK_HELD, 0);
            first.fork_parent();
            second.fork_parent();
            leave_fork();
            assert!(second.is_locked(), "the other thread's");
            // SAFETY: taken at the top.
            unsafe { first.unlock(held) };
        });
        assert!(!first.is_locked() && !second.is_locked());
        assert!(!slot::holds_locks());
    }
}
