//! Slabs: chunks of pages whose free objects are bits in the page records.
//!
//! ```text
//!   page record of each page:  private[0..4] = 256 bits, one a granule:
//!                              set where a free object starts
//!   head page's word:          [ objects : 32 | free : 32 ]
//! ```
//! With a bit for each granule rather than for each object, the address of an
//! object follows from its bit by a shift, and the bit from the address, without
//! a division by the object's size. The node's lock guards all of it.

#![deny(unsafe_code)]

use core::sync::atomic::Ordering::Relaxed;

use page_alloc::{GRANULE_SHIFT, Order, PAGE_SHIFT, PAGE_SIZE, PageKind, PageRef, page_of};
use slab_api::guard;

/// Chooses the slab's order: the smallest with at least eight objects (or order 3)
/// that wastes at most an eighth; failing that, the one up to order 5 that wastes
/// least. The last `guard` bytes of a slab hold no objects.
pub(crate) fn order_for(stride: usize, guard: usize) -> Order {
    let least = if guard > 0 { guard::MIN_ORDER } else { 0 };
    let room = |order: u8| (PAGE_SIZE << order) - guard;
    let waste = |order: u8| (room(order) % stride, order);
    let holds = |order: &u8| room(*order) >= stride;
    let enough = |order: &u8| *order >= 3 || room(*order) / stride >= 8;
    (least..=5)
        .filter(holds)
        .find(|order| enough(order) && waste(*order).0 * 8 <= PAGE_SIZE << order)
        // Shares of slabs of different sizes, brought to the largest.
        .or_else(|| {
            (least..=5)
                .filter(holds)
                .min_by_key(|o| (waste(*o).0 << (5 - o), *o))
        })
        .and_then(Order::new)
        .unwrap_or(Order::MAX)
}

pub(crate) fn objects(head: PageRef) -> usize {
    (head.word.load(Relaxed) >> 32) as usize
}

pub(crate) fn free_objects(head: PageRef) -> usize {
    head.word.load(Relaxed) as u32 as usize
}

fn set_counts(head: PageRef, objects: usize, free: usize) {
    head.word
        .store((objects as u64) << 32 | free as u64, Relaxed);
}

fn pages(head: PageRef) -> impl Iterator<Item = PageRef> {
    let base = head.address() as usize;
    let order = head.order();
    (0..1usize << order).filter_map(move |i| {
        if i == 0 {
            return Some(head);
        }
        page_of(core::ptr::with_exposed_provenance(base + (i << PAGE_SHIFT)))
    })
}

/// Makes a slab of `count` free objects of fresh pages.
pub(crate) fn init(head: PageRef, cache: u32, stride: usize, count: usize) {
    let step = stride >> GRANULE_SHIFT;
    let mut granule = 0;
    let end = count * step;
    for (n, page) in pages(head).enumerate() {
        page.set_cache(cache);
        let mut words = [0u64; 4];
        let page_end = (n + 1) << (PAGE_SHIFT - GRANULE_SHIFT);
        while granule < page_end.min(end) {
            words[(granule >> 6) & 3] |= 1 << (granule & 63);
            granule += step;
        }
        for (cell, word) in page.private.iter().zip(words) {
            cell.store(word, Relaxed);
        }
    }
    head.set_kind(PageKind::Slab);
    set_counts(head, count, count);
}

/// Takes up to `out.len()` free objects in address order; returns how many.
pub(crate) fn take(head: PageRef, out: &mut [*mut u8]) -> usize {
    let free = free_objects(head);
    let want = out.len().min(free);
    let mut got = 0;
    let base = head.address();
    for (n, page) in pages(head).enumerate() {
        if got == want {
            break;
        }
        for (w, cell) in page.private.iter().enumerate() {
            let mut word = cell.load(Relaxed);
            if word == 0 {
                continue;
            }
            let at = base.wrapping_add((n << PAGE_SHIFT) + (w << (6 + GRANULE_SHIFT)));
            while word != 0 && got < want {
                let bit = word.trailing_zeros() as usize;
                out[got] = at.wrapping_add(bit << GRANULE_SHIFT);
                word &= word - 1;
                got += 1;
            }
            cell.store(word, Relaxed);
        }
    }
    set_counts(head, objects(head), free - got);
    got
}

