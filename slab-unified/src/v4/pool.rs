//! Queues that several threads use, each under a lock of its own: the shared one of a
//! last-level cache, and those of objects that belong to another node.

use core::cell::Cell;
use core::ptr::NonNull;

use page_alloc::meta;

use super::queue::Queue;

/// What the lock of such a queue guards. Its places are made when it is first needed.
pub(crate) struct Pool {
    entries: Option<NonNull<*mut u8>>,
    held: Cell<usize>,
    /// Objects that it holds at most.
    pub(crate) max: usize,
    /// Used since expiry looked last.
    pub(crate) touched: bool,
    /// When expiry looks again, in milliseconds.
    pub(crate) next_expiry: u64,
}

// SAFETY: the places belong to the queue alone; whoever holds its lock may use it from
// any thread.
unsafe impl Send for Pool {}

impl Pool {
    pub(crate) const fn new(max: usize) -> Self {
        Self {
            entries: None,
            held: Cell::new(0),
            max,
            touched: false,
            next_expiry: 0,
        }
    }

    fn bytes(&self) -> usize {
        self.max * size_of::<*mut u8>()
    }

    pub(crate) fn held(&self) -> usize {
        self.held.get()
    }

    /// The queue; `None` when it has no places, and none can be made (tried when `make`
    /// says so).
    pub(crate) fn queue(&mut self, make: bool) -> Option<Queue<'_, *mut u8>> {
        if self.entries.is_none() {
            if !make || self.max == 0 {
                return None;
            }
            self.entries = Some(meta::alloc(self.bytes())?.cast());
        }
        // SAFETY: made above, or by an earlier call, with `max` places; zeroed, and ours
        // as long as `self` is borrowed.
        let entries = unsafe { core::slice::from_raw_parts_mut(self.entries?.as_ptr(), self.max) };
        Some(Queue::new(entries, &self.held))
    }

    /// Gives the places back when they hold nothing.
    pub(crate) fn release(&mut self) {
        if self.held.get() > 0 {
            return;
        }
        if let Some(entries) = self.entries.take() {
            // SAFETY: made by `queue` with this size; it holds nothing any more.
            unsafe { meta::free(entries.cast(), self.bytes()) };
        }
    }
}
