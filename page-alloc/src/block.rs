//! Pageblocks: 2 MiB of an arena, their free pages, their type and their exact
//! census.
//!
//! ```text
//!   free  [512 bits]   free pages that no slot's list holds
//!   dirty [512 bits]   pages that may hold data: handed out, or freed and not
//!                      given back to the kernel yet
//!   used  [type]       pages in use (slots' lists included), by the type they
//!                      were asked for: the census
//! ```

#![deny(unsafe_code)]

use core::sync::atomic::{AtomicU8, AtomicU16, AtomicU64, Ordering::Relaxed};

use crate::bits::{self, Bits, WORDS, chunk_mask};
use crate::list::Links;
use crate::sync::change_flags;
use crate::types::{MIGRATETYPES, Migratetype, PAGEBLOCK_PAGES};

/// One pageblock's record; all-zero is a block without free pages. Guarded by the
/// zone lock; atomics only so that readers of statistics need not take it. The
/// flags alone change outside of the lock too, when the purger works on a part of
/// the block that it took out of the free pages: see [`change_flags`].
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Block {
    free: [AtomicU64; WORDS],
    dirty: [AtomicU64; WORDS],
    pub(crate) links: Links<Block>,
    flags: AtomicU64,
    used: [AtomicU16; MIGRATETYPES],
    free_pages: AtomicU16,
    idle_pages: AtomicU16,
    migratetype: AtomicU8,
    /// The free list the block is on, as the buddy numbers them.
    pub(crate) listed: AtomicU8,
    /// Times that emptying the block is not worth a try.
    deferred: AtomicU8,
    failures: AtomicU8,
    /// The order of the chunk of whole blocks that this one is part of; 0 for none.
    chunk: AtomicU8,
}

/// Huge pages were forbidden on this block: parts of it were given back, or what claimed it
/// leaves much of it untouched.
pub(crate) const BLOCK_NO_HUGE: u64 = 2;
/// Huge pages were asked for on this block.
pub(crate) const BLOCK_HUGE: u64 = 4;
/// The block is being emptied: its free pages are nobody's to take.
pub(crate) const BLOCK_ISOLATED: u64 = 8;

/// The block is kept for urgent requests, also when it is wholly free.
pub(crate) const BLOCK_RESERVED: u64 = 16;
/// The block was used since it was given back as a whole: its part of the granule map, and a
/// huge page of it, may hold memory even when no free page does.
pub(crate) const BLOCK_USED: u64 = 32;

impl Block {
    /// The type whose pages this block takes.
    pub fn migratetype(&self) -> Migratetype {
        Migratetype::from_index(self.migratetype.load(Relaxed))
    }

    pub(crate) fn set_migratetype(&self, mt: Migratetype) {
        self.migratetype.store(mt as u8, Relaxed);
    }

    /// Pages in use (or in slots' lists) that were asked for as `mt`.
    pub fn used(&self, mt: Migratetype) -> usize {
        self.used[mt as usize].load(Relaxed) as usize
    }

    /// Pages in use, of all types.
    pub fn used_total(&self) -> usize {
        self.used.iter().map(|n| n.load(Relaxed) as usize).sum()
    }

    /// Free pages.
    pub fn free(&self) -> usize {
        self.free_pages.load(Relaxed) as usize
    }

    /// Free pages that may hold data.
    pub fn idle(&self) -> usize {
        self.idle_pages.load(Relaxed) as usize
    }

    /// Whether pages of more than one type are in the block.
    pub fn is_mixed(&self) -> bool {
        self.used.iter().filter(|n| n.load(Relaxed) != 0).count() > 1
    }

    /// Whether the block is isolated: being emptied.
    pub fn is_isolated(&self) -> bool {
        self.flag(BLOCK_ISOLATED)
    }

    /// The free pages.
    pub(crate) fn free_map(&self) -> Bits {
        Bits(core::array::from_fn(|i| self.free[i].load(Relaxed)))
    }

    /// The pages that may hold data.
    pub(crate) fn dirty_map(&self) -> Bits {
        Bits(core::array::from_fn(|i| self.dirty[i].load(Relaxed)))
    }

