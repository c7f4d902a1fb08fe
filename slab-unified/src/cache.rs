//! A cache: its record, its nodes' slabs, and the slow paths.
//!
//! Lock order: a node's lock, then the page layer's. At most one node's lock is
//! held at a time; slabs are made and given back outside of it.

use core::ptr::NonNull;
use core::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};

use page_alloc::sync::Lock;
use page_alloc::topology::MAX_NODES;
use page_alloc::{
    Migratetype, Order, PAGE_SIZE, PageList, PageMap, PageRef, granule, meta, purge, slot, sparse,
    topology,
};
use slab_api::registry::{self, Backend, CacheHead};
use slab_api::{
    CacheDesc, CacheError, CacheInfo, Constructor, Corruption, DestroyError, ObjectCache, checks,
    growth, guard, percpu,
};

use crate::depot::Depot;
use crate::magazine::{MAX_CAPACITY, MAX_LEVEL, Magazine, MagazineLinks};
use crate::slab::{self, Freed};
use crate::slot::{self as slots, SlotRef};

/// Bytes of objects that a magazine of the largest level may hold.
const MAGAZINE_BYTES: usize = 32 << 10;
/// Bytes of objects that a depot may hold in full magazines.
const DEPOT_BYTES: usize = 128 << 10;
/// Objects of this many bytes are too large to be queued on suspicion.
const LARGE_STRIDE: u32 = 128;
/// Slots in use up to which a thread's queue begins as large as the last thread's was:
/// with many, most of which wait, that would be memory that few need.
const FEW_SLOTS: usize = 16;
/// Misses at one level before the next magazines are larger.
const GROW_AFTER: u32 = 8;

pub(crate) mod expire;
mod object_cache;
mod queues;
mod quiet;

/// Slabs of one node.
#[derive(Debug)]
struct Node {
    /// Slabs with free objects and objects in use or queued.
    partial: PageList,
    /// Slabs whose objects are all free.
    empty: PageList,
    /// Quiet slabs, of which few objects are in use: the last that others are taken from.
    quiet: PageList,
    slabs: usize,
    /// Free objects in all slabs.
    free: usize,
}

/// Slabs that are to go back to the page layer, outside of the lock.
#[derive(Default)]
struct Discard {
    slabs: [Option<PageRef>; 8],
    len: usize,
}

impl Discard {
    /// Adds a slab; true when there is room for no other.
    fn add(&mut self, head: PageRef) -> bool {
        if let Some(place) = self.slabs.get_mut(self.len) {
            *place = Some(head);
            self.len += 1;
        }
        self.len == self.slabs.len()
    }

    fn slabs(&self) -> impl Iterator<Item = PageRef> {
        self.slabs.into_iter().flatten()
    }
}

/// Events of the slow paths.
#[derive(Debug, Default)]
struct Counters {
    spare_swap: AtomicU64,
    depot_get: AtomicU64,
    depot_put: AtomicU64,
    refill: AtomicU64,
    flush: AtomicU64,
    whole_slab_take: AtomicU64,
    alien_flush: AtomicU64,
    new_slab: AtomicU64,
    discard_slab: AtomicU64,
    grow_queue: AtomicU64,
    trim_depot: AtomicU64,
    expire: AtomicU64,
}

#[repr(C)]
struct Record {
    head: CacheHead,
    order: Order,
    objects: usize,
    /// What marks the free objects of a fresh slab, in its head page's record.
    first_bits: slab::Bits,
    /// Bytes of the guard behind each slab.
    guard: usize,
    max_level: u8,
    /// The level that the queue of the thread that ended last had reached: where the next
    /// thread's begins.
    first_level: AtomicU8,
    /// Empty slabs that a node keeps.
    keep_empty: usize,
    migratetype: Migratetype,
    constructor: Option<Constructor>,
    depot: Depot<AtomicU64>,
    counters: Counters,
    nodes: [Lock<Node>; MAX_NODES],
}

static BACKEND: Backend = Backend {
    name: "unified",
    info: |head| of(head).info(),
    shrink: |head| of(head).shrink(),
    fill: |head, node, out| of(head).take_objects(node, 0, out),
    give: |head, objects, node| of(head).give(objects, node),
    reap: |_| {},
    thin: |head| of(head).thin(),
    validate: |head| of(head).validate(),
    restore: |head, slab, mark| of(head).restore(slab, mark),
    live: |slab| slab::objects(slab).saturating_sub(slab::free_objects(slab)),
    locks: |head, f| {
        for node in &of(head).0.nodes {
            // SAFETY: only the fork handlers get it, and they use it in pairs.
            f(unsafe { node.raw() });
        }
    },
    after_fork: slots::after_fork,
};

