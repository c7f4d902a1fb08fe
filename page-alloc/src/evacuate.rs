//! Emptying a chosen block: isolate, ask its pages' owners, move what can be moved,
//! drain the slots' lists, look again.
//!
//! ```text
//!   isolate   the block's free pages, and what becomes free, are out of reach
//!   reclaim   owners give back their reclaimable pages in it (the linear scan)
//!   move      movable chunks go to free chunks of other movable blocks,
//!             24 pages a batch: one call of the owner, one pause
//!   verify    all 512 pages free, or the block is given back as it is
//! ```
//! Contents are copied, or remapped for runs of chunks that lie together
//! (`remap.rs`).

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::arena::{self, Frame};
use crate::os;
use crate::owner::{self, BlockRange, OwnerId};
use crate::page::{PageKind, PageRef};
use crate::pcp;
use crate::remap;
use crate::stats::Histogram;
use crate::types::{Migratetype, PAGE_SHIFT, PAGEBLOCK_PAGES};
use crate::zone;
use crate::{PageError, run_pages};

/// Pages that move in one call of their owner, which is stopped for about 7 µs then:
/// with 16 emptying a block takes an eighth longer, with 32 the pause is over 10 µs.
const BATCH: usize = 24;
/// Pages from which a run of chunks is copied in one piece. (Where it can be remapped, a
/// single page pays: 0.8 µs against 0.3 and the 1.7 of a fault in the target.)
const RUN: usize = 16;
/// Rounds of reclaim and moves in one attempt.
const ROUNDS: usize = 3;

/// Blocks emptied.
static EMPTIED: AtomicU64 = AtomicU64::new(0);
/// Attempts that were given up.
static GIVEN_UP: AtomicU64 = AtomicU64::new(0);
static RECLAIMED: AtomicU64 = AtomicU64::new(0);
static COPIED: AtomicU64 = AtomicU64::new(0);
static REMAPPED: AtomicU64 = AtomicU64::new(0);
static REFUSED: AtomicU64 = AtomicU64::new(0);
static LIES: AtomicU64 = AtomicU64::new(0);
/// How long owners were stopped, a call.
static PAUSES: Histogram = Histogram::new();

/// Event counters of emptying blocks, monotonic, all nodes.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct EvacuateCounters {
    /// Blocks emptied.
    pub emptied: u64,
    /// Blocks that were isolated and could not be emptied.
    pub given_up: u64,
    /// Pages that owners gave back for a block.
    pub reclaimed_pages: u64,
    /// Pages moved by copy.
    pub copied_pages: u64,
    /// Pages moved by remapping.
    pub remapped_pages: u64,
    /// Moves that owners refused.
    pub refused_moves: u64,
    /// Moves after which the old or the new chunk was not the owner's.
    pub bad_relocates: u64,
}

/// The counters as they are now.
pub fn counters() -> EvacuateCounters {
    EvacuateCounters {
        emptied: EMPTIED.load(Relaxed),
        given_up: GIVEN_UP.load(Relaxed),
        reclaimed_pages: RECLAIMED.load(Relaxed),
        copied_pages: COPIED.load(Relaxed),
        remapped_pages: REMAPPED.load(Relaxed),
        refused_moves: REFUSED.load(Relaxed),
        bad_relocates: LIES.load(Relaxed),
    }
}

/// How long owners were stopped for a batch of moves, in nanoseconds.
pub fn pauses() -> &'static Histogram {
    &PAUSES
}

pub(crate) fn note_reclaimed(pages: usize) {
    RECLAIMED.fetch_add(pages as u64, Relaxed);
}

/// Whether nobody's pages pin the block, by the census.
pub(crate) fn can_be_emptied(frame: Frame) -> bool {
    let block = frame.arena.block(frame.index);
    [
        Migratetype::Unmovable,
        Migratetype::Large,
        Migratetype::HighAtomic,
    ]
    .iter()
    .all(|mt| block.used(*mt) == 0)
        && !block.is_isolated()
}

/// Empties a block; it is a wholly free one then. `claim`: chunks that are moved may
/// go to wholly free blocks.
pub(crate) fn empty(frame: Frame, claim: bool) -> Result<(), PageError> {
    if !zone::zone_of(frame).lock().isolate(frame) {
        return Err(PageError::Pinned);
    }
    let result = empty_isolated(frame, claim);
    zone::zone_of(frame).lock().include(frame);
    result
}

/// [`empty`] for a block that the caller has isolated, and includes again.
pub(crate) fn empty_isolated(frame: Frame, claim: bool) -> Result<(), PageError> {
    let block = frame.arena.block(frame.index);
    let is_empty = || block.free() == PAGEBLOCK_PAGES;
    let mut result = Ok(());
    for _ in 0..ROUNDS {
        if is_empty() {
            break;
        }
        let before = block.free();
        if block.used(Migratetype::Reclaimable) > 0 {
            reclaim_block(frame);
        }
        if block.used(Migratetype::Movable) > 0 {
            result = move_out(frame, claim);
        }
        if !is_empty() {
            // What was freed went to this thread's lists; more may be in others'.
            pcp::drain_current();
        }
        if !is_empty() {
            pcp::drain_all();
        }
        if result.is_err() || block.free() == before {
            break;
        }
    }
    let done = is_empty();
    block.note_emptied(done);
    if done { &EMPTIED } else { &GIVEN_UP }.fetch_add(1, Relaxed);
    if done {
        Ok(())
    } else {
        Err(result.err().unwrap_or(PageError::Pinned))
    }
}

