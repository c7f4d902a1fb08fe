//! The slow paths: refill, flush, growth, and objects of other nodes.
//!
//! ```text
//!   alloc:  queue -> (refill) shared queue -> runs of partial slabs -> a new slab
//!   free:   queue -> (flush)  shared queue -> slabs, one by one     remote: alien queue
//! ```

#![deny(unsafe_code)]

use page_alloc::topology::MAX_NODES;
use page_alloc::{PageRef, page_of, topology};
use slab_api::guard;

use super::cache::{UnifiedV4, bump};
use super::llc::{self, LLCS};
use super::queue::{self, Behind, Queue, Slabs, Source};
use super::slab;
use super::slot::SlotRef;

/// What lies behind the queues of an LLC's slots: its shared queue, its node's slabs.
#[derive(Clone, Copy)]
struct Back {
    cache: UnifiedV4,
    llc: usize,
    node: usize,
}

impl Behind<*mut u8> for Back {
    fn with_shared<R>(
        &self,
        make: bool,
        f: impl FnOnce(&mut Queue<'_, *mut u8>) -> R,
    ) -> Option<R> {
        let mut shared = self.cache.0.shared[self.llc % LLCS].lock();
        shared.touched = true;
        shared.queue(make).map(|mut queue| f(&mut queue))
    }

    fn with_slabs<R>(&self, f: impl FnOnce(&mut dyn Slabs<*mut u8>) -> R) -> R {
        self.cache.with_level(self.node, |level| f(level))
    }
}

impl UnifiedV4 {
    fn behind(self, slot: SlotRef) -> Back {
        Back {
            cache: self,
            llc: slot.llc(),
            node: slot.node(),
        }
    }

    fn behind_llc(self, llc: usize) -> Back {
        Back {
            cache: self,
            llc,
            node: llc::node_of(llc),
        }
    }

    /// Makes a slab that is on no list.
    #[cold]
    fn new_slab(self) -> Option<PageRef> {
        let geometry = &self.0.geometry;
        let head = guard::alloc_slab(geometry.order, self.0.migratetype, geometry.guard)?;
        slab::init(geometry, head, self.id_of());
        self.prepare(head);
        bump(&self.0.counters.new_slab);
        Some(head)
    }

    /// Takes runs of objects past the queues until `out` is full: of the node, of a new
    /// slab, of other nodes. How many; at least one unless memory is out.
    pub(crate) fn take_past(self, node: usize, out: &mut [*mut u8]) -> usize {
        let mut from = |node, fresh: Option<PageRef>| {
            self.with_level(node, |level| {
                if let Some(head) = fresh {
                    level.add(head);
                }
                level.take_run(out)
            })
        };
        match from(node, None) {
            0 => {}
            n => return n,
        }
        if let Some(head) = self.new_slab() {
            match from(head.node(), Some(head)) {
                0 => {}
                n => return n,
            }
        }
        (1..topology::nodes())
            .map(|i| from((node + i) % MAX_NODES, None))
            .find(|n| *n > 0)
            .unwrap_or(0)
    }

    /// One object past the queues; null without memory.
    pub(crate) fn take_one(self, node: usize) -> *mut u8 {
        let mut out = [core::ptr::null_mut()];
        self.take_past(node, &mut out);
        out[0]
    }

    /// Gives one object home, past the queues.
    pub(crate) fn give_one(self, p: *mut u8) {
        self.with_level(node_of(p), |level| level.put(p));
    }

    /// Makes sure that the slot has a queue. False without memory.
    fn ready(self, slot: SlotRef) -> bool {
        slot.has_queue(self.id_of()) || slot.make_queue(self.id_of(), self.0.max)
    }

