//! The heap: malloc's operations over size-class caches and runs of pages.
//!
//! ```text
//!   malloc(size) -> ids[(size+15)/16] -> slot's entry -> object -> mark granule
//!   free(p)      -> granule's byte = cache id -> slot's entry -> clear granule
//! ```
//! `ids` maps a size to the id of its class's cache. It starts out zero, and id 0
//! never has an object to give, so the fast path needs no check for
//! initialisation, unused classes or exhaustion: all are the one miss. Caches are
//! made when their class is first used, which keeps ids, and with them the slots,
//! compact.

use core::alloc::{GlobalAlloc, Layout};
use core::marker::PhantomData;
use core::ptr;
use core::sync::atomic::{AtomicU8, AtomicU32, Ordering::Relaxed};

use page_alloc::granule;
use page_alloc::{GRANULE, Migratetype, PAGE_SIZE};

use crate::cache::{CacheDesc, MAX_OBJECT, ObjectCache};
use crate::class::{self, CLASSES, TABLE, UNIT_SHIFT};
use crate::{config, large, misuse, percpu, registry, sparse};

/// The largest request, in bytes, as in glibc.
pub const MAX_REQUEST: usize = isize::MAX as usize;

/// Objects longer than this may lie in part on pages that are never written.
const SPARSE_ABOVE: usize = PAGE_SIZE;

/// Slabs of objects longer than a page go with the runs: programs often ask for more than
/// they write, and a huge page would give all of it memory.
const fn migratetype_of(size: usize) -> Migratetype {
    if size > SPARSE_ABOVE {
        Migratetype::Large
    } else {
        Migratetype::Unmovable
    }
}

/// A malloc-like heap over the backend `B`. Usable as `#[global_allocator]`:
///
/// ```ignore
/// #[global_allocator]
/// static A: slab_api::Heap<slab_unified::Unified> = slab_api::Heap::new();
/// ```
///
/// Settings are read from `SLABMALLOC_CONF` at first use. A heap in a static lives
/// for ever; a dropped one gives its slabs back (objects still in use keep their
/// caches alive).
#[derive(Debug)]
pub struct Heap<B: ObjectCache> {
    ids: [AtomicU8; TABLE],
    caches: [AtomicU32; CLASSES],
    backend: PhantomData<B>,
}

/// Bytes and events of a heap.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct HeapStats {
    /// Bytes in small objects that users hold.
    pub small_in_use: usize,
    /// Free bytes in queues.
    pub queued: usize,
    /// Bytes of slabs.
    pub slab_bytes: usize,
    /// Bytes in large objects (of all heaps of the process).
    pub large_in_use: usize,
    /// Bytes of heap committed (whole process).
    pub committed: usize,
}

impl<B: ObjectCache> Default for Heap<B> {
    fn default() -> Self {
        Self::new()
    }
}

impl<B: ObjectCache> Heap<B> {
    /// An empty heap; takes no memory until it is used.
    pub const fn new() -> Self {
        Self {
            ids: [const { AtomicU8::new(0) }; TABLE],
            caches: [const { AtomicU32::new(0) }; CLASSES],
            backend: PhantomData,
        }
    }

    /// Takes at least `size` bytes, aligned to 16; null without memory. A size of 0
    /// gives an object of its own. Does not touch `errno`.
    #[inline(always)]
    pub fn malloc(&self, size: usize) -> *mut u8 {
        let p = self.try_malloc(size);
        if !p.is_null() {
            return p;
        }
        self.malloc_slow(size)
    }

    /// The fast path of [`Self::malloc`] alone: null when the calling thread's slot
    /// cannot serve the request. For callers that end in a jump to their own slow
    /// path.
    #[inline(always)]
    pub fn try_malloc(&self, size: usize) -> *mut u8 {
        if size > MAX_OBJECT {
            return ptr::null_mut();
        }
        B::try_alloc(self.id_of(size))
    }

    #[inline(always)]
    fn id_of(&self, size: usize) -> u32 {
        // SAFETY: callers pass sizes of at most MAX_OBJECT, so the index is inside
        // the table; only `create_class` fills it, with ids below LARGE.
        unsafe {
            let id = self
                .ids
                .get_unchecked((size + 15) >> UNIT_SHIFT)
                .load(Relaxed);
            core::hint::assert_unchecked(id < granule::LARGE);
            u32::from(id)
        }
    }

    #[cold]
    #[inline(never)]
    fn malloc_slow(&self, size: usize) -> *mut u8 {
        if size > MAX_OBJECT {
            return large_or_reclaim(size, GRANULE, false);
        }
        self.class_alloc(class::of(size))
    }

