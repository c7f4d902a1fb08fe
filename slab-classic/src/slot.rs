//! The thread's slot: where the fast path works.
//!
//! ```text
//!   record: [ registry | reap ... | cold[0..128] ] base: [ hot[0] | hot[1] | ... ] [ cold[128..] ]
//!                                   array, limit          null      {top, end}
//!   array:  [ null | oldest | ... | newest | room ]        64 B, 128 B ... of the pool
//!             ^ top of an empty array         ^ end: the last place
//! ```
//! `top` and `end` are byte distances from `base`: arrays lie above slots in the
//! metadata pool, by less than 2^32. `hot[0]` is all zero, in every record and in
//! `EMPTY`: an entry {0, 0} therefore finds the null word at distance 0 (empty) and
//! no room (0 >= 0). Id 0 is no cache's, so nothing else is ever there.

use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering::Relaxed};

use page_alloc::slot::Registry;
use page_alloc::{meta, slot, topology};
use slab_api::budget::{self, Ledger};
use slab_api::percpu;
use slab_api::registry::MAX_CACHES;

use crate::array::View;

/// One cache's entry for the fast path.
#[repr(C)]
struct Hot {
    top: AtomicU32,
    end: AtomicU32,
}

/// One cache's entry for the slow paths.
#[repr(C)]
pub(crate) struct Cold {
    /// Index of the array's record plus one; 0 for none.
    array: AtomicU32,
    /// The top at the last reap.
    seen: AtomicU32,
    /// Objects that the array holds at most.
    limit: AtomicU16,
    /// Epoch of the tunables that the array was made by.
    pub(crate) epoch: AtomicU16,
    /// Refills and flushes of this array.
    pub(crate) misses: AtomicU8,
    /// The array was refilled since the last reap.
    touched: AtomicU8,
    _pad: [u8; 2],
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
    /// When the next reap is due, in milliseconds.
    next_reap: AtomicU64,
    /// The largest id that this slot has an array for.
    max_id: AtomicU32,
    /// The node whose alien array the next reap looks at.
    reap_node: AtomicU32,
    ledger: Ledger,
    _pad: [u64; 3],
    near: [Cold; NEAR],
    hot: [Hot; MAX_CACHES],
    far: [Cold; MAX_CACHES - NEAR],
}

const BASE: usize = core::mem::offset_of!(Record, hot);

/// The image on which every fast path misses.
#[repr(C, align(64))]
struct Empty([u64; MAX_CACHES]);
static EMPTY: Empty = Empty([0; MAX_CACHES]);
const _: () = assert!(size_of::<Empty>() == size_of::<[Hot; MAX_CACHES]>());

page_alloc::slot_pointer!(
    /// The calling thread's slot pointer.
    slot_ptr, "slab_classic_slot", EMPTY
);

static REGISTRY: Registry = Registry::new(size_of::<Record>());

