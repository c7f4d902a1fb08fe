//! A placement-aware page allocator over mmap'd arenas.
//!
//! It hands out power-of-two chunks ([`alloc_pages`]) and runs of any number of
//! pages ([`alloc_run`]) from large reservations, placed by *mobility* so that
//! whole 2 MiB pageblocks stay free, and gives memory back to the kernel after a
//! delay. Above it, object allocators ask [`page_of`] and the
//! [`granule`] map what lies at an address.
//!
//! Bottom-up:
//! - [`os`]: the kernel's edge;
//! - [`sync`]: futex lock, atomic stores, tagged stack;
//! - [`meta`]: memory for the allocator's own records;
//! - [`slot`]: per-thread state and thread exit;
//! - [`rseq`], [`cpu`]: per-CPU state, and the sections that work on it;
//! - `arena`, [`granule`], `page`, `block`, `list`: reservations, the page map,
//!   records;
//! - `bits`, `buddy`, `zone`: free pages, placement, census;
//! - `huge`: which blocks are to have huge pages;
//! - [`pcp`], `run`, [`purge`]: page lists a slot, large runs, giving back;
//! - [`sparse`]: giving back the granule map of slabs that hold few objects;
//! - [`owner`], [`reclaim`], [`evacuate`], `remap`: who can give pages back or have
//!   them moved, which block to empty, and emptying it;
//! - [`stats`], [`text`]: what the kernel's /proc files print.
//!
//! Unsafe code is in os, meta, slot, rseq, cpu, arena, granule, huge, list, pcp,
//! purge, remap, sparse, fork and sync/lock; the algorithms above the records have none.

// `clippy.toml` lists what allocates; unit tests may.
#![cfg_attr(
    test,
    allow(
        clippy::disallowed_methods,
        clippy::disallowed_macros,
        clippy::disallowed_types
    )
)]

pub mod config;
pub mod cpu;
pub mod evacuate;
pub mod fork;
pub mod granule;
pub mod meta;
pub mod model;
pub mod os;
pub mod owner;
pub mod pcp;
pub mod purge;
pub mod reclaim;
pub mod rseq;
pub mod slot;
pub mod sparse;
pub mod stats;
pub mod sync;
pub mod text;
pub mod topology;

mod arena;
mod bits;
mod block;
mod buddy;
mod hist;
mod huge;
mod list;
mod page;
mod remap;
mod run;
mod types;
mod zone;

pub use arena::{PageMap, chunk_of, committed_bytes, for_each_head, page_of};
pub use block::Block;
pub use list::{Linked, Links, List};
pub use owner::{BlockRange, OwnerId, PageOwner};
pub use page::{Page, PageKind, PageList, PageRef};
pub use run::{
    Run, alloc_run, alloc_run_with_room, extend_run, free_empty_run, free_run, run_pages,
    shrink_run, stale_ranges,
};
pub use types::{
    GRANULE, GRANULE_SHIFT, MAX_ORDER, MIGRATETYPES, Migratetype, ORDERS, Order, PAGE_SHIFT,
    PAGE_SIZE, PAGEBLOCK_ORDER, PAGEBLOCK_PAGES, PAGEBLOCK_SIZE,
};
pub use zone::ZoneCounters;

/// What is wrong with a request about pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PageError {
    /// The page is not the first page of a chunk or run in use: freed already,
    /// or interior, or never handed out.
    NotAllocated,
    /// The address lies in no arena.
    Foreign,
    /// A page owner's `relocate` said that it moved a chunk, but the old or the new one
    /// is not its own any more. The owner is not asked to move pages again.
    BadRelocate,
    /// The range holds pages that nobody can give back or move.
    Pinned,
}

impl core::fmt::Display for PageError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::NotAllocated => {
                "not the first page of an allocation in use: was it freed already?"
            }
            Self::Foreign => "the address lies in no arena of this allocator",
            Self::BadRelocate => {
                "relocate() returned true for a chunk that it does not hold: let it free neither the old nor the new one, and refuse what it does not own"
            }
            Self::Pinned => "the range holds pages that no owner can give back or move",
        })
    }
}

impl core::error::Error for PageError {}

/// Takes 2^order pages; `None` when memory is out.
///
/// Small orders come from the calling slot's lists without a lock. The content is
/// arbitrary unless [`chunk_is_zero`] says otherwise.
#[inline]
pub fn alloc_pages(order: Order, mt: Migratetype) -> Option<PageRef> {
    if let Some(page) = pcp::get(order, mt) {
        return Some(page);
    }
    alloc_pages_slow(order, mt)
}

#[cold]
fn alloc_pages_slow(order: Order, mt: Migratetype) -> Option<PageRef> {
    // What threads' lists hold may be what is missing.
    pcp::drain_all();
    pcp::get(order, mt)
}

/// Whether a chunk just taken is known to read as zero.
#[inline]
pub fn chunk_is_zero(page: PageRef) -> bool {
    !page.is_dirty()
}

/// Gives 2^order pages back.
///
/// # Errors
/// [`PageError::NotAllocated`] unless `page` is the first page of a chunk from
/// [`alloc_pages`] that is in use; nothing is changed then.
#[inline]
pub fn free_pages(page: PageRef) -> Result<(), PageError> {
    match page.kind() {
        PageKind::Pages | PageKind::Slab | PageKind::Owned => {
            pcp::put(page, false);
            Ok(())
        }
        _ => Err(PageError::NotAllocated),
    }
}

/// As [`free_pages`], for pages whose content is unlikely to be in the cache: they
/// are used last.
///
/// # Errors
/// As [`free_pages`].
pub fn free_cold_pages(page: PageRef) -> Result<(), PageError> {
    match page.kind() {
        PageKind::Pages | PageKind::Slab | PageKind::Owned => {
            pcp::put(page, true);
            Ok(())
        }
        _ => Err(PageError::NotAllocated),
    }
}

/// As [`free_pages`] by address.
///
/// # Errors
/// As [`free_pages`], and [`PageError::Foreign`] for an address in no arena.
pub fn free_pages_at(p: *const u8) -> Result<(), PageError> {
    let page = page_of(p).ok_or(PageError::Foreign)?;
    if !(p as usize).is_multiple_of(PAGE_SIZE) {
        return Err(PageError::NotAllocated);
    }
    free_pages(page)
}
