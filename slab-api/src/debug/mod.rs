//! The debug heap: malloc's operations with red zones, poison and tracks, as the
//! kernel's `slub_debug` has them. A layer over any backend.
//!
//! ```text
//!   malloc ─▶ DebugHeap ─┬─ a cache that is not named ─▶ Heap<B>
//!                        └─ a named one: B's object = record + zone + object + zone
//!   free   ─▶ find the record ─▶ check ─▶ poison ─▶ quarantine ─▶ check ─▶ B
//! ```
//! * `flags`: which caches, by letters and globs;
//! * `record`: the memory of an object: its record, zones, poison;
//! * `track`, `stack`: who allocated and freed it;
//! * `find`: from a pointer to the object; what else a pointer may be;
//! * `quarantine`: freed objects wait a little;
//! * `report`: faults in the kernel's form; `walk`: all objects: validation, leaks.
//!
//! A debugged class is a cache of the backend whose objects are larger by
//! a record and two zones, and which carries the class's name, so that slabinfo shows
//! what debugging costs. Its constructor writes the record of a new object. Classes
//! that would exceed the largest object of a cache take runs of pages.
//!
//! The preload library jumps here instead of to `Heap` when `debug=` is set; without
//! it, nothing on the fast paths knows of this module.

#![allow(unsafe_code)]

mod find;
mod flags;
mod quarantine;
mod record;
mod report;
mod stack;
mod track;
mod walk;

use core::alloc::{GlobalAlloc, Layout};
use core::ptr;
use core::sync::atomic::{AtomicU8, AtomicU32, Ordering::Relaxed};

use page_alloc::sync::FutexLock;
use page_alloc::{GRANULE, PAGE_SIZE, granule};

pub(crate) use flags::tracks_any;
pub use flags::{Flags, is_valid, matches};

use crate::cache::{CacheDesc, MAX_OBJECT, ObjectCache};
use crate::class::{self, CLASSES, NAMES};
use crate::heap::{self, Heap, MAX_REQUEST};
use crate::{config, large, misuse, registry};

use find::Found;
use quarantine::Waiting;
use record::{EXTRA, FRONT, Object, State, ZONE};

/// The name under which large requests are debugged.
pub const LARGE_NAME: &str = "malloc-large";

/// The name of a class; [`CLASSES`] stands for large requests.
fn name_of(class: usize) -> &'static str {
    NAMES.get(class).copied().unwrap_or(LARGE_NAME)
}

/// A bit beside the flags of a class: they are known.
const KNOWN: u8 = 0x80;

/// A malloc-like heap over the backend `B` that checks what its users do.
///
/// ```ignore
/// #[global_allocator]
/// static A: slab_api::debug::DebugHeap<slab_unified::Unified> =
///     slab_api::debug::DebugHeap::with("FZPU");
/// ```
#[derive(Debug)]
pub struct DebugHeap<B: ObjectCache> {
    plain: Heap<B>,
    /// What is debugged; `None`: what `SLABMALLOC_CONF` says.
    spec: Option<&'static str>,
    /// Of each class, and of large requests: the flags, and [`KNOWN`].
    flags: [AtomicU8; CLASSES + 1],
    caches: [AtomicU32; CLASSES],
    /// Of each granule byte: the debugged class plus one.
    classes: [AtomicU8; 256],
}

impl<B: ObjectCache> Default for DebugHeap<B> {
    fn default() -> Self {
        Self::new()
    }
}

impl<B: ObjectCache> DebugHeap<B> {
    /// An empty heap that debugs what `SLABMALLOC_CONF`'s `debug=` names.
    pub const fn new() -> Self {
        Self::over(None)
    }

    const fn over(spec: Option<&'static str>) -> Self {
        Self {
            plain: Heap::new(),
            spec,
            flags: [const { AtomicU8::new(0) }; CLASSES + 1],
            caches: [const { AtomicU32::new(0) }; CLASSES],
            classes: [const { AtomicU8::new(0) }; 256],
        }
    }

    /// An empty heap that debugs what `spec` says, in the form of `debug=`: letters of
    /// `FZPUT`, then a colon and globs. What is no such text debugs nothing.
    pub const fn with(spec: &'static str) -> Self {
        Self::over(Some(spec))
    }

    /// The flags of a class; of large requests for [`CLASSES`].
    fn flags(&self, class: usize) -> Flags {
        match self.flags[class].load(Relaxed) {
            0 => self.find_flags(class),
            bits => Flags::from_bits(bits),
        }
    }

    #[cold]
    fn find_flags(&self, class: usize) -> Flags {
        stack::warm_up();
        let spec = match self.spec {
            Some(spec) => spec.as_bytes(),
            None => config::settings().debug,
        };
        let flags = Flags::of_cache(spec, name_of(class));
        self.flags[class].store(flags.bits() | KNOWN, Relaxed);
        flags
    }

