//! Looking for memory in slabs before the heap grows further.
//!
//! ```text
//!   committed:  32 MiB ... +1/8 ... +1/8 ...      at each step, when a slab is made:
//!   caches:     [ full | full ] [ 1/5 in use ] [ full ]
//!                                ^ its free objects' whole pages lose their memory
//! ```
//! A program whose objects change their sizes leaves a few old ones in many slabs, and
//! the slabs of the new size come on top. A cache that makes slabs has no free objects of
//! its own, so what is idle is in the others: those of which at least half is free give up
//! what waits in queues that threads share, and the pages of nothing but free objects
//! ([`crate::gaps`]). The steps are those of a
//! heap that grows: one that takes and frees the same memory again and again pays nothing.

use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use page_alloc::committed_bytes;

use crate::registry;

/// Bytes of heap below which nothing is looked for.
const FROM: usize = 32 << 20;
/// The least number of bytes from one look to the next.
const STEP: usize = 8 << 20;

/// Bytes of heap at which the next look is due.
static NEXT: AtomicUsize = AtomicUsize::new(FROM);

/// Gives back idle memory in slabs if the heap has grown by an eighth since that was done
/// last. For backends, when they have made a slab; no lock of a cache is held.
#[inline]
pub fn look() {
    let (committed, next) = (committed_bytes(), NEXT.load(Relaxed));
    if committed >= next {
        pass(committed, next);
    }
}

#[cold]
fn pass(committed: usize, seen: usize) {
    let next = committed + (committed / 8).max(STEP);
    if NEXT.compare_exchange(seen, next, Relaxed, Relaxed).is_err() {
        return;
    }
    // Who holds it may be in the middle of this very walk: this step passes.
    let Some(_slots) = registry::try_slots_lock() else {
        return;
    };
    registry::for_each(|head| {
        if !head.keeps_content {
            (head.backend.thin)(head);
        }
    });
}
