//! The trait: fast paths inline, the rest out of line.

use core::ptr::NonNull;
use core::sync::atomic::{AtomicU8, Ordering::Relaxed};

use page_alloc::topology::MAX_NODES;
use page_alloc::{granule, meta, purge, topology};
use slab_api::checks;
use slab_api::{CacheDesc, CacheError, CacheInfo, Corruption, DestroyError, ObjectCache};
use slab_api::{percpu, registry};

use crate::cache::{Aliens, Classic, Record, of};
use crate::reap::{self, WALK};
use crate::slab::Placement;
use crate::slot::{self as slots, SlotRef};

impl ObjectCache for Classic {
    const BACKEND: &'static str = "slab";

    fn create(desc: &CacheDesc<'_>) -> Result<Self, CacheError> {
        Self::create_placed(desc, Placement::Outside)
    }

    #[inline]
    fn from_id(id: u32) -> Option<Self> {
        of(registry::get(id)?)
    }

    #[inline(always)]
    fn id(self) -> u32 {
        self.0.head.id
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
        let id = self.id();
        if percpu::on() {
            return percpu::alloc(&self.0.head);
        }
        purge::tick();
        let p = match SlotRef::get() {
            Some(slot) => {
                let mut p = slot.pop(id);
                let natural = p.is_null();
                if natural {
                    p = self.refill(slot);
                    reap::tick(slot);
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
        if percpu::on() {
            return percpu::free(&self.0.head, p);
        }
        match SlotRef::get() {
            Some(slot) => {
                let natural = !slot.push(self.id(), p);
                if natural {
                    self.put(slot, p);
                    self.keep_budget(slot);
                    reap::tick(slot);
                }
                slots::settle(natural);
            }
            None => self.give_one(p),
        }
        purge::tick();
    }

    fn alloc_bulk(self, out: &mut [*mut u8]) -> usize {
        if percpu::on() {
            return percpu::alloc_bulk(&self.0.head, out);
        }
        let id = self.id();
        let slot = SlotRef::get();
        let mut got = 0;
        while got < out.len() {
            let rest = &mut out[got..];
            let mut n = slot
                .and_then(|slot| slot.with_array(id, |view| view.take(rest)))
                .unwrap_or(0);
            if n == 0 {
                // A whole batch of more goes past the array.
                let small =
                    slot.filter(|slot| slot.limit(id) == 0 || rest.len() < self.batch(*slot));
                let Some(slot) = small else {
                    let node = slot.map_or_else(topology::current_node, |slot| slot.node());
                    n = self.take_past(node, rest);
                    if n == 0 {
                        break;
                    }
                    rest[..n].iter().for_each(|p| _ = self.mark(*p));
                    got += n;
                    continue;
                };
                match self.refill(slot) {
                    p if p.is_null() => break,
                    p => rest[0] = p,
                }
                n = 1;
            }
            rest[..n].iter().for_each(|p| _ = self.mark(*p));
            got += n;
        }
        purge::tick();
        if let Some(slot) = slot {
            reap::tick(slot);
        }
        got
    }

    unsafe fn free_bulk(self, objects: &[*mut u8]) {
        if percpu::on() {
            // SAFETY: promised by the caller.
            return unsafe { percpu::free_bulk(self, &self.0.head, objects) };
        }
        let id = self.id();
        let byte = granule::byte_of(id);
        let one_node = topology::nodes() == 1;
        let mut rest = objects;
        while let Some(slot) = SlotRef::get()
            && one_node
            && let Some((first, others)) = rest.split_first()
        {
            // As far as there is room, and nothing is wrong with them.
            let done = slot.with_array(id, |view| {
                let valid = |p: &&*mut u8| checks::freed_if_in_use(**p, byte);
                let room = view.room();
                let n = rest.iter().take(room).take_while(valid).count();
                view.put(&rest[..n])
            });
            rest = match done {
                Some(n @ 1..) => &rest[n..],
                _ => {
                    if let Some(p) = NonNull::new(*first) {
                        // SAFETY: promised by the caller. Flushes a full array; reports
                        // what is no object in use.
                        unsafe { self.free(p) };
                    }
                    others
                }
            };
        }
        for p in rest {
            if let Some(p) = NonNull::new(*p) {
                // SAFETY: promised by the caller.
                unsafe { self.free(p) };
            }
        }
    }

    fn shrink(self) -> usize {
        percpu::shrink(&self.0.head);
        let before = self.slabs();
        if let Some(slot) = SlotRef::existing() {
            self.drain(slot);
        }
        self.drain_nodes();
        for node in 0..MAX_NODES {
            self.with_level(node, |level| level.doom(usize::MAX));
        }
        before.saturating_sub(self.slabs()) * self.0.geometry.order.pages()
    }

    fn discard_gaps(self, quiet: bool) -> usize {
        self.quieten(quiet)
    }

    fn validate(self) -> Result<(), Corruption> {
        crate::check::validate(self)
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
        let mut free = 0;
        let mut empty = 0;
        for node in &self.0.nodes {
            let node = node.lock();
            info.slabs += node.slabs;
            info.queued += node.shared.avail();
            free += node.free_objects;
            empty += node.free.len();
        }
        slots::for_each(|slot| info.queued += slot.avail(self.id()));
        info.queued += percpu::queued(self.id());
        info.queued += self.in_aliens();
        info.active_slabs = info.slabs - empty;
        info.in_use = (info.slabs * geometry.objects).saturating_sub(free + info.queued);
        let tunables = self.tunables();
        info.tunables = (tunables.limit, tunables.batchcount, tunables.shared);
        let counters = [
            ("refill", &c.refill),
            ("flush", &c.flush),
            ("shared_refill", &c.shared_refill),
            ("shared_flush", &c.shared_flush),
            ("alien_free", &c.alien_free),
            ("alien_drain", &c.alien_drain),
            ("grow", &c.grow),
            ("reap", &c.reap),
            ("destroy_slab", &c.destroy_slab),
            ("colour_moves", &c.colour_moves),
            ("grow_array", &c.grow_array),
        ];
        for (cell, (name, value)) in info.counters.iter_mut().zip(counters) {
            *cell = (name, value.load(Relaxed));
        }
        info
    }

    fn destroy(self) -> Result<(), DestroyError> {
        {
            let _slots = registry::slots_lock();
            let _walk = WALK.lock();
            percpu::end(&self.0.head);
            // By the contract no thread is using the cache: its objects in their slots
            // can be taken from here.
            slots::for_each(|slot| {
                if slot.has_array(self.id()) {
                    self.drain(slot);
                }
            });
            self.drain_nodes();
            let in_use = self.info().in_use;
            if in_use > 0 {
                return Err(DestroyError::Busy(in_use));
            }
            for node in 0..MAX_NODES {
                self.with_level(node, |level| level.doom(usize::MAX));
            }
            registry::unregister(self.id());
        }
        let aliens = self.0.aliens;
        // SAFETY: unregistered and unused: nobody refers to the record any more.
        unsafe {
            if let Some(aliens) = aliens {
                meta::free(NonNull::from(aliens).cast(), size_of::<Aliens>());
            }
            meta::free(NonNull::from(self.0).cast(), size_of::<Record>());
        }
        Ok(())
    }
}
