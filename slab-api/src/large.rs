//! Large objects: runs of whole pages, trimmed to the page.
//!
//! The granule of the run's first byte carries [`granule::LARGE`]; the length
//! lives in the page's record.

use core::ptr;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use page_alloc::{
    Migratetype, PAGE_SHIFT, PAGE_SIZE, PageKind, PageRef, Run, alloc_run, alloc_run_with_room,
    extend_run, free_empty_run, free_run, granule, os, page_of, run_pages, shrink_run,
    stale_ranges,
};

use crate::misuse;

/// From so many bytes on, moving page tables beats copying into pages without memory.
const REMAP_FROM: usize = 256 << 10;
/// From so many bytes on, it beats copying into pages that have memory, which is then lost:
/// whoever comes next takes the faults (440 µs a MiB, against 80 to 270 for the copy).
const REMAP_WARM_FROM: usize = 16 << 20;
/// From so many stale bytes on, pages are dropped rather than written with zeros: a program
/// that asks for that much zeroed memory rarely touches all of it. (glibc maps blocks
/// of this size afresh, with the same effect.)
const DROP_FROM: usize = 32 << 20;

static LIVE_BYTES: AtomicU64 = AtomicU64::new(0);
static GROWN_IN_PLACE: AtomicU64 = AtomicU64::new(0);
static REMAPPED: AtomicU64 = AtomicU64::new(0);
static COPIED: AtomicU64 = AtomicU64::new(0);

/// Bytes in large objects in use.
pub fn live_bytes() -> u64 {
    LIVE_BYTES.load(Relaxed)
}

/// How reallocations of large objects went: in place, by moving page tables, by
/// copying.
pub fn realloc_counts() -> (u64, u64, u64) {
    (
        GROWN_IN_PLACE.load(Relaxed),
        REMAPPED.load(Relaxed),
        COPIED.load(Relaxed),
    )
}

/// Counts bytes of large objects that another layer hands out (or takes back, negative).
pub(crate) fn account(bytes: isize) {
    LIVE_BYTES.fetch_add(bytes as u64, Relaxed);
}

fn pages(bytes: usize) -> usize {
    (bytes >> PAGE_SHIFT) + usize::from(bytes & (PAGE_SIZE - 1) != 0)
}

/// Takes a large object; null without memory. With `zero`, its first `bytes` bytes
/// read as zero, and pages known to be zero are not touched.
pub fn alloc(bytes: usize, align: usize, zero: bool) -> *mut u8 {
    let Some(run) = alloc_run(pages(bytes).max(1), align, Migratetype::Large) else {
        return ptr::null_mut();
    };
    if zero && !run.zeroed {
        let p = run.page.address();
        let mut stretch = (0, 0);
        for (from, to) in stale_ranges(run.page) {
            if from == stretch.1 {
                stretch.1 = to;
            } else {
                // SAFETY: the stretch lies in the run, which is ours.
                unsafe { clear(p, stretch) };
                stretch = (from, to);
            }
        }
        // SAFETY: as above.
        unsafe { clear(p, stretch) };
    }
    hand_out(run)
}

/// Marks a run as a large object and counts it.
fn hand_out(run: Run) -> *mut u8 {
    let p = run.page.address();
    LIVE_BYTES.fetch_add((run_pages(run.page) << PAGE_SHIFT) as u64, Relaxed);
    // SAFETY: the run lies in an arena.
    unsafe { granule::cell_of_object(p) }.store(granule::LARGE, Relaxed);
    p
}

/// Makes the bytes from and to these distances from `p` read as zero.
///
/// # Safety
/// The stretch must lie in a run of the caller's.
unsafe fn clear(p: *mut u8, (from, to): (usize, usize)) {
    let whole = (from | to) & (os::page_size() - 1) == 0;
    // SAFETY: the caller's promise; a run is committed.
    unsafe {
        if to - from < DROP_FROM || !whole || !os::discard(p.add(from), to - from) {
            p.add(from).write_bytes(0, to - from);
        }
    }
}

fn run_at(p: *const u8) -> Option<PageRef> {
    page_of(p).filter(|page| page.kind() == PageKind::Run)
}

/// Bytes of the large object at `p`, whose granule says that it is one.
pub fn usable_size(p: *const u8) -> usize {
    run_at(p).map_or(0, |page| run_pages(page) << PAGE_SHIFT)
}

/// Gives a large object back.
///
/// # Safety
/// `p`'s granule must carry [`granule::LARGE`], and nothing may use the object.
pub unsafe fn free(p: *mut u8) {
    let bytes = usable_size(p);
    // SAFETY: an object in an arena, by its mark.
    unsafe { granule::cell_of_object(p) }.store(0, Relaxed);
    LIVE_BYTES.fetch_sub(bytes as u64, Relaxed);
    if run_at(p).is_none_or(|page| free_run(page).is_err()) {
        misuse::report("double free of a large object:", p);
    }
}

/// Resizes a large object to `bytes` (which stays large): in place, by moving page
/// tables, or by copying. Null without memory; the object is then unchanged.
///
/// # Safety
/// As [`free`]; on success the old pointer is gone.
pub unsafe fn realloc(p: *mut u8, bytes: usize) -> *mut u8 {
    let Some(page) = run_at(p) else {
        return ptr::null_mut();
    };
    let (have, want) = (run_pages(page), pages(bytes));
    if want <= have {
        shrink_run(page, want);
        LIVE_BYTES.fetch_sub(((have - want) << PAGE_SHIFT) as u64, Relaxed);
        return p;
    }
    if extend_run(page, want) {
        GROWN_IN_PLACE.fetch_add(1, Relaxed);
        LIVE_BYTES.fetch_add(((want - have) << PAGE_SHIFT) as u64, Relaxed);
        return p;
    }
    let old = have << PAGE_SHIFT;
    // What grows once grows again: where it can do so in place, if there is such a place.
    let roomy = alloc_run_with_room(want, want.max(2 * have), Migratetype::Large);
    let new = match roomy {
        Some(run) => hand_out(run),
        None => alloc(bytes, PAGE_SIZE, false),
    };
    if new.is_null() {
        return new;
    }
    // SAFETY: both runs are ours, whole pages, and do not overlap; the new one is
    // larger.
    unsafe {
        if pays_to_remap(new, old) && os::move_pages(p, new, old) {
            REMAPPED.fetch_add(1, Relaxed);
            granule::cell_of_object(p).store(0, Relaxed);
            LIVE_BYTES.fetch_sub(old as u64, Relaxed);
            // Nobody can have freed it meanwhile but by a misuse, which was reported there.
            let _ = free_empty_run(page);
        } else {
            COPIED.fetch_add(1, Relaxed);
            ptr::copy_nonoverlapping(p, new, old);
            free(p);
        }
    }
    new
}

/// Whether to move the page tables of `bytes` bytes to the run at `new` rather than copy.
fn pays_to_remap(new: *const u8, bytes: usize) -> bool {
    let whole = bytes & !(os::page_size() - 1) == bytes;
    if bytes < REMAP_FROM || !whole {
        return false;
    }
    let warm: usize = run_at(new).map_or(0, |run| {
        let warm = stale_ranges(run).take_while(|(from, _)| *from < bytes);
        warm.map(|(from, to)| to.min(bytes) - from).sum()
    });
    bytes >= REMAP_WARM_FROM || warm < bytes / 2
}
