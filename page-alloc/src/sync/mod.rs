//! Synchronisation: the atomic stores that the concurrent protocols are written
//! over, the futex lock that malloc may hold, and the tagged stack.
//!
//! Each protocol is one function generic over [`Word`], its atomic store. The
//! product instantiates it with `core`'s atomics, over records that live in
//! mapped memory; the models instantiate the *same* function with loom's. This
//! file is the only one that names loom's atomics.

use core::sync::atomic::{AtomicU8, AtomicU64, Ordering};

mod lock;
mod stack;

pub use lock::{FutexLock, Lock, Patience, enter_fork, is_forking, leave_fork, tid};
pub use stack::{Links, TaggedStack};

/// A 64-bit atomic word that a protocol runs on, or a byte that is written values of
/// eight bits only.
///
/// Only what the protocols use: load, store, swap, compare-exchange, add. The
/// meaning of each is `core::sync::atomic`'s.
pub trait Word {
    /// Reads the word.
    fn load(&self, order: Ordering) -> u64;
    /// Writes the word.
    fn store(&self, value: u64, order: Ordering);
    /// Writes the word and returns what it held.
    fn swap(&self, value: u64, order: Ordering) -> u64;
    /// Adds, wrapping, and returns what the word held.
    fn fetch_add(&self, value: u64, order: Ordering) -> u64;
    /// Replaces `current` by `new`; on failure returns what the word holds.
    ///
    /// # Errors
    /// The value found, when it was not `current` (or, spuriously, even then).
    fn compare_exchange_weak(
        &self,
        current: u64,
        new: u64,
        success: Ordering,
        failure: Ordering,
    ) -> Result<u64, u64>;
}

macro_rules! word {
    ($atomic:ty, $int:ty) => {
        impl Word for $atomic {
            #[inline(always)]
            fn load(&self, order: Ordering) -> u64 {
                <$atomic>::load(self, order) as u64
            }
            #[inline(always)]
            fn store(&self, value: u64, order: Ordering) {
                <$atomic>::store(self, value as $int, order);
            }
            #[inline(always)]
            fn swap(&self, value: u64, order: Ordering) -> u64 {
                <$atomic>::swap(self, value as $int, order) as u64
            }
            #[inline(always)]
            fn fetch_add(&self, value: u64, order: Ordering) -> u64 {
                <$atomic>::fetch_add(self, value as $int, order) as u64
            }
            #[inline(always)]
            fn compare_exchange_weak(
                &self,
                current: u64,
                new: u64,
                success: Ordering,
                failure: Ordering,
            ) -> Result<u64, u64> {
                <$atomic>::compare_exchange_weak(
                    self,
                    current as $int,
                    new as $int,
                    success,
                    failure,
                )
                .map(|found| found as u64)
                .map_err(|found| found as u64)
            }
        }
    };
}

word!(AtomicU8, u8);
word!(AtomicU64, u64);
#[cfg(loom)]
word!(loom::sync::atomic::AtomicU64, u64);

/// Clears and sets bits of a word of flags in one step; returns the flags before it.
/// Nobody's change is lost, and of several threads that make the same change exactly
/// one finds it not made yet.
#[inline]
pub fn change_flags<W: Word>(flags: &W, clear: u64, set: u64) -> u64 {
    // Relaxed throughout: flags guard no other memory.
    let mut before = flags.load(Ordering::Relaxed);
    loop {
        let after = before & !clear | set;
        // The common case: nothing to change, nothing to lock.
        if after == before {
            return before;
        }
        match flags.compare_exchange_weak(before, after, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => return before,
            Err(found) => before = found,
        }
        spin_hint();
    }
}

/// Tells the processor (and loom's scheduler) that this is a retry loop.
#[inline]
pub fn spin_hint() {
    #[cfg(loom)]
    loom::thread::yield_now();
    #[cfg(not(loom))]
    core::hint::spin_loop();
}
