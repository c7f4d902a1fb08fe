//! The thread's slot: a CPU slab for each cache.
//!
//! ```text
//!   record: [ registry | node ]  base: [ hot[0] | hot[1] | ... ]  [ cold[0] | cold[1] | ... ]
//!   hot:   list | key | slab's base + offset of links - 8 | base - 8 | bytes + 8
//!   cold:  CPU slab | CPU partial slabs | how much was used | counts
//! ```
//! Distances in a slab are larger by 8 than they are, so that 0 ends a list; the two
//! addresses are smaller by 8 in turn. An all-zero entry, as in `EMPTY`, has no free
//! object, and its slab of 0 bytes holds no address: every operation misses.

use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering::Relaxed};

use page_alloc::slot::Registry;
use page_alloc::{Page, PageRef, slot, topology};
use slab_api::budget::{self, Ledger};
use slab_api::percpu;
use slab_api::registry::MAX_CACHES;

use crate::slab::{self, BIAS, List, Shape};

/// One cache's CPU slab, as the fast path needs it.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Hot {
    /// The first object of the freelist: its distance, biased; 0 for none.
    list: AtomicU32,
    /// The key of the slab's links.
    key: AtomicU32,
    /// Plus an object's distance: where its link is.
    links: AtomicUsize,
    /// Plus an object's distance: the object.
    base: AtomicUsize,
    /// Distances are below this.
    bound: AtomicUsize,
}

/// One cache's entry for the slow paths.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Cold {
    /// The CPU slab's record.
    slab: AtomicPtr<Page>,
    /// The CPU partial list, linked through the slabs' `private[0]`.
    partial: AtomicPtr<Page>,
    count: AtomicU32,
    /// Pages of slabs that the slot took up, in eighths; those that were not new count
    /// an eighth.
    used: AtomicU32,
    /// Frees to other slabs, and how many of those froze one, since [`Cold::take_counts`].
    pub(crate) free_slow: AtomicU32,
    pub(crate) partial_free: AtomicU32,
}

// Two and two a line of cache.
const _: () = assert!(size_of::<Hot>() == 32 && size_of::<Cold>() == 32);

#[repr(C)]
struct Slot {
    hot: [Hot; MAX_CACHES],
    cold: [Cold; MAX_CACHES],
}

#[repr(C, align(64))]
struct Record {
    registry: usize,
    node: usize,
    ledger: Ledger,
    _pad: [u64; 5],
    slot: Slot,
}

const BASE: usize = core::mem::offset_of!(Record, slot);

#[repr(C, align(64))]
struct Empty([[u64; 4]; MAX_CACHES]);
static EMPTY: Empty = Empty([[0; 4]; MAX_CACHES]);
const _: () = assert!(size_of::<Empty>() == size_of::<[Hot; MAX_CACHES]>());

page_alloc::slot_pointer!(
    /// The calling thread's slot pointer.
    slot_ptr, "slab_slub_slot", EMPTY
);

static REGISTRY: Registry = Registry::new(size_of::<Record>());

/// Takes the first object of the CPU slab's freelist; null when there is none, or when
/// its link leads out of the slab.
#[inline(always)]
pub(crate) fn pop(id: u32) -> *mut u8 {
    // SAFETY: `current` is a slot's base or EMPTY, MAX_CACHES entries long, and ids
    // are below that.
    unsafe { (*current().cast::<Hot>().add(id as usize)).pop() }
}

/// Puts an object of the CPU slab back; false when it is of another slab.
///
/// # Safety
/// `p` must be an object in use of the cache `id`.
#[inline(always)]
pub(crate) unsafe fn push(id: u32, p: *mut u8) -> bool {
    // SAFETY: as in `pop`; the object is the caller's to give.
    unsafe { (*current().cast::<Hot>().add(id as usize)).push(p) }
}

impl Hot {
    /// # Safety
    /// The slot must be the calling thread's, or `EMPTY`.
    #[inline(always)]
    unsafe fn pop(&self) -> *mut u8 {
        let list = self.list.load(Relaxed);
        if list == 0 {
            return ptr::null_mut();
        }
        let at = self.links.load(Relaxed).wrapping_add(list as usize);
        // SAFETY: the link of a free object of the CPU slab, which is this thread's.
        let next =
            unsafe { ptr::with_exposed_provenance::<u32>(at).read() } ^ self.key.load(Relaxed);
        if next as usize >= self.bound.load(Relaxed) {
            return ptr::null_mut();
        }
        self.list.store(next, Relaxed);
        ptr::with_exposed_provenance_mut(self.base.load(Relaxed).wrapping_add(list as usize))
    }

