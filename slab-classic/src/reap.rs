//! Reaping: what lies idle goes back, little by little; and the walks over slots.
//!
//! ```text
//!   every 2 s a slot:  one alien array of its node
//!                      its own array, if untouched: a fifth of the limit
//!   every 4 s a node:  the shared array likewise
//!                      empty slabs, if none was used: a fifth of the free limit
//! ```
//! There is no timer: slow paths look at the coarse clock. Slots are staggered, so
//! that threads do not reap at the same moment.
//!
//! A reap walks all caches, and so does the end of a thread; [`WALK`] keeps a cache
//! from being destroyed under them. It is taken before a node's lock. Fork does not
//! wait for it: a walker holds the nodes' locks whenever it moves objects, and the
//! child frees it.

#![deny(unsafe_code)]

use core::sync::atomic::Ordering::Relaxed;

use page_alloc::sync::Lock;
use page_alloc::{os, topology};
use slab_api::interval::Interval;
use slab_api::registry;

use crate::array;
use crate::cache::{self, Classic, bump};
use crate::slot::SlotRef;

/// Held by who walks caches that it does not use, and by who destroys one.
pub(crate) static WALK: Lock<()> = Lock::new(());

static INTERVAL: Interval = Interval::new(2000);

/// Sets how often a slot is reaped, in milliseconds; a node is reaped half as often.
/// 2000 at first, as in the kernel. For tests and experiments; takes effect as each
/// slot's present interval ends.
pub fn set_reap_interval(ms: u64) {
    INTERVAL.set(ms);
}

/// Reaps the calling thread's slot when that is due. Ends a slow path.
#[inline]
pub(crate) fn tick(slot: SlotRef) {
    let now = os::now_ms();
    if INTERVAL.is_due(slot.next_reap(), now, slot.number()) {
        reap(slot, now);
    }
}

#[cold]
fn reap(slot: SlotRef, now: u64) {
    // Who finds it taken comes back with its next slow path.
    let Some(_walk) = WALK.try_lock() else {
        return;
    };
    let interval = INTERVAL.ms();
    slot.next_reap().store(now + interval, Relaxed);
    let nodes = topology::nodes();
    let remote = (slot.reap_node().load(Relaxed) as usize + 1) % nodes;
    slot.reap_node().store(remote as u32, Relaxed);
    registry::for_each(|head| {
        if let Some(cache) = cache::of(head) {
            bump(&cache.counters().reap);
            if remote != slot.node() {
                cache.drain_alien(slot.node(), remote);
            }
            cache.reap_array(slot);
            cache.reap_node(slot.node(), now, interval * 2);
        }
    });
}

/// Gives everything that a slot holds to the slabs.
pub(crate) fn drain_slot(slot: SlotRef) {
    let _walk = WALK.lock();
    for id in 1..=slot.max_id() {
        if slot.has_array(id)
            && let Some(cache) = registry::get(id).and_then(cache::of)
        {
            cache.drain(slot);
        }
    }
}

impl Classic {
    /// Sees to it, now and then, that the slot keeps to its budget.
    #[inline]
    pub(crate) fn keep_budget(self, slot: SlotRef) {
        if slot.ledger().is_due() {
            slot.ledger().keep(
                slot.budget(),
                self.id_of(),
                |head| slot.avail(head.id) * head.stride as usize,
                |head| {
                    if let Some(cache) = cache::of(head) {
                        cache.drain(slot);
                    }
                },
            );
        }
    }

    /// Takes a fifth of an array that was not used since the last reap, and the
    /// memory of one that has become empty so.
    fn reap_array(self, slot: SlotRef) {
        let id = self.id_of();
        if !slot.has_array(id) || slot.was_touched(id) {
            return;
        }
        let limit = slot.limit(id);
        let left = self.with_level(slot.node(), |level| {
            slot.with_array(id, |view| {
                let n = array::reap_count(limit, view.avail());
                array::drain(level, view, n);
                view.avail()
            })
        });
        if left == Some(0) {
            slot.delete_array(id);
        }
        slot.note_seen(id);
    }

    /// The nodes' parts of a reap, as far as they are due, and the aliens: for slots that
    /// are CPUs, which have no arrays of their own here.
    pub(crate) fn reap_past(self) {
        let (now, interval) = (os::now_ms(), INTERVAL.ms());
        let nodes = topology::nodes();
        for node in 0..nodes {
            (0..nodes).for_each(|home| self.drain_alien(node, home));
            self.reap_node(node, now, interval * 2);
        }
    }

    /// The node's part of a reap, if that is due.
    fn reap_node(self, node: usize, now: u64, interval: u64) {
        let due = self.next_node_reap(node);
        if now < due.load(Relaxed) {
            return;
        }
        due.store(now + interval, Relaxed);
        let objects = self.geometry().objects;
        self.with_level(node, |level| {
            level.reap_shared();
            if level.node.free_touched {
                level.node.free_touched = false;
            } else {
                let count = level.node.free_limit.div_ceil(5 * objects);
                level.doom(count);
            }
        });
    }
}
