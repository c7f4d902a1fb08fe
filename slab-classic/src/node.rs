//! A node's part of a cache: lists of slabs, the shared array, the alien arrays.
//!
//! ```text
//!   lock -> slabs_partial | slabs_full | slabs_free | quiet     lists of head pages
//!           shared: [ oldest | ... | newest | room ]    made at the first flush
//!   lock -> alien: up to 12 objects of another node
//! ```
//! An alien's lock and a node's are never held together: a full alien is emptied
//! into the caller's buffer first.

use core::ptr::NonNull;

use page_alloc::{PageList, PageMap, PageRef, meta};

use crate::array::{Level, View, reap_count};
use crate::quiet;
use crate::slab::{self, Geometry, NONE};

/// Objects of one node that slots of another one hold back.
pub(crate) const ALIEN_LIMIT: usize = 12;

/// What one node's lock guards.
pub(crate) struct Node {
    /// Slabs with free objects and with others.
    pub(crate) partial: PageList,
    /// Slabs without free objects.
    pub(crate) full: PageList,
    /// Slabs whose objects are all free.
    pub(crate) free: PageList,
    /// Quiet slabs, of which few objects are in use: the last that others are taken from.
    pub(crate) quiet: PageList,
    pub(crate) slabs: usize,
    /// Free objects in all slabs.
    pub(crate) free_objects: usize,
    /// Free objects beyond which empty slabs are given back.
    pub(crate) free_limit: usize,
    /// An empty slab was used since the last reap.
    pub(crate) free_touched: bool,
    pub(crate) shared: Shared,
}

/// A node's shared array.
pub(crate) struct Shared {
    entries: Option<NonNull<*mut u8>>,
    avail: usize,
    pub(crate) limit: usize,
    pub(crate) touched: bool,
}

// SAFETY: the entries' memory belongs to the array alone; whoever holds the node's
// lock may use it from any thread.
unsafe impl Send for Shared {}

impl Shared {
    fn bytes(&self) -> usize {
        self.limit * size_of::<*mut u8>()
    }

    pub(crate) fn avail(&self) -> usize {
        self.avail
    }

    pub(crate) fn view(&mut self, make: bool) -> Option<View<'_, *mut u8>> {
        if self.entries.is_none() {
            if !make || self.limit == 0 {
                return None;
            }
            self.entries = Some(meta::alloc(self.bytes())?.cast());
        }
        // SAFETY: made above, or by an earlier call, with the present limit; zeroed,
        // and ours as long as `self` is borrowed.
        let entries =
            unsafe { core::slice::from_raw_parts_mut(self.entries?.as_ptr(), self.limit) };
        Some(View::new(entries, &mut self.avail))
    }

    /// Gives the memory of an empty array back, and sets the limit of the next one.
    pub(crate) fn reset(&mut self, limit: usize) {
        debug_assert_eq!(self.avail, 0);
        if let Some(entries) = self.entries.take() {
            // SAFETY: made by `view` with this size; it holds nothing any more.
            unsafe { meta::free(entries.cast(), self.bytes()) };
        }
        self.limit = limit;
    }
}

impl Node {
    pub(crate) const fn new() -> Self {
        Self {
            partial: PageList::new(),
            full: PageList::new(),
            free: PageList::new(),
            quiet: PageList::new(),
            slabs: 0,
            free_objects: 0,
            free_limit: 0,
            free_touched: false,
            shared: Shared {
                entries: None,
                avail: 0,
                limit: 0,
                touched: false,
            },
        }
    }
}

/// A node under its lock, with the slabs that the operation leaves to be given back
/// once the lock is released.
pub(crate) struct NodeLevel<'a> {
    pub(crate) geometry: &'a Geometry,
    pub(crate) node: &'a mut Node,
    pub(crate) doomed: PageList,
}

