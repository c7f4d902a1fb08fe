//! The hardened heap (`SLABMALLOC_CONF=secure=1`): malloc's operations over caches of a
//! backend, with every measure that a heap can take against its users' mistakes.
//!
//! ```text
//!   malloc ─▶ pool, a random object ─▶ still zero? ─▶ canary ─▶ program
//!   free ──▶ mark ─▶ canary, neighbour's word ─▶ zeros ─▶ quarantine ─▶ backend
//!   large    a run of pages between guards; freed: a guard itself, for a while
//! ```
//! - `object`: the canary, and zeros while an object is free;
//! - `store`: pool and quarantine of a cache, pure bookkeeping;
//! - `large`: large objects;
//! - `random`, `secret`: where unpredictability comes from.
//!
//! The heap has caches of its own, so that nothing here costs the normal heap anything:
//! one for each size class and, for `memalign`, one for each class with its alignment;
//! their slabs end in guard pages ([`crate::guard`]). Bookkeeping lies in the metadata
//! pool, apart from all objects. Lock order: a kind's lock, then the backend's.

use core::ptr::{self, NonNull};
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicPtr, AtomicU8};

use page_alloc::sync::{FutexLock, Lock};
use page_alloc::{GRANULE, granule, meta, page_of, purge};

use crate::cache::{CacheDesc, MAX_OBJECT, ObjectCache};
use crate::class::{self, CLASSES};
use crate::heap::{self, MAX_REQUEST};
use crate::malloc::Malloc;
use crate::{config, misuse, registry};
use object::{Fault, Place, WORD};
use secret::Secret;
use store::Store;

mod large;
mod object;
mod random;
mod secret;
mod store;

pub(crate) use secret::forked;

/// The largest request that a cache serves.
const MAX_SMALL: usize = MAX_OBJECT - WORD;
/// Kinds of objects: the classes, and the classes aligned.
const KINDS: usize = 2 * CLASSES;

/// A kind of objects: a cache, and the free objects held back.
struct Kind<B> {
    cache: B,
    /// Bytes that the backend leaves alone while an object is free.
    size: usize,
    stride: usize,
    store: Lock<Store>,
}

/// The hardened heap over a backend. One static of a process; slower and larger than
/// [`heap::Heap`], see `docs/security.md`.
#[derive(Debug)]
pub struct Secure<B: ObjectCache> {
    kinds: [AtomicPtr<Kind<B>>; KINDS],
    /// The kind of each cache, plus one.
    by_id: [AtomicU8; registry::MAX_CACHES],
}

const _: () = assert!(KINDS < u8::MAX as usize);

impl<B: ObjectCache> Default for Secure<B> {
    fn default() -> Self {
        Self::new()
    }
}

impl<B: ObjectCache> Secure<B> {
    /// An empty heap; takes no memory until it is used.
    pub const fn new() -> Self {
        Self {
            kinds: [const { AtomicPtr::new(ptr::null_mut()) }; KINDS],
            by_id: [const { AtomicU8::new(0) }; registry::MAX_CACHES],
        }
    }

    /// Calls back with each lock, in lock order: for [`registry::set_layer_locks`].
    pub fn locks(&self, f: &mut dyn FnMut(&FutexLock)) {
        for kind in (0..KINDS).filter_map(|index| self.made(index)) {
            // SAFETY: only the fork handlers get it, and they use it in pairs.
            f(unsafe { kind.store.raw() });
        }
        large::with_raw_lock(f);
    }