    /// Makes pages free. `dirty`: whether they may hold data; `None` when the map
    /// of dirty pages says.
    pub(crate) fn put(&self, pages: Bits, dirty: Option<bool>) -> usize {
        debug_assert!(self.free_map().and(pages).is_empty(), "free already");
        match dirty {
            Some(true) => self.change(&self.dirty, pages, true),
            Some(false) => self.change(&self.dirty, pages, false),
            None => {}
        }
        self.change(&self.free, pages, true);
        let idle = match dirty {
            Some(true) => pages.count(),
            Some(false) => 0,
            None => pages.and(self.dirty_map()).count(),
        };
        self.free_pages
            .store((self.free() + pages.count()) as u16, Relaxed);
        self.idle_pages.store((self.idle() + idle) as u16, Relaxed);
        idle
    }

    /// Takes free pages; returns how many of them may hold data.
    pub(crate) fn take(&self, pages: Bits) -> usize {
        debug_assert!(pages.minus(self.free_map()).is_empty(), "not free");
        self.change(&self.free, pages, false);
        let idle = pages.and(self.dirty_map()).count();
        self.free_pages
            .store((self.free() - pages.count()) as u16, Relaxed);
        self.idle_pages.store((self.idle() - idle) as u16, Relaxed);
        idle
    }

    /// [`Self::put`] for a chunk of at most 64 pages that may hold data.
    pub(crate) fn put_chunk(&self, page: usize, order: u8) {
        let (mask, word) = chunk_mask(page, order);
        let (free, dirty) = (&self.free[word], &self.dirty[word]);
        debug_assert_eq!(free.load(Relaxed) & mask, 0, "free already");
        free.store(free.load(Relaxed) | mask, Relaxed);
        dirty.store(dirty.load(Relaxed) | mask, Relaxed);
        self.free_pages
            .store((self.free() + (1 << order)) as u16, Relaxed);
        self.idle_pages
            .store((self.idle() + (1 << order)) as u16, Relaxed);
    }

    /// The order of the free chunk around a free page.
    pub(crate) fn order_at(&self, page: usize) -> u8 {
        bits::order_at(|i| self.free[i].load(Relaxed), page)
    }

    fn change(&self, map: &[AtomicU64; WORDS], pages: Bits, on: bool) {
        for (word, bits) in map.iter().zip(pages.0) {
            if bits != 0 {
                let old = word.load(Relaxed);
                word.store(if on { old | bits } else { old & !bits }, Relaxed);
            }
        }
    }

    /// Counts pages into the census. True when they came to a block that holds
    /// other types: a mixing event.
    pub(crate) fn add(&self, mt: Migratetype, pages: usize) -> bool {
        let n = &self.used[mt as usize];
        n.store(n.load(Relaxed) + pages as u16, Relaxed);
        debug_assert!(self.used_total() <= PAGEBLOCK_PAGES);
        self.is_mixed()
    }

    /// Counts pages out of the census.
    pub(crate) fn sub(&self, mt: Migratetype, pages: usize) {
        let n = &self.used[mt as usize];
        debug_assert!(n.load(Relaxed) as usize >= pages);
        n.store(n.load(Relaxed) - pages as u16, Relaxed);
    }

    /// The order of the chunk of whole blocks that was handed out and that this block
    /// is part of; 0 for none.
    pub(crate) fn chunk(&self) -> u8 {
        self.chunk.load(Relaxed)
    }

    pub(crate) fn set_chunk(&self, order: u8) {
        self.chunk.store(order, Relaxed);
    }

    pub(crate) fn flag(&self, flag: u64) -> bool {
        self.flags.load(Relaxed) & flag != 0
    }

    pub(crate) fn set_flag(&self, flag: u64, on: bool) {
        change_flags(
            &self.flags,
            if on { 0 } else { flag },
            if on { flag } else { 0 },
        );
    }

    /// Clears and sets flags in one step; returns the flags before it.
    pub(crate) fn change_flags(&self, clear: u64, set: u64) -> u64 {
        change_flags(&self.flags, clear, set)
    }

    /// Whether emptying the block should be left alone this time: after each
    /// failure it is, for twice as many times as before (at most 64).
    pub(crate) fn is_deferred(&self) -> bool {
        let left = self.deferred.load(Relaxed);
        self.deferred.store(left.saturating_sub(1), Relaxed);
        left > 0
    }

    /// Notes how a try to empty the block ended.
    pub(crate) fn note_emptied(&self, done: bool) {
        let failures = if done {
            0
        } else {
            (self.failures.load(Relaxed) + 1).min(6)
        };
        self.failures.store(failures, Relaxed);
        self.deferred
            .store(if done { 0 } else { 1 << failures }, Relaxed);
    }
}
