//! What a cache workload needs of an allocator, and the allocators that offer it.
//!
//! Workloads are generic over [`Objects`] and compiled once for each backend, so that nothing but the backend's own
//! fast path stands between a workload and an object.

use crate::workloads::{Options, Outcome};
use slab_api::registry::MAX_CACHES;
use slab_api::{CacheDesc, Heap, ObjectCache};
use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

/// Named caches of objects of one size, and a heap of objects of any size, as a workload sees them.
pub trait Objects: Sync + Send + 'static {
    /// The backend's name.
    const NAME: &'static str;
    /// A handle on a cache.
    type Cache: Copy + Send + Sync;

    /// Makes a cache of objects of `size` bytes; the error is one line.
    fn create(name: &'static str, size: usize) -> Result<Self::Cache, String>;

    /// An object, or null when memory has run out.
    fn alloc(cache: Self::Cache) -> *mut u8;

    /// Gives an object back.
    ///
    /// # Safety
    /// `object` came from `cache`, was not freed since, and nobody uses it any more.
    unsafe fn free(cache: Self::Cache, object: *mut u8);

    /// Fills `out` from the front; returns how many objects there were.
    fn alloc_bulk(cache: Self::Cache, out: &mut [*mut u8]) -> usize;

    /// Gives many objects back.
    ///
    /// # Safety
    /// As [`Objects::free`], for each of `objects`; no object stands there twice.
    unsafe fn free_bulk(cache: Self::Cache, objects: &[*mut u8]);

    /// An object of `size` bytes of the heap, or null when memory has run out.
    fn take(size: usize) -> *mut u8;

    /// Gives an object of the heap back.
    ///
    /// # Safety
    /// `object` came from [`Objects::take`], was not given back since, and nobody uses it any more.
    unsafe fn give(object: *mut u8);

    /// Gives what is free back to the kernel, as far as the allocator can.
    fn trim();

    /// Bytes that users hold by the allocator's own accounts; `None` where it keeps none. Exact when no other thread
    /// uses it.
    fn held() -> Option<u64>;

    /// Lets the allocator hold at most `bytes` of memory. False when it has no such limit.
    fn limit(bytes: usize) -> bool;

    /// The backend's structural counters so far.
    fn counters() -> Vec<(String, u64)>;
}

/// The process's malloc: glibc's, or whatever was preloaded into this worker.
pub struct SystemMalloc;

impl Objects for SystemMalloc {
    const NAME: &'static str = "system";
    type Cache = usize;

    fn create(_name: &'static str, size: usize) -> Result<usize, String> {
        Ok(size)
    }

    #[inline]
    fn alloc(size: usize) -> *mut u8 {
        // The box keeps the compiler from pairing this call with its free and dropping both.
        // SAFETY: malloc has no precondition.
        std::hint::black_box(unsafe { libc::malloc(size) }.cast())
    }

    #[inline]
    unsafe fn free(_size: usize, object: *mut u8) {
        // SAFETY: the caller promises that `object` came from malloc and is live.
        unsafe { libc::free(object.cast()) }
    }

    fn alloc_bulk(size: usize, out: &mut [*mut u8]) -> usize {
        for (count, slot) in out.iter_mut().enumerate() {
            *slot = Self::alloc(size);
            if slot.is_null() {
                return count;
            }
        }
        out.len()
    }

    unsafe fn free_bulk(size: usize, objects: &[*mut u8]) {
        for &object in objects {
            // SAFETY: the caller promises it for each object.
            unsafe { Self::free(size, object) }
        }
    }

    #[inline]
    fn take(size: usize) -> *mut u8 {
        Self::alloc(size)
    }

    #[inline]
    unsafe fn give(object: *mut u8) {
        // SAFETY: the caller promises that `object` came from malloc and is live.
        unsafe { libc::free(object.cast()) }
    }

    fn trim() {
        // Another malloc may serve this process; then glibc has nothing to trim.
        // SAFETY: malloc_trim has no precondition.
        unsafe { libc::malloc_trim(0) };
    }

    fn held() -> Option<u64> {
        None
    }

    fn limit(_bytes: usize) -> bool {
        false
    }

    fn counters() -> Vec<(String, u64)> {
        Vec::new()
    }
}

/// An object allocator with a heap in a static.
pub trait OwnHeap: ObjectCache {
    /// Its heap.
    fn heap() -> &'static Heap<Self>;
}

macro_rules! own_heap {
    ($($backend:ty),*) => {$(
        impl OwnHeap for $backend {
            #[inline(always)]
            fn heap() -> &'static Heap<Self> {
                static HEAP: Heap<$backend> = Heap::new();
                &HEAP
            }
        }
    )*};
}

own_heap!(
    slab_classic::Classic,
    slub::Slub,
    slab_unified::Unified,
    slab_unified::v4::UnifiedV4
);

/// One of the object allocators of this project.
pub struct Cached<C>(PhantomData<C>);

impl<C: OwnHeap> Objects for Cached<C> {
    const NAME: &'static str = C::BACKEND;
    type Cache = C;

    fn create(name: &'static str, size: usize) -> Result<C, String> {
        C::create(&CacheDesc::new(name, size))
            .map_err(|e| format!("{}: cache {name} of {size} bytes: {e}", C::BACKEND))
    }

    #[inline(always)]
    fn alloc(cache: C) -> *mut u8 {
        cache.alloc().map_or(std::ptr::null_mut(), NonNull::as_ptr)
    }

    #[inline(always)]
    unsafe fn free(cache: C, object: *mut u8) {
        // SAFETY: the caller promises an object of this cache, which is not null and which nobody uses any more.
        unsafe { cache.free(NonNull::new_unchecked(object)) }
    }

