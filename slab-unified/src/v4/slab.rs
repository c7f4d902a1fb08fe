//! Slabs: geometry, and where the bits of the free objects lie.
//!
//! ```text
//!   slab:         | object 0 | object 1 | ... | object n-1 | rest | (bitmap) | (guard) |
//!   head page:    word = bitmap of up to 64 objects;  private[0] = free objects
//! ```
//! The lock of the slab's node guards all of it.

use core::sync::atomic::Ordering::Relaxed;

use page_alloc::{Order, PAGE_SHIFT, PAGE_SIZE, PageKind, PageRef, chunk_of, page_of};
use slab_api::guard;

use super::bitmap::{self, Bits};

/// The largest order of a slab: for objects that fit no smaller one well.
const MAX_ORDER: u8 = 5;
/// Objects that a slab should have: 4 * (fls(CPUs) + 1) for two CPUs. A constant, so that
/// the same program has the same slabs on every machine.
const MIN_OBJECTS: usize = 12;
/// Objects whose bits fit the head page's word.
const IN_WORD: usize = 64;

/// What all slabs of a cache have in common.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Geometry {
    pub(crate) stride: usize,
    pub(crate) order: Order,
    /// Objects a slab.
    pub(crate) objects: usize,
    /// 2^32 / stride, rounded up.
    reciprocal: u64,
    /// Bytes of the guard behind each slab.
    pub(crate) guard: usize,
}

/// Objects of a slab with so much room, and the bytes used up by nothing.
fn fit(room: usize, stride: usize) -> (usize, usize) {
    let mut objects = room / stride;
    if objects <= IN_WORD {
        return (objects, room - objects * stride);
    }
    let with_bits = |objects: usize| objects * stride + objects.div_ceil(64) * 8;
    while with_bits(objects) > room {
        objects -= 1;
    }
    // Down here the bits fit the word again; the room that they left is waste.
    (objects, room.saturating_sub(with_bits(objects)))
}

impl Geometry {
    pub(crate) fn new(stride: usize, guard: usize) -> Self {
        let order = order_for(stride, guard);
        Self {
            stride,
            order,
            objects: fit(order.bytes() - guard, stride).0,
            reciprocal: (1u64 << 32).div_ceil(stride as u64),
            guard,
        }
    }

    /// The index of the object at so many bytes from the slab's start: a multiple of the
    /// stride. The reciprocal is too large by less than 1, so the product for n * stride
    /// lies above n * 2^32 by less than n * stride <= 2^17: exact.
    fn index(&self, offset: usize) -> usize {
        ((offset as u64 * self.reciprocal) >> 32) as usize
    }

    /// The slab of an object, and the object's index; `None` for what is no object.
    pub(crate) fn find(&self, p: *mut u8) -> Option<(PageRef, usize)> {
        let (head, distance) = chunk_of(p, self.order.get())?;
        let index = self.index(distance);
        (index < self.objects && index * self.stride == distance).then_some((head, index))
    }
}

/// SLUB's rule: the lowest order up to 3 with enough objects that wastes at most 1/16,
/// else 1/8, else 1/4, else with fewer objects. What fits none takes the order up to 5
/// that wastes least.
fn order_for(stride: usize, guard: usize) -> Order {
    let least = if guard > 0 { guard::MIN_ORDER } else { 0 };
    let room = |order: u8| (PAGE_SIZE << order) - guard;
    let holds = |order: &u8| room(*order) >= stride;
    (1..=MIN_OBJECTS)
        .rev()
        .flat_map(|objects| [16, 8, 4].map(|fraction| (objects, fraction)))
        .find_map(|(objects, fraction)| {
            (least..=3).find(|order| {
                let (fits, waste) = fit(room(*order), stride);
                fits >= objects && waste * fraction <= PAGE_SIZE << order
            })
        })
        .or_else(|| {
            // Shares of slabs of different sizes, brought to the largest.
            let waste = |order: u8| fit(room(order), stride).1 << (MAX_ORDER - order);
            (least..=MAX_ORDER)
                .filter(holds)
                .min_by_key(|order| (waste(*order), *order))
        })
        .and_then(Order::new)
        .unwrap_or(Order::MAX)
}

/// The bits of a slab's free objects.
pub(crate) enum SlabBits {
    /// In the head page's word.
    Word(PageRef),
    /// Behind the last object: the first of so many words.
    Tail(*mut u64, usize),
}

impl SlabBits {
    pub(crate) fn of(g: &Geometry, head: PageRef, base: *mut u8) -> Self {
        if g.objects <= IN_WORD {
            return Self::Word(head);
        }
        let words = g.objects.div_ceil(64);
        let end = g.order.bytes() - g.guard;
        Self::Tail(base.wrapping_add(end - words * 8).cast(), words)
    }
}

impl Bits for SlabBits {
    fn words(&self) -> usize {
        match self {
            Self::Word(_) => 1,
            Self::Tail(_, words) => *words,
        }
    }

    fn get(&self, place: usize) -> u64 {
        match self {
            Self::Word(head) => head.word.load(Relaxed),
            Self::Tail(at, words) => {
                debug_assert!(place < *words);
                // SAFETY: the words lie inside the slab, behind its last object, aligned
                // (objects are multiples of 16 bytes, slabs whole pages); callers stay
                // below `words` and hold the node's lock.
                unsafe { at.add(place).read() }
            }
        }
    }

