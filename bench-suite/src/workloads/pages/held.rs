//! A page allocator under test, and a chunk in the hand of whoever took it.
//!
//! A [`Held`] chunk is its holder's alone from `take` to `give_back`, which consumes it. That is what makes it sound to
//! write to its memory, and it leaves no way to free a chunk twice.

use super::owner::Owner;
use page_alloc::{Migratetype, Order, PAGE_SIZE};
use std::ptr::NonNull;

/// What the allocator itself counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OwnCounters {
    /// Pages placed in a block that held pages of another type.
    pub mixing_events: u64,
    /// Chunks taken from a block that kept another type.
    pub steals: u64,
    /// Blocks of another type that were claimed, whole or in part.
    pub claims: u64,
}

/// A page allocator under test.
///
/// # Safety
/// `get` and `get_owned` must return chunks of 2^order pages of writable memory that start at `address` and that
/// nobody else has, until `put` takes them or the owner agreed to a relocation.
pub unsafe trait PageBackend: Sync + Sized + 'static {
    /// The name on the command line.
    const NAME: &'static str;
    /// Does `get` ask owners to give back and to move, before it fails?
    const RECLAIMS: bool;
    /// A chunk's first page.
    type Page: Copy + Send + Sync + 'static;
    /// A registered owner.
    type Owner: Copy + Send + Sync + 'static;

    /// An allocator over an arena of `bytes` bytes. Once a process: settings and arenas may be shared.
    fn create(bytes: usize) -> Result<Self, String>;
    /// Registers whom to ask for the pages of one owner.
    fn register(&self, owner: &'static dyn Owner<Self::Page>) -> Result<Self::Owner, String>;
    /// Takes 2^order pages; `None` when there are none.
    fn get(&self, order: Order, migratetype: Migratetype) -> Option<Self::Page>;
    /// As `get`, for pages that `owner` can give back or move.
    fn get_owned(
        &self,
        owner: Self::Owner,
        order: Order,
        migratetype: Migratetype,
    ) -> Option<Self::Page>;
    /// Gives a chunk back.
    ///
    /// # Safety
    /// `page` must come from `get` or `get_owned` with this order (or from a relocation), and nobody may use it again.
    unsafe fn put(&self, page: Self::Page, order: Order);
    /// The address of a page.
    fn address(&self, page: Self::Page) -> NonNull<u8>;
    /// What the allocator counted so far; zeros for one that does not count.
    fn counters(&self) -> OwnCounters {
        OwnCounters::default()
    }
}

/// A chunk that its holder may write to, and must give back.
#[must_use = "a chunk that is dropped stays allocated for ever"]
pub struct Held<B: PageBackend> {
    page: B::Page,
    order: Order,
}

impl<B: PageBackend> Held<B> {
    /// Takes a chunk.
    #[inline]
    pub fn take(backend: &B, order: Order, migratetype: Migratetype) -> Option<Self> {
        let page = backend.get(order, migratetype)?;
        Some(Self { page, order })
    }

    /// Takes a chunk that `owner` can give back or move.
    pub fn take_owned(
        backend: &B,
        owner: B::Owner,
        order: Order,
        migratetype: Migratetype,
    ) -> Option<Self> {
        let page = backend.get_owned(owner, order, migratetype)?;
        Some(Self { page, order })
    }

    /// Gives the chunk back.
    #[inline]
    pub fn give_back(self, backend: &B) {
        // SAFETY: the chunk came from this backend with this order and is consumed here. (A process has one backend.)
        unsafe { backend.put(self.page, self.order) };
    }

    /// The chunk's first page.
    pub fn page(&self) -> B::Page {
        self.page
    }

    /// Number of pages.
    pub fn pages(&self) -> usize {
        self.order.pages()
    }

    /// Writes a word to the chunk, so that its memory is touched and its identity can be told.
    pub fn stamp(&mut self, backend: &B, word: u64) {
        // SAFETY: the chunk is this holder's alone, at least a page long and aligned to a page.
        unsafe { backend.address(self.page).cast::<u64>().write(word) };
    }

    /// Reads back what `stamp` wrote; anything else for a chunk never stamped.
    pub fn stamped(&self, backend: &B) -> u64 {
        // SAFETY: as in `stamp`; anonymous memory reads as something.
        unsafe { backend.address(self.page).cast::<u64>().read_volatile() }
    }

    /// Moves the chunk to the pages at `new`: copies its content and holds `new` from now on. The allocator that asked
    /// for it frees the old pages.
    ///
    /// # Safety
    /// `new` must be a fresh chunk of the same order that the allocator hands over with this call.
    pub unsafe fn move_to(&mut self, backend: &B, new: B::Page) {
        let bytes = PAGE_SIZE << self.order.get();
        let (from, to) = (backend.address(self.page), backend.address(new));
        // SAFETY: both chunks have this length, and two chunks in use do not overlap.
        unsafe { to.copy_from_nonoverlapping(from, bytes) };
        self.page = new;
    }
}
