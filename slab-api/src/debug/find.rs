//! From a pointer to the debugged object it belongs to, and what else it may be.
//!
//! ```text
//!   mark at p?  ── yes ─▶ a plain object starts here, or the record of a debugged one
//!               └─ no ──▶ a slab: the mark 80 bytes before p, else the nearest mark before
//!                         a run:  its first page
//! ```
//! Marks (the granule map) and page records are out of users' reach; the object's own
//! record is read only where a mark says that there is one, and believed if sealed.

#![allow(unsafe_code)]

use core::ptr;
use core::sync::atomic::Ordering::Relaxed;

use page_alloc::{GRANULE, PAGE_SIZE, PageKind, PageRef, granule, page_of};

use super::DebugHeap;
use super::record::{FRONT, Object, State};
use crate::cache::ObjectCache;
use crate::class::CLASSES;
use crate::{misuse, registry};

/// What a pointer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// The user's pointer to a debugged object, in use or waiting in the quarantine.
    Object(Object),
    /// The start of an object that is not debugged.
    Plain,
    /// Into the middle of a debugged object, or before its start.
    Inside(Object),
    /// What was the user's pointer to an object of the backend's free ones.
    Freed(Object),
    /// Into an object (of the class) whose record was overwritten.
    Corrupt(Object, usize),
    /// Nothing that is known.
    Nothing,
}

/// The mark of the granule at an address.
pub(super) fn mark_at(at: usize) -> u8 {
    granule::cell(ptr::with_exposed_provenance(at)).map_or(0, |mark| mark.load(Relaxed))
}

/// Whether a record can be believed: it is sealed, or somebody is at it.
fn is_believed(object: Object) -> bool {
    object.state() == State::Busy || object.is_sealed()
}

/// The object whose record is at `base`, which lies in a slab or run of this heap.
pub(super) fn object_at(base: usize) -> Option<Object> {
    // SAFETY: callers have found a debugged cache's slab, or a run, that holds the
    // address, which is aligned to a granule; both are mapped.
    unsafe { Object::at(ptr::with_exposed_provenance_mut(base)) }
}

impl<B: ObjectCache> DebugHeap<B> {
    /// The class that a cache debugs, if it is one of this heap's.
    pub(super) fn class_of(&self, cache: u32) -> Option<usize> {
        let class = self.classes.get(cache as usize)?.load(Relaxed);
        usize::from(class).checked_sub(1)
    }

    pub(super) fn find(&self, p: *const u8) -> Found {
        let Some(page) = page_of(p) else {
            return Found::Nothing;
        };
        let head = page.head();
        if head.kind() == PageKind::Slab {
            return match self.class_of(head.cache()) {
                Some(class) => Self::find_in_slab(p as usize, head, class),
                None if mark_at(p as usize) != 0 => Found::Plain,
                None => Found::Nothing,
            };
        }
        Self::find_in_run(p)
    }

    fn find_in_slab(p: usize, head: PageRef, class: usize) -> Found {
        let (start, byte) = (head.address() as usize, granule::byte_of(head.cache()));
        let usual = p.checked_sub(FRONT).filter(|base| *base >= start);
        if let Some(object) = usual
            .filter(|base| mark_at(*base) == byte)
            .and_then(object_at)
        {
            if !is_believed(object) {
                return Found::Corrupt(object, class);
            }
            if object.offset() == FRONT {
                return Found::Object(object);
            }
        }
        // The nearest object in use that begins at or before the pointer.
        let stride = registry::get(head.cache()).map_or(0, |cache| cache.stride as usize);
        let from = p & !(GRANULE - 1);
        let covering = (0..stride / GRANULE)
            .map_while(|n| from.checked_sub(n * GRANULE).filter(|at| *at >= start))
            .find(|at| mark_at(*at) == byte)
            .filter(|base| p < base + stride)
            .and_then(object_at);
        match covering {
            Some(object) if !is_believed(object) => Found::Corrupt(object, class),
            Some(object) if object.user() as usize == p => Found::Object(object),
            Some(object) => Found::Inside(object),
            None => match usual
                .filter(|at| at.is_multiple_of(GRANULE))
                .and_then(object_at)
            {
                Some(object)
                    if object.is_sealed()
                        && object.state() == State::Free
                        && object.user() as usize == p =>
                {
                    Found::Freed(object)
                }
                _ => Found::Nothing,
            },
        }
    }

    fn find_in_run(p: *const u8) -> Found {
        // A page in, as a rule; the page walk of `run_over` is for large alignments.
        let run = (p as usize)
            .checked_sub(PAGE_SIZE)
            .and_then(|at| page_of(ptr::with_exposed_provenance(at)))
            .filter(|page| {
                page.kind() == PageKind::Run && page.address() as usize + PAGE_SIZE == p as usize
            })
            .or_else(|| misuse::run_over(p));
        let Some(run) = run else {
            return Found::Nothing;
        };
        let base = run.address() as usize;
        let Some(object) = object_at(base).filter(|_| mark_at(base) == granule::LARGE) else {
            return Found::Nothing;
        };
        if !is_believed(object) {
            // Without a record it is a large object that is not debugged, or one whose
            // record was overwritten: only the pointer tells.
            return if base == p as usize {
                Found::Plain
            } else if base + PAGE_SIZE == p as usize {
                Found::Corrupt(object, CLASSES)
            } else {
                Found::Nothing
            };
        }
        if ptr::eq(object.user(), p) {
            Found::Object(object)
        } else {
            Found::Inside(object)
        }
    }
}
