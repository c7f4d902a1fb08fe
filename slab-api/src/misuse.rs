//! Misuse: what is said, and what follows.
//!
//! One line on standard error: what was done, to which pointer, and which cache
//! and object that is; then abort, unless `on_error` says otherwise. Nothing here
//! allocates.

use core::fmt::Write;
use core::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};

use page_alloc::text::FdWriter;
use page_alloc::{PageKind, PageRef, granule, page_of};

use crate::{registry, sparse};

/// What follows a detected misuse.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum OnError {
    /// Report, then abort.
    Abort = 0,
    /// Report, and go on without doing what was asked.
    Report = 1,
    /// Go on without doing what was asked.
    Ignore = 2,
}

static ON_ERROR: AtomicU8 = AtomicU8::new(0);
static DETECTED: AtomicU64 = AtomicU64::new(0);

/// Sets what follows a detected misuse.
pub fn set_on_error(on_error: OnError) {
    ON_ERROR.store(on_error as u8, Relaxed);
}

/// How many misuses were detected (and survived).
pub fn detected() -> u64 {
    DETECTED.load(Relaxed)
}

/// Counts a detected misuse; what is to follow.
pub(crate) fn note() -> OnError {
    DETECTED.fetch_add(1, Relaxed);
    match ON_ERROR.load(Relaxed) {
        1 => OnError::Report,
        2 => OnError::Ignore,
        _ => OnError::Abort,
    }
}

/// Stops the process where that is to follow.
pub(crate) fn obey(on_error: OnError) {
    if on_error == OnError::Abort {
        // SAFETY: abort has no preconditions.
        unsafe { libc::abort() };
    }
}

/// The id of the cache whose slab holds an address.
pub fn cache_at(p: *const u8) -> Option<u32> {
    let head = page_of(p)?.head();
    (head.kind() == PageKind::Slab).then(|| head.cache())
}

/// Reports `what` was done to `p`, with what is known about the address.
#[cold]
#[inline(never)]
pub fn report(what: &str, p: *const u8) {
    let on_error = note();
    if on_error == OnError::Ignore {
        return;
    }
    let mut out = FdWriter::new(2);
    let _ = write!(out, "slab: {what} {p:p}");
    describe(&mut out, p);
    let _ = out.write_char('\n');
    out.flush();
    obey(on_error);
}

fn describe(out: &mut FdWriter, p: *const u8) {
    let Some(page) = page_of(p) else {
        let _ = write!(
            out,
            " (no arena of this allocator: stack, static, or another malloc's)"
        );
        return;
    };
    let head = page.head();
    if head.kind() == PageKind::Slab
        && let Some(cache) = registry::get(head.cache())
    {
        let offset = (p as usize).wrapping_sub(head.address() as usize);
        let _ = write!(
            out,
            " (cache {}, {} bytes an object, offset {offset} of the slab at {:p})",
            cache.name(),
            cache.stride,
            head.address()
        );
    } else if head.kind() == PageKind::Run {
        let _ = write!(
            out,
            " (a large object of {} pages at {:p})",
            page_alloc::run_pages(head),
            head.address()
        );
    } else {
        let _ = write!(out, " (pages that no object uses)");
    }
}

/// Finds out what is wrong with a free of `p` by the backend `by`, and reports it.
#[cold]
#[inline(never)]
pub fn report_free(p: *const u8, by: &str) {
    let _ = by;
    report(diagnose(p), p);
}

/// What is wrong with a free of `p`.
pub(crate) fn diagnose(p: *const u8) -> &'static str {
    let Some(page) = page_of(p) else {
        return "free of a foreign pointer";
    };
    let Some(mark) = granule::cell(p) else {
        return "free of a misaligned pointer";
    };
    if sparse::mark_at(p, mark) != 0 {
        return "free to the wrong cache of an object at";
    }
    let head = page.head();
    if head.kind() == PageKind::Slab
        && let Some(cache) = registry::get(head.cache())
    {
        // An object starts where some neighbour in the slab could: look back for a
        // live object that covers the address.
        let start = head.address() as usize;
        let mut at = p as usize;
        for _ in 0..cache.stride / 16 {
            if at <= start {
                break;
            }
            at -= 16;
            let live = granule::cell(core::ptr::with_exposed_provenance(at))
                .is_some_and(|m| m.load(Relaxed) != 0);
            if live {
                return if (p as usize) < at + cache.stride as usize {
                    "free of a pointer into the middle of an object:"
                } else {
                    "double free of"
                };
            }
        }
    } else if run_over(p).is_some() {
        return "free of a pointer into the middle of a large object:";
    }
    "double free of"
}

/// The first page of the large object in use that covers the address.
pub(crate) fn run_over(p: *const u8) -> Option<PageRef> {
    let mut at = p as usize & !(page_alloc::PAGE_SIZE - 1);
    loop {
        let page = page_of(core::ptr::with_exposed_provenance(at))?;
        match page.kind() {
            PageKind::Run => {
                let bytes = page_alloc::run_pages(page) * page_alloc::PAGE_SIZE;
                return ((p as usize) < page.address() as usize + bytes).then_some(page);
            }
            PageKind::Slab | PageKind::Pages | PageKind::Cached => return None,
            _ => {}
        }
        at = at.checked_sub(page_alloc::PAGE_SIZE)?;
    }
}
