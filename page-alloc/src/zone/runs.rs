//! Runs of any number of pages in a zone: searching, and the few that were freed
//! last.

use core::sync::atomic::Ordering::Relaxed;

use super::{RECENT, ZoneInner, stretches, tag};
use crate::arena::{self, Arena, Frame, Growth};
use crate::page::{PageKind, PageRef};
use crate::run::run_pages;
use crate::types::{Migratetype, Order, PAGEBLOCK_PAGES};

/// A freed run that was not merged with its neighbours yet. Its pages count as used.
#[derive(Clone, Copy)]
pub(super) struct Recent {
    page: PageRef,
    at: Frame,
    pages: usize,
}

impl core::fmt::Debug for Recent {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{} pages at {:p}", self.pages, self.page.address())
    }
}

impl Recent {
    fn new(page: PageRef) -> Self {
        Self {
            page,
            at: arena::frame_of(page),
            pages: run_pages(page),
        }
    }

    /// Whether the first part of a run of `have` pages serves for one of `pages`. One that is no
    /// longer than a block comes out of none that is: whole blocks stay whole.
    fn serves(have: usize, pages: usize) -> bool {
        have == pages || (have > pages && (pages > PAGEBLOCK_PAGES || have <= PAGEBLOCK_PAGES))
    }

    /// Whether two that meet are better one: not when runs that serve for short ones would
    /// become one that does not.
    fn may_join(one: usize, other: usize) -> bool {
        one.max(other) > PAGEBLOCK_PAGES || one + other <= PAGEBLOCK_PAGES
    }

    /// The two as one run, if they are neighbours of one type.
    fn joined(self, other: Self) -> Option<Self> {
        let (low, high) = if self.at.index < other.at.index {
            (self, other)
        } else {
            (other, self)
        };
        let meet = low.at.index + low.pages == high.at.index
            && core::ptr::eq(low.at.arena, high.at.arena)
            // A zone has a region of an arena: no run reaches into another's.
            && low.at.arena.node_of(low.at.index) == high.at.arena.node_of(high.at.index);
        if !meet
            || !Self::may_join(low.pages, high.pages)
            || low.page.migratetype() != high.page.migratetype()
        {
            return None;
        }
        high.page.set_kind(PageKind::Free);
        let pages = low.pages + high.pages;
        low.page.word.store(pages as u64, Relaxed);
        Some(Self { pages, ..low })
    }

    /// Cuts it down to `pages` pages, fewer than it has; returns what is behind them.
    fn cut(&mut self, pages: usize) -> Self {
        let at = Frame {
            index: self.at.index + pages,
            ..self.at
        };
        let rest = Self {
            page: at.arena.page(at.index),
            at,
            pages: self.pages - pages,
        };
        let mt = self.page.migratetype();
        set_head(rest.page, rest.pages, mt, PageKind::Cached);
        self.page.word.store(pages as u64, Relaxed);
        self.pages = pages;
        rest
    }
}

/// Makes a page's record the head of a run.
pub(crate) fn set_head(page: PageRef, pages: usize, mt: Migratetype, kind: PageKind) {
    page.set_kind(kind);
    page.set_order(0);
    page.set_migratetype(mt);
    page.set_dirty(false);
    page.word.store(pages as u64, Relaxed);
}

impl ZoneInner {
    /// A run of so many pages among those freed last: one of that length, as it was; or the first
    /// part of the shortest that serves, whose rest stays unmerged. (To merge a run and to take
    /// one again costs time for each block.)
    pub(crate) fn take_recent(&mut self, pages: usize, mt: Migratetype) -> Option<PageRef> {
        let serves =
            |run: &Recent| Recent::serves(run.pages, pages) && run.page.migratetype() == mt;
        let cell = self
            .recent
            .iter_mut()
            .filter(|cell| cell.as_ref().is_some_and(serves))
            .min_by_key(|cell| cell.as_ref().map(|run| run.pages))?;
        let mut run = cell.take()?;
        if run.pages > pages {
            *cell = Some(run.cut(pages));
        }
        self.recent_pages -= pages;
        self.idle_low = self.idle_low.min(self.idle_pages());
        Some(run.page)
    }

