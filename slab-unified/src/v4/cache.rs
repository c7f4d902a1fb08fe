//! A cache's record: how it is made, and known to the registry.
//!
//! ```text
//!   record: [ head | geometry | counters | shared queue by LLC | node 0..4 | aliens ]
//!                                          lock each             lock        lock each
//! ```
//! Lock order: [`WALK`], then a shared or an alien queue's lock (one of them), then a
//! node's (one of them), then the page layer's and the metadata pool's. Slabs are made
//! outside of the node's lock, and given back there.

use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use page_alloc::sync::Lock;
use page_alloc::topology::MAX_NODES;
use page_alloc::{Migratetype, PageList, meta, topology};
use slab_api::registry::{self, Backend, CacheHead};
use slab_api::{CacheDesc, CacheError, CacheInfo, Constructor, ObjectCache, guard};

use super::expire::WALK;
use super::llc::LLCS;
use super::node::{Node, NodeLevel};
use super::pool::Pool;
use super::slab::{self, Geometry};
use super::slot as slots;

/// Batches that a shared queue holds.
pub(crate) const SHARED_BATCHES: usize = 10;

/// Events of the slow paths.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) refill: AtomicU64,
    pub(crate) flush: AtomicU64,
    pub(crate) shared_refill: AtomicU64,
    pub(crate) shared_flush: AtomicU64,
    pub(crate) alien_free: AtomicU64,
    pub(crate) alien_drain: AtomicU64,
    pub(crate) new_slab: AtomicU64,
    pub(crate) discard_slab: AtomicU64,
    pub(crate) expire: AtomicU64,
}

pub(crate) fn bump(counter: &AtomicU64) {
    counter.fetch_add(1, Relaxed);
}

/// The alien queues: by the LLC of the slots, then by the node of the objects.
pub(crate) type Aliens = [[Lock<Pool>; MAX_NODES]; LLCS];

#[repr(C)]
pub(crate) struct Record {
    pub(crate) head: CacheHead,
    pub(crate) geometry: Geometry,
    /// Objects that a slot's queue holds.
    pub(crate) max: usize,
    /// Objects that move at a time.
    pub(crate) batch: usize,
    min_partial: usize,
    pub(crate) migratetype: Migratetype,
    pub(crate) constructor: Option<Constructor>,
    pub(crate) counters: Counters,
    pub(crate) shared: [Lock<Pool>; LLCS],
    pub(crate) nodes: [Lock<Node>; MAX_NODES],
    /// Only where there are several nodes.
    pub(crate) aliens: Option<&'static Aliens>,
}

static BACKEND: Backend = Backend {
    name: UnifiedV4::BACKEND,
    info: |head| of(head).map_or(CacheInfo::new(0, 0, 0, 0), ObjectCache::info),
    shrink: |head| of(head).map_or(0, ObjectCache::shrink),
    validate: |head| of(head).map_or(Ok(()), ObjectCache::validate),
    locks: |head, f| {
        let Some(UnifiedV4(record)) = of(head) else {
            return;
        };
        // SAFETY: only the fork handlers get the raw locks, and use them in pairs.
        unsafe {
            for shared in &record.shared {
                f(shared.raw());
            }
            for alien in record.aliens.iter().flat_map(|a| a.iter().flatten()) {
                f(alien.raw());
            }
            for node in &record.nodes {
                f(node.raw());
            }
        }
    },
    after_fork,
    // The design of 2010 has its own queues in front of all of it: its slots stay threads'
    // whatever the others' are, and only whole-heap work comes this way.
    fill: |head, node, out| of(head).map_or(0, |cache| cache.take_past(node, out)),
    give: |head, objects, _| {
        if let Some(cache) = of(head) {
            objects.iter().for_each(|p| cache.give_one(*p));
        }
    },
    reap: |_| {},
    thin: |_| {},
    // No slab becomes quiet.
    restore: |_, _, mark| mark.load(Relaxed),
    live: |_| usize::MAX,
};

unsafe fn after_fork() {
    // SAFETY: promised by the caller: no other thread exists, so nobody holds the
    // lock any more.
    unsafe {
        WALK.raw().fork_child();
        slots::after_fork();
    }
}

/// The cache with this head; `None` when it is another backend's.
pub(crate) fn of(head: &CacheHead) -> Option<UnifiedV4> {
    core::ptr::eq(head.backend, &raw const BACKEND)
        // SAFETY: a head with this backend is the first field of a Record, which
        // stays valid while it is registered.
        .then(|| UnifiedV4(unsafe { &*core::ptr::from_ref(head).cast::<Record>() }))
}

