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
        let id = self.id();
        let byte = granule::byte_of(id);
        let mut runs = Runs::new(self, Some(slot));
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
            slots::count(&slot.cold(id).free_slow);
            runs.add(*p);
        }
        runs.end();
    }

    /// Gives objects, whose marks are cleared, to their slabs, those of a slab together.
    pub(super) fn give_past(self, objects: &[*mut u8]) {
        let mut runs = Runs::new(self, None);
        objects.iter().for_each(|p| runs.add(*p));
        runs.end();
    }

    /// Takes the freelist of one slab, in one exchange, as far as `out` has places for it;
    /// what is left goes back with the slab. Returns how many.
    pub(super) fn take_past(self, node: usize, out: &mut [*mut u8]) -> usize {
        let shape = self.shape();
        let Some((head, mut list, _)) = self.any_slab(node, None) else {
            return 0;
        };
        let key = slab::key_of(slab::base(head) as usize);
        let mut n = 0;
        while n < out.len() {
            if list.is_empty() {
                if !shape.has_unlinked(head) {
                    break;
                }
                // SAFETY: the slab is frozen for this thread.
                list = unsafe { shape.link_page(head, self.0.shuffle.as_ref()) };
                continue;
            }
            let p = list.first(slab::base(head));
            // SAFETY: the first object of a list that is this thread's.
            let next = List(unsafe { slab::next(p, shape.offset, key) });
            (out[n], n) = (p, n + 1);
            list = if next.is_empty() || shape.is_object(head, next) {
                next
            } else {
                // Its successors are lost.
                misuse::report("a free object was overwritten:", p);
                List::EMPTY
            };
        }
        self.release(head, list);
        n
    }
}

/// Objects on their way to their slabs, sorted into open runs.
struct Runs {
    cache: Slub,
    slot: Option<SlotRef>,
    open: [Option<Run>; RUNS],
    /// The run that ends when another one begins.
    next: usize,
}

impl Runs {
    fn new(cache: Slub, slot: Option<SlotRef>) -> Self {
        Self {
            cache,
            slot,
            open: [None; RUNS],
            next: 0,
        }
    }

    fn add(&mut self, p: *mut u8) {
        let shape = self.cache.shape();
        let Some((head, distance)) = shape.slab_of(p) else {
            return;
        };
        let here = List::at(distance);
        let mut open = self.open.iter_mut().flatten();
        if let Some(run) = open.find(|run| ptr::eq(run.head, head)) {
            let key = slab::key_of(slab::base(head) as usize);
            // SAFETY: an object of the slab that is ours.
            unsafe { slab::set_next(p, shape.offset, key, run.first.0) };
            run.first = here;
            run.count += 1;
            return;
        }
        let fresh = Run {
            head,
            first: here,
            last: p,
            count: 1,
        };
        if let Some(run) = self.open[self.next].replace(fresh) {
            self.free(run);
        }
        self.next = (self.next + 1) % RUNS;
    }

    fn end(mut self) {
        for run in core::mem::take(&mut self.open).into_iter().flatten() {
            self.free(run);
        }
    }

    fn free(&self, run: Run) {
        bump(&self.cache.0.counters.bulk_free);
        self.cache.free_run(run, slab::base(run.head), self.slot);
    }
}
