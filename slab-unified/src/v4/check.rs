//! Validation: every slab where it belongs, every free object in one place.

#![deny(unsafe_code)]

use core::sync::atomic::Ordering::Relaxed;

use page_alloc::topology::MAX_NODES;
use page_alloc::{PAGE_SHIFT, PageKind, PageRef, granule, page_of};
use slab_api::{Corruption, ObjectCache};

use super::bitmap;
use super::cache::UnifiedV4;
use super::expire::WALK;
use super::llc;
use super::node::Node;
use super::pool::Pool;
use super::slab::{self, SlabBits};
use super::slot;

fn wrong(what: &'static str, address: usize) -> Corruption {
    Corruption { what, address }
}

/// Checks every invariant of a cache that no other thread uses meanwhile.
pub(crate) fn validate(cache: UnifiedV4) -> Result<(), Corruption> {
    // No expiry of another thread may move this cache's objects meanwhile.
    let _walk = WALK.lock();
    for node in &cache.0.nodes {
        check_node(cache, &node.lock())?;
    }
    for (llc, shared) in cache.0.shared.iter().enumerate() {
        check_pool(cache, &mut shared.lock(), llc::node_of(llc))?;
    }
    for (n, alien) in cache
        .0
        .aliens
        .iter()
        .flat_map(|aliens| aliens.iter().flatten())
        .enumerate()
    {
        check_pool(cache, &mut alien.lock(), n % MAX_NODES)?;
    }
    let mut result = Ok(());
    slot::for_each(|slot| {
        if result.is_ok()
            && let Some(found) = slot.peek(cache.id(), |held| check_held(cache, held, slot.node()))
        {
            result = found;
        }
    });
    result
}

fn check_node(cache: UnifiedV4, node: &Node) -> Result<(), Corruption> {
    let (mut free, mut length) = (0, 0);
    for head in node.partial.iter() {
        check_slab(cache, head)?;
        free += slab::free_objects(head);
        length += 1;
    }
    if length != node.partial.len() || length != node.partial.iter_back().count() {
        return Err(wrong("a list of slabs that differs backwards", 0));
    }
    if length > node.slabs {
        return Err(wrong("more partial slabs than slabs", 0));
    }
    if free != node.free {
        return Err(wrong("free objects of the node miscounted", 0));
    }
    Ok(())
}

fn check_slab(cache: UnifiedV4, head: PageRef) -> Result<(), Corruption> {
    let g = cache.geometry();
    let start = head.address() as usize;
    for n in 0..g.order.pages() {
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
    let mut bits = 0;
    let mut marked = None;
    slab::for_each_free(g, head, |p| {
        bits += 1;
        if granule::cell(p).is_none_or(|mark| mark.load(Relaxed) != 0) {
            marked = Some(p as usize);
        }
    });
    if let Some(p) = marked {
        return Err(wrong("a free object marked as in use", p));
    }
    if bits != slab::free_objects(head) {
        return Err(wrong("free objects and the slab's count differ", start));
    }
    if bits == 0 {
        return Err(wrong("a full slab on the list", start));
    }
    for index in 0..g.objects {
        let p = slab::object(g, head, index);
        let mark = granule::cell(p).map_or(0, |mark| mark.load(Relaxed));
        if mark != 0 && mark != granule::byte_of(cache.id()) {
            return Err(wrong("an object with another cache's mark", p as usize));
        }
    }
    Ok(())
}

fn check_pool(cache: UnifiedV4, pool: &mut Pool, node: usize) -> Result<(), Corruption> {
    let count = pool.held();
    if count > pool.max {
        return Err(wrong("a queue that holds more than its maximum", 0));
    }
    match pool.queue(false) {
        Some(queue) => check_held(cache, queue.objects(), node),
        None if count > 0 => Err(wrong("a queue that holds objects in no places", 0)),
        None => Ok(()),
    }
}

/// Checks the objects of a queue that holds those of one node.
fn check_held(cache: UnifiedV4, held: &[*mut u8], node: usize) -> Result<(), Corruption> {
    let g = cache.geometry();
    for (n, p) in held.iter().enumerate() {
        let at = *p as usize;
        if page_of(*p).is_none_or(|page| page.cache() != cache.id()) {
            return Err(wrong("a queue's entry that is no object of the cache", at));
        }
        let Some((head, index)) = g.find(*p) else {
            return Err(wrong("a queue's entry that is where no object starts", at));
        };
        if head.node() != node {
            return Err(wrong("an object in a queue of another node", at));
        }
        if granule::cell(*p).is_none_or(|mark| mark.load(Relaxed) != 0) {
            return Err(wrong("an object in a queue that is marked as in use", at));
        }
        if bitmap::is_free(&SlabBits::of(g, head, head.address()), index) {
            return Err(wrong(
                "an object in a queue that is free in its slab too",
                at,
            ));
        }
        if held[..n].contains(p) {
            return Err(wrong("an object twice in a queue", at));
        }
    }
    Ok(())
}
