//! A zone: one node's free pages, their placement, and the census of its blocks.
//!
//! The order of an allocation's attempts is the placement policy:
//! 1. the smallest free chunk in blocks of the asked type;
//! 2. a wholly free block, claimed (nothing mixes);
//! 3. fresh pages at the arena's frontier;
//! 4. *claim* a partly used block of another type when the census says that
//!    free and alike pages are at least half of it;
//! 5. *steal* one chunk and leave the block its type. Each page so placed in a
//!    block that holds others counts as a mixing event.
//!
//! Lock order: a cache's lock may be held; then the zone's; then growth.

#![deny(unsafe_code)]

use crate::arena::{self, Arena, Frame, Growth};
use crate::block::BLOCK_DIRTY;
use crate::buddy::Buddy;
use crate::config;
use crate::page::{PageKind, PageRef};
use crate::purge;
use crate::run::run_pages;
use crate::sync::Lock;
use crate::topology::{self, MAX_NODES};
use crate::types::{MAX_ORDER, Migratetype, Order, PAGEBLOCK_ORDER, PAGEBLOCK_PAGES};

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
}

#[derive(Debug)]
pub(crate) struct ZoneInner {
    pub(crate) buddy: Buddy,
    pub(crate) counters: ZoneCounters,
    /// Least number of idle pages since the last look of the purger: so many nobody
    /// needed meanwhile.
    pub(crate) idle_low: usize,
    /// Runs freed last, by length, not merged yet: a run of the same length takes
    /// one back without splitting and merging. They count as used, as pages in
    /// slots' lists do.
    recent: [Option<PageRef>; RECENT],
    recent_pages: usize,
}

/// Number of runs kept unmerged.
const RECENT: usize = 8;

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
        },
        idle_low: 0,
        recent: [None; RECENT],
        recent_pages: 0,
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
    &ZONES[frame.arena.block(frame.index).node()]
}

/// Takes one chunk for `node`, elsewhere if that node has none. Pages come with
/// kind [`PageKind::Pages`] and their tails marked.
pub(crate) fn take(node: usize, order: Order, mt: Migratetype) -> Option<PageRef> {
    let mut out = [None];
    take_bulk(node, order, mt, &mut out);
    out[0]
}

/// Fills `out` with chunks as far as there is memory, under one hold of the lock;
/// returns how many. At least one unless memory is out.
pub(crate) fn take_bulk(
    node: usize,
    order: Order,
    mt: Migratetype,
    out: &mut [Option<PageRef>],
) -> usize {
    let nodes = topology::nodes();
    for n in (0..nodes).map(|i| (node + i) % nodes) {
        let mut zone = ZONES[n].lock();
        let mut count = 0;
        for cell in out.iter_mut() {
            // Only the first chunk is worth fresh or foreign memory.
            let found = zone.take_easily(order.get(), mt).or_else(|| {
                if count == 0 {
                    zone.take_hard(n, order.get(), mt)
                } else {
                    None
                }
            });
            let Some((frame, dirty)) = found else { break };
            zone.account(frame, 1 << order.get(), mt);
            let page = frame.arena.page(frame.index);
            mark_allocated(frame, order.get(), mt);
            page.set_dirty(dirty);
            *cell = Some(page);
            count += 1;
        }
        if count > 0 {
            return count;
        }
        zone.counters.failures += 1;
    }
    0
}

fn mark_allocated(frame: Frame, order: u8, mt: Migratetype) {
    let page = frame.arena.page(frame.index);
    page.set_kind(PageKind::Pages);
    page.set_order(order);
    page.set_migratetype(mt);
    for index in frame.index + 1..frame.index + (1 << order) {
        let tail = frame.arena.page(index);
        tail.set_kind(PageKind::Tail);
        tail.set_order(order);
    }
}

