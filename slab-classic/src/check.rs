//! Validation: every slab on the right list, every object in one place.

#![deny(unsafe_code)]

use core::sync::atomic::Ordering::Relaxed;

use page_alloc::{PAGE_SHIFT, PageKind, PageRef, granule, page_of, sparse};
use slab_api::{Corruption, ObjectCache};

use crate::cache::Classic;
use crate::node::Node;
use crate::reap::WALK;
use crate::slab::{self, MAX_OBJECTS};
use crate::slot;

fn wrong(what: &'static str, address: usize) -> Corruption {
    Corruption { what, address }
}

/// Checks every invariant of a cache that no other thread uses meanwhile.
pub(crate) fn validate(cache: Classic) -> Result<(), Corruption> {
    // No reap of another thread may move this cache's objects meanwhile.
    let _walk = WALK.lock();
    let mut marked = 0;
    for node in &cache.0.nodes {
        let mut node = node.lock();
        check_node(cache, &node, &mut marked)?;
        if let Some(shared) = node.shared.view(false) {
            check_held(cache, shared.held())?;
        }
    }
    let mut result = Ok(());
    slot::for_each(|slot| {
        if result.is_ok()
            && let Some(found) = slot.peek_array(cache.id(), |held| check_held(cache, held))
        {
            result = found;
        }
    });
    result?;
    if marked != cache.info().in_use {
        return Err(wrong(
            "marked objects and objects in use differ in number",
            0,
        ));
    }
    Ok(())
}

fn check_node(cache: Classic, node: &Node, marked: &mut usize) -> Result<(), Corruption> {
    let mut free = 0;
    let mut slabs = 0;
    let objects = cache.geometry().objects;
    for (list, active, quiet) in [
        (&node.partial, 1..objects, false),
        (&node.full, objects..objects + 1, false),
        (&node.free, 0..1, false),
        (&node.quiet, 1..objects + 1, true),
    ] {
        let mut length = 0;
        for head in list.iter() {
            if sparse::is_quiet(head) != quiet {
                let at = head.address() as usize;
                return Err(wrong("a quiet slab on another list, or the reverse", at));
            }
            if !active.contains(&slab::active(head)) {
                return Err(wrong("a slab on the wrong list", head.address() as usize));
            }
            free += objects - slab::active(head);
            check_slab(cache, head, marked)?;
            length += 1;
        }
        if length != list.len() || length != list.iter_back().count() {
            return Err(wrong("a list of slabs that differs backwards", 0));
        }
        slabs += length;
    }
    if free != node.free_objects {
        return Err(wrong("free objects of the node miscounted", 0));
    }
    if slabs != node.slabs {
        return Err(wrong("slabs of the node miscounted", 0));
    }
    Ok(())
}

fn check_slab(cache: Classic, head: PageRef, marked: &mut usize) -> Result<(), Corruption> {
    let geometry = cache.geometry();
    let start = head.address() as usize;
    for n in 0..geometry.order.pages() {
        let page = page_of(head.address().wrapping_add(n << PAGE_SHIFT));
        if page.is_none_or(|page| page.cache() != cache.id() || !core::ptr::eq(page.head(), head)) {
            return Err(wrong(
                "a page of the slab that does not know its cache",
                start,
            ));
        }
    }
    if head.kind() != PageKind::Slab {
        return Err(wrong("a slab that is not marked as one", start));
    }
    let mut seen = [0u64; MAX_OBJECTS / 64];
    let mut bad = None;
    slab::for_each_free(geometry, head, |index| {
        let Some(word) = seen
            .get_mut(index / 64)
            .filter(|_| index < geometry.objects)
        else {
            bad = Some("a free index beyond the slab");
            return;
        };
        if *word >> (index % 64) & 1 != 0 {
            bad = Some("an object that is free twice");
        }
        *word |= 1 << (index % 64);
    });
    if let Some(what) = bad {
        return Err(wrong(what, start));
    }
    if sparse::is_sparse(head) {
        // Its marks follow from the slab.
        *marked += slab::active(head);
        return Ok(());
    }
    for index in 0..geometry.objects {
        let p = slab::object(geometry, head, index);
        let mark = granule::cell(p).map_or(0, |mark| mark.load(Relaxed));
        let is_free = seen[index / 64] >> (index % 64) & 1 != 0;
        match mark {
            0 => {}
            mark if mark != granule::byte_of(cache.id()) => {
                return Err(wrong("an object with another cache's mark", p as usize));
            }
            _ if is_free => return Err(wrong("a free object marked as in use", p as usize)),
            _ => *marked += 1,
        }
    }
    Ok(())
}

/// Checks the objects of an array.
fn check_held(cache: Classic, held: &[*mut u8]) -> Result<(), Corruption> {
    for p in held {
        let at = *p as usize;
        if page_of(*p).is_none_or(|page| page.cache() != cache.id()) {
            return Err(wrong(
                "an entry of an array that is no object of the cache",
                at,
            ));
        }
        if granule::cell(*p).is_none_or(|mark| mark.load(Relaxed) != 0) {
            return Err(wrong("an object in an array that is marked as in use", at));
        }
    }
    Ok(())
}
