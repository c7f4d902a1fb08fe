//! The page record (the kernel's `struct page`) and lists of them.
//!
//! ```text
//!   arena:   | page 0 | page 1 | page 2 | ...            (what users get)
//!   records: | 64 B   | 64 B   | 64 B   | ...            (out of users' reach)
//!             kind order mt flags | cache | next | prev | word | private[4]
//! ```
//! Records are atomics so that they can be shared as `&'static Page`; who may
//! change a field is ruled by the page's owner: the zone lock for free pages, the
//! slot for pages in its lists, the holder for pages handed out. A backend uses
//! `word` and `private` of its slabs' pages as it likes.

#![deny(unsafe_code)]

use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU8, AtomicU32, AtomicU64, Ordering::Relaxed};

use crate::arena;
use crate::types::Migratetype;

/// What a page is at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum PageKind {
    /// Never handed out, or inside a free run.
    Unused = 0,
    /// First page of a free run on the buddy's lists.
    Free = 1,
    /// First page of a run in a slot's page lists.
    Cached = 2,
    /// First page of a run that a caller of [`crate::alloc_pages`] holds.
    Pages = 3,
    /// Not the first page of an allocated order.
    Tail = 4,
    /// First page of a slab.
    Slab = 5,
    /// First page of a run of any length.
    Run = 6,
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
            _ => Self::Unused,
        }
    }
}

/// The pages of the free run may hold data (they were in use since they were
/// last known to be zero).
pub(crate) const DIRTY: u8 = 1;

/// One page's record. All-zero is a valid, unused record.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Page {
    kind: AtomicU8,
    order: AtomicU8,
    migratetype: AtomicU8,
    flags: AtomicU8,
    cache: AtomicU32,
    next: AtomicPtr<Page>,
    prev: AtomicPtr<Page>,
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
        frame.arena.block(frame.index).node()
    }

    /// The first page of the order that this page is part of. For pages of
    /// [`crate::alloc_pages`] (slabs are such); a run's first page is itself.
    #[inline]
    pub fn head(&'static self) -> PageRef {
        if self.kind() == PageKind::Tail {
            arena::order_head(self)
        } else {
            self
        }
    }

    /// The next page on the list this page is on.
    #[inline]
    pub fn next(&self) -> Option<PageRef> {
        arena::record(self.next.load(Relaxed))
    }
}

/// A doubly linked list of page records. Guarded by whatever lock its owner
/// holds; an all-zero list is empty.
#[derive(Debug, Default)]
pub struct PageList {
    head: AtomicPtr<Page>,
    tail: AtomicPtr<Page>,
    len: AtomicU64,
}

impl PageList {
    /// An empty list.
    pub const fn new() -> Self {
        Self {
            head: AtomicPtr::new(ptr::null_mut()),
            tail: AtomicPtr::new(ptr::null_mut()),
            len: AtomicU64::new(0),
        }
    }

    /// Number of pages on the list.
    #[inline]
    pub fn len(&self) -> usize {
        self.len.load(Relaxed) as usize
    }

    /// Whether the list is empty.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.head.load(Relaxed).is_null()
    }

    /// The first page.
    #[inline]
    pub fn first(&self) -> Option<PageRef> {
        arena::record(self.head.load(Relaxed))
    }

    /// The last page.
    #[inline]
    pub fn last(&self) -> Option<PageRef> {
        arena::record(self.tail.load(Relaxed))
    }

    /// Puts a page that is on no list at the head.
    #[inline]
    pub fn push_front(&mut self, page: PageRef) {
        let at = ptr::from_ref(page).cast_mut();
        let head = self.head.load(Relaxed);
        page.prev.store(ptr::null_mut(), Relaxed);
        page.next.store(head, Relaxed);
        match arena::record(head) {
            Some(first) => first.prev.store(at, Relaxed),
            None => self.tail.store(at, Relaxed),
        }
        self.head.store(at, Relaxed);
        self.len.store(self.len.load(Relaxed) + 1, Relaxed);
    }

    /// Puts a page that is on no list at the tail.
    #[inline]
    pub fn push_back(&mut self, page: PageRef) {
        let at = ptr::from_ref(page).cast_mut();
        let tail = self.tail.load(Relaxed);
        page.next.store(ptr::null_mut(), Relaxed);
        page.prev.store(tail, Relaxed);
        match arena::record(tail) {
            Some(last) => last.next.store(at, Relaxed),
            None => self.head.store(at, Relaxed),
        }
        self.tail.store(at, Relaxed);
        self.len.store(self.len.load(Relaxed) + 1, Relaxed);
    }

    /// Takes a page off this list, which it must be on.
    #[inline]
    pub fn remove(&mut self, page: PageRef) {
        let (next, prev) = (page.next.load(Relaxed), page.prev.load(Relaxed));
        match arena::record(prev) {
            Some(p) => p.next.store(next, Relaxed),
            None => self.head.store(next, Relaxed),
        }
        match arena::record(next) {
            Some(n) => n.prev.store(prev, Relaxed),
            None => self.tail.store(prev, Relaxed),
        }
        self.len.store(self.len.load(Relaxed) - 1, Relaxed);
    }

    /// Takes the first page.
    #[inline]
    pub fn pop_front(&mut self) -> Option<PageRef> {
        let page = self.first()?;
        self.remove(page);
        Some(page)
    }

    /// Takes the last page.
    #[inline]
    pub fn pop_back(&mut self) -> Option<PageRef> {
        let page = self.last()?;
        self.remove(page);
        Some(page)
    }

    /// Makes the list whole again after its owner disappeared in the middle of an
    /// operation (the child of a fork). The links forward from the head are whole at
    /// each step of the operations above; everything else follows from them.
    pub(crate) fn repair(&mut self) {
        let mut len = 0;
        let mut last = ptr::null_mut();
        let mut at = self.head.load(Relaxed);
        while let Some(page) = arena::record(at) {
            page.prev.store(last, Relaxed);
            len += 1;
            last = at;
            at = page.next.load(Relaxed);
        }
        self.tail.store(last, Relaxed);
        self.len.store(len, Relaxed);
    }

    /// The pages from head to tail. The list must not change meanwhile.
    pub fn iter(&self) -> impl Iterator<Item = PageRef> {
        core::iter::successors(self.first(), |page| page.next())
    }

    /// The pages from tail to head. The list must not change meanwhile.
    pub fn iter_back(&self) -> impl Iterator<Item = PageRef> {
        core::iter::successors(self.last(), |page| arena::record(page.prev.load(Relaxed)))
    }
}
