//! Making a whole block free: which one, and when.
//!
//! A request that finds no free page of its type, no whole block and no fresh memory
//! asks here before anything mixes. The block chosen is the one that is cheapest to
//! empty by the exact census: a reclaimable page costs its owner the work of getting
//! it again, a movable one a copy. Where no block can be emptied, owners are asked
//! for their oldest pages.
//!
//! There is no thread behind it unless [`start_worker`] is called, which keeps whole
//! blocks between two watermarks.

#![deny(unsafe_code)]
// The worker is a thread of std's, started by the program and not inside malloc.
#![allow(clippy::disallowed_types, clippy::disallowed_methods)]

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Condvar, Mutex, PoisonError};

use crate::PAGE_SHIFT;
use crate::arena::{self, Frame};
use crate::config;
use crate::evacuate::{self, can_be_emptied};
use crate::os;
use crate::owner;
use crate::page::PageRef;
use crate::pcp;
use crate::stats::Histogram;
use crate::sync::{FutexLock, Lock, tid};
use crate::types::{Migratetype, PAGEBLOCK_ORDER, PAGEBLOCK_PAGES};
use crate::zone;

/// What reclaiming a page costs against copying one.
const RECLAIM_COST: usize = 4;
/// Blocks that one request tries to empty.
const TRIES: usize = 8;
/// Pages that owners are asked for when no block can be emptied.
const SHRINK_BATCH: usize = 64;

/// Held by the thread that asks owners: one at a time.
static RECLAIMING: Lock<()> = Lock::new(());
/// That thread, or 0: its owners' allocations reclaim nothing.
static RECLAIMER: AtomicU32 = AtomicU32::new(0);
static DIRECT: AtomicU64 = AtomicU64::new(0);
static LATENCY: Histogram = Histogram::new();

/// Whether there is anybody to ask.
pub(crate) fn has_owners() -> bool {
    owner::any()
}

/// Requests that had to wait for a block to be emptied, or for owners to shrink.
pub fn direct_reclaims() -> u64 {
    DIRECT.load(Relaxed)
}

/// How long those requests waited, in nanoseconds.
pub fn latency() -> &'static Histogram {
    &LATENCY
}

/// Runs `f` on the lock: for the fork handlers.
pub(crate) fn with_raw_lock(f: impl FnOnce(&FutexLock)) {
    f(crate::fork::raw(&RECLAIMING));
}

/// Nobody reclaims, and there is no worker, in the child of a fork.
pub(crate) fn after_fork() {
    RECLAIMER.store(0, Relaxed);
    WORKER.store(false, Relaxed);
}

/// Runs `f` as the only thread that asks owners; `None` inside such a call.
pub(crate) fn alone<R>(f: impl FnOnce() -> R) -> Option<R> {
    if RECLAIMER.load(Relaxed) == tid() {
        return None;
    }
    let _alone = RECLAIMING.lock();
    RECLAIMER.store(tid(), Relaxed);
    let result = f();
    RECLAIMER.store(0, Relaxed);
    Some(result)
}

/// Makes a chunk of `order` likely to be found free by another look: true when
/// something became free, false when there is no use in looking again.
pub(crate) fn make_block(node: usize, order: u8) -> bool {
    if !has_owners() {
        return false;
    }
    direct(|| {
        if order > PAGEBLOCK_ORDER {
            return false;
        }
        empty_cheapest(node) || shrink(SHRINK_BATCH.max(1 << order))
    })
}

fn direct<R: Default>(f: impl FnOnce() -> R) -> R {
    alone(|| {
        let start = os::now_ns();
        let result = f();
        DIRECT.fetch_add(1, Relaxed);
        LATENCY.note(os::now_ns() - start);
        result
    })
    .unwrap_or_default()
}

fn empty_cheapest(node: usize) -> bool {
    zone::merge_recent();
    pcp::drain_all();
    for _ in 0..TRIES {
        let Some(frame) = cheapest(node, true) else {
            return false;
        };
        if evacuate::empty(frame, false).is_ok() {
            return true;
        }
    }
    false
}

fn shrink(pages: usize) -> bool {
    let freed = evacuate::shrink_all(pages);
    // What was given back went to this thread's lists.
    pcp::drain_current();
    freed > 0
}

/// The block that is cheapest to empty; `reclaim`: reclaimable pages may be given
/// back for it.
pub(crate) fn cheapest(node: usize, reclaim: bool) -> Option<Frame> {
    let takes_movable = |frame: Frame| {
        let block = frame.arena.block(frame.index);
        block.migratetype() == zone::tag(Migratetype::Movable)
            && block.free() < PAGEBLOCK_PAGES
            && !block.is_isolated()
    };
    // Free pages that chunks of a block could move to.
    let mut room = 0;
    arena::for_each_block_of(node, |frame| {
        if takes_movable(frame) {
            room += frame.arena.block(frame.index).free();
        }
        true
    });
    let mut best: Option<(usize, Frame)> = None;
    arena::for_each_block_of(node, |frame| {
        let block = frame.arena.block(frame.index);
        let movable = block.used(Migratetype::Movable);
        let reclaimable = block.used(Migratetype::Reclaimable);
        let own = if takes_movable(frame) {
            block.free()
        } else {
            0
        };
        let cost = movable + RECLAIM_COST * reclaimable;
        if best.is_none_or(|(least, _)| cost < least)
            && block.free() < PAGEBLOCK_PAGES
            && movable <= room - own
            && (reclaim || reclaimable == 0)
            && can_be_emptied(frame)
            && !block.is_deferred()
        {
            best = Some((cost, frame));
        }
        true
    });
    best.map(|(_, frame)| frame)
}