fn of(head: &CacheHead) -> Unified {
    debug_assert!(core::ptr::eq(head.backend, &raw const BACKEND));
    // SAFETY: a head with this backend is the first field of a Record, which stays
    // valid while it is registered.
    Unified(unsafe { &*core::ptr::from_ref(head).cast::<Record>() })
}

/// A cache of the unified backend.
#[derive(Clone, Copy)]
pub struct Unified(&'static Record);

impl core::fmt::Debug for Unified {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_tuple("Unified").field(&self.0.head).finish()
    }
}

/// Counts an event. Two threads at once may count one: a locked addition would cost as much
/// as the rest of a short slow path.
fn bump(counter: &AtomicU64) {
    counter.store(counter.load(Relaxed) + 1, Relaxed);
}

impl Unified {
    fn record_bytes() -> usize {
        size_of::<Record>()
    }

    fn depot_limit(self) -> u64 {
        let magazine = MAX_CAPACITY
            .min(MAGAZINE_BYTES / self.0.head.stride as usize)
            .max(1);
        (DEPOT_BYTES / (magazine * self.0.head.stride as usize)).clamp(1, 16) as u64
    }

    /// Makes a slab, all of whose objects are free; it is on no list.
    #[cold]
    fn new_slab(self) -> Option<PageRef> {
        growth::look();
        let head = guard::alloc_slab(self.0.order, self.0.migratetype, self.0.guard)?;
        let stride = self.0.head.stride as usize;
        slab::init(head, self.id(), stride, self.0.objects, &self.0.first_bits);
        if let Some(constructor) = self.0.constructor {
            // SAFETY: each is an object of the fresh slab, which nobody else has.
            slab::for_each_free(head, stride, |p| unsafe { constructor(p) });
        }
        if !checks::ON {
            // SAFETY: each is an object of the fresh slab, which nobody else has.
            slab::for_each_free(head, stride, |p| unsafe { checks::made(p, self.id()) });
        }
        bump(&self.0.counters.new_slab);
        Some(head)
    }

    /// Fills `out` from the slabs of `node`, in `turn`'s order ([`slab::take`]); returns how many.
    fn take(self, node: usize, turn: usize, out: &mut [*mut u8]) -> usize {
        let mut node = self.0.nodes[node].lock();
        let mut got = 0;
        while got < out.len() {
            let (head, was_empty) = match node.partial.first() {
                Some(head) => (head, false),
                None => match node.empty.pop_front() {
                    Some(head) => (head, true),
                    None if self.wake_one(&mut node) => continue,
                    None => break,
                },
            };
            let n = slab::take(head, self.0.head.stride as usize, turn, &mut out[got..]);
            got += n;
            node.free -= n;
            let left = slab::free_objects(head);
            if left == 0 {
                bump(&self.0.counters.whole_slab_take);
                if !was_empty {
                    node.partial.remove(head);
                }
            } else if was_empty {
                node.partial.push_front(head);
            } else if n == 0 {
                break;
            }
        }
        got
    }

    /// Takes objects from the slabs: the own node's, new ones, other nodes'.
    fn take_objects(self, node: usize, turn: usize, out: &mut [*mut u8]) -> usize {
        let nodes = topology::nodes();
        let mut got = self.take(node, turn, out);
        // What the last slab had left over is no refill: of small objects it would end a few
        // allocations later, and in a fresh slab then.
        let enough = if self.0.order == Order::ZERO {
            out.len().div_ceil(2)
        } else {
            1
        };
        if got >= enough {
            return got;
        }
        // Other threads may empty a new slab before this one gets to it.
        for _ in 0..16 {
            let Some(head) = self.new_slab() else { break };
            let home = head.node();
            {
                let mut node = self.0.nodes[home].lock();
                node.slabs += 1;
                node.free += self.0.objects;
                node.empty.push_front(head);
            }
            got += self.take(home, turn, &mut out[got..]);
            if got > 0 {
                return got;
            }
        }
        if got > 0 {
            return got;
        }
        (1..nodes)
            .map(|i| self.take((node + i) % nodes, turn, out))
            .find(|n| *n > 0)
            .unwrap_or(0)
    }

