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

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use crate::arena::Frame;
use crate::block::{BLOCK_DIRTY, BLOCK_HUGE, BLOCK_NO_HUGE};
use crate::config;
use crate::os;
use crate::page::PageRef;
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
static BUSY: AtomicBool = AtomicBool::new(false);
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
    if zone.buddy.dirty_pages() > KEEP && !pending() {
        start(zone);
    }
}

#[cold]
fn start(zone: &mut zone::ZoneInner) {
    zone.dirty_low = zone.buddy.dirty_pages();
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
    if now < DEADLINE.load(Relaxed) || BUSY.swap(true, Relaxed) {
        return;
    }
    let mut again = false;
    for zone in zone::zones() {
        let due = {
            let zone = zone.lock();
            zone.dirty_low.saturating_sub(KEEP)
        };
        if due > 0 {
            purge_zone(zone, due, TIMER_ORDER);
        }
        let mut zone = zone.lock();
        zone.dirty_low = zone.buddy.dirty_pages();
        again |= zone.dirty_low > KEEP && due > 0;
    }
    let next = match config::purge_ms() {
        Some(ms) if again => now + ms.max(1),
        _ => 0,
    };
    DEADLINE.store(next, Relaxed);
    BUSY.store(false, Relaxed);
}

/// Gives back all free pages at once, whatever the delay; the calling thread's
/// lists included. Returns the pages given back.
pub fn trim() -> usize {
    crate::pcp::drain_current();
    crate::pcp::request_drain();
    let mut pages = 0;
    for zone in zone::zones() {
        pages += purge_zone(zone, usize::MAX, 0);
    }
    pages
}

fn purge_zone(zone: &Zone, most: usize, least_order: u8) -> usize {
    // Kernel pages larger than ours bound what can be given back.
    let unit = (os::page_size() / PAGE_SIZE).trailing_zeros() as u8;
    let mut done = 0;
    for order in (least_order.max(unit)..=MAX_ORDER).rev() {
        while done < most {
            let mut chunks: [Option<(Frame, u8)>; BATCH] = [None; BATCH];
            let mut count = 0;
            {
                let mut zone = zone.lock();
                let mut pages: [Option<PageRef>; BATCH] = [None; BATCH];
                let found = zone.buddy.dirty_chunks(order, &mut pages);
                for page in pages.iter().take(found).flatten() {
                    if done >= most {
                        break;
                    }
                    let (frame, _) = zone.buddy.take_chunk(page);
                    chunks[count] = Some((frame, order));
                    count += 1;
                    done += 1 << order;
                }
            }
            if count == 0 {
                break;
            }
            let mut refused = 0;
            for (frame, order) in chunks.iter().flatten().copied() {
                let ok = discard(frame, order);
                let mut zone = zone.lock();
                zone.buddy.put(frame, order, !ok);
                if ok {
                    zone.counters.purged_pages += 1 << order;
                } else {
                    refused += 1;
                }
            }
            if refused > 0 {
                // Locked memory or a sandbox: nothing will come of trying on.
                return done;
            }
        }
    }
    done
}

/// Gives the memory of a chunk, which is on no list, back to the kernel.
fn discard(frame: Frame, order: u8) -> bool {
    let Frame { arena, index } = frame;
    if order >= PAGEBLOCK_ORDER {
        let mut ok = true;
        let mut from = index;
        let end = index + (1usize << order);
        // One call for each stretch of dirty blocks.
        while from < end {
            if !arena.block(from).flag(BLOCK_DIRTY) {
                from += PAGEBLOCK_PAGES;
                continue;
            }
            let mut to = from;
            while to < end && arena.block(to).flag(BLOCK_DIRTY) {
                to += PAGEBLOCK_PAGES;
            }
            // SAFETY: free pages on no list: nobody's.
            if unsafe { os::discard(arena.address(from), (to - from) << PAGE_SHIFT) } {
                for at in (from..to).step_by(PAGEBLOCK_PAGES) {
                    let block = arena.block(at);
                    block.set_flag(BLOCK_DIRTY, false);
                    if block.flag(BLOCK_NO_HUGE) {
                        block.set_flag(BLOCK_NO_HUGE, false);
                        EXCLUDED.fetch_sub(1, Relaxed);
                        // SAFETY: committed, whole kernel pages.
                        let huge = unsafe { os::huge(arena.address(at), PAGEBLOCK_SIZE, true) };
                        block.set_flag(BLOCK_HUGE, huge);
                    }
                }
            } else {
                ok = false;
            }
            from = to;
        }
        return ok;
    }
    let start = index & !(PAGEBLOCK_PAGES - 1);
    let block = arena.block(start);
    if block.flag(BLOCK_HUGE) {
        if EXCLUDED.fetch_add(1, Relaxed) >= MAX_EXCLUDED {
            EXCLUDED.fetch_sub(1, Relaxed);
            return false;
        }
        // SAFETY: committed, whole kernel pages.
        unsafe { os::huge(arena.address(start), PAGEBLOCK_SIZE, false) };
        block.set_flag(BLOCK_HUGE, false);
        block.set_flag(BLOCK_NO_HUGE, true);
    }
    // SAFETY: free pages on no list: nobody's.
    unsafe { os::discard(arena.address(index), PAGE_SIZE << order) }
}
