//! Giving memory back: free pages keep their memory for a while, then lose it in
//! large runs.
//!
//! The purger looks every `purge` milliseconds while there is something to give
//! back. It takes no more than what *nobody needed* since its last look (the low
//! mark of idle pages), so a program that frees and takes the same memory
//! again and again pays nothing. Whole blocks go first, then chunks of 64 KiB and
//! up; smaller ones only on [`trim`], when a fresh block is begun although a sixteenth
//! of the heap is idle, and, some at a time, when 8 MiB of them are idle for two looks.
//!
//! There is no thread behind it: slow paths call [`tick`]. For threads that take
//! only fast paths, [`pending`] tells the backends to arm their slots; a program
//! that has another way to call [`tick`] now and then does so while memory waits
//! ([`set_watcher`]).
//!
//! A block that loses only a part of its pages is excluded from huge pages first,
//! or khugepaged would fill it again; who claims it as a whole may have them again
//! (`huge.rs`).

use core::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};

use crate::arena::{self, Frame};
use crate::bits::Bits;
use crate::block::{BLOCK_HUGE, BLOCK_USED, Block};
use crate::config;
use crate::huge;
use crate::os;
use crate::pcp;
use crate::sync::{FutexLock, Lock};
use crate::types::{GRANULE_SHIFT, PAGE_SHIFT, PAGE_SIZE, PAGEBLOCK_PAGES, PAGEBLOCK_SIZE};
use crate::zone::{self, Zone};

/// Idle pages a zone may keep for ever.
const KEEP: usize = 128;
/// The smallest order that the timer gives back.
const TIMER_ORDER: u8 = 4;
const BATCH: usize = 16;
/// Idle pages below which no look searches for small pieces.
const LEAST_FRAGMENTS: usize = 2048;
/// The same for a heap that begins a block: its small pieces are few.
const LEAST_AT_GROWTH: usize = 256;
/// Idle pages in small pieces that one look gives back, each by a system call of its own.
const SHARE: usize = 2048;
/// Looks in one delay while that goes on.
const SHARES: u64 = 16;
/// log2 of the granule map's bytes for a page.
const MAP_SHIFT: usize = PAGE_SHIFT - GRANULE_SHIFT;

/// When the next look is due, in milliseconds of the coarse clock; 0 = nothing to
/// give back.
static DEADLINE: AtomicU64 = AtomicU64::new(0);
/// Held by the thread that gives back: chunks of that thread's are on no list, so
/// `fork` waits for it. Before the zones' locks.
static PURGER: Lock<()> = Lock::new(());
/// A fresh block was begun although much is idle: the next look takes the smallest pieces too.
static FRAGMENTED: AtomicBool = AtomicBool::new(false);
/// The last look left much that nobody had needed, in small pieces: so does the next, or
/// it takes a share of them.
static LEFT: AtomicBool = AtomicBool::new(false);

/// What is given back of a partly used block.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Pieces {
    /// Stretches of [`TIMER_ORDER`] and up.
    Large,
    /// All pages that may hold data.
    All,
    /// The same, and of blocks with a huge page all that is free.
    Untouched,
}

/// Whether freed memory waits for its delay.
#[inline]
pub fn pending() -> bool {
    DEADLINE.load(Relaxed) != 0
}

/// The watcher, a `fn()`; null for none.
static WATCHER: AtomicPtr<()> = AtomicPtr::new(core::ptr::null_mut());

/// Names a function that is called, by any thread, whenever memory begins or ceases
/// to wait ([`pending`]). It promises that [`tick`] is then called by threads that
/// take only fast paths, whose slots are no longer armed. It may be called with a
/// zone's lock held and must not allocate or wait.
pub fn set_watcher(watcher: fn()) {
    WATCHER.store(watcher as *mut (), Release);
}

/// Whether somebody else sees to it that fast threads call [`tick`].
#[inline]
pub fn watched() -> bool {
    !WATCHER.load(Relaxed).is_null()
}

fn notify() {
    let watcher = WATCHER.load(Acquire);
    if !watcher.is_null() {
        // SAFETY: only `set_watcher` stores here, and it stores `fn()`.
        unsafe { core::mem::transmute::<*mut (), fn()>(watcher)() };
    }
}

