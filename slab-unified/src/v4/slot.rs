//! The thread's slot: where the fast path works.
//!
//! ```text
//!   record: [ registry | node, llc ... | cold[0..128] ] base: [ hot[0] | hot[1] | ... ] [ cold[128..] ]
//!                                        queue, max           null      {top, end}
//!   queue:  [ null | oldest | ... | newest | room ]
//!             ^ top of an empty queue        ^ end: the last place
//! ```
//! The same primitive as the other backends have: `top` and `end` are byte distances
//! from `base`; `hot[0]` is all zero, in every record and in `EMPTY`, so that an entry
//! {0, 0} finds the null word at distance 0 (empty) and no room (0 >= 0). Id 0 is no
//! cache's.

use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering::Relaxed};

use page_alloc::slot::Registry;
use page_alloc::{meta, slot, topology};
use slab_api::registry::MAX_CACHES;

use super::llc;
use super::queue::{Held, Queue};

/// One cache's entry for the fast path.
#[repr(C)]
struct Hot {
    top: AtomicU32,
    end: AtomicU32,
}

/// One cache's entry for the slow paths.
#[repr(C)]
struct Cold {
    /// Index of the queue's record plus one; 0 for none.
    queue: AtomicU32,
    /// The top when expiry looked last.
    seen: AtomicU32,
    /// Objects that the queue holds at most.
    max: AtomicU16,
    /// The queue was refilled since then.
    touched: AtomicU8,
    _pad: u8,
}

/// Caches whose cold entries lie beside their hot ones, before the base: an idle thread
/// that uses no others has one page of its record in memory.
const NEAR: usize = 128;
const _: () = assert!(BASE + NEAR * size_of::<Hot>() <= page_alloc::PAGE_SIZE);

/// A slot's record; the base is `hot`.
#[repr(C, align(64))]
struct Record {
    registry: usize,
    node: usize,
    llc: usize,
    /// When expiry is due next, in milliseconds.
    next_expiry: AtomicU64,
    /// The largest id that this slot has had a queue for.
    max_id: AtomicU32,
    _pad: [u32; 7],
    near: [Cold; NEAR],
    hot: [Hot; MAX_CACHES],
    far: [Cold; MAX_CACHES - NEAR],
}

const BASE: usize = core::mem::offset_of!(Record, hot);
// Words at distances from the base are read as such, and eight entries share a line.
const _: () = assert!(BASE.is_multiple_of(64));

/// The image on which every fast path misses.
#[repr(C, align(64))]
struct Empty([u64; MAX_CACHES]);
static EMPTY: Empty = Empty([0; MAX_CACHES]);
const _: () = assert!(size_of::<Empty>() == size_of::<[Hot; MAX_CACHES]>());

page_alloc::slot_pointer!(
    /// The calling thread's slot pointer.
    slot_ptr, "slab_unified_v4_slot", EMPTY
);

static REGISTRY: Registry = Registry::new(size_of::<Record>());

/// Takes the newest object of the cache's queue; null when it is empty.
#[inline(always)]
pub(crate) fn pop(id: u32) -> *mut u8 {
    // SAFETY: `current` is a slot's base or EMPTY, both MAX_CACHES entries long,
    // and ids are below that; `top` is the distance to a word of a queue that the
    // slot owns, or 0, which is the null word.
    unsafe { pop_at(current(), id) }
}

#[inline(always)]
unsafe fn pop_at(base: *mut u8, id: u32) -> *mut u8 {
    // SAFETY: as in `pop`. The slot is this thread's.
    unsafe {
        let hot = base.cast::<Hot>().add(id as usize);
        let top = (*hot).top.load(Relaxed);
        let p = base.add(top as usize).cast::<*mut u8>().read();
        if !p.is_null() {
            (*hot).top.store(top.wrapping_sub(8), Relaxed);
        }
        p
    }
}

/// Puts an object into the cache's queue; false when it is full.
#[inline(always)]
pub(crate) fn push(id: u32, p: *mut u8) -> bool {
    // SAFETY: as in `pop`.
    unsafe { push_at(current(), id, p) }
}

#[inline(always)]
unsafe fn push_at(base: *mut u8, id: u32, p: *mut u8) -> bool {
    // SAFETY: as in `pop`; below `end` there is a free place in the queue.
    unsafe {
        let hot = base.cast::<Hot>().add(id as usize);
        let top = (*hot).top.load(Relaxed);
        if top >= (*hot).end.load(Relaxed) {
            return false;
        }
        base.add(top as usize + 8).cast::<*mut u8>().write(p);
        (*hot).top.store(top.wrapping_add(8), Relaxed);
    }
    true
}

/// A queue's memory, of the pool: a null word, then the places.
#[derive(Clone, Copy)]
struct Memory(NonNull<u8>);

impl Memory {
    fn bytes(max: usize) -> usize {
        (max + 1) * size_of::<*mut u8>()
    }

