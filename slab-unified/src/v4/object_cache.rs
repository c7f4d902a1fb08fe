//! The trait: fast paths inline, the rest out of line.

use core::sync::atomic::{AtomicU8, Ordering::Relaxed};

use page_alloc::{PageRef, granule, purge, topology};
use slab_api::checks;
use slab_api::gaps::Gaps;
use slab_api::registry;
use slab_api::{CacheDesc, CacheError, CacheInfo, Corruption, DestroyError, ObjectCache};

use super::cache::{Record, SHARED_BATCHES, UnifiedV4, of};
use super::expire::{self, WALK};
use super::slab;
use super::slot::{self as slots, SlotRef};

impl UnifiedV4 {
    /// Constructs the objects of a fresh slab.
    pub(crate) fn prepare(self, head: PageRef) {
        let geometry = self.geometry();
        if let Some(constructor) = self.0.constructor {
            // SAFETY: each is an object of the fresh slab, which nobody else has.
            slab::for_each_free(geometry, head, |p| unsafe { constructor(p) });
        }
        if !checks::ON {
            // SAFETY: each is an object of the fresh slab, which nobody else has.
            slab::for_each_free(geometry, head, |p| unsafe { checks::made(p, self.id()) });
        }
    }

    /// Marks an object that leaves for a user.
    #[inline(always)]
    fn mark(self, p: *mut u8) -> *mut u8 {
        // SAFETY: an object of a slab, in an arena, that is now ours.
        unsafe { checks::taken(p, self.id_of()) }
    }
}

impl ObjectCache for UnifiedV4 {
    const BACKEND: &'static str = "unified:v4";

    fn create(desc: &CacheDesc<'_>) -> Result<Self, CacheError> {
        Self::make(desc)
    }

    #[inline]
    fn from_id(id: u32) -> Option<Self> {
        of(registry::get(id)?)
    }

    #[inline(always)]
    fn id(self) -> u32 {
        self.id_of()
    }

    #[inline(always)]
    fn try_alloc(id: u32) -> *mut u8 {
        let p = slots::pop(id);
        if !p.is_null() {
            // SAFETY: an object of a slab, in an arena, that is now ours.
            return unsafe { checks::taken(p, id) };
        }
        p
    }

    #[cold]
    #[inline(never)]
    fn alloc_slow(self) -> *mut u8 {
        purge::tick();
        let id = self.id();
        let p = match SlotRef::get() {
            Some(slot) => {
                let mut p = slot.pop(id);
                let natural = p.is_null();
                if natural {
                    p = self.refill(slot);
                    expire::tick(slot);
                }
                slots::settle(natural);
                p
            }
            None => self.take_one(topology::current_node()),
        };
        if p.is_null() { p } else { self.mark(p) }
    }

    #[inline(always)]
    unsafe fn try_free(id: u32, p: *mut u8, mark: &AtomicU8) -> bool {
        if !slots::push(id, p) {
            return false;
        }
        checks::freed(mark);
        true
    }

    #[cold]
    #[inline(never)]
    unsafe fn free_slow(self, p: *mut u8) {
        // SAFETY: an object in use, by the caller's promise.
        checks::freed(unsafe { granule::cell_of_object(p) });
        match SlotRef::get() {
            Some(slot) => {
                let natural = !slot.push(self.id(), p);
                if natural {
                    self.put(slot, p);
                    expire::tick(slot);
                }
                slots::settle(natural);
            }
            None => self.give_one(p),
        }
        purge::tick();
    }

    fn shrink(self) -> usize {
        let before = self.slabs();
        if let Some(slot) = SlotRef::existing() {
            self.drain(slot);
        }
        self.drain_pools();
        self.free_empty_slabs();
        before.saturating_sub(self.slabs()) * self.geometry().order.pages()
    }

    // The design of 2010 had nothing of the kind.
    const GOES_QUIET: bool = false;

    fn discard_gaps(self, _quiet: bool) -> usize {
        // Constructed objects keep their content.
        if self.0.constructor.is_some() {
            return 0;
        }
        let geometry = self.geometry();
        let mut pages = 0;
        for node in &self.0.nodes {
            let node = node.lock();
            for head in node.partial.iter() {
                let start = head.address() as usize;
                // The bitmap may lie behind the objects: it stays.
                let objects = start..start + geometry.objects * geometry.stride;
                let mut gaps = Gaps::new(objects.clone(), objects);
                slab::for_each_free(geometry, head, |p| {
                    // SAFETY: a free object of the slab, by address; the node's lock keeps
                    // it so.
                    unsafe { gaps.add(p, geometry.stride) };
                });
                pages += gaps.finish();
            }
        }
        pages
    }

    fn validate(self) -> Result<(), Corruption> {
        super::check::validate(self)
    }

    fn info(self) -> CacheInfo {
        let Record {
            head,
            geometry,
            counters: c,
            ..
        } = self.0;
        let mut info = CacheInfo::new(
            head.size as usize,
            head.stride as usize,
            geometry.objects,
            geometry.order.get(),
        );
        let (mut free, mut empty, mut runs) = (0, 0, 0);
        for node in &self.0.nodes {
            let node = node.lock();
            info.slabs += node.slabs;
            free += node.free;
            empty += node.empty(geometry);
            runs += node.runs;
        }
        slots::for_each(|slot| info.queued += slot.held(self.id()));
        info.queued += self.in_pools();
        info.active_slabs = info.slabs - empty;
        info.in_use = (info.slabs * geometry.objects).saturating_sub(free + info.queued);
        info.tunables = (self.0.max, self.0.batch, SHARED_BATCHES);
        let counters = [
            ("refill", c.refill.load(Relaxed)),
            ("flush", c.flush.load(Relaxed)),
            ("shared_refill", c.shared_refill.load(Relaxed)),
            ("shared_flush", c.shared_flush.load(Relaxed)),
            ("alien_free", c.alien_free.load(Relaxed)),
            ("alien_drain", c.alien_drain.load(Relaxed)),
            ("runs", runs),
            ("new_slab", c.new_slab.load(Relaxed)),
            ("discard_slab", c.discard_slab.load(Relaxed)),
            ("expire", c.expire.load(Relaxed)),
        ];
        for (cell, counter) in info.counters.iter_mut().zip(counters) {
            *cell = counter;
        }
        info
    }

    fn destroy(self) -> Result<(), DestroyError> {
        {
            let _walk = WALK.lock();
            // By the contract no thread is using the cache: its objects in their slots
            // can be taken from here.
            slots::for_each(|slot| {
                if slot.has_queue(self.id()) {
                    self.drain(slot);
                }
            });
            self.drain_pools();
            let in_use = self.info().in_use;
            if in_use > 0 {
                return Err(DestroyError::Busy(in_use));
            }
            self.free_empty_slabs();
            registry::unregister(self.id());
        }
        // SAFETY: unregistered and unused, its queues emptied above: nobody refers to the
        // record any more.
        unsafe { self.unmake() };
        Ok(())
    }
}
