//! Runs: any number of whole pages, for large objects. Tails are trimmed to the
//! page, and a run grows into free neighbours.

#![deny(unsafe_code)]

use core::sync::atomic::Ordering::Relaxed;

use crate::PageError;
use crate::arena::{self, Frame};
use crate::bits::Bits;
use crate::page::{Page, PageKind, PageRef};
use crate::pcp;
use crate::purge;
use crate::reclaim;
use crate::topology;
use crate::types::{Migratetype, PAGE_SHIFT, PAGE_SIZE, PAGEBLOCK_PAGES};
use crate::zone::runs::set_head;
use crate::zone::{self, ZoneInner};

/// More pages than any address space has: sums below do not overflow.
const MOST_PAGES: usize = usize::MAX >> (PAGE_SHIFT + 2);

/// A run just taken.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    /// The first page's record.
    pub page: PageRef,
    /// Whether all of it is known to read as zero.
    pub zeroed: bool,
}

/// Takes a run of `pages` pages whose address is a multiple of `align` bytes (a
/// power of two). `None` when memory is out or the size absurd.
pub fn alloc_run(pages: usize, align: usize, mt: Migratetype) -> Option<Run> {
    if pages == 0 || pages > MOST_PAGES {
        return None;
    }
    purge::tick();
    let node = topology::current_node();
    take(node, pages, align, mt)
        .or_else(|| {
            // Pages in the threads' lists may be what is missing.
            pcp::drain_all();
            take(node, pages, align, mt)
        })
        .or_else(|| {
            let more = (align >> PAGE_SHIFT).max(1) - 1;
            let page = reclaim::take_range(node, pages.checked_add(more)?, mt)?;
            Some(cut(page, pages, align))
        })
        .or_else(|| take_anywhere(node, pages, align, mt))
}

/// Takes a run of `pages` pages that can grow to `room` of them where it is. `None` when
/// that would take fresh memory.
pub fn alloc_run_with_room(pages: usize, room: usize, mt: Migratetype) -> Option<Run> {
    if pages == 0 || room < pages || room > MOST_PAGES {
        return None;
    }
    let node = topology::current_node();
    let mut zone = zone::zones()[node].lock();
    let has_room =
        zone.has_room(node, room, mt) || (zone.merge_recent() && zone.has_room(node, room, mt));
    if !has_room {
        return None;
    }
    let (frame, dirty) = zone.take_run(node, room, mt)?;
    let (end, whole) = (frame.index + pages, frame.index + room);
    zone.buddy.put(frame.arena, end, whole, None);
    Some(finish(&mut zone, frame, pages, mt, !dirty))
}

/// Cuts an aligned run out of a longer one.
fn cut(page: PageRef, pages: usize, align: usize) -> Run {
    let frame = arena::frame_of(page);
    let mut zone = zone::zone_of(frame).lock();
    let mt = page.migratetype();
    page.set_kind(PageKind::Free);
    zone.unaccount(frame, run_pages(page), mt);
    align_within(&mut zone, frame, pages, align, mt, true)
}

/// Takes from free pages of any type: the last resort.
fn take_anywhere(node: usize, pages: usize, align: usize, mt: Migratetype) -> Option<Run> {
    let more = (align >> PAGE_SHIFT).max(1) - 1;
    let nodes = topology::nodes();
    for n in (0..nodes).map(|i| (node + i) % nodes) {
        let mut zone = zone::zones()[n].lock();
        // Claim and steal choose their block; the search by address does not.
        let found = zone
            .take_run_from_others(pages + more, mt)
            .or_else(|| zone.take_stretch(n, pages + more, mt));
        if let Some((frame, dirty)) = found {
            return Some(align_within(&mut zone, frame, pages, align, mt, dirty));
        }
    }
    None
}

fn take(node: usize, pages: usize, align: usize, mt: Migratetype) -> Option<Run> {
    let nodes = topology::nodes();
    for n in (0..nodes).map(|i| (node + i) % nodes) {
        let mut zone = zone::zones()[n].lock();
        if align <= PAGE_SIZE {
            if let Some(page) = zone.take_recent(pages, mt) {
                page.set_kind(PageKind::Run);
                page.set_dirty(true);
                return Some(Run {
                    page,
                    zeroed: false,
                });
            }
            if let Some((frame, dirty)) = zone.take_run(n, pages, mt) {
                return Some(finish(&mut zone, frame, pages, mt, !dirty));
            }
            continue;
        }
        // With `align` more pages than asked for, an aligned stretch lies inside.
        let more = align >> PAGE_SHIFT;
        let have = pages.checked_add(more - 1)?;
        if let Some((frame, dirty)) = zone.take_run(n, have, mt) {
            return Some(align_within(&mut zone, frame, pages, align, mt, dirty));
        }
    }
    None
}

