//! What a cache workload needs of an allocator, and the allocators that offer it.
//!
//! Workloads are generic over [`Objects`] and compiled once for each backend, so that nothing but the backend's own
//! fast path stands between a workload and an object.

use crate::workloads::{Options, Outcome};
use slab_api::registry::MAX_CACHES;
use slab_api::{CacheDesc, ObjectCache};
use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::ptr::NonNull;

/// Named caches of objects of one size, as a workload sees them.
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

    fn counters() -> Vec<(String, u64)> {
        Vec::new()
    }
}

/// One of the object allocators of this project.
pub struct Cached<C>(PhantomData<C>);

impl<C: ObjectCache> Objects for Cached<C> {
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
    match backend {
        "slab" => run::<R, Cached<slab_classic::Classic>>(job, options),
        "slub" => run::<R, Cached<slub::Slub>>(job, options),
        "unified" => run::<R, Cached<slab_unified::Unified>>(job, options),
        "system" => run::<R, SystemMalloc>(job, options),
        _ if backend.starts_with("so:") => run::<R, SystemMalloc>(job, options),
        _ => Err(format!("this build has no backend '{backend}'")),
    }
}
