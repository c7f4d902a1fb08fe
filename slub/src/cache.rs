//! A cache: its record, the nodes' partial lists, and the slow paths.
//!
//! Lock order: a node's lock, then the page layer's. At most one node's lock is
//! held at a time. `private[1]` of a slab's record says whether it is on the node's
//! list; the node's lock guards it.

use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering::Relaxed};

use page_alloc::sync::Lock;
use page_alloc::topology::MAX_NODES;
use page_alloc::{
    GRANULE_SHIFT, Migratetype, PageList, PageRef, chunk_of, granule, meta, purge, slot, topology,
};
use slab_api::registry::{self, Backend, CacheHead};
use slab_api::{
    CacheDesc, CacheError, CacheInfo, Constructor, Corruption, DestroyError, MAX_OBJECT,
    ObjectCache, guard, misuse,
};

use crate::slab::{self, Shape};
use crate::slot::{self as slots, SlotRef};
use crate::word::{self, Pushed, State};

mod object_cache;

#[derive(Debug)]
struct Node {
    partial: PageList,
}

/// Events of the slow paths.
#[derive(Debug, Default)]
struct Counters {
    cpu_slab_refill: AtomicU64,
    deactivate_cpu_slab: AtomicU64,
    cpu_partial_alloc: AtomicU64,
    cpu_partial_free: AtomicU64,
    cpu_partial_drain: AtomicU64,
    node_partial_get: AtomicU64,
    remote_node_get: AtomicU64,
    free_slow: AtomicU64,
    free_frozen: AtomicU64,
    new_slab: AtomicU64,
    discard_slab: AtomicU64,
}

#[repr(C)]
struct Record {
    head: CacheHead,
    shape: Shape,
    min_partial: usize,
    /// Slabs that a slot's partial list may hold.
    cpu_partial: usize,
    migratetype: Migratetype,
    constructor: Option<Constructor>,
    slabs: AtomicUsize,
    counters: Counters,
    nodes: [Lock<Node>; MAX_NODES],
}

static BACKEND: Backend = Backend {
    name: "slub",
    info: |head| of(head).info(),
    shrink: |head| of(head).shrink(),
    validate: |head| of(head).validate(),
    locks: |head, f| {
        for node in &of(head).0.nodes {
            // SAFETY: only the fork handlers get it, and they use it in pairs.
            f(unsafe { node.raw() });
        }
    },
    after_fork: slots::after_fork,
};

fn of(head: &CacheHead) -> Slub {
    debug_assert!(ptr::eq(head.backend, &raw const BACKEND));
    // SAFETY: a head with this backend is the first field of a Record, which stays
    // valid while it is registered.
    Slub(unsafe { &*ptr::from_ref(head).cast::<Record>() })
}

/// A cache of the slub backend.
#[derive(Clone, Copy)]
pub struct Slub(&'static Record);

impl core::fmt::Debug for Slub {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_tuple("Slub").field(&self.0.head).finish()
    }
}

fn bump(counter: &AtomicU64) {
    counter.fetch_add(1, Relaxed);
}

/// As [`bump`] where every free comes by: without a locked instruction, so threads
/// that count at the same moment may lose some.
fn count(counter: &AtomicU64) {
    counter.store(counter.load(Relaxed) + 1, Relaxed);
}

const LISTED: u64 = 1;

