//! The depot: whole magazines that wait for a thread that needs them.
//!
//! ```text
//!   full:  head -> magazine -> magazine     those who allocate take, and leave
//!   empty: head -> magazine                 their empty one; those who free do
//!                                           the reverse
//! ```
//! Both are tagged stacks: an exchange is one compare-exchange, whatever the
//! magazine holds. The number of full ones is bounded; it is claimed before the
//! push and given up after the pop, so it never falls behind the truth.
//!
//! The bound follows what is taken: one magazine at first, one more for each that
//! somebody took, one less for each that found no room when none was taken since the
//! last such. Objects that only come back are then not held here, each in a slab that
//! is free but for it.
//!
//! What nobody needed for a while is the smallest number of full ones since the last
//! look ([`Depot::idle`]), as in Bonwick's working set.

use core::sync::atomic::Ordering;

use page_alloc::sync::{Links, TaggedStack, Word};

/// A pair of stacks, the number of full magazines, the smallest that it was since the last
/// look, and its bound. Zeroed words are an empty depot.
#[derive(Debug)]
pub struct Depot<W> {
    full: TaggedStack<W>,
    empty: TaggedStack<W>,
    count: W,
    low: W,
    /// Full magazines allowed, beyond the first.
    room: W,
    /// Some were taken since one found no room.
    taken: W,
}

impl<W: Word> Depot<W> {
    /// An empty depot over six words: all zero but, if more than one full magazine is to
    /// find room from the start, the fifth, the number of those.
    pub fn new([full, empty, count, low, room, taken]: [W; 6]) -> Self {
        Self {
            full: TaggedStack::new(full),
            empty: TaggedStack::new(empty),
            count,
            low,
            room,
            taken,
        }
    }

    /// Full magazines, at least.
    pub fn full_count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// Leaves a full magazine, unless as many are there as the bound allows, which is
    /// `limit` at most. The caller owns it no more when this is true.
    pub fn put_full<L: Links>(&self, links: &L, magazine: u32, limit: u64) -> bool {
        // The bound is a guess: lost updates of it do no harm.
        let room = self.room.load(Ordering::Relaxed).min(limit.max(1) - 1);
        if self.count.fetch_add(1, Ordering::Relaxed) > room {
            self.count.fetch_add(u64::MAX, Ordering::Relaxed);
            if self.taken.load(Ordering::Relaxed) != 0 {
                self.taken.store(0, Ordering::Relaxed);
                self.room.store(room, Ordering::Relaxed);
            } else {
                self.room.store(room.saturating_sub(1), Ordering::Relaxed);
            }
            return false;
        }
        // The push releases the magazine's content to the popper.
        self.full.push(links, magazine);
        true
    }

    /// Takes a full magazine.
    pub fn take_full<L: Links>(&self, links: &L) -> Option<u32> {
        if self.full.is_empty() {
            return None;
        }
        let magazine = self.full.pop(links)?;
        let left = self.count.fetch_add(u64::MAX, Ordering::Relaxed) - 1;
        // Another thread's lower mark may be lost: then more is thought idle than was.
        if left < self.low.load(Ordering::Relaxed) {
            self.low.store(left, Ordering::Relaxed);
        }
        let room = self.room.load(Ordering::Relaxed);
        self.room.store(room + 1, Ordering::Relaxed);
        self.taken.store(1, Ordering::Relaxed);
        Some(magazine)
    }

    /// Full magazines that nobody needed since the last call, about; a new look begins.
    pub fn idle(&self) -> u64 {
        let count = self.full_count();
        let low = self.low.load(Ordering::Relaxed);
        self.low.store(count, Ordering::Relaxed);
        low.min(count)
    }

    /// Leaves an empty magazine.
    pub fn put_empty<L: Links>(&self, links: &L, magazine: u32) {
        self.empty.push(links, magazine);
    }

    /// Takes an empty magazine.
    pub fn take_empty<L: Links>(&self, links: &L) -> Option<u32> {
        if self.empty.is_empty() {
            None
        } else {
            self.empty.pop(links)
        }
    }
}
