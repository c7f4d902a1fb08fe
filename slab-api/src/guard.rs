//! Guard pages behind slabs, for caches that ask for them ([`CacheDesc::guarded`]).
//!
//! ```text
//!   | object | object | ... | object | rest | guard |  next chunk of pages
//!   '------------- readable, writable ------'  none
//! ```
//! A backend takes and gives back its slabs here and counts the guard's bytes as used
//! up. The guard is the chunk's last page, so that pages come back whole: a chunk whose
//! guard cannot be opened again stays out of use. Without a guard (the usual case) the
//! cost is one comparison for each slab.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use page_alloc::{Migratetype, Order, PAGE_SIZE, PageRef, alloc_pages, free_pages, os};

use crate::cache::CacheDesc;

/// The least order of a slab with a guard: the guard is then at most 1/8 of it.
pub const MIN_ORDER: u8 = 3;

static ARMED: AtomicU64 = AtomicU64::new(0);
static REFUSED: AtomicU64 = AtomicU64::new(0);
static STUCK: AtomicU64 = AtomicU64::new(0);

/// How often pages were made guards, how often the kernel refused it (the number of
/// mappings of a process is limited), and how often a guard could not be opened again.
pub fn counts() -> (u64, u64, u64) {
    (
        ARMED.load(Relaxed),
        REFUSED.load(Relaxed),
        STUCK.load(Relaxed),
    )
}

/// Bytes at the end of each slab of such a cache that hold no objects. 0 where the
/// kernel's pages are larger than this crate's: a guard would be most of a slab.
pub fn bytes(desc: &CacheDesc<'_>) -> usize {
    if desc.guarded && os::page_size() == PAGE_SIZE {
        PAGE_SIZE
    } else {
        0
    }
}

/// Takes the pages of a slab; its last `guard` bytes are inaccessible.
#[inline]
pub fn alloc_slab(order: Order, mt: Migratetype, guard: usize) -> Option<PageRef> {
    let head = alloc_pages(order, mt)?;
    if guard > 0 {
        // SAFETY: the chunk is ours and whole pages of the kernel; nobody uses its end.
        unsafe { arm(head.address().add(order.bytes() - guard), guard) };
    }
    Some(head)
}

/// Gives the pages of a slab of [`alloc_slab`] back.
#[inline]
pub fn free_slab(head: PageRef, guard: usize) {
    if guard > 0 {
        let bytes = PAGE_SIZE << head.order();
        // SAFETY: the guard that `alloc_slab` made.
        if !unsafe { disarm(head.address().add(bytes - guard), guard) } {
            return;
        }
    }
    let _ = free_pages(head);
}

/// Makes pages inaccessible. A refusal is counted; the pages then stay as they are.
///
/// # Safety
/// Whole kernel pages of an arena that the caller owns and nothing uses.
pub(crate) unsafe fn arm(at: *mut u8, bytes: usize) {
    // SAFETY: promised by the caller.
    if unsafe { os::protect_none(at, bytes) } {
        ARMED.fetch_add(1, Relaxed);
    } else {
        REFUSED.fetch_add(1, Relaxed);
    }
}

/// Makes pages accessible again. False (and counted) when the kernel refuses: they must
/// not go back to the page layer then.
///
/// # Safety
/// Pages that [`arm`] was asked for.
#[must_use]
pub(crate) unsafe fn disarm(at: *mut u8, bytes: usize) -> bool {
    // SAFETY: promised by the caller; pages of an arena lie within its reservation.
    let open = unsafe { os::commit(at, bytes) };
    if !open {
        STUCK.fetch_add(1, Relaxed);
    }
    open
}