/// Asks every owner that has reclaimable pages in the block.
fn reclaim_block(frame: Frame) {
    let block = BlockRange(frame);
    let mut asked = 0;
    for page in block.heads() {
        if let Some(id) = OwnerId::of(page)
            && page.migratetype() == Migratetype::Reclaimable
            && asked & id.bit() == 0
        {
            asked |= id.bit();
            if let Some(owner) = id.get() {
                note_reclaimed(owner.shrink_block(block));
            }
        }
    }
}

/// Moves the movable chunks of a block elsewhere, a batch at a time.
fn move_out(frame: Frame, claim: bool) -> Result<(), PageError> {
    let Frame { arena, index } = frame;
    let mut at = 0;
    let least = if remap::is_there() { 1 } else { RUN };
    // Until the owner refuses one: it may know single chunks only.
    let mut runs = true;
    while at < PAGEBLOCK_PAGES {
        let page = arena.page(index + at);
        let Some(id) = movable_owner(page) else {
            at += 1;
            continue;
        };
        let from = Frame {
            arena,
            index: index + at,
        };
        let run = run_of(from, id, (PAGEBLOCK_PAGES - at).min(BATCH));
        let moved = if runs && run >= least {
            move_run(from, id, run, least)?
        } else {
            0
        };
        runs &= moved > 0 || run < least;
        at += if moved > 0 {
            moved
        } else {
            move_one(page, id, claim)?;
            1 << page.order()
        };
    }
    Ok(())
}

fn movable_owner(page: PageRef) -> Option<OwnerId> {
    let id = OwnerId::of(page)?;
    (page.migratetype() == Migratetype::Movable && id.is_trusted()).then_some(id)
}

/// Pages of movable chunks of one owner that lie in one piece from `from` on, each
/// aligned to its order relative to the first.
fn run_of(from: Frame, id: OwnerId, most: usize) -> usize {
    let mut pages = 0;
    while pages < most {
        let page = from.arena.page(from.index + pages);
        let chunk = 1 << page.order();
        if movable_owner(page) != Some(id) || !pages.is_multiple_of(chunk) || pages + chunk > most {
            break;
        }
        pages += chunk;
    }
    pages
}

fn move_one(old: PageRef, id: OwnerId, claim: bool) -> Result<(), PageError> {
    let frame = arena::frame_of(old);
    let order = old.order();
    let zone = zone::zone_of(frame);
    let Some(new) = zone.lock().take_target(order, Migratetype::Movable, claim) else {
        return Err(PageError::Pinned);
    };
    id.mark(new);
    let start = os::now_ns();
    let moved = id.get().is_some_and(|owner| owner.relocate(old, new));
    PAUSES.note(os::now_ns() - start);
    if !moved {
        REFUSED.fetch_add(1, Relaxed);
        // A liar may have freed it.
        if id.owns(new) {
            zone.lock().put_page(new);
        }
        return Ok(());
    }
    COPIED.fetch_add(1 << order, Relaxed);
    verify(id, [old, new].into_iter())?;
    zone.lock().put_page(old);
    Ok(())
}

/// Moves a run of chunks in one piece, or a part of it; returns the pages moved, 0
/// when that cannot be done.
fn move_run(from: Frame, id: OwnerId, run: usize, least: usize) -> Result<usize, PageError> {
    let zone = zone::zone_of(from);
    let mut pages = run;
    let (to, dirty) = loop {
        if let Some(to) = zone.lock().take_targets(pages, Migratetype::Movable) {
            break to;
        }
        // The next smaller power of two, cut at a chunk's end.
        pages = run_of(from, id, pages.next_power_of_two() / 2);
        if pages < least {
            return Ok(0);
        }
    };
    let old = from.arena.page(from.index);
    let new = to.arena.page(to.index);
    let heads = |base: Frame| {
        let mut at = 0;
        core::iter::from_fn(move || {
            (at < pages).then(|| {
                let head = base.arena.page(base.index + at);
                at += 1 << from.arena.page(from.index + at).order();
                head
            })
        })
    };
    for (source, target) in heads(from).zip(heads(to)) {
        zone::mark_allocated(
            arena::frame_of(target),
            source.order(),
            Migratetype::Movable,
        );
        target.set_dirty(true);
        id.mark(target);
    }
    let bytes = pages << PAGE_SHIFT;
    let (source, target) = (old.address(), new.address());
    let ready = remap::prepare(to, bytes, dirty);
    let mut how = None;
    let start = os::now_ns();
    let moved = id.get().is_some_and(|owner| {
        owner.relocate_run(old, new, pages, &mut || {
            how = Some(remap::transfer(ready, source, target, bytes));
        })
    });
    if how.is_some() {
        PAUSES.note(os::now_ns() - start);
    }
    let Some(how) = how.filter(|_| moved) else {
        for page in heads(to).filter(|page| id.owns(page)) {
            zone.lock().put_page(page);
        }
        return Ok(0);
    };
    match how {
        remap::How::Copied => &COPIED,
        remap::How::Remapped => &REMAPPED,
    }
    .fetch_add(pages as u64, Relaxed);
    verify(id, heads(from).chain(heads(to)))?;
    let mut zone = zone.lock();
    for page in heads(from) {
        page.set_kind(PageKind::Free);
    }
    zone.unaccount(from, pages, Migratetype::Movable);
    // What was remapped has left no memory behind.
    let dirty = matches!(how, remap::How::Copied);
    zone.buddy
        .put(from.arena, from.index, from.index + pages, Some(dirty));
    Ok(pages)
}

