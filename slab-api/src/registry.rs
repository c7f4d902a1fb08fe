//! All caches of the process, by id.
//!
//! A backend's cache record begins with a [`CacheHead`]; the registry maps the id
//! to it, whatever the backend. `free` of an arbitrary pointer, statistics, fork
//! and reports go through here.

use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicPtr, AtomicU8, AtomicU32, Ordering};
use std::sync::OnceLock;

use page_alloc::sync::{FutexLock, Lock};
use page_alloc::{PageRef, granule};

use crate::cache::{CacheDesc, CacheInfo, Corruption};

/// Ids run from 1 to below this.
pub const MAX_CACHES: usize = 1024;

/// Calls the given function with each lock of a cache.
pub type LockWalk = fn(&CacheHead, &mut dyn FnMut(&FutexLock));

/// What the registry asks of a backend, for any of its caches.
#[derive(Debug)]
pub struct Backend {
    /// The backend's name.
    pub name: &'static str,
    /// A snapshot of a cache.
    pub info: fn(&CacheHead) -> CacheInfo,
    /// Gives back what is free; pages.
    pub shrink: fn(&CacheHead) -> usize,
    /// Takes objects of a cache past all slots, for a slot on the given node; returns
    /// how many. At least one, unless memory is out. They are not marked.
    pub fill: fn(&CacheHead, usize, &mut [*mut u8]) -> usize,
    /// Gives objects of a cache, whose marks are cleared, past all slots; for a slot on
    /// the given node.
    pub give: fn(&CacheHead, &[*mut u8], usize),
    /// Gives back what has lain idle, if that is due: called about once a second where
    /// slots are CPUs, for backends whose threads otherwise see to it.
    pub reap: fn(&CacheHead),
    /// If at least half of the cache's objects are free: empties the queues that threads
    /// share, and gives back the pages of nothing but free objects ([`crate::growth`]).
    pub thin: fn(&CacheHead),
    /// Checks a cache.
    pub validate: fn(&CacheHead) -> Result<(), Corruption>,
    /// The granule's byte, `mark`, of a place in one of a cache's slabs, read under the
    /// cache's lock; a sparse slab's granules are written again first
    /// ([`page_alloc::sparse::restore`]). Nothing is written in a slab of another cache.
    pub restore: fn(&CacheHead, PageRef, &AtomicU8) -> u8,
    /// Objects in use of a quiet slab by its own records. Takes no lock.
    pub live: fn(PageRef) -> usize,
    /// Calls back with each lock of a cache, in lock order.
    pub locks: LockWalk,
    /// The child's part after fork: other threads' slots become free.
    ///
    /// # Safety
    /// Only in the child, before it starts threads.
    pub after_fork: unsafe fn(),
}

/// The head of each backend's cache record.
#[derive(Debug)]
#[repr(C)]
pub struct CacheHead {
    /// The backend whose record this is.
    pub backend: &'static Backend,
    /// The cache's id, from 1.
    pub id: u32,
    /// Bytes asked for an object.
    pub size: u32,
    /// Distance between objects.
    pub stride: u32,
    /// Alignment of objects.
    pub align: u32,
    /// The content of free objects matters: constructed, or checked when they are taken.
    pub keeps_content: bool,
    name: [u8; 32],
    /// A backend goes from the head to its record, which changes. Without something that
    /// may change in it, a `&CacheHead` would promise the compiler that nothing reached
    /// through it is written, and it drops stores by that promise.
    _changes: [AtomicU8; 0],
}

impl CacheHead {
    /// A head for a description whose layout is `(align, stride)`; the id follows
    /// from [`register`].
    pub fn new(
        backend: &'static Backend,
        desc: &CacheDesc<'_>,
        (align, stride): (usize, usize),
    ) -> Self {
        let mut name = [0; 32];
        let mut n = desc.name.len().min(31);
        while !desc.name.is_char_boundary(n) {
            n -= 1;
        }
        name[..n].copy_from_slice(&desc.name.as_bytes()[..n]);
        Self {
            backend,
            id: 0,
            size: desc.size as u32,
            stride: stride as u32,
            align: align as u32,
            keeps_content: desc.constructor.is_some() || desc.guarded,
            name,
            _changes: [],
        }
    }

    /// The cache's name.
    pub fn name(&self) -> &str {
        let n = self
            .name
            .iter()
            .position(|b| *b == 0)
            .unwrap_or(self.name.len());
        core::str::from_utf8(&self.name[..n]).unwrap_or("?")
    }
}