/// Marks the object at `p`, in `page` of the slab, free. The slab's count is the
/// caller's to correct, by [`add_free`], once for each group.
#[inline]
pub(crate) fn put(page: PageRef, p: *mut u8) {
    let offset = p as usize & (PAGE_SIZE - 1);
    let cell = &page.private[offset >> (6 + GRANULE_SHIFT)];
    let bit = 1 << (offset >> GRANULE_SHIFT & 63);
    debug_assert_eq!(cell.load(Relaxed) & bit, 0);
    cell.store(cell.load(Relaxed) | bit, Relaxed);
}

/// Counts objects marked by [`put`]; returns the slab's free objects before.
pub(crate) fn add_free(head: PageRef, count: usize) -> usize {
    let before = free_objects(head);
    set_counts(head, objects(head), before + count);
    before
}

/// Calls `f` with every free object of a slab.
pub(crate) fn for_each_free(head: PageRef, mut f: impl FnMut(*mut u8)) {
    let base = head.address();
    for (n, page) in pages(head).enumerate() {
        for (w, cell) in page.private.iter().enumerate() {
            let mut word = cell.load(Relaxed);
            while word != 0 {
                let bit = word.trailing_zeros() as usize;
                f(base.wrapping_add(
                    (n << PAGE_SHIFT) + (w << (6 + GRANULE_SHIFT)) + (bit << GRANULE_SHIFT),
                ));
                word &= word - 1;
            }
        }
    }
}

/// Calls `f` with every object that is not free, of a slab whose objects are `stride`
/// bytes apart.
pub(crate) fn for_each_taken(head: PageRef, stride: usize, mut f: impl FnMut(*mut u8)) {
    let base = head.address();
    let bytes = objects(head) * stride;
    for (n, page) in pages(head).enumerate() {
        let start = (n << PAGE_SHIFT).next_multiple_of(stride);
        for offset in (start..bytes.min((n + 1) << PAGE_SHIFT)).step_by(stride) {
            let granule = (offset & (PAGE_SIZE - 1)) >> GRANULE_SHIFT;
            if page.private[granule >> 6].load(Relaxed) >> (granule & 63) & 1 == 0 {
                f(base.wrapping_add(offset));
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use page_alloc::{Migratetype, alloc_pages, free_pages};

    #[test]
    fn takes_every_object_once_in_address_order() {
        for stride in [16, 48, 64, 112, 1000_usize.next_multiple_of(16), 4096, 9216] {
            let order = order_for(stride, 0);
            let head = alloc_pages(order, Migratetype::Unmovable).unwrap();
            init(head, 7, stride, order.bytes() / stride);
            let count = order.bytes() / stride;
            assert_eq!(free_objects(head), count);
            let mut out = vec![core::ptr::null_mut(); count + 5];
            let first = take(head, &mut out[..count / 2]);
            let rest = take(head, &mut out[first..]);
            assert_eq!(first + rest, count);
            for (i, p) in out[..count].iter().enumerate() {
                assert_eq!(*p as usize, head.address() as usize + i * stride);
                put(page_of(*p).unwrap(), *p);
            }
            assert_eq!(add_free(head, count), 0);
            let mut seen = 0;
            for_each_free(head, |_| seen += 1);
            assert_eq!(seen, count);
            take(head, &mut out[..count.div_ceil(3)]);
            let mut taken = vec![];
            for_each_taken(head, stride, |p| taken.push(p));
            assert_eq!(taken, out[..count.div_ceil(3)]);
            free_pages(head).unwrap();
        }
    }

    #[test]
    fn orders_waste_little() {
        for stride in (16..=32768).step_by(16) {
            let bytes = order_for(stride, 0).bytes();
            assert!(bytes >= stride, "{stride}");
        }
        assert_eq!(order_for(64, 0).get(), 0);
    }
}