/// Notes that a zone has so many idle pages; starts the delay when that is
/// worth a look.
#[inline]
pub(crate) fn note_idle(zone: &mut zone::ZoneInner) {
    if !pending() && zone.idle_pages() > KEEP {
        start(zone);
    }
}

#[cold]
fn start(zone: &mut zone::ZoneInner) {
    zone.idle_low = zone.idle_pages();
    if let Some(ms) = config::purge_ms() {
        DEADLINE.store(os::now_ms() + ms.max(1), Relaxed);
        notify();
    }
}

/// Notes that a zone begins a block without memory. When much of what it has is idle all
/// the same, in pieces too small for what it needs, the next look is due at once and takes
/// them all.
pub(crate) fn note_growth(zone: &zone::ZoneInner) {
    let much = (arena::committed_bytes() >> PAGE_SHIFT) / 16;
    if zone.idle_pages() < much.max(LEAST_AT_GROWTH) || config::purge_ms().is_none() {
        return;
    }
    FRAGMENTED.store(true, Relaxed);
    if DEADLINE.swap(1, Relaxed) == 0 {
        notify();
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
    // Threads that are idle would keep what they hold.
    pcp::drain_all();
    let (mut again, mut left) = (false, false);
    let fragmented = FRAGMENTED.swap(false, Relaxed);
    let take_left = LEFT.load(Relaxed);
    for (node, zone) in zone::zones().iter().enumerate() {
        let due = {
            let mut zone = zone.lock();
            zone.merge_recent();
            zone.idle_low.saturating_sub(KEEP)
        };
        let mut given = if fragmented {
            purge_parts(zone, node, usize::MAX, Pieces::All)
        } else if due > 0 {
            purge_zone(zone, node, due, Pieces::Large)
        } else {
            0
        };
        // What nobody needed and is still here lies in small pieces. Once begun, little is
        // left of them.
        let least = if take_left {
            SHARE / 8
        } else {
            LEAST_FRAGMENTS
        };
        let rest = |given: usize| Some(due.saturating_sub(given)).filter(|rest| *rest >= least);
        let mut stuck = false;
        if let Some(rest) = rest(given)
            && take_left
        {
            let share = purge_parts(zone, node, SHARE.min(rest), Pieces::All);
            // Locked memory, or huge pages that nobody may break: no use in trying on.
            stuck = share == 0;
            given += share;
        }
        let more = rest(given).filter(|_| !stuck);
        left |= more.is_some();
        let mut zone = zone.lock();
        let idle = zone.idle_pages();
        // Shares follow each other soon: what they may take is what nobody needed since
        // before the first.
        zone.idle_low = match more {
            Some(rest) if take_left => (KEEP + rest).min(idle),
            _ => idle,
        };
        // What was needed this time may not be next time, and what came since the last look
        // waits its delay. When all there is could not be given back (small chunks, refusals),
        // there is no use in looking again.
        let newer = zone.idle_low > KEEP + due;
        again |= zone.idle_low > KEEP && (newer || given > 0);
        // A look at once comes before queues and empty slabs give theirs: one more, in time.
        again |= fragmented && given > 0;
    }
    LEFT.store(left, Relaxed);
    let next = match config::purge_ms() {
        Some(ms) if left && take_left => now + (ms / SHARES).max(1),
        Some(ms) if again || left => now + ms.max(1),
        _ => 0,
    };
    DEADLINE.store(next, Relaxed);
    if next == 0 || fragmented {
        notify();
    }
}

/// Gives back all free pages at once, whatever the delay; those in threads' lists and
/// in the urgent reserve included. Returns the pages given back.
pub fn trim() -> usize {
    pcp::drain_all();
    let _purger = PURGER.lock();
    zone::zones()
        .iter()
        .enumerate()
        .map(|(node, zone)| {
            zone.lock().release_urgent();
            purge_zone(zone, node, usize::MAX, Pieces::Untouched)
        })
        .sum()
}

/// Gives the whole pages inside a stretch of memory in use back: they read as zero then.
/// Their block is excluded from huge pages first. Returns the pages given back; 0 also
/// when the kernel refuses.
///
/// # Safety
/// The bytes must lie in an arena and be the caller's, and their content of no use.
pub unsafe fn discard_inside(at: *mut u8, bytes: usize) -> usize {
    let unit = os::page_size();
    let (mut from, to) = (
        (at as usize).next_multiple_of(unit),
        (at as usize + bytes) / unit * unit,
    );
    let mut pages = 0;
    while from < to {
        let end = ((from | (PAGEBLOCK_SIZE - 1)) + 1).min(to);
        let start: *mut u8 = core::ptr::with_exposed_provenance_mut(from);
        let Some(page) = arena::page_of(start) else {
            return pages;
        };
        let Frame { arena, index } = arena::frame_of(page);
        let block = Frame {
            arena,
            index: index & !(PAGEBLOCK_PAGES - 1),
        };
        // SAFETY: promised by the caller; whole kernel pages.
        if !exclude_huge(block) || !unsafe { os::discard(start, end - from) } {
            return pages;
        }
        pages += (end - from) >> PAGE_SHIFT;
        from = end;
    }
    pages
}

/// Runs `f` on the purger's lock: for the fork handlers.
pub(crate) fn with_raw_lock(f: impl FnOnce(&FutexLock)) {
    f(crate::fork::raw(&PURGER));
}

/// Gives back about `most` pages: whole blocks first, then pieces of blocks. Returns how
/// many.
fn purge_zone(zone: &Zone, node: usize, most: usize, pieces: Pieces) -> usize {
    let mut done = 0;
    while done < most {
        match purge_whole(zone, most - done) {
            // Locked memory or a sandbox: nothing will come of trying on.
            Err(()) => return done,
            Ok(0) => break,
            Ok(pages) => done += pages,
        }
    }
    done + purge_parts(zone, node, most - done.min(most), pieces)
}

/// Gives back pieces of partly used blocks, until there are about `most` pages. Returns
/// how many.
fn purge_parts(zone: &Zone, node: usize, most: usize, pieces: Pieces) -> usize {
    let mut done = 0;
    arena::for_each_block_of(node, |frame| {
        let block = frame.arena.block(frame.index);
        let untouched = pieces == Pieces::Untouched && holds_untouched(block);
        if done >= most || (block.idle() == 0 && !untouched) {
            return done < most;
        }
        match purge_part(zone, frame, pieces) {
            Ok(pages) => {
                done += pages;
                true
            }
            Err(()) => false,
        }
    });
    done
}

/// The kernel refused.
type Refused = ();

/// Gives a batch of wholly free blocks back, those that are free longest first;
/// returns their pages, 0 when there are none.
fn purge_whole(zone: &Zone, most: usize) -> Result<usize, Refused> {
    let mut blocks: [Option<Frame>; BATCH] = [None; BATCH];
    {
        let mut zone = zone.lock();
        // Of a block that was given back in pieces the map is left.
        let idle = |frame: &Frame| {
            let block = frame.arena.block(frame.index);
            block.idle() > 0 || block.flag(BLOCK_USED)
        };
        let wanted = most.div_ceil(PAGEBLOCK_PAGES).min(BATCH);
        for (cell, frame) in blocks[..wanted]
            .iter_mut()
            .zip(zone.buddy.whole_from_oldest().filter(idle))
        {
            *cell = Some(frame);
        }
        for frame in blocks.iter().flatten() {
            zone.buddy.take(*frame, Bits::range(0, PAGEBLOCK_PAGES));
        }
    }
    // One call for each stretch of neighbours.
    blocks.sort_unstable_by_key(|cell| cell.map(|f| f.arena.address(f.index) as usize));
    let mut done = 0;
    let mut refused = false;
    let mut at = 0;
    while at < BATCH {
        let Some(first) = blocks[at] else {
            at += 1;
            continue;
        };
        let follows = |i: usize| {
            blocks.get(at + i).copied().flatten().is_some_and(|f| {
                core::ptr::eq(f.arena, first.arena) && f.index == first.index + i * PAGEBLOCK_PAGES
            })
        };
        let count = (1..).take_while(|i| follows(*i)).count() + 1;
        // SAFETY: free pages that are not in the free maps: nobody's.
        let given =
            unsafe { os::discard(first.arena.address(first.index), count * PAGEBLOCK_SIZE) };
        refused |= !given;
        if given {
            // No object starts in them, so their granules are zero already. A refusal
            // costs memory only.
            let granules = first.arena.granules(first.index);
            // SAFETY: as above; whole blocks have whole kernel pages of the map.
            let _ = unsafe { os::discard(granules, (count * PAGEBLOCK_PAGES) << MAP_SHIFT) };
        }
        for frame in blocks[at..at + count].iter().flatten() {
            let block = frame.arena.block(frame.index);
            let pages = if given { block.dirty_map().count() } else { 0 };
            done += pages.max(1);
            let mut zone = zone.lock();
            if given {
                block.set_flag(BLOCK_USED, false);
            }
            // Unless given back, the map knows which pages hold data.
            let dirty = if given { Some(false) } else { None };
            zone.buddy.put(
                frame.arena,
                frame.index,
                frame.index + PAGEBLOCK_PAGES,
                dirty,
            );
            zone.counters.purged_pages += pages as u64;
        }
        at += count;
    }
    if refused { Err(()) } else { Ok(done) }
}

/// Whether free pages of a block may have memory though nobody used them: a huge page
/// gave it to them.
fn holds_untouched(block: &Block) -> bool {
    block.flag(BLOCK_HUGE) && block.free() > 0 && block.free() < PAGEBLOCK_PAGES
}

/// Gives the pieces of a partly used block back. Returns their pages; 0 also when it is not
/// worth it.
fn purge_part(zone: &Zone, frame: Frame, pieces: Pieces) -> Result<usize, Refused> {
    // Kernel pages larger than ours bound what can be given back.
    let unit = os::page_size() / PAGE_SIZE;
    let block = frame.arena.block(frame.index);
    let shortest = if pieces == Pieces::Large {
        1 << TIMER_ORDER
    } else {
        1
    };
    // Under the zone's lock.
    let found = || {
        let mut pages = Bits::default();
        if block.is_isolated() {
            return pages;
        }
        for (from, to) in block.free_map().and(block.dirty_map()).runs() {
            let (from, to) = (from.next_multiple_of(unit), to / unit * unit);
            if from < to && to - from >= shortest {
                pages = pages.or(Bits::range(from, to));
            }
        }
        pages
    };
    if block.flag(BLOCK_HUGE) {
        // Breaking a huge page is not worth less than an eighth of it, for the timer.
        let least = match pieces {
            Pieces::Large => PAGEBLOCK_PAGES / 8,
            Pieces::All => 1,
            Pieces::Untouched => 0,
        };
        let enough = {
            let _zone = zone.lock();
            found().count() >= least
        };
        if !enough || !exclude_huge(frame) {
            return Ok(0);
        }
    }
    let pages = {
        let mut zone = zone.lock();
        let pages = found();
        zone.buddy.take(frame, pages);
        pages
    };
    let given = pages.runs().all(|(from, to)| {
        let at = frame.arena.address(frame.index + from);
        // SAFETY: free pages that are not in the free maps: nobody's.
        unsafe { os::discard(at, (to - from) << PAGE_SHIFT) }
    });
    let mut zone = zone.lock();
    for (from, to) in pages.runs() {
        let start = frame.index;
        let dirty = if given { Some(false) } else { None };
        zone.buddy.put(frame.arena, start + from, start + to, dirty);
    }
    if !given {
        return Err(());
    }
    zone.counters.purged_pages += pages.count() as u64;
    Ok(pages.count())
}

/// Excludes a block that loses a part of its pages from huge pages, or khugepaged
/// would fill it again. False when the mappings are in too many pieces already.
fn exclude_huge(frame: Frame) -> bool {
    let block = frame.arena.block(frame.index);
    if !block.flag(BLOCK_HUGE) {
        return true;
    }
    let mut zone = zone::zone_of(frame).lock();
    if !huge::advise(frame, false) {
        return false;
    }
    // The huge page gave memory to free pages that nobody had used yet. From now on it
    // is kept like that of any other.
    if block.is_isolated() {
        return true;
    }
    let clean = block.free_map().minus(block.dirty_map());
    zone.buddy.take(frame, clean);
    for (from, to) in clean.runs() {
        let start = frame.index;
        zone.buddy
            .put(frame.arena, start + from, start + to, Some(true));
    }
    true
}