    fn cache(&self, class: usize) -> Option<B> {
        match self.caches[class].load(Relaxed) {
            0 => self.create(class),
            id => B::from_id(id),
        }
    }

    #[cold]
    fn create(&self, class: usize) -> Option<B> {
        config::settings();
        let _create = registry::create_lock();
        if let id @ 1.. = self.caches[class].load(Relaxed) {
            return B::from_id(id);
        }
        let desc = CacheDesc::new(NAMES[class], class::size(class) + EXTRA)
            .constructor(record::construct)
            .no_merge();
        let cache = B::create(&desc).ok()?;
        if cache.id() >= u32::from(granule::LARGE) {
            // The byte would not name it.
            let _ = cache.destroy();
            return None;
        }
        self.classes[cache.id() as usize].store(class as u8 + 1, Relaxed);
        self.caches[class].store(cache.id(), Relaxed);
        Some(cache)
    }

    /// Takes `size` bytes, aligned to 16; null without memory. `errno` stays.
    #[inline(always)]
    pub fn malloc(&self, size: usize) -> *mut u8 {
        self.allocate(GRANULE, size, false, stack::here())
    }

    /// As [`Self::malloc`]: there is no faster path here.
    #[inline(always)]
    pub fn try_malloc(&self, size: usize) -> *mut u8 {
        self.allocate(GRANULE, size, false, stack::here())
    }

    /// As [`Self::malloc`], filled with zeros.
    #[inline(always)]
    pub fn alloc_zeroed(&self, size: usize) -> *mut u8 {
        self.allocate(GRANULE, size, true, stack::here())
    }

    /// Takes `size` bytes at a multiple of `align`, a power of two; null without
    /// memory or for another alignment.
    #[inline(always)]
    pub fn memalign(&self, align: usize, size: usize) -> *mut u8 {
        self.allocate(align, size, false, stack::here())
    }

    /// `above`: frames of the stack that are not the caller's lie below it.
    #[inline(never)]
    fn allocate(&self, align: usize, size: usize, zero: bool, above: usize) -> *mut u8 {
        if !align.is_power_of_two() || size > MAX_REQUEST || align > MAX_REQUEST / 2 {
            return ptr::null_mut();
        }
        // Room to move an aligned object up to its place.
        let need = size.next_multiple_of(ZONE) + align.max(GRANULE) - GRANULE;
        let class = if need <= MAX_OBJECT && align <= PAGE_SIZE {
            class::of(need)
        } else {
            CLASSES
        };
        let flags = self.flags(class);
        if flags.is_empty() {
            return if zero && align <= GRANULE {
                self.plain.alloc_zeroed(size)
            } else {
                self.plain.memalign(align, size)
            };
        }
        let found = if class < CLASSES && class::size(class) + EXTRA <= MAX_OBJECT {
            self.take_object(class, flags, align)
        } else {
            take_run(align, size, zero)
        };
        let Some((object, offset)) = found else {
            return ptr::null_mut();
        };
        object.describe(class, offset, size);
        self.hand_out(object, flags, above);
        let user = object.user();
        if zero && !object.is_run() {
            // SAFETY: the object's own bytes, which nobody else has.
            unsafe { user.write_bytes(0, size) };
        }
        user
    }

    /// An object of a class, checked since its last use, and where the user's bytes
    /// begin in it.
    fn take_object(&self, class: usize, flags: Flags, align: usize) -> Option<(Object, usize)> {
        let take = || {
            let base = B::try_alloc(self.caches[class].load(Relaxed));
            if !base.is_null() {
                return base;
            }
            self.cache(class)
                .map_or(ptr::null_mut(), |cache| cache.alloc_slow())
        };
        let mut base = take();
        if base.is_null() {
            quarantine::drain();
            heap::reclaim();
            base = take();
        }
        // SAFETY: an object of a debugged cache: aligned, and a record long.
        let object = unsafe { Object::at(base) }?;
        // Busy from here on: a check by another thread passes it by.
        if !object.is_sealed() {
            report::record_overwritten(name_of(class), object, "Starting a new record");
            object.restart();
        } else if object.begin(State::Free) {
            report::check(object, flags, State::Free);
        } else if object.begin(State::New) {
            // As the kernel does: what was never used looks like what was freed.
            object.describe(class, FRONT, class::size(class));
            report::fill(object, flags, State::Free);
        } else {
            // The backend's list was led to an object that is in use: its user keeps it.
            let p = object.user();
            report::wrong(
                object,
                p,
                format_args!("Object in use was free"),
                "Out of memory",
            );
            return None;
        }
        let user = (object.base() + FRONT).next_multiple_of(align);
        Some((object, user - object.base()))
    }