    fn made(&self, index: usize) -> Option<&'static Kind<B>> {
        // Acquire: pairs with the release in `make`.
        // SAFETY: records are never given back.
        unsafe { self.kinds.get(index)?.load(Acquire).as_ref() }
    }

    fn kind(&self, index: usize) -> Option<&'static Kind<B>> {
        match self.made(index) {
            Some(kind) => Some(kind),
            None => self.make(index),
        }
    }

    #[cold]
    fn make(&self, index: usize) -> Option<&'static Kind<B>> {
        config::settings();
        let _create = registry::create_lock();
        if let Some(kind) = self.made(index) {
            return Some(kind);
        }
        let class = index % CLASSES;
        let align = if index < CLASSES {
            GRANULE
        } else {
            class::align(class)
        };
        let size = class::size(class);
        let memory = meta::alloc(size_of::<Kind<B>>())?.cast::<Kind<B>>();
        let desc = CacheDesc::new(class::NAMES[class], size)
            .align(align)
            .constructor(construct)
            .guarded()
            .no_merge();
        let Ok(cache) = B::create(&desc) else {
            // SAFETY: nobody has the record yet.
            unsafe { meta::free(memory.cast(), size_of::<Kind<B>>()) };
            return None;
        };
        let stride = registry::get(cache.id()).map_or(size, |head| head.stride as usize);
        // SAFETY: the record is ours, large and aligned enough.
        unsafe {
            memory.write(Kind {
                cache,
                size: size.min(stride - WORD),
                stride,
                store: Lock::new(Store::new(stride, index as u32)),
            });
        }
        if let Some(cell) = self.by_id.get(cache.id() as usize) {
            cell.store(index as u8 + 1, Relaxed);
        }
        // Release: publishes the record.
        self.kinds[index].store(memory.as_ptr(), Release);
        self.made(index)
    }

    /// The kind of the object in use at `p`, whose mark is `byte`.
    fn kind_at(&self, p: *const u8, byte: u8) -> Option<(usize, &'static Kind<B>)> {
        let id = match byte {
            granule::EXTENDED => misuse::cache_at(p)?,
            byte => u32::from(byte),
        };
        let index = self.by_id.get(id as usize)?.load(Relaxed).checked_sub(1)? as usize;
        Some((index, self.made(index)?))
    }

    fn small(&self, index: usize, size: usize) -> *mut u8 {
        let (Some(secret), Some(kind)) = (secret::get(), self.kind(index)) else {
            return ptr::null_mut();
        };
        let mut retried = false;
        loop {
            let p = kind.take(secret);
            if p.is_null() {
                if retried {
                    return p;
                }
                retried = true;
                large::release_all();
                heap::reclaim();
                continue;
            }
            let place = kind.place(p);
            // SAFETY: a free object that only this thread knows.
            unsafe {
                if !place.is_clean(&secret.canary, place.capacity()) {
                    // It stays out of use: whoever wrote to it may do so again.
                    misuse::report("write to freed memory at", p);
                    continue;
                }
                place.put_canary(&secret.canary, size);
                return granule::mark(p, granule::byte_of(kind.cache.id()));
            }
        }
    }

    fn large(&self, size: usize, align: usize, zero: bool) -> *mut u8 {
        config::settings();
        let Some(secret) = secret::get() else {
            return ptr::null_mut();
        };
        if size > MAX_REQUEST {
            return ptr::null_mut();
        }
        let p = large::alloc(size, align, zero, secret);
        if p.is_null() && heap::reclaim() {
            large::alloc(size, align, zero, secret)
        } else {
            p
        }
    }

    /// What is wrong with a pointer that is no object in use.
    #[cold]
    fn report_free(&self, p: *mut u8) {
        if large::is_quarantined(p) {
            misuse::report("double free of a large object:", p);
        } else {
            misuse::report_free(p, B::BACKEND);
        }
    }
}

/// Makes a fresh object free: zeros, and the word behind them.
unsafe fn construct(p: *mut u8) {
    let head = misuse::cache_at(p).and_then(registry::get);
    if let (Some(head), Some(secret)) = (head, secret::get()) {
        let stride = head.stride as usize;
        // SAFETY: an object of a slab that its backend is making.
        unsafe { Place { p, stride }.wipe(&secret.canary) };
    }
}

impl<B: ObjectCache> Kind<B> {
    fn place(&self, p: *mut u8) -> Place {
        Place {
            p,
            stride: self.stride,
        }
    }

    /// A random free object, unmarked; null without memory.
    fn take(&self, secret: &Secret) -> *mut u8 {
        let mut store = self.store.lock();
        for _ in 0..store.wanted() {
            let p = B::try_alloc(self.cache.id());
            let p = if p.is_null() {
                self.cache.alloc_slow()
            } else {
                p
            };
            if p.is_null() {
                break;
            }
            let place = self.place(p);
            // SAFETY: an object in an arena that is ours, as nobody else got it.
            unsafe {
                granule::cell_of_object(p).store(0, Relaxed);
                if place.is_clean(&secret.canary, self.size) {
                    place.wipe_from(self.size);
                    store.put(p);
                } else {
                    misuse::report("write to freed memory at", p);
                }
            }
        }
        self.patrol(&mut store, secret);
        store.take(secret)
    }