    /// The queue is empty: fills it with a batch, and takes the newest object.
    pub(crate) fn refill(self, slot: SlotRef) -> *mut u8 {
        let id = self.id_of();
        bump(&self.0.counters.refill);
        if !self.ready(slot) {
            return self.take_one(slot.node());
        }
        slot.touch(id);
        let behind = self.behind(slot);
        let batch = self.0.batch;
        match slot.with_queue(id, |queue| queue::refill(&behind, queue, batch)) {
            Some(Source::Shared) => bump(&self.0.counters.shared_refill),
            Some(Source::Slabs) => {}
            Some(Source::Nothing) | None => {
                let Some(head) = self.new_slab() else {
                    return self.take_one(slot.node());
                };
                let home = head.node();
                if home != slot.node() {
                    // Memory of the own node is short. A queue holds objects of its own
                    // node only, so this one bypasses it.
                    self.with_level(home, |level| level.add(head));
                    return self.take_one(home);
                }
                self.with_level(home, |level| {
                    level.add(head);
                    slot.with_queue(id, |queue| queue::take(level, queue, batch));
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
                return self.free_alien(slot.llc(), home, p);
            }
        }
        if !self.ready(slot) {
            return self.give_one(p);
        }
        let behind = self.behind(slot);
        let flushed = slot.with_queue(id, |queue| {
            if queue.push(p) {
                return None;
            }
            let to_shared = queue::flush(&behind, queue, self.0.batch);
            let fits = queue.push(p);
            debug_assert!(fits, "a flush makes room");
            Some(to_shared)
        });
        match flushed.flatten() {
            None => {}
            Some(to_shared) => {
                bump(&self.0.counters.flush);
                if to_shared {
                    bump(&self.0.counters.shared_flush);
                }
            }
        }
    }

    /// Takes an object of another node.
    fn free_alien(self, llc: usize, home: usize, p: *mut u8) {
        bump(&self.0.counters.alien_free);
        let Some(aliens) = self.0.aliens else {
            return self.give_one(p);
        };
        let behind = Back {
            cache: self,
            llc,
            node: home,
        };
        let mut alien = aliens[llc % LLCS][home % MAX_NODES].lock();
        let drained = alien
            .queue(true)
            .map(|mut queue| queue::put_alien(&behind, &mut queue, p));
        drop(alien);
        match drained {
            Some(false) => {}
            Some(true) => bump(&self.0.counters.alien_drain),
            None => self.give_one(p),
        }
    }

    /// Sends what slots of `llc` hold of other nodes home.
    pub(crate) fn drain_aliens(self, llc: usize) {
        let Some(aliens) = self.0.aliens else { return };
        for (node, alien) in aliens[llc % LLCS].iter().enumerate() {
            let behind = Back {
                cache: self,
                llc,
                node,
            };
            let mut alien = alien.lock();
            let drained = alien
                .queue(false)
                .map_or(0, |mut queue| queue::drain(&behind, &mut queue, usize::MAX));
            if drained > 0 {
                bump(&self.0.counters.alien_drain);
            }
            alien.release();
        }
    }

    /// Gives the `most` oldest objects of a slot's queue to the slabs.
    pub(crate) fn drain_some(self, slot: SlotRef, most: usize) {
        let behind = self.behind(slot);
        slot.with_queue(self.id_of(), |queue| queue::drain(&behind, queue, most));
    }

    /// Gives a slot's objects of this cache to the slabs, and its queue's memory back.
    pub(crate) fn drain(self, slot: SlotRef) {
        self.drain_some(slot, usize::MAX);
        slot.delete_queue(self.id_of());
    }

    /// Gives the `most` oldest objects of an LLC's shared queue to the slabs.
    pub(crate) fn drain_shared(self, llc: usize, most: usize) {
        queue::drain_shared(&self.behind_llc(llc), most);
        self.0.shared[llc % LLCS].lock().release();
    }

    /// Gives what shared and alien queues hold to the slabs, and their memory back.
    pub(crate) fn drain_pools(self) {
        for llc in 0..LLCS {
            self.drain_aliens(llc);
            self.drain_shared(llc, usize::MAX);
        }
    }

    /// Gives the empty slabs back.
    pub(crate) fn free_empty_slabs(self) {
        for node in 0..MAX_NODES {
            self.with_level(node, |level| level.doom_empty());
        }
    }

    /// Objects in shared and alien queues.
    pub(crate) fn in_pools(self) -> usize {
        let aliens = self.0.aliens.iter().flat_map(|a| a.iter().flatten());
        let all = self.0.shared.iter().chain(aliens);
        all.map(|pool| pool.lock().held()).sum()
    }

    pub(crate) fn slabs(self) -> usize {
        self.0.nodes.iter().map(|node| node.lock().slabs).sum()
    }
}

/// The node whose memory an object is.
fn node_of(p: *mut u8) -> usize {
    page_of(p).map_or(0, |page| page.node())
}
