//! Between a slot's magazines, the depot and the slabs: misses, and giving up what is queued.

#![deny(unsafe_code)]

use super::*;

impl Unified {
    /// A magazine for this slot: from the depot, or new, at the slot's level.
    pub(super) fn empty_magazine(self, slot: SlotRef) -> Option<Magazine> {
        let level = slot.cold(self.id()).level.load(Relaxed);
        if let Some(index) = self.0.depot.take_empty(&MagazineLinks)
            && let Some(magazine) = Magazine::from_index(index)
        {
            if magazine.capacity() >= Magazine::capacity_of_level(level) {
                return Some(magazine);
            }
            magazine.delete();
        }
        Magazine::new(level)
    }

    /// Counts a miss of the queue; the next magazines are larger when it misses
    /// often.
    pub(super) fn note_miss(self, slot: SlotRef) {
        let cold = slot.cold(self.id());
        let misses = cold.misses.load(Relaxed) + 1;
        let level = match (misses, cold.level.load(Relaxed)) {
            (1, 0) if slots::in_use() <= FEW_SLOTS => self.0.first_level.load(Relaxed),
            (_, level) => level,
        };
        cold.level.store(level, Relaxed);
        if misses >= GROW_AFTER && level < self.0.max_level {
            cold.level.store(level + 1, Relaxed);
            cold.misses.store(0, Relaxed);
            bump(&self.0.counters.grow_queue);
        } else {
            cold.misses.store(misses, Relaxed);
        }
    }

    /// The main magazine, replaced by a larger one when the level has moved on. It
    /// must be empty.
    pub(super) fn main_of_level(self, slot: SlotRef, main: Option<Magazine>) -> Option<Magazine> {
        let want = Magazine::capacity_of_level(slot.cold(self.id()).level.load(Relaxed));
        match main {
            Some(main) if main.capacity() >= want => Some(main),
            Some(main) => match self.empty_magazine(slot) {
                Some(larger) => {
                    main.delete();
                    Some(larger)
                }
                None => Some(main),
            },
            None => self.empty_magazine(slot),
        }
    }

    /// The main magazine is empty: swaps it for the spare one, or for a full one of
    /// the depot, or fills it from slabs.
    pub(super) fn refill(self, slot: SlotRef) -> *mut u8 {
        let id = self.id();
        let main = slot.take_main(id);
        if let Some(spare) = slot.take_spare(id) {
            if spare.count() > 0 {
                bump(&self.0.counters.spare_swap);
                slot.set_main(id, spare);
                if let Some(main) = main {
                    slot.set_spare(id, main);
                }
                return slot.pop(id);
            }
            slot.set_spare(id, spare);
        }
        self.note_miss(slot);
        if let Some(index) = self.0.depot.take_full(&MagazineLinks)
            && let Some(full) = Magazine::from_index(index)
        {
            bump(&self.0.counters.depot_get);
            if let Some(main) = main {
                self.0.depot.put_empty(&MagazineLinks, main.index());
            }
            slot.set_main(id, full);
            return slot.pop(id);
        }
        let Some(mut main) = self.main_of_level(slot, main) else {
            return self.take_one(slot.node());
        };
        bump(&self.0.counters.refill);
        let most = self.first_refills(slot);
        let entries = main.entries();
        let most = most.min(entries.len());
        let got = self.take_objects(slot.node(), slot.number(), &mut entries[..most]);
        // Taken from the top: the lowest address comes first.
        entries[..got].reverse();
        main.set_count(got);
        slot.set_main(id, main);
        slot.pop(id)
    }

    /// How many objects a refill takes at most: a slot's first ones of a cache take no more
    /// large objects than it has proved to need, as each keeps memory that nobody else
    /// can use while the thread is idle.
    pub(super) fn first_refills(self, slot: SlotRef) -> usize {
        let cold = slot.cold(self.id());
        if self.0.head.stride < LARGE_STRIDE || cold.level.load(Relaxed) > 0 {
            usize::MAX
        } else {
            cold.misses.load(Relaxed).max(1) as usize
        }
    }