    fn set(&mut self, place: usize, word: u64) {
        match self {
            Self::Word(head) => head.word.store(word, Relaxed),
            Self::Tail(at, words) => {
                debug_assert!(place < *words);
                // SAFETY: as in `get`.
                unsafe { at.add(place).write(word) };
            }
        }
    }
}

/// Free objects of a slab.
pub(crate) fn free_objects(head: PageRef) -> usize {
    head.private[0].load(Relaxed) as usize
}

fn set_free_objects(head: PageRef, free: usize) {
    head.private[0].store(free as u64, Relaxed);
}

/// Makes a slab of fresh pages, with all objects free.
pub(crate) fn init(g: &Geometry, head: PageRef, cache: u32) {
    let base = head.address();
    for page in 0..g.order.pages() {
        if let Some(page) = page_of(base.wrapping_add(page << PAGE_SHIFT)) {
            page.set_cache(cache);
        }
    }
    head.set_kind(PageKind::Slab);
    bitmap::fill(&mut SlabBits::of(g, head, base), g.objects);
    set_free_objects(head, g.objects);
}

/// Gives the pages of a slab that is on no list back.
pub(crate) fn discard(g: &Geometry, head: PageRef) {
    guard::free_slab(head, g.guard);
}

/// Takes the first free object and the run behind it, at most `out.len()`; how many.
pub(crate) fn take_run(g: &Geometry, head: PageRef, out: &mut [*mut u8]) -> usize {
    let base = head.address();
    let mut bits = SlabBits::of(g, head, base);
    let Some((first, count)) = bitmap::take_run(&mut bits, g.objects, out.len()) else {
        return 0;
    };
    for (n, cell) in out[..count].iter_mut().enumerate() {
        *cell = base.wrapping_add((first + n) * g.stride);
    }
    set_free_objects(head, free_objects(head).saturating_sub(count));
    count
}

/// Puts an object back; false when it is free already.
pub(crate) fn put(g: &Geometry, head: PageRef, index: usize, p: *mut u8) -> bool {
    let base = p.wrapping_sub(index * g.stride);
    let new = bitmap::put(&mut SlabBits::of(g, head, base), g.objects, index);
    if new {
        set_free_objects(head, free_objects(head) + 1);
    }
    new
}

/// The address of the object with this index.
pub(crate) fn object(g: &Geometry, head: PageRef, index: usize) -> *mut u8 {
    head.address().wrapping_add(index * g.stride)
}

/// Calls `f` with each free object, by address.
pub(crate) fn for_each_free(g: &Geometry, head: PageRef, mut f: impl FnMut(*mut u8)) {
    let base = head.address();
    let bits = SlabBits::of(g, head, base);
    for place in 0..bits.words() {
        let mut word = bits.get(place) & bitmap::mask(g.objects, place);
        while word != 0 {
            let index = place * 64 + word.trailing_zeros() as usize;
            f(base.wrapping_add(index * g.stride));
            word &= word - 1;
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use page_alloc::{Migratetype, alloc_pages};

    #[test]
    fn indices_follow_from_addresses() {
        for stride in (16..=32768).step_by(16) {
            let g = Geometry::new(stride, 0);
            assert!(g.objects > 0, "{stride}");
            for index in 0..g.objects {
                assert_eq!(g.index(index * stride), index, "{stride}");
            }
            let bits = if g.objects > IN_WORD {
                g.objects.div_ceil(64) * 8
            } else {
                0
            };
            assert!(g.objects * stride + bits <= g.order.bytes(), "{stride}");
        }
    }

    #[test]
    fn orders_follow_the_rule() {
        let shape = |stride| {
            let g = Geometry::new(stride, 0);
            (g.order.get(), g.objects)
        };
        assert_eq!(shape(64), (0, 64), "bits in the word");
        assert_eq!(shape(32), (0, 127), "bits behind the objects");
        assert_eq!(shape(16), (0, 254));
        assert_eq!(shape(1024), (2, 16));
        assert_eq!(shape(32768), (3, 1));
    }

    #[test]
    fn every_object_once_in_runs() {
        for stride in [16, 32, 48, 64, 112, 1008, 4096, 9216] {
            let g = Geometry::new(stride, 0);
            let head = alloc_pages(g.order, Migratetype::Unmovable).unwrap();
            init(&g, head, 7);
            assert_eq!(free_objects(head), g.objects);
            let mut out = vec![core::ptr::null_mut(); g.objects + 5];
            let some = take_run(&g, head, &mut out[..g.objects.div_ceil(2)]);
            let all = some + take_run(&g, head, &mut out[some..]);
            assert_eq!((all, free_objects(head)), (g.objects, 0));
            for (index, p) in out[..all].iter().enumerate() {
                assert_eq!(*p, object(&g, head, index));
                // SAFETY: objects of the slab, all handed out.
                unsafe { p.write_bytes(0xff, stride) };
            }
            for p in out[..all].iter().rev() {
                let (found, index) = g.find(*p).unwrap();
                assert!(core::ptr::eq(found, head));
                assert!(put(&g, head, index, *p) && !put(&g, head, index, *p));
                assert!(g.find(p.wrapping_add(8)).is_none());
            }
            let mut seen = 0;
            for_each_free(&g, head, |p| {
                assert_eq!(p, object(&g, head, seen));
                seen += 1;
            });
            assert_eq!((seen, free_objects(head)), (g.objects, g.objects));
            discard(&g, head);
        }
    }
}