impl NodeLevel<'_> {
    /// Adds a fresh slab.
    pub(crate) fn add(&mut self, head: PageRef) {
        self.node.slabs += 1;
        self.node.free_objects += self.geometry.objects;
        self.node.free.push_front(head);
    }

    /// Dooms up to `count` empty slabs, those that wait longest.
    pub(crate) fn doom(&mut self, count: usize) {
        for _ in 0..count {
            let Some(head) = self.node.free.pop_back() else {
                return;
            };
            self.node.slabs -= 1;
            self.node.free_objects -= self.geometry.objects;
            self.doomed.push_back(head);
        }
    }

    /// Gives a fifth of the shared array to the slabs if nobody refilled from it since
    /// this was done last.
    pub(crate) fn reap_shared(&mut self) {
        let shared = &mut self.node.shared;
        if shared.touched {
            shared.touched = false;
            return;
        }
        let mut count = reap_count(shared.limit, shared.avail);
        let mut buffer = [NONE; 32];
        while let Some(mut shared) = self.node.shared.view(false) {
            let want = count.min(buffer.len());
            let n = shared.take_oldest(&mut buffer[..want]);
            if n == 0 {
                break;
            }
            count -= n;
            self.give(&buffer[..n]);
        }
    }

    /// Empties the shared array into the slabs and gives its memory back.
    pub(crate) fn drain_shared(&mut self, next_limit: usize) {
        let mut buffer = [NONE; 32];
        while let Some(mut shared) = self.node.shared.view(false) {
            let n = shared.take(&mut buffer);
            if n == 0 {
                break;
            }
            self.give(&buffer[..n]);
        }
        self.node.shared.reset(next_limit);
    }

    #[inline(always)]
    fn give_run(&mut self, head: PageRef, run: &[*mut u8]) {
        let (before, after) = slab::give(self.geometry, head, run);
        let was_quiet = self.came_back(head, run);
        let node = &mut *self.node;
        node.free_objects += before - after;
        let was_full = before == self.geometry.objects && !was_quiet;
        if after == 0 {
            if was_full {
                node.full.remove(head);
            } else {
                node.partial.remove(head);
            }
            node.free.push_front(head);
            if node.free_objects > node.free_limit {
                self.doom(1);
            }
        } else if was_full {
            // To the tail: the longest time for its other objects to come back too.
            node.full.remove(head);
            node.partial.push_back(head);
        }
    }
}

impl Level<*mut u8> for NodeLevel<'_> {
    fn shared(&mut self, make: bool) -> Option<View<'_, *mut u8>> {
        self.node.shared.view(make)
    }

    fn touch_shared(&mut self) {
        self.node.shared.touched = true;
    }

    fn take(&mut self, out: &mut [*mut u8]) -> usize {
        let node = &mut *self.node;
        let mut got = 0;
        while got < out.len() {
            let (head, was_free) = match node.partial.first() {
                Some(head) => (head, false),
                None => match node.free.pop_front() {
                    Some(head) => {
                        node.free_touched = true;
                        (head, true)
                    }
                    None if quiet::wake_one(self.geometry, node) => continue,
                    None => break,
                },
            };
            let n = slab::take(self.geometry, head, &mut out[got..]);
            got += n;
            node.free_objects -= n;
            if slab::active(head) == self.geometry.objects {
                if !was_free {
                    node.partial.remove(head);
                }
                node.full.push_front(head);
            } else if was_free {
                node.partial.push_front(head);
            }
        }
        got
    }

    /// Neighbours in `objects` that are of one slab go there together.
    fn give(&mut self, objects: &[*mut u8]) {
        let map = PageMap::now();
        let g = self.geometry;
        let order = g.order.get();
        let mut rest = objects;
        while let Some((first, others)) = rest.split_first() {
            let Some((head, _)) = map.find(*first, order) else {
                debug_assert!(false, "an object outside the arenas");
                rest = others;
                continue;
            };
            let base = g.base_of(*first);
            let more = others.iter().take_while(|p| g.base_of(**p) == base).count();
            let (run, others) = rest.split_at(1 + more);
            self.give_run(head, run);
            rest = others;
        }
    }
}

/// Objects of one node that are on their way home.
pub(crate) struct Alien {
    entries: [*mut u8; ALIEN_LIMIT],
    avail: usize,
}

// SAFETY: as for `Shared`.
unsafe impl Send for Alien {}

impl Alien {
    pub(crate) const fn new() -> Self {
        Self {
            entries: [NONE; ALIEN_LIMIT],
            avail: 0,
        }
    }

    pub(crate) fn view(&mut self) -> View<'_, *mut u8> {
        View::new(&mut self.entries, &mut self.avail)
    }
}
