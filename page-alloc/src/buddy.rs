//! The index over a zone's blocks: where a free chunk of an order and type is.
//!
//! ```text
//!   lists[type][order 0..8]:  blocks of that type whose largest free chunk has
//!                             about that order (an upper bound: taking does not
//!                             look again, a search that finds less does)
//!   whole:                    wholly free blocks: they have no type until
//!                             somebody claims them; those that hold memory first
//! ```
//! The chunks themselves are read off the blocks' maps ([`crate::bits`]). A wholly
//! free block belongs to nobody, so claiming one mixes nothing; that is the
//! cheapest and most frequent form of the kernel's fallback.

#![deny(unsafe_code)]

use core::sync::atomic::Ordering::Relaxed;

use crate::arena::{self, Arena, Frame};
use crate::bits::Bits;
use crate::block::{BLOCK_RESERVED, BLOCK_USED, Block};
use crate::config;
use crate::huge;
use crate::list::List;
use crate::types::{MIGRATETYPES, Migratetype, PAGEBLOCK_ORDER, PAGEBLOCK_PAGES};

/// Orders below the pageblock's.
const LEVELS: usize = PAGEBLOCK_ORDER as usize;
/// `Block::listed` of a wholly free block; 0 is no list.
const WHOLE: u8 = u8::MAX;
/// Blocks of one list looked at for the fullest.
const LOOKS: usize = 8;

/// The free lists of one zone. The zone's lock guards them.
#[derive(Debug)]
pub(crate) struct Buddy {
    lists: [[List<Block>; LEVELS]; MIGRATETYPES],
    /// Bit `order` set: `lists[type][order]` is not empty.
    mask: [u32; MIGRATETYPES],
    whole: List<Block>,
    free: usize,
    idle: usize,
}

impl Buddy {
    pub(crate) const fn new() -> Self {
        Self {
            lists: [const { [const { List::new() }; LEVELS] }; MIGRATETYPES],
            mask: [0; MIGRATETYPES],
            whole: List::new(),
            free: 0,
            idle: 0,
        }
    }

    /// Free pages.
    pub(crate) fn free_pages(&self) -> usize {
        self.free
    }

    /// Free pages that may hold data.
    pub(crate) fn idle_pages(&self) -> usize {
        self.idle
    }

    /// Whether the block is among the wholly free ones that anybody may claim.
    pub(crate) fn is_whole(block: &Block) -> bool {
        block.listed.load(Relaxed) == WHOLE
    }

    /// Wholly free blocks.
    pub(crate) fn whole_blocks(&self) -> usize {
        self.whole.len()
    }

    /// Whether the wholly free block that is claimed next holds memory.
    pub(crate) fn whole_holds_memory(&self) -> bool {
        self.whole.first().is_some_and(|block| block.idle() > 0)
    }

    /// Wholly free blocks, those that became free last at the end.
    pub(crate) fn whole_from_oldest(&self) -> impl Iterator<Item = Frame> {
        self.whole.iter_back().map(arena::frame_of_block)
    }

    fn unlist(&mut self, block: &'static Block, frame: Frame) {
        match block.listed.load(Relaxed) {
            0 => {}
            WHOLE => {
                self.whole.remove(block);
                frame.arena.set_whole(frame.index, false);
            }
            n => {
                let (mt, level) = ((n as usize - 1) / LEVELS, (n as usize - 1) % LEVELS);
                self.lists[mt][level].remove(block);
                if self.lists[mt][level].is_empty() {
                    self.mask[mt] &= !(1 << level);
                }
            }
        }
        block.listed.store(0, Relaxed);
    }

    /// Puts a block that is on no list where it belongs; `level` is the order of its
    /// largest chunk, or more.
    fn list(&mut self, block: &'static Block, frame: Frame, level: u8, back: bool) {
        if block.free() == 0 || block.is_isolated() {
            return;
        }
        let reserved = block.flag(BLOCK_RESERVED);
        if block.free() == PAGEBLOCK_PAGES && !reserved {
            frame.arena.set_whole(frame.index, true);
            block.listed.store(WHOLE, Relaxed);
            if block.idle() > 0 {
                self.whole.push_front(block);
            } else {
                self.whole.push_back(block);
            }
            return;
        }
        let mt = block.migratetype() as usize;
        let level = level.min(PAGEBLOCK_ORDER - 1);
        self.mask[mt] |= 1 << level;
        block.listed.store((mt * LEVELS) as u8 + level + 1, Relaxed);
        if back {
            self.lists[mt][level as usize].push_back(block);
        } else {
            self.lists[mt][level as usize].push_front(block);
        }
    }