    /// Looks at one object of the quarantine.
    fn patrol(&self, store: &mut Store, secret: &Secret) {
        let p = store.patrol();
        if p.is_null() {
            return;
        }
        let place = self.place(p);
        // SAFETY: an object in quarantine is the store's alone, whose lock is held.
        if !unsafe { place.is_clean(&secret.canary, place.capacity()) } {
            store.drop_patrolled();
            misuse::report("write to freed memory at", p);
        }
    }

    /// Checks an object that is to be freed and its neighbour, and says what is wrong.
    ///
    /// # Safety
    /// The object must be the caller's alone.
    unsafe fn check(&self, p: *mut u8, secret: &Secret) {
        let place = self.place(p);
        // SAFETY: promised by the caller.
        if unsafe { place.check_canary(&secret.canary) } == Err(Fault::After) {
            misuse::report("write behind the end of", p);
        }
        let start = page_of(p).map_or(p, |page| page.head().address());
        // The slab's first object has no neighbour (and there is less than an object's
        // length before it).
        if p as usize - start as usize >= self.stride
            && place.check_before(&secret.canary) == Err(Fault::Before)
        {
            misuse::report("write before the start of", p);
        }
    }

    /// Takes a freed object, checked and unmarked, into quarantine.
    ///
    /// # Safety
    /// The object must be the caller's alone.
    unsafe fn give(&self, p: *mut u8, secret: &Secret) {
        // SAFETY: promised by the caller.
        unsafe { self.place(p).wipe(&secret.canary) };
        let out = {
            let mut store = self.store.lock();
            let out = store.quarantine(p, secret);
            self.patrol(&mut store, secret);
            out
        };
        if let Some(out) = NonNull::new(out) {
            // SAFETY: it left the quarantine, so it is ours alone.
            unsafe { self.give_back(out.as_ptr(), secret) };
        }
    }

    /// Gives a free object to the backend.
    ///
    /// # Safety
    /// The object must be the caller's alone.
    unsafe fn give_back(&self, p: *mut u8, secret: &Secret) {
        let place = self.place(p);
        // SAFETY: promised by the caller; marked, it is an object in use to the backend.
        unsafe {
            if !place.is_clean(&secret.canary, place.capacity()) {
                return misuse::report("write to freed memory at", p);
            }
            let id = self.cache.id();
            let mark = granule::cell_of_object(p);
            mark.store(granule::byte_of(id), Relaxed);
            if !B::try_free(id, p, mark) {
                self.cache.free_slow(p);
            }
        }
    }

    /// Gives the pool back, and what the backend can spare then. Returns pages.
    fn shrink(&self, secret: &Secret) -> usize {
        loop {
            let p = self.store.lock().take(secret);
            if p.is_null() {
                return self.cache.shrink();
            }
            // SAFETY: taken from the pool, it is ours alone.
            unsafe { self.give_back(p, secret) };
        }
    }
}

/// The class for a request with its canary; `None` when it takes pages.
fn class_of(size: usize, align: usize) -> Option<usize> {
    if size > MAX_SMALL {
        return None;
    }
    if align <= GRANULE {
        return Some(class::of(size + WORD));
    }
    class::aligned(size + WORD, align).map(|class| CLASSES + class)
}

impl<B: ObjectCache> Malloc for Secure<B> {
    #[inline]
    fn try_malloc(&self, size: usize) -> *mut u8 {
        self.malloc(size)
    }

    fn malloc(&self, size: usize) -> *mut u8 {
        match class_of(size, GRANULE) {
            Some(index) => self.small(index, size),
            None => self.large(size, GRANULE, false),
        }
    }

    fn alloc_zeroed(&self, size: usize) -> *mut u8 {
        match class_of(size, GRANULE) {
            // Free objects are zero.
            Some(index) => self.small(index, size),
            None => self.large(size, GRANULE, true),
        }
    }

    fn memalign(&self, align: usize, size: usize) -> *mut u8 {
        if !align.is_power_of_two() || size > MAX_REQUEST || align > MAX_REQUEST / 2 {
            return ptr::null_mut();
        }
        match class_of(size, align) {
            Some(index) => self.small(index, size),
            None => self.large(size, align, false),
        }
    }