static CACHES: [AtomicPtr<CacheHead>; MAX_CACHES] =
    [const { AtomicPtr::new(ptr::null_mut()) }; MAX_CACHES];
/// Object sizes by granule byte: what realloc and usable_size need, in one line of
/// cache or two. 0 for bytes that are no cache's.
static SIZES: [AtomicU32; 256] = [const { AtomicU32::new(0) }; 256];
/// The largest id that there ever was.
static HIGHEST: AtomicU32 = AtomicU32::new(0);
static REGISTER: Lock<()> = Lock::new(());

/// Gives a cache record an id and makes it known. `None` when all are taken.
///
/// # Safety
/// `head` must be the first field of a cache record of its backend that stays
/// valid until [`unregister`], and that nobody else uses yet.
pub unsafe fn register(mut head: NonNull<CacheHead>) -> Option<u32> {
    let _guard = REGISTER.lock();
    let reserved = [granule::LARGE as usize, granule::EXTENDED as usize];
    let id = (1..MAX_CACHES)
        .filter(|id| !reserved.contains(id))
        .find(|id| CACHES[*id].load(Ordering::Relaxed).is_null())?;
    // SAFETY: the caller owns the record until it is published below.
    let stride = unsafe {
        head.as_mut().id = id as u32;
        head.as_ref().stride
    };
    if let Some(size) = SIZES.get(id) {
        size.store(stride, Ordering::Relaxed);
    }
    HIGHEST.fetch_max(id as u32, Ordering::Relaxed);
    // Release: publishes the record to `get`.
    CACHES[id].store(head.as_ptr(), Ordering::Release);
    Some(id as u32)
}

/// Forgets a cache.
pub fn unregister(id: u32) {
    let _guard = REGISTER.lock();
    if let Some(size) = SIZES.get(id as usize) {
        size.store(0, Ordering::Relaxed);
    }
    CACHES[id as usize].store(ptr::null_mut(), Ordering::Release);
}

/// The head of the cache with this id.
#[inline]
pub fn get(id: u32) -> Option<&'static CacheHead> {
    // Acquire: pairs with the release in `register`.
    let head = CACHES.get(id as usize)?.load(Ordering::Acquire);
    // SAFETY: registered heads stay valid until they are unregistered, and ids
    // reach this place only from objects in use, whose cache cannot be destroyed.
    unsafe { head.as_ref() }
}

/// The object size that a granule byte stands for; 0 when it is no cache's.
#[inline(always)]
pub fn size_of_byte(byte: u8) -> usize {
    SIZES[byte as usize].load(Ordering::Relaxed) as usize
}

/// The largest id that a cache has had so far.
pub(crate) fn highest() -> u32 {
    HIGHEST.load(Ordering::Relaxed)
}

/// Calls `f` with every cache, by id.
pub fn for_each(mut f: impl FnMut(&'static CacheHead)) {
    for id in 1..=highest() {
        if let Some(head) = get(id) {
            f(head);
        }
    }
}

static SLOTS: Lock<()> = Lock::new(());
static CREATE: Lock<()> = Lock::new(());

/// Held while a heap makes a class's cache: one of all heaps at a time, and none
/// while the process forks. Taken before every other lock.
pub(crate) fn create_lock() -> impl Drop {
    CREATE.lock()
}

/// Held while slots are walked or emptied from outside their fast paths: at thread
/// exit, and while a cache is destroyed or counted. A thread that was joined by a
/// scope may still be in its exit hooks, so "nobody uses the cache" does not keep
/// these apart. Taken before any cache's lock.
pub fn slots_lock() -> impl Drop {
    SLOTS.lock()
}

/// As [`slots_lock`], but `None` where that would wait.
pub fn try_slots_lock() -> Option<impl Drop> {
    SLOTS.try_lock()
}

/// Calls the given function with each lock of a layer above the caches.
pub type LayerLocks = fn(&mut dyn FnMut(&FutexLock));

static LAYER: OnceLock<LayerLocks> = OnceLock::new();

/// Makes the locks of the heap that serves as the process's malloc part of what `fork`
/// takes: between the lock of creation and all others. The first call counts.
pub fn set_layer_locks(locks: LayerLocks) {
    let _ = LAYER.set(locks);
}

pub(crate) fn with_raw_locks(f: impl Fn(&FutexLock)) {
    // SAFETY: the fork handlers mark, take and release raw locks in pairs.
    unsafe {
        f(CREATE.raw());
        if let Some(locks) = LAYER.get() {
            locks(&mut |lock| f(lock));
        }
        f(SLOTS.raw());
        f(REGISTER.raw());
    }
}