    /// Makes a described object the user's.
    fn hand_out(&self, object: Object, flags: Flags, above: usize) {
        if flags.has(Flags::TRACK) {
            object.alloc_track().note(stack::capture(above));
        }
        report::fill(object, flags, State::Live);
        object.set(State::Live);
        if flags.has(Flags::TRACE) {
            report::trace(object, flags, true);
        }
    }

    /// Gives an object back; null is ignored. Whatever is not an object in use is
    /// reported.
    ///
    /// # Safety
    /// Nothing may use the object any more.
    #[inline(always)]
    pub unsafe fn free(&self, p: *mut u8) {
        // SAFETY: promised by the caller.
        unsafe { self.release(p, None, stack::here()) };
    }

    /// As [`Self::free`]; with the flag F, a size other than the requested one is
    /// reported.
    ///
    /// # Safety
    /// As [`Self::free`].
    #[inline(always)]
    pub unsafe fn free_sized(&self, p: *mut u8, size: usize) {
        // SAFETY: promised by the caller.
        unsafe { self.release(p, Some((GRANULE, size)), stack::here()) };
    }

    /// As [`Self::free_sized`] for an object of [`Self::memalign`].
    ///
    /// # Safety
    /// As [`Self::free`].
    #[inline(always)]
    pub unsafe fn free_aligned_sized(&self, p: *mut u8, align: usize, size: usize) {
        // SAFETY: promised by the caller.
        unsafe { self.release(p, Some((align, size)), stack::here()) };
    }

    #[inline(never)]
    unsafe fn release(&self, p: *mut u8, sized: Option<(usize, usize)>, above: usize) {
        if p.is_null() {
            return;
        }
        let object = match self.find(p) {
            Found::Object(object) => object,
            Found::Plain => {
                // SAFETY: promised by the caller.
                return unsafe {
                    match sized {
                        Some((align, size)) => self.plain.free_aligned_sized(p, align, size),
                        None => self.plain.free(p),
                    }
                };
            }
            other => return self.complain(p, other, "free"),
        };
        let flags = self.flags(object.class());
        if let Some((_, size)) = sized
            && flags.has(Flags::CHECKS)
            && size != object.size()
        {
            let had = object.size();
            let what = format_args!("Sized free with {size} bytes of an object of {had}");
            return report::wrong(object, p, what, "Object not freed");
        }
        if !object.begin(State::Live) {
            return report::wrong(
                object,
                p,
                format_args!("Object already free (double free)"),
                "Object not freed again",
            );
        }
        report::check(object, flags, State::Live);
        if flags.has(Flags::TRACK) {
            object.free_track().note(stack::capture(above));
        }
        if flags.has(Flags::TRACE) {
            report::trace(object, flags, false);
        }
        report::fill(object, flags, State::Free);
        object.set(State::Free);
        quarantine::push(Waiting {
            object,
            flags,
            release: give_back::<B>,
        });
    }

    /// Says what is wrong with a pointer that `find` did not like.
    #[cold]
    fn complain(&self, p: *const u8, found: Found, verb: &str) {
        match found {
            Found::Inside(object) => report::wrong(
                object,
                p,
                format_args!("Invalid object pointer {p:p} ({verb} of the middle of an object)"),
                "Object not freed",
            ),
            Found::Freed(object) => report::wrong(
                object,
                p,
                format_args!("Object already free ({verb} again)"),
                "Object not freed again",
            ),
            Found::Corrupt(object, class) => {
                report::record_overwritten(name_of(class), object, "Object not freed");
            }
            Found::Object(_) | Found::Plain | Found::Nothing => {
                report::stray(p, misuse::diagnose(p));
            }
        }
    }

    /// Bytes that were asked for; 0 for null. What lies beyond them is red zone. A
    /// pointer that is no object in use is reported.
    ///
    /// # Safety
    /// The object must not be freed meanwhile.
    pub unsafe fn usable_size(&self, p: *const u8) -> usize {
        if p.is_null() {
            return 0;
        }
        match self.find(p) {
            Found::Object(object) if object.state() == State::Live => object.size(),
            // SAFETY: promised by the caller.
            Found::Plain => unsafe { self.plain.usable_size(p) },
            Found::Object(object) => {
                self.complain(p, Found::Freed(object), "size asked");
                0
            }
            other => {
                self.complain(p, other, "size asked");
                0
            }
        }
    }

    /// Resizes an object: in place where its class allows, else by copying. Null
    /// without memory; the object is then unchanged. Null as `p` allocates.
    ///
    /// # Safety
    /// `p` must be null or an object in use; on success the old pointer is gone.
    #[inline(always)]
    pub unsafe fn realloc(&self, p: *mut u8, size: usize) -> *mut u8 {
        // SAFETY: promised by the caller.
        unsafe { self.resize(p, size, stack::here()) }
    }

