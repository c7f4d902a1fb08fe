//! Which blocks are to have huge pages.
//!
//! ```text
//!   arena:   | small programs | slabs, dense | 4 KiB+ objects | a run longer than a block | its end |
//!   advice:  |       -        |     huge     |       -        |     huge     |    huge    |    -    |
//! ```
//! A huge page makes the first touch of 2 MiB one fault instead of 512, and gives all of it
//! memory. That pays where all of it is going to be written: in slabs of small objects, and
//! in blocks that one run fills. It does not where objects of whole pages lie (`Large`),
//! of which programs often write the beginning only: a heap of such blocks up to 32 KiB had
//! 2.3 times the memory with huge pages than without.
//!
//! The advice is given when a block is claimed, so that it follows what the block is used
//! for, and beyond the first [`config::HUGE_AUTO_FROM`] bytes of an arena only. A block that
//! loses a part of its pages is excluded ([`crate::purge`]).
//!
//! Blocks of different advice are different mappings to the kernel, of which a process may
//! have 65,530: at most [`MAX_SPLITS`] boundaries are made.

use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use crate::arena::Frame;
use crate::block::{BLOCK_HUGE, BLOCK_NO_HUGE, BLOCK_USED};
use crate::config;
use crate::os;
use crate::types::{Migratetype, PAGE_SHIFT, PAGEBLOCK_PAGES, PAGEBLOCK_SIZE};

/// Boundaries between blocks of different advice.
static SPLITS: AtomicUsize = AtomicUsize::new(0);
const MAX_SPLITS: usize = 8192;

/// What the kernel was told of a block: [`BLOCK_HUGE`], [`BLOCK_NO_HUGE`] or nothing.
fn advice(at: Frame) -> u64 {
    let block = at.arena.block(at.index);
    let of = |flag| if block.flag(flag) { flag } else { 0 };
    of(BLOCK_HUGE) | of(BLOCK_NO_HUGE)
}

/// Gives the advice for the blocks that the pages [frame, frame + pages), claimed as `mt`,
/// begin or fill. A run that has grown so far by `behind` pages is taken to fill the block
/// that it begins. Under the zone's lock, and before they are taken.
pub(crate) fn claimed(frame: Frame, pages: usize, mt: Migratetype, behind: usize) {
    let Some(from) = config::huge_from() else {
        return;
    };
    let end = frame.index + pages;
    let first = frame.index.next_multiple_of(PAGEBLOCK_PAGES);
    for index in (first..end).step_by(PAGEBLOCK_PAGES) {
        if index << PAGE_SHIFT < from {
            continue;
        }
        let at = Frame { index, ..frame };
        let filled = end - index >= PAGEBLOCK_PAGES || behind >= PAGEBLOCK_PAGES;
        let dense = mt != Migratetype::Large || filled || from == 0;
        let now = advice(at);
        if dense && now != BLOCK_HUGE {
            advise(at, true);
        } else if !dense && now == BLOCK_HUGE && !at.arena.block(index).flag(BLOCK_USED) {
            // What it holds already, a huge page holds.
            advise(at, false);
        }
    }
}

/// Asks for huge pages on a block, or forbids them. False when the kernel refuses or the
/// mappings are in too many pieces already. Under the zone's lock.
pub(crate) fn advise(at: Frame, on: bool) -> bool {
    let (was, is) = (advice(at), if on { BLOCK_HUGE } else { BLOCK_NO_HUGE });
    let (start, end) = at.arena.bounds(at.index);
    let below = at.index.checked_sub(PAGEBLOCK_PAGES);
    let above = at.index + PAGEBLOCK_PAGES;
    let neighbours = [
        below.filter(|i| *i >= start),
        Some(above).filter(|i| *i < end),
    ];
    let (mut more, mut fewer) = (0, 0);
    for index in neighbours.into_iter().flatten() {
        let beside = advice(Frame { index, ..at });
        more += usize::from(beside != is);
        fewer += usize::from(beside != was);
    }
    let splits = SPLITS.load(Relaxed);
    if more > fewer && splits + more > MAX_SPLITS + fewer {
        return false;
    }
    // SAFETY: a block is committed as a whole, and whole kernel pages.
    let done = unsafe { os::huge(at.arena.address(at.index), PAGEBLOCK_SIZE, on) };
    if done {
        // Zones may count at once: a few more or less do no harm.
        SPLITS.store((splits + more).saturating_sub(fewer), Relaxed);
        at.arena
            .block(at.index)
            .change_flags(BLOCK_HUGE | BLOCK_NO_HUGE, is);
    }
    done
}