    fn of(cold: &Cold) -> Option<Self> {
        let index = cold.queue.load(Relaxed).checked_sub(1)?;
        NonNull::new(meta::at(index)).map(Self)
    }

    fn entries(self) -> *mut *mut u8 {
        self.0.as_ptr().cast::<*mut u8>().wrapping_add(1)
    }
}

/// The count of a slot's queue, as its top says.
struct Top<'a> {
    hot: &'a Hot,
    bottom: u32,
}

impl Held for Top<'_> {
    fn get(&self) -> usize {
        // Another thread's may change meanwhile: stay in range.
        (self.hot.top.load(Relaxed).saturating_sub(self.bottom) / 8) as usize
    }

    fn set(&self, held: usize) {
        self.hot.top.store(self.bottom + held as u32 * 8, Relaxed);
    }
}

/// The calling thread's slot, for slow paths; or another thread's, for walks.
#[derive(Clone, Copy)]
pub(crate) struct SlotRef(NonNull<u8>);

impl SlotRef {
    /// The thread's slot, made on first use. `None` after thread exit or without
    /// memory.
    pub(crate) fn get() -> Option<Self> {
        match NonNull::new(slot_ptr().record()) {
            Some(base) => Some(Self(base)),
            None => Self::make(),
        }
    }

    /// The thread's slot, if it has one.
    pub(crate) fn existing() -> Option<Self> {
        NonNull::new(slot_ptr().record()).map(Self)
    }

    #[cold]
    fn make() -> Option<Self> {
        if slot::has_exited() {
            return None;
        }
        slot::at_thread_exit(thread_exit);
        let record = REGISTRY.acquire()?;
        // SAFETY: the record is this thread's now, Record's size, zeroed or with
        // what its last user left, which is valid.
        let base = unsafe {
            let at = record.cast::<Record>().as_ptr();
            // After a fork it may hold a lost thread's objects, of that thread's node.
            if (*at).max_id.load(Relaxed) == 0 {
                (*at).node = topology::current_node();
                (*at).llc = llc::current((*at).node);
            }
            (*at).next_expiry.store(0, Relaxed);
            record.add(BASE)
        };
        slot_ptr().install(base.as_ptr());
        slot::watch_thread_exit();
        Some(Self(base))
    }

    fn record(&self) -> &Record {
        // SAFETY: the record begins BASE bytes before its base and stays mapped;
        // what changes after `make` is atomic.
        unsafe { self.0.sub(BASE).cast::<Record>().as_ref() }
    }

    fn hot(&self, id: u32) -> &Hot {
        &self.record().hot[id as usize % MAX_CACHES]
    }

    fn cold(&self, id: u32) -> &Cold {
        let (record, id) = (self.record(), id as usize % MAX_CACHES);
        match record.near.get(id) {
            Some(near) => near,
            None => &record.far[id - NEAR],
        }
    }

    /// The node that the slot allocates from.
    pub(crate) fn node(&self) -> usize {
        self.record().node
    }

    /// The last-level cache whose shared queue the slot uses; it is of [`Self::node`].
    pub(crate) fn llc(&self) -> usize {
        self.record().llc
    }

    /// A small number that tells this slot from others.
    pub(crate) fn number(&self) -> usize {
        self.record().registry
    }

    pub(crate) fn next_expiry(&self) -> &AtomicU64 {
        &self.record().next_expiry
    }

    pub(crate) fn max_id(&self) -> u32 {
        self.record().max_id.load(Relaxed)
    }

    pub(crate) fn pop(&self, id: u32) -> *mut u8 {
        // SAFETY: as in `pop` above; the slot is the calling thread's.
        unsafe { pop_at(self.0.as_ptr(), id) }
    }

    pub(crate) fn push(&self, id: u32, p: *mut u8) -> bool {
        // SAFETY: as in `push` above.
        unsafe { push_at(self.0.as_ptr(), id, p) }
    }

    pub(crate) fn has_queue(&self, id: u32) -> bool {
        self.cold(id).queue.load(Relaxed) != 0
    }