    #[inline(always)]
    fn alloc_bulk(cache: C, out: &mut [*mut u8]) -> usize {
        cache.alloc_bulk(out)
    }

    #[inline(always)]
    unsafe fn free_bulk(cache: C, objects: &[*mut u8]) {
        // SAFETY: the caller promises it for each object.
        unsafe { cache.free_bulk(objects) }
    }

    #[inline(always)]
    fn take(size: usize) -> *mut u8 {
        C::heap().malloc(size)
    }

    #[inline(always)]
    unsafe fn give(object: *mut u8) {
        // SAFETY: the caller promises a live object of this heap, which nobody uses any more.
        unsafe { C::heap().free(object) }
    }

    fn trim() {
        for cache in (1..MAX_CACHES as u32).filter_map(C::from_id) {
            cache.shrink();
        }
        C::heap().trim();
    }

    fn held() -> Option<u64> {
        let caches = (1..MAX_CACHES as u32).filter_map(C::from_id).map(C::info);
        let small: usize = caches.map(|info| info.in_use * info.stride).sum();
        Some(small as u64 + C::heap().stats().large_in_use as u64)
    }

    fn limit(bytes: usize) -> bool {
        // The settings of the environment are put in force by the first allocation: not after the limit.
        // SAFETY: the object was just taken.
        unsafe { Self::give(Self::take(16)) };
        page_alloc::config::set_arena_max(bytes);
        true
    }

    /// Sums over all caches of this backend: its own counters, the slabs, and their pages by order.
    fn counters() -> Vec<(String, u64)> {
        let mut sums = BTreeMap::new();
        let mut add = |name: String, count: u64| *sums.entry(name).or_insert(0) += count;
        for info in (1..MAX_CACHES as u32).filter_map(C::from_id).map(C::info) {
            for (name, count) in info.counters.iter().filter(|(name, _)| !name.is_empty()) {
                add((*name).to_owned(), *count);
            }
            add("slabs".to_owned(), info.slabs as u64);
            add(
                format!("pages_in_slabs_of_order_{}", info.slab_order),
                info.pages() as u64,
            );
        }
        sums.into_iter().collect()
    }
}

/// The allocator `O` with a planted leak: it forgets every sixteenth object that it is given back.
pub struct Leaky<O>(PhantomData<O>);

/// Objects given back to any [`Leaky`].
static GIVEN: AtomicU64 = AtomicU64::new(0);

fn leaks() -> bool {
    GIVEN.fetch_add(1, Ordering::Relaxed) % 16 == 15
}

impl<O: Objects> Objects for Leaky<O> {
    const NAME: &'static str = crate::backend::LEAK;
    type Cache = O::Cache;

    fn create(name: &'static str, size: usize) -> Result<O::Cache, String> {
        O::create(name, size)
    }

    fn alloc(cache: O::Cache) -> *mut u8 {
        O::alloc(cache)
    }

    unsafe fn free(cache: O::Cache, object: *mut u8) {
        if !leaks() {
            // SAFETY: the caller's promise, passed on.
            unsafe { O::free(cache, object) }
        }
    }

    fn alloc_bulk(cache: O::Cache, out: &mut [*mut u8]) -> usize {
        O::alloc_bulk(cache, out)
    }

    unsafe fn free_bulk(cache: O::Cache, objects: &[*mut u8]) {
        for &object in objects {
            // SAFETY: the caller promises it for each object.
            unsafe { Self::free(cache, object) }
        }
    }

    fn take(size: usize) -> *mut u8 {
        O::take(size)
    }

    unsafe fn give(object: *mut u8) {
        if !leaks() {
            // SAFETY: the caller's promise, passed on.
            unsafe { O::give(object) }
        }
    }

    fn trim() {
        O::trim();
    }

    fn held() -> Option<u64> {
        O::held()
    }

    fn limit(bytes: usize) -> bool {
        O::limit(bytes)
    }

    fn counters() -> Vec<(String, u64)> {
        O::counters()
    }
}

/// A workload's body, generic over the allocator.
pub trait CacheRun {
    /// Measures `job` on the allocator `O`.
    fn run<O: Objects>(job: &str, options: &Options) -> Result<Outcome, String>;
}

/// Runs `R` on the backend called `backend` and adds the backend's counters to the outcome.
pub fn dispatch<R: CacheRun>(
    backend: &str,
    job: &str,
    options: &Options,
) -> Result<Outcome, String> {
    fn run<R: CacheRun, O: Objects>(job: &str, options: &Options) -> Result<Outcome, String> {
        let mut outcome = R::run::<O>(job, options)?;
        outcome.counters.extend(O::counters());
        Ok(outcome)
    }
    let name = match backend.strip_suffix(":plain") {
        Some(name) => {
            page_alloc::config::set_placement(false);
            name
        }
        None => backend,
    };
    match name {
        "slab" => run::<R, Cached<slab_classic::Classic>>(job, options),
        "slub" => run::<R, Cached<slub::Slub>>(job, options),
        "unified" => run::<R, Cached<slab_unified::Unified>>(job, options),
        crate::backend::V4 => run::<R, Cached<slab_unified::v4::UnifiedV4>>(job, options),
        "system" => run::<R, SystemMalloc>(job, options),
        crate::floor::NAME => run::<R, crate::floor::Floor>(job, options),
        crate::backend::LEAK => run::<R, Leaky<Cached<slab_unified::Unified>>>(job, options),
        _ if backend.starts_with("so:") => run::<R, SystemMalloc>(job, options),
        _ => Err(format!("this build has no backend '{backend}'")),
    }
}
