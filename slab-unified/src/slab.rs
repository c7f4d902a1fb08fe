//! Slabs: chunks of pages whose free objects are bits in the page records.
//!
//! ```text
//!   head page's record:  private[0..4] = 256 bits, one for each 1/256 of the slab:
//!                        set where a free object starts
//!                        word = [ in use or queued : 32 | free : 32 ]
//! ```
//! With a bit for each part of the slab rather than for each object, the bit of an
//! object follows from its address by a shift, without a division by its size; where
//! the slab is one page, a part is a granule, and the address follows from the bit too.
//! Slabs of several pages and more objects than that (only those with a guard page,
//! [`guard`], are such) have a bit for each granule, in the records of all their pages.
//! The node's lock guards all of it.

#![deny(unsafe_code)]

use core::sync::atomic::Ordering::Relaxed;

use page_alloc::{
    GRANULE_SHIFT, Order, PAGE_SHIFT, PAGE_SIZE, PageKind, PageMap, PageRef, page_of, sparse,
};
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
    (0..1usize << head.order()).filter_map(move |i| match i {
        0 => Some(head),
        _ => page_of(head.address().wrapping_add(i << PAGE_SHIFT)),
    })
}

/// The bits in a page's record.
pub(crate) type Bits = [u64; 4];

/// The most objects of a compact slab: they are then at least 1/256 of the slab apart, also
/// where a guard takes an eighth of it.
const COMPACT: usize = 223;

/// Whether all bits of a slab of so many objects are in its head page's record, by parts.
/// (Those of one page are there in any case, and a part is a granule.)
#[inline]
pub(crate) fn is_compact(objects: usize) -> bool {
    objects <= COMPACT
}

/// log2 of the bytes that a bit of a compact slab stands for: its objects are at least so
/// many bytes apart.
#[inline]
fn part_shift(order: u8) -> usize {
    GRANULE_SHIFT + order as usize
}

/// The bits of a head page's record when all of `count` objects are free.
pub(crate) fn bits_of_head(order: u8, stride: usize, count: usize) -> Bits {
    if count > COMPACT {
        return bits_of_page(0, stride, count);
    }
    let mut words = [0u64; 4];
    for offset in (0..count).map(|i| i * stride) {
        let part = offset >> part_shift(order);
        words[(part >> 6) & 3] |= 1 << (part & 63);
    }
    words
}

