//! Giving memory back: free pages keep their memory for a while, then lose it in
//! large runs.
//!
//! The purger looks every `purge` milliseconds while there is something to give
//! back. It takes no more than what *nobody needed* since its last look (the low
//! mark of dirty free pages), so a program that frees and takes the same memory
//! again and again pays nothing. Whole blocks go first, then chunks of 64 KiB and
//! up; smaller ones only on [`trim`].
//!
//! There is no thread behind it: slow paths call [`tick`]. For threads that take
//! only fast paths, [`pending`] tells the backends to arm their slots.
//!
//! A block that loses only a part of its pages is excluded from huge pages first,
//! or khugepaged would fill it again; when all of it is free it is admitted again.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::arena::Frame;
use crate::block::{BLOCK_DIRTY, BLOCK_HUGE, BLOCK_NO_HUGE};
use crate::config;
use crate::os;
use crate::page::PageRef;
use crate::sync::{FutexLock, Lock};
use crate::types::{
    MAX_ORDER, PAGE_SHIFT, PAGE_SIZE, PAGEBLOCK_ORDER, PAGEBLOCK_PAGES, PAGEBLOCK_SIZE,
};
use crate::zone::{self, Zone};

/// Dirty pages a zone may keep for ever.
const KEEP: usize = 128;
/// The smallest order that the timer gives back.
const TIMER_ORDER: u8 = 4;
const BATCH: usize = 16;

/// When the next look is due, in milliseconds of the coarse clock; 0 = nothing to
/// give back.
static DEADLINE: AtomicU64 = AtomicU64::new(0);
/// Held by the thread that gives back: chunks of that thread's are on no list, so
/// `fork` waits for it. Before the zones' locks.
static PURGER: Lock<()> = Lock::new(());
/// Blocks excluded from huge pages at a time: each may split a mapping in three.
static EXCLUDED: AtomicU64 = AtomicU64::new(0);
const MAX_EXCLUDED: u64 = 2048;

/// Whether freed memory waits for its delay.
#[inline]
pub fn pending() -> bool {
    DEADLINE.load(Relaxed) != 0
}

/// Notes that a zone has so many dirty free pages; starts the delay when that is
/// worth a look.
#[inline]
pub(crate) fn note_dirty(zone: &mut zone::ZoneInner) {
    if !pending() && zone.idle_pages() > KEEP {
        start(zone);
    }
}

#[cold]
fn start(zone: &mut zone::ZoneInner) {
    zone.idle_low = zone.idle_pages();
    if let Some(ms) = config::purge_ms() {
        DEADLINE.store(os::now_ms() + ms.max(1), Relaxed);
    }
}

/// Gives back what is due. Called from slow paths: one load when nothing waits.
#[inline]
pub fn tick() {
    if pending() {
        look();
    }
}

#[cold]
fn look() {
    let now = os::now_ms();
    if now < DEADLINE.load(Relaxed) {
        return;
    }
    let Some(_purger) = PURGER.try_lock() else {
        return;
    };
    // Another thread may have looked since the test above.
    if !pending() || now < DEADLINE.load(Relaxed) {
        return;
    }
    let mut again = false;
    for zone in zone::zones() {
        let due = {
            let mut zone = zone.lock();
            zone.merge_recent();
            zone.idle_low.saturating_sub(KEEP)
        };
        let given = if due > 0 {
            purge_zone(zone, due, TIMER_ORDER)
        } else {
            0
        };
        let mut zone = zone.lock();
        zone.idle_low = zone.idle_pages();
        // What was needed this time may not be next time. When nothing could be
        // given back (small chunks, refusals), there is no use in looking again.
        again |= zone.idle_low > KEEP && (due == 0 || given > 0);
    }
    let next = match config::purge_ms() {
        Some(ms) if again => now + ms.max(1),
        _ => 0,
    };
    DEADLINE.store(next, Relaxed);
}

/// Gives back all free pages at once, whatever the delay; the calling thread's
/// lists included. Returns the pages given back.
pub fn trim() -> usize {
    crate::pcp::drain_current();
    crate::pcp::request_drain();
    let _purger = PURGER.lock();
    zone::zones()
        .iter()
        .map(|zone| purge_zone(zone, usize::MAX, 0))
        .sum()
}

/// Runs `f` on the purger's lock: for the fork handlers.
pub(crate) fn with_raw_lock(f: impl FnOnce(&FutexLock)) {
    // SAFETY: the raw lock is only marked, taken and released by the fork
    // handlers, in pairs.
    f(unsafe { PURGER.raw() });
}

