//! The trait's operations: fast paths, creation, snapshots, validation, the end.

use super::*;

impl ObjectCache for Unified {
    const BACKEND: &'static str = "unified";

    fn create(desc: &CacheDesc<'_>) -> Result<Self, CacheError> {
        let (align, stride) = desc.layout()?;
        let guard = guard::bytes(desc);
        let order = slab::order_for(stride, guard);
        let objects = (order.bytes() - guard) / stride;
        let max_level = (0..=MAX_LEVEL)
            .rev()
            .find(|level| {
                let bytes = Magazine::capacity_of_level(*level) * stride;
                // Pages come and go by the dozen: 13 of them are worth more.
                bytes <= MAGAZINE_BYTES || (*level == 1 && stride <= PAGE_SIZE)
            })
            .unwrap_or(0);
        let memory = meta::alloc(Self::record_bytes()).ok_or(CacheError::NoMemory)?;
        let record = memory.cast::<Record>();
        // SAFETY: the memory is large and aligned enough, and ours.
        unsafe {
            record.write(Record {
                head: CacheHead::new(&BACKEND, desc, (align, stride)),
                order,
                objects,
                first_bits: slab::bits_of_head(order.get(), stride, objects),
                guard,
                max_level,
                first_level: AtomicU8::new(0),
                keep_empty: ((16 << 10) >> order.bytes().ilog2()).max(1),
                migratetype: desc.migratetype,
                constructor: desc.constructor,
                depot: Depot::new([const { AtomicU64::new(0) }; 6]),
                counters: Counters::default(),
                nodes: [const {
                    Lock::new(Node {
                        partial: PageList::new(),
                        empty: PageList::new(),
                        quiet: PageList::new(),
                        slabs: 0,
                        free: 0,
                    })
                }; MAX_NODES],
            });
            if registry::register(record.cast()).is_none() {
                meta::free(memory, Self::record_bytes());
                return Err(CacheError::TooMany);
            }
            Ok(Self(record.as_ref()))
        }
    }

