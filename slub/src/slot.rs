//! The thread's slot: a CPU slab for each cache.
//!
//! ```text
//!   record: [ registry | node ]  base: [ hot[0] | hot[1] | ... ]  [ cold[1] ... ]
//!   hot:  freelist | slab's base | slab's bytes | free pointer's offset
//! ```
//! An all-zero entry, as in `EMPTY`, has no free object, and its slab of 0 bytes
//! holds no address: every operation misses.

use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering::Relaxed};

use page_alloc::slot::Registry;
use page_alloc::{Page, PageRef, slot, topology};
use slab_api::registry::MAX_CACHES;

use crate::slab;

/// One cache's CPU slab.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Hot {
    freelist: AtomicPtr<u8>,
    base: AtomicUsize,
    bytes: AtomicU32,
    offset: AtomicU32,
    /// The CPU slab's record.
    slab: AtomicPtr<Page>,
}

/// One cache's CPU partial list.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Cold {
    /// Linked through the slabs' `private[0]`.
    partial: AtomicPtr<Page>,
    count: AtomicUsize,
}

#[repr(C)]
struct Slot {
    hot: [Hot; MAX_CACHES],
    cold: [Cold; MAX_CACHES],
}

#[repr(C, align(64))]
struct Record {
    registry: usize,
    node: usize,
    _pad: [u64; 6],
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

/// Takes the first object of the CPU slab's freelist; null when there is none, when
/// it is the last one, or when its link leads out of the slab.
#[inline(always)]
pub(crate) fn pop(id: u32) -> *mut u8 {
    // SAFETY: `current` is a slot's base or EMPTY, MAX_CACHES entries long, and ids
    // are below that. A free object of the CPU slab's list is this thread's.
    unsafe {
        let hot = &*current().cast::<Hot>().add(id as usize);
        let p = hot.freelist.load(Relaxed);
        if p.is_null() {
            return p;
        }
        let next = slab::next(p, hot.offset.load(Relaxed) as usize);
        if (next as usize).wrapping_sub(hot.base.load(Relaxed)) >= hot.bytes.load(Relaxed) as usize
        {
            return ptr::null_mut();
        }
        hot.freelist.store(next, Relaxed);
        p
    }
}

/// Puts an object of the CPU slab back; false when it is of another slab.
///
/// # Safety
/// `p` must be an object in use of the cache `id`.
#[inline(always)]
pub(crate) unsafe fn push(id: u32, p: *mut u8) -> bool {
    // SAFETY: as in `pop`; the object is the caller's to give.
    unsafe {
        let hot = &*current().cast::<Hot>().add(id as usize);
        hot.push(p)
    }
}

impl Hot {
    /// # Safety
    /// As [`push`].
    #[inline(always)]
    unsafe fn push(&self, p: *mut u8) -> bool {
        if (p as usize).wrapping_sub(self.base.load(Relaxed)) >= self.bytes.load(Relaxed) as usize {
            return false;
        }
        // SAFETY: an object of the CPU slab, the caller's to give.
        unsafe {
            slab::set_next(
                p,
                self.offset.load(Relaxed) as usize,
                self.freelist.load(Relaxed),
            )
        };
        self.freelist.store(p, Relaxed);
        true
    }

    /// The CPU slab and what is left of its freelist.
    pub(crate) fn slab(&self) -> Option<(PageRef, *mut u8)> {
        // SAFETY: null or a page record, which is never unmapped.
        let page = unsafe { self.slab.load(Relaxed).as_ref() }?;
        Some((page, self.freelist.load(Relaxed)))
    }

    /// Sets the freelist of the CPU slab.
    pub(crate) fn set_freelist(&self, p: *mut u8) {
        self.freelist.store(p, Relaxed);
    }

    /// Makes `head` the CPU slab, with this freelist.
    pub(crate) fn set_slab(&self, head: PageRef, freelist: *mut u8, shape: &slab::Shape) {
        self.slab.store(ptr::from_ref(head).cast_mut(), Relaxed);
        self.base.store(head.address() as usize, Relaxed);
        self.bytes.store(shape.bytes() as u32, Relaxed);
        self.offset.store(shape.offset as u32, Relaxed);
        self.freelist.store(freelist, Relaxed);
    }

    /// Leaves no CPU slab.
    pub(crate) fn clear(&self) {
        self.freelist.store(ptr::null_mut(), Relaxed);
        self.slab.store(ptr::null_mut(), Relaxed);
        self.base.store(0, Relaxed);
        self.bytes.store(0, Relaxed);
    }
}

impl Cold {
    /// Puts a frozen slab on the list; returns how many it has then.
    pub(crate) fn push(&self, head: PageRef) -> usize {
        head.private[0].store(self.partial.load(Relaxed) as u64, Relaxed);
        self.partial.store(ptr::from_ref(head).cast_mut(), Relaxed);
        let count = self.count.load(Relaxed) + 1;
        self.count.store(count, Relaxed);
        count
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

    /// Forgets the list.
    fn clear(&self) {
        self.partial.store(ptr::null_mut(), Relaxed);
        self.count.store(0, Relaxed);
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

    /// The node that the slot allocates from.
    pub(crate) fn node(&self) -> usize {
        // SAFETY: the record begins BASE bytes before its base.
        unsafe { (*self.0.sub(BASE).cast::<Record>().as_ptr()).node }
    }

    pub(crate) fn hot(&self, id: u32) -> &Hot {
        &self.slot().hot[id as usize]
    }

    pub(crate) fn cold(&self, id: u32) -> &Cold {
        &self.slot().cold[id as usize]
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
            slab_api::registry::for_each(|cache| {
                slot.hot(cache.id).clear();
                slot.cold(cache.id).clear();
            });
        }
    });
    // SAFETY: promised by the caller.
    unsafe { REGISTRY.after_fork(mine) };
}
