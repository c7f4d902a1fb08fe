//! A node's part of a cache: the list of partial slabs.
//!
//! ```text
//!   lock -> partial: | refilled from | ... | those that were full until lately |
//! ```
//! Full slabs are on no list; empty ones stay on this one until there are more than
//! `min_partial` slabs on it.

#![deny(unsafe_code)]

use page_alloc::{PageList, PageRef};

use super::queue::Slabs;
use super::slab::{self, Geometry};

/// What one node's lock guards.
pub(crate) struct Node {
    /// Slabs with free objects.
    pub(crate) partial: PageList,
    pub(crate) slabs: usize,
    /// Free objects in all slabs.
    pub(crate) free: usize,
    /// Runs taken.
    pub(crate) runs: u64,
}

impl Node {
    pub(crate) const fn new() -> Self {
        Self {
            partial: PageList::new(),
            slabs: 0,
            free: 0,
            runs: 0,
        }
    }

    /// Slabs without an object in use or queued.
    pub(crate) fn empty(&self, g: &Geometry) -> usize {
        let empty = |head: &PageRef| slab::free_objects(head) == g.objects;
        self.partial.iter().filter(empty).count()
    }
}

/// A node under its lock, with the slabs that the operation leaves to be given back once
/// the lock is released.
pub(crate) struct NodeLevel<'a> {
    pub(crate) geometry: &'a Geometry,
    pub(crate) node: &'a mut Node,
    pub(crate) doomed: PageList,
    /// Partial slabs that are kept, full or empty.
    pub(crate) min_partial: usize,
}

impl NodeLevel<'_> {
    /// Adds a fresh slab.
    pub(crate) fn add(&mut self, head: PageRef) {
        self.node.slabs += 1;
        self.node.free += self.geometry.objects;
        self.node.partial.push_front(head);
    }

    fn doom(&mut self, head: PageRef) {
        self.node.partial.remove(head);
        self.node.slabs -= 1;
        self.node.free -= self.geometry.objects;
        self.doomed.push_back(head);
    }

    /// Dooms every empty slab.
    pub(crate) fn doom_empty(&mut self) {
        // Through the list once: what is kept comes round to the back.
        for _ in 0..self.node.partial.len() {
            let Some(head) = self.node.partial.first() else {
                return;
            };
            if slab::free_objects(head) == self.geometry.objects {
                self.doom(head);
            } else {
                self.node.partial.remove(head);
                self.node.partial.push_back(head);
            }
        }
    }
}

impl Slabs<*mut u8> for NodeLevel<'_> {
    fn take_run(&mut self, out: &mut [*mut u8]) -> usize {
        let Some(head) = self.node.partial.first() else {
            return 0;
        };
        let n = slab::take_run(self.geometry, head, out);
        self.node.free -= n.min(self.node.free);
        self.node.runs += 1;
        // (No bit left although the count says so: a user wrote over the bitmap.)
        if slab::free_objects(head) == 0 || (n == 0 && !out.is_empty()) {
            self.node.partial.remove(head);
        }
        n
    }

    fn put(&mut self, p: *mut u8) {
        let Some((head, index)) = self.geometry.find(p) else {
            debug_assert!(false, "no object of the cache");
            return;
        };
        let before = slab::free_objects(head);
        if !slab::put(self.geometry, head, index, p) {
            debug_assert!(false, "an object that is free already");
            return;
        }
        self.node.free += 1;
        if before == 0 {
            // To the tail: the longest time for its other objects to come back too.
            self.node.partial.push_back(head);
        }
        if before + 1 == self.geometry.objects && self.node.partial.len() > self.min_partial {
            self.doom(head);
        }
    }
}