    /// Keeps a freed run unmerged but for neighbours that were freed last as well, in place of an
    /// earlier one of like length if need be.
    pub(crate) fn put_recent(&mut self, page: PageRef) {
        page.set_kind(PageKind::Cached);
        let mut run = Recent::new(page);
        self.recent_pages += run.pages;
        for cell in &mut self.recent {
            if let Some(both) = cell.and_then(|other| run.joined(other)) {
                run = both;
                *cell = None;
            }
        }
        let pages_of = |cell: &Option<Recent>| cell.map_or(0, |run| run.pages);
        // An empty cell; else the one for runs of like length, unless it holds a long run:
        // merging that takes time for each block.
        let index = match self.recent.iter().position(Option::is_none) {
            Some(empty) => empty,
            None => match recent_index(run.pages) {
                long if pages_of(&self.recent[long]) > PAGEBLOCK_PAGES => (0..RECENT)
                    .min_by_key(|cell| pages_of(&self.recent[*cell]))
                    .unwrap_or(long),
                like => like,
            },
        };
        if let Some(earlier) = self.recent[index].replace(run) {
            self.recent_pages -= earlier.pages;
            self.merge_run(earlier.page);
        }
    }

    /// Makes the runs kept unmerged free. True when there were any.
    pub(crate) fn merge_recent(&mut self) -> bool {
        let any = self.recent_pages > 0;
        self.recent_pages = 0;
        for run in core::mem::take(&mut self.recent).into_iter().flatten() {
            self.merge_run(run.page);
        }
        any
    }

    /// Pages in runs kept unmerged.
    pub(crate) fn recent_pages(&self) -> usize {
        self.recent_pages
    }

    fn merge_run(&mut self, page: PageRef) {
        let frame = arena::frame_of(page);
        let pages = run_pages(page);
        page.set_kind(PageKind::Free);
        self.unaccount(frame, pages, page.migratetype());
        self.buddy
            .put(frame.arena, frame.index, frame.index + pages, Some(true));
    }

    /// Takes a run of exactly `pages` pages: in a block of its type, in whole blocks
    /// and the free ends of blocks of its type around them, or from fresh pages.
    pub(crate) fn take_run(
        &mut self,
        node: usize,
        pages: usize,
        mt: Migratetype,
    ) -> Option<(Frame, bool)> {
        self.take_run_easily(node, pages, mt)
            // Runs kept unmerged come before fresh memory.
            .or_else(|| {
                if self.merge_recent() {
                    self.take_run_easily(node, pages, mt)
                } else {
                    None
                }
            })
            .or_else(|| {
                let growth = arena::grow(node, pages);
                self.full = growth.is_none();
                let Growth {
                    start,
                    pages: fresh,
                } = growth?;
                self.add(Growth {
                    start,
                    pages: fresh,
                });
                // What is free before the frontier may be a part of it.
                self.take_run_easily(node, pages, mt)
            })
    }

    fn take_run_easily(
        &mut self,
        node: usize,
        pages: usize,
        mt: Migratetype,
    ) -> Option<(Frame, bool)> {
        if pages <= PAGEBLOCK_PAGES {
            if let Some(found) = self.buddy.take_piece(pages, tag(mt)) {
                return Some(found);
            }
            if self.is_reserve() {
                return None;
            }
            return self.claim_whole(pages, mt);
        }
        let frame = self.find_stretch(node, pages, mt)?;
        Some((frame, self.take_range(frame, pages, mt, 0)))
    }

    /// Whether a run of so many pages can be had without fresh memory.
    pub(crate) fn has_room(&self, node: usize, pages: usize, mt: Migratetype) -> bool {
        if pages <= PAGEBLOCK_PAGES {
            self.buddy.whole_blocks() > 0
        } else {
            self.find_stretch(node, pages, mt).is_some()
        }
    }