    /// Gives objects to their slabs, under one hold of the lock for those of one node in a
    /// row. Slabs that empty beyond what a node keeps go back to the page layer.
    fn give(self, mut objects: &[*mut u8], own_node: usize) {
        let map = PageMap::now();
        let order = self.0.order.get();
        let nodes = topology::nodes();
        while let Some(p) = objects.first() {
            let mut home = 0;
            if nodes > 1 {
                home = map
                    .find(*p, order)
                    .map_or(own_node, |(head, _)| head.node());
                if home != own_node {
                    bump(&self.0.counters.alien_flush);
                }
            }
            let mut discard = Discard::default();
            let before = objects.len();
            {
                let mut node = self.0.nodes[home].lock();
                let to = (&mut *node, home, map);
                objects = match (nodes > 1, order == 0) {
                    (false, true) => self.give_to::<true, false>(to, objects, &mut discard),
                    (false, false) => self.give_to::<false, false>(to, objects, &mut discard),
                    (true, _) => self.give_to::<false, true>(to, objects, &mut discard),
                };
            }
            for head in discard.slabs() {
                bump(&self.0.counters.discard_slab);
                guard::free_slab(head, self.0.guard);
            }
            if objects.len() == before {
                debug_assert!(false, "queued objects are always ours");
                return;
            }
        }
    }

    /// Gives objects to the slabs of a node, until one is another node's (`MANY` nodes) or
    /// `discard` is full; returns the rest. `ONE`: slabs are of one page.
    fn give_to<'a, const ONE: bool, const MANY: bool>(
        self,
        (node, home, map): (&mut Node, usize, PageMap),
        mut objects: &'a [*mut u8],
        discard: &mut Discard,
    ) -> &'a [*mut u8] {
        let order = self.0.order.get();
        let shape = slab::Shape {
            order,
            compact: order > 0 && slab::is_compact(self.0.objects),
        };
        loop {
            let (n, stop) = slab::put::<ONE, MANY>(map, home, shape, objects);
            let (done, rest) = objects.split_at(n);
            objects = rest;
            node.free += n;
            let Some(slab::Stop { head, run, freed }) = stop else {
                return rest;
            };
            if sparse::is_quiet_or_was_sparse(head) {
                self.came_back(node, head, &done[n - run..]);
            }
            if freed != Freed::More && self.relist(node, head, freed) && discard.add(head) {
                return rest;
            }
        }
    }

    /// Puts a slab on the list that it belongs on after the freeing of objects. True
    /// when it is on no list any more and its pages are to be given back.
    #[cold]
    fn relist(self, node: &mut Node, head: PageRef, freed: Freed) -> bool {
        if freed == Freed::First {
            node.partial.push_front(head);
            return false;
        }
        if freed == Freed::Last {
            node.partial.remove(head);
        }
        if node.empty.len() < self.0.keep_empty {
            node.empty.push_front(head);
            return false;
        }
        node.slabs -= 1;
        node.free -= slab::objects(head);
        true
    }

    fn free_empty_slabs(self) -> usize {
        let mut pages = 0;
        for node in &self.0.nodes {
            loop {
                let head = {
                    let mut node = node.lock();
                    let Some(head) = node.empty.pop_front() else {
                        break;
                    };
                    node.slabs -= 1;
                    node.free -= slab::objects(head);
                    head
                };
                bump(&self.0.counters.discard_slab);
                pages += self.0.order.pages();
                guard::free_slab(head, self.0.guard);
            }
        }
        pages
    }
}

/// Gives everything that the slot of a thread that ends holds to the slabs.
pub(crate) fn drain_slot(slot: SlotRef) {
    let _slots = registry::slots_lock();
    registry::for_each(|head| {
        if core::ptr::eq(head.backend, &raw const BACKEND) {
            let (cache, cold) = (of(head), slot.cold(head.id));
            if slot.has_queue(head.id) {
                let level = cold.level.load(Relaxed);
                cache.0.first_level.store(level, Relaxed);
                cache.drain(slot);
            }
            // For the record's next thread.
            cold.misses.store(0, Relaxed);
        }
    });
}