    /// # Safety
    /// As [`push`].
    #[inline(always)]
    unsafe fn push(&self, p: *mut u8) -> bool {
        let distance = (p as usize).wrapping_sub(self.base.load(Relaxed));
        if distance >= self.bound.load(Relaxed) {
            return false;
        }
        let link = self.list.load(Relaxed) ^ self.key.load(Relaxed);
        let at = self.links.load(Relaxed).wrapping_add(distance);
        // SAFETY: the link's place in an object of the CPU slab, the caller's to give.
        unsafe { ptr::with_exposed_provenance_mut::<u32>(at).write(link) };
        self.list.store(distance as u32, Relaxed);
        true
    }

    /// What is left of the CPU slab's freelist.
    pub(crate) fn list(&self) -> List {
        List(self.list.load(Relaxed))
    }

    /// Sets the freelist of the CPU slab.
    pub(crate) fn set_list(&self, list: List) {
        self.list.store(list.0, Relaxed);
    }

    fn clear(&self) {
        self.list.store(0, Relaxed);
        self.base.store(0, Relaxed);
        self.bound.store(0, Relaxed);
    }
}

impl Cold {
    /// The CPU slab.
    pub(crate) fn slab(&self) -> Option<PageRef> {
        // SAFETY: null or a page record, which is never unmapped.
        unsafe { self.slab.load(Relaxed).as_ref() }
    }

    /// Puts a frozen slab on the list; returns how many it has then.
    pub(crate) fn push(&self, head: PageRef) -> usize {
        head.private[0].store(self.partial.load(Relaxed) as u64, Relaxed);
        self.partial.store(ptr::from_ref(head).cast_mut(), Relaxed);
        let count = self.count.load(Relaxed) + 1;
        self.count.store(count, Relaxed);
        count as usize
    }

    /// Takes the slab put there last.
    pub(crate) fn pop(&self) -> Option<PageRef> {
        let head = self.first()?;
        self.partial.store(
            ptr::with_exposed_provenance_mut(head.private[0].load(Relaxed) as usize),
            Relaxed,
        );
        self.count.store(self.count.load(Relaxed) - 1, Relaxed);
        Some(head)
    }

    /// Forgets everything.
    fn clear(&self) {
        self.slab.store(ptr::null_mut(), Relaxed);
        self.partial.store(ptr::null_mut(), Relaxed);
        self.count.store(0, Relaxed);
        self.used.store(0, Relaxed);
    }

    fn first(&self) -> Option<PageRef> {
        // SAFETY: null or a page record, which is never unmapped.
        unsafe { self.partial.load(Relaxed).as_ref() }
    }

    /// The slabs on the list. It must not change meanwhile.
    pub(crate) fn iter(&self) -> impl Iterator<Item = PageRef> {
        core::iter::successors(self.first(), |head| {
            let next: *mut Page =
                ptr::with_exposed_provenance_mut(head.private[0].load(Relaxed) as usize);
            // SAFETY: null or a page record, which is never unmapped.
            unsafe { next.as_ref() }
        })
    }

    /// How much of the cache the slot has used, in pages.
    pub(crate) fn used(&self) -> usize {
        self.used.load(Relaxed) as usize / 8
    }

    /// Notes that a slab was taken up.
    pub(crate) fn note_use(&self, head: PageRef, fresh: bool) {
        let pages = 1u32 << head.order();
        let eighths = if fresh { pages * 8 } else { pages };
        let used = self.used.load(Relaxed).saturating_add(eighths);
        self.used.store(used, Relaxed);
    }

    /// The counts of (free_slow, partial_free), for the cache's own; they start anew.
    pub(crate) fn take_counts(&self) -> (u64, u64) {
        let take = |n: &AtomicU32| {
            let count = n.load(Relaxed);
            n.store(0, Relaxed);
            u64::from(count)
        };
        (take(&self.free_slow), take(&self.partial_free))
    }