    /// The first place for a run longer than a block: whole blocks, and the free ends of
    /// blocks of its type around them.
    fn find_stretch(&self, node: usize, pages: usize, mt: Migratetype) -> Option<Frame> {
        let fits = |arena: &'static Arena, from: usize, to: usize| {
            let of_type = |index: usize| arena.block(index).migratetype() == tag(mt);
            let (start, end) = arena.bounds(from);
            let (mut low, mut high) = (from, to);
            if to - from < pages && from > start && of_type(from - 1) {
                low -= free_at_end(arena, from - 1);
            }
            if high - low < pages && to < end && of_type(to) {
                high += free_at_start(arena, to);
            }
            // At a whole block where that is enough.
            let first = if high - from >= pages { from } else { low };
            (high - first >= pages).then_some(Frame {
                arena,
                index: first,
            })
        };
        stretches(node).find_map(|(arena, from, to)| fits(arena, from, to))
    }

    /// Takes a run of at most half a block out of the reserve, or of another type's
    /// block, which is claimed or stolen from.
    pub(crate) fn take_run_from_others(
        &mut self,
        pages: usize,
        mt: Migratetype,
    ) -> Option<(Frame, bool)> {
        let order = Order::for_pages(pages)?;
        if order < Order::PAGEBLOCK
            && let Some(found) = self.claim_whole(pages, mt)
        {
            return Some(found);
        }
        let (frame, dirty) = self.take_from_others(order.get(), mt)?;
        let end = frame.index + order.pages();
        self.buddy.put(frame.arena, frame.index + pages, end, None);
        Some((frame, dirty))
    }

    /// Takes a run from whatever is free, of whatever type, by address: the last
    /// resort, which mixes.
    pub(crate) fn take_stretch(
        &mut self,
        node: usize,
        pages: usize,
        mt: Migratetype,
    ) -> Option<(Frame, bool)> {
        for arena in arena::arenas() {
            let (start, end) = arena.region_span(node);
            let mut from = None;
            for index in (start..end).step_by(PAGEBLOCK_PAGES) {
                let block = arena.block(index);
                if block.is_isolated() {
                    from = None;
                    continue;
                }
                let map = block.free_map();
                let (lead, trail) = map.ends();
                let begun = from.unwrap_or(index);
                let found = if index + lead - begun >= pages {
                    Some(begun)
                } else {
                    map.find_run(pages).map(|at| index + at)
                };
                if let Some(index) = found {
                    let frame = Frame { arena, index };
                    return Some((frame, self.take_range(frame, pages, mt, 0)));
                }
                if !map.is_full() {
                    from = Some(index + PAGEBLOCK_PAGES - trail);
                } else {
                    from = Some(begun);
                }
            }
        }
        self.counters.failures += 1;
        None
    }

    /// Whether the pages [end, end + extra) are free; with `grow` the frontier moves up when
    /// that is what is missing.
    pub(crate) fn free_behind(&mut self, end: Frame, extra: usize, grow: bool) -> bool {
        let arena = end.arena;
        let (_, frontier) = arena.bounds(end.index - 1);
        let there = frontier.saturating_sub(end.index).min(extra);
        if there > 0 && !self.all_free(end, there) {
            return false;
        }
        there == extra
            || (grow
                && self.grow_at(
                    Frame {
                        arena,
                        index: frontier,
                    },
                    extra - there,
                )
                && self.all_free(end, extra))
    }
}

fn free_at_end(arena: &Arena, index: usize) -> usize {
    let block = arena.block(index);
    if block.is_isolated() {
        return 0;
    }
    block.free_map().ends().1
}

fn free_at_start(arena: &Arena, index: usize) -> usize {
    let block = arena.block(index);
    if block.is_isolated() {
        return 0;
    }
    block.free_map().ends().0
}

fn recent_index(pages: usize) -> usize {
    (pages ^ pages >> 3) % RECENT
}