/// Takes a run of `pages` pages (more than a block, or what no block has free in one
/// piece) by emptying the cheapest blocks that lie side by side.
pub(crate) fn take_range(node: usize, pages: usize, mt: Migratetype) -> Option<PageRef> {
    if !has_owners() || mt == Migratetype::HighAtomic {
        return None;
    }
    let blocks = pages.div_ceil(PAGEBLOCK_PAGES);
    direct(|| {
        for _ in 0..TRIES {
            let first = cheapest_range(node, blocks)?;
            if let Ok(page) = evacuate::take_blocks(first, blocks, pages, mt) {
                return Some(page);
            }
        }
        None
    })
}

/// The first of `blocks` neighbouring blocks that can all be emptied and hold the
/// least.
fn cheapest_range(node: usize, blocks: usize) -> Option<Frame> {
    let mut best: Option<(usize, Frame)> = None;
    for arena in arena::arenas() {
        let (start, end) = arena.region_span(node);
        let (mut from, mut cost) = (start, 0);
        let cost_of = |index: usize| {
            let block = arena.block(index);
            block.used(Migratetype::Movable) + RECLAIM_COST * block.used(Migratetype::Reclaimable)
        };
        for index in (start..end).step_by(PAGEBLOCK_PAGES) {
            let frame = Frame { arena, index };
            if !can_be_emptied(frame) || arena.block(index).is_deferred() {
                (from, cost) = (index + PAGEBLOCK_PAGES, 0);
                continue;
            }
            cost += cost_of(index);
            if index + PAGEBLOCK_PAGES - from < blocks * PAGEBLOCK_PAGES {
                continue;
            }
            if best.is_none_or(|(least, _)| cost < least) {
                best = Some((cost, Frame { arena, index: from }));
            }
            cost -= cost_of(from);
            from += PAGEBLOCK_PAGES;
        }
    }
    best.map(|(_, frame)| frame)
}

/// The marks between which the worker keeps the pages of wholly free blocks, with
/// those that can still be taken fresh, in pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watermarks {
    /// What claims of whole blocks leave when they can.
    pub min: usize,
    /// Under it the worker starts.
    pub low: usize,
    /// At it the worker stops.
    pub high: usize,
}

/// The marks for the heap as large as it is: low = min + max(min/4, 0.1 %), high as
/// far above low, as the kernel has them.
pub fn watermarks() -> Watermarks {
    let managed = arena::committed_bytes() >> PAGE_SHIFT;
    let min = zone::RESERVE * PAGEBLOCK_PAGES;
    let step = (min / 4).max(managed / 1000);
    Watermarks {
        min,
        low: min + step,
        high: min + 2 * step,
    }
}

/// Pages of wholly free blocks, and those that may still be taken fresh.
fn whole_pages() -> usize {
    let fresh = config::arena_max().saturating_sub(arena::committed_bytes()) >> PAGE_SHIFT;
    let whole: usize = zone::zones()
        .iter()
        .map(|zone| zone.lock().buddy.whole_blocks() * PAGEBLOCK_PAGES)
        .sum();
    fresh.saturating_add(whole)
}

static WORKER: AtomicBool = AtomicBool::new(false);
static WAKE: (Mutex<bool>, Condvar) = (Mutex::new(false), Condvar::new());

/// The background worker; dropping it ends the thread.
#[derive(Debug)]
pub struct Worker(Option<std::thread::JoinHandle<()>>);

/// Starts a thread that empties blocks when whole ones go below the low watermark,
/// until they reach the high one. For programs that register page owners and bound
/// the heap; it looks when a claim finds few blocks, and sleeps otherwise.
///
/// # Errors
/// Those of starting a thread, and [`std::io::ErrorKind::AlreadyExists`] when there is
/// a worker.
pub fn start_worker() -> std::io::Result<Worker> {
    if WORKER.swap(true, Relaxed) {
        return Err(std::io::ErrorKind::AlreadyExists.into());
    }
    let thread = std::thread::Builder::new()
        .name("page-reclaim".into())
        .spawn(work);
    if thread.is_err() {
        WORKER.store(false, Relaxed);
    }
    Ok(Worker(Some(thread?)))
}

impl Drop for Worker {
    fn drop(&mut self) {
        WORKER.store(false, Relaxed);
        wake();
        if let Some(thread) = self.0.take() {
            // A panic of an owner in the worker ended it: nothing is left to end.
            let _ = thread.join();
        }
    }
}

fn wake() {
    *WAKE.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
    WAKE.1.notify_one();
}

/// Wakes the worker when whole blocks are few. Called after claims, with no lock held.
#[inline]
pub(crate) fn note_claim() {
    if WORKER.load(Relaxed) {
        wake_if_low();
    }
}

#[cold]
fn wake_if_low() {
    if RECLAIMER.load(Relaxed) != tid() && whole_pages() < watermarks().low {
        wake();
    }
}

fn work() {
    while WORKER.load(Relaxed) {
        {
            let mut woken = WAKE.0.lock().unwrap_or_else(PoisonError::into_inner);
            while !*woken {
                woken = WAKE.1.wait(woken).unwrap_or_else(PoisonError::into_inner);
            }
            *woken = false;
        }
        for node in 0..zone::zones().len() {
            let mut more = true;
            while more && WORKER.load(Relaxed) && whole_pages() < watermarks().high {
                more = alone(|| empty_cheapest(node)).unwrap_or(false);
            }
        }
    }
}
