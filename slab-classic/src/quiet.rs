//! Slabs that few objects hold after `malloc_trim`: their free pages are given back, and
//! their part of the granule map too ([`page_alloc::sparse`]).
//!
//! ```text
//!   partial, full --quieten--> quiet --an object comes back, or nothing else is left--> partial
//! ```
//! Full slabs of one or two objects are among them, or half of all units of the map would
//! have to stay for their sake; they are the last on the list. All of it under the node's lock.

#![deny(unsafe_code)]

use core::sync::atomic::{AtomicU8, Ordering::Relaxed};

use page_alloc::topology::MAX_NODES;
use page_alloc::{PageList, PageRef, granule, sparse};
use slab_api::sparse::is_worth_it;

use crate::cache::Classic;
use crate::node::{Node, NodeLevel};
use crate::slab::{self, Geometry};

/// Slabs that are walked under one hold of the lock.
const PORTION: usize = 16;

/// Calls `f` with the address of each object of the slab that is not free.
fn for_each_taken(g: &Geometry, head: PageRef, mut f: impl FnMut(*mut u8)) {
    let free = slab::free_map(g, head);
    for index in (0..g.objects).filter(|i| free[i / 64] >> (i % 64) & 1 == 0) {
        f(slab::object(g, head, index));
    }
}

/// Whether few of the slab's objects are in use and none waits in a queue.
fn is_nearly_free(g: &Geometry, head: PageRef) -> bool {
    if !is_worth_it(head, slab::active(head), g.objects) {
        return false;
    }
    let mut all_marked = true;
    for_each_taken(g, head, |p| {
        all_marked &= granule::cell(p).is_some_and(|mark| mark.load(Relaxed) != 0);
    });
    all_marked
}

/// Marks the slab's objects in use. For [`sparse::restore`] and [`sparse::wake`].
fn mark_taken(g: &Geometry, head: PageRef) {
    let byte = granule::byte_of(head.cache());
    for_each_taken(g, head, |p| {
        if let Some(mark) = granule::cell(p) {
            mark.store(byte, Relaxed);
        }
    });
}

/// Makes a quiet slab a partial one again; false when there is none.
#[cold]
pub(crate) fn wake_one(g: &Geometry, node: &mut Node) -> bool {
    let with_free = |head: &PageRef| slab::active(head) < g.objects;
    let Some(head) = node.quiet.first().filter(with_free) else {
        return false;
    };
    node.quiet.remove(head);
    sparse::wake(head, || mark_taken(g, head));
    node.partial.push_front(head);
    true
}

impl NodeLevel<'_> {
    /// Objects of a run came back to their slab and are free. True when the slab was
    /// quiet: it is on the partial list then.
    #[inline]
    pub(crate) fn came_back(&mut self, head: PageRef, run: &[*mut u8]) -> bool {
        sparse::is_quiet_or_was_sparse(head) && self.woken_by(head, run)
    }

    #[cold]
    fn woken_by(&mut self, head: PageRef, run: &[*mut u8]) -> bool {
        // They may have been on their way when the marks were given back.
        for mark in run.iter().filter_map(|p| granule::cell(*p)) {
            mark.store(0, Relaxed);
        }
        let was_quiet = sparse::is_quiet(head);
        if was_quiet {
            self.node.quiet.remove(head);
            sparse::wake(head, || mark_taken(self.geometry, head));
            self.node.partial.push_back(head);
        }
        was_quiet
    }
}

impl Classic {
    /// Gives back the pages of free objects in slabs in use; with `quiet`, slabs that few
    /// objects hold become quiet. Returns the pages.
    pub(crate) fn quieten(self, quiet: bool) -> usize {
        // Constructed objects keep their content, and one that holds the index stack too.
        if self.0.constructor.is_some() || !self.0.geometry.is_outside() {
            return 0;
        }
        let mut pages = 0;
        for node in 0..MAX_NODES {
            pages += self.quieten_partial(node, quiet);
            if !quiet {
                continue;
            }
            self.with_level(node, |level| {
                let mut others = PageList::new();
                while let Some(head) = level.node.full.pop_front() {
                    if is_nearly_free(level.geometry, head) {
                        sparse::set_quiet(head);
                        level.node.quiet.push_back(head);
                    } else {
                        others.push_back(head);
                    }
                }
                level.node.full = others;
            });
        }
        pages
    }

    fn quieten_partial(self, node: usize, quiet: bool) -> usize {
        let mut pages = 0;
        // Once around the list, in portions: others are to get at the lock meanwhile.
        let mut left = self.with_level(node, |level| level.node.partial.len());
        while left > 0 {
            self.with_level(node, |level| {
                for _ in 0..left.min(PORTION) {
                    let Some(head) = level.node.partial.pop_front() else {
                        break;
                    };
                    pages += slab::discard_free(level.geometry, head);
                    if quiet && is_nearly_free(level.geometry, head) {
                        sparse::set_quiet(head);
                        level.node.quiet.push_front(head);
                    } else {
                        level.node.partial.push_back(head);
                    }
                }
            });
            left = left.saturating_sub(PORTION);
        }
        pages
    }

    /// The registry's way to the idle pages of a cache that is half free.
    pub(crate) fn thin(self) {
        for node in 0..MAX_NODES {
            let half_free = self.with_level(node, |level| {
                level.node.free_objects * 2 >= level.node.slabs * level.geometry.objects
            });
            if !half_free {
                continue;
            }
            // Each object there may hold a slab.
            self.with_level(node, |level| level.drain_shared(level.node.shared.limit));
            if self.0.geometry.is_outside() {
                self.quieten_partial(node, false);
            }
        }
    }

    /// The registry's way to the marks of a sparse slab.
    pub(crate) fn restore(self, head: PageRef, mark: &AtomicU8) -> u8 {
        let g = self.geometry();
        let _node = self.0.nodes[head.node() % MAX_NODES].lock();
        // Under the lock: a quiet slab of this cache stays one, and no other becomes one.
        if sparse::is_quiet(head) && head.cache() == self.id_of() {
            sparse::restore(head, mark, || mark_taken(g, head))
        } else {
            mark.load(Relaxed)
        }
    }
}
