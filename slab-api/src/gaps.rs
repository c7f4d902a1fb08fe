//! Giving back the pages that lie wholly in free objects of slabs that are in use.
//!
//! ```text
//!   slab:   | used | free | free | free | used | ...
//!   pages:  |   0    |    1    |    2    |    3   |
//!                     ^^^^^^^^^ nothing but free objects: given back
//! ```
//! After a churn a few objects hold many slabs. `malloc_trim` goes over them: a free
//! object's bytes are nobody's (unless the cache has a constructor, or links its free
//! objects through them), so whole pages of them need no memory.

use page_alloc::purge;

/// A walk over a slab's free objects, by address.
#[derive(Debug, Default)]
pub struct Gaps {
    from: usize,
    to: usize,
    pages: usize,
}

impl Gaps {
    /// A walk that has seen nothing.
    pub const fn new() -> Self {
        Self {
            from: 0,
            to: 0,
            pages: 0,
        }
    }

    /// Adds the next free object: `bytes` bytes at `p`, which is above those added
    /// before.
    ///
    /// # Safety
    /// The object must stay free until [`Self::finish`], and its content be of no use.
    pub unsafe fn add(&mut self, p: *mut u8, bytes: usize) {
        let at = p as usize;
        if at != self.to {
            self.flush();
            self.from = at;
        }
        self.to = at + bytes;
    }

    fn flush(&mut self) {
        let at = core::ptr::with_exposed_provenance_mut(self.from);
        if self.to > self.from {
            // SAFETY: free objects of the caller's slab, as it promised.
            self.pages += unsafe { purge::discard_inside(at, self.to - self.from) };
        }
        (self.from, self.to) = (0, 0);
    }

    /// Gives the last stretch back too; returns the pages given back in all.
    pub fn finish(mut self) -> usize {
        self.flush();
        self.pages
    }
}