    /// The order that the block is listed under; `None` when on no list of its type.
    fn level(block: &Block) -> Option<u8> {
        match block.listed.load(Relaxed) {
            0 | WHOLE => None,
            n => Some((n - 1) % LEVELS as u8),
        }
    }

    /// Lists a block under the order of its largest chunk, as it is now.
    pub(crate) fn relist(&mut self, frame: Frame) {
        let block = frame.arena.block(frame.index);
        self.unlist(block, frame);
        if let Some(level) = block.free_map().largest_order() {
            self.list(block, frame, level, true);
        }
    }

    /// Makes the pages [from, to) free. `dirty`: whether they may hold data; `None`
    /// when the blocks' maps know.
    pub(crate) fn put(
        &mut self,
        arena: &'static Arena,
        from: usize,
        to: usize,
        dirty: Option<bool>,
    ) {
        let mut index = from;
        while index < to {
            let start = index & !(PAGEBLOCK_PAGES - 1);
            let end = (start + PAGEBLOCK_PAGES).min(to);
            self.put_in_block(
                Frame { arena, index },
                Bits::range(index - start, end - start),
                dirty,
            );
            index = end;
        }
    }

    /// Makes pages of the block at `frame` free; the first of them is at `frame`.
    #[inline]
    pub(crate) fn put_in_block(&mut self, frame: Frame, pages: Bits, dirty: Option<bool>) {
        let block = frame.arena.block(frame.index);
        self.idle += block.put(pages, dirty);
        self.free += pages.count();
        self.note_put(block, frame);
    }

    /// Makes a chunk of at most 64 pages free that may hold data.
    #[inline]
    pub(crate) fn put_chunk(&mut self, frame: Frame, order: u8) {
        let block = frame.arena.block(frame.index);
        block.put_chunk(frame.index & (PAGEBLOCK_PAGES - 1), order);
        self.idle += 1 << order;
        self.free += 1 << order;
        self.note_put(block, frame);
    }

    #[inline]
    fn note_put(&mut self, block: &'static Block, frame: Frame) {
        let order = block.order_at(frame.index & (PAGEBLOCK_PAGES - 1));
        match Self::level(block) {
            // The common case: nothing larger than what was there.
            Some(level) if level >= order && block.free() < PAGEBLOCK_PAGES => {}
            _ => {
                self.unlist(block, frame);
                self.list(block, frame, order, false);
            }
        }
    }

    /// Takes pages out of the free ones; returns whether any may hold data.
    pub(crate) fn take(&mut self, frame: Frame, pages: Bits) -> bool {
        let block = frame.arena.block(frame.index);
        let idle = block.take(pages);
        self.idle -= idle;
        self.free -= pages.count();
        let was_whole = block.listed.load(Relaxed) == WHOLE;
        if was_whole || block.free() == 0 {
            self.relist(frame);
        }
        let was_free = block.free() + pages.count() == PAGEBLOCK_PAGES;
        if was_free && !block.flag(BLOCK_USED) {
            block.set_flag(BLOCK_USED, true);
        }
        idle > 0
    }

    /// Takes [from, to), all of which is free; returns whether any may hold data.
    pub(crate) fn take_range(&mut self, arena: &'static Arena, from: usize, to: usize) -> bool {
        let mut dirty = false;
        let mut index = from;
        while index < to {
            let start = index & !(PAGEBLOCK_PAGES - 1);
            let end = (start + PAGEBLOCK_PAGES).min(to);
            dirty |= self.take(
                Frame { arena, index },
                Bits::range(index - start, end - start),
            );
            index = end;
        }
        dirty
    }