/// Takes the newest object of the cache's array; null when it is empty.
#[inline(always)]
pub(crate) fn pop(id: u32) -> *mut u8 {
    // SAFETY: `current` is a slot's base or EMPTY, both MAX_CACHES entries long,
    // and ids are below that; `top` is the distance to a word of an array that the
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

/// Puts an object into the cache's array; false when it is full.
#[inline(always)]
pub(crate) fn push(id: u32, p: *mut u8) -> bool {
    // SAFETY: as in `pop`.
    unsafe { push_at(current(), id, p) }
}

#[inline(always)]
unsafe fn push_at(base: *mut u8, id: u32, p: *mut u8) -> bool {
    // SAFETY: as in `pop`; below `end` there is a free place in the array.
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

/// An array's memory, of the pool.
#[derive(Clone, Copy)]
struct Array(NonNull<u8>);

impl Array {
    /// Bytes of a record for so many objects and the null word.
    fn bytes(limit: usize) -> usize {
        (limit + 1) * size_of::<*mut u8>()
    }

    fn index(self) -> u32 {
        meta::index_of(self.0.as_ptr()) + 1
    }

    fn of(index: u32) -> Option<Self> {
        NonNull::new(meta::at(index.checked_sub(1)?)).map(Self)
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
        if slot::has_exited() || percpu::on() {
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
            }
            (*at).next_reap.store(0, Relaxed);
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

    pub(crate) fn cold(&self, id: u32) -> &Cold {
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

    /// A small number that tells this slot from others.
    pub(crate) fn number(&self) -> usize {
        self.record().registry
    }

    pub(crate) fn next_reap(&self) -> &AtomicU64 {
        &self.record().next_reap
    }

    pub(crate) fn max_id(&self) -> u32 {
        self.record().max_id.load(Relaxed)
    }

    /// The node whose aliens are due, and the next one the next time.
    pub(crate) fn reap_node(&self) -> &AtomicU32 {
        &self.record().reap_node
    }

    pub(crate) fn ledger(&self) -> &Ledger {
        &self.record().ledger
    }

    /// Bytes that the slot may hold.
    pub(crate) fn budget(&self) -> usize {
        budget::of(REGISTRY.in_use())
    }

    pub(crate) fn pop(&self, id: u32) -> *mut u8 {
        // SAFETY: as in `pop` above; the slot is the calling thread's.
        unsafe { pop_at(self.0.as_ptr(), id) }
    }

    pub(crate) fn push(&self, id: u32, p: *mut u8) -> bool {
        // SAFETY: as in `push` above.
        unsafe { push_at(self.0.as_ptr(), id, p) }
    }

    pub(crate) fn has_array(&self, id: u32) -> bool {
        self.cold(id).array.load(Relaxed) != 0
    }

    /// Objects that the array of a cache can hold.
    pub(crate) fn limit(&self, id: u32) -> usize {
        self.cold(id).limit.load(Relaxed).into()
    }

    /// Byte distance from the base to the array's null word.
    fn bottom(&self, array: Array) -> u32 {
        (array.0.as_ptr() as usize).wrapping_sub(self.0.as_ptr() as usize) as u32
    }

    /// Objects in the slot's array of a cache; a snapshot when the slot is another
    /// thread's.
    pub(crate) fn avail(&self, id: u32) -> usize {
        let Some(array) = Array::of(self.cold(id).array.load(Relaxed)) else {
            return 0;
        };
        let top = self.hot(id).top.load(Relaxed);
        let held = top.saturating_sub(self.bottom(array)) / 8;
        (held as usize).min(self.limit(id))
    }

    fn set_avail(&self, id: u32, array: Array, avail: usize) {
        let bottom = self.bottom(array);
        let hot = self.hot(id);
        hot.top.store(bottom + avail as u32 * 8, Relaxed);
        // With several nodes each free must look at its object's node: the fast
        // path finds no room, ever.
        let end = if topology::nodes() == 1 {
            bottom + self.limit(id) as u32 * 8
        } else {
            0
        };
        hot.end.store(end, Relaxed);
    }

    /// Runs `f` on the slot's array of a cache; `None` when it has none.
    ///
    /// Objects that move between the array and a node do so under the node's lock,
    /// with the array's top: a fork then sees each object in one place.
    pub(crate) fn with_array<R>(
        &self,
        id: u32,
        f: impl FnOnce(&mut View<'_, *mut u8>) -> R,
    ) -> Option<R> {
        let array = Array::of(self.cold(id).array.load(Relaxed))?;
        let mut avail = self.avail(id);
        // SAFETY: the array has `limit` places above the null word. The slot is the
        // calling thread's, or one that no thread uses with this cache.
        let entries = unsafe {
            core::slice::from_raw_parts_mut(
                array.0.as_ptr().cast::<*mut u8>().add(1),
                self.limit(id),
            )
        };
        let result = f(&mut View::new(entries, &mut avail));
        self.set_avail(id, array, avail);
        Some(result)
    }

    /// Runs `f` on what the slot's array of a cache holds; `None` when it has none. No
    /// thread may be using the cache.
    pub(crate) fn peek_array<R>(&self, id: u32, f: impl FnOnce(&[*mut u8]) -> R) -> Option<R> {
        let array = Array::of(self.cold(id).array.load(Relaxed))?;
        // SAFETY: the array has at least `avail` objects above the null word.
        Some(f(unsafe {
            core::slice::from_raw_parts(array.0.as_ptr().cast::<*mut u8>().add(1), self.avail(id))
        }))
    }

    /// Makes an array for `limit` objects, which takes over those of the present one
    /// (of no larger limit). False without memory: nothing has changed then.
    pub(crate) fn make_array(&self, id: u32, limit: usize) -> bool {
        let Some(memory) = meta::alloc(Array::bytes(limit)) else {
            return false;
        };
        let fresh = Array(memory);
        let cold = self.cold(id);
        let old = Array::of(cold.array.load(Relaxed));
        let old_limit = self.limit(id);
        let avail = self.avail(id).min(limit);
        if let Some(old) = old {
            // SAFETY: both arrays have a null word and at least `avail` places.
            unsafe {
                ptr::copy_nonoverlapping(
                    old.0.as_ptr().cast::<*mut u8>().add(1),
                    fresh.0.as_ptr().cast::<*mut u8>().add(1),
                    avail,
                );
            }
        }
        self.close(id);
        cold.limit.store(limit as u16, Relaxed);
        cold.array.store(fresh.index(), Relaxed);
        cold.misses.store(0, Relaxed);
        self.set_avail(id, fresh, avail);
        self.record().max_id.store(self.max_id().max(id), Relaxed);
        if let Some(old) = old {
            // SAFETY: made by this function with this limit; nothing refers to it.
            unsafe { meta::free(old.0, Array::bytes(old_limit)) };
        }
        true
    }

    /// Gives the memory of an array back; what it held is the caller's.
    pub(crate) fn delete_array(&self, id: u32) {
        let cold = self.cold(id);
        let array = Array::of(cold.array.load(Relaxed));
        let limit = self.limit(id);
        self.close(id);
        cold.array.store(0, Relaxed);
        cold.limit.store(0, Relaxed);
        cold.misses.store(0, Relaxed);
        cold.touched.store(0, Relaxed);
        if let Some(array) = array {
            // SAFETY: made by `make_array` with this limit; nothing refers to it.
            unsafe { meta::free(array.0, Array::bytes(limit)) };
        }
    }

    /// Makes the fast paths miss.
    fn close(&self, id: u32) {
        self.hot(id).end.store(0, Relaxed);
        self.hot(id).top.store(0, Relaxed);
        self.cold(id).seen.store(0, Relaxed);
    }

    /// Notes a refill. True when the array was in use since the last reap: it was
    /// refilled, or held objects then and holds none now.
    pub(crate) fn touch(&self, id: u32) -> bool {
        let cold = self.cold(id);
        let held = Array::of(cold.array.load(Relaxed))
            .is_some_and(|array| cold.seen.load(Relaxed) > self.bottom(array));
        let touched = cold.touched.load(Relaxed) != 0;
        cold.touched.store(1, Relaxed);
        touched || held
    }

    /// Whether the array was in use since this was asked last.
    pub(crate) fn was_touched(&self, id: u32) -> bool {
        let cold = self.cold(id);
        let top = self.hot(id).top.load(Relaxed);
        let touched = cold.touched.load(Relaxed) != 0 || cold.seen.load(Relaxed) != top;
        cold.touched.store(0, Relaxed);
        cold.seen.store(top, Relaxed);
        touched
    }

    /// Notes what a reap left in the array, so that it does not count as use.
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
    crate::reap::drain_slot(slot);
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
