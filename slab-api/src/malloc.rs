//! What a malloc is made of: the operations behind the C functions, which every kind of
//! heap here offers.

use crate::cache::ObjectCache;
use crate::debug::DebugHeap;
use crate::heap::Heap;

/// A heap that can serve as the process's malloc. Sizes, alignments and results are as
/// described at [`Heap`]; nothing here touches `errno`.
pub trait Malloc: Sync {
    /// The part of [`Self::malloc`] that is worth inlining; null when that is not enough.
    fn try_malloc(&self, size: usize) -> *mut u8;
    /// At least `size` bytes, aligned to 16; null without memory.
    fn malloc(&self, size: usize) -> *mut u8;
    /// As [`Self::malloc`], all zero.
    fn alloc_zeroed(&self, size: usize) -> *mut u8;
    /// As [`Self::malloc`], at a multiple of `align`.
    fn memalign(&self, align: usize, size: usize) -> *mut u8;
    /// Gives an object back; null is ignored.
    ///
    /// # Safety
    /// Nothing may use the object any more.
    unsafe fn free(&self, p: *mut u8);
    /// As [`Self::free`] with the size asked for.
    ///
    /// # Safety
    /// As [`Self::free`].
    unsafe fn free_sized(&self, p: *mut u8, size: usize);
    /// As [`Self::free_sized`] for an object of [`Self::memalign`].
    ///
    /// # Safety
    /// As [`Self::free`].
    unsafe fn free_aligned_sized(&self, p: *mut u8, align: usize, size: usize);
    /// Bytes that the object has; 0 for null.
    ///
    /// # Safety
    /// The object must not be freed meanwhile.
    unsafe fn usable_size(&self, p: *const u8) -> usize;
    /// Resizes an object; null without memory, which leaves it unchanged.
    ///
    /// # Safety
    /// `p` must be null or an object in use; on success the old pointer is gone.
    unsafe fn realloc(&self, p: *mut u8, size: usize) -> *mut u8;
    /// Gives what is free back to the kernel; true when there was some.
    fn trim(&self) -> bool;
}

macro_rules! malloc_of {
    ($heap:ident) => {
        impl<B: ObjectCache> Malloc for $heap<B> {
            #[inline(always)]
            fn try_malloc(&self, size: usize) -> *mut u8 {
                $heap::try_malloc(self, size)
            }

            #[inline(always)]
            fn malloc(&self, size: usize) -> *mut u8 {
                $heap::malloc(self, size)
            }

            #[inline(always)]
            fn alloc_zeroed(&self, size: usize) -> *mut u8 {
                $heap::alloc_zeroed(self, size)
            }

            #[inline(always)]
            fn memalign(&self, align: usize, size: usize) -> *mut u8 {
                $heap::memalign(self, align, size)
            }

            #[inline(always)]
            unsafe fn free(&self, p: *mut u8) {
                // SAFETY: promised by the caller.
                unsafe { $heap::free(self, p) }
            }

            #[inline(always)]
            unsafe fn free_sized(&self, p: *mut u8, size: usize) {
                // SAFETY: promised by the caller.
                unsafe { $heap::free_sized(self, p, size) }
            }

            #[inline(always)]
            unsafe fn free_aligned_sized(&self, p: *mut u8, align: usize, size: usize) {
                // SAFETY: promised by the caller.
                unsafe { $heap::free_aligned_sized(self, p, align, size) }
            }

            #[inline(always)]
            unsafe fn usable_size(&self, p: *const u8) -> usize {
                // SAFETY: promised by the caller.
                unsafe { $heap::usable_size(self, p) }
            }

            #[inline(always)]
            unsafe fn realloc(&self, p: *mut u8, size: usize) -> *mut u8 {
                // SAFETY: promised by the caller.
                unsafe { $heap::realloc(self, p, size) }
            }

            #[inline(always)]
            fn trim(&self) -> bool {
                $heap::trim(self)
            }
        }
    };
}

malloc_of!(Heap);
malloc_of!(DebugHeap);