    /// The fullest of the first few blocks of type `mt` in the list for the smallest
    /// order that has what `fits` wants. `least` is the order to start at.
    fn search<R>(
        &mut self,
        mt: Migratetype,
        least: u8,
        fits: impl Fn(Bits) -> Option<R>,
    ) -> Option<(Frame, R)> {
        let looks = if config::placement() { LOOKS } else { 1 };
        let mut level = least;
        loop {
            let levels = self.mask[mt as usize] & u32::MAX.checked_shl(u32::from(level))?;
            if levels == 0 {
                return None;
            }
            level = levels.trailing_zeros() as u8;
            let block = self.lists[mt as usize][level as usize]
                .iter()
                .take(looks)
                .min_by_key(|block| block.free())?;
            let frame = arena::frame_of_block(block);
            let map = block.free_map();
            if let Some(found) = fits(map) {
                return Some((frame, found));
            }
            match map.largest_order() {
                // The bound was too high: once per block, and the search goes on.
                Some(order) if order < level => self.relist(frame),
                _ => level += 1,
            }
        }
    }

    /// Takes a chunk of exactly `order` (below the pageblock's) from the blocks of
    /// type `mt`; `None` when those have none. The flag is whether its pages may hold
    /// data.
    pub(crate) fn take_typed(&mut self, order: u8, mt: Migratetype) -> Option<(Frame, bool)> {
        let (block, at) = self.search(mt, order, |map| map.find(order))?;
        let frame = Frame {
            index: block.index + at,
            ..block
        };
        let dirty = self.take(frame, Bits::range(at, at + (1 << order)));
        Some((frame, dirty))
    }

    /// Takes up to `most` single pages from one block of type `mt`.
    pub(crate) fn take_singles(&mut self, most: usize, mt: Migratetype) -> Option<(Frame, Bits)> {
        let (block, pages) = self.search(mt, 0, |map| {
            let pages = map.take_singles(most);
            (!pages.is_empty()).then_some(pages)
        })?;
        self.take(block, pages);
        Some((block, pages))
    }

    /// Takes `pages` pages (up to a block) in one piece from a block of type `mt`.
    pub(crate) fn take_piece(&mut self, pages: usize, mt: Migratetype) -> Option<(Frame, bool)> {
        // A run of n pages holds an aligned chunk of more than n/4; one of a chunk of
        // n or more is certain.
        let sure = pages.next_power_of_two().trailing_zeros() as u8;
        let found = self
            .search(mt, sure, |map| map.find_run(pages))
            .or_else(|| self.search(mt, sure.saturating_sub(2), |map| map.find_run(pages)));
        let (block, at) = found?;
        let frame = Frame {
            index: block.index + at,
            ..block
        };
        let dirty = self.take(frame, Bits::range(at, at + pages));
        Some((frame, dirty))
    }

    /// Gives a wholly free block the type `mt` and takes its first `pages` pages.
    pub(crate) fn claim_whole(&mut self, pages: usize, mt: Migratetype) -> Option<(Frame, bool)> {
        let frame = arena::frame_of_block(self.whole.first()?);
        frame.arena.block(frame.index).set_migratetype(mt);
        huge::claimed(frame, pages, mt, 0);
        let dirty = self.take(frame, Bits::range(0, pages));
        Some((frame, dirty))
    }

    /// A block of type `mt` that has a free chunk of `order`, the emptiest first: for
    /// claim and steal.
    pub(crate) fn emptiest(&mut self, order: u8, mt: Migratetype) -> Option<Frame> {
        loop {
            let levels = self.mask[mt as usize] & u32::MAX.checked_shl(u32::from(order))?;
            let level = levels.checked_ilog2()? as usize;
            let block = self.lists[mt as usize][level]
                .iter()
                .take(LOOKS)
                .max_by_key(|block| block.free())?;
            let frame = arena::frame_of_block(block);
            if block.free_map().find(order).is_some() {
                return Some(frame);
            }
            self.relist(frame);
        }
    }

    /// Takes a chunk of `order` out of a block that has one.
    pub(crate) fn take_from(&mut self, block: Frame, order: u8) -> Option<(Frame, bool)> {
        let at = block.arena.block(block.index).free_map().find(order)?;
        let frame = Frame {
            index: block.index + at,
            ..block
        };
        let dirty = self.take(frame, Bits::range(at, at + (1 << order)));
        Some((frame, dirty))
    }

    /// Gives a block another type.
    pub(crate) fn retag(&mut self, frame: Frame, to: Migratetype) {
        let block = frame.arena.block(frame.index);
        self.unlist(block, frame);
        block.set_migratetype(to);
        self.relist(frame);
    }
}
