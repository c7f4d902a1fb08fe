//! Large objects of the secure heap: a run of pages each, between guards.
//!
//! ```text
//!   run:  | guard, 1 to 4 pages | object, whole pages | guard, 1 to 4 pages |
//!         '------ distance -----'p                                          'run's end
//! ```
//! The record of the object's first page holds the distance to the run's start and the
//! object's bytes. A freed object loses its pages and becomes one large guard for a while,
//! in a quarantine with random replacement; pages go back to the page layer accessible
//! and zero, or not at all.

use core::ptr;
use core::sync::atomic::Ordering::{AcqRel, Relaxed};

use page_alloc::sync::{FutexLock, Lock};
use page_alloc::{
    Migratetype, PAGE_SHIFT, PAGE_SIZE, PageKind, PageRef, alloc_run, free_run, granule, os,
    page_of, run_pages, shrink_run, stale_ranges,
};

use super::random::Random;
use super::secret::Secret;
use crate::{guard, large, misuse};

/// Places in the quarantine.
const PLACES: usize = 32;
/// Larger objects are not quarantined: their address space is worth more.
const LARGEST: usize = 8 << 20;
/// From so many bytes on, moving page tables beats copying, and discarding beats
/// clearing.
const REMAP_FROM: usize = 256 << 10;
/// Most pages of a guard.
const GUARD_PAGES: usize = 4;

/// Words of the record of an object's first page.
const DISTANCE: usize = 2;
const BYTES: usize = 3;

struct Quarantine {
    random: Random,
    places: [Option<PageRef>; PLACES],
}

static QUARANTINE: Lock<Quarantine> = Lock::new(Quarantine {
    random: Random::new(u32::MAX),
    places: [None; PLACES],
});

/// The quarantine's lock, for the fork handlers.
pub(crate) fn with_raw_lock(f: &mut dyn FnMut(&FutexLock)) {
    // SAFETY: the fork handlers mark, take and release raw locks in pairs.
    f(unsafe { QUARANTINE.raw() });
}

/// The unit of protection, in bytes.
fn unit() -> usize {
    os::page_size().max(PAGE_SIZE)
}

/// Takes a large object; null without memory.
pub(crate) fn alloc(bytes: usize, align: usize, zero: bool, secret: &Secret) -> *mut u8 {
    let p = try_alloc(bytes, align, zero, secret);
    if p.is_null() && release_all() {
        try_alloc(bytes, align, zero, secret)
    } else {
        p
    }
}

fn try_alloc(bytes: usize, align: usize, zero: bool, secret: &Secret) -> *mut u8 {
    place(bytes, align, zero, secret).unwrap_or(ptr::null_mut())
}

fn place(bytes: usize, align: usize, zero: bool, secret: &Secret) -> Option<*mut u8> {
    let unit = unit();
    let data = bytes.max(1).checked_next_multiple_of(unit)?;
    let [before, behind] = {
        let random = &mut QUARANTINE.lock().random;
        [(); 2].map(|()| unit * (1 + random.below(GUARD_PAGES, secret)))
    };
    let strict = align > unit;
    let extra = if strict { align } else { 0 };
    let total = data
        .checked_add(extra)?
        .checked_add(before)?
        .checked_add(behind)?;
    let run = alloc_run(total >> PAGE_SHIFT, unit, Migratetype::Large)?;
    let base = run.page.address();
    let mut end = total;
    let mut distance = before;
    if strict {
        let at = (base as usize).checked_add(before)?;
        distance = before + (at.wrapping_neg() & (align - 1));
        end = distance + data + behind;
        shrink_run(run.page, end >> PAGE_SHIFT);
    }
    let p = base.wrapping_add(distance);
    // SAFETY: the run is ours, and these are whole kernel pages of it.
    unsafe {
        if zero && !run.zeroed {
            for (from, to) in stale_ranges(run.page) {
                let (from, to) = (from.max(distance), to.min(distance + data));
                if from < to {
                    clear(base.add(from), to - from);
                }
            }
        }
        guard::arm(base, distance);
        guard::arm(p.add(data), end - distance - data);
    }
    let record = page_of(p)?;
    record.private[DISTANCE].store(distance as u64, Relaxed);
    record.private[BYTES].store(data as u64, Relaxed);
    large::account(data as isize);
    // SAFETY: an address inside an arena, ours.
    unsafe { granule::mark(p, granule::LARGE) };
    Some(p)
}

/// Makes pages read as zero.
///
/// # Safety
/// Whole kernel pages of the caller, accessible.
unsafe fn clear(p: *mut u8, bytes: usize) {
    // SAFETY: promised by the caller.
    unsafe {
        if bytes < REMAP_FROM || !os::discard(p, bytes) {
            p.write_bytes(0, bytes);
        }
    }
}

