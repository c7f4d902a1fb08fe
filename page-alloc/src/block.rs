//! Pageblocks: 2 MiB of an arena, their type and their exact census.

#![deny(unsafe_code)]

use core::sync::atomic::{AtomicU8, AtomicU16, AtomicU64, Ordering::Relaxed};

use crate::sync::change_flags;
use crate::types::{MIGRATETYPES, Migratetype, PAGEBLOCK_PAGES};

/// One pageblock's record; all-zero is an empty Unmovable block of node 0.
/// Guarded by the zone lock; atomics only so that readers of statistics need not
/// take it. The flags alone change outside of the lock too, when the purger works
/// on a part of the block that it took off the lists: see [`change_flags`].
#[derive(Debug)]
#[repr(C, align(32))]
pub struct Block {
    used: [AtomicU16; MIGRATETYPES],
    flags: AtomicU64,
    migratetype: AtomicU8,
    node: AtomicU8,
}

/// Pages of the block may hold data although they are free.
pub(crate) const BLOCK_DIRTY: u64 = 1;
/// The block was excluded from huge pages, because parts of it were given back.
pub(crate) const BLOCK_NO_HUGE: u64 = 2;
/// Huge pages were asked for on this block.
pub(crate) const BLOCK_HUGE: u64 = 4;

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
        PAGEBLOCK_PAGES - self.used_total()
    }

    /// Whether pages of more than one type are in the block.
    pub fn is_mixed(&self) -> bool {
        self.used.iter().filter(|n| n.load(Relaxed) != 0).count() > 1
    }

    /// Counts pages in. True when they came to a block that holds other types: a
    /// mixing event.
    pub(crate) fn add(&self, mt: Migratetype, pages: usize) -> bool {
        let n = &self.used[mt as usize];
        n.store(n.load(Relaxed) + pages as u16, Relaxed);
        debug_assert!(self.used_total() <= PAGEBLOCK_PAGES);
        self.is_mixed()
    }

    /// Counts pages out.
    pub(crate) fn sub(&self, mt: Migratetype, pages: usize) {
        let n = &self.used[mt as usize];
        debug_assert!(n.load(Relaxed) as usize >= pages);
        n.store(n.load(Relaxed) - pages as u16, Relaxed);
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

    /// The node whose memory this is.
    pub fn node(&self) -> usize {
        self.node.load(Relaxed) as usize
    }

    pub(crate) fn set_node(&self, node: usize) {
        self.node.store(node as u8, Relaxed);
    }
}
