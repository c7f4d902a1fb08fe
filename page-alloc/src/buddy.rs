//! The buddy's free lists: one for each order and migratetype below the
//! pageblock, one for each order from the pageblock up.
//!
//! ```text
//!   order 0..8:   lists[order][type]   chunks inside a block of that type
//!   order 9..18:  whole[order]         wholly free blocks: they have no type
//!                                      until somebody claims them
//! ```
//! A wholly free block belongs to nobody, so claiming one mixes nothing; that is
//! the cheapest and most frequent form of the kernel's fallback.
//!
//! Each free chunk carries whether its pages may hold data (*dirty*): clean ones
//! read as zero and cost no memory.

#![deny(unsafe_code)]

use crate::arena::{self, Frame};
use crate::block::BLOCK_DIRTY;
use crate::page::{PageKind, PageList, PageRef};
use crate::types::{MIGRATETYPES, Migratetype, ORDERS, PAGEBLOCK_ORDER, PAGEBLOCK_PAGES};

const SMALL: usize = PAGEBLOCK_ORDER as usize;

/// The free lists of one zone. The zone's lock guards them.
#[derive(Debug)]
pub(crate) struct Buddy {
    lists: [[PageList; MIGRATETYPES]; SMALL],
    whole: [PageList; ORDERS - SMALL],
    /// Bit `order` set: `lists[order][type]` is not empty.
    small_mask: [u32; MIGRATETYPES],
    /// Bit `order` set: `whole[order - 9]` is not empty.
    whole_mask: u32,
    free: usize,
    dirty: usize,
}

impl Buddy {
    pub(crate) const fn new() -> Self {
        Self {
            lists: [const { [const { PageList::new() }; MIGRATETYPES] }; SMALL],
            whole: [const { PageList::new() }; ORDERS - SMALL],
            small_mask: [0; MIGRATETYPES],
            whole_mask: 0,
            free: 0,
            dirty: 0,
        }
    }

    /// Free pages.
    pub(crate) fn free_pages(&self) -> usize {
        self.free
    }

    /// Free pages in chunks that may hold data.
    pub(crate) fn dirty_pages(&self) -> usize {
        self.dirty
    }

    /// Free chunks of one order and type; whole blocks count for every type as 0
    /// but for the type their first block had last.
    pub(crate) fn chunks(&self, order: u8, mt: Migratetype) -> usize {
        if order < PAGEBLOCK_ORDER {
            return self.lists[order as usize][mt as usize].len();
        }
        self.whole[order as usize - SMALL]
            .iter()
            .filter(|p| {
                let f = arena::frame_of(p);
                f.arena.block(f.index).migratetype() == mt
            })
            .count()
    }

    fn list(&mut self, frame: Frame, order: u8) -> (&mut PageList, &mut u32) {
        if order < PAGEBLOCK_ORDER {
            let mt = frame.arena.block(frame.index).migratetype() as usize;
            (
                &mut self.lists[order as usize][mt],
                &mut self.small_mask[mt],
            )
        } else {
            (
                &mut self.whole[order as usize - SMALL],
                &mut self.whole_mask,
            )
        }
    }

    fn insert(&mut self, frame: Frame, order: u8, dirty: bool, back: bool) {
        let page = frame.arena.page(frame.index);
        page.set_kind(PageKind::Free);
        page.set_order(order);
        page.set_dirty(dirty);
        self.free += 1 << order;
        if dirty {
            self.dirty += 1 << order;
        }
        let (list, mask) = self.list(frame, order);
        *mask |= 1 << order;
        if back {
            list.push_back(page);
        } else {
            list.push_front(page);
        }
    }

    /// Takes a free chunk, whose first page is `page`, off its list.
    fn remove(&mut self, page: PageRef, frame: Frame) {
        let order = page.order();
        let (list, mask) = self.list(frame, order);
        list.remove(page);
        if list.is_empty() {
            *mask &= !(1 << order);
        }
        page.set_kind(PageKind::Unused);
        self.free -= 1 << order;
        if page.is_dirty() {
            self.dirty -= 1 << order;
        }
    }