    /// An object of a class; empty slabs of all caches are given up before it fails.
    fn class_alloc(&self, class: usize) -> *mut u8 {
        let take = || {
            self.class_cache(class)
                .map_or(ptr::null_mut(), |cache| cache.alloc_slow())
        };
        let p = take();
        if p.is_null() && reclaim() { take() } else { p }
    }

    /// The cache of a class, made on first use.
    fn class_cache(&self, class: usize) -> Option<B> {
        match self.caches[class].load(Relaxed) {
            0 => self.create_class(class),
            id => B::from_id(id),
        }
    }

    #[cold]
    fn create_class(&self, class: usize) -> Option<B> {
        config::settings();
        let _create = registry::create_lock();
        if let id @ 1.. = self.caches[class].load(Relaxed) {
            return B::from_id(id);
        }
        let desc = CacheDesc::new(class::NAMES[class], class::size(class))
            .align(class::align(class))
            .migratetype(migratetype_of(class::size(class)))
            .no_merge();
        let cache = B::create(&desc).ok()?;
        let id = cache.id();
        if id >= u32::from(granule::LARGE) {
            // The byte would not name it: too many caches for another heap.
            let _ = cache.destroy();
            return None;
        }
        self.caches[class].store(id, Relaxed);
        let from = if class == 0 {
            0
        } else {
            (class::size(class - 1) >> UNIT_SHIFT) + 1
        };
        for cell in &self.ids[from..=class::size(class) >> UNIT_SHIFT] {
            cell.store(id as u8, Relaxed);
        }
        Some(cache)
    }

    /// As [`Self::malloc`], filled with zeros; memory known to be zero already is
    /// not touched.
    #[inline]
    pub fn alloc_zeroed(&self, size: usize) -> *mut u8 {
        if size > MAX_OBJECT {
            return self.zeroed_large(size);
        }
        let p = self.malloc(size);
        if !p.is_null() {
            // SAFETY: at least `size` bytes, ours.
            unsafe { p.write_bytes(0, size) };
        }
        p
    }

    #[cold]
    fn zeroed_large(&self, size: usize) -> *mut u8 {
        large_or_reclaim(size, GRANULE, true)
    }

    /// Takes at least `size` bytes at a multiple of `align`, a power of two; null
    /// without memory or for another alignment.
    pub fn memalign(&self, align: usize, size: usize) -> *mut u8 {
        if align <= GRANULE {
            return self.malloc(size);
        }
        if !align.is_power_of_two() || size > MAX_REQUEST || align > MAX_REQUEST / 2 {
            return ptr::null_mut();
        }
        if let Some(class) = class::aligned(size, align) {
            let p = B::try_alloc(self.caches[class].load(Relaxed));
            if !p.is_null() {
                return p;
            }
            return self.class_alloc(class);
        }
        large_or_reclaim(size, align, false)
    }

    /// Gives an object back; null is ignored. Anything that is not the start of an
    /// object in use is reported as misuse.
    ///
    /// # Safety
    /// Nothing may use the object any more.
    #[inline(always)]
    pub unsafe fn free(&self, p: *mut u8) {
        if let Some(mark) = granule::primary_cell(p) {
            let id = u32::from(mark.load(Relaxed));
            // SAFETY: the mark says that `p` is an object in use of the cache `id`
            // (0 and LARGE are no cache's and find no room).
            if unsafe { B::try_free(id, p, mark) } {
                return;
            }
        }
        // SAFETY: promised by the caller.
        unsafe { free_slow::<B>(p) };
    }

    /// As [`Self::free`] for an object whose requested size is known: no look-up of
    /// the class. A size of another class is reported as misuse.
    ///
    /// # Safety
    /// As [`Self::free`].
    #[inline(always)]
    pub unsafe fn free_sized(&self, p: *mut u8, size: usize) {
        if size <= MAX_OBJECT
            && let Some(mark) = granule::primary_cell(p)
        {
            let id = self.id_of(size);
            // SAFETY: as in `free`; the comparison makes it this class's object.
            if mark.load(Relaxed) == id as u8 && unsafe { B::try_free(id, p, mark) } {
                return;
            }
        }
        // SAFETY: promised by the caller.
        unsafe { self.free_sized_slow(p, size, GRANULE) };
    }

    /// As [`Self::free_sized`] for an object of [`Self::memalign`].
    ///
    /// # Safety
    /// As [`Self::free`].
    pub unsafe fn free_aligned_sized(&self, p: *mut u8, align: usize, size: usize) {
        // SAFETY: promised by the caller.
        unsafe { self.free_sized_slow(p, size, align) };
    }

    /// As [`Self::free`] for an object that can only be large, as are those of more than
    /// [`MAX_OBJECT`] bytes: touches no slot. Anything else is reported as misuse.
    ///
    /// # Safety
    /// As [`Self::free`].
    #[cold]
    pub unsafe fn free_large(&self, p: *mut u8) {
        if p.is_null() {
        } else if is_large(p) {
            // SAFETY: the mark says that it is one; the rest is the caller's promise.
            unsafe { large::free(p) }
        } else {
            misuse::report_free(p, B::BACKEND);
        }
    }

