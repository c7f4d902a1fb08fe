//! Runs: any number of whole pages, for large objects. Tails are trimmed to the
//! page, and a run grows into free neighbours.

#![deny(unsafe_code)]

use core::sync::atomic::Ordering::Relaxed;

use crate::PageError;
use crate::arena::{self, Frame};
use crate::block::BLOCK_DIRTY;
use crate::page::{Page, PageKind, PageRef};
use crate::pcp;
use crate::purge;
use crate::topology;
use crate::types::{Migratetype, PAGE_SHIFT, PAGE_SIZE, PAGEBLOCK_PAGES};
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
    let run = take(node, pages, align, mt).or_else(|| {
        // Pages in the threads' lists may be what is missing.
        pcp::drain_current();
        pcp::request_drain();
        take(node, pages, align, mt)
    })?;
    Some(run)
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
        // With `align` more pages than asked for, an aligned stretch lies inside;
        // what is before and behind it goes back.
        let more = align >> PAGE_SHIFT;
        let have = pages.checked_add(more - 1)?;
        if let Some((frame, dirty)) = zone.take_run(n, have, mt) {
            let Frame { arena, index } = frame;
            let skip = ((arena.address(index) as usize).wrapping_neg() % align) >> PAGE_SHIFT;
            let start = index + skip;
            give_back(&mut zone, arena, index, start, dirty);
            give_back(&mut zone, arena, start + pages, index + have, dirty);
            return Some(finish(
                &mut zone,
                Frame {
                    arena,
                    index: start,
                },
                pages,
                mt,
                !dirty,
            ));
        }
    }
    None
}

/// Puts [from, to) back, whole blocks with the state that their records hold.
fn give_back(
    zone: &mut ZoneInner,
    arena: &'static arena::Arena,
    from: usize,
    to: usize,
    dirty: bool,
) {
    let first = from.next_multiple_of(PAGEBLOCK_PAGES).min(to);
    let last = (to / PAGEBLOCK_PAGES * PAGEBLOCK_PAGES).max(first);
    zone.buddy.put_range(arena, from, first, dirty);
    zone.buddy.put_range(arena, first, last, false);
    zone.buddy.put_range(arena, last, to, dirty);
}

fn finish(zone: &mut ZoneInner, frame: Frame, pages: usize, mt: Migratetype, zeroed: bool) -> Run {
    zone.account(frame, pages, mt);
    let page = frame.arena.page(frame.index);
    page.set_kind(PageKind::Run);
    page.set_order(0);
    page.set_migratetype(mt);
    page.set_dirty(false);
    page.word.store(pages as u64, Relaxed);
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
        purge::note_dirty(&mut zone);
    }
    purge::tick();
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
        .put_range(frame.arena, tail.index, frame.index + have, true);
    purge::note_dirty(&mut zone);
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
    let mut free = zone.free_behind(end, pages - have);
    if !free && zone.merge_recent() {
        free = zone.free_behind(end, pages - have);
    }
    if !free {
        return false;
    }
    let mt = page.migratetype();
    zone.take_range(end, pages - have, mt);
    zone.account(end, pages - have, mt);
    page.word.store(pages as u64, Relaxed);
    true
}

/// The byte ranges of a run just taken that may hold data, from its start: what
/// calloc has to clear. Whole blocks that are known to be zero are left out.
pub fn stale_ranges(page: PageRef) -> impl Iterator<Item = (usize, usize)> {
    let frame = arena::frame_of(page);
    let end = frame.index + run_pages(page);
    let mut index = frame.index;
    core::iter::from_fn(move || {
        while index < end {
            let from = index;
            index = ((index | (PAGEBLOCK_PAGES - 1)) + 1).min(end);
            let whole = from.is_multiple_of(PAGEBLOCK_PAGES)
                && frame.index + run_pages(page) - from >= PAGEBLOCK_PAGES;
            // A run that was never merged holds what its last user left.
            if !whole || page.is_dirty() || frame.arena.block(from).flag(BLOCK_DIRTY) {
                return Some((
                    (from - frame.index) << PAGE_SHIFT,
                    (index - frame.index) << PAGE_SHIFT,
                ));
            }
        }
        None
    })
}