    fn top(&self, id: u32, memory: Memory) -> Top<'_> {
        // Queues lie above slots in the metadata pool, by less than 2^32 bytes.
        let bottom = (memory.0.as_ptr() as usize).wrapping_sub(self.0.as_ptr() as usize) as u32;
        let hot = self.hot(id);
        Top { hot, bottom }
    }

    /// Objects in the slot's queue of a cache; a snapshot when the slot is another
    /// thread's.
    pub(crate) fn held(&self, id: u32) -> usize {
        let cold = self.cold(id);
        let max: usize = cold.max.load(Relaxed).into();
        Memory::of(cold).map_or(0, |memory| self.top(id, memory).get().min(max))
    }

    /// Runs `f` on the slot's queue of a cache; `None` when it has none.
    pub(crate) fn with_queue<R>(
        &self,
        id: u32,
        f: impl FnOnce(&mut Queue<'_, *mut u8>) -> R,
    ) -> Option<R> {
        let cold = self.cold(id);
        let memory = Memory::of(cold)?;
        let top = self.top(id, memory);
        // SAFETY: the queue has `max` places behind the null word. The slot is the
        // calling thread's, or one that no thread uses with this cache.
        let entries = unsafe {
            core::slice::from_raw_parts_mut(memory.entries(), cold.max.load(Relaxed).into())
        };
        Some(f(&mut Queue::new(entries, &top)))
    }

    /// Runs `f` on what the slot's queue of a cache holds; `None` when it has none. No
    /// thread may be using the cache.
    pub(crate) fn peek<R>(&self, id: u32, f: impl FnOnce(&[*mut u8]) -> R) -> Option<R> {
        let memory = Memory::of(self.cold(id))?;
        // SAFETY: the queue has at least `held` objects behind the null word.
        Some(f(unsafe {
            core::slice::from_raw_parts(memory.entries(), self.held(id))
        }))
    }

    /// Makes a queue of `max` places; there must be none. False without memory.
    pub(crate) fn make_queue(&self, id: u32, max: usize) -> bool {
        let Some(memory) = meta::alloc(Memory::bytes(max)).map(Memory) else {
            return false;
        };
        // A fork may find this thread anywhere in between: the queue is known before the
        // fast path sees it.
        self.record().max_id.store(self.max_id().max(id), Relaxed);
        let cold = self.cold(id);
        cold.max.store(max as u16, Relaxed);
        cold.queue
            .store(meta::index_of(memory.0.as_ptr()) + 1, Relaxed);
        let top = self.top(id, memory);
        top.set(0);
        // With several nodes each free must look at its object's node: the fast path
        // finds no room, ever.
        let room = if topology::nodes() == 1 { max } else { 0 };
        let end = top.bottom + room as u32 * 8;
        self.hot(id).end.store(end, Relaxed);
        true
    }

    /// Gives the memory of a queue back; what it held is the caller's.
    pub(crate) fn delete_queue(&self, id: u32) {
        let cold = self.cold(id);
        let memory = Memory::of(cold);
        let max: usize = cold.max.load(Relaxed).into();
        self.hot(id).end.store(0, Relaxed);
        self.hot(id).top.store(0, Relaxed);
        cold.queue.store(0, Relaxed);
        cold.seen.store(0, Relaxed);
        cold.max.store(0, Relaxed);
        cold.touched.store(0, Relaxed);
        if let Some(memory) = memory {
            // SAFETY: made by `make_queue` with this maximum; nothing refers to it.
            unsafe { meta::free(memory.0, Memory::bytes(max)) };
        }
    }

    /// Notes a refill.
    pub(crate) fn touch(&self, id: u32) {
        self.cold(id).touched.store(1, Relaxed);
    }

    /// Whether the queue was in use since this was asked last.
    pub(crate) fn was_touched(&self, id: u32) -> bool {
        let cold = self.cold(id);
        let top = self.hot(id).top.load(Relaxed);
        let touched = cold.touched.load(Relaxed) != 0 || cold.seen.load(Relaxed) != top;
        cold.touched.store(0, Relaxed);
        cold.seen.store(top, Relaxed);
        touched
    }

    /// Notes what expiry left in the queue, so that it does not count as use.
    pub(crate) fn note_seen(&self, id: u32) {
        let top = self.hot(id).top.load(Relaxed);
        self.cold(id).seen.store(top, Relaxed);
    }
}

/// Ends a slow path.
pub(crate) fn settle(natural: bool) {
    slot_ptr().settle((&raw const EMPTY).cast(), natural);
}

/// Calls `f` with every slot that exists, in use or not.
pub(crate) fn for_each(mut f: impl FnMut(SlotRef)) {
    // SAFETY: records are Record's size; the base is inside.
    REGISTRY.for_each(|record| f(SlotRef(unsafe { record.add(BASE) })));
}

fn thread_exit() {
    let Some(slot) = SlotRef::existing() else {
        return;
    };
    super::expire::drain_slot(slot);
    slot_ptr().clear((&raw const EMPTY).cast());
    slot.record().max_id.store(0, Relaxed);
    // SAFETY: the thread's own record, which it no longer refers to.
    unsafe { REGISTRY.release(slot.0.sub(BASE)) };
}

/// The child after fork: other threads' slots become free, with what they hold.
///
/// # Safety
/// Only in the child, before it starts threads.
pub(crate) unsafe fn after_fork() {
    let mine = SlotRef::existing()
        // SAFETY: the record begins BASE bytes before its base.
        .map_or(ptr::null_mut(), |slot| unsafe { slot.0.sub(BASE).as_ptr() });
    // SAFETY: promised by the caller.
    unsafe { REGISTRY.after_fork(mine) };
}