/// The bits of the `page`th page of a slab of `count` objects, all free.
fn bits_of_page(page: usize, stride: usize, count: usize) -> Bits {
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

/// Makes a slab of `count` free objects of fresh pages. `first`: [`bits_of_head`].
pub(crate) fn init(head: PageRef, cache: u32, stride: usize, count: usize, first: &Bits) {
    for (n, page) in pages(head).enumerate() {
        page.set_cache(cache);
        let words = match n {
            0 => *first,
            _ if count > COMPACT => bits_of_page(n, stride, count),
            _ => continue,
        };
        for (cell, word) in page.private.iter().zip(words) {
            cell.store(word, Relaxed);
        }
    }
    head.set_kind(PageKind::Slab);
    head.word.store(count as u64, Relaxed);
}

/// Takes up to `out.len()` free objects in address order; returns how many.
/// They are `stride` bytes apart. In a page of small objects the order begins at the
/// quarter `turn` (modulo 4), and comes to those before it last: a cache line of the granule
/// map covers a quarter, and threads that take turns of their own from one slab do not
/// write to each other's lines with each malloc and free.
pub(crate) fn take(head: PageRef, stride: usize, turn: usize, out: &mut [*mut u8]) -> usize {
    let want = out.len().min(free_objects(head));
    if head.order() > 0 && is_compact(objects(head)) {
        take_few(head, stride, &mut out[..want]);
    } else {
        take_by_bit(head, turn, &mut out[..want]);
    }
    let word = head.word.load(Relaxed);
    head.word
        .store(word.wrapping_sub(FREED.wrapping_mul(want as u64)), Relaxed);
    want
}

/// Fills `out` from a slab of some pages, in which the objects are fewer than the bits.
fn take_few(head: PageRef, stride: usize, out: &mut [*mut u8]) {
    let (base, shift) = (head.address(), part_shift(head.order()));
    let mut places = out.iter_mut();
    for offset in (0..objects(head)).map(|i| i * stride) {
        let part = offset >> shift;
        let cell = &head.private[(part >> 6) & 3];
        let (word, bit) = (cell.load(Relaxed), 1 << (part & 63));
        if word & bit != 0 {
            let Some(place) = places.next() else {
                return;
            };
            *place = base.wrapping_add(offset);
            cell.store(word & !bit, Relaxed);
        }
    }
}

/// Fills `out` from a slab with a bit for each granule.
fn take_by_bit(head: PageRef, turn: usize, out: &mut [*mut u8]) {
    let mut places = out.iter_mut();
    let base = head.address();
    'slab: for (n, page) in pages(head).enumerate() {
        for i in 0..page.private.len() {
            let w = (turn + i) % page.private.len();
            let cell = &page.private[w];
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

/// Where a slab's bits are, for [`put`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) order: u8,
    /// A slab of several pages whose bits are all in its head page's record.
    pub(crate) compact: bool,
}

/// What stopped a [`put`] short of the end: the objects of one slab that it freed last.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stop {
    pub(crate) head: PageRef,
    /// How many they were.
    pub(crate) run: usize,
    pub(crate) freed: Freed,
}

impl Stop {
    /// Of a slab whose word was `before` and is `word`.
    #[cold]
    #[inline(never)]
    fn new(head: PageRef, before: u64, word: u64) -> Self {
        Self {
            head,
            run: (word as u32).wrapping_sub(before as u32) as usize,
            freed: match (before as u32 == 0, word >> 32 == 0) {
                (false, false) => Freed::More,
                (true, false) => Freed::First,
                (false, true) => Freed::Last,
                (true, true) => Freed::All,
            },
        }
    }
}

/// Marks `objects` free in their slabs, up to and including those of a slab that turns
/// ([`Freed`]) or that is quiet or was sparse. Returns how many it marked, and what it stopped
/// at; fewer than all and no stop is an object that `map` does not know, or one of another node
/// than `home`.
///
/// The one loop that each object of a flush passes through, on its own so that all of it stays
/// in registers. `ONE`: slabs are of one page. `MANY`: there are several nodes.
#[inline(never)]
pub(crate) fn put<const ONE: bool, const MANY: bool>(
    map: PageMap,
    home: usize,
    shape: Shape,
    objects: &[*mut u8],
) -> (usize, Option<Stop>) {
    let order = if ONE { 0 } else { shape.order };
    let compact = !ONE && shape.compact;
    let mut last = core::ptr::null();
    let mut n = 0;
    while let Some(p) = objects.get(n)
        && let Some((head, page)) = map.find(*p, order)
    {
        if MANY && head.node() != home {
            break;
        }
        let (bits, order) = if compact { (head, order) } else { (page, 0) };
        mark_free(bits, order, *p);
        n += 1;
        let before = head.word.load(Relaxed);
        let mut word = before.wrapping_add(FREED);
        // The second of one slab, or page: more may follow.
        if core::ptr::eq(bits, last) {
            let more = run(bits, order, *p, &objects[n..]);
            n += more;
            word = word.wrapping_add(FREED.wrapping_mul(more as u64));
        }
        last = bits;
        head.word.store(word, Relaxed);
        if before as u32 == 0 || word >> 32 == 0 || sparse::is_quiet_or_was_sparse(head) {
            return (n, Some(Stop::new(head, before, word)));
        }
    }
    (n, None)
}

/// Marks those of `objects` free that follow `p` in the same slab (slabs are aligned to their
/// size), or page; returns how many.
#[inline]
fn run(bits: PageRef, order: u8, p: *mut u8, objects: &[*mut u8]) -> usize {
    let together = |q: &&*mut u8| (**q as usize ^ p as usize) < PAGE_SIZE << order;
    let mark = |q: &*mut u8| mark_free(bits, order, *q);
    objects.iter().take_while(together).map(mark).count()
}

#[inline(always)]
fn mark_free(home: PageRef, order: u8, p: *mut u8) {
    let part = p as usize >> part_shift(order);
    let cell = &home.private[(part >> 6) & 3];
    let bit = 1 << (part & 63);
    debug_assert_eq!(cell.load(Relaxed) & bit, 0);
    cell.store(cell.load(Relaxed) | bit, Relaxed);
}

/// Calls `f` with every free object of a slab whose objects are `stride` bytes apart, by
/// address.
pub(crate) fn for_each_free(head: PageRef, stride: usize, mut f: impl FnMut(*mut u8)) {
    for_each(head, stride, |p, free| {
        if free {
            f(p);
        }
    });
}

/// Calls `f` with every object that is not free, likewise.
pub(crate) fn for_each_taken(head: PageRef, stride: usize, mut f: impl FnMut(*mut u8)) {
    for_each(head, stride, |p, free| {
        if !free {
            f(p);
        }
    });
}

/// Calls `f` with every object of a slab and whether it is free.
fn for_each(head: PageRef, stride: usize, mut f: impl FnMut(*mut u8, bool)) {
    let (base, compact) = (head.address(), is_compact(objects(head)));
    let order = if compact { head.order() } else { 0 };
    let mut home = head;
    for offset in (0..objects(head)).map(|i| i * stride) {
        let p = base.wrapping_add(offset);
        if !compact {
            // A slab's pages are an arena's.
            home = page_of(p).unwrap_or(head);
        }
        let part = p as usize >> part_shift(order);
        let word = home.private[(part >> 6) & 3].load(Relaxed);
        f(p, word >> (part & 63) & 1 != 0);
    }
}

/// Whether a bit is set where no object starts.
pub(crate) fn has_stray_bit(head: PageRef, stride: usize) -> bool {
    let mut free = 0;
    for_each_free(head, stride, |_| free += 1);
    let homes = pages(head).take(if is_compact(objects(head)) {
        1
    } else {
        usize::MAX
    });
    let words = homes.flat_map(|page| page.private.iter());
    let bits: u32 = words.map(|word| word.load(Relaxed).count_ones()).sum();
    bits as usize != free
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use page_alloc::{Migratetype, alloc_pages, free_pages};

    #[test]
    fn takes_every_object_once_in_address_order() {
        let ordinary = [16, 48, 64, 112, 1008, 4096, 9216, 32768].map(|s| (s, order_for(s, 0)));
        // With a guard, small objects have slabs of several pages.
        let guarded = [16, 112, 128, 144].map(|s| (s, order_for(s, PAGE_SIZE)));
        for (stride, order) in ordinary.into_iter().chain(guarded) {
            let head = alloc_pages(order, Migratetype::Unmovable).unwrap();
            let room = order.bytes() - if order.get() >= 3 { PAGE_SIZE } else { 0 };
            let count = (room / stride).max(1);
            init(
                head,
                7,
                stride,
                count,
                &bits_of_head(order.get(), stride, count),
            );
            assert_eq!(free_objects(head), count);
            let mut out = vec![core::ptr::null_mut(); count + 5];
            let first = take(head, stride, 0, &mut out[..count / 2]);
            let rest = take(head, stride, 4, &mut out[first..]);
            assert_eq!(first + rest, count);
            let first = head.address() as usize;
            let addresses = (0..count).map(|i| first + i * stride);
            assert!(addresses.eq(out[..count].iter().map(|p| *p as usize)));
            // As a flush does, with one object on its own first.
            let shape = Shape {
                order: order.get(),
                compact: order.get() > 0 && is_compact(count),
            };
            let mut back = 0;
            while back < count {
                let to = if back == 0 { 1 } else { count };
                let put = if order.get() == 0 {
                    put::<true, false>
                } else {
                    put::<false, false>
                };
                let (n, stop) = put(PageMap::now(), 0, shape, &out[back..to]);
                let expected = match (back, count - back - n) {
                    (0, 0) => Freed::All,
                    (0, _) => Freed::First,
                    (_, 0) => Freed::Last,
                    _ => Freed::More,
                };
                back += n;
                assert!(n > 0);
                assert_eq!(stop.map_or(Freed::More, |stop| stop.freed), expected);
                assert_eq!((free_objects(head), objects(head)), (back, count));
            }
            let mut seen = 0;
            for_each_free(head, stride, |_| seen += 1);
            assert_eq!(seen, count);
            assert!(!has_stray_bit(head, stride));
            take(head, stride, 3, &mut out[..count.div_ceil(3)]);
            let mut taken = vec![];
            for_each_taken(head, stride, |p| taken.push(p));
            out[..count.div_ceil(3)].sort_unstable();
            assert_eq!(taken, out[..count.div_ceil(3)]);
            free_pages(head).unwrap();
        }
    }

    #[test]
    fn turns_begin_in_quarters_of_their_own() {
        let order = order_for(64, 0);
        let head = alloc_pages(order, Migratetype::Unmovable).unwrap();
        init(head, 7, 64, 64, &bits_of_head(order.get(), 64, 64));
        let mut out = [core::ptr::null_mut(); 64];
        for turn in 0..4 {
            assert_eq!(take(head, 64, turn, &mut out[turn * 5..][..5]), 5);
        }
        assert_eq!(take(head, 64, 6, &mut out[20..]), 44);
        let place = |p: &*mut u8| (*p as usize - head.address() as usize) / 64;
        let taken: Vec<usize> = out.iter().map(place).collect();
        for turn in 0..4 {
            assert!(
                taken[turn * 5..][..5]
                    .iter()
                    .eq((turn * 16..).take(5).collect::<Vec<_>>().iter())
            );
        }
        let rest = [37..48, 53..64, 5..16, 21..32].into_iter().flatten();
        assert!(taken[20..].iter().copied().eq(rest));
        free_pages(head).unwrap();
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