    #[inline(never)]
    unsafe fn resize(&self, p: *mut u8, size: usize, above: usize) -> *mut u8 {
        if p.is_null() {
            return self.allocate(GRANULE, size, false, above);
        }
        if size > MAX_REQUEST {
            return ptr::null_mut();
        }
        let old = match self.find(p) {
            Found::Object(object) if object.state() == State::Live => {
                if self.resize_in_place(object, size, above) {
                    return p;
                }
                object.size()
            }
            // SAFETY: promised by the caller.
            Found::Plain => unsafe { self.plain.usable_size(p) },
            Found::Object(object) => {
                self.complain(p, Found::Freed(object), "realloc");
                return ptr::null_mut();
            }
            other => {
                self.complain(p, other, "realloc");
                return ptr::null_mut();
            }
        };
        let new = self.allocate(GRANULE, size, false, above);
        if !new.is_null() && old > 0 {
            // SAFETY: both are ours and distinct; `old` bytes are readable, `size`
            // writable.
            unsafe {
                ptr::copy_nonoverlapping(p, new, old.min(size));
                self.release(p, None, above);
            }
        }
        new
    }

    fn resize_in_place(&self, object: Object, size: usize, above: usize) -> bool {
        let (class, flags) = (object.class(), self.flags(object.class()));
        let fits = if object.is_run() {
            let inner = object.inner_size();
            let want = (object.offset() + size + ZONE).next_multiple_of(PAGE_SIZE);
            // A run that is mostly empty moves.
            class == CLASSES && size > MAX_OBJECT && want <= inner && want > inner / 2
        } else {
            size <= MAX_OBJECT && object.offset() == FRONT && class::of(size) == class
        };
        if !fits || !object.begin(State::Live) {
            return false;
        }
        report::check(object, flags, State::Live);
        object.describe(class, object.offset(), size);
        self.hand_out(object, flags, above);
        true
    }

    /// Gives everything that is free back to the kernel at once, what waits in the
    /// quarantine too. True when memory was given back.
    pub fn trim(&self) -> bool {
        quarantine::drain();
        for cell in &self.caches {
            if let Some(cache) = B::from_id(cell.load(Relaxed)) {
                cache.shrink();
            }
        }
        // Reports and walks read the granule map.
        self.plain.trim_but_map()
    }
}

/// A run for a large object, and where the user's bytes begin in it: a page in, so
/// that they begin at a page as without debugging.
fn take_run(align: usize, size: usize, zero: bool) -> Option<(Object, usize)> {
    let offset = align.max(PAGE_SIZE);
    let bytes = size.checked_add(offset + ZONE)?;
    if bytes > MAX_REQUEST {
        return None;
    }
    let take = || large::alloc(bytes, align.max(PAGE_SIZE), zero);
    let mut base = take();
    if base.is_null() {
        quarantine::drain();
        heap::reclaim();
        base = take();
    }
    // SAFETY: a run of ours, at least a page long.
    let object = unsafe { Object::at(base) }?;
    object.restart();
    Some((object, offset))
}

/// The end of an object's time in the quarantine.
fn give_back<B: ObjectCache>(object: Object, flags: Flags) {
    let base = object.base_ptr();
    let Some(mark) = granule::cell(base) else {
        return;
    };
    let id = u32::from(mark.load(Relaxed));
    if object.is_sealed() {
        report::check(object, flags, State::Free);
    }
    if id == u32::from(granule::LARGE) {
        object.forget();
        // SAFETY: the mark says large, and the state Free was ours to give.
        unsafe { large::free(base) };
    } else if let Some(cache) = B::from_id(id) {
        // SAFETY: the mark says that it is an object in use of this cache.
        unsafe {
            if !B::try_free(id, base, mark) {
                cache.free_slow(base);
            }
        }
    }
}

pub(crate) fn with_raw_locks(f: impl Fn(&FutexLock)) {
    quarantine::with_raw_lock(f);
}

/// In the child of a fork, once locks are free.
pub(crate) fn after_fork() {
    stack::after_fork();
}

// SAFETY: as for `Heap`: blocks of at least the layout's size and alignment, distinct
// while in use, null without memory, no unwinding.
unsafe impl<B: ObjectCache> GlobalAlloc for DebugHeap<B> {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        self.memalign(layout.align(), layout.size())
    }

    #[inline]
    unsafe fn dealloc(&self, p: *mut u8, layout: Layout) {
        // SAFETY: GlobalAlloc's caller promises that the block came from here with
        // this layout.
        unsafe { self.free_aligned_sized(p, layout.align(), layout.size()) }
    }
}
