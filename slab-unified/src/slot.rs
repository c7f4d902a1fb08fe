//! The thread's slot: where the fast path works.
//!
//! ```text
//!   record: [ registry | node ... | cold[0..128] ] base: [ hot[0] | hot[1] | ... ] [ cold[128..] ]
//!                                   spare, level           null      {top, end}
//!   top, end: byte distances from `base` to a magazine's last object and last place
//! ```
//! `hot[0]` is all zero, in every record and in `EMPTY`: an entry {0, 0} therefore
//! finds the null word at distance 0 (empty) and no room (0 >= 0). Id 0 is no
//! cache's, so nothing else is ever there.

use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering::Relaxed};

use page_alloc::slot::Registry;
use page_alloc::{slot, topology};
use slab_api::budget::{self, Ledger};
use slab_api::percpu;
use slab_api::registry::MAX_CACHES;

use crate::magazine::Magazine;

/// One cache's entry for the fast path.
#[repr(C)]
pub(crate) struct Hot {
    top: AtomicU32,
    end: AtomicU32,
}

/// One cache's entry for the slow paths.
#[repr(C)]
pub(crate) struct Cold {
    /// Index of the main magazine plus one; 0 for none.
    main: AtomicU32,
    /// Index of the spare magazine plus one; 0 for none.
    spare: AtomicU32,
    /// Refills and flushes since the level last changed.
    pub(crate) misses: AtomicU32,
    /// Size of the next new magazine.
    pub(crate) level: AtomicU8,
    /// Where the main magazine's top was when expiry looked last, in short; 0: nowhere.
    pub(crate) seen: AtomicU16,
}

const _: () = assert!(size_of::<Cold>() == 16);

/// Caches whose cold entries lie beside their hot ones, before the base: an idle thread
/// that uses no others has one page of its record in memory.
const NEAR: usize = 128;

/// A slot's record; the base is `hot`.
#[repr(C, align(64))]
struct Record {
    registry: usize,
    node: usize,
    ledger: Ledger,
    /// When the slot expires next, in milliseconds; 0 before its first look.
    next_expiry: AtomicU64,
    _pad: [u64; 4],
    near: [Cold; NEAR],
    hot: [Hot; MAX_CACHES],
    far: [Cold; MAX_CACHES - NEAR],
}

const BASE: usize = core::mem::offset_of!(Record, hot);
const _: () = assert!(BASE + NEAR * size_of::<Hot>() <= page_alloc::PAGE_SIZE);

/// The image on which every fast path misses.
#[repr(C, align(64))]
struct Empty([u64; MAX_CACHES]);
static EMPTY: Empty = Empty([0; MAX_CACHES]);
const _: () = assert!(size_of::<Empty>() == size_of::<[Hot; MAX_CACHES]>());

page_alloc::slot_pointer!(
    /// The calling thread's slot pointer.
    slot_ptr, "slab_unified_slot", EMPTY
);

static REGISTRY: Registry = Registry::new(size_of::<Record>());

/// Takes the newest object of the cache's main magazine; null when it is empty.
#[inline(always)]
pub(crate) fn pop(id: u32) -> *mut u8 {
    // SAFETY: `current` is a slot's base or EMPTY, both MAX_CACHES entries long,
    // and ids are below that; `top` is the distance to a word of a magazine that
    // the slot owns, or 0, which is the null word.
    unsafe { pop_at(current(), id) }
}

#[inline(always)]
unsafe fn pop_at(base: *mut u8, id: u32) -> *mut u8 {
    // SAFETY: as in `pop`. Plain accesses: the slot is this thread's.
    unsafe {
        let hot = base.cast::<Hot>().add(id as usize);
        let top = (*hot).top.load(Relaxed);
        let p = base.add(top as usize).cast::<*mut u8>().read();
        if !p.is_null() {
            (*hot).top.store(top - 8, Relaxed);
        }
        p
    }
}

