//! Snapshots, and the check of every invariant.

use page_alloc::{PageKind, PageRef, granule, page_of};
use slab_api::{CacheInfo, Corruption};

use super::*;

fn wrong(what: &'static str, head: PageRef) -> Corruption {
    Corruption {
        what,
        address: head.address() as usize,
    }
}

impl Slub {
    /// Objects of a slab's own freelist.
    fn own_free(self, head: PageRef) -> usize {
        usize::from(self.shape().objects(head)).saturating_sub(word::load(&head.word).inuse.into())
    }

    /// Free objects of a slot's CPU slab: on the slot's list, on the slab's own, and not
    /// linked yet.
    fn cpu_slab_free(self, head: PageRef, list: List) -> usize {
        let shape = self.shape();
        // SAFETY: exact at quiescence, which is all that is promised; links that change
        // meanwhile end the walk.
        let on_list = unsafe { shape.walk(head, list, |_| {}) }.map_or(0, |(_, n)| n);
        let unlinked = shape.objects(head).saturating_sub(shape.linked(head));
        usize::from(on_list) + usize::from(unlinked) + self.own_free(head)
    }

    pub(super) fn snapshot(self) -> CacheInfo {
        let Record {
            head,
            shape,
            counters: c,
            ..
        } = self.0;
        let objects = shape.most_objects().into();
        let mut info = CacheInfo::new(head.size as usize, shape.stride, objects, shape.most());
        info.slabs = self.0.slabs.load(Relaxed);
        info.mixed = Some((self.0.pages.load(Relaxed), self.0.objects.load(Relaxed)));
        let (mut free, mut empty) = (0, 0);
        for node in &self.0.nodes {
            let list = node.lock();
            for head in list.partial.iter() {
                free += self.own_free(head);
                empty += usize::from(word::load(&head.word).inuse == 0);
            }
            for head in list.quiet.iter() {
                free += usize::from(self.shape().objects(head)) - quiet::live(head);
            }
        }
        let (mut free_slow, mut partial_free) = (0, 0);
        slots::for_each(|slot| {
            let cold = slot.cold(self.id());
            if let Some(head) = cold.slab() {
                info.queued += self.cpu_slab_free(head, slot.hot(self.id()).list());
            }
            info.queued += cold.iter().map(|head| self.own_free(head)).sum::<usize>();
            free_slow += u64::from(cold.free_slow.load(Relaxed));
            partial_free += u64::from(cold.partial_free.load(Relaxed));
        });
        info.queued += percpu::queued(self.id());
        info.active_slabs = info.slabs.saturating_sub(empty);
        info.in_use = info.objects().saturating_sub(free + info.queued);
        let tunables = self.tunables();
        info.tunables = (tunables.cpu_partial, tunables.min_partial, 0);
        let counters = [
            ("cpu_slab_refill", c.cpu_slab_refill.load(Relaxed)),
            ("deactivate_cpu_slab", c.deactivate_cpu_slab.load(Relaxed)),
            ("cpu_partial_alloc", c.cpu_partial_alloc.load(Relaxed)),
            (
                "cpu_partial_free",
                c.cpu_partial_free.load(Relaxed) + partial_free,
            ),
            ("cpu_partial_drain", c.cpu_partial_drain.load(Relaxed)),
            ("node_partial_get", c.node_partial_get.load(Relaxed)),
            ("remote_node_get", c.remote_node_get.load(Relaxed)),
            ("remote_node_free", c.remote_node_free.load(Relaxed)),
            ("free_slow", c.free_slow.load(Relaxed) + free_slow),
            ("bulk_free", c.bulk_free.load(Relaxed)),
            ("new_slab", c.new_slab.load(Relaxed)),
            ("discard_slab", c.discard_slab.load(Relaxed)),
            ("outgrown", c.outgrown.load(Relaxed)),
            ("merged", c.merged.load(Relaxed)),
            ("aliases", u64::from(self.0.users.load(Relaxed)) - 1),
        ];
        for (cell, counter) in info.counters.iter_mut().zip(counters) {
            *cell = counter;
        }
        info
    }

    /// Checks every slab that is on a list or a slot's; full ones are on none.
    pub(super) fn check(self) -> Result<(), Corruption> {
        // No thread may end meanwhile: it would give slabs from its slot to a node.
        let _slots = registry::slots_lock();
        for node in &self.0.nodes {
            let list = node.lock();
            for head in list.partial.iter() {
                let state = word::load(&head.word);
                let listed = head.private[1].load(Relaxed) == LISTED;
                if state.frozen || state.head == 0 || !listed {
                    return Err(wrong("a slab on the wrong list", head));
                }
                self.check_slab(head, List::EMPTY)?;
            }
            list.quiet
                .iter()
                .try_for_each(|head| self.check_quiet(head))?;
        }
        let mut result = Ok(());
        slots::for_each(|slot| {
            let (hot, cold) = (slot.hot(self.id()), slot.cold(self.id()));
            let mut look = |head: PageRef, list| {
                let state = word::load(&head.word);
                if result.is_err() {
                } else if !state.frozen || head.private[1].load(Relaxed) == LISTED {
                    result = Err(wrong("a slot's slab that is not its own", head));
                } else {
                    result = self.check_slab(head, list);
                }
            };
            if let Some(head) = cold.slab() {
                look(head, hot.list());
            }
            cold.iter().for_each(|head| look(head, List::EMPTY));
        });
        result
    }

    /// Checks one slab of which a slot may hold a list.
    fn check_slab(self, head: PageRef, list: List) -> Result<(), Corruption> {
        let shape = self.shape();
        if head.kind() != PageKind::Slab || slab::base(head) != head.address() {
            return Err(wrong("a slab that is not marked as one", head));
        }
        for n in 0..1usize << head.order() {
            let page = page_of(head.address().wrapping_add(n << page_alloc::PAGE_SHIFT));
            if page.is_none_or(|page| page.cache() != self.id() || !ptr::eq(page.head(), head)) {
                return Err(wrong("a page that does not know its slab", head));
            }
        }
        let state = word::load(&head.word);
        let mut marked = false;
        let mut walk = |list| {
            // SAFETY: nobody uses the cache meanwhile, by the contract.
            let walked = unsafe {
                shape.walk(head, list, |p| {
                    marked |= granule::cell(p).is_none_or(|m| m.load(Relaxed) != 0);
                })
            };
            walked.map(|(_, n)| n)
        };
        let (Some(own), Some(held)) = (walk(List::of_name(state.head)), walk(list)) else {
            return Err(wrong("a freelist leads out of its slab", head));
        };
        if own + state.inuse != shape.objects(head) {
            return Err(wrong("free objects and the slab's count differ", head));
        }
        if marked {
            return Err(wrong("an object in use on a freelist", head));
        }
        let mut in_use = 0;
        for n in 0..usize::from(shape.objects(head)) {
            let p = slab::base(head).wrapping_add(n * shape.stride);
            match granule::cell(p).map_or(0, |mark| mark.load(Relaxed)) {
                0 => {}
                mark if mark == granule::byte_of(self.id()) => in_use += 1,
                _ => return Err(wrong("an object with another cache's mark", head)),
            }
        }
        let unlinked = shape.objects(head) - shape.linked(head);
        // Spoilt lists were cut off: their objects are lost, and count as in use.
        if held + unlinked + in_use > state.inuse {
            return Err(wrong("more objects than the slab has in use", head));
        }
        Ok(())
    }
}