    #[cold]
    #[inline(never)]
    unsafe fn free_sized_slow(&self, p: *mut u8, size: usize, align: usize) {
        if p.is_null() {
            return;
        }
        if let Some(mark) = granule::cell(p) {
            let byte = sparse::mark_at(p, mark);
            let class = if align > GRANULE {
                class::aligned(size, align)
            } else if size > MAX_OBJECT {
                None
            } else {
                Some(class::of(size))
            };
            let fits = match (byte, class) {
                (0, _) => true, // reported as what it is below
                // realloc keeps runs to the page as well, so the length is exact.
                (granule::LARGE, None) => {
                    size.max(1).next_multiple_of(PAGE_SIZE) == large::usable_size(p)
                }
                (granule::LARGE, Some(_)) => false,
                (byte, Some(class)) => registry::size_of_byte(byte) == class::size(class),
                (_, None) => false,
            };
            if !fits {
                return misuse::report("sized free with a size of another class:", p);
            }
        }
        // SAFETY: promised by the caller.
        unsafe { free_slow::<B>(p) };
    }

    /// Bytes that the object at `p` has; 0 for null. A pointer that is not the start
    /// of an object in use is reported as misuse.
    ///
    /// # Safety
    /// The object must not be freed meanwhile.
    #[inline]
    pub unsafe fn usable_size(&self, p: *const u8) -> usize {
        if p.is_null() {
            return 0;
        }
        match size_at(p) {
            0 => {
                misuse::report("size asked of a pointer that is no object in use:", p);
                0
            }
            size => size,
        }
    }

    /// Resizes an object: in place where its class or its neighbours allow, by
    /// moving page tables, or by copying. Null without memory; the object is then
    /// unchanged. Null as `p` allocates; a size of 0 gives the smallest object.
    ///
    /// # Safety
    /// `p` must be null or an object in use; on success the old pointer is gone.
    pub unsafe fn realloc(&self, p: *mut u8, size: usize) -> *mut u8 {
        if p.is_null() {
            return self.malloc(size);
        }
        if size > MAX_REQUEST {
            return ptr::null_mut();
        }
        let old = size_at(p);
        if old == 0 {
            misuse::report("realloc of a pointer that is no object in use:", p);
            return ptr::null_mut();
        }
        if old > MAX_OBJECT || is_large(p) {
            // Stay large unless the object would fit a class and most of it is cut.
            if size > MAX_OBJECT {
                // SAFETY: promised by the caller; the mark says large.
                return unsafe { large::realloc(p, size) };
            }
        } else if size <= old && size <= MAX_OBJECT && class::size(class::of(size)) == old {
            return p;
        }
        let new = self.malloc(size);
        if new.is_null() {
            return new;
        }
        // SAFETY: both are ours and distinct; `old` bytes are readable, `size`
        // writable.
        unsafe {
            ptr::copy_nonoverlapping(p, new, old.min(size));
            self.free(p);
        }
        new
    }

    /// Gives everything that is free back to the kernel at once, and what the allocator
    /// can do without of its own records. True when memory was given back.
    pub fn trim(&self) -> bool {
        let pages = self.shrink_caches() + self.discard_gaps(true) + page_alloc::purge::trim();
        pages + sparse::discard_maps() > 0
    }

    /// As [`Self::trim`], but the granule map stays: for callers that read it themselves.
    pub(crate) fn trim_but_map(&self) -> bool {
        self.shrink_caches() + self.discard_gaps(false) + page_alloc::purge::trim() > 0
    }

    /// Gives the queues of the calling thread (of all CPUs), those that threads share, and the empty slabs
    /// of all classes back to the page allocator, which returns them to the kernel in its
    /// own time. The number of pages.
    pub fn shrink_caches(&self) -> usize {
        percpu::trim();
        let mut pages = 0;
        for cell in &self.caches {
            if let id @ 1.. = cell.load(Relaxed)
                && let Some(cache) = B::from_id(id)
            {
                pages += cache.shrink();
            }
        }
        pages
    }

    fn discard_gaps(&self, quiet: bool) -> usize {
        let ids = self.caches.iter().map(|cell| cell.load(Relaxed));
        ids.filter(|id| *id > 0)
            .filter_map(B::from_id)
            .map(|cache| cache.discard_gaps(quiet))
            .sum()
    }

