//! What detecting misuse adds to the fast paths, in one place, so that its cost can be measured.
//!
//! An object's byte in the granule map names its cache while the object is in use, and
//! is 0 otherwise: `free` finds the class and the misuse with one load, for one store in
//! each of malloc and free. With the feature `unchecked` a slab's objects are marked
//! when the slab is made and stay marked, in use or not: `free` still finds the class,
//! and the two stores are gone, and with them the detection of double frees.
//!
//! `unchecked` is for measuring (`bench-suite fastpath`). It is not for production, and
//! `validate` and the tests of misuse fail with it.

#![allow(unsafe_code)]

use core::sync::atomic::{AtomicU8, Ordering::Relaxed};

use page_alloc::granule;

/// Whether misuse is detected: always, but for measuring.
pub const ON: bool = !cfg!(feature = "unchecked");

/// Marks an object of the cache `id` as in use, and returns it.
///
/// # Safety
/// `p` must be an object of a slab of that cache which the caller owns.
#[inline(always)]
pub unsafe fn taken(p: *mut u8, id: u32) -> *mut u8 {
    if ON {
        // SAFETY: the caller's promise.
        unsafe { granule::mark(p, granule::byte_of(id)) }
    } else {
        p
    }
}

/// Marks an object as free, by its byte.
#[inline(always)]
pub fn freed(mark: &AtomicU8) {
    if ON {
        mark.store(0, Relaxed);
    }
}

/// Marks an object of a bulk as free, if it is one in use of the cache with this byte and in
/// the first arena; else false, and nothing is done. An object twice in one bulk is false the
/// second time.
#[inline(always)]
pub fn freed_if_in_use(p: *mut u8, byte: u8) -> bool {
    match granule::primary_cell(p) {
        Some(mark) if mark.load(Relaxed) == byte => {
            freed(mark);
            true
        }
        _ => false,
    }
}

/// Called for each object of a fresh slab.
///
/// # Safety
/// As [`taken`].
#[inline(always)]
pub unsafe fn made(p: *mut u8, id: u32) {
    if !ON {
        // SAFETY: the caller's promise.
        unsafe { granule::mark(p, granule::byte_of(id)) };
    }
}
