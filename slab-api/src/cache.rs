//! The trait that the three backends implement, and what a cache is described by.
//!
//! A *cache* hands out objects of one size from *slabs* (chunks of pages). It is
//! named by a small number, its id; a backend's slot record is an array indexed by
//! it, so every cache of a backend shares the slots. The handle that implements
//! [`ObjectCache`] is `Copy`: a reference to the cache's record, which is never
//! unmapped.
//!
//! Every object in use is marked in the granule map ([`page_alloc::granule`]) by
//! its cache's byte. The backend writes the mark when it hands an object out and
//! clears it when it takes it back; the callers check it first.

use core::fmt;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU8, Ordering};

use page_alloc::granule;
use page_alloc::{GRANULE, Migratetype, PAGE_SIZE};

use crate::{misuse, percpu, registry, sparse};

/// Prepares a fresh object, given its address.
pub type Constructor = unsafe fn(*mut u8);

/// What a cache is to be like.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct CacheDesc<'a> {
    /// Shown in statistics and reports; cut to 31 bytes.
    pub name: &'a str,
    /// Bytes of an object, at least 1 and at most [`MAX_OBJECT`].
    pub size: usize,
    /// Alignment of an object: a power of two up to the page size; at least 16 is
    /// given.
    pub align: usize,
    /// Runs once for each object when its slab is made. Objects then keep their
    /// constructed state while they are free: what a user frees must be in it.
    pub constructor: Option<Constructor>,
    /// Where the slabs' pages are placed.
    pub migratetype: Migratetype,
    /// Aligns objects to the cache line.
    pub hwcache_align: bool,
    /// Keeps the cache apart from others of the same shape.
    pub no_merge: bool,
    /// Ends each slab with an inaccessible page: see [`crate::guard`].
    pub guarded: bool,
}

/// The largest object of a cache, in bytes; larger ones are runs of pages.
pub const MAX_OBJECT: usize = 32 << 10;

impl<'a> CacheDesc<'a> {
    /// A cache of `size`-byte objects with malloc's alignment.
    pub const fn new(name: &'a str, size: usize) -> Self {
        Self {
            name,
            size,
            align: GRANULE,
            constructor: None,
            migratetype: Migratetype::Unmovable,
            hwcache_align: false,
            no_merge: false,
            guarded: false,
        }
    }

    /// With this alignment.
    pub const fn align(mut self, align: usize) -> Self {
        self.align = align;
        self
    }

    /// With this constructor.
    pub const fn constructor(mut self, constructor: Constructor) -> Self {
        self.constructor = Some(constructor);
        self
    }

    /// With slabs placed as this type.
    pub const fn migratetype(mut self, migratetype: Migratetype) -> Self {
        self.migratetype = migratetype;
        self
    }

    /// With objects on cache lines of their own.
    pub const fn hwcache_align(mut self) -> Self {
        self.hwcache_align = true;
        self
    }

    /// Never merged with another cache.
    pub const fn no_merge(mut self) -> Self {
        self.no_merge = true;
        self
    }

    /// With a guard page behind each slab.
    pub const fn guarded(mut self) -> Self {
        self.guarded = true;
        self
    }

    /// The alignment and the distance between objects that follow from the
    /// description: the alignment is at least a granule, the distance a multiple
    /// of it.
    ///
    /// # Errors
    /// [`CacheError::Size`] and [`CacheError::Align`] for what cannot be had.
    pub fn layout(&self) -> Result<(usize, usize), CacheError> {
        if self.size == 0 || self.size > MAX_OBJECT {
            return Err(CacheError::Size);
        }
        if !self.align.is_power_of_two() || self.align > PAGE_SIZE {
            return Err(CacheError::Align);
        }
        let mut align = self.align.max(GRANULE);
        if self.hwcache_align {
            // Small objects share a line rather than waste most of it.
            let mut line = 64;
            while self.size <= line / 2 && line > GRANULE {
                line /= 2;
            }
            align = align.max(line);
        }
        let stride = self.size.next_multiple_of(align);
        if stride > MAX_OBJECT {
            Err(CacheError::Size)
        } else {
            Ok((align, stride))
        }
    }
}

/// Why a cache was not made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CacheError {
    /// The size is 0 or above [`MAX_OBJECT`] (after alignment).
    Size,
    /// The alignment is no power of two or above the page size.
    Align,
    /// All [`crate::registry::MAX_CACHES`] ids are taken: destroy caches first.
    TooMany,
    /// The kernel gave no memory for the cache's own record.
    NoMemory,
}