/// Whether chunks are the owner's still, after it said that it moved them.
fn verify(id: OwnerId, mut chunks: impl Iterator<Item = PageRef>) -> Result<(), PageError> {
    if chunks.all(|page| id.owns(page)) {
        return Ok(());
    }
    LIES.fetch_add(1, Relaxed);
    id.distrust();
    Err(PageError::BadRelocate)
}

/// Takes the blocks [at, at + blocks) wholly, whatever movable or reclaimable pages
/// are in them: isolate, move or reclaim, verify, take. The result is a run: give it
/// back with [`crate::free_run`].
///
/// # Errors
/// [`PageError::Foreign`] when the range is not whole blocks of one arena's node;
/// [`PageError::Pinned`] when somebody's pages cannot be moved;
/// [`PageError::BadRelocate`]. The range is as free as it was then, or more so.
pub fn claim_blocks(at: *const u8, blocks: usize, mt: Migratetype) -> Result<PageRef, PageError> {
    let page = crate::page_of(at).ok_or(PageError::Foreign)?;
    let frame = arena::frame_of(page);
    let (_, end) = frame.arena.bounds(frame.index);
    let aligned = core::ptr::eq(at, page.address()) && frame.index.is_multiple_of(PAGEBLOCK_PAGES);
    if !aligned || blocks == 0 || blocks > (end - frame.index) / PAGEBLOCK_PAGES {
        return Err(PageError::Foreign);
    }
    crate::reclaim::alone(|| take_blocks(frame, blocks, blocks * PAGEBLOCK_PAGES, mt))
        .unwrap_or(Err(PageError::Pinned))
}

/// Empties a range of blocks and takes its first `pages` pages as a run.
pub(crate) fn take_blocks(
    first: Frame,
    blocks: usize,
    pages: usize,
    mt: Migratetype,
) -> Result<PageRef, PageError> {
    let each = || {
        (0..blocks).map(|i| Frame {
            index: first.index + i * PAGEBLOCK_PAGES,
            ..first
        })
    };
    let zone = zone::zone_of(first);
    zone.lock().merge_recent();
    pcp::drain_all();
    let mut isolated = 0;
    let mut result = Ok(());
    for frame in each() {
        let pinned = !can_be_emptied(frame) || !zone.lock().isolate(frame);
        if pinned {
            result = Err(PageError::Pinned);
            break;
        }
        isolated += 1;
    }
    for frame in each() {
        if result.is_err() {
            break;
        }
        result = empty_isolated(frame, true);
    }
    let mut zone = zone.lock();
    for frame in each().take(isolated) {
        zone.include(frame);
    }
    result?;
    // Under the same hold of the lock: nobody came between.
    let dirty = zone.take_range(first, pages, mt, 0);
    let run = crate::run::finish(&mut zone, first, pages, mt, !dirty);
    debug_assert_eq!(run_pages(run.page), pages);
    Ok(run.page)
}

/// Fills movable blocks from others, emptiest first, as long as a whole block comes
/// of it; returns the blocks that became free.
///
/// # Errors
/// [`PageError::BadRelocate`] when an owner lied.
pub fn compact() -> Result<usize, PageError> {
    crate::reclaim::alone(|| {
        let mut emptied = 0;
        zone::merge_recent();
        pcp::drain_all();
        for node in 0..zone::zones().len() {
            // Each block is tried once at most.
            let mut tries = 0;
            arena::for_each_block_of(node, |_| {
                tries += 1;
                true
            });
            for _ in 0..tries {
                let Some(frame) = crate::reclaim::cheapest(node, false) else {
                    break;
                };
                match empty(frame, false) {
                    Ok(()) => emptied += 1,
                    Err(PageError::BadRelocate) => return Err(PageError::BadRelocate),
                    Err(_) => {}
                }
            }
        }
        Ok(emptied)
    })
    .unwrap_or(Ok(0))
}

/// Pages that owners gave back when asked for any, oldest first.
pub(crate) fn shrink_all(pages: usize) -> usize {
    let freed = owner::all().map(|(_, owner)| owner.shrink(pages)).sum();
    note_reclaimed(freed);
    freed
}
