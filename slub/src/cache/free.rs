//! Frees to other slabs than the CPU slab: one compare-exchange on the slab's word, and
//! no lock unless the slab empties.

use core::sync::atomic::AtomicU8;

use page_alloc::{PageRef, purge, sparse, topology};

use super::*;
use crate::word::Pushed;

/// Objects of one slab, linked: the first, how many, and where a list can be appended.
#[derive(Clone, Copy)]
pub(super) struct Run {
    pub(super) head: PageRef,
    pub(super) first: List,
    pub(super) last: *mut u8,
    pub(super) count: u16,
}

impl Slub {
    /// The fast path found `p` to be of another slab: frees it there, without a detour
    /// by way of the heap's slow path. False, and nothing done, when the slot is not open,
    /// when there is other work to be done on a slow path, or when `id` is not this
    /// backend's.
    ///
    /// # Safety
    /// As [`ObjectCache::try_free`].
    #[inline(never)]
    pub(super) unsafe fn free_elsewhere(id: u32, p: *mut u8, mark: &AtomicU8) -> bool {
        if purge::pending() {
            return false;
        }
        let (Some(slot), Some(cache)) = (SlotRef::open_one(), Self::from_id(id)) else {
            return false;
        };
        checks::freed(mark);
        cache.free_to_slab(p, Some(slot));
        true
    }

    /// Frees one object, whose mark is cleared, to its slab.
    #[inline(always)]
    pub(super) fn free_to_slab(self, p: *mut u8, slot: Option<SlotRef>) {
        let Some((head, distance)) = self.shape().slab_of(p) else {
            return;
        };
        let run = Run {
            head,
            first: List::at(distance),
            last: p,
            count: 1,
        };
        if let Some(slot) = slot {
            slots::count(&slot.cold(self.id()).free_slow);
        } else {
            bump(&self.0.counters.free_slow);
        }
        self.free_run(run, p.wrapping_sub(distance), slot);
    }

    /// Frees the objects of a run, in the slab at `base`, with one exchange.
    #[inline(always)]
    pub(super) fn free_run(self, run: Run, base: *mut u8, slot: Option<SlotRef>) {
        let (offset, key) = (self.shape().offset, slab::key_of(base as usize));
        let link = |old| {
            // SAFETY: the object is ours until the exchange publishes it.
            unsafe { slab::set_next(run.last, offset, key, List::of_name(old).0) };
        };
        match word::push(&run.head.word, run.first.name(), run.count, false, link) {
            Pushed::Done => {}
            Pushed::Froze => self.froze(run.head, slot),
            Pushed::Empty => self.free_last(run, link),
        }
    }

    /// A free found the slab full, and made it this thread's.
    fn froze(self, head: PageRef, slot: Option<SlotRef>) {
        if sparse::is_quiet(head) {
            return self.freed_to_quiet(head);
        }
        if let Some(slot) = slot
            && (topology::nodes() == 1 || slot.node() == head.node())
        {
            let cold = slot.cold(self.id());
            slots::count(&cold.partial_free);
            if cold.push(head) > self.0.tuned.cpu_slabs() {
                self.drain_partial(slot);
            }
            return;
        }
        if slot.is_some() {
            bump(&self.0.counters.remote_node_free);
        }
        self.release(head, List::EMPTY);
    }

    /// Frees what seem to be the last objects in use of a slab on the node's list, and
    /// discards the slab if the node has enough of them. Under the lock, so that nobody
    /// else can discard the slab first and its pages serve another cache.
    #[cold]
    fn free_last(self, run: Run, link: impl FnMut(u16)) {
        let head = run.head;
        let mut node = self.0.nodes[head.node()].lock();
        match word::push(&head.word, run.first.name(), run.count, true, link) {
            // Frozen or taken meanwhile.
            Pushed::Done => {}
            Pushed::Froze => {
                drop(node);
                self.froze(head, None);
            }
            Pushed::Empty => {
                debug_assert_eq!(head.private[1].load(Relaxed), LISTED);
                if node.partial.len() > self.0.tuned.min_partial() {
                    node.partial.remove(head);
                    head.private[1].store(0, Relaxed);
                    drop(node);
                    self.discard(head);
                }
            }
        }
    }
}
