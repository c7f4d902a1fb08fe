//! Many objects at a time.
//!
//! ```text
//!   free_bulk:  a b a c a b ...    objects as given
//!               a a a | b b | c    sorted into up to four open runs, each linked
//!                 one exchange a run
//! ```

use page_alloc::granule;

use super::free::Run;
use super::*;

/// Runs that are open at a time: neighbours in a batch are mostly of few slabs.
const RUNS: usize = 4;

impl Slub {
    /// Fills `out` from the slot: list after list, without a look at the clock or the
    /// thread's slot pointer in between. Returns how many.
    pub(super) fn take_bulk(self, slot: SlotRef, out: &mut [*mut u8]) -> usize {
        let id = self.id();
        for (n, cell) in out.iter_mut().enumerate() {
            // SAFETY: the slot is this thread's.
            let mut p = unsafe { slot.pop(id) };
            if p.is_null() {
                p = self.refill(slot);
            }
            if p.is_null() {
                return n;
            }
            // SAFETY: an object of a slab, in an arena, that is now ours.
            *cell = unsafe { checks::taken(p, id) };
        }
        out.len()
    }

    /// Frees objects, those of a slab together. What is no object in use is reported.
    ///
    /// # Safety
    /// As [`ObjectCache::free_bulk`].
    pub(super) unsafe fn give_bulk(self, slot: SlotRef, objects: &[*mut u8]) {
        let (id, shape) = (self.id(), self.shape());
        let byte = granule::byte_of(id);
        let mut runs: [Option<Run>; RUNS] = [None; RUNS];
        let mut next = 0;
        for p in objects {
            let sound = byte != granule::EXTENDED;
            let mark = granule::cell(*p).filter(|m| sound && m.load(Relaxed) == byte);
            let Some(mark) = mark else {
                if let Some(p) = NonNull::new(*p) {
                    // SAFETY: promised by the caller; reports what is no object in use.
                    unsafe { self.free(p) };
                }
                continue;
            };
            // Twice in one call is caught too.
            checks::freed(mark);
            // SAFETY: an object in use, by its mark; the slot is this thread's.
            if unsafe { slot.push(id, *p) } {
                continue;
            }
            let Some((head, distance)) = shape.slab_of(*p) else {
                continue;
            };
            slots::count(&slot.cold(id).free_slow);
            let here = List::at(distance);
            let open = runs
                .iter_mut()
                .flatten()
                .find(|run| ptr::eq(run.head, head));
            if let Some(run) = open {
                let key = slab::key_of(slab::base(head) as usize);
                // SAFETY: an object of the slab that is ours.
                unsafe { slab::set_next(*p, shape.offset, key, run.first.0) };
                run.first = here;
                run.count += 1;
                continue;
            }
            if let Some(run) = runs[next].take() {
                self.end_run(run, slot);
            }
            runs[next] = Some(Run {
                head,
                first: here,
                last: *p,
                count: 1,
            });
            next = (next + 1) % RUNS;
        }
        for run in runs.into_iter().flatten() {
            self.end_run(run, slot);
        }
    }

    fn end_run(self, run: Run, slot: SlotRef) {
        bump(&self.0.counters.bulk_free);
        self.free_run(run, slab::base(run.head), Some(slot));
    }
}
