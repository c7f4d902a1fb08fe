//! A cache: its record, the nodes' partial lists, and how a slot gets a slab.
//!
//! Lock order: [`MERGE`], then a node's lock, then the page layer's. At most one node's
//! lock is held at a time. `private[1]` of a slab's record says whether it is on the
//! node's list; the node's lock guards it. (Slabs on the list of quiet ones keep their
//! free objects there instead: see `quiet`.)

use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};

use page_alloc::sync::Lock;
use page_alloc::topology::MAX_NODES;
use page_alloc::{Migratetype, PageList, PageRef, meta, topology};
use slab_api::registry::{self, Backend, CacheHead};
use slab_api::{
    CacheDesc, CacheError, Constructor, Corruption, MAX_OBJECT, ObjectCache, misuse, percpu,
};
use slab_api::{checks, growth, guard};

use crate::shuffle::Shuffle;
use crate::slab::{self, List, Shape};
use crate::slot::{self as slots, SlotRef};
use crate::tunables::{Tunables, TuneError, Tuned};
use crate::word::{self, State};

mod bulk;
mod check;
mod create;
mod free;
mod object_cache;
mod quiet;

pub use create::set_shuffled;

#[derive(Debug)]
struct Node {
    partial: PageList,
    /// Slabs that few objects hold: the last that others are taken from.
    quiet: PageList,
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
    remote_node_free: AtomicU64,
    free_slow: AtomicU64,
    bulk_free: AtomicU64,
    new_slab: AtomicU64,
    discard_slab: AtomicU64,
    outgrown: AtomicU64,
    merged: AtomicU64,
}

#[repr(C)]
struct Record {
    head: CacheHead,
    shape: Shape,
    tuned: Tuned,
    migratetype: Migratetype,
    constructor: Option<Constructor>,
    /// The order of objects in fresh slabs, of a cache with randomised freelists.
    shuffle: Option<Shuffle>,
    /// Whether others may share this cache.
    mergeable: bool,
    /// Handles that `create` gave out and `destroy` did not take back; [`MERGE`] guards it.
    users: AtomicU32,
    slabs: AtomicUsize,
    /// Pages and objects of all slabs.
    pages: AtomicUsize,
    objects: AtomicUsize,
    counters: Counters,
    nodes: [Lock<Node>; MAX_NODES],
}

/// Held while a cache is made or ended: nobody then joins one that ends. Fork does not
/// wait for it; the child frees it.
static MERGE: Lock<()> = Lock::new(());

static BACKEND: Backend = Backend {
    name: "slub",
    info: |head| of(head).info(),
    shrink: |head| of(head).shrink(),
    fill: |head, node, out| of(head).take_past(node, out),
    give: |head, objects, _| of(head).give_past(objects),
    reap: |_| {},
    thin: |head| {
        of(head).quieten();
    },
    validate: |head| of(head).validate(),
    restore: |head, slab, mark| of(head).restore(slab, mark),
    live: quiet::live,
    locks: |head, f| {
        for node in &of(head).0.nodes {
            // SAFETY: only the fork handlers get it, and they use it in pairs.
            f(unsafe { node.raw() });
        }
    },
    after_fork,
};

unsafe fn after_fork() {
    // SAFETY: promised by the caller: no other thread exists, so nobody holds the lock
    // any more.
    unsafe {
        MERGE.raw().fork_child();
        slots::after_fork();
    }
}

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

const LISTED: u64 = 1;

