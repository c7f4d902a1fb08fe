//! The heaps of the library, of which a process uses one: each backend's, and its debug heap
//! where `debug=` is set.

#![allow(unsafe_code)]

use core::marker::PhantomData;

use slab_api::debug::DebugHeap;
use slab_api::{Heap, ObjectCache};
use slab_classic::Classic;
use slab_unified::Unified;
use slub::Slub;

/// A backend with its process-wide heap.
pub trait Installed: ObjectCache + Sized + 'static {
    /// The heap that this backend's malloc serves from.
    fn heap() -> &'static Heap<Self>;
    /// The heap that serves in its place where `debug=` is set.
    fn debug_heap() -> &'static DebugHeap<Self>;
}

/// malloc's operations, as `entry` makes C functions of them. The contracts are
/// [`Heap`]'s.
pub trait Serve {
    fn try_malloc(&self, size: usize) -> *mut u8;
    fn malloc(&self, size: usize) -> *mut u8;
    fn alloc_zeroed(&self, size: usize) -> *mut u8;
    fn memalign(&self, align: usize, size: usize) -> *mut u8;
    /// # Safety
    /// [`Heap::free`]'s.
    unsafe fn free(&self, p: *mut u8);
    /// # Safety
    /// [`Heap::free_sized`]'s.
    unsafe fn free_sized(&self, p: *mut u8, size: usize);
    /// # Safety
    /// [`Heap::free_aligned_sized`]'s.
    unsafe fn free_aligned_sized(&self, p: *mut u8, align: usize, size: usize);
    /// # Safety
    /// [`Heap::usable_size`]'s.
    unsafe fn usable_size(&self, p: *const u8) -> usize;
    /// # Safety
    /// [`Heap::realloc`]'s.
    unsafe fn realloc(&self, p: *mut u8, size: usize) -> *mut u8;
}

macro_rules! serve {
    ($heap:ident) => {
        impl<B: ObjectCache> Serve for $heap<B> {
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
                // SAFETY: the caller's promise, here and below.
                unsafe { $heap::free(self, p) }
            }
            #[inline(always)]
            unsafe fn free_sized(&self, p: *mut u8, size: usize) {
                // SAFETY: as above.
                unsafe { $heap::free_sized(self, p, size) }
            }
            #[inline(always)]
            unsafe fn free_aligned_sized(&self, p: *mut u8, align: usize, size: usize) {
                // SAFETY: as above.
                unsafe { $heap::free_aligned_sized(self, p, align, size) }
            }
            #[inline(always)]
            unsafe fn usable_size(&self, p: *const u8) -> usize {
                // SAFETY: as above.
                unsafe { $heap::usable_size(self, p) }
            }
            #[inline(always)]
            unsafe fn realloc(&self, p: *mut u8, size: usize) -> *mut u8 {
                // SAFETY: as above.
                unsafe { $heap::realloc(self, p, size) }
            }
        }
    };
}

serve!(Heap);
serve!(DebugHeap);

/// What `entry`'s functions are written over: a backend serves from its heap, `Debug` of it from
/// its debug heap.
pub trait Front {
    type Heap: Serve + 'static;
    fn heap() -> &'static Self::Heap;
}

impl<B: Installed> Front for B {
    type Heap = Heap<B>;
    #[inline(always)]
    fn heap() -> &'static Heap<B> {
        <B as Installed>::heap()
    }
}

/// A backend under its debug heap.
pub struct Debug<B>(PhantomData<B>);

impl<B: Installed> Front for Debug<B> {
    type Heap = DebugHeap<B>;
    #[inline(always)]
    fn heap() -> &'static DebugHeap<B> {
        B::debug_heap()
    }
}

static CLASSIC: Heap<Classic> = Heap::new();
static SLUB: Heap<Slub> = Heap::new();
static UNIFIED: Heap<Unified> = Heap::new();
static DEBUG_CLASSIC: DebugHeap<Classic> = DebugHeap::new();
static DEBUG_SLUB: DebugHeap<Slub> = DebugHeap::new();
static DEBUG_UNIFIED: DebugHeap<Unified> = DebugHeap::new();

impl Installed for Classic {
    #[inline(always)]
    fn heap() -> &'static Heap<Self> {
        &CLASSIC
    }

    fn debug_heap() -> &'static DebugHeap<Self> {
        &DEBUG_CLASSIC
    }
}

impl Installed for Slub {
    #[inline(always)]
    fn heap() -> &'static Heap<Self> {
        &SLUB
    }

    fn debug_heap() -> &'static DebugHeap<Self> {
        &DEBUG_SLUB
    }
}

impl Installed for Unified {
    #[inline(always)]
    fn heap() -> &'static Heap<Self> {
        &UNIFIED
    }

    fn debug_heap() -> &'static DebugHeap<Self> {
        &DEBUG_UNIFIED
    }
}