    /// One object from the slabs, without a slot.
    pub(super) fn take_one(self, node: usize) -> *mut u8 {
        let mut out = [core::ptr::null_mut()];
        self.take_objects(node, 0, &mut out);
        out[0]
    }

    /// The main magazine is full: swaps it for the empty spare one, or leaves it in
    /// the depot, or flushes it to the slabs; then takes `p`.
    pub(super) fn flush(self, slot: SlotRef, p: *mut u8) {
        let id = self.id();
        let main = slot.take_main(id);
        if let Some(spare) = slot.take_spare(id) {
            if spare.count() < spare.capacity() {
                bump(&self.0.counters.spare_swap);
                slot.set_main(id, spare);
                if let Some(main) = main {
                    slot.set_spare(id, main);
                }
                slot.push(id, p);
                return;
            }
            // Both are full: the spare one, with the colder objects, leaves.
            self.note_miss(slot);
            if let Some(main) = main {
                slot.set_spare(id, main);
            }
            let next = self.unload(slot, spare);
            slot.set_main(id, next);
            slot.push(id, p);
            return;
        }
        // A second magazine only once one has proved too small.
        self.note_miss(slot);
        if let Some(next) = self.empty_magazine(slot) {
            if let Some(main) = main {
                slot.set_spare(id, main);
            }
            slot.set_main(id, next);
            slot.push(id, p);
        } else {
            if let Some(main) = main {
                slot.set_main(id, main);
            }
            self.give(&[p], slot.node());
        }
    }

    /// Empties a full magazine: whole into the depot if that has room, else object
    /// by object into the slabs. Returns an empty magazine.
    pub(super) fn unload(self, slot: SlotRef, mut full: Magazine) -> Magazine {
        // Only magazines of the last size: whoever trades has proved to need it, and
        // the depot's content follows from its count.
        if full.capacity() == Magazine::capacity_of_level(self.0.max_level)
            && let Some(empty) = self.empty_magazine(slot)
        {
            if self
                .0
                .depot
                .put_full(&MagazineLinks, full.index(), self.depot_limit())
            {
                bump(&self.0.counters.depot_put);
                empty.set_count(0);
                return empty;
            }
            self.0.depot.put_empty(&MagazineLinks, empty.index());
        }
        bump(&self.0.counters.flush);
        let count = full.count();
        self.give(&full.entries()[..count], slot.node());
        full.set_count(0);
        match self.main_of_level(slot, Some(full)) {
            Some(magazine) => {
                magazine.set_count(0);
                magazine
            }
            None => full,
        }
    }

    /// Gives a slot's objects of this cache to the slabs, and its magazines back.
    pub(super) fn drain(self, slot: SlotRef) {
        let id = self.id();
        for mut magazine in [slot.take_main(id), slot.take_spare(id)]
            .into_iter()
            .flatten()
        {
            let count = magazine.count();
            self.give(&magazine.entries()[..count], slot.node());
            magazine.set_count(0);
            magazine.delete();
        }
        slot.cold(id).level.store(0, Relaxed);
        // One, and it begins small.
        slot.cold(id).misses.store(1, Relaxed);
    }

    /// Gives the objects of a full magazine of the depot to the slabs; false when there is
    /// none.
    pub(super) fn trim_one(self, node: usize) -> bool {
        let full = self.0.depot.take_full(&MagazineLinks);
        let Some(mut magazine) = full.and_then(Magazine::from_index) else {
            return false;
        };
        bump(&self.0.counters.trim_depot);
        let count = magazine.count();
        self.give(&magazine.entries()[..count], node);
        magazine.set_count(0);
        magazine.delete();
        true
    }

    pub(super) fn drain_depot(self) {
        while self.trim_one(0) {}
        while let Some(magazine) = self
            .0
            .depot
            .take_empty(&MagazineLinks)
            .and_then(Magazine::from_index)
        {
            magazine.delete();
        }
    }
}
