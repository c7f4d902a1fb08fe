//! Slabs: chunks of pages whose free objects are bits in the page records.
//!
//! ```text
//!   page record of each page:  private[0..4] = 256 bits, one a granule:
//!                              set where a free object starts
//!   head page's word:          [ in use or queued : 32 | free : 32 ]
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

/// One object less in use or queued, and one more free, in a head page's word.
const FREED: u64 = 1u64.wrapping_sub(1 << 32);

pub(crate) fn objects(head: PageRef) -> usize {
    let word = head.word.load(Relaxed);
    (word >> 32) as usize + word as u32 as usize
}

pub(crate) fn free_objects(head: PageRef) -> usize {
    head.word.load(Relaxed) as u32 as usize
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

/// The bits of a page's objects, in its record.
pub(crate) type Bits = [u64; 4];

/// The bits of the `page`th page of a slab of `count` objects, all free.
pub(crate) fn bits_of_page(page: usize, stride: usize, count: usize) -> Bits {
    const GRANULES: usize = PAGE_SIZE >> GRANULE_SHIFT;
    let step = stride >> GRANULE_SHIFT;
    let start = page * GRANULES;
    let end = ((page + 1) * GRANULES).min(count * step);
    let mut words = [0u64; 4];
    let mut granule = start.next_multiple_of(step);
    while granule < end {
        words[(granule >> 6) & 3] |= 1 << (granule & 63);
        granule += step;
    }
    words
}

/// Makes a slab of `count` free objects of fresh pages. `first`: the bits of its first
/// page, which for most slabs is the only one.
pub(crate) fn init(head: PageRef, cache: u32, stride: usize, count: usize, first: &Bits) {
    for (n, page) in pages(head).enumerate() {
        page.set_cache(cache);
        let words = match n {
            0 => *first,
            _ => bits_of_page(n, stride, count),
        };
        for (cell, word) in page.private.iter().zip(words) {
            cell.store(word, Relaxed);
        }
    }
    head.set_kind(PageKind::Slab);
    head.word.store(count as u64, Relaxed);
}

/// Takes up to `out.len()` free objects in address order; returns how many.
pub(crate) fn take(head: PageRef, out: &mut [*mut u8]) -> usize {
    let want = out.len().min(free_objects(head));
    let mut places = out[..want].iter_mut();
    let base = head.address();
    'slab: for (n, page) in pages(head).enumerate() {
        for (w, cell) in page.private.iter().enumerate() {
            let mut word = cell.load(Relaxed);
            if word == 0 {
                continue;
            }
            let at = base.wrapping_add((n << PAGE_SHIFT) + (w << (6 + GRANULE_SHIFT)));
            while word != 0 {
                let Some(place) = places.next() else {
                    cell.store(word, Relaxed);
                    break 'slab;
                };
                *place = at.wrapping_add((word.trailing_zeros() as usize) << GRANULE_SHIFT);
                word &= word - 1;
            }
            cell.store(0, Relaxed);
        }
    }
    let got = want - places.len();
    let word = head.word.load(Relaxed);
    head.word
        .store(word.wrapping_sub(FREED.wrapping_mul(got as u64)), Relaxed);
    got
}

/// What the freeing of objects did to their slab.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Freed {
    /// It has free objects, and had some before.
    More,
    /// It has its first free objects, and others in use.
    First,
    /// None of its objects is in use or queued; it had free ones before.
    Last,
    /// It was full, and has none in use or queued now.
    All,
}

/// Marks the first of `objects`, which lies in `page` of the slab at `head`, free, and those
/// after it that lie there too; returns how many, and what became of the slab.
#[inline]
pub(crate) fn put(head: PageRef, page: PageRef, objects: &[*mut u8]) -> (usize, Freed) {
    match objects {
        // The case of objects freed in no order: nothing to gather.
        [p, q, ..] if !is_same_page(*p, *q) => {
            mark_free(page, *p);
            (1, count_free(head, 1))
        }
        [p, rest @ ..] => {
            mark_free(page, *p);
            let more = rest.iter().take_while(|q| is_same_page(*p, **q));
            let n = 1 + more.map(|q| mark_free(page, *q)).count();
            (n, count_free(head, n))
        }
        [] => (0, Freed::More),
    }
}

#[inline]
fn is_same_page(p: *mut u8, q: *mut u8) -> bool {
    (p as usize ^ q as usize) < PAGE_SIZE
}

#[inline]
fn mark_free(page: PageRef, p: *mut u8) {
    let granule = p as usize >> GRANULE_SHIFT;
    let cell = &page.private[(granule >> 6) & 3];
    let bit = 1 << (granule & 63);
    debug_assert_eq!(cell.load(Relaxed) & bit, 0);
    cell.store(cell.load(Relaxed) | bit, Relaxed);
}

#[inline]
fn count_free(head: PageRef, n: usize) -> Freed {
    let before = head.word.load(Relaxed);
    let word = before.wrapping_add(FREED.wrapping_mul(n as u64));
    head.word.store(word, Relaxed);
    match (before as u32 == 0, word >> 32 == 0) {
        (false, false) => Freed::More,
        (true, false) => Freed::First,
        (false, true) => Freed::Last,
        (true, true) => Freed::All,
    }
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
            let count = order.bytes() / stride;
            init(head, 7, stride, count, &bits_of_page(0, stride, count));
            assert_eq!(free_objects(head), count);
            let mut out = vec![core::ptr::null_mut(); count + 5];
            let first = take(head, &mut out[..count / 2]);
            let rest = take(head, &mut out[first..]);
            assert_eq!(first + rest, count);
            let first = head.address() as usize;
            let addresses = (0..count).map(|i| first + i * stride);
            assert!(addresses.eq(out[..count].iter().map(|p| *p as usize)));
            // By pages, as a flush does, with one object on its own first.
            let mut back = 0;
            while back < count {
                let to = if back == 0 { 1 } else { count };
                let page = page_of(out[back]).unwrap();
                let (n, freed) = put(head, page, &out[back..to]);
                let expected = match (back, count - back - n) {
                    (0, 0) => Freed::All,
                    (0, _) => Freed::First,
                    (_, 0) => Freed::Last,
                    _ => Freed::More,
                };
                back += n;
                assert_eq!((n > 0, freed), (true, expected));
                assert_eq!((free_objects(head), objects(head)), (back, count));
            }
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