    unsafe fn free(&self, p: *mut u8) {
        if p.is_null() {
            return;
        }
        let (Some(mark), Some(secret)) = (granule::cell(p), secret::get()) else {
            return misuse::report_free(p, B::BACKEND);
        };
        let byte = mark.load(Relaxed);
        match byte {
            0 => return self.report_free(p),
            // SAFETY: the mark says so; the rest is promised by the caller.
            granule::LARGE => return unsafe { large::free(p, secret) },
            _ => {}
        }
        let Some((_, kind)) = self.kind_at(p, byte) else {
            return misuse::report("free of an object of another heap:", p);
        };
        // Two threads may free the object at once: one of them gets it.
        if mark.compare_exchange(byte, 0, AcqRel, Relaxed).is_err() {
            return misuse::report("double free of", p);
        }
        // SAFETY: the mark said that it is an object in use, and it is ours now.
        unsafe {
            kind.check(p, secret);
            kind.give(p, secret);
        }
    }

    unsafe fn free_sized(&self, p: *mut u8, size: usize) {
        // SAFETY: promised by the caller.
        unsafe { self.free_aligned_sized(p, GRANULE, size) }
    }

    unsafe fn free_aligned_sized(&self, p: *mut u8, align: usize, size: usize) {
        if let Some(mark) = granule::cell(p) {
            let fits = match mark.load(Relaxed) {
                0 => true, // reported as what it is below
                granule::LARGE => class_of(size, align).is_none() && size <= large::usable_size(p),
                byte => self
                    .kind_at(p, byte)
                    .is_none_or(|(index, _)| Some(index) == class_of(size, align)),
            };
            if !fits {
                return misuse::report("sized free with a size of another class:", p);
            }
        }
        // SAFETY: promised by the caller.
        unsafe { self.free(p) }
    }

    unsafe fn usable_size(&self, p: *const u8) -> usize {
        if p.is_null() {
            return 0;
        }
        match self.size_at(p) {
            Some(size) => size,
            None => {
                misuse::report("size asked of a pointer that is no object in use:", p);
                0
            }
        }
    }

    unsafe fn realloc(&self, p: *mut u8, size: usize) -> *mut u8 {
        if p.is_null() {
            return self.malloc(size);
        }
        if size > MAX_REQUEST {
            return ptr::null_mut();
        }
        let (Some(secret), Some(old)) = (secret::get(), self.size_at(p)) else {
            misuse::report("realloc of a pointer that is no object in use:", p);
            return ptr::null_mut();
        };
        let new_class = class_of(size, GRANULE);
        let byte = granule::cell(p).map_or(0, |mark| mark.load(Relaxed));
        if byte == granule::LARGE {
            if new_class.is_none() {
                // SAFETY: promised by the caller; the mark says large.
                return unsafe { large::realloc(p, size, secret) };
            }
        } else if let Some((index, kind)) = self.kind_at(p, byte)
            && new_class == Some(index % CLASSES)
        {
            // SAFETY: the object is the caller's.
            unsafe {
                kind.check(p, secret);
                kind.place(p).put_canary(&secret.canary, size);
            }
            return p;
        }
        let new = self.malloc(size);
        if !new.is_null() {
            // SAFETY: both are ours and distinct, of `old` and `size` bytes.
            unsafe {
                ptr::copy_nonoverlapping(p, new, old.min(size));
                self.free(p);
            }
        }
        new
    }

    fn trim(&self) -> bool {
        let mut pages = 0;
        if let Some(secret) = secret::get() {
            let kinds = (0..KINDS).filter_map(|index| self.made(index));
            pages += kinds.map(|kind| kind.shrink(secret)).sum::<usize>();
        }
        large::release_all();
        pages += purge::trim();
        pages > 0
    }
}

impl<B: ObjectCache> Secure<B> {
    /// Bytes of the object in use that starts at `p`, as asked for (whole pages when it
    /// is large); `None` when there is none.
    fn size_at(&self, p: *const u8) -> Option<usize> {
        match granule::cell(p)?.load(Relaxed) {
            0 => None,
            granule::LARGE => Some(large::usable_size(p)),
            byte => {
                let (_, kind) = self.kind_at(p, byte)?;
                let place = kind.place(p.cast_mut());
                let size = place.size(&secret::get()?.canary);
                Some(size.unwrap_or_else(|_| {
                    misuse::report("write behind the end of", p);
                    place.capacity()
                }))
            }
        }
    }
}