/// Puts chunks back, under one hold of the lock for those of one zone in a row.
pub(crate) fn put_bulk(pages: impl Iterator<Item = PageRef>) {
    let mut held: Option<(usize, lock_api::MutexGuard<'static, _, ZoneInner>)> = None;
    for page in pages {
        let frame = arena::frame_of(page);
        let node = frame.arena.block(frame.index).node();
        if held.as_ref().is_none_or(|(n, _)| *n != node) {
            drop(held.take());
            held = Some((node, ZONES[node].lock()));
        }
        if let Some((_, zone)) = &mut held {
            let order = page.order();
            for index in frame.index..frame.index + (1 << order) {
                frame.arena.page(index).set_kind(PageKind::Unused);
            }
            zone.unaccount(frame, 1 << order, page.migratetype());
            zone.buddy.put(frame, order, true);
            purge::note_dirty(zone);
        }
    }
}

impl ZoneInner {
    fn take_easily(&mut self, order: u8, mt: Migratetype) -> Option<(Frame, bool)> {
        let typed = tag(mt);
        if order < PAGEBLOCK_ORDER
            && let Some(found) = self.buddy.take_typed(order, typed)
        {
            return Some(found);
        }
        let found = self.buddy.claim_whole(order, typed)?;
        self.counters.claims_whole += 1;
        Some(found)
    }

    fn take_hard(&mut self, node: usize, order: u8, mt: Migratetype) -> Option<(Frame, bool)> {
        // A chunk of an order above the pageblock's must be aligned: at worst the
        // frontier has to move by twice its size, less a block.
        let pages = (1usize << order).max(PAGEBLOCK_PAGES);
        if self.merge_recent()
            && let Some(found) = self.take_easily(order, mt)
        {
            return Some(found);
        }
        let need = if pages > PAGEBLOCK_PAGES {
            2 * pages - PAGEBLOCK_PAGES
        } else {
            pages
        };
        for need in [pages, need] {
            if !self.grow(node, need) {
                break;
            }
            if let Some(found) = self.take_easily(order, mt) {
                return Some(found);
            }
        }
        self.take_from_others(order, mt)
    }

    /// Adds fresh pages to the free lists.
    pub(crate) fn grow(&mut self, node: usize, pages: usize) -> bool {
        let Some(growth) = arena::grow(node, pages) else {
            return false;
        };
        self.add(growth);
        true
    }

    /// Adds fresh pages right behind `end`.
    pub(crate) fn grow_at(&mut self, end: Frame, pages: usize) -> bool {
        let Some(growth) = arena::grow_at(end, pages) else {
            return false;
        };
        self.add(growth);
        true
    }

    fn add(&mut self, Growth { start, pages }: Growth) {
        self.counters.growths += 1;
        self.buddy
            .put_range(start.arena, start.index, start.index + pages, false);
    }

    fn take_from_others(&mut self, order: u8, mt: Migratetype) -> Option<(Frame, bool)> {
        if order >= PAGEBLOCK_ORDER || !config::placement() {
            return None;
        }
        for other in mt.fallbacks() {
            // The largest chunk lies in the emptiest block, most likely.
            let Some(page) = self.buddy.largest(order.max(4), other) else {
                continue;
            };
            let frame = arena::frame_of(page);
            let block = frame.arena.block(frame.index);
            if block.free() + block.used(mt) >= PAGEBLOCK_PAGES / 2 {
                self.buddy.retag_block(frame, mt);
                self.counters.claims_partial += 1;
                return self.buddy.take_typed(order, mt);
            }
        }
        for other in mt.fallbacks() {
            if let Some(page) = self.buddy.largest(order, other) {
                self.counters.steals += 1;
                return Some(self.buddy.take_from(page, order));
            }
        }
        None
    }

    /// Counts pages into the census.
    pub(crate) fn account(&mut self, frame: Frame, pages: usize, mt: Migratetype) {
        for_blocks(frame, pages, |block_frame, n| {
            if block_frame.arena.block(block_frame.index).add(mt, n) {
                self.counters.mixing_events += n as u64;
            }
        });
        self.idle_low = self.idle_low.min(self.idle_pages());
    }

    /// Counts pages out of the census.
    pub(crate) fn unaccount(&mut self, frame: Frame, pages: usize, mt: Migratetype) {
        for_blocks(frame, pages, |block_frame, n| {
            block_frame.arena.block(block_frame.index).sub(mt, n);
        });
    }

    /// The run freed last among those of so many pages, as it was.
    pub(crate) fn take_recent(&mut self, pages: usize, mt: Migratetype) -> Option<PageRef> {
        let cell = &mut self.recent[recent_index(pages)];
        let page = (*cell)?;
        if run_pages(page) != pages || page.migratetype() != mt {
            return None;
        }
        *cell = None;
        self.recent_pages -= pages;
        self.idle_low = self.idle_low.min(self.idle_pages());
        Some(page)
    }

    /// Keeps a freed run unmerged, in place of an earlier one of like length.
    pub(crate) fn put_recent(&mut self, page: PageRef) {
        page.set_kind(PageKind::Cached);
        let pages = run_pages(page);
        self.recent_pages += pages;
        let cell = &mut self.recent[recent_index(pages)];
        if let Some(earlier) = cell.replace(page) {
            self.recent_pages -= run_pages(earlier);
            self.merge_run(earlier);
        }
    }

    /// Merges the runs kept unmerged into the free lists. True when there were any.
    pub(crate) fn merge_recent(&mut self) -> bool {
        let any = self.recent_pages > 0;
        self.recent_pages = 0;
        for page in core::mem::take(&mut self.recent).into_iter().flatten() {
            self.merge_run(page);
        }
        any
    }

    /// Pages in runs kept unmerged.
    pub(crate) fn recent_pages(&self) -> usize {
        self.recent_pages
    }

    /// Pages that hold memory and that nobody uses.
    pub(crate) fn idle_pages(&self) -> usize {
        self.buddy.dirty_pages() + self.recent_pages
    }

    fn merge_run(&mut self, page: PageRef) {
        let frame = arena::frame_of(page);
        let pages = run_pages(page);
        page.set_kind(PageKind::Unused);
        self.unaccount(frame, pages, page.migratetype());
        self.buddy
            .put_range(frame.arena, frame.index, frame.index + pages, true);
    }

    /// Takes a run of exactly `pages` pages: a chunk with its tail given back, or
    /// a stretch at the frontier, or any contiguous free stretch.
    pub(crate) fn take_run(
        &mut self,
        node: usize,
        pages: usize,
        mt: Migratetype,
    ) -> Option<(Frame, bool)> {
        self.take_run_easily(pages, mt)
            // Runs kept unmerged come before fresh memory.
            .or_else(|| {
                if self.merge_recent() {
                    self.take_run_easily(pages, mt)
                } else {
                    None
                }
            })
            .or_else(|| self.take_run_hard(node, pages, mt))
    }

    fn take_run_easily(&mut self, pages: usize, mt: Migratetype) -> Option<(Frame, bool)> {
        if let Some(order) = Order::for_pages(pages)
            && let Some((frame, dirty)) = self.take_easily(order.get(), mt)
        {
            return Some((frame, self.trim(frame, pages, order.pages(), dirty)));
        }
        self.take_joined(pages, mt)
    }

    fn take_run_hard(
        &mut self,
        node: usize,
        pages: usize,
        mt: Migratetype,
    ) -> Option<(Frame, bool)> {
        if let Some(Growth {
            start,
            pages: fresh,
        }) = arena::grow(node, pages)
        {
            self.counters.growths += 1;
            retag(start, pages, mt);
            self.buddy
                .put_range(start.arena, start.index + pages, start.index + fresh, false);
            return Some((start, false));
        }
        // Claim and steal choose their block; the search by address does not.
        if let Some(order) = Order::for_pages(pages)
            && let Some((frame, dirty)) = self.take_from_others(order.get(), mt)
        {
            return Some((frame, self.trim(frame, pages, order.pages(), dirty)));
        }
        let found = self.take_stretch(node, pages, mt);
        if found.is_none() {
            self.counters.failures += 1;
        }
        found
    }

    /// Takes a run of more than a block from free chunks that lie side by side: no
    /// single chunk holds a run above the maximum order, or what a run of 33 MiB
    /// left behind, and without this each such run would come from fresh memory.
    fn take_joined(&mut self, pages: usize, mt: Migratetype) -> Option<(Frame, bool)> {
        /// Chunks looked at: the largest come first.
        const LOOKS: usize = 64;
        if pages <= PAGEBLOCK_PAGES {
            return None;
        }
        // A stretch of 2m pages holds an aligned chunk of m.
        let least = (pages.ilog2() as u8 - 1).clamp(PAGEBLOCK_ORDER, MAX_ORDER);
        let (frame, lead) = self
            .buddy
            .whole_chunks(least)
            .take(LOOKS)
            .find_map(|page| {
                let frame = arena::frame_of(page);
                let (from, to) = free_around(frame, pages, tag(mt));
                // Start at a whole block where that is enough.
                let whole = from.next_multiple_of(PAGEBLOCK_PAGES);
                let start = if to - whole >= pages { whole } else { from };
                (to - start >= pages).then_some((frame, start))
            })?;
        let start = Frame {
            arena: frame.arena,
            index: lead,
        };
        Some((start, self.take_range(start, pages, mt)))
    }

    /// Gives the pages of a chunk behind the first `keep` back; returns whether
    /// what is kept may hold data.
    fn trim(&mut self, frame: Frame, keep: usize, have: usize, dirty: bool) -> bool {
        let (start, end) = (frame.index + keep, frame.index + have);
        if start < end {
            let arena = frame.arena;
            let whole = start.next_multiple_of(PAGEBLOCK_PAGES).min(end);
            // The block that the run ends in: its state is the chunk's, or its own
            // when the chunk was made of whole blocks.
            let partial_dirty = if have < PAGEBLOCK_PAGES {
                dirty
            } else {
                arena.block(start).flag(BLOCK_DIRTY)
            };
            self.buddy.put_range(arena, start, whole, partial_dirty);
            self.buddy.put_range(arena, whole, end, false);
        }
        dirty
    }

    /// Looks for `pages` contiguous free pages across chunks, by address.
    fn take_stretch(
        &mut self,
        node: usize,
        pages: usize,
        mt: Migratetype,
    ) -> Option<(Frame, bool)> {
        for arena in arena::arenas() {
            let (mut index, frontier) = arena.region_span(node);
            let mut from = index;
            while index < frontier {
                let page = arena.page(index);
                if page.kind() == PageKind::Free {
                    index += 1 << page.order();
                    if index - from >= pages {
                        let frame = Frame { arena, index: from };
                        return Some((frame, self.take_range(frame, pages, mt)));
                    }
                } else {
                    // Lengths change under this lock only, so what is in use can be
                    // stepped over; the rest (a chunk with the purger) by page.
                    index += match page.kind() {
                        PageKind::Run => run_pages(page).max(1),
                        PageKind::Pages | PageKind::Slab | PageKind::Cached => 1 << page.order(),
                        _ => 1,
                    };
                    from = index;
                }
            }
        }
        None
    }

    /// Takes `pages` pages that lie in consecutive free chunks, the first of which
    /// starts at `frame`. Returns whether any may hold data.
    pub(crate) fn take_range(&mut self, frame: Frame, pages: usize, mt: Migratetype) -> bool {
        let arena = frame.arena;
        let (mut index, end) = (frame.index, frame.index + pages);
        let mut dirty = false;
        while index < end {
            let (chunk, chunk_dirty) = self.buddy.take_chunk(arena.page(index));
            let next = chunk.index + (1 << arena.page(index).order());
            dirty |= chunk_dirty;
            if next - index >= PAGEBLOCK_PAGES {
                retag(chunk, next.min(end) - index, mt);
                if next > end {
                    self.trim(chunk, end - chunk.index, next - chunk.index, chunk_dirty);
                }
            } else if next > end {
                self.buddy.put_range(arena, end, next, chunk_dirty);
            }
            index = next;
        }
        dirty
    }

    /// Whether the pages [end, end + extra) are free; grows at the frontier when
    /// that is what is missing.
    pub(crate) fn free_behind(&mut self, end: Frame, extra: usize) -> bool {
        let arena = end.arena;
        for attempt in 0..2 {
            let (_, frontier) = arena.bounds(end.index - 1);
            let mut index = end.index;
            while index < frontier && index < end.index + extra {
                let page = arena.page(index);
                if page.kind() != PageKind::Free {
                    return false;
                }
                index += 1 << page.order();
            }
            if index >= end.index + extra {
                return true;
            }
            let missing = end.index + extra - index;
            if attempt == 1
                || !self.grow_at(
                    Frame {
                        arena,
                        index: frontier,
                    },
                    missing,
                )
            {
                return false;
            }
        }
        false
    }
}

/// The type that blocks get for pages of type `mt`: one for all without placement.
fn tag(mt: Migratetype) -> Migratetype {
    if config::placement() {
        mt
    } else {
        Migratetype::Unmovable
    }
}

/// Gives wholly free blocks the type of the run that is about to use them.
fn retag(frame: Frame, pages: usize, mt: Migratetype) {
    for index in (frame.index..frame.index + pages).step_by(PAGEBLOCK_PAGES) {
        frame.arena.block(index).set_migratetype(tag(mt));
    }
}

/// The free pages [from, to) around the free chunk at `frame`, in whole blocks and in
/// chunks of blocks of the type `tag`. Stops when there are `enough`.
fn free_around(frame: Frame, enough: usize, tag: Migratetype) -> (usize, usize) {
    let Frame { arena, index } = frame;
    let (start, end) = arena.bounds(index);
    let order_at = |at: usize| {
        let page = arena.page(at);
        let fits = page.kind() == PageKind::Free
            && (page.order() >= PAGEBLOCK_ORDER || arena.block(at).migratetype() == tag);
        fits.then(|| page.order())
    };
    let (mut from, mut to) = (index, index);
    while to < end
        && to - from < enough
        && let Some(order) = order_at(to)
    {
        to += 1 << order;
    }
    while to - from < enough {
        // The chunk that ends here starts at one of the alignments below.
        let orders = 0..=from.trailing_zeros().min(u32::from(MAX_ORDER)) as u8;
        let before = orders
            .map(|order| (order, 1usize << order))
            .filter(|(_, n)| from >= start + n)
            .find(|(order, n)| order_at(from - n) == Some(*order));
        let Some((_, pages)) = before else { break };
        from -= pages;
    }
    (from, to)
}

fn recent_index(pages: usize) -> usize {
    (pages ^ pages >> 3) % RECENT
}

/// Splits [frame, frame + pages) at block boundaries.
fn for_blocks(frame: Frame, pages: usize, mut f: impl FnMut(Frame, usize)) {
    let arena: &'static Arena = frame.arena;
    let (mut index, end) = (frame.index, frame.index + pages);
    while index < end {
        let stop = ((index | (PAGEBLOCK_PAGES - 1)) + 1).min(end);
        f(Frame { arena, index }, stop - index);
        index = stop;
    }
}