    #[inline]
    fn from_id(id: u32) -> Option<Self> {
        let head = registry::get(id)?;
        core::ptr::eq(head.backend, &raw const BACKEND).then(|| of(head))
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
                    expire::tick(slot);
                }
                slots::settle(natural);
                p
            }
            None => self.take_one(topology::current_node()),
        };
        if !p.is_null() {
            // SAFETY: an object of a slab, in an arena, that is now ours.
            return unsafe { checks::taken(p, id) };
        }
        p
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
        // A thread on its way out gets no new slot for a late free.
        let slot = if slot::has_exited() {
            None
        } else {
            SlotRef::get()
        };
        match slot {
            Some(slot) => {
                let natural = !slot.push(self.id(), p);
                if natural {
                    self.flush(slot, p);
                    self.keep_budget(slot);
                    expire::tick(slot);
                }
                slots::settle(natural);
            }
            None => self.give(&[p], topology::current_node()),
        }
        purge::tick();
    }

    fn alloc_bulk(self, out: &mut [*mut u8]) -> usize {
        if percpu::on() {
            return percpu::alloc_bulk(&self.0.head, out);
        }
        let id = self.id();
        let mut got = 0;
        while got < out.len() {
            let rest = &mut out[got..];
            let mut n = slots::pop_many(id, rest);
            // More than a magazine goes past it.
            if n == 0 && rest.len() > MAX_CAPACITY && self.0.depot.full_count() == 0 {
                purge::tick();
                n = self.take_objects(topology::current_node(), 0, rest);
            }
            if n == 0 {
                let p = self.alloc_slow();
                if p.is_null() {
                    break;
                }
                rest[0] = p;
                got += 1;
                continue;
            }
            for p in &rest[..n] {
                // SAFETY: an object of a slab, in an arena, that is now ours.
                unsafe { checks::taken(*p, id) };
            }
            got += n;
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
        let mut rest = objects;
        while let Some((first, others)) = rest.split_first() {
            // As far as there is room, and nothing is wrong with them.
            let valid = |p: &&*mut u8| checks::freed_if_in_use(**p, byte);
            let n = rest.iter().take(slots::room(id)).take_while(valid).count();
            // SAFETY: no more than there was room for.
            unsafe { slots::push_many(id, &rest[..n]) };
            rest = &rest[n..];
            if n == 0 {
                if let Some(p) = NonNull::new(*first) {
                    // SAFETY: promised by the caller.
                    unsafe { self.free(p) };
                }
                rest = others;
            }
        }
    }

    fn shrink(self) -> usize {
        percpu::shrink(&self.0.head);
        if let Some(slot) = SlotRef::existing() {
            self.drain(slot);
        }
        self.drain_depot();
        self.free_empty_slabs()
    }

    fn discard_gaps(self, quiet: bool) -> usize {
        self.quieten(quiet)
    }

    fn validate(self) -> Result<(), Corruption> {
        let wrong = |what, head: PageRef| Corruption {
            what,
            address: head.address() as usize,
        };
        for node in &self.0.nodes {
            let node = node.lock();
            let mut free = 0;
            for (list, empty, quiet) in [
                (&node.partial, false, false),
                (&node.empty, true, false),
                (&node.quiet, false, true),
            ] {
                for head in list.iter() {
                    if sparse::is_quiet(head) != quiet {
                        return Err(wrong("a quiet slab on another list, or the reverse", head));
                    }
                    let count = slab::free_objects(head);
                    let mut bits = 0;
                    let stride = self.0.head.stride as usize;
                    let mut stray = slab::has_stray_bit(head, stride);
                    slab::for_each_free(head, stride, |p| {
                        bits += 1;
                        stray |= granule::cell(p).is_none_or(|m| m.load(Relaxed) != 0);
                    });
                    if head.cache() != self.id() {
                        return Err(wrong("a slab of another cache on the list", head));
                    }
                    if bits != count {
                        return Err(wrong("free objects and the slab's count differ", head));
                    }
                    if stray {
                        return Err(wrong("a free bit where no free object starts", head));
                    }
                    if (count == slab::objects(head)) != empty || count == 0 {
                        return Err(wrong("a slab on the wrong list", head));
                    }
                    free += count;
                }
            }
            if free != node.free {
                return Err(Corruption {
                    what: "free objects of the node miscounted",
                    address: 0,
                });
            }
        }
        Ok(())
    }

    fn info(self) -> CacheInfo {
        let Record {
            head,
            order,
            objects,
            counters: c,
            ..
        } = self.0;
        let mut info = CacheInfo::new(
            head.size as usize,
            head.stride as usize,
            *objects,
            order.get(),
        );
        let mut free = 0;
        let mut empty = 0;
        for node in &self.0.nodes {
            let node = node.lock();
            info.slabs += node.slabs;
            free += node.free;
            empty += node.empty.len();
        }
        slots::for_each(|slot| info.queued += slot.queued(self.id()));
        info.queued += percpu::queued(self.id());
        let capacity = Magazine::capacity_of_level(self.0.max_level);
        info.queued += self.0.depot.full_count() as usize * capacity;
        info.active_slabs = info.slabs - empty;
        info.in_use = (info.slabs * objects).saturating_sub(free + info.queued);
        info.tunables = (capacity, capacity, self.depot_limit() as usize);
        let counters = [
            ("spare_swap", &c.spare_swap),
            ("depot_get", &c.depot_get),
            ("depot_put", &c.depot_put),
            ("refill", &c.refill),
            ("flush", &c.flush),
            ("whole_slab_take", &c.whole_slab_take),
            ("alien_flush", &c.alien_flush),
            ("new_slab", &c.new_slab),
            ("discard_slab", &c.discard_slab),
            ("grow_queue", &c.grow_queue),
            ("trim_depot", &c.trim_depot),
            ("expire", &c.expire),
        ];
        for (cell, (name, value)) in info.counters.iter_mut().zip(counters) {
            *cell = (name, value.load(Relaxed));
        }
        info
    }

    fn destroy(self) -> Result<(), DestroyError> {
        // By the contract no thread is using the cache: its objects in their slots
        // can be taken from here.
        let _slots = registry::slots_lock();
        slots::for_each(|slot| self.drain(slot));
        percpu::end(&self.0.head);
        self.drain_depot();
        let in_use = self.info().in_use;
        if in_use > 0 {
            return Err(DestroyError::Busy(in_use));
        }
        self.free_empty_slabs();
        registry::unregister(self.id());
        // SAFETY: unregistered and unused: nobody refers to the record any more.
        unsafe {
            meta::free(NonNull::from(self.0).cast(), Self::record_bytes());
        }
        Ok(())
    }
}

impl Unified {
    /// Sees to it, now and then, that the slot keeps to its budget.
    #[inline]
    fn keep_budget(self, slot: SlotRef) {
        if slot.ledger().is_due() {
            let mine = |head: &CacheHead| core::ptr::eq(head.backend, &raw const BACKEND);
            slot.ledger().keep(
                slot.budget(),
                self.id(),
                |head| slot.queued(head.id) * head.stride as usize,
                |head| {
                    if mine(head) {
                        of(head).drain(slot);
                    }
                },
            );
        }
    }
}