impl Slub {
    fn shape(self) -> &'static Shape {
        &self.0.shape
    }

    /// The numbers that can be set, as they are.
    pub fn tunables(self) -> Tunables {
        self.0.tuned.get(self.shape())
    }

    /// Sets them, for this cache and those merged with it. Slots and nodes follow with
    /// their next slow path.
    ///
    /// # Errors
    /// [`TuneError`] says which number is out of range; nothing changes then.
    pub fn tune(self, tunables: Tunables) -> Result<(), TuneError> {
        self.0.tuned.set(self.shape(), tunables)
    }

    /// Makes a frozen slab, a page of its objects on the returned list. Of the order
    /// asked for, or, when memory is short, of a smaller one.
    #[cold]
    fn new_slab(self, order: u8) -> Option<(PageRef, List)> {
        growth::look();
        let shape = self.shape();
        let take =
            |order| guard::alloc_slab(Shape::page_order(order), self.0.migratetype, shape.guard);
        let head = take(order).or_else(|| {
            let least = shape.order_after(0);
            (least < order).then(|| take(least))?
        })?;
        shape.init(head, self.id());
        let objects = shape.objects(head);
        let state = State {
            head: 0,
            inuse: objects,
            frozen: true,
        };
        head.word.store(state.pack(), Relaxed);
        if let Some(constructor) = self.0.constructor {
            for i in 0..usize::from(objects) {
                // SAFETY: an object of the fresh slab, which nobody else has.
                unsafe { constructor(slab::base(head).add(i * shape.stride)) };
            }
        }
        if !checks::ON {
            for i in 0..usize::from(objects) {
                // SAFETY: as above.
                unsafe { checks::made(slab::base(head).add(i * shape.stride), self.id()) };
            }
        }
        self.0.slabs.fetch_add(1, Relaxed);
        self.0.pages.fetch_add(1 << head.order(), Relaxed);
        self.0.objects.fetch_add(objects.into(), Relaxed);
        bump(&self.0.counters.new_slab);
        // SAFETY: the slab is ours.
        Some((head, unsafe {
            shape.link_page(head, self.0.shuffle.as_ref())
        }))
    }

    #[cold]
    fn discard(self, head: PageRef) {
        self.0.slabs.fetch_sub(1, Relaxed);
        self.0.pages.fetch_sub(1 << head.order(), Relaxed);
        let objects = self.shape().objects(head).into();
        self.0.objects.fetch_sub(objects, Relaxed);
        bump(&self.0.counters.discard_slab);
        guard::free_slab(head, self.shape().guard);
    }

    /// A slab of the node's list with its whole freelist; a few more go on the
    /// slot's partial list.
    fn node_partial(self, node: usize, slot: Option<SlotRef>) -> Option<(PageRef, List)> {
        let mut list = self.0.nodes[node].lock();
        let Some(head) = list.partial.pop_front() else {
            return self.wake_one(&mut list);
        };
        head.private[1].store(0, Relaxed);
        let first = word::freeze_and_take(&head.word, self.shape().objects(head));
        if let Some(slot) = slot {
            let cold = slot.cold(self.id());
            for _ in 0..self.0.tuned.cpu_slabs() / 2 {
                let Some(more) = list.partial.pop_front() else {
                    break;
                };
                more.private[1].store(0, Relaxed);
                word::freeze(&more.word);
                cold.push(more);
            }
        }
        Some((head, List::of_name(first)))
    }

    /// A slab of another node that has more than it keeps (`spare`), or any it has.
    fn remote_partial(self, node: usize, spare: bool) -> Option<(PageRef, List)> {
        let nodes = topology::nodes();
        (1..nodes).find_map(|i| {
            let remote = (node + i) % nodes;
            if spare && self.0.nodes[remote].lock().partial.len() <= self.0.tuned.min_partial() {
                return None;
            }
            // Not to the slot's partial list: one slab is what was missing.
            let found = self.node_partial(remote, None)?;
            bump(&self.0.counters.remote_node_get);
            Some(found)
        })
    }

    /// A frozen slab with a freelist, and whether it is new: a partial one of this node,
    /// one that another node can spare, a new one, any of another node.
    fn any_slab(self, node: usize, slot: Option<SlotRef>) -> Option<(PageRef, List, bool)> {
        if let Some((head, list)) = self.node_partial(node, slot) {
            bump(&self.0.counters.node_partial_get);
            return Some((head, list, false));
        }
        let remote = topology::nodes() > 1;
        if remote
            && self.0.tuned.try_remote()
            && let Some((head, list)) = self.remote_partial(node, true)
        {
            return Some((head, list, false));
        }
        let used = slot.map_or(0, |slot| slot.cold(self.id()).used());
        if let Some((head, list)) = self.new_slab(self.shape().order_after(used)) {
            return Some((head, list, true));
        }
        let (head, list) = self.remote_partial(node, false).filter(|_| remote)?;
        Some((head, list, false))
    }

    /// The CPU slab's freelist is empty (or the slot is armed, or the list spoilt): finds
    /// a slab with free objects and takes one.
    fn refill(self, slot: SlotRef) -> *mut u8 {
        let (id, shape) = (self.id(), self.shape());
        let cold = slot.cold(id);
        if let Some(head) = cold.slab() {
            let list = slot.hot(id).list();
            if !list.is_empty() {
                return self.open(slot, head, list);
            } else if shape.has_unlinked(head) {
                // SAFETY: the CPU slab is this thread's.
                let list = unsafe { shape.link_page(head, self.0.shuffle.as_ref()) };
                return self.open(slot, head, list);
            } else if let Some(first) = word::take_or_unfreeze(&head.word, shape.objects(head)) {
                bump(&self.0.counters.cpu_slab_refill);
                return self.open(slot, head, List::of_name(first));
            }
            bump(&self.0.counters.deactivate_cpu_slab);
            slot.close(id);
        }
        if cold.counts_are_high() {
            self.fold_counts(slot);
        }
        while let Some(head) = cold.pop() {
            if word::load(&head.word).inuse == 0 && head.order() < shape.order_after(cold.used()) {
                // Nobody holds an object of it, so it is this thread's alone; and the
                // thread has come to need larger ones.
                bump(&self.0.counters.outgrown);
                self.discard(head);
                continue;
            }
            bump(&self.0.counters.cpu_partial_alloc);
            cold.note_use(head, false);
            let first = word::freeze_and_take(&head.word, shape.objects(head));
            return self.open(slot, head, List::of_name(first));
        }
        match self.any_slab(slot.node(), Some(slot)) {
            Some((head, list, fresh)) => {
                cold.note_use(head, fresh);
                let p = self.open(slot, head, list);
                // Only so does the slot come to hold more.
                if slot.ledger().is_due() {
                    self.keep_budget(slot);
                }
                p
            }
            None => ptr::null_mut(),
        }
    }

    /// Makes `head` the CPU slab and takes the first object of `list`.
    fn open(self, slot: SlotRef, head: PageRef, list: List) -> *mut u8 {
        let shape = self.shape();
        let p = list.first(slab::base(head));
        // SAFETY: the first object of a list that is this thread's.
        let mut next =
            List(unsafe { slab::next(p, shape.offset, slab::key_of(slab::base(head) as usize)) });
        if !next.is_empty() && !shape.is_object(head, next) {
            // Its successors are lost.
            misuse::report("a free object was overwritten:", p);
            next = List::EMPTY;
        }
        slot.open(self.id(), shape, head, next);
        p
    }

    /// All slabs of the slot's partial list go to the node.
    #[cold]
    fn drain_partial(self, slot: SlotRef) {
        bump(&self.0.counters.cpu_partial_drain);
        while let Some(head) = slot.cold(self.id()).pop() {
            self.release(head, List::EMPTY);
        }
    }

    /// Gives up a frozen slab of this thread, with what is left of its list.
    fn release(self, head: PageRef, list: List) {
        let shape = self.shape();
        let unlinked = shape.objects(head) - shape.linked(head);
        // SAFETY: the list is this thread's.
        let (list, mut last, mut count) = match unsafe { shape.walk(head, list, |_| {}) } {
            Some((last, count)) => (list, last, count),
            None => {
                misuse::report(
                    "a free object was overwritten in the list of",
                    list.first(slab::base(head)),
                );
                (List::EMPTY, ptr::null_mut(), 0)
            }
        };
        if unlinked > 0 && word::load(&head.word).inuse == count + unlinked {
            // Nobody holds an object of it, and most of it was never touched.
            return self.discard(head);
        }
        let mut first = list;
        if unlinked > 0 {
            (first, last, count) = self.link_rest(head, list, last, count);
        }
        let link = |old| {
            let (key, next) = (slab::key_of(slab::base(head) as usize), List::of_name(old));
            // SAFETY: the last object of this thread's list.
            unsafe { slab::set_next(last, shape.offset, key, next.0) };
        };
        let mut node = self.0.nodes[head.node()].lock();
        let state = word::deactivate(&head.word, first.name(), count, link);
        // Still under the lock: a free that finds the slab not frozen waits for it
        // before it looks whether the slab is on the list.
        if state.head == 0 {
            return;
        }
        if state.inuse == 0 && node.partial.len() >= self.0.tuned.min_partial() {
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

    /// Puts the objects that were never linked behind a list of the slab, whose last and
    /// length are given; returns the whole with its last and length.
    #[cold]
    fn link_rest(
        self,
        head: PageRef,
        mut first: List,
        mut last: *mut u8,
        mut count: u16,
    ) -> (List, *mut u8, u16) {
        let (shape, key) = (self.shape(), slab::key_of(slab::base(head) as usize));
        while shape.has_unlinked(head) {
            // SAFETY: the slab, its unlinked objects and the list are this thread's.
            unsafe {
                let more = shape.link_page(head, self.0.shuffle.as_ref());
                if first.is_empty() {
                    first = more;
                } else {
                    slab::set_next(last, shape.offset, key, more.0);
                }
                if let Some((end, n)) = shape.walk(head, more, |_| {}) {
                    (last, count) = (end, count + n);
                }
            }
        }
        (first, last, count)
    }

    /// Gives everything that a slot holds of this cache to the node.
    fn drain(self, slot: SlotRef) {
        let id = self.id();
        if let Some(head) = slot.cold(id).slab() {
            let list = slot.hot(id).list();
            bump(&self.0.counters.deactivate_cpu_slab);
            slot.close(id);
            self.release(head, list);
        }
        if slot.cold(id).iter().next().is_some() {
            self.drain_partial(slot);
        }
        self.fold_counts(slot);
        slot.forget(id);
    }

    /// Sees to it that the slot keeps to its budget, but for this cache.
    #[cold]
    fn keep_budget(self, slot: SlotRef) {
        let mine = |head: &CacheHead| ptr::eq(head.backend, &raw const BACKEND);
        slot.ledger().keep(
            slot.budget(),
            self.id(),
            |head| {
                let cold = slot.cold(head.id);
                let pages = |head: PageRef| 1usize << head.order();
                let partial: usize = cold.iter().map(pages).sum();
                (cold.slab().map_or(0, pages) + partial) * page_alloc::PAGE_SIZE
            },
            |head| {
                if mine(head) {
                    of(head).drain(slot);
                }
            },
        );
    }

    /// Takes the slot's counts to the cache's.
    fn fold_counts(self, slot: SlotRef) {
        let (slow, partial) = slot.cold(self.id()).take_counts();
        if slow > 0 {
            self.0.counters.free_slow.fetch_add(slow, Relaxed);
            self.0.counters.cpu_partial_free.fetch_add(partial, Relaxed);
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
                pages += 1 << head.order();
                self.discard(head);
            }
        }
        pages
    }

    /// One object without a slot.
    fn take_one(self) -> *mut u8 {
        let Some((head, list, _)) = self.any_slab(topology::current_node(), None) else {
            return ptr::null_mut();
        };
        let p = list.first(slab::base(head));
        // SAFETY: the first object of a list that is this thread's.
        let next = List(unsafe {
            slab::next(
                p,
                self.shape().offset,
                slab::key_of(slab::base(head) as usize),
            )
        });
        self.release(head, next);
        p
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