/// Cuts the aligned run out of one that is longer by `align` less a page; what is
/// before and behind it goes back.
fn align_within(
    zone: &mut ZoneInner,
    frame: Frame,
    pages: usize,
    align: usize,
    mt: Migratetype,
    dirty: bool,
) -> Run {
    let Frame { arena, index } = frame;
    let align = align.max(PAGE_SIZE);
    let end = index + pages + (align >> PAGE_SHIFT) - 1;
    let start = index + (((arena.address(index) as usize).wrapping_neg() % align) >> PAGE_SHIFT);
    zone.buddy.put(arena, index, start, None);
    zone.buddy.put(arena, start + pages, end, None);
    finish(
        zone,
        Frame {
            arena,
            index: start,
        },
        pages,
        mt,
        !dirty,
    )
}

pub(crate) fn finish(
    zone: &mut ZoneInner,
    frame: Frame,
    pages: usize,
    mt: Migratetype,
    zeroed: bool,
) -> Run {
    zone.account(frame, pages, mt);
    let page = frame.arena.page(frame.index);
    set_head(page, pages, mt, PageKind::Run);
    Run { page, zeroed }
}

/// Number of pages of a run.
#[inline]
pub fn run_pages(page: &Page) -> usize {
    page.word.load(Relaxed) as usize
}

/// Gives a run back.
///
/// # Errors
/// [`PageError::NotAllocated`] when `page` is not the first page of a run in use.
pub fn free_run(page: PageRef) -> Result<(), PageError> {
    let frame = arena::frame_of(page);
    {
        let mut zone = zone::zone_of(frame).lock();
        if page.kind() != PageKind::Run {
            return Err(PageError::NotAllocated);
        }
        zone.put_recent(page);
        purge::note_idle(&mut zone);
    }
    purge::tick();
    Ok(())
}

/// Gives back a run whose pages have no memory any more (it was moved away), and read as
/// zero.
///
/// # Errors
/// As [`free_run`].
pub fn free_empty_run(page: PageRef) -> Result<(), PageError> {
    let frame = arena::frame_of(page);
    let mut zone = zone::zone_of(frame).lock();
    if page.kind() != PageKind::Run {
        return Err(PageError::NotAllocated);
    }
    let pages = run_pages(page);
    page.set_kind(PageKind::Free);
    zone.unaccount(frame, pages, page.migratetype());
    zone.buddy
        .put(frame.arena, frame.index, frame.index + pages, Some(false));
    Ok(())
}

/// Cuts a run down to its first `pages` pages. Nothing happens to what is no run in
/// use.
pub fn shrink_run(page: PageRef, pages: usize) {
    let frame = arena::frame_of(page);
    let mut zone = zone::zone_of(frame).lock();
    let have = run_pages(page);
    if page.kind() != PageKind::Run || pages == 0 || pages >= have {
        return;
    }
    let tail = Frame {
        arena: frame.arena,
        index: frame.index + pages,
    };
    page.word.store(pages as u64, Relaxed);
    zone.unaccount(tail, have - pages, page.migratetype());
    zone.buddy
        .put(frame.arena, tail.index, frame.index + have, Some(true));
    purge::note_idle(&mut zone);
}

/// Lets a run grow to `pages` pages where it is, into free neighbours or past the
/// frontier. False, and nothing changed, when something else lies there.
pub fn extend_run(page: PageRef, pages: usize) -> bool {
    let frame = arena::frame_of(page);
    let mut zone = zone::zone_of(frame).lock();
    let have = run_pages(page);
    if page.kind() != PageKind::Run || pages > MOST_PAGES {
        return false;
    }
    if pages <= have {
        return true;
    }
    let end = Frame {
        arena: frame.arena,
        index: frame.index + have,
    };
    let mt = page.migratetype();
    let extra = pages - have;
    let mut free = zone.free_behind(end, extra, false);
    if !free {
        zone.merge_recent();
        // A run had better move to where memory lies idle than take fresh memory: vectors
        // that grow, one after the other, would climb. Where it can double there, it moves
        // so few times that this costs no more than a copy of each byte.
        let node = frame.arena.node_of(frame.index);
        let idle = zone.has_room(node, pages.max(2 * have), mt);
        free = zone.free_behind(end, extra, !idle);
    }
    if !free {
        return false;
    }
    zone.take_range(end, extra, mt, have);
    zone.account(end, extra, mt);
    page.word.store(pages as u64, Relaxed);
    true
}

/// The byte ranges of a run just taken that may hold data, from its start: what
/// calloc has to clear.
pub fn stale_ranges(page: PageRef) -> impl Iterator<Item = (usize, usize)> {
    let frame = arena::frame_of(page);
    let pages = run_pages(page);
    // A run that was never merged holds what its last user left.
    let unmerged = page.is_dirty();
    let mut block = frame.index & !(PAGEBLOCK_PAGES - 1);
    let end = frame.index + pages;
    core::iter::from_fn(move || {
        if unmerged || block >= end {
            return None;
        }
        let start = block;
        block += PAGEBLOCK_PAGES;
        let (from, to) = (start.max(frame.index), block.min(end));
        let stale = frame
            .arena
            .block(start)
            .dirty_map()
            .and(Bits::range(from - start, to - start));
        Some(stale.runs().map(move |(a, b)| {
            let offset = |page: usize| (start + page - frame.index) << PAGE_SHIFT;
            (offset(a), offset(b))
        }))
    })
    .flatten()
    .chain(unmerged.then_some((0, pages << PAGE_SHIFT)))
}
