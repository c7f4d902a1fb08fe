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

use core::sync::atomic::Ordering;

use page_alloc::sync::{Links, TaggedStack, Word};

/// A pair of stacks and the number of full magazines. Zeroed words are an empty
/// depot.
#[derive(Debug)]
pub struct Depot<W> {
    full: TaggedStack<W>,
    empty: TaggedStack<W>,
    count: W,
}

impl<W: Word> Depot<W> {
    /// An empty depot over three zero words.
    pub const fn new(full: W, empty: W, count: W) -> Self {
        Self {
            full: TaggedStack::new(full),
            empty: TaggedStack::new(empty),
            count,
        }
    }

    /// Full magazines, at least.
    pub fn full_count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// Leaves a full magazine, unless `limit` are there. The caller owns it no
    /// more when this is true.
    pub fn put_full<L: Links>(&self, links: &L, magazine: u32, limit: u64) -> bool {
        if self.count.fetch_add(1, Ordering::Relaxed) >= limit {
            self.count.fetch_add(u64::MAX, Ordering::Relaxed);
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
        self.count.fetch_add(u64::MAX, Ordering::Relaxed);
        Some(magazine)
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
