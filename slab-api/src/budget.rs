//! Byte budgets of threads' slots: what a slot's queues and page lists may hold together.
//!
//! ```text
//!   budget of a slot = 1/16 of the heap in use / slots in use, within limits
//! ```
//! While a program frees all that it had, the queues shrink along, or what they hold at the
//! end would keep many times as much memory in slabs that are free but for it.
//!
//! A program of a few threads is not held back by it; one of hundreds, most of which
//! wait, would otherwise keep in each what only one can use. A thread's slot is the
//! thread's alone, so the thread itself sees to it: every few natural slow paths it adds
//! up what its slot holds, and when that is too much, queues give up all they have, in
//! turn, until half of the budget is left. Looks that find nothing to do come half
//! as often each time. (Slots that are CPUs have budgets of their
//! own: [`crate::percpu`].)

#![deny(unsafe_code)]

use core::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering::Relaxed};

use page_alloc::pcp;
use page_alloc::stats::used_bytes;

use crate::registry::{self, CacheHead};

/// Bytes for all slots together: this part of the heap, within limits.
const SHARE: usize = 16;
const TOTAL: (usize, usize) = (2 << 20, 16 << 20);
/// Bytes that a slot may hold whatever their number.
const LEAST: usize = 16 << 10;
/// The part of all slots' bytes that one may hold at most.
const MOST: usize = 4;
/// Bytes that one may hold even if that is a larger part: a thread that goes through all
/// sizes up to 4 KiB, 16 objects of each, has so much in turn.
const ALONE: usize = 1 << 20;
/// Slow paths from one look to the next, at least.
const EVERY: u16 = 8;
/// How often that may double while looks find nothing to do.
const MOST_SHIFT: u16 = 3;

static TRIMS: AtomicU64 = AtomicU64::new(0);

/// How often a queue gave up what it had for the budget's sake.
pub fn trims() -> u64 {
    TRIMS.load(Relaxed)
}

/// The budget of a slot where so many are in use. Takes the zones' locks for a moment.
pub fn of(slots: usize) -> usize {
    share(slots, used_bytes())
}

fn share(slots: usize, heap: usize) -> usize {
    let total = (heap / SHARE).clamp(TOTAL.0, TOTAL.1);
    (total / slots.max(1)).clamp(LEAST, ALONE.max(total / MOST))
}

/// A slot's part of the book-keeping. All zero at first.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Ledger {
    /// Slow paths since the last look.
    passed: AtomicU16,
    /// log2 of what [`EVERY`] is multiplied with.
    shift: AtomicU16,
    /// The cache that gave up last.
    hand: AtomicU32,
}

impl Ledger {
    /// Counts a slow path; true when it is time for [`Self::keep`].
    #[inline]
    pub fn is_due(&self) -> bool {
        let passed = self.passed.load(Relaxed) + 1;
        let due = passed >= EVERY << self.shift.load(Relaxed);
        self.passed.store(if due { 0 } else { passed }, Relaxed);
        due
    }

    /// Notes what a look found: nothing to give up (`rest`), or something.
    fn found(&self, rest: bool) {
        let shift = self.shift.load(Relaxed) + 1;
        let shift = if rest { shift.min(MOST_SHIFT) } else { 0 };
        self.shift.store(shift, Relaxed);
    }

    /// Sees to it that the calling thread's slot keeps to `budget` bytes. `held` says
    /// how many it holds of a cache, `give_up` gives those back; `busy` is the cache in
    /// use now, which is spared.
    #[cold]
    pub fn keep(
        &self,
        budget: usize,
        busy: u32,
        held: impl Fn(&'static CacheHead) -> usize,
        give_up: impl Fn(&'static CacheHead),
    ) {
        // Caches are destroyed under this lock. Who finds it taken comes by again.
        let Some(_slots) = registry::try_slots_lock() else {
            return;
        };
        let mut sum = 0;
        registry::for_each(|head| sum += held(head));
        let mut rest = true;
        if sum > budget {
            let last = registry::highest();
            for _ in 0..last {
                let id = self.hand.load(Relaxed) % last + 1;
                self.hand.store(id, Relaxed);
                let Some(head) = registry::get(id).filter(|_| id != busy) else {
                    continue;
                };
                let bytes = held(head);
                if bytes > 0 {
                    give_up(head);
                    rest = false;
                    TRIMS.fetch_add(1, Relaxed);
                    sum -= bytes.min(sum);
                }
                if sum <= budget / 2 {
                    break;
                }
            }
        }
        self.found(rest);
        pcp::trim_current(budget);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_threads_have_much_and_many_have_little() {
        assert_eq!(share(0, 0), 1 << 20);
        assert_eq!(share(1, 32 << 20), 1 << 20);
        assert_eq!(share(4, 32 << 20), 512 << 10);
        assert_eq!(share(1, 128 << 20), 2 << 20);
        assert_eq!(share(1, 1 << 30), 4 << 20);
        assert_eq!(share(16, 32 << 20), 128 << 10);
        assert_eq!(share(1000, 32 << 20), LEAST);
    }

    #[test]
    fn a_look_is_due_every_few_slow_paths() {
        let ledger = Ledger::default();
        let due = (0..EVERY * 3).filter(|_| ledger.is_due()).count();
        assert_eq!(due, 3);
        (0..20).for_each(|_| ledger.found(true));
        let due = (0..u32::from(EVERY) << (MOST_SHIFT + 1)).filter(|_| ledger.is_due());
        assert_eq!(due.count(), 2);
        ledger.found(false);
        assert_eq!((0..EVERY).filter(|_| ledger.is_due()).count(), 1);
    }
}
