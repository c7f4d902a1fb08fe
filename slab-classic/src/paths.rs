//! The slow paths: refill, flush, growth, and objects of other nodes.
//!
//! ```text
//!   alloc:  array -> (refill) shared array -> partial -> free slabs -> a new slab
//!   free:   array -> (flush)  shared array -> slabs     remote: alien array
//! ```

use core::sync::atomic::Ordering::Relaxed;

use page_alloc::topology::MAX_NODES;
use page_alloc::{PageRef, page_of, topology};
use slab_api::{checks, growth, guard};

use crate::array::{self, Source, View};
use crate::cache::{Classic, bump};
use crate::node::{ALIEN_LIMIT, NodeLevel};
use crate::slab::{self, NONE};
use crate::slot::SlotRef;

/// Objects of a thread's first array.
const FIRST_LIMIT: usize = 15;
/// Misses of an array below the cache's limit before it is replaced by a larger one.
const GROW_AFTER: u8 = 4;
/// What an array that was not used lately is refilled by, at most.
const COLD_BATCH: usize = 16;
/// Objects of this many bytes are too large to be queued on suspicion.
const LARGE_STRIDE: u32 = 128;

impl Classic {
    /// Makes a slab that is on no list.
    #[cold]
    fn new_slab(self) -> Option<PageRef> {
        growth::look();
        let geometry = &self.0.geometry;
        let head = guard::alloc_slab(geometry.order, self.0.migratetype, geometry.guard)?;
        let next = self.0.colour_next[head.node() % MAX_NODES].fetch_add(1, Relaxed);
        if !slab::init(geometry, head, self.id_of(), next as usize) {
            guard::free_slab(head, geometry.guard);
            return None;
        }
        if let Some(constructor) = self.0.constructor {
            for index in 0..geometry.objects {
                // SAFETY: an object of the fresh slab, which nobody else has.
                unsafe { constructor(slab::object(geometry, head, index)) };
            }
        }
        if !checks::ON {
            for index in 0..geometry.objects {
                // SAFETY: an object of the fresh slab, which nobody else has.
                unsafe { checks::made(slab::object(geometry, head, index), self.id_of()) };
            }
        }
        bump(&self.0.counters.grow);
        if slab::colour(head) != 0 {
            bump(&self.0.counters.colour_moves);
        }
        Some(head)
    }

    /// Takes up to `out.len()` objects past the slot: of the node, of a new slab, of
    /// other nodes. At least one unless memory is out.
    pub(crate) fn take_past(self, node: usize, out: &mut [*mut u8]) -> usize {
        let mut n = 0;
        let want = out.len();
        let mut view = View::new(out, &mut n);
        let nodes = topology::nodes();
        let mut from = |node, fresh: Option<PageRef>| {
            self.with_level(node, |level| {
                if let Some(head) = fresh {
                    level.add(head);
                }
                array::refill(level, &mut view, want) != Source::Nothing
            })
        };
        let _ = from(node, None)
            || self
                .new_slab()
                .is_some_and(|head| from(head.node(), Some(head)))
            || (1..nodes).any(|i| from((node + i) % nodes, None));
        n
    }

    /// One object past the slot; null without memory.
    pub(crate) fn take_one(self, node: usize) -> *mut u8 {
        let mut out = [NONE];
        self.take_past(node, &mut out);
        out[0]
    }

    /// Gives one object home, past the slot.
    pub(crate) fn give_one(self, p: *mut u8) {
        self.with_level(node_of(p), |level| array::homecoming(level, &[p]));
    }

    /// Gives objects home, past the slot: those of one node under one hold of its lock,
    /// those of other nodes by way of the aliens of `node`.
    pub(crate) fn give_past(self, node: usize, objects: &[*mut u8]) {
        if topology::nodes() == 1 {
            return self.with_level(0, |level| array::homecoming(level, objects));
        }
        for p in objects {
            match node_of(*p) {
                home if home == node => self.give_one(*p),
                home => self.free_alien(node, home, *p),
            }
        }
    }

    /// Makes sure that the slot has an array by the present tunables, and a larger one
    /// than before when it misses often. False without memory.
    fn ready(self, slot: SlotRef) -> bool {
        let id = self.id_of();
        let tunables = self.tunables();
        if slot.has_array(id) && slot.cold(id).epoch.load(Relaxed) != tunables.epoch {
            self.drain(slot);
        }
        let limit = slot.limit(id);
        if limit == 0 {
            slot.cold(id).epoch.store(tunables.epoch, Relaxed);
            return slot.make_array(id, tunables.limit.min(FIRST_LIMIT));
        }
        if limit < tunables.limit {
            let misses = &slot.cold(id).misses;
            misses.store(misses.load(Relaxed).saturating_add(1), Relaxed);
            if misses.load(Relaxed) >= GROW_AFTER
                && slot.make_array(id, tunables.limit.min(2 * limit + 1))
            {
                bump(&self.0.counters.grow_array);
            }
        }
        true
    }

    /// What moves at a time between the slot's array and the node.
    pub(crate) fn batch(self, slot: SlotRef) -> usize {
        let tunables = self.tunables();
        let limit = slot.limit(self.id_of());
        if limit >= tunables.limit {
            tunables.batchcount
        } else {
            tunables.batchcount.min(limit.div_ceil(2))
        }
    }

