//! A zone: one node's free pages, their placement, and the census of its blocks.
//!
//! The order of an allocation's attempts is the placement policy:
//! 1. the smallest free chunk in blocks of the asked type, in the fullest of a few;
//! 2. a wholly free block, claimed (nothing mixes);
//! 3. fresh pages at the arena's frontier;
//! 4. *empty* a block, by its pages' owners ([`crate::reclaim`]), and claim it;
//! 5. the reserve for urgent requests, released;
//! 6. *claim* a partly used block of another type when the census says that
//!    free and alike pages are at least half of it;
//! 7. *steal* one chunk and leave the block its type. Each page so placed in a
//!    block that holds others counts as a mixing event.
//!
//! When fresh pages are out and there are page owners, the last [`RESERVE`] whole blocks
//! are kept for small requests of types that have nothing left, after step 4 has failed:
//! a min watermark, so that nothing has to mix while large requests take all they can.
//!
//! Lock order: a cache's lock may be held; then the zone's; then growth. Owners are
//! called with none of the page layer's locks held.

#![deny(unsafe_code)]

use crate::arena::{self, Arena, Frame, Growth};
use crate::bits::Bits;
use crate::block::{BLOCK_RESERVED, Block};
use crate::buddy::Buddy;
use crate::config;
use crate::huge;
use crate::page::{PageKind, PageRef};
use crate::purge;
use crate::reclaim;
use crate::sync::Lock;
use crate::topology::{self, MAX_NODES};
use crate::types::{Migratetype, Order, PAGEBLOCK_ORDER, PAGEBLOCK_PAGES};
use runs::Recent;

/// Counters of one zone, monotonic.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct ZoneCounters {
    /// Wholly free blocks given a type.
    pub claims_whole: u64,
    /// Partly used blocks retagged.
    pub claims_partial: u64,
    /// Chunks taken from a block that kept another type.
    pub steals: u64,
    /// Pages that were placed in a block which held another type.
    pub mixing_events: u64,
    /// Times the frontier moved.
    pub growths: u64,
    /// Pages whose memory was given back to the kernel.
    pub purged_pages: u64,
    /// Requests that found no memory.
    pub failures: u64,
    /// Blocks kept for urgent requests, and released again.
    pub reserved: u64,
    /// Reserved blocks given to other types.
    pub released: u64,
}

#[derive(Debug)]
pub(crate) struct ZoneInner {
    pub(crate) buddy: Buddy,
    pub(crate) counters: ZoneCounters,
    /// Least number of idle pages since the last look of the purger: so many nobody
    /// needed meanwhile.
    pub(crate) idle_low: usize,
    /// Runs freed last, not merged yet: one of the same length is taken back as it is, a
    /// shorter one cut out. They count as used, as pages in slots' lists do.
    recent: [Option<Recent>; RECENT],
    recent_pages: usize,
    /// Fresh pages were refused: what is there is all there will be.
    full: bool,
}

/// Times that a request lets blocks be emptied: others may take what became free.
const TRIES: usize = 16;
/// Number of runs kept unmerged.
const RECENT: usize = 8;
/// Whole blocks that the types leave each other when there are no fresh pages.
pub(crate) const RESERVE: usize = 4;

pub(crate) type Zone = Lock<ZoneInner>;

static ZONES: [Zone; MAX_NODES] = [const {
    Zone::new(ZoneInner {
        buddy: Buddy::new(),
        counters: ZoneCounters {
            claims_whole: 0,
            claims_partial: 0,
            steals: 0,
            mixing_events: 0,
            growths: 0,
            purged_pages: 0,
            failures: 0,
            reserved: 0,
            released: 0,
        },
        idle_low: 0,
        recent: [None; RECENT],
        recent_pages: 0,
        full: false,
    })
}; MAX_NODES];

/// The zones of the nodes that exist.
pub(crate) fn zones() -> &'static [Zone] {
    &ZONES[..topology::nodes()]
}

/// Merges the runs that the zones keep unmerged.
pub(crate) fn merge_recent() {
    for zone in zones() {
        zone.lock().merge_recent();
    }
}