impl Slub {
    fn shape(self) -> &'static Shape {
        &self.0.shape
    }

    /// Makes a slab, frozen, all of its objects on the returned list.
    #[cold]
    fn new_slab(self) -> Option<(PageRef, *mut u8)> {
        let head = guard::alloc_slab(self.shape().order, self.0.migratetype, self.shape().guard)?;
        let inuse = self.shape().objects;
        head.word.store(
            State {
                head: 0,
                inuse,
                frozen: true,
            }
            .pack(),
            Relaxed,
        );
        head.private[1].store(0, Relaxed);
        // First the records, so that a constructor can ask whose the object is.
        self.shape().init(head, self.id());
        if let Some(constructor) = self.0.constructor {
            for i in 0..usize::from(inuse) {
                // SAFETY: an object of the fresh slab, which nobody else has.
                unsafe { constructor(head.address().add(i * self.shape().stride)) };
            }
        }
        // SAFETY: the slab is ours.
        let list = unsafe { self.shape().link_page(head) };
        self.0.slabs.fetch_add(1, Relaxed);
        bump(&self.0.counters.new_slab);
        Some((head, list))
    }

    #[cold]
    fn discard(self, head: PageRef) {
        self.0.slabs.fetch_sub(1, Relaxed);
        bump(&self.0.counters.discard_slab);
        guard::free_slab(head, self.shape().guard);
    }

    /// A slab of the node's list with its whole freelist; a few more go on the
    /// slot's partial list.
    fn node_partial(self, node: usize, slot: Option<SlotRef>) -> Option<(PageRef, *mut u8)> {
        let mut list = self.0.nodes[node].lock();
        let head = list.partial.pop_front()?;
        head.private[1].store(0, Relaxed);
        let first = word::freeze_and_take(&head.word, self.shape().objects);
        if let Some(slot) = slot {
            let cold = slot.cold(self.id());
            for _ in 0..self.0.cpu_partial / 2 {
                let Some(more) = list.partial.pop_front() else {
                    break;
                };
                more.private[1].store(0, Relaxed);
                word::freeze(&more.word);
                cold.push(more);
            }
        }
        Some((head, slab::object_at(head, first)))
    }

    /// A frozen slab with a freelist: partial ones of this node, new ones, partial
    /// ones of other nodes.
    fn any_slab(self, node: usize, slot: Option<SlotRef>) -> Option<(PageRef, *mut u8)> {
        if let Some(found) = self.node_partial(node, slot) {
            bump(&self.0.counters.node_partial_get);
            return Some(found);
        }
        if let Some(found) = self.new_slab() {
            return Some(found);
        }
        let nodes = topology::nodes();
        (1..nodes).find_map(|i| {
            let found = self.node_partial((node + i) % nodes, slot)?;
            bump(&self.0.counters.remote_node_get);
            Some(found)
        })
    }

    /// The CPU slab's freelist is empty (or its last object, or spoilt): finds a
    /// slab with free objects and takes one.
    fn refill(self, slot: SlotRef) -> *mut u8 {
        let (id, shape) = (self.id(), self.shape());
        let hot = slot.hot(id);
        if let Some((head, list)) = hot.slab() {
            if !list.is_null() {
                // SAFETY: the head of this thread's own list.
                let next = unsafe { slab::next(list, shape.offset) };
                if next.is_null() || shape.is_object(head, next) {
                    hot.set_freelist(next);
                    return list;
                }
                misuse::report("a free object was overwritten:", list);
                // Its successors are lost: leave them, and the slab, alone.
                hot.clear();
            } else if shape.linked(head) < shape.objects {
                // SAFETY: the CPU slab is this thread's.
                return self.open(slot, head, unsafe { shape.link_page(head) });
            } else if let Some(first) = word::take_or_unfreeze(&head.word, shape.objects) {
                bump(&self.0.counters.cpu_slab_refill);
                return self.open(slot, head, slab::object_at(head, first));
            } else {
                bump(&self.0.counters.deactivate_cpu_slab);
                hot.clear();
            }
        }
        if let Some(head) = slot.cold(id).pop() {
            bump(&self.0.counters.cpu_partial_alloc);
            let first = word::freeze_and_take(&head.word, shape.objects);
            return self.open(slot, head, slab::object_at(head, first));
        }
        match self.any_slab(slot.node(), Some(slot)) {
            Some((head, list)) => self.open(slot, head, list),
            None => ptr::null_mut(),
        }
    }

    /// Makes `head` the CPU slab and takes the first object of `list`.
    fn open(self, slot: SlotRef, head: PageRef, list: *mut u8) -> *mut u8 {
        let shape = self.shape();
        if !shape.is_object(head, list) {
            misuse::report("a free object was overwritten: its link leads to", list);
            slot.hot(self.id()).clear();
            return ptr::null_mut();
        }
        // SAFETY: the first object of a list that is this thread's.
        let next = unsafe { slab::next(list, shape.offset) };
        slot.hot(self.id()).set_slab(head, next, shape);
        if !next.is_null() && !shape.is_object(head, next) {
            misuse::report("a free object was overwritten:", list);
            slot.hot(self.id()).set_freelist(ptr::null_mut());
        }
        list
    }

    /// Frees one object to its slab.
    fn free_to_slab(self, p: *mut u8, slot: Option<SlotRef>) {
        let Some((head, distance)) = chunk_of(p, self.shape().order.get()) else {
            return;
        };
        let offset = self.shape().offset;
        let base = p.wrapping_sub(distance);
        let granule = (distance >> GRANULE_SHIFT) as u16 + 1;
        let link = |old| {
            // SAFETY: the object is ours until the exchange publishes it.
            unsafe { slab::set_next(p, offset, slab::object_in(base, old)) };
        };
        count(&self.0.counters.free_slow);
        match word::push(&head.word, granule, 1, false, link) {
            Pushed::Done => {}
            Pushed::Froze => match slot {
                Some(slot) if topology::nodes() == 1 || slot.node() == head.node() => {
                    count(&self.0.counters.cpu_partial_free);
                    if slot.cold(self.id()).push(head) > self.0.cpu_partial {
                        self.drain_partial(slot);
                    }
                }
                _ => self.release(head, ptr::null_mut()),
            },
            Pushed::Empty => self.free_last(head, granule, link),
        }
    }

    /// Frees what seems to be the last object in use of a slab on the node's list,
    /// and discards the slab if the node has enough of them. Under the lock, so that
    /// nobody else can discard the slab first and its pages serve another cache.
    #[cold]
    fn free_last(self, head: PageRef, granule: u16, link: impl Fn(u16)) {
        let mut node = self.0.nodes[head.node()].lock();
        match word::push(&head.word, granule, 1, true, link) {
            // Frozen or taken meanwhile.
            Pushed::Done => {}
            Pushed::Froze => {
                drop(node);
                self.release(head, ptr::null_mut());
            }
            Pushed::Empty => {
                debug_assert_eq!(head.private[1].load(Relaxed), LISTED);
                if node.partial.len() > self.0.min_partial {
                    node.partial.remove(head);
                    head.private[1].store(0, Relaxed);
                    drop(node);
                    self.discard(head);
                }
            }
        }
    }

    /// All slabs of the slot's partial list go to the node.
    #[cold]
    fn drain_partial(self, slot: SlotRef) {
        bump(&self.0.counters.cpu_partial_drain);
        while let Some(head) = slot.cold(self.id()).pop() {
            self.release(head, ptr::null_mut());
        }
    }

    /// Gives up a frozen slab of this thread, with what is left of its list.
    fn release(self, head: PageRef, mut list: *mut u8) {
        if self.shape().linked(head) < self.shape().objects {
            list = self.link_rest(head, list);
        }
        // SAFETY: the list is this thread's.
        let walked = unsafe { self.shape().walk(head, list, |_| {}) };
        let (first, last, count) = match walked {
            Some((last, count)) if count > 0 => (slab::granule_of(head, list), last, count),
            Some(_) => (0, list, 0),
            None => {
                misuse::report("a free object was overwritten in the list of", list);
                (0, list, 0)
            }
        };
        let offset = self.shape().offset;
        let mut node = self.0.nodes[head.node()].lock();
        let state = word::deactivate(&head.word, first, count, |old| {
            // SAFETY: the last object of this thread's list.
            unsafe { slab::set_next(last, offset, slab::object_at(head, old)) };
        });
        // Still under the lock: a free that finds the slab not frozen waits for it
        // before it looks whether the slab is on the list.
        if state.head == 0 {
            return;
        }
        if state.inuse == 0 && node.partial.len() >= self.0.min_partial {
            drop(node);
            self.discard(head);
            return;
        }
        head.private[1].store(LISTED, Relaxed);
        // Nearly empty slabs last: full ones are used up first.
        if state.inuse == 0 {
            node.partial.push_back(head);
        } else {
            node.partial.push_front(head);
        }
    }

    /// Puts the objects that were never linked in front of a list of the slab.
    #[cold]
    fn link_rest(self, head: PageRef, list: *mut u8) -> *mut u8 {
        let shape = self.shape();
        // SAFETY: the slab, its unlinked objects and the list are this thread's.
        unsafe {
            let first = shape.link(head, shape.objects);
            if let Some((last, 1..)) = shape.walk(head, first, |_| {}) {
                slab::set_next(last, shape.offset, list);
                return first;
            }
        }
        list
    }

    /// Gives everything that a slot holds of this cache to the node.
    fn drain(self, slot: SlotRef) {
        let hot = slot.hot(self.id());
        if let Some((head, list)) = hot.slab() {
            bump(&self.0.counters.deactivate_cpu_slab);
            hot.clear();
            self.release(head, list);
        }
        if slot.cold(self.id()).iter().next().is_some() {
            self.drain_partial(slot);
        }
    }

    fn discard_empty(self) -> usize {
        let mut pages = 0;
        for node in &self.0.nodes {
            loop {
                let mut list = node.lock();
                let Some(head) = list
                    .partial
                    .iter_back()
                    .find(|head| word::load(&head.word).inuse == 0)
                else {
                    break;
                };
                list.partial.remove(head);
                head.private[1].store(0, Relaxed);
                drop(list);
                pages += self.shape().order.pages();
                self.discard(head);
            }
        }
        pages
    }

    /// One object without a slot.
    fn take_one(self) -> *mut u8 {
        let Some((head, list)) = self.any_slab(topology::current_node(), None) else {
            return ptr::null_mut();
        };
        if list.is_null() {
            return list;
        }
        // SAFETY: the first object of a list that is this thread's.
        let next = unsafe { slab::next(list, self.shape().offset) };
        self.release(head, next);
        list
    }
}

/// Gives everything that a slot holds to the nodes.
pub(crate) fn drain_slot(slot: SlotRef) {
    let _slots = registry::slots_lock();
    registry::for_each(|head| {
        if ptr::eq(head.backend, &raw const BACKEND) {
            of(head).drain(slot);
        }
    });
}
