//! A cache's record: how it is made, tuned, and known to the registry.
//!
//! ```text
//!   record: [ head | geometry | tunables | counters | node 0..4 | aliens ]
//!                                                      lock       lock each
//! ```
//! Lock order: [`WALK`], then the tunables' lock, then an alien's lock or a node's,
//! then the page layer's and the metadata pool's. No two of aliens' and nodes' locks
//! are held at once. Slabs are made, and given back, outside the node's lock.

use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use page_alloc::sync::Lock;
use page_alloc::topology::MAX_NODES;
use page_alloc::{Migratetype, PageList, meta, topology};
use slab_api::registry::{self, Backend, CacheHead};
use slab_api::{CacheDesc, CacheError, CacheInfo, Constructor, ObjectCache};

use crate::node::{Alien, Node, NodeLevel};
use crate::reap::WALK;
use crate::slab::{self, Geometry, Placement};
use crate::slot as slots;
use crate::tunables::{Tunables, TuneError};

/// Events of the slow paths.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) refill: AtomicU64,
    pub(crate) flush: AtomicU64,
    pub(crate) shared_refill: AtomicU64,
    pub(crate) shared_flush: AtomicU64,
    pub(crate) alien_free: AtomicU64,
    pub(crate) alien_drain: AtomicU64,
    pub(crate) grow: AtomicU64,
    pub(crate) reap: AtomicU64,
    pub(crate) destroy_slab: AtomicU64,
    pub(crate) colour_moves: AtomicU64,
    pub(crate) grow_array: AtomicU64,
}

pub(crate) fn bump(counter: &AtomicU64) {
    counter.fetch_add(1, Relaxed);
}

/// The alien arrays: by the node of the slots, then by that of the objects.
pub(crate) type Aliens = [[Lock<Alien>; MAX_NODES]; MAX_NODES];

#[repr(C)]
pub(crate) struct Record {
    pub(crate) head: CacheHead,
    pub(crate) geometry: Geometry,
    pub(crate) migratetype: Migratetype,
    pub(crate) constructor: Option<Constructor>,
    tunables: AtomicU64,
    /// Serialises changes of the tunables.
    tune: Lock<()>,
    pub(crate) colour_next: [AtomicU32; MAX_NODES],
    next_reap: [AtomicU64; MAX_NODES],
    pub(crate) counters: Counters,
    pub(crate) nodes: [Lock<Node>; MAX_NODES],
    /// Only where there are several nodes.
    pub(crate) aliens: Option<&'static Aliens>,
}