/// Puts an object into the cache's main magazine; false when it is full.
#[inline(always)]
pub(crate) fn push(id: u32, p: *mut u8) -> bool {
    // SAFETY: as in `pop`.
    unsafe { push_at(current(), id, p) }
}

#[inline(always)]
unsafe fn push_at(base: *mut u8, id: u32, p: *mut u8) -> bool {
    // SAFETY: as in `pop`; below `end` there is a free place in the magazine.
    unsafe {
        let hot = base.cast::<Hot>().add(id as usize);
        let top = (*hot).top.load(Relaxed);
        if top >= (*hot).end.load(Relaxed) {
            return false;
        }
        let place = base.add(top as usize + 8).cast::<*mut u8>();
        place.write(p);
        (*hot).top.store(top + 8, Relaxed);
    }
    true
}

/// Takes the newest objects of the cache's main magazine, as many as there are and `out`
/// has room for; returns how many.
#[inline]
pub(crate) fn pop_many(id: u32, out: &mut [*mut u8]) -> usize {
    let base = current();
    // SAFETY: as in `pop`, for each: below the objects is the null word.
    unsafe {
        let hot = base.cast::<Hot>().add(id as usize);
        let mut top = (*hot).top.load(Relaxed);
        let mut got = 0;
        for place in out {
            let p = base.add(top as usize).cast::<*mut u8>().read();
            if p.is_null() {
                break;
            }
            *place = p;
            top -= 8;
            got += 1;
        }
        // `EMPTY` is read-only.
        if got > 0 {
            (*hot).top.store(top, Relaxed);
        }
        got
    }
}

/// Places that the cache's main magazine has left.
#[inline]
pub(crate) fn room(id: u32) -> usize {
    // SAFETY: as in `pop`.
    let (top, end) = unsafe {
        let hot = current().cast::<Hot>().add(id as usize);
        ((*hot).top.load(Relaxed), (*hot).end.load(Relaxed))
    };
    (end.saturating_sub(top) / 8) as usize
}

/// Puts objects into the cache's main magazine.
///
/// # Safety
/// They are no more than [`room`] said, and nothing was put since.
#[inline]
pub(crate) unsafe fn push_many(id: u32, objects: &[*mut u8]) {
    if objects.is_empty() {
        return;
    }
    let base = current();
    // SAFETY: as in `pop`; so many places are free above the top.
    unsafe {
        let hot = base.cast::<Hot>().add(id as usize);
        let top = (*hot).top.load(Relaxed);
        let places = base.add(top as usize + 8).cast::<*mut u8>();
        places.copy_from_nonoverlapping(objects.as_ptr(), objects.len());
        (*hot).top.store(top + 8 * objects.len() as u32, Relaxed);
    }
}