    /// Puts a chunk back, merging it with its buddies.
    pub(crate) fn put(&mut self, mut frame: Frame, mut order: u8, mut dirty: bool) {
        let arena = frame.arena;
        let (start, end) = arena.bounds(frame.index);
        if order >= PAGEBLOCK_ORDER {
            if dirty {
                for at in (frame.index..frame.index + (1 << order)).step_by(PAGEBLOCK_PAGES) {
                    arena.block(at).set_flag(BLOCK_DIRTY, true);
                }
            } else {
                dirty = Self::any_block_dirty(frame, order);
            }
        }
        while (order as usize) < ORDERS - 1 {
            let buddy = frame.index ^ (1 << order);
            if buddy < start || buddy + (1 << order) > end {
                break;
            }
            let page = arena.page(buddy);
            if page.kind() != PageKind::Free || page.order() != order {
                break;
            }
            // Two whole blocks, one dirty and one clean, keep that knowledge in
            // their block records; below, the dirty half taints the chunk.
            let buddy_dirty = page.is_dirty();
            self.remove(
                page,
                Frame {
                    arena,
                    index: buddy,
                },
            );
            dirty |= buddy_dirty;
            frame.index &= buddy;
            order += 1;
            if order == PAGEBLOCK_ORDER {
                arena.block(frame.index).set_flag(BLOCK_DIRTY, dirty);
            }
        }
        // The kernel's rule: when the next-higher buddy is free already, this
        // chunk is likely to merge soon, so let it be used last.
        let next = (frame.index & !(1 << order)) ^ (1 << (order + 1));
        let back = order < PAGEBLOCK_ORDER - 1 && next >= start && next < end && {
            let page = arena.page(next);
            page.kind() == PageKind::Free && page.order() == order + 1
        };
        self.insert(frame, order, dirty, back);
    }

    /// Puts a run of any length back, as aligned chunks.
    pub(crate) fn put_range(
        &mut self,
        arena: &'static arena::Arena,
        from: usize,
        to: usize,
        dirty: bool,
    ) {
        let mut index = from;
        while index < to {
            let order = (index.trailing_zeros())
                .min((to - index).ilog2())
                .min(ORDERS as u32 - 1) as u8;
            self.put(Frame { arena, index }, order, dirty);
            index += 1 << order;
        }
    }

    /// Takes a chunk of exactly `order` from the blocks of type `mt`; `None` when
    /// those have none. The flag is whether its pages may hold data.
    pub(crate) fn take_typed(&mut self, order: u8, mt: Migratetype) -> Option<(Frame, bool)> {
        let orders = self.small_mask[mt as usize] & (u32::MAX << order);
        if orders == 0 {
            return None;
        }
        let found = orders.trailing_zeros() as u8;
        let page = self.lists[found as usize][mt as usize].first()?;
        Some(self.take_from(page, order))
    }

    /// Takes a chunk of `order` out of the wholly free blocks, and retags the
    /// blocks it touches. `None` when there is none large enough.
    pub(crate) fn claim_whole(&mut self, order: u8, mt: Migratetype) -> Option<(Frame, bool)> {
        let orders = self.whole_mask & (u32::MAX << order);
        if orders == 0 {
            return None;
        }
        let found = orders.trailing_zeros() as u8;
        let page = self.whole[found as usize - SMALL].first()?;
        let frame = arena::frame_of(page);
        // Only the first block of the chunk is broken into smaller orders.
        for at in (frame.index..frame.index + (1usize << order)).step_by(PAGEBLOCK_PAGES) {
            frame.arena.block(at).set_migratetype(mt);
        }
        Some(self.take_from(page, order))
    }

    /// Takes a free chunk of any type whose order is at least `least`, the largest
    /// first among `mt`'s lists, without splitting it off: for claim and steal.
    pub(crate) fn largest(&self, least: u8, mt: Migratetype) -> Option<PageRef> {
        let orders = self.small_mask[mt as usize] & (u32::MAX << least);
        if orders == 0 {
            return None;
        }
        self.lists[31 - orders.leading_zeros() as usize][mt as usize].first()
    }