/// Bytes of the large object at `p`, whose mark says that it is one.
pub(crate) fn usable_size(p: *const u8) -> usize {
    page_of(p).map_or(0, |record| record.private[BYTES].load(Relaxed) as usize)
}

/// The run of the object at `p`, in use or in quarantine.
fn run_of(p: *const u8) -> Option<PageRef> {
    let distance = page_of(p)?.private[DISTANCE].load(Relaxed) as usize;
    let start = page_of(p.wrapping_sub(distance))?;
    (distance > 0 && start.kind() == PageKind::Run).then_some(start)
}

/// Gives a large object back.
///
/// # Safety
/// Nothing may use the object, whose mark said that it is one.
pub(crate) unsafe fn free(p: *mut u8, secret: &Secret) {
    // SAFETY: an address inside an arena, by its mark.
    let mark = unsafe { granule::cell_of_object(p) };
    // Two threads may free the object at once: one of them gets it.
    if mark
        .compare_exchange(granule::LARGE, 0, AcqRel, Relaxed)
        .is_err()
    {
        return misuse::report("double free of a large object:", p);
    }
    let (Some(run), data) = (run_of(p), usable_size(p)) else {
        return;
    };
    large::account(-(data as isize));
    // SAFETY: the object is ours now, whole kernel pages.
    unsafe {
        if !os::discard(p, data) {
            p.write_bytes(0, data);
        }
        guard::arm(p, data);
    }
    run.private[DISTANCE].store(p as u64, Relaxed);
    if data > LARGEST {
        return release(run);
    }
    let out = {
        let mut quarantine = QUARANTINE.lock();
        let at = quarantine.random.below(PLACES, secret);
        quarantine.places[at].replace(run)
    };
    if let Some(out) = out {
        release(out);
    }
}

/// Whether `p` is a large object that was freed and is in quarantine.
pub(crate) fn is_quarantined(p: *const u8) -> bool {
    (p as usize).is_multiple_of(PAGE_SIZE)
        && run_of(p).is_some_and(|run| run.private[DISTANCE].load(Relaxed) == p as u64)
}

/// Opens a freed object's pages and gives them back.
fn release(run: PageRef) {
    let p: *mut u8 =
        ptr::with_exposed_provenance_mut(run.private[DISTANCE].swap(0, Relaxed) as usize);
    if let Some(record) = page_of(p) {
        record.private[DISTANCE].store(0, Relaxed);
        record.private[BYTES].store(0, Relaxed);
    }
    // SAFETY: all of the run is ours.
    if unsafe { guard::disarm(run.address(), run_pages(run) << PAGE_SHIFT) } {
        let _ = free_run(run);
    }
}

/// Empties the quarantine: memory is out. True when there was something.
#[cold]
pub(crate) fn release_all() -> bool {
    let all = core::mem::replace(&mut QUARANTINE.lock().places, [None; PLACES]);
    let mut some = false;
    for run in all.into_iter().flatten() {
        release(run);
        some = true;
    }
    some
}

/// Resizes a large object: in place within its run, by moving page tables, or by
/// copying. Null without memory; the object is then unchanged.
///
/// # Safety
/// As [`free`]; on success the old pointer is gone.
pub(crate) unsafe fn realloc(p: *mut u8, bytes: usize, secret: &Secret) -> *mut u8 {
    let Some(run) = run_of(p) else {
        return ptr::null_mut();
    };
    let unit = unit();
    let (have, Some(want)) = (usable_size(p), bytes.checked_next_multiple_of(unit)) else {
        return ptr::null_mut();
    };
    let end = run.address() as usize + (run_pages(run) << PAGE_SHIFT);
    // SAFETY: the object is the caller's, and so is the run; whole kernel pages.
    unsafe {
        if want <= have {
            if want < have {
                let tail = p.add(want);
                if !os::discard(tail, have - want) {
                    tail.write_bytes(0, have - want);
                }
                guard::arm(tail, have - want);
                resize(p, have, want);
            }
            return p;
        }
        // Room that an earlier cut left to the guard.
        if want <= end - p as usize - unit && guard::disarm(p.add(have), want - have) {
            resize(p, have, want);
            return p;
        }
        let new = alloc(bytes, unit, false, secret);
        if new.is_null() {
            return new;
        }
        if have < REMAP_FROM || !os::move_pages(p, new, have) {
            ptr::copy_nonoverlapping(p, new, have);
        }
        free(p, secret);
        new
    }
}

fn resize(p: *mut u8, have: usize, want: usize) {
    if let Some(record) = page_of(p) {
        record.private[BYTES].store(want as u64, Relaxed);
    }
    large::account(want as isize - have as isize);
}