/// Pages in runs that the zones keep unmerged.
pub(crate) fn recent_pages() -> usize {
    zones().iter().map(|zone| zone.lock().recent_pages()).sum()
}

/// The zone that owns a page.
pub(crate) fn zone_of(frame: Frame) -> &'static Zone {
    &ZONES[frame.arena.node_of(frame.index)]
}

/// How far a request may go to find pages.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Effort {
    /// Free pages in blocks of its type.
    Begun,
    /// Those, whole blocks above the reserve, fresh pages.
    Easy,
    /// All whole blocks, the urgent reserve, other types' blocks.
    Last,
}

/// Takes one chunk for `node`, elsewhere if that node has none. Pages come with
/// kind [`PageKind::Pages`] and their tails marked.
pub(crate) fn take(node: usize, order: Order, mt: Migratetype) -> Option<PageRef> {
    let mut out = [None];
    take_bulk(node, order, mt, &mut out);
    out[0]
}

/// Fills `out` with chunks as far as there is memory; returns how many. At least one
/// unless memory is out.
pub(crate) fn take_bulk(
    node: usize,
    order: Order,
    mt: Migratetype,
    out: &mut [Option<PageRef>],
) -> usize {
    let nodes = topology::nodes();
    let each_node = |effort, out: &mut [Option<PageRef>]| {
        (0..nodes)
            .map(|i| (node + i) % nodes)
            .map(|n| ZONES[n].lock().take_some(n, order.get(), mt, out, effort))
            .find(|count| *count > 0)
            .unwrap_or(0)
    };
    let count = each_node(Effort::Easy, out);
    if count > 0 {
        if mt == Migratetype::HighAtomic && order > Order::ZERO {
            ZONES[node].lock().reserve_urgent();
        }
        reclaim::note_claim();
        return count;
    }
    // An urgent request waits for nobody.
    for _ in 0..TRIES {
        if mt == Migratetype::HighAtomic || !reclaim::make_block(node, order.get()) {
            break;
        }
        let count = each_node(Effort::Easy, out);
        if count > 0 {
            return count;
        }
    }
    let count = each_node(Effort::Last, out);
    if count == 0 {
        ZONES[node].lock().counters.failures += 1;
    }
    count
}

/// Fills `out` with chunks from blocks of the type that `node` has in use, as far as there
/// are any; returns how many.
pub(crate) fn take_bulk_begun(
    node: usize,
    order: Order,
    mt: Migratetype,
    out: &mut [Option<PageRef>],
) -> usize {
    let mut zone = ZONES[node].lock();
    zone.take_some(node, order.get(), mt, out, Effort::Begun)
}

pub(crate) fn mark_allocated(frame: Frame, order: u8, mt: Migratetype) {
    let page = frame.arena.page(frame.index);
    page.set_kind(PageKind::Pages);
    page.set_order(order);
    page.set_migratetype(mt);
    // From the pageblock's order up the blocks say it: there are hundreds of tails.
    if order >= PAGEBLOCK_ORDER {
        for_blocks(frame, 1 << order, |block, _| block.set_chunk(order));
    } else {
        for index in frame.index + 1..frame.index + (1 << order) {
            let tail = frame.arena.page(index);
            tail.set_kind(PageKind::Tail);
            tail.set_order(order);
        }
    }
}

