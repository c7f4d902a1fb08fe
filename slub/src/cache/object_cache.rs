//! The trait's operations: fast paths, creation, snapshots, validation, the end.

use super::*;

impl ObjectCache for Slub {
    const BACKEND: &'static str = "slub";

    fn create(desc: &CacheDesc<'_>) -> Result<Self, CacheError> {
        slab::init_secret();
        let (align, mut stride) = desc.layout()?;
        let mut offset = (stride / 2) & !7;
        if desc.constructor.is_some() {
            // Constructed objects keep their content: the link goes behind.
            offset = desc.size.next_multiple_of(8);
            stride = (offset + 8).next_multiple_of(align);
        }
        if stride > MAX_OBJECT * 2 {
            return Err(CacheError::Size);
        }
        let guard = guard::bytes(desc);
        let order = slab::order_for(stride, guard);
        let objects = ((order.bytes() - guard) / stride) as u16;
        let cpu_partial_objects = match stride {
            4096.. => 6,
            1024.. => 24,
            256.. => 52,
            _ => 120,
        };
        let memory = meta::alloc(size_of::<Record>()).ok_or(CacheError::NoMemory)?;
        let record = memory.cast::<Record>();
        // SAFETY: the memory is large and aligned enough, and ours.
        unsafe {
            record.write(Record {
                head: CacheHead::new(&BACKEND, desc, (align, stride)),
                shape: Shape {
                    stride,
                    offset,
                    order,
                    objects,
                    guard,
                },
                min_partial: (stride.ilog2() as usize / 2).clamp(5, 10),
                cpu_partial: (2 * cpu_partial_objects / usize::from(objects)).clamp(8, 30),
                migratetype: desc.migratetype,
                constructor: desc.constructor,
                slabs: AtomicUsize::new(0),
                counters: Counters::default(),
                nodes: [const {
                    Lock::new(Node {
                        partial: PageList::new(),
                    })
                }; MAX_NODES],
            });
            if registry::register(record.cast()).is_none() {
                meta::free(memory, size_of::<Record>());
                return Err(CacheError::TooMany);
            }
            Ok(Self(record.as_ref()))
        }
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
            return unsafe { granule::mark(p, granule::byte_of(id)) };
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
                // An armed slot's list may well have objects: `refill` sees to both.
                let natural = slot.hot(id).slab().is_none_or(|(_, list)| list.is_null());
                let p = self.refill(slot);
                slots::settle(natural);
                p
            }
            None => self.take_one(),
        };
        if !p.is_null() {
            // SAFETY: an object of a slab, in an arena, that is now ours.
            return unsafe { granule::mark(p, granule::byte_of(id)) };
        }
        p
    }

    #[inline(always)]
    unsafe fn try_free(id: u32, p: *mut u8, mark: &AtomicU8) -> bool {
        // SAFETY: promised by the caller.
        if unsafe { slots::push(id, p) } {
            mark.store(0, Relaxed);
            return true;
        }
        false
    }

    #[cold]
    #[inline(never)]
    unsafe fn free_slow(self, p: *mut u8) {
        // SAFETY: an object in use, by the caller's promise.
        unsafe { granule::cell_of_object(p) }.store(0, Relaxed);
        let slot = if slot::has_exited() {
            None
        } else {
            SlotRef::get()
        };
        match slot {
            Some(slot) => {
                // SAFETY: as above; the slot is this thread's.
                let natural = !unsafe { slot.push(self.id(), p) };
                if natural {
                    self.free_to_slab(p, Some(slot));
                } else {
                    bump(&self.0.counters.free_frozen);
                }
                slots::settle(natural);
            }
            None => self.free_to_slab(p, None),
        }
        purge::tick();
    }

    fn shrink(self) -> usize {
        if let Some(slot) = SlotRef::existing() {
            self.drain(slot);
        }
        self.discard_empty()
    }

    fn validate(self) -> Result<(), Corruption> {
        let shape = self.shape();
        let wrong = |what, head: PageRef| Corruption {
            what,
            address: head.address() as usize,
        };
        for node in &self.0.nodes {
            let list = node.lock();
            for head in list.partial.iter() {
                let state = word::load(&head.word);
                if head.cache() != self.id() {
                    return Err(wrong("a slab of another cache on the list", head));
                }
                if state.frozen || state.head == 0 || head.private[1].load(Relaxed) != LISTED {
                    return Err(wrong("a slab on the wrong list", head));
                }
                let mut stray = false;
                let first = slab::object_at(head, state.head);
                // SAFETY: nobody uses the cache meanwhile, by the contract.
                let walked = unsafe {
                    shape.walk(head, first, |p| {
                        stray |= granule::cell(p).is_none_or(|m| m.load(Relaxed) != 0);
                    })
                };
                match walked {
                    None => return Err(wrong("a freelist leads out of its slab", head)),
                    Some((_, n)) if n + state.inuse != shape.objects => {
                        return Err(wrong("free objects and the slab's count differ", head));
                    }
                    Some(_) if stray => return Err(wrong("an object in use on a freelist", head)),
                    Some(_) => {}
                }
            }
        }
        Ok(())
    }

    fn info(self) -> CacheInfo {
        let Record {
            head,
            shape,
            counters: c,
            ..
        } = self.0;
        let total = usize::from(shape.objects);
        let mut info = CacheInfo::new(head.size as usize, shape.stride, total, shape.order.get());
        info.slabs = self.0.slabs.load(Relaxed);
        let mut free = 0;
        let mut empty = 0;
        for node in &self.0.nodes {
            let list = node.lock();
            for head in list.partial.iter() {
                let inuse = usize::from(word::load(&head.word).inuse);
                free += total - inuse;
                empty += usize::from(inuse == 0);
            }
        }
        slots::for_each(|slot| {
            let hot = slot.hot(self.id());
            if let Some((head, list)) = hot.slab() {
                // SAFETY: exact at quiescence, which is all that is promised; links
                // that change meanwhile end the walk.
                let on_list = unsafe { shape.walk(head, list, |_| {}) }.map_or(0, |(_, n)| n);
                info.queued += usize::from(on_list) + total - usize::from(shape.linked(head));
                info.queued += total - usize::from(word::load(&head.word).inuse);
            }
            for head in slot.cold(self.id()).iter() {
                info.queued += total - usize::from(word::load(&head.word).inuse);
            }
        });
        info.active_slabs = info.slabs.saturating_sub(empty);
        info.in_use = (info.slabs * total).saturating_sub(free + info.queued);
        let counters = [
            ("cpu_slab_refill", &c.cpu_slab_refill),
            ("deactivate_cpu_slab", &c.deactivate_cpu_slab),
            ("cpu_partial_alloc", &c.cpu_partial_alloc),
            ("cpu_partial_free", &c.cpu_partial_free),
            ("cpu_partial_drain", &c.cpu_partial_drain),
            ("node_partial_get", &c.node_partial_get),
            ("remote_node_get", &c.remote_node_get),
            ("free_slow", &c.free_slow),
            ("free_frozen", &c.free_frozen),
            ("new_slab", &c.new_slab),
            ("discard_slab", &c.discard_slab),
        ];
        for (cell, (name, value)) in info.counters.iter_mut().zip(counters) {
            *cell = (name, value.load(Relaxed));
        }
        info
    }

    fn destroy(self) -> Result<(), DestroyError> {
        // By the contract no thread is using the cache: what their slots hold can be
        // taken from here.
        let _slots = registry::slots_lock();
        slots::for_each(|slot| self.drain(slot));
        let in_use = self.info().in_use;
        if in_use > 0 {
            return Err(DestroyError::Busy(in_use));
        }
        self.discard_empty();
        registry::unregister(self.id());
        // SAFETY: unregistered and unused: nobody refers to the record any more.
        unsafe { meta::free(NonNull::from(self.0).cast(), size_of::<Record>()) };
        Ok(())
    }
}