static BACKEND: Backend = Backend {
    name: "slab",
    info: |head| of(head).map_or(CacheInfo::new(0, 0, 0, 0), ObjectCache::info),
    shrink: |head| of(head).map_or(0, ObjectCache::shrink),
    fill: |head, node, out| of(head).map_or(0, |cache| cache.take_past(node, out)),
    give: |head, objects, node| {
        if let Some(cache) = of(head) {
            cache.give_past(node, objects);
        }
    },
    reap: |head| {
        if let Some(cache) = of(head) {
            cache.reap_past();
        }
    },
    thin: |head| {
        if let Some(cache) = of(head) {
            cache.thin();
        }
    },
    validate: |head| of(head).map_or(Ok(()), ObjectCache::validate),
    restore: |head, slab, mark| of(head).map_or(0, |cache| cache.restore(slab, mark)),
    live: slab::active,
    locks: |head, f| {
        let Some(Classic(record)) = of(head) else {
            return;
        };
        // SAFETY: only the fork handlers get the raw locks, and use them in pairs.
        unsafe {
            f(record.tune.raw());
            for alien in record.aliens.iter().flat_map(|a| a.iter().flatten()) {
                f(alien.raw());
            }
            for node in &record.nodes {
                f(node.raw());
            }
        }
    },
    after_fork,
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
pub(crate) fn of(head: &CacheHead) -> Option<Classic> {
    core::ptr::eq(head.backend, &raw const BACKEND)
        // SAFETY: a head with this backend is the first field of a Record, which
        // stays valid while it is registered.
        .then(|| Classic(unsafe { &*core::ptr::from_ref(head).cast::<Record>() }))
}

/// A cache of the classic backend.
#[derive(Clone, Copy)]
pub struct Classic(pub(crate) &'static Record);

impl core::fmt::Debug for Classic {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_tuple("Classic").field(&self.0.head).finish()
    }
}

impl Classic {
    /// As [`ObjectCache::create`], with the slabs' index stacks in a given place.
    ///
    /// # Errors
    /// As there.
    pub fn create_placed(desc: &CacheDesc<'_>, placement: Placement) -> Result<Self, CacheError> {
        let (align, stride) = desc.layout()?;
        let geometry = Geometry::new(
            stride,
            align,
            placement,
            desc.constructor.is_some(),
            slab_api::guard::bytes(desc),
        );
        let tunables = Tunables::for_size(stride);
        let aliens = Self::make_aliens()?;
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
                geometry,
                migratetype: desc.migratetype,
                constructor: desc.constructor,
                tunables: AtomicU64::new(tunables.word()),
                tune: Lock::new(()),
                colour_next: [const { AtomicU32::new(0) }; MAX_NODES],
                next_reap: [const { AtomicU64::new(0) }; MAX_NODES],
                counters: Counters::default(),
                nodes: [const { Lock::new(Node::new()) }; MAX_NODES],
                aliens,
            });
            for node in &record.as_ref().nodes {
                let mut node = node.lock();
                node.free_limit = tunables.free_limit(geometry.objects);
                node.shared.reset(tunables.shared_limit());
            }
            if registry::register(record.cast()).is_none() {
                meta::free(memory, size_of::<Record>());
                free_aliens();
                return Err(CacheError::TooMany);
            }
            Ok(Self(record.as_ref()))
        }
    }

    fn make_aliens() -> Result<Option<&'static Aliens>, CacheError> {
        if topology::nodes() == 1 {
            return Ok(None);
        }
        let memory = meta::alloc(size_of::<Aliens>()).ok_or(CacheError::NoMemory)?;
        let aliens = memory.cast::<Aliens>();
        // SAFETY: large and aligned enough, and ours until the cache is destroyed.
        unsafe {
            aliens.write([const { [const { Lock::new(Alien::new()) }; MAX_NODES] }; MAX_NODES]);
            Ok(Some(aliens.as_ref()))
        }
    }

    /// Sets the limit of each thread's array, the batch that moves between levels, and
    /// the size of the shared arrays in batches. A thread's array follows with the
    /// thread's next refill or flush.
    ///
    /// # Errors
    /// [`TuneError`] says which number is out of range; nothing changes then.
    pub fn tune(self, limit: usize, batchcount: usize, shared: usize) -> Result<(), TuneError> {
        let mut tunables = Tunables::check(limit, batchcount, shared)?;
        let _tune = self.0.tune.lock();
        tunables.epoch = self.tunables().epoch.wrapping_add(1);
        self.0.tunables.store(tunables.word(), Relaxed);
        for node in 0..MAX_NODES {
            self.with_level(node, |level| {
                level.node.free_limit = tunables.free_limit(self.0.geometry.objects);
                level.drain_shared(tunables.shared_limit());
            });
        }
        Ok(())
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

    pub(crate) fn next_node_reap(self, node: usize) -> &'static AtomicU64 {
        &self.0.next_reap[node % MAX_NODES]
    }

    pub(crate) fn tunables(self) -> Tunables {
        Tunables::load(&self.0.tunables)
    }

    /// Runs `f` on a node under its lock, then gives back the slabs it doomed.
    pub(crate) fn with_level<R>(self, node: usize, f: impl FnOnce(&mut NodeLevel<'_>) -> R) -> R {
        let (result, mut doomed) = {
            let mut node = self.0.nodes[node % MAX_NODES].lock();
            let mut level = NodeLevel {
                geometry: &self.0.geometry,
                node: &mut node,
                doomed: PageList::new(),
            };
            let result = f(&mut level);
            (result, level.doomed)
        };
        while let Some(head) = doomed.pop_front() {
            bump(&self.0.counters.destroy_slab);
            slab::discard(&self.0.geometry, head);
        }
        result
    }
}
