//! Expiry: what lies idle in queues goes back to the slabs.
//!
//! ```text
//!   every second a slot:  its queue of a cache, if the top did not move since
//!   every second:         the depots, as many magazines as nobody needed since
//! ```
//! There is no timer: slow paths look at the coarse clock. A thread that comes to none
//! keeps its queues until it ends.

#![deny(unsafe_code)]

use page_alloc::os;
use slab_api::interval::Interval;

use super::*;

static INTERVAL: Interval = Interval::new(1000);
/// When the depots are looked at next.
static NEXT_DEPOTS: AtomicU64 = AtomicU64::new(0);

/// Sets how often idle queues are looked for, in milliseconds; 1000 at first. For tests and
/// experiments; takes effect as each present interval ends.
pub fn set_expiry_interval(ms: u64) {
    INTERVAL.set(ms);
}

/// Lets the calling thread's slot expire when that is due. Near the end of a slow path,
/// while nobody's lock is held.
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
    let Some(_slots) = registry::try_slots_lock() else {
        return;
    };
    let interval = INTERVAL.ms();
    slot.next_expiry().store(now + interval, Relaxed);
    // Under the lock: one thread at a time.
    let depots = now >= NEXT_DEPOTS.load(Relaxed);
    if depots {
        NEXT_DEPOTS.store(now + interval, Relaxed);
    }
    registry::for_each(|head| {
        if core::ptr::eq(head.backend, &raw const BACKEND) {
            let cache = of(head);
            if slot.is_untouched(head.id) {
                bump(&cache.0.counters.expire);
                cache.drain(slot);
            }
            if depots {
                cache.expire_depot(slot.node());
            }
        }
    });
}

impl Unified {
    fn expire_depot(self, node: usize) {
        for _ in 0..self.0.depot.idle() {
            if !self.trim_one(node) {
                return;
            }
        }
    }
}