/// Puts chunks back, under one hold of the lock for those of one zone in a row.
pub(crate) fn put_bulk(pages: impl Iterator<Item = PageRef>) {
    let mut held: Option<(usize, lock_api::MutexGuard<'static, _, ZoneInner>)> = None;
    for page in pages {
        let frame = arena::frame_of(page);
        let node = frame.arena.node_of(frame.index);
        if held.as_ref().is_none_or(|(n, _)| *n != node) {
            drop(held.take());
            held = Some((node, ZONES[node].lock()));
        }
        if let Some((_, zone)) = &mut held {
            zone.put_chunk(page, frame);
        }
    }
    if let Some((_, zone)) = &mut held {
        purge::note_idle(zone);
    }
}

impl ZoneInner {
    /// Fills `out` from this zone with as much effort as given; returns how many.
    fn take_some(
        &mut self,
        node: usize,
        order: u8,
        mt: Migratetype,
        out: &mut [Option<PageRef>],
        effort: Effort,
    ) -> usize {
        let mut count = 0;
        while count < out.len() {
            if order == 0
                && let Some((block, pages)) = self.buddy.take_singles(out.len() - count, tag(mt))
            {
                let dirty = block.arena.block(block.index).dirty_map();
                for at in pages.iter() {
                    let frame = Frame {
                        index: block.index + at,
                        ..block
                    };
                    out[count] = Some(self.hand_out(frame, 0, mt, dirty.contains(at)));
                    count += 1;
                }
                continue;
            }
            let found = self.take_easily(node, order, mt, effort).or_else(|| {
                // Only the first chunk is worth fresh or foreign memory.
                if count > 0 {
                    return None;
                }
                match effort {
                    Effort::Begun => None,
                    Effort::Easy => self.take_fresh(node, order, mt),
                    Effort::Last => self.take_from_others(order, mt),
                }
            });
            let Some((frame, dirty)) = found else { break };
            out[count] = Some(self.hand_out(frame, order, mt, dirty));
            count += 1;
        }
        count
    }

    fn hand_out(&mut self, frame: Frame, order: u8, mt: Migratetype, dirty: bool) -> PageRef {
        self.account(frame, 1 << order, mt);
        mark_allocated(frame, order, mt);
        let page = frame.arena.page(frame.index);
        page.set_dirty(dirty);
        page
    }

    /// Makes a chunk free that was handed out.
    #[inline]
    fn put_chunk(&mut self, page: PageRef, frame: Frame) {
        let order = page.order();
        page.set_kind(PageKind::Free);
        if order <= 6 {
            frame
                .arena
                .block(frame.index)
                .sub(page.migratetype(), 1 << order);
            self.buddy.put_chunk(frame, order);
        } else {
            if order >= PAGEBLOCK_ORDER {
                for_blocks(frame, 1 << order, |block, _| block.set_chunk(0));
            }
            self.unaccount(frame, 1 << order, page.migratetype());
            self.buddy.put(
                frame.arena,
                frame.index,
                frame.index + (1 << order),
                Some(true),
            );
        }
    }

    fn take_easily(
        &mut self,
        node: usize,
        order: u8,
        mt: Migratetype,
        effort: Effort,
    ) -> Option<(Frame, bool)> {
        if order < PAGEBLOCK_ORDER
            && let Some(found) = self.buddy.take_typed(order, tag(mt))
        {
            return Some(found);
        }
        if effort == Effort::Begun {
            return None;
        }
        if order > PAGEBLOCK_ORDER {
            return self.take_aligned(node, order, mt);
        }
        // A request for a block leaves the reserve for good: with it gone, the next
        // small one would have to mix.
        if (effort == Effort::Easy || order == PAGEBLOCK_ORDER) && self.is_reserve() {
            return None;
        }
        self.claim_whole(1 << order, mt)
    }

    /// Gives a wholly free block the type and takes its first `pages` pages.
    fn claim_whole(&mut self, pages: usize, mt: Migratetype) -> Option<(Frame, bool)> {
        // Rather than memory that nobody has touched, that of long runs freed last.
        if self.recent_pages >= PAGEBLOCK_PAGES && !self.buddy.whole_holds_memory() {
            self.merge_recent();
        }
        let (frame, dirty) = self.buddy.claim_whole(pages, tag(mt))?;
        self.counters.claims_whole += 1;
        if !dirty {
            purge::note_growth(self);
        }
        Some((frame, dirty))
    }

    /// Whether the whole blocks that there are should be left to other types: the last
    /// few, when they cannot be had from fresh pages but by emptying one.
    fn is_reserve(&self) -> bool {
        self.buddy.whole_blocks() <= RESERVE
            && self.full
            && config::placement()
            && reclaim::has_owners()
    }

    /// Takes an aligned chunk of several whole blocks.
    fn take_aligned(&mut self, node: usize, order: u8, mt: Migratetype) -> Option<(Frame, bool)> {
        let pages = 1 << order;
        let (arena, from) = stretches(node).find_map(|(arena, from, to)| {
            let start = from.next_multiple_of(pages);
            (start + pages <= to).then_some((arena, start))
        })?;
        self.counters.claims_whole += (pages / PAGEBLOCK_PAGES) as u64;
        let frame = Frame { arena, index: from };
        Some((frame, self.take_range(frame, pages, mt, 0)))
    }

    fn take_fresh(&mut self, node: usize, order: u8, mt: Migratetype) -> Option<(Frame, bool)> {
        if self.merge_recent()
            && let Some(found) = self.take_easily(node, order, mt, Effort::Easy)
        {
            return Some(found);
        }
        // A chunk of an order above the pageblock's must be aligned: at worst the
        // frontier has to move by twice its size, less a block.
        let pages = (1usize << order).max(PAGEBLOCK_PAGES);
        let need = if pages > PAGEBLOCK_PAGES {
            2 * pages - PAGEBLOCK_PAGES
        } else {
            pages
        };
        for need in [pages, need] {
            if !self.grow(node, need) {
                break;
            }
            if let Some(found) = self.take_easily(node, order, mt, Effort::Easy) {
                return Some(found);
            }
        }
        None
    }

    /// Adds fresh pages to the free ones.
    pub(crate) fn grow(&mut self, node: usize, pages: usize) -> bool {
        let growth = arena::grow(node, pages);
        self.full = growth.is_none();
        growth.map(|growth| self.add(growth)).is_some()
    }

    /// Adds fresh pages right behind `end`.
    pub(crate) fn grow_at(&mut self, end: Frame, pages: usize) -> bool {
        arena::grow_at(end, pages)
            .map(|growth| self.add(growth))
            .is_some()
    }

    fn add(&mut self, Growth { start, pages }: Growth) {
        self.counters.growths += 1;
        self.buddy
            .put(start.arena, start.index, start.index + pages, Some(false));
    }

    fn take_from_others(&mut self, order: u8, mt: Migratetype) -> Option<(Frame, bool)> {
        if order >= PAGEBLOCK_ORDER || !config::placement() {
            return None;
        }
        if mt != Migratetype::HighAtomic
            && let Some(block) = self.buddy.emptiest(order, Migratetype::HighAtomic)
        {
            self.release(block, mt);
            return self
                .buddy
                .take_typed(order, mt)
                .or_else(|| self.buddy.claim_whole(1 << order, mt));
        }
        for other in mt.fallbacks() {
            let Some(frame) = self.buddy.emptiest(order.max(4), other) else {
                continue;
            };
            let block = frame.arena.block(frame.index);
            if block.free() + block.used(mt) >= PAGEBLOCK_PAGES / 2 {
                self.buddy.retag(frame, mt);
                self.counters.claims_partial += 1;
                return self.buddy.take_typed(order, mt);
            }
        }
        for other in mt.fallbacks() {
            if let Some(block) = self.buddy.emptiest(order, other) {
                self.counters.steals += 1;
                return self.buddy.take_from(block, order);
            }
        }
        None
    }

    /// Keeps a whole block for urgent requests, up to one in a hundred.
    pub(crate) fn reserve_urgent(&mut self) {
        let blocks = self.counters.reserved - self.counters.released;
        let managed = arena::committed_bytes() >> (crate::PAGE_SHIFT + PAGEBLOCK_ORDER as usize);
        if config::placement()
            && (blocks + 1) as usize * 100 <= managed
            && self.buddy.whole_blocks() > RESERVE
            && let Some((frame, _)) = self.buddy.claim_whole(1, Migratetype::HighAtomic)
        {
            self.counters.reserved += 1;
            let block = frame.arena.block(frame.index);
            block.set_flag(BLOCK_RESERVED, true);
            self.buddy
                .put(frame.arena, frame.index, frame.index + 1, None);
        }
    }

    /// Gives the blocks of the urgent reserve that are wholly free to everyone.
    pub(crate) fn release_urgent(&mut self) {
        while let Some(block) = self
            .buddy
            .emptiest(PAGEBLOCK_ORDER - 1, Migratetype::HighAtomic)
            && block.arena.block(block.index).free() == PAGEBLOCK_PAGES
        {
            self.release(block, Migratetype::Unmovable);
        }
    }

    fn release(&mut self, frame: Frame, to: Migratetype) {
        let block = frame.arena.block(frame.index);
        let was = block.change_flags(BLOCK_RESERVED, 0);
        self.counters.released += u64::from(was & BLOCK_RESERVED != 0);
        self.buddy.retag(frame, to);
    }

    /// Counts pages into the census.
    pub(crate) fn account(&mut self, frame: Frame, pages: usize, mt: Migratetype) {
        for_blocks(frame, pages, |block, n| {
            if block.add(mt, n) {
                self.counters.mixing_events += n as u64;
            }
        });
        self.idle_low = self.idle_low.min(self.idle_pages());
    }

    /// Counts pages out of the census.
    pub(crate) fn unaccount(&mut self, frame: Frame, pages: usize, mt: Migratetype) {
        for_blocks(frame, pages, |block, n| block.sub(mt, n));
    }

    /// Pages that hold memory and that nobody uses.
    pub(crate) fn idle_pages(&self) -> usize {
        self.buddy.idle_pages() + self.recent_pages
    }

    /// Takes pages that are free, all in one piece, out of the free ones, and gives the
    /// blocks that become wholly theirs the type. `behind` pages of the same run end where
    /// they begin. Returns whether any may hold data.
    pub(crate) fn take_range(
        &mut self,
        frame: Frame,
        pages: usize,
        mt: Migratetype,
        behind: usize,
    ) -> bool {
        let end = frame.index + pages;
        let mut index = frame.index;
        while index < end {
            let start = index & !(PAGEBLOCK_PAGES - 1);
            let block = frame.arena.block(index);
            if block.free() == PAGEBLOCK_PAGES {
                let frame = Frame {
                    arena: frame.arena,
                    index: start,
                };
                self.release(frame, tag(mt));
            }
            index = start + PAGEBLOCK_PAGES;
        }
        huge::claimed(frame, pages, tag(mt), behind);
        self.buddy.take_range(frame.arena, frame.index, end)
    }

    /// Whether all pages [from, to) of an arena are free and not isolated.
    pub(crate) fn all_free(&self, frame: Frame, pages: usize) -> bool {
        let mut all = true;
        let mut index = frame.index;
        for_blocks(frame, pages, |block, n| {
            let at = index & (PAGEBLOCK_PAGES - 1);
            let wanted = Bits::range(at, at + n);
            all &= !block.is_isolated() && wanted.minus(block.free_map()).is_empty();
            index += n;
        });
        all
    }
}

mod emptying;
pub(crate) mod runs;

/// The stretches of wholly free blocks of a node, by address: [from, to) in pages.
pub(crate) fn stretches(node: usize) -> impl Iterator<Item = (&'static Arena, usize, usize)> {
    arena::arenas().iter().flat_map(move |arena| {
        let (mut at, end) = arena.region_span(node);
        core::iter::from_fn(move || {
            let (from, to) = arena.next_whole(at, end)?;
            at = to;
            Some((arena, from, to))
        })
    })
}

/// The type that blocks get for pages of type `mt`: one for all without placement.
pub(crate) fn tag(mt: Migratetype) -> Migratetype {
    if config::placement() {
        mt
    } else {
        Migratetype::Unmovable
    }
}

/// Splits the pages from `frame` on at block boundaries.
fn for_blocks(frame: Frame, pages: usize, mut f: impl FnMut(&'static Block, usize)) {
    let (mut index, end) = (frame.index, frame.index + pages);
    while index < end {
        let stop = ((index | (PAGEBLOCK_PAGES - 1)) + 1).min(end);
        f(frame.arena.block(index), stop - index);
        index = stop;
    }
}
