//! Expiry: what lies idle in queues goes back to the slabs; and the walks over slots.
//!
//! ```text
//!   every 2 s a slot:   its own queues, if untouched: a batch
//!                       the alien queues of its LLC
//!   every 4 s an LLC:   the shared queue, if untouched: a batch
//! ```
//! There is no timer: slow paths look at the coarse clock. A thread that comes to none
//! keeps what it has, until it ends: another one's trim empties the shared and the alien
//! queues, but not its own.
//!
//! Expiry walks all caches, and so does the end of a thread; [`WALK`] keeps a cache from
//! being destroyed under them. It is taken before every other lock of a cache. Fork does
//! not wait for it: a walker holds other locks whenever it moves objects, and the child
//! frees it.

#![deny(unsafe_code)]

use core::sync::atomic::Ordering::Relaxed;

use page_alloc::os;
use page_alloc::sync::Lock;
use slab_api::interval::Interval;
use slab_api::registry;

use super::cache::{self, UnifiedV4, bump};
use super::llc::LLCS;
use super::slot::SlotRef;

/// Held by who walks caches that it does not use, and by who destroys one.
pub(crate) static WALK: Lock<()> = Lock::new(());

static INTERVAL: Interval = Interval::new(2000);

/// Sets after how many milliseconds a slot's untouched queues expire; shared ones take
/// twice as long. 2000 at first. For tests and experiments; takes effect as each slot's
/// present interval ends.
pub fn set_expiry_interval(ms: u64) {
    INTERVAL.set(ms);
}

/// Lets the calling thread's slot expire when that is due. Ends a slow path.
#[inline]
pub(crate) fn tick(slot: SlotRef) {
    let now = os::now_ms();
    if INTERVAL.is_due(slot.next_expiry(), now, slot.number()) {
        expire(slot, now);
    }
}

#[cold]
fn expire(slot: SlotRef, now: u64) {
    // Who finds it taken comes back with its next slow path.
    let Some(_walk) = WALK.try_lock() else {
        return;
    };
    let interval = INTERVAL.ms();
    slot.next_expiry().store(now + interval, Relaxed);
    registry::for_each(|head| {
        if let Some(cache) = cache::of(head) {
            bump(&cache.counters().expire);
            cache.expire_queue(slot);
            cache.drain_aliens(slot.llc());
            cache.expire_shared(slot.llc(), now, interval * 2);
        }
    });
}

/// Gives everything that a slot holds to the slabs.
pub(crate) fn drain_slot(slot: SlotRef) {
    let _walk = WALK.lock();
    for id in 1..=slot.max_id() {
        if slot.has_queue(id)
            && let Some(cache) = registry::get(id).and_then(cache::of)
        {
            cache.drain(slot);
        }
    }
}

impl UnifiedV4 {
    /// Takes a batch out of a queue that was not used lately, and the memory of one that
    /// has become empty so.
    fn expire_queue(self, slot: SlotRef) {
        let id = self.id_of();
        if !slot.has_queue(id) || slot.was_touched(id) {
            return;
        }
        self.drain_some(slot, self.0.batch);
        if slot.held(id) == 0 {
            slot.delete_queue(id);
        }
        slot.note_seen(id);
    }

    /// The shared queue's turn, if that is due.
    fn expire_shared(self, llc: usize, now: u64, interval: u64) {
        {
            let mut shared = self.0.shared[llc % LLCS].lock();
            if now < shared.next_expiry {
                return;
            }
            shared.next_expiry = now + interval;
            if core::mem::take(&mut shared.touched) {
                return;
            }
        }
        self.drain_shared(llc, self.0.batch);
        // Not used: only emptied.
        self.0.shared[llc % LLCS].lock().touched = false;
    }
}