impl fmt::Display for CacheError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Size => "an object must have 1 to 32768 bytes: use pages for larger ones",
            Self::Align => "the alignment must be a power of two of at most 4096",
            Self::TooMany => "1000 caches exist already: destroy some, or let them merge",
            Self::NoMemory => "no memory for the cache's record",
        })
    }
}

impl core::error::Error for CacheError {}

/// Why a cache was not destroyed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DestroyError {
    /// So many objects are still in use; the cache goes on working.
    Busy(usize),
}

impl fmt::Display for DestroyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Busy(n) => write!(f, "{n} objects are still in use: free them first"),
        }
    }
}

impl core::error::Error for DestroyError {}

/// What a validation found wrong: an invariant, and the address concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Corruption {
    /// The invariant that does not hold.
    pub what: &'static str,
    /// Where.
    pub address: usize,
}

impl fmt::Display for Corruption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {:#x}", self.what, self.address)
    }
}

impl core::error::Error for Corruption {}

/// The names and values of a backend's structural counters: events of its slow
/// paths that only its design has.
pub type Counter = (&'static str, u64);

/// Number of structural counters that a cache can report.
pub const MAX_COUNTERS: usize = 16;

/// A snapshot of a cache. Exact when no other thread uses the cache.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct CacheInfo {
    /// Bytes asked for an object.
    pub size: usize,
    /// Distance between objects.
    pub stride: usize,
    /// Objects a slab.
    pub objects_per_slab: usize,
    /// log2 of the pages a slab.
    pub slab_order: u8,
    /// Slabs, empty ones included.
    pub slabs: usize,
    /// Pages and objects of all slabs together, where slabs have different orders; those
    /// above are then what a slab of a cache in full use has. See [`Self::pages`].
    pub mixed: Option<(usize, usize)>,
    /// Slabs with objects in use or in queues.
    pub active_slabs: usize,
    /// Objects that users hold.
    pub in_use: usize,
    /// Free objects in queues, CPU slabs' lists and depots: memory that no slab
    /// shows as free.
    pub queued: usize,
    /// The tunables that slabinfo prints: limit, batchcount, shared.
    pub tunables: (usize, usize, usize),
    /// Structural counters; unused places have an empty name.
    pub counters: [Counter; MAX_COUNTERS],
}

impl CacheInfo {
    /// An empty snapshot for a backend to fill in.
    pub const fn new(size: usize, stride: usize, objects_per_slab: usize, slab_order: u8) -> Self {
        Self {
            size,
            stride,
            objects_per_slab,
            slab_order,
            slabs: 0,
            mixed: None,
            active_slabs: 0,
            in_use: 0,
            queued: 0,
            tunables: (0, 0, 0),
            counters: [("", 0); MAX_COUNTERS],
        }
    }

    /// Pages of all slabs.
    pub fn pages(&self) -> usize {
        self.mixed
            .map_or(self.slabs << self.slab_order, |(pages, _)| pages)
    }

    /// Objects of all slabs, in use or not.
    pub fn objects(&self) -> usize {
        self.mixed
            .map_or(self.slabs * self.objects_per_slab, |(_, objects)| objects)
    }

    /// The value of the named counter; `None` when this backend has none such.
    pub fn counter(&self, name: &str) -> Option<u64> {
        self.counters
            .iter()
            .find(|(n, _)| *n == name)
            .map(|(_, v)| *v)
    }
}

