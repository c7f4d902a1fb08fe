//! Owners of pages: who can give pages back or move them when the allocator asks.
//!
//! The shape is that of page-alloc's own contract, for any page type. A backend that takes owners
//! ([`super::PageBackend::RECLAIMS`]) calls them from inside its `get`; for the others the workload does what a caller
//! of such an allocator would have to do, and asks the same owners itself.

/// Somebody who holds pages of type `P` and can let go of them.
pub trait Owner<P>: Sync {
    /// Gives back those runs of this owner that start at `heads`, all of them inside one pageblock; returns the pages
    /// given back.
    fn shrink_block(&self, heads: &[P]) -> usize {
        let _ = heads;
        0
    }

    /// Gives back up to `pages` pages, oldest first; returns how many.
    fn shrink(&self, pages: usize) -> usize {
        let _ = pages;
        0
    }

    /// Moves the run `old` to `new`, of the same order: copies it and repoints every reference. The allocator frees
    /// `old` after true; false refuses and leaves everything as it was.
    ///
    /// # Safety
    /// `new` must be a fresh chunk of the same order that nobody else has.
    unsafe fn relocate(&self, old: P, new: P) -> bool {
        let _ = (old, new);
        false
    }
}