/// Gives back about `most` pages, in chunks of `least_order` and up; returns how
/// many.
fn purge_zone(zone: &Zone, most: usize, least_order: u8) -> usize {
    // Kernel pages larger than ours bound what can be given back.
    let unit = (os::page_size() / PAGE_SIZE).trailing_zeros() as u8;
    let mut done = 0;
    for order in (least_order.max(unit)..=MAX_ORDER).rev() {
        while done < most {
            let mut chunks: [Option<Frame>; BATCH] = [None; BATCH];
            {
                let mut zone = zone.lock();
                let mut pages: [Option<PageRef>; BATCH] = [None; BATCH];
                zone.buddy.dirty_chunks(order, &mut pages);
                let mut left = most - done;
                for (cell, page) in chunks.iter_mut().zip(pages.iter().flatten()) {
                    if left == 0 {
                        break;
                    }
                    *cell = Some(zone.buddy.take_chunk(page).0);
                    left = left.saturating_sub(1 << order);
                }
            }
            let mut refused = false;
            for frame in chunks.iter().flatten().copied() {
                let left = most.saturating_sub(done);
                let given = if order >= PAGEBLOCK_ORDER {
                    discard_blocks(frame, order, left)
                } else {
                    discard_part(frame, order)
                };
                let mut zone = zone.lock();
                // Whole blocks carry their state themselves.
                let dirty = order < PAGEBLOCK_ORDER && given.is_none();
                zone.buddy.put(frame, order, dirty);
                match given {
                    Some(pages) => {
                        zone.counters.purged_pages += pages as u64;
                        done += pages;
                    }
                    None => refused = true,
                }
            }
            if refused {
                // Locked memory or a sandbox: nothing will come of trying on.
                return done;
            }
            if chunks[0].is_none() {
                break;
            }
        }
    }
    done
}

/// Gives the memory of dirty blocks of a chunk, which is on no list, back to the
/// kernel: about `most` pages. Returns how many; `None` when the kernel refuses.
fn discard_blocks(frame: Frame, order: u8, most: usize) -> Option<usize> {
    let Frame { arena, index } = frame;
    let end = index + (1usize << order);
    let mut from = index;
    let mut done = 0;
    // One call for each stretch of dirty blocks.
    while from < end && done < most {
        if !arena.block(from).flag(BLOCK_DIRTY) {
            from += PAGEBLOCK_PAGES;
            continue;
        }
        let mut to = from;
        while to < end && done + (to - from) < most && arena.block(to).flag(BLOCK_DIRTY) {
            to += PAGEBLOCK_PAGES;
        }
        // SAFETY: free pages on no list: nobody's.
        if !unsafe { os::discard(arena.address(from), (to - from) << PAGE_SHIFT) } {
            return None;
        }
        for at in (from..to).step_by(PAGEBLOCK_PAGES) {
            let block = arena.block(at);
            if block.change_flags(BLOCK_DIRTY | BLOCK_NO_HUGE, 0) & BLOCK_NO_HUGE != 0 {
                EXCLUDED.fetch_sub(1, Relaxed);
                // SAFETY: committed, whole kernel pages.
                let huge = unsafe { os::huge(arena.address(at), PAGEBLOCK_SIZE, true) };
                block.set_flag(BLOCK_HUGE, huge);
            }
        }
        done += to - from;
        from = to;
    }
    Some(done)
}

/// Gives the memory of a chunk inside a block, which is on no list, back to the
/// kernel. Returns its pages; `None` when the kernel refuses or too many blocks
/// would be excluded from huge pages.
fn discard_part(frame: Frame, order: u8) -> Option<usize> {
    let Frame { arena, index } = frame;
    let start = index & !(PAGEBLOCK_PAGES - 1);
    let block = arena.block(start);
    if block.flag(BLOCK_HUGE) {
        if EXCLUDED.fetch_add(1, Relaxed) >= MAX_EXCLUDED {
            EXCLUDED.fetch_sub(1, Relaxed);
            return None;
        }
        block.change_flags(BLOCK_HUGE, BLOCK_NO_HUGE);
        // SAFETY: committed, whole kernel pages.
        unsafe { os::huge(arena.address(start), PAGEBLOCK_SIZE, false) };
    }
    // SAFETY: free pages on no list: nobody's.
    unsafe { os::discard(arena.address(index), PAGE_SIZE << order) }.then_some(1 << order)
}
