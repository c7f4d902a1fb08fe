//! Slabs that few objects hold after `malloc_trim`: their free pages are given back, and
//! their part of the granule map too ([`page_alloc::sparse`]).
//!
//! ```text
//!   partial --quieten--> quiet --an object comes back, or nothing else is left--> partial
//! ```
//! All of it under the node's lock.

use slab_api::gaps::Gaps;
use slab_api::sparse::is_worth_it;

use super::*;

/// Slabs that are walked under one hold of the lock.
const PORTION: usize = 16;

impl Unified {
    /// Gives back the pages of free objects in slabs in use; with `quiet`, slabs that few
    /// objects hold become quiet. Returns the pages.
    pub(super) fn quieten(self, quiet: bool) -> usize {
        // Constructed objects keep their content.
        if self.0.constructor.is_some() {
            return 0;
        }
        self.0
            .nodes
            .iter()
            .map(|node| self.quieten_node(node, quiet))
            .sum()
    }

    fn quieten_node(self, node: &Lock<Node>, quiet: bool) -> usize {
        let mut pages = 0;
        // Once around the list, in portions: others are to get at the lock meanwhile.
        let mut left = node.lock().partial.len();
        while left > 0 {
            let mut node = node.lock();
            for _ in 0..left.min(PORTION) {
                let Some(head) = node.partial.pop_front() else {
                    return pages;
                };
                pages += self.discard_free(head);
                if quiet && self.is_nearly_free(head) {
                    sparse::set_quiet(head);
                    node.quiet.push_back(head);
                } else {
                    node.partial.push_back(head);
                }
            }
            left = left.saturating_sub(PORTION);
        }
        pages
    }

    /// The registry's way to the idle pages of a cache that is half free.
    pub(super) fn thin(self) {
        let waiting = self.0.depot.full_count() as usize * MAX_CAPACITY;
        for node in &self.0.nodes {
            let half_free = {
                let node = node.lock();
                (node.free + waiting) * 2 >= node.slabs * self.0.objects
            };
            if half_free {
                // Each object there may hold a slab.
                self.drain_depot();
                self.quieten_node(node, false);
            }
        }
    }

    fn discard_free(self, head: PageRef) -> usize {
        let start = head.address() as usize;
        let stride = self.0.head.stride as usize;
        let mut gaps = Gaps::new(
            start..start + self.0.order.bytes() - self.0.guard,
            start..start + self.0.objects * stride,
        );
        slab::for_each_free(head, stride, |p| {
            // SAFETY: a free object of the slab, by address; the node's lock keeps it so.
            // There is nothing else in a slab but objects and its guard.
            unsafe { gaps.add(p, stride) };
        });
        gaps.finish()
    }

    /// Whether few of the slab's objects are in use and none waits in a queue.
    fn is_nearly_free(self, head: PageRef) -> bool {
        let (objects, free) = (slab::objects(head), slab::free_objects(head));
        if !is_worth_it(head, objects - free, objects) {
            return false;
        }
        let mut all_marked = true;
        slab::for_each_taken(head, self.0.head.stride as usize, |p| {
            all_marked &= granule::cell(p).is_some_and(|mark| mark.load(Relaxed) != 0);
        });
        all_marked
    }

    /// Marks the slab's objects in use. For [`sparse::restore`] and [`sparse::wake`].
    fn mark_taken(self, head: PageRef) {
        let byte = granule::byte_of(self.id());
        slab::for_each_taken(head, self.0.head.stride as usize, |p| {
            if let Some(mark) = granule::cell(p) {
                mark.store(byte, Relaxed);
            }
        });
    }

    /// The registry's way to the marks of a sparse slab.
    pub(super) fn restore(self, head: PageRef, mark: &AtomicU8) -> u8 {
        let _node = self.0.nodes[head.node()].lock();
        // Under the lock: a quiet slab of this cache stays one, and no other becomes one.
        if sparse::is_quiet(head) && head.cache() == self.id() {
            sparse::restore(head, mark, || self.mark_taken(head))
        } else {
            mark.load(Relaxed)
        }
    }

    /// Objects of a run, all of the slab, which is quiet or was sparse, came back to it and
    /// are free.
    #[cold]
    pub(super) fn came_back(self, node: &mut Node, head: PageRef, run: &[*mut u8]) {
        // They may have been on their way when the marks were given back.
        for mark in run.iter().filter_map(|p| granule::cell(*p)) {
            mark.store(0, Relaxed);
        }
        if sparse::is_quiet(head) {
            node.quiet.remove(head);
            sparse::wake(head, || self.mark_taken(head));
            node.partial.push_back(head);
        }
    }

    /// Makes a quiet slab a partial one again; false when there is none.
    #[cold]
    pub(super) fn wake_one(self, node: &mut Node) -> bool {
        let Some(head) = node.quiet.pop_front() else {
            return false;
        };
        sparse::wake(head, || self.mark_taken(head));
        node.partial.push_front(head);
        true
    }
}