    /// Whether the counts should be taken before they wrap.
    pub(crate) fn counts_are_high(&self) -> bool {
        self.free_slow.load(Relaxed) >= 1 << 30
    }
}

/// Adds one to a number that only this thread writes.
#[inline(always)]
pub(crate) fn count(n: &AtomicU32) {
    n.store(n.load(Relaxed).wrapping_add(1), Relaxed);
}

/// The calling thread's slot, for slow paths.
#[derive(Clone, Copy, Debug)]
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

    /// The thread's slot, if it has one and its fast paths are open.
    #[inline(always)]
    pub(crate) fn open_one() -> Option<Self> {
        let record = slot_ptr().record();
        if record == slot_ptr().current() {
            NonNull::new(record).map(Self)
        } else {
            None
        }
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

    fn slot(&self) -> &Slot {
        // SAFETY: the base of a record that stays mapped; all fields are atomics.
        unsafe { self.0.cast::<Slot>().as_ref() }
    }

    pub(crate) fn ledger(&self) -> &Ledger {
        // SAFETY: the record begins BASE bytes before its base, and stays mapped.
        unsafe { &(*self.0.sub(BASE).cast::<Record>().as_ptr()).ledger }
    }

    /// Bytes of slabs that the slot may hold, objects in use among them.
    pub(crate) fn budget(&self) -> usize {
        budget::of(REGISTRY.in_use()) * 4
    }

    /// The node that the slot allocates from.
    pub(crate) fn node(&self) -> usize {
        // SAFETY: the record begins BASE bytes before its base.
        unsafe { (*self.0.sub(BASE).cast::<Record>().as_ptr()).node }
    }

    #[inline(always)]
    pub(crate) fn hot(&self, id: u32) -> &Hot {
        &self.slot().hot[id as usize % MAX_CACHES]
    }

    #[inline(always)]
    pub(crate) fn cold(&self, id: u32) -> &Cold {
        &self.slot().cold[id as usize % MAX_CACHES]
    }

    /// Makes `head` the CPU slab, with this freelist.
    pub(crate) fn open(&self, id: u32, shape: &Shape, head: PageRef, list: List) {
        let (hot, base) = (self.hot(id), slab::base(head) as usize);
        self.cold(id)
            .slab
            .store(ptr::from_ref(head).cast_mut(), Relaxed);
        hot.key.store(slab::key_of(base), Relaxed);
        hot.links.store(base + shape.offset - BIAS, Relaxed);
        hot.base.store(base - BIAS, Relaxed);
        hot.bound.store(shape.bytes(head) + BIAS, Relaxed);
        hot.set_list(list);
    }

    /// Leaves no CPU slab.
    pub(crate) fn close(&self, id: u32) {
        self.hot(id).clear();
        self.cold(id).slab.store(ptr::null_mut(), Relaxed);
    }

    /// Forgets that the slot used the cache, which has nothing of it any more.
    pub(crate) fn forget(&self, id: u32) {
        self.hot(id).clear();
        self.cold(id).clear();
    }

    /// Takes the first object of the CPU slab's freelist, as the fast path does.
    ///
    /// # Safety
    /// The slot must be the thread's own.
    pub(crate) unsafe fn pop(&self, id: u32) -> *mut u8 {
        // SAFETY: promised by the caller.
        unsafe { self.hot(id).pop() }
    }

    /// Puts an object of the slot's CPU slab back; false when it is of another.
    ///
    /// # Safety
    /// `p` must be an object in use of the cache `id`; the slot the thread's own.
    pub(crate) unsafe fn push(&self, id: u32, p: *mut u8) -> bool {
        // SAFETY: promised by the caller.
        unsafe { self.hot(id).push(p) }
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
    // Another thread may have been between giving a slab up and forgetting it: what
    // those slots hold is lost to the child, rather than perhaps owned twice.
    for_each(|slot| {
        // SAFETY: the record begins BASE bytes before its base.
        if unsafe { slot.0.sub(BASE).as_ptr() } != mine {
            slab_api::registry::for_each(|cache| slot.forget(cache.id));
        }
    });
    // SAFETY: promised by the caller.
    unsafe { REGISTRY.after_fork(mine) };
}
