//! Giving back the pages that lie wholly in free objects of slabs that are in use.
//!
//! ```text
//!   slab:   | used | free | free | free | used | ... | free | rest |
//!   pages:  |   0    |    1    |    2    |    3   |      n       |
//!                     ^^^^^^^^^ nothing but free objects: given back, and page n too
//! ```
//! After a churn a few objects hold many slabs. `malloc_trim` goes over them: a free
//! object's bytes are nobody's (unless the cache has a constructor, or links its free
//! objects through them), so whole pages of them need no memory. What lies before the
//! first object of a slab and behind the last counts with it.

use core::ops::Range;

use page_alloc::purge;

/// A walk over a slab's free objects, by address.
#[derive(Debug)]
pub struct Gaps {
    slab: Range<usize>,
    objects: Range<usize>,
    from: usize,
    to: usize,
    pages: usize,
}

impl Gaps {
    /// A walk that has seen nothing, of a slab whose objects fill the addresses
    /// `objects`; nobody uses what else there is in `slab`.
    pub fn new(slab: Range<usize>, objects: Range<usize>) -> Self {
        Self {
            slab,
            objects,
            from: 0,
            to: 0,
            pages: 0,
        }
    }

    /// Adds the next free object: `bytes` bytes at `p`, which is above those added
    /// before.
    ///
    /// # Safety
    /// The object must stay free until [`Self::finish`], and its content be of no use, as
    /// that of the slab outside of its objects.
    pub unsafe fn add(&mut self, p: *mut u8, bytes: usize) {
        let at = p as usize;
        if at != self.to {
            self.flush();
            self.from = if at == self.objects.start {
                self.slab.start
            } else {
                at
            };
        }
        self.to = at + bytes;
    }

    fn flush(&mut self) {
        let at = core::ptr::with_exposed_provenance_mut(self.from);
        if self.to == self.objects.end {
            self.to = self.slab.end;
        }
        if self.to > self.from {
            // SAFETY: free objects of the caller's slab, and what nobody uses beside
            // them, as it promised.
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