    /// A snapshot; exact when no other thread allocates.
    pub fn stats(&self) -> HeapStats {
        let mut stats = HeapStats {
            large_in_use: large::live_bytes() as usize,
            committed: page_alloc::committed_bytes(),
            ..HeapStats::default()
        };
        for cell in &self.caches {
            if let id @ 1.. = cell.load(Relaxed)
                && let Some(cache) = B::from_id(id)
            {
                let info = cache.info();
                stats.small_in_use += info.in_use * info.stride;
                stats.queued += info.queued * info.stride;
                stats.slab_bytes += info.pages() * PAGE_SIZE;
            }
        }
        stats
    }
}

impl<B: ObjectCache> Drop for Heap<B> {
    fn drop(&mut self) {
        for cell in &self.caches {
            if let id @ 1.. = cell.load(Relaxed)
                && let Some(cache) = B::from_id(id)
            {
                // A cache with objects in use stays: they may outlive the heap.
                let _ = cache.destroy();
            }
        }
    }
}

/// A large object; empty slabs of all caches are given up before it fails.
fn large_or_reclaim(size: usize, align: usize, zero: bool) -> *mut u8 {
    config::settings();
    if size > MAX_REQUEST {
        return ptr::null_mut();
    }
    let p = large::alloc(size, align, zero);
    if p.is_null() && reclaim() {
        large::alloc(size, align, zero)
    } else {
        p
    }
}

/// Memory is out: gives page lists and the empty slabs of all caches back to the zone,
/// where they merge. Always worth another try.
#[cold]
pub(crate) fn reclaim() -> bool {
    percpu::trim();
    registry::for_each(|cache| {
        (cache.backend.shrink)(cache);
    });
    page_alloc::pcp::drain_all();
    true
}

fn is_large(p: *const u8) -> bool {
    granule::cell(p).is_some_and(|mark| mark.load(Relaxed) == granule::LARGE)
}

/// Bytes of the object in use that starts at `p`; 0 when there is none.
fn size_at(p: *const u8) -> usize {
    let mark = match granule::primary_cell(p) {
        Some(mark) => mark,
        None => match granule::cell(p) {
            Some(mark) => mark,
            None => return 0,
        },
    };
    match sparse::mark_at(p, mark) {
        0 => 0,
        granule::LARGE => large::usable_size(p),
        granule::EXTENDED => misuse::cache_at(p)
            .and_then(registry::get)
            .map_or(0, |cache| cache.stride as usize),
        byte => registry::size_of_byte(byte),
    }
}

/// What the fast path of `free` does not do: null, other arenas, large objects,
/// full slots, and misuse.
#[cold]
#[inline(never)]
unsafe fn free_slow<B: ObjectCache>(p: *mut u8) {
    let mark = match granule::primary_cell(p) {
        Some(mark) => mark,
        None if p.is_null() => return,
        None => match granule::cell(p) {
            Some(mark) => mark,
            None => return misuse::report_free(p, B::BACKEND),
        },
    };
    let id = match sparse::mark_at(p, mark) {
        0 => return misuse::report_free(p, B::BACKEND),
        // SAFETY: the mark says so.
        granule::LARGE => return unsafe { large::free(p) },
        granule::EXTENDED => misuse::cache_at(p).unwrap_or(0),
        byte => u32::from(byte),
    };
    match B::from_id(id) {
        // SAFETY: the mark says that `p` is an object in use of this cache.
        Some(cache) => unsafe { cache.free_slow(p) },
        None => misuse::report("free of an object of another backend's cache:", p),
    }
}

// SAFETY: malloc, memalign, realloc and free keep to GlobalAlloc's contract: blocks
// of at least the layout's size and alignment, distinct while in use, null without
// memory, and no unwinding.
unsafe impl<B: ObjectCache> GlobalAlloc for Heap<B> {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if layout.align() <= GRANULE {
            self.malloc(layout.size())
        } else {
            self.memalign(layout.align(), layout.size())
        }
    }

    #[inline]
    unsafe fn dealloc(&self, p: *mut u8, layout: Layout) {
        // SAFETY: GlobalAlloc's caller promises that the block came from here with
        // this layout.
        unsafe {
            if layout.align() <= GRANULE {
                self.free_sized(p, layout.size());
            } else {
                self.free(p);
            }
        }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if layout.align() <= GRANULE {
            return Heap::alloc_zeroed(self, layout.size());
        }
        let p = self.memalign(layout.align(), layout.size());
        if !p.is_null() {
            // SAFETY: at least `size` bytes, ours.
            unsafe { p.write_bytes(0, layout.size()) };
        }
        p
    }

    #[inline]
    unsafe fn realloc(&self, p: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as in dealloc.
        unsafe {
            if layout.align() <= GRANULE {
                return Heap::realloc(self, p, size);
            }
            let new = self.memalign(layout.align(), size);
            if !new.is_null() {
                ptr::copy_nonoverlapping(p, new, layout.size().min(size));
                self.free(p);
            }
            new
        }
    }
}
