//! Slabs whose granules were given back ([`page_alloc::sparse`]): who looks up an object
//! and reads 0 asks here before it calls that misuse.

#![deny(unsafe_code)]

use core::sync::atomic::{AtomicU8, Ordering::Relaxed};

use page_alloc::{PageKind, PageRef, page_of, sparse};

use crate::checks;
use crate::registry;

/// The granule's byte of an address, `mark`; written again first if it was given back.
#[inline]
pub fn mark_at(p: *const u8, mark: &AtomicU8) -> u8 {
    match mark.load(Relaxed) {
        0 => look_again(p, mark),
        byte => byte,
    }
}

#[cold]
#[inline(never)]
fn look_again(p: *const u8, mark: &AtomicU8) -> u8 {
    let Some(head) = page_of(p).map(|page| page.head()) else {
        return 0;
    };
    sparse::read_mark(mark, head, || {
        match registry::get(head.cache()).filter(|_| head.kind() == PageKind::Slab) {
            Some(cache) => (cache.backend.restore)(cache, head, mark),
            None => mark.load(Relaxed),
        }
    })
}

/// Gives back the granule map where it serves only slabs that few objects hold; returns
/// the pages.
pub fn discard_maps() -> usize {
    sparse::discard_maps(|head| {
        registry::get(head.cache()).map_or(usize::MAX >> 16, |cache| (cache.backend.live)(head))
    })
}

/// Whether so few of a slab's objects are in use, a part of them or in number, that it
/// should be quiet.
pub fn is_worth_it(head: PageRef, live: usize, objects: usize) -> bool {
    checks::ON && (live * 4 <= objects || live <= 2) && sparse::fits(head.order())
}
