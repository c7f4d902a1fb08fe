//! Intrusive doubly linked lists of records that live as long as the process.
//!
//! Whoever owns a list guards it by a lock of its own; the links are atomics only
//! so that records can be shared as `&'static`.

use core::ptr;
use core::sync::atomic::{
    AtomicPtr, AtomicU64,
    Ordering::{Relaxed, Release},
    compiler_fence,
};

use crate::block::Block;
use crate::page::Page;

/// The links of a record: it is on one list at a time.
#[derive(Debug)]
#[repr(C)]
pub struct Links<T> {
    next: AtomicPtr<T>,
    prev: AtomicPtr<T>,
}

/// A record with links, in memory that is never unmapped.
///
/// # Safety
/// Every value that is ever put on a list must stay valid for the life of the
/// process, and `links` must always give the same place.
pub unsafe trait Linked: Sized + 'static {
    /// The record's links.
    fn links(&self) -> &Links<Self>;
}

/// A list; all-zero is an empty one.
#[derive(Debug)]
pub struct List<T> {
    head: AtomicPtr<T>,
    tail: AtomicPtr<T>,
    len: AtomicU64,
}

impl<T> Default for List<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> List<T> {
    /// An empty list.
    pub const fn new() -> Self {
        Self {
            head: AtomicPtr::new(ptr::null_mut()),
            tail: AtomicPtr::new(ptr::null_mut()),
            len: AtomicU64::new(0),
        }
    }

    /// Number of records on the list.
    #[inline]
    pub fn len(&self) -> usize {
        self.len.load(Relaxed) as usize
    }

    /// Whether the list is empty.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.head.load(Relaxed).is_null()
    }
}

/// The record behind a link.
#[inline]
fn record<T: Linked>(at: *mut T) -> Option<&'static T> {
    // SAFETY: links hold null or the address of a record that was put on a list,
    // which lives for ever as `Linked` promises; only `List` writes links.
    unsafe { at.as_ref() }
}

impl<T: Linked> List<T> {
    /// The first record.
    #[inline]
    pub fn first(&self) -> Option<&'static T> {
        record(self.head.load(Relaxed))
    }

    /// The last record.
    #[inline]
    pub fn last(&self) -> Option<&'static T> {
        record(self.tail.load(Relaxed))
    }

    /// Puts a record that is on no list at the head.
    #[inline]
    pub fn push_front(&mut self, item: &'static T) {
        let at = ptr::from_ref(item).cast_mut();
        let head = self.head.load(Relaxed);
        item.links().prev.store(ptr::null_mut(), Relaxed);
        item.links().next.store(head, Relaxed);
        // In `remove`'s order, backwards.
        self.head.store(at, Relaxed);
        compiler_fence(Release);
        match record(head) {
            Some(first) => first.links().prev.store(at, Relaxed),
            None => self.tail.store(at, Relaxed),
        }
        self.len.store(self.len.load(Relaxed) + 1, Relaxed);
    }

    /// Puts a record that is on no list at the tail.
    #[inline]
    pub fn push_back(&mut self, item: &'static T) {
        let at = ptr::from_ref(item).cast_mut();
        let tail = self.tail.load(Relaxed);
        item.links().next.store(ptr::null_mut(), Relaxed);
        item.links().prev.store(tail, Relaxed);
        match record(tail) {
            Some(last) => last.links().next.store(at, Relaxed),
            None => self.head.store(at, Relaxed),
        }
        self.tail.store(at, Relaxed);
        self.len.store(self.len.load(Relaxed) + 1, Relaxed);
    }

    /// Takes a record off this list, which it must be on.
    #[inline]
    pub fn remove(&mut self, item: &'static T) {
        let links = item.links();
        let (next, prev) = (links.next.load(Relaxed), links.prev.load(Relaxed));
        // The way back before the way on: a signal handler may fork between the two and
        // its child remove the record that it then finds first. It must come off.
        match record(next) {
            Some(n) => n.links().prev.store(prev, Relaxed),
            None => self.tail.store(prev, Relaxed),
        }
        compiler_fence(Release);
        match record(prev) {
            Some(p) => p.links().next.store(next, Relaxed),
            None => self.head.store(next, Relaxed),
        }
        self.len.store(self.len.load(Relaxed) - 1, Relaxed);
    }

    /// Takes the first record.
    #[inline]
    pub fn pop_front(&mut self) -> Option<&'static T> {
        let item = self.first()?;
        self.remove(item);
        Some(item)
    }

    /// Takes the last record.
    #[inline]
    pub fn pop_back(&mut self) -> Option<&'static T> {
        let item = self.last()?;
        self.remove(item);
        Some(item)
    }

    /// The records from head to tail. The list must not change meanwhile.
    pub fn iter(&self) -> impl Iterator<Item = &'static T> {
        core::iter::successors(self.first(), |item| record(item.links().next.load(Relaxed)))
    }

    /// The records from tail to head. The list must not change meanwhile.
    pub fn iter_back(&self) -> impl Iterator<Item = &'static T> {
        core::iter::successors(self.last(), |item| record(item.links().prev.load(Relaxed)))
    }
}

// SAFETY: records of pages and blocks are made in metadata that is never unmapped.
unsafe impl Linked for Page {
    fn links(&self) -> &Links<Self> {
        &self.links
    }
}

// SAFETY: as above.
unsafe impl Linked for Block {
    fn links(&self) -> &Links<Self> {
        &self.links
    }
}
