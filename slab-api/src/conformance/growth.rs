//! A heap that grows: what is idle in other caches' slabs loses its memory
//! ([`crate::growth`]).

use std::ptr::NonNull;

use page_alloc::{PAGE_SIZE, committed_bytes, os, page_of};

use super::{alone, at};
use crate::{CacheDesc, ObjectCache};

/// Pages of the slab that an object lies in, and how many of them are in memory.
fn slab_pages(p: usize) -> (usize, usize) {
    let head = page_of(at(p)).expect("an object's page").head();
    let pages = 1usize << head.order();
    let mut there = vec![0u8; pages];
    // SAFETY: a slab's pages are mapped, and the vector has a byte for each.
    let failed =
        unsafe { libc::mincore(head.address().cast(), pages * PAGE_SIZE, there.as_mut_ptr()) };
    assert_eq!(failed, 0, "mincore: {}", std::io::Error::last_os_error());
    (pages, there.iter().filter(|byte| **byte & 1 != 0).count())
}

fn take<C: ObjectCache>(cache: C, bytes: usize) -> usize {
    let p = cache.alloc().expect("memory").as_ptr();
    // SAFETY: an object of the cache, of so many bytes, that is ours.
    unsafe { p.write_bytes(p as u8, bytes) };
    p.expose_provenance()
}

fn give<C: ObjectCache>(cache: C, p: usize, bytes: usize) {
    // SAFETY: taken by `take` with this size, and given back once.
    unsafe {
        let p = NonNull::new(at(p)).expect("an object");
        let whole = (0..bytes).all(|i| p.as_ptr().add(i).read() == p.as_ptr() as u8);
        assert!(whole, "an object was overwritten");
        cache.free(p);
    }
}

/// One cache loses nearly all its objects, then another one grows. For a process of its
/// own: what the heap did before decides when it looks.
///
/// # Panics
/// When the first cache's slabs keep their memory, or an object changes.
pub fn growth_takes_what_is_idle_in_slabs<C: ObjectCache>() {
    const OLD: usize = 3000;
    const NEW: usize = 500;
    let _alone = alone();
    // With pages of another size, slabs may have none to spare.
    if os::page_size() != PAGE_SIZE {
        return;
    }
    let make = |name, bytes| C::create(&CacheDesc::new(name, bytes).no_merge()).expect("a cache");
    let (old, new) = (make("old", OLD), make("new", NEW));
    let mut objects: Vec<usize> = (0..10_000).map(|_| take(old, OLD)).collect();
    let mut kept = Vec::new();
    for (n, p) in objects.drain(..).enumerate() {
        if n % 40 == 0 {
            kept.push(p);
        } else {
            give(old, p, OLD);
        }
    }
    let count = |objects: &[usize]| {
        let all = objects.iter().map(|p| slab_pages(*p));
        all.fold((0, 0), |sum, slab| (sum.0 + slab.0, sum.1 + slab.1))
    };
    let (pages, before) = count(&kept);
    assert!(
        before * 10 > pages * 9,
        "in memory at first: {before} of {pages}"
    );

    let started = committed_bytes();
    let mut grown = Vec::new();
    while committed_bytes() < started + started / 4 + (32 << 20) {
        grown.push(take(new, NEW));
    }
    let (pages, after) = count(&kept);
    assert!(
        after * 2 < before,
        "in memory: {after} of {pages}, {before} before"
    );

    // The pages serve again.
    let again: Vec<usize> = (0..2_000).map(|_| take(old, OLD)).collect();
    again
        .into_iter()
        .chain(kept)
        .for_each(|p| give(old, p, OLD));
    grown.into_iter().for_each(|p| give(new, p, NEW));
    for cache in [old, new] {
        cache.validate().expect("valid");
        cache.destroy().expect("nothing in use");
    }
}