/// The calling thread's slot, for slow paths.
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
            (*record.cast::<Record>().as_ptr()).node = topology::current_node();
            record.add(BASE)
        };
        slot_ptr().install(base.as_ptr());
        slot::watch_thread_exit();
        Some(Self(base))
    }

    fn record(&self) -> &Record {
        // SAFETY: the record begins BASE bytes before its base and stays mapped; what
        // changes after `make` is atomic.
        unsafe { self.0.sub(BASE).cast::<Record>().as_ref() }
    }

    /// The node that the slot allocates from.
    pub(crate) fn node(&self) -> usize {
        self.record().node
    }

    pub(crate) fn ledger(&self) -> &Ledger {
        &self.record().ledger
    }

    /// Bytes that the slot may hold.
    pub(crate) fn budget(&self) -> usize {
        budget::of(in_use())
    }

    pub(crate) fn pop(&self, id: u32) -> *mut u8 {
        // SAFETY: as in `pop` above; the slot is the calling thread's.
        unsafe { pop_at(self.0.as_ptr(), id) }
    }

    pub(crate) fn push(&self, id: u32, p: *mut u8) -> bool {
        // SAFETY: as in `push` above.
        unsafe { push_at(self.0.as_ptr(), id, p) }
    }

    pub(crate) fn cold(&self, id: u32) -> &Cold {
        let (record, id) = (self.record(), id as usize);
        match record.near.get(id) {
            Some(near) => near,
            None => &record.far[id - NEAR],
        }
    }

    /// A small number that tells this slot from others.
    pub(crate) fn number(&self) -> usize {
        self.record().registry
    }

    pub(crate) fn next_expiry(&self) -> &AtomicU64 {
        &self.record().next_expiry
    }

    /// Whether the slot has a magazine of the cache.
    pub(crate) fn has_queue(&self, id: u32) -> bool {
        let cold = self.cold(id);
        cold.main.load(Relaxed) != 0 || cold.spare.load(Relaxed) != 0
    }

    /// Whether the slot holds objects of the cache and its queue's top is where it was at
    /// the last call.
    pub(crate) fn is_untouched(&self, id: u32) -> bool {
        let cold = self.cold(id);
        if !self.has_queue(id) {
            return false;
        }
        let top = ((self.hot(id).top.load(Relaxed) >> 3) as u16).max(1);
        let untouched = cold.seen.load(Relaxed) == top;
        cold.seen.store(top, Relaxed);
        untouched
    }

    fn hot(&self, id: u32) -> &Hot {
        &self.record().hot[id as usize]
    }

    /// Takes the main magazine out of the slot, with its count written.
    pub(crate) fn take_main(&self, id: u32) -> Option<Magazine> {
        let magazine = named(&self.cold(id).main)?;
        magazine.set_count(self.main_count(id, magazine));
        self.cold(id).main.store(0, Relaxed);
        let hot = self.hot(id);
        hot.end.store(0, Relaxed);
        hot.top.store(0, Relaxed);
        Some(magazine)
    }

    fn main_count(&self, id: u32, main: Magazine) -> usize {
        let base = self.0.as_ptr() as usize;
        let top = base + self.hot(id).top.load(Relaxed) as usize;
        // Another thread's slot may change between two loads: stay in range.
        (top.saturating_sub(main.bottom()) / 8).min(main.capacity())
    }

    /// Makes a magazine that the caller owns the main one; there must be none.
    pub(crate) fn set_main(&self, id: u32, magazine: Magazine) {
        let base = self.0.as_ptr() as usize;
        let bottom = magazine.bottom();
        // Magazines lie above slots in the pool, by less than 1 GiB.
        let distance = |at: usize| at.wrapping_sub(base) as u32;
        self.cold(id).main.store(magazine.index() + 1, Relaxed);
        let hot = self.hot(id);
        hot.top
            .store(distance(bottom + magazine.count() * 8), Relaxed);
        hot.end
            .store(distance(bottom + magazine.capacity() * 8), Relaxed);
    }

    pub(crate) fn take_spare(&self, id: u32) -> Option<Magazine> {
        let magazine = named(&self.cold(id).spare)?;
        self.cold(id).spare.store(0, Relaxed);
        Some(magazine)
    }

    pub(crate) fn set_spare(&self, id: u32, magazine: Magazine) {
        self.cold(id).spare.store(magazine.index() + 1, Relaxed);
    }

    /// Objects in this slot's magazines of a cache; a snapshot when the slot is
    /// another thread's.
    pub(crate) fn queued(&self, id: u32) -> usize {
        let main = named(&self.cold(id).main).map_or(0, |m| self.main_count(id, m));
        let spare = named(&self.cold(id).spare).map_or(0, |m| m.count());
        main + spare
    }
}

/// The magazine that a cell of a slot names.
fn named(cell: &AtomicU32) -> Option<Magazine> {
    Magazine::from_index(cell.load(Relaxed).checked_sub(1)?)
}

/// Slots that threads have.
pub(crate) fn in_use() -> usize {
    REGISTRY.in_use()
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
    crate::cache::drain_slot(slot);
    slot_ptr().clear((&raw const EMPTY).cast());
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