/// Objects that a queue holds, by their size: SLAB's table.
fn queue_size(stride: usize) -> usize {
    match stride {
        4097.. => 8,
        1025.. => 24,
        257.. => 54,
        _ => 120,
    }
}

/// SLUB's number of partial slabs that are kept, empty or not.
fn min_partial(stride: usize) -> usize {
    (stride.ilog2() as usize / 2).clamp(5, 10)
}

/// A cache of the historical unified backend.
#[derive(Clone, Copy)]
pub struct UnifiedV4(pub(crate) &'static Record);

impl core::fmt::Debug for UnifiedV4 {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_tuple("UnifiedV4").field(&self.0.head).finish()
    }
}

impl UnifiedV4 {
    pub(crate) fn make(desc: &CacheDesc<'_>) -> Result<Self, CacheError> {
        let (align, stride) = desc.layout()?;
        let max = queue_size(stride);
        let batch = max.div_ceil(2);
        let aliens = make_aliens(batch)?;
        let free_aliens = || {
            if let Some(aliens) = aliens {
                // SAFETY: made above; the cache that would have used it is not.
                unsafe { meta::free(NonNull::from(aliens).cast(), size_of::<Aliens>()) };
            }
        };
        let Some(memory) = meta::alloc(size_of::<Record>()) else {
            free_aliens();
            return Err(CacheError::NoMemory);
        };
        let record = memory.cast::<Record>();
        // SAFETY: the memory is large and aligned enough, and ours; a registered
        // record stays valid until `destroy`.
        unsafe {
            record.write(Record {
                head: CacheHead::new(&BACKEND, desc, (align, stride)),
                geometry: Geometry::new(stride, guard::bytes(desc)),
                max,
                batch,
                min_partial: min_partial(stride),
                migratetype: desc.migratetype,
                constructor: desc.constructor,
                counters: Counters::default(),
                shared: core::array::from_fn(|_| Lock::new(Pool::new(SHARED_BATCHES * batch))),
                nodes: [const { Lock::new(Node::new()) }; MAX_NODES],
                aliens,
            });
            if registry::register(record.cast()).is_none() {
                meta::free(memory, size_of::<Record>());
                free_aliens();
                return Err(CacheError::TooMany);
            }
            Ok(Self(record.as_ref()))
        }
    }

    /// Gives the memory of the record back.
    ///
    /// # Safety
    /// The cache must be unregistered, its queues without places, and nobody may use any
    /// copy of the handle again.
    pub(crate) unsafe fn unmake(self) {
        // SAFETY: promised by the caller.
        unsafe {
            if let Some(aliens) = self.0.aliens {
                meta::free(NonNull::from(aliens).cast(), size_of::<Aliens>());
            }
            meta::free(NonNull::from(self.0).cast(), size_of::<Record>());
        }
    }

    pub(crate) fn id_of(self) -> u32 {
        self.0.head.id
    }

    pub(crate) fn geometry(self) -> &'static Geometry {
        &self.0.geometry
    }

    pub(crate) fn counters(self) -> &'static Counters {
        &self.0.counters
    }

    /// Runs `f` on a node under its lock, then gives back the slabs it doomed.
    pub(crate) fn with_level<R>(self, node: usize, f: impl FnOnce(&mut NodeLevel<'_>) -> R) -> R {
        let (result, mut doomed) = {
            let mut node = self.0.nodes[node % MAX_NODES].lock();
            let mut level = NodeLevel {
                geometry: &self.0.geometry,
                node: &mut node,
                doomed: PageList::new(),
                min_partial: self.0.min_partial,
            };
            let result = f(&mut level);
            (result, level.doomed)
        };
        while let Some(head) = doomed.pop_front() {
            bump(&self.0.counters.discard_slab);
            slab::discard(&self.0.geometry, head);
        }
        result
    }
}

/// The alien queues of a cache; none on a machine of one node.
fn make_aliens(batch: usize) -> Result<Option<&'static Aliens>, CacheError> {
    if topology::nodes() == 1 {
        return Ok(None);
    }
    let memory = meta::alloc(size_of::<Aliens>()).ok_or(CacheError::NoMemory)?;
    let aliens = memory.cast::<Aliens>();
    // SAFETY: large and aligned enough, and ours until the cache is destroyed.
    unsafe {
        aliens.write(core::array::from_fn(|_| {
            core::array::from_fn(|_| Lock::new(Pool::new(batch)))
        }));
        Ok(Some(aliens.as_ref()))
    }
}