    /// Takes the free chunk that starts at `page` and splits it down to `order`;
    /// the upper halves go back.
    pub(crate) fn take_from(&mut self, page: PageRef, order: u8) -> (Frame, bool) {
        let frame = arena::frame_of(page);
        let mut have = page.order();
        let mut dirty = page.is_dirty();
        self.remove(page, frame);
        while have > order {
            have -= 1;
            let upper = Frame {
                arena: frame.arena,
                index: frame.index + (1 << have),
            };
            let upper_dirty = if have >= PAGEBLOCK_ORDER {
                dirty && Self::any_block_dirty(upper, have)
            } else {
                dirty
            };
            self.insert(upper, have, upper_dirty, false);
            if have == PAGEBLOCK_ORDER {
                // Below, chunks carry the flag themselves.
                dirty = frame.arena.block(frame.index).flag(BLOCK_DIRTY);
            }
        }
        if order < PAGEBLOCK_ORDER {
            frame.arena.block(frame.index).set_flag(BLOCK_DIRTY, false);
        }
        (frame, dirty)
    }

    fn any_block_dirty(frame: Frame, order: u8) -> bool {
        (frame.index..frame.index + (1 << order))
            .step_by(PAGEBLOCK_PAGES)
            .any(|at| frame.arena.block(at).flag(BLOCK_DIRTY))
    }

    /// Takes the whole free chunk that starts at `page`.
    pub(crate) fn take_chunk(&mut self, page: PageRef) -> (Frame, bool) {
        let order = page.order();
        let frame = arena::frame_of(page);
        let dirty = page.is_dirty();
        self.remove(page, frame);
        (
            frame,
            dirty && (order < PAGEBLOCK_ORDER || Self::any_block_dirty(frame, order)),
        )
    }

    /// Moves every free chunk of a block to the lists of `to` and retags it.
    pub(crate) fn retag_block(&mut self, frame: Frame, to: Migratetype) {
        let arena = frame.arena;
        let start = frame.index & !(PAGEBLOCK_PAGES - 1);
        let mut chunks = [0u16; PAGEBLOCK_PAGES];
        let mut count = 0;
        for index in start..start + PAGEBLOCK_PAGES {
            if arena.page(index).kind() == PageKind::Free {
                chunks[count] = (index - start) as u16;
                count += 1;
            }
        }
        // Off the old type's lists first, then the new tag, then on the new lists:
        // the list of a chunk follows from its block's type.
        let block = arena.block(start);
        for &at in &chunks[..count] {
            let frame = Frame {
                arena,
                index: start + at as usize,
            };
            self.remove(arena.page(frame.index), frame);
        }
        block.set_migratetype(to);
        for &at in &chunks[..count] {
            let frame = Frame {
                arena,
                index: start + at as usize,
            };
            let page = arena.page(frame.index);
            self.insert(frame, page.order(), page.is_dirty(), false);
        }
    }

    /// Wholly free chunks of `least` and larger orders (from the pageblock's up), the
    /// largest first.
    pub(crate) fn whole_chunks(&self, least: u8) -> impl Iterator<Item = PageRef> {
        let first = (least as usize).saturating_sub(SMALL);
        self.whole[first..].iter().rev().flat_map(PageList::iter)
    }

    /// Finds dirty free chunks of exactly `order`, least recently used first; fills
    /// `out` and returns how many.
    pub(crate) fn dirty_chunks(&self, order: u8, out: &mut [Option<PageRef>]) -> usize {
        let lists = if order >= PAGEBLOCK_ORDER {
            core::slice::from_ref(&self.whole[order as usize - SMALL])
        } else {
            &self.lists[order as usize][..]
        };
        let dirty = lists
            .iter()
            .flat_map(PageList::iter_back)
            .filter(|p| p.is_dirty());
        let mut count = 0;
        for (cell, page) in out.iter_mut().zip(dirty) {
            *cell = Some(page);
            count += 1;
        }
        count
    }
}
