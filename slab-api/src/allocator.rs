//! `allocator-api2`: collections with a heap of their own, as
//! `Vec::new_in(&heap)`.

use core::alloc::{GlobalAlloc, Layout};
use core::ptr::{self, NonNull};

use allocator_api2::alloc::{AllocError, Allocator};

use crate::cache::ObjectCache;
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
}