/// A named object cache of one backend.
///
/// The `try_…` pair is the fast path: inlined, without a call, serving from the
/// calling thread's slot. The `…_slow` pair does the rest out of line. Everything
/// else is built on those four.
pub trait ObjectCache: Copy + Send + Sync + fmt::Debug + 'static {
    /// The backend's name in settings and tables.
    const BACKEND: &'static str;

    /// Makes a cache.
    ///
    /// # Errors
    /// See [`CacheError`].
    fn create(desc: &CacheDesc<'_>) -> Result<Self, CacheError>;

    /// The cache with this id, if this backend has one.
    fn from_id(id: u32) -> Option<Self>;

    /// The cache's id.
    fn id(self) -> u32;

    /// Takes an object of the cache `id` from the calling thread's slot and marks
    /// it; null when the slot has none, or for any id that is not this backend's.
    fn try_alloc(id: u32) -> *mut u8;

    /// Takes an object of this cache, refilling the slot; null without memory.
    fn alloc_slow(self) -> *mut u8;

    /// Gives an object to the calling thread's slot and clears its mark. False,
    /// and nothing done, when the slot has no room or `id` is not this backend's.
    ///
    /// # Safety
    /// `p` must be an object in use of the cache `id`, `mark` its granule's byte.
    unsafe fn try_free(id: u32, p: *mut u8, mark: &AtomicU8) -> bool;

    /// Gives an object back by way of the cache, and clears its mark. Also called
    /// for objects that [`Self::try_free`] would take: the slot may be armed, or the
    /// object in another arena than the first.
    ///
    /// # Safety
    /// `p` must be an object in use of this cache.
    unsafe fn free_slow(self, p: *mut u8);

    /// Takes up to `out.len()` objects; returns how many. Fewer only without
    /// memory.
    fn alloc_bulk(self, out: &mut [*mut u8]) -> usize {
        if percpu::on()
            && let Some(head) = registry::get(self.id())
        {
            return percpu::alloc_bulk(head, out);
        }
        for (n, cell) in out.iter_mut().enumerate() {
            match self.alloc() {
                Some(p) => *cell = p.as_ptr(),
                None => return n,
            }
        }
        out.len()
    }

    /// Gives objects back.
    ///
    /// # Safety
    /// As [`Self::free`] for each.
    unsafe fn free_bulk(self, objects: &[*mut u8]) {
        if percpu::on()
            && let Some(head) = registry::get(self.id())
        {
            // SAFETY: promised by the caller.
            return unsafe { percpu::free_bulk(self, head, objects) };
        }
        for p in objects {
            if let Some(p) = NonNull::new(*p) {
                // SAFETY: promised by the caller.
                unsafe { self.free(p) };
            }
        }
    }

    /// Gives back what holds no object in use: the calling thread's queues, shared
    /// ones, empty slabs. Returns the pages freed.
    fn shrink(self) -> usize;

    /// Gives back the memory of pages that lie wholly in free objects of slabs in use
    /// ([`crate::gaps`]); returns the pages. With `quiet`, slabs that few objects hold
    /// become quiet ([`page_alloc::sparse`]).
    fn discard_gaps(self, quiet: bool) -> usize;

    /// Whether [`Self::discard_gaps`] ever makes slabs quiet.
    const GOES_QUIET: bool = true;

    /// Checks every invariant of the cache's slabs and lists. Other threads must
    /// not use the cache meanwhile.
    ///
    /// # Errors
    /// The first invariant found broken.
    fn validate(self) -> Result<(), Corruption>;

    /// A snapshot.
    fn info(self) -> CacheInfo;

    /// Ends the cache and gives its slabs back. The handle, and every copy of it,
    /// must not be used afterwards.
    ///
    /// # Errors
    /// [`DestroyError::Busy`] while objects are in use. Objects in queues of other
    /// threads are taken from there; those threads must not be using the cache.
    fn destroy(self) -> Result<(), DestroyError>;

    /// Takes an object; `None` without memory. Its content is arbitrary, or what
    /// the constructor or the last user left.
    #[inline(always)]
    fn alloc(self) -> Option<NonNull<u8>> {
        let p = Self::try_alloc(self.id());
        NonNull::new(if p.is_null() { self.alloc_slow() } else { p })
    }

    /// Gives an object back. A pointer that is not an object in use of this cache
    /// is reported as misuse, and nothing else happens to it.
    ///
    /// # Safety
    /// `p` must come from this cache, and nothing may use the object any more.
    #[inline(always)]
    unsafe fn free(self, p: NonNull<u8>) {
        let p = p.as_ptr();
        if let Some(mark) = granule::primary_cell(p)
            && u32::from(mark.load(Ordering::Relaxed)) == self.id()
            // SAFETY: the mark says that `p` is an object in use of this cache (ids
            // that do not fit the byte take the slow path).
            && unsafe { Self::try_free(self.id(), p, mark) }
        {
            return;
        }
        // SAFETY: as promised by the caller.
        unsafe { free_checked(self, p) };
    }
}

#[cold]
#[inline(never)]
unsafe fn free_checked<C: ObjectCache>(cache: C, p: *mut u8) {
    let Some(mark) = granule::cell(p) else {
        return misuse::report_free(p, C::BACKEND);
    };
    if sparse::mark_at(p, mark) != granule::byte_of(cache.id())
        || (cache.id() >= u32::from(granule::LARGE) && misuse::cache_at(p) != Some(cache.id()))
    {
        return misuse::report_free(p, C::BACKEND);
    }
    // SAFETY: the mark (and the page's record) say that `p` is an object in use of
    // this cache.
    unsafe { cache.free_slow(p) };
}
