//! The crate buddy_system_allocator: its frame allocator and its heap, each behind a lock, on an arena of our own.

use super::held::PageBackend;
use super::owner::Owner;
use buddy_system_allocator::{FrameAllocator, Heap};
use page_alloc::{MAX_ORDER, Migratetype, Order, PAGE_SHIFT, PAGEBLOCK_SIZE};
use std::alloc::Layout;
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Frame numbers are powers of two of pages up to the same order as page-alloc's.
const FRAME_ORDERS: usize = MAX_ORDER as usize + 1;
/// The heap counts bytes.
const HEAP_ORDERS: usize = FRAME_ORDERS + PAGE_SHIFT;

/// Maps an arena whose start is a multiple of its largest power of two, so that all orders fit from the first page on.
fn arena(bytes: usize) -> Result<NonNull<u8>, String> {
    let align = PAGEBLOCK_SIZE.max(1 << bytes.ilog2());
    // SAFETY: a fresh anonymous mapping, no address asked for.
    let start = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            bytes + align,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
            -1,
            0,
        )
    };
    if start == libc::MAP_FAILED {
        let error = std::io::Error::last_os_error();
        return Err(format!("an arena of {bytes} bytes: mmap: {error}"));
    }
    let skip = start.addr().wrapping_neg() % align;
    // SAFETY: the mapping is `align` longer than the arena.
    let base = unsafe { start.cast::<u8>().add(skip) };
    // The same advice that page-alloc's arena has. Refusal costs time only.
    // SAFETY: the range lies in the mapping.
    unsafe { libc::madvise(base.cast(), bytes, libc::MADV_HUGEPAGE) };
    NonNull::new(base).ok_or_else(|| "mmap returned address 0".to_owned())
}

/// The lock; a poisoned one is a worker about to end anyway.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// `FrameAllocator`: a set of free frames for each order.
pub struct Frames {
    base: NonNull<u8>,
    inner: Mutex<FrameAllocator<FRAME_ORDERS>>,
}

// SAFETY: the arena belongs to this allocator for ever; the lock guards the rest.
unsafe impl Sync for Frames {}

// SAFETY: frames are in no set while they are handed out, and lie in the arena.
unsafe impl PageBackend for Frames {
    const NAME: &'static str = "frame-allocator";
    const RECLAIMS: bool = false;
    type Page = usize;
    type Owner = ();

    fn create(bytes: usize) -> Result<Self, String> {
        let base = arena(bytes)?;
        let mut inner = FrameAllocator::new();
        inner.add_frame(0, bytes >> PAGE_SHIFT);
        Ok(Self {
            base,
            inner: Mutex::new(inner),
        })
    }

    fn register(&self, _: &'static dyn Owner<usize>) -> Result<(), String> {
        Ok(())
    }

    #[inline]
    fn get(&self, order: Order, _: Migratetype) -> Option<usize> {
        lock(&self.inner).alloc(order.pages())
    }

    #[inline]
    fn get_owned(&self, (): (), order: Order, migratetype: Migratetype) -> Option<usize> {
        self.get(order, migratetype)
    }

    #[inline]
    unsafe fn put(&self, page: usize, order: Order) {
        lock(&self.inner).dealloc(page, order.pages());
    }

    #[inline]
    fn address(&self, page: usize) -> NonNull<u8> {
        // SAFETY: frame numbers lie in the arena.
        unsafe { self.base.add(page << PAGE_SHIFT) }
    }
}

/// `Heap`: free chunks linked through their own memory.
pub struct BuddyHeap {
    inner: Mutex<Heap<HEAP_ORDERS>>,
}

/// The start of a chunk of the heap.
#[derive(Clone, Copy)]
pub struct Chunk(NonNull<u8>);

// SAFETY: plain memory; whoever holds the chunk owns it.
unsafe impl Send for Chunk {}
// SAFETY: as above; a shared chunk only tells its address.
unsafe impl Sync for Chunk {}

fn layout(order: Order) -> Layout {
    // Aligned to its size, as buddies are.
    Layout::from_size_align(order.bytes(), order.bytes()).unwrap_or(Layout::new::<u8>())
}

// SAFETY: chunks are on no list while they are handed out, and lie in the arena.
unsafe impl PageBackend for BuddyHeap {
    const NAME: &'static str = "buddy-heap";
    const RECLAIMS: bool = false;
    type Page = Chunk;
    type Owner = ();

    fn create(bytes: usize) -> Result<Self, String> {
        let base = arena(bytes)?;
        let mut inner = Heap::new();
        // SAFETY: a fresh mapping of so many bytes, for this heap alone.
        unsafe { inner.init(base.as_ptr().expose_provenance(), bytes) };
        Ok(Self {
            inner: Mutex::new(inner),
        })
    }

    fn register(&self, _: &'static dyn Owner<Chunk>) -> Result<(), String> {
        Ok(())
    }

    #[inline]
    fn get(&self, order: Order, _: Migratetype) -> Option<Chunk> {
        lock(&self.inner).alloc(layout(order)).ok().map(Chunk)
    }

    #[inline]
    fn get_owned(&self, (): (), order: Order, migratetype: Migratetype) -> Option<Chunk> {
        self.get(order, migratetype)
    }

    #[inline]
    unsafe fn put(&self, page: Chunk, order: Order) {
        // SAFETY: as the caller promises.
        unsafe { lock(&self.inner).dealloc(page.0, layout(order)) };
    }

    #[inline]
    fn address(&self, page: Chunk) -> NonNull<u8> {
        page.0
    }
}
