//! The trait's operations: fast paths inline, the rest out of line.

use core::sync::atomic::AtomicU8;

use page_alloc::{granule, purge};
use slab_api::{CacheInfo, Corruption, DestroyError};

use super::*;

impl ObjectCache for Slub {
    const BACKEND: &'static str = "slub";

    fn create(desc: &CacheDesc<'_>) -> Result<Self, CacheError> {
        Self::create_by_setting(desc)
    }

    #[inline]
    fn from_id(id: u32) -> Option<Self> {
        let head = registry::get(id)?;
        ptr::eq(head.backend, &raw const BACKEND).then(|| of(head))
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
        purge::tick();
        let p = match SlotRef::get() {
            Some(slot) => {
                // An armed slot's list may well have objects: `refill` sees to both.
                let natural = slot.hot(id).list().is_empty();
                let p = self.refill(slot);
                slots::settle(natural);
                p
            }
            // No thread has a slot then.
            None if percpu::on() => return percpu::alloc(&self.0.head),
            None => self.take_one(),
        };
        if !p.is_null() {
            // SAFETY: an object of a slab, in an arena, that is now ours.
            return unsafe { checks::taken(p, id) };
        }
        p
    }

    #[inline(always)]
    unsafe fn try_free(id: u32, p: *mut u8, mark: &AtomicU8) -> bool {
        // SAFETY: promised by the caller.
        if unsafe { slots::push(id, p) } {
            checks::freed(mark);
            return true;
        }
        // SAFETY: as above.
        unsafe { Self::free_elsewhere(id, p, mark) }
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
                // SAFETY: as above; the slot is this thread's.
                let natural = !unsafe { slot.push(self.id(), p) };
                if natural {
                    self.free_to_slab(p, Some(slot));
                }
                slots::settle(natural);
            }
            None => self.free_to_slab(p, None),
        }
        purge::tick();
    }

    fn alloc_bulk(self, out: &mut [*mut u8]) -> usize {
        if percpu::on() {
            return percpu::alloc_bulk(&self.0.head, out);
        }
        purge::tick();
        let Some(slot) = SlotRef::get() else {
            for (n, cell) in out.iter_mut().enumerate() {
                match self.alloc_slow() {
                    p if p.is_null() => return n,
                    p => *cell = p,
                }
            }
            return out.len();
        };
        let n = self.take_bulk(slot, out);
        slots::settle(true);
        n
    }

    unsafe fn free_bulk(self, objects: &[*mut u8]) {
        if percpu::on() {
            // SAFETY: promised by the caller.
            return unsafe { percpu::free_bulk(self, &self.0.head, objects) };
        }
        match SlotRef::get() {
            Some(slot) => {
                // SAFETY: promised by the caller.
                unsafe { self.give_bulk(slot, objects) };
                slots::settle(true);
            }
            None => {
                for p in objects.iter().filter_map(|p| NonNull::new(*p)) {
                    // SAFETY: promised by the caller.
                    unsafe { self.free(p) };
                }
            }
        }
        purge::tick();
    }

    fn shrink(self) -> usize {
        percpu::shrink(&self.0.head);
        if let Some(slot) = SlotRef::existing() {
            self.drain(slot);
        }
        self.discard_empty()
    }

    fn discard_gaps(self, quiet: bool) -> usize {
        // Free objects of other slabs hold their links.
        if quiet { self.quieten() } else { 0 }
    }

    fn validate(self) -> Result<(), Corruption> {
        self.check()
    }

    fn info(self) -> CacheInfo {
        self.snapshot()
    }

    fn destroy(self) -> Result<(), DestroyError> {
        self.end()
    }
}
