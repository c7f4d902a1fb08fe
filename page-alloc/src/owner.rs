//! Page owners: those who can give pages back, or have them moved, when asked.
//!
//! The contract behind the migratetypes. An owner registers once and takes its chunks
//! with [`OwnerId::alloc_pages`]; each chunk's record then names it, so a block that
//! is wanted empty leads to everyone who has pages in it.
//!
//! | type | the owner promises | what it implements |
//! |---|---|---|
//! | Unmovable | nothing | nothing |
//! | Reclaimable | to give the pages of a named block back | [`PageOwner::shrink_block`], [`PageOwner::shrink`] |
//! | Movable | to let a chunk be moved | [`PageOwner::relocate`], or [`PageOwner::relocate_run`] too |

#![deny(unsafe_code)]

use core::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::OnceLock;

use crate::alloc_pages;
use crate::arena::Frame;
use crate::bits::Bits;
use crate::page::{PageKind, PageRef};
use crate::types::{Migratetype, Order, PAGEBLOCK_PAGES};

/// What an owner of pages does when asked. All of it may be called from inside any
/// allocation, in any thread, with none of the page allocator's locks held, one call
/// at a time.
///
/// An implementation must not wait for a lock that may be held around an allocation:
/// try it, and refuse (return 0 or false) when it is taken. It may free pages; pages
/// that it allocates meanwhile come without reclaim.
pub trait PageOwner: Sync {
    /// Gives back pages of this owner that lie in `block`, with
    /// [`crate::free_pages`]; returns how many pages that were.
    fn shrink_block(&self, block: BlockRange) -> usize {
        let _ = block;
        0
    }

    /// Gives back up to `pages` pages wherever they are, those unused for longest
    /// first; returns how many.
    fn shrink(&self, pages: usize) -> usize {
        let _ = pages;
        0
    }

    /// Moves the chunk `old` to `new`, which has the same order: copies the content
    /// and lets every reference point there. True when that is done; `old` is then
    /// freed by the caller, not by this function. False when the chunk is not this
    /// owner's any more or cannot be moved now.
    fn relocate(&self, old: PageRef, new: PageRef) -> bool {
        let _ = (old, new);
        false
    }

    /// Moves all chunks that lie in the `pages` pages from `old` on to the same places
    /// from `new` on. `transfer` moves the contents, by remapping where that is
    /// cheaper: the implementation makes sure that nobody uses the old pages, calls it
    /// once, and lets every reference point to the new chunks. All or nothing: false
    /// before `transfer` was called when any of the chunks cannot be moved.
    ///
    /// Owners that do not implement it are asked chunk by chunk.
    fn relocate_run(
        &self,
        old: PageRef,
        new: PageRef,
        pages: usize,
        transfer: &mut dyn FnMut(),
    ) -> bool {
        let _ = (old, new, pages, transfer);
        false
    }
}

const MAX_OWNERS: usize = 32;
static OWNERS: [OnceLock<&'static dyn PageOwner>; MAX_OWNERS] =
    [const { OnceLock::new() }; MAX_OWNERS];
/// Owners that registered.
static COUNT: AtomicU32 = AtomicU32::new(0);
/// Bit `n`: owner `n` lied about moving a chunk.
static DISTRUSTED: AtomicU32 = AtomicU32::new(0);

/// Every place for owners is taken: 32 are the most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegisterError;

impl core::fmt::Display for RegisterError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("32 page owners are registered already: let several users share one")
    }
}

impl core::error::Error for RegisterError {}

/// A registered owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnerId(u8);

/// Registers an owner, for the life of the process.
///
/// # Errors
/// [`RegisterError`] after 32 owners.
pub fn register(owner: &'static dyn PageOwner) -> Result<OwnerId, RegisterError> {
    for (n, cell) in OWNERS.iter().enumerate() {
        if cell.set(owner).is_ok() {
            COUNT.fetch_add(1, Relaxed);
            return Ok(OwnerId(n as u8));
        }
    }
    Err(RegisterError)
}

/// Whether there is anybody to ask.
pub(crate) fn any() -> bool {
    COUNT.load(Relaxed) > 0
}

/// All owners.
pub(crate) fn all() -> impl Iterator<Item = (OwnerId, &'static dyn PageOwner)> {
    OWNERS
        .iter()
        .enumerate()
        .filter_map(|(n, cell)| Some((OwnerId(n as u8), *cell.get()?)))
}

impl OwnerId {
    /// [`crate::alloc_pages`] for this owner; give the chunk back with
    /// [`crate::free_pages`] as usual.
    pub fn alloc_pages(self, order: Order, mt: Migratetype) -> Option<PageRef> {
        let page = alloc_pages(order, mt)?;
        self.mark(page);
        Some(page)
    }

    /// Whether the chunk that starts at `page` is this owner's.
    pub fn owns(self, page: PageRef) -> bool {
        Self::of(page) == Some(self)
    }

    /// The owner of the chunk that starts at `page`.
    pub(crate) fn of(page: PageRef) -> Option<Self> {
        (page.kind() == PageKind::Owned).then(|| Self(page.cache() as u8))
    }

    pub(crate) fn mark(self, page: PageRef) {
        page.set_cache(u32::from(self.0));
        page.set_kind(PageKind::Owned);
    }

    pub(crate) fn get(self) -> Option<&'static dyn PageOwner> {
        OWNERS.get(self.0 as usize)?.get().copied()
    }

    pub(crate) fn bit(self) -> u32 {
        1 << self.0
    }

    pub(crate) fn distrust(self) {
        DISTRUSTED.fetch_or(self.bit(), Relaxed);
    }

    pub(crate) fn is_trusted(self) -> bool {
        DISTRUSTED.load(Relaxed) & self.bit() == 0
    }
}

/// A pageblock that is to be emptied.
#[derive(Clone, Copy)]
pub struct BlockRange(pub(crate) Frame);

impl core::fmt::Debug for BlockRange {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_tuple("BlockRange").field(&self.start()).finish()
    }
}

impl BlockRange {
    /// The address of its first byte; it has [`crate::PAGEBLOCK_SIZE`] bytes.
    pub fn start(self) -> *mut u8 {
        self.0.arena.address(self.0.index)
    }

    /// The chunks of an owner that start in the block, by address: the linear scan.
    /// What other threads do meanwhile may be seen or not.
    pub fn pages_of(self, owner: OwnerId) -> impl Iterator<Item = PageRef> {
        self.heads().filter(move |page| owner.owns(page))
    }

    /// The pages of the block that are not free.
    pub(crate) fn heads(self) -> impl Iterator<Item = PageRef> {
        let Frame { arena, index } = self.0;
        let free = arena.block(index).free_map();
        Bits::range(0, PAGEBLOCK_PAGES)
            .minus(free)
            .iter()
            .map(move |at| arena.page(index + at))
    }
}
