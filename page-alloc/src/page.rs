//! The page record (the kernel's `struct page`) and lists of them.
//!
//! ```text
//!   arena:   | page 0 | page 1 | page 2 | ...            (what users get)
//!   records: | 64 B   | 64 B   | 64 B   | ...            (out of users' reach)
//!             kind order mt flags | cache | next | prev | word | private[4]
//! ```
//! Records are atomics so that they can be shared as `&'static Page`; who may
//! change a field is ruled by the page's owner: the slot for pages in its lists, the
//! holder for pages handed out. Free pages' records are not touched: what is free is
//! in the block's map. A backend uses
//! `word` and `private` of its slabs' pages as it likes.

#![deny(unsafe_code)]

use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering::Relaxed};

use crate::arena;
use crate::list::{Links, List};
use crate::types::Migratetype;

/// What a page is at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum PageKind {
    /// Never handed out.
    Unused = 0,
    /// First page of a chunk or run that was freed.
    Free = 1,
    /// First page of a run in a slot's page lists.
    Cached = 2,
    /// First page of a run that a caller of [`crate::alloc_pages`] holds.
    Pages = 3,
    /// Not the first page of a chunk, or of one that was freed meanwhile.
    Tail = 4,
    /// First page of a slab.
    Slab = 5,
    /// First page of a run of any length.
    Run = 6,
    /// First page of a chunk whose holder is registered as a page owner: `cache` is
    /// the owner's number.
    Owned = 7,
}

impl PageKind {
    fn from_u8(kind: u8) -> Self {
        match kind {
            1 => Self::Free,
            2 => Self::Cached,
            3 => Self::Pages,
            4 => Self::Tail,
            5 => Self::Slab,
            6 => Self::Run,
            7 => Self::Owned,
            _ => Self::Unused,
        }
    }
}

/// The pages of the chunk may hold data: they were in use since they were last known
/// to be zero.
pub(crate) const DIRTY: u8 = 1;
// Flags of a slab's first page: see `crate::sparse`. Taking the pages clears them.
/// Nobody is handed objects of the slab.
pub(crate) const QUIET: u8 = 2;
/// The slab's granules were given back: those of its objects in use say 0.
pub(crate) const SPARSE: u8 = 4;
/// They were, at some time.
pub(crate) const WAS_SPARSE: u8 = 8;

/// One page's record. All-zero is a valid, unused record.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Page {
    kind: AtomicU8,
    order: AtomicU8,
    migratetype: AtomicU8,
    pub(crate) flags: AtomicU8,
    cache: AtomicU32,
    pub(crate) links: Links<Page>,
    /// One word for the owner: SLUB's freelist and counters, a run's length.
    pub word: AtomicU64,
    /// Four more words for the owner.
    pub private: [AtomicU64; 4],
}

// The record is one cache line: address -> record is a shift, and two pages'
// records never share a line.
const _: () = assert!(size_of::<Page>() == 64);

/// A handle on a page: records live as long as the process.
pub type PageRef = &'static Page;

impl Page {
    /// What the page is.
    #[inline]
    pub fn kind(&self) -> PageKind {
        PageKind::from_u8(self.kind.load(Relaxed))
    }

    /// Declares what the page is. For its owner.
    #[inline]
    pub fn set_kind(&self, kind: PageKind) {
        self.kind.store(kind as u8, Relaxed);
    }

    /// log2 of the pages of the run this page belongs to (orders only).
    #[inline]
    pub fn order(&self) -> u8 {
        self.order.load(Relaxed)
    }

    #[inline]
    pub(crate) fn set_order(&self, order: u8) {
        self.order.store(order, Relaxed);
    }

    /// The type that the pages were asked for with.
    #[inline]
    pub fn migratetype(&self) -> Migratetype {
        Migratetype::from_index(self.migratetype.load(Relaxed))
    }

    #[inline]
    pub(crate) fn set_migratetype(&self, mt: Migratetype) {
        self.migratetype.store(mt as u8, Relaxed);
    }

    #[inline]
    pub(crate) fn is_dirty(&self) -> bool {
        self.flags.load(Relaxed) & DIRTY != 0
    }

    #[inline]
    pub(crate) fn set_dirty(&self, dirty: bool) {
        self.flags.store(if dirty { DIRTY } else { 0 }, Relaxed);
    }

    /// The id of the cache whose slab this is.
    #[inline]
    pub fn cache(&self) -> u32 {
        self.cache.load(Relaxed)
    }

    /// Sets the id of the cache whose slab this is.
    #[inline]
    pub fn set_cache(&self, cache: u32) {
        self.cache.store(cache, Relaxed);
    }

    /// The address of the page itself.
    #[inline]
    pub fn address(&self) -> *mut u8 {
        arena::address_of(self)
    }

    /// The node whose memory the page is.
    #[inline]
    pub fn node(&self) -> usize {
        let frame = arena::frame_of(self);
        frame.arena.node_of(frame.index)
    }

    /// The first page of the chunk of [`crate::alloc_pages`] that this page is part of
    /// (slabs are such); any other page is its own.
    #[inline]
    pub fn head(&'static self) -> PageRef {
        match self.kind() {
            // Inside a chunk of whole blocks the marks are those of earlier chunks.
            PageKind::Tail | PageKind::Free | PageKind::Unused => arena::order_head(self),
            _ => self,
        }
    }
}

/// A list of pages: slabs of one state, say.
pub type PageList = List<Page>;
