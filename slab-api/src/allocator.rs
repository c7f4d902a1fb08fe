//! `allocator-api2`: collections with a heap of their own, as
//! `Vec::new_in(&heap)`.
//!
//! ```text
//!   grow    alignment <= 16: Heap::realloc (in place, page tables, copy)
//!   shrink  same class, or both large: in place; else a smaller object
//!   stricter alignments: a new block and a copy
//! ```

use core::alloc::{GlobalAlloc, Layout};
use core::ptr::{self, NonNull};

use allocator_api2::alloc::{AllocError, Allocator};

use page_alloc::GRANULE;

use crate::cache::{MAX_OBJECT, ObjectCache};
use crate::class;
use crate::heap::Heap;

fn block(p: *mut u8, size: usize) -> Result<NonNull<[u8]>, AllocError> {
    NonNull::new(ptr::slice_from_raw_parts_mut(p, size)).ok_or(AllocError)
}

// SAFETY: blocks stay valid until they are deallocated, wherever the reference to the
// heap moves: they belong to the heap's caches.
unsafe impl<B: ObjectCache> Allocator for &Heap<B> {
    #[inline]
    fn allocate(&self, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
        // SAFETY: the heap serves zero sizes as well.
        block(unsafe { GlobalAlloc::alloc(*self, layout) }, layout.size())
    }

    #[inline]
    fn allocate_zeroed(&self, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
        // SAFETY: as above.
        block(
            unsafe { GlobalAlloc::alloc_zeroed(*self, layout) },
            layout.size(),
        )
    }

    #[inline]
    unsafe fn deallocate(&self, p: NonNull<u8>, layout: Layout) {
        // SAFETY: promised by the caller.
        unsafe { GlobalAlloc::dealloc(*self, p.as_ptr(), layout) }
    }

    #[inline]
    unsafe fn grow(
        &self,
        p: NonNull<u8>,
        old: Layout,
        new: Layout,
    ) -> Result<NonNull<[u8]>, AllocError> {
        if old.align().max(new.align()) <= GRANULE {
            // SAFETY: a block in use, by the caller's promise.
            return block(unsafe { self.realloc(p.as_ptr(), new.size()) }, new.size());
        }
        // SAFETY: as above.
        unsafe { replace(*self, p, old, new) }
    }

    #[inline]
    unsafe fn grow_zeroed(
        &self,
        p: NonNull<u8>,
        old: Layout,
        new: Layout,
    ) -> Result<NonNull<[u8]>, AllocError> {
        // SAFETY: promised by the caller; the block has `new.size()` bytes, at least as
        // many as the old one, and those beyond it are nobody's yet.
        unsafe {
            let grown = self.grow(p, old, new)?;
            let rest = new.size().saturating_sub(old.size());
            grown.cast::<u8>().add(old.size()).write_bytes(0, rest);
            Ok(grown)
        }
    }

    #[inline]
    unsafe fn shrink(
        &self,
        p: NonNull<u8>,
        old: Layout,
        new: Layout,
    ) -> Result<NonNull<[u8]>, AllocError> {
        if old.align().max(new.align()) <= GRANULE && stays(old.size(), new.size()) {
            // SAFETY: a block in use, by the caller's promise.
            return block(unsafe { self.realloc(p.as_ptr(), new.size()) }, new.size());
        }
        // A block that kept its larger class would be freed with a size of another
        // class: so there is a new one, or an error.
        // SAFETY: as above.
        unsafe { replace(*self, p, old, new) }
    }
}

/// Whether a block of `old` bytes that shrinks to `new` stays where it is.
fn stays(old: usize, new: usize) -> bool {
    if new > MAX_OBJECT {
        return true;
    }
    old <= MAX_OBJECT && class::of(old) == class::of(new)
}

/// Takes a block of the new layout, copies what fits, gives the old one back.
///
/// # Safety
/// `p` must be a block in use of this heap with the layout `old`.
#[cold]
unsafe fn replace<B: ObjectCache>(
    heap: &Heap<B>,
    p: NonNull<u8>,
    old: Layout,
    new: Layout,
) -> Result<NonNull<[u8]>, AllocError> {
    let to = heap.allocate(new)?;
    // SAFETY: two distinct blocks of ours; `old` is the caller's promise.
    unsafe {
        let bytes = old.size().min(new.size());
        p.copy_to_nonoverlapping(to.cast(), bytes);
        heap.deallocate(p, old);
    }
    Ok(to)
}