    /// The array is empty: fills it with a batch, and takes the newest object.
    pub(crate) fn refill(self, slot: SlotRef) -> *mut u8 {
        let id = self.id_of();
        bump(&self.0.counters.refill);
        if !self.ready(slot) {
            return self.take_one(slot.node());
        }
        let mut batch = self.batch(slot);
        if !slot.touch(id) {
            batch = batch.min(COLD_BATCH);
        }
        // A slot's first large objects come one by one: each that is queued keeps memory that
        // nobody else can use while the thread is idle.
        if self.0.head.stride >= LARGE_STRIDE && slot.limit(id) <= FIRST_LIMIT {
            batch = batch.min(usize::from(slot.cold(id).misses.load(Relaxed)) + 1);
        }
        let fill = |level: &mut NodeLevel<'_>| {
            slot.with_array(id, |view| array::refill(level, view, batch))
        };
        match self.with_level(slot.node(), fill) {
            Some(Source::Shared) => bump(&self.0.counters.shared_refill),
            Some(Source::Slabs) => {}
            Some(Source::Nothing) | None => {
                let Some(head) = self.new_slab() else {
                    return self.take_one(slot.node());
                };
                let home = head.node();
                if home != slot.node() {
                    // Memory of the own node is short. An array holds objects of its
                    // own node only, so this one bypasses it.
                    self.with_level(home, |level| level.add(head));
                    return self.take_one(home);
                }
                self.with_level(home, |level| {
                    level.add(head);
                    fill(level);
                });
            }
        }
        slot.pop(id)
    }

    /// Takes an object for which the fast path found no room.
    pub(crate) fn put(self, slot: SlotRef, p: *mut u8) {
        let id = self.id_of();
        if topology::nodes() > 1 {
            let home = node_of(p);
            if home != slot.node() {
                return self.free_alien(slot.node(), home, p);
            }
            if slot.with_array(id, |view| view.push(p)) == Some(true) {
                return;
            }
        }
        if self.ready(slot) && slot.with_array(id, |view| view.push(p)) == Some(true) {
            return;
        }
        self.flush(slot, p);
    }

    /// The array is full: takes its oldest batch out, and puts `p` in.
    fn flush(self, slot: SlotRef, p: *mut u8) {
        let id = self.id_of();
        let batch = self.batch(slot);
        let shared = self.with_level(slot.node(), |level| {
            slot.with_array(id, |view| {
                let shared = array::flush(level, view, batch);
                view.push(p);
                shared
            })
        });
        match shared {
            Some(to_shared) => {
                bump(&self.0.counters.flush);
                if to_shared {
                    bump(&self.0.counters.shared_flush);
                }
            }
            None => self.give_one(p),
        }
    }

    /// Takes an object of another node.
    fn free_alien(self, node: usize, home: usize, p: *mut u8) {
        bump(&self.0.counters.alien_free);
        let Some(aliens) = self.0.aliens else {
            return self.give_one(p);
        };
        let mut leaving = [NONE; ALIEN_LIMIT];
        let n = {
            let mut alien = aliens[node % MAX_NODES][home % MAX_NODES].lock();
            array::put_alien(&mut alien.view(), p, &mut leaving)
        };
        if n > 0 {
            bump(&self.0.counters.alien_drain);
            self.with_level(home, |level| array::homecoming(level, &leaving[..n]));
        }
    }

    /// Sends what slots of `node` hold of another node home.
    pub(crate) fn drain_alien(self, node: usize, home: usize) {
        let Some(aliens) = self.0.aliens else { return };
        let mut leaving = [NONE; ALIEN_LIMIT];
        let n = aliens[node % MAX_NODES][home % MAX_NODES]
            .lock()
            .view()
            .take(&mut leaving);
        if n > 0 {
            bump(&self.0.counters.alien_drain);
            self.with_level(home, |level| array::homecoming(level, &leaving[..n]));
        }
    }

    /// Gives a slot's objects of this cache to the slabs, and its array's memory back.
    pub(crate) fn drain(self, slot: SlotRef) {
        let id = self.id_of();
        self.with_level(slot.node(), |level| {
            slot.with_array(id, |view| array::drain(level, view, usize::MAX))
        });
        slot.delete_array(id);
    }

    /// Gives what the nodes' arrays hold to the slabs.
    pub(crate) fn drain_nodes(self) {
        for node in 0..MAX_NODES {
            for home in 0..MAX_NODES {
                self.drain_alien(node, home);
            }
        }
        for node in 0..MAX_NODES {
            self.with_level(node, |level| level.drain_shared(level.node.shared.limit));
        }
    }

    /// Objects that alien arrays hold.
    pub(crate) fn in_aliens(self) -> usize {
        let all = self.0.aliens.iter().flat_map(|a| a.iter().flatten());
        all.map(|alien| alien.lock().view().avail()).sum()
    }

    pub(crate) fn slabs(self) -> usize {
        self.0.nodes.iter().map(|node| node.lock().slabs).sum()
    }

    /// Marks an object that leaves for a user.
    #[inline(always)]
    pub(crate) fn mark(self, p: *mut u8) -> *mut u8 {
        // SAFETY: an object of a slab, in an arena, that is now ours.
        unsafe { checks::taken(p, self.id_of()) }
    }
}

/// The node whose memory an object is.
fn node_of(p: *mut u8) -> usize {
    page_of(p).map_or(0, |page| page.node())
}
