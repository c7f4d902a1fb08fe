//! Slabs: freelists inside the free objects, with encoded links.
//!
//! ```text
//!   slab:   [ object | object | object | ... | rest ]       1 to 32 pages
//!   free object:  ....[ (distance of the next + 8) ^ key ]....   4 bytes, near its middle
//! ```
//! A link is no pointer but a distance from the slab's start (plus 8, so that 0 can
//! mean "none"), encoded with a key that follows from a secret of the process and the
//! slab's address. Whoever overwrites a link makes a distance that is larger than the
//! slab but once in some 32,000 attempts, which the next allocation notices; and
//! whatever it decodes to, it never leads out of the slab. The link lies near the
//! object's middle, where an overflow of the neighbour does not reach first (behind
//! the object when the cache has a constructor).

use core::sync::atomic::{AtomicU8, AtomicUsize, Ordering::Relaxed};

use page_alloc::{Order, PAGE_SIZE, PageKind, PageRef, chunk_of, page_of};

use slab_api::guard;

use crate::shuffle::Shuffle;

/// The largest order of a slab.
pub(crate) const MAX_ORDER: u8 = 5;
/// What a distance in a link, or in a slot's list, is larger by than the real one.
pub(crate) const BIAS: usize = 8;

/// What all slabs of a cache have in common, and what follows from a slab's order.
#[derive(Debug)]
pub(crate) struct Shape {
    pub(crate) stride: usize,
    /// Where in an object its link is.
    pub(crate) offset: usize,
    /// Bytes of the guard behind each slab.
    pub(crate) guard: usize,
    /// 2^32 / stride, rounded up.
    reciprocal: u64,
    /// Objects of a slab, by its order.
    objects: [u16; MAX_ORDER as usize + 1],
    /// The order of a slot's first slab.
    first: u8,
    /// The order of slabs when a slot has used much of the cache.
    most: AtomicU8,
}

/// The order that slabs of a cache in full use have. Small objects, up to 256 bytes,
/// take [`SMALL_ORDER`]; then the kernel's rule: the lowest order up to 3 with at least
/// 12 objects that wastes at most 1/16, else 1/8, else 1/4; objects too large for that
/// take the order up to 5 that wastes least.
pub(crate) fn order_for(stride: usize, guard: usize) -> u8 {
    if stride <= 256 {
        return SMALL_ORDER;
    }
    // 4 * (fls(cpus) + 1) for two CPUs; a constant, so that the same program has the
    // same slabs on every machine.
    const MIN_OBJECTS: usize = 12;
    let least = if guard > 0 { guard::MIN_ORDER } else { 0 };
    let waste = |order: u8| room(order, guard) % stride;
    for fraction in [16, 8, 4] {
        let found = (least..=3).find(|order| {
            room(*order, guard) / stride >= MIN_OBJECTS
                && waste(*order) * fraction <= PAGE_SIZE << order
        });
        if let Some(order) = found {
            return order;
        }
    }
    let holds = |order: &u8| room(*order, guard) >= stride;
    Some(3)
        .filter(holds)
        .filter(|order| waste(*order) * 8 <= PAGE_SIZE << order)
        .or_else(|| {
            (least..=MAX_ORDER)
                .filter(holds)
                .min_by_key(|o| (waste(*o) << (MAX_ORDER - o), *o))
        })
        .unwrap_or(MAX_ORDER)
}

/// Bytes of a slab that hold objects, or could.
fn room(order: u8, guard: usize) -> usize {
    (PAGE_SIZE << order).saturating_sub(guard)
}

/// The order for small objects. The kernel would take one page; but a thread's frees
/// to other slabs than its CPU slab cost a compare-exchange each, so a larger CPU slab
/// serves longer bursts, and as its objects are linked a page at a time
/// ([`Shape::link_page`]) it takes no more memory than it uses.
const SMALL_ORDER: u8 = 4;

static SECRET: AtomicUsize = AtomicUsize::new(0);

/// The process's secret: from the kernel's random bytes for new programs.
pub(crate) fn init_secret() -> usize {
    if let known @ 1.. = SECRET.load(Relaxed) {
        return known;
    }
    // SAFETY: AT_RANDOM points at 16 random bytes for the life of the process.
    let secret = unsafe {
        let at = libc::getauxval(libc::AT_RANDOM) as *const usize;
        if at.is_null() {
            0x9e37_79b9_7f4a_7c15
        } else {
            at.add(1).read_unaligned()
        }
    };
    // Racing threads read the same bytes. Never 0: that means "not read yet".
    SECRET.store(secret | 1 << 63, Relaxed);
    secret | 1 << 63
}

/// The key of the links in the slab at `base`. Its top bit is set, so that a link of
/// zeros, the commonest thing to be written over one, decodes to no distance.
#[inline(always)]
pub(crate) fn key_of(base: usize) -> u32 {
    let mixed = (base ^ SECRET.load(Relaxed)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 32) as u32 | 1 << 31
}

/// Reads the link of a free object: the next one's distance plus 8, or 0.
///
/// # Safety
/// `p` must be a free object that nobody else uses, `offset` its shape's.
#[inline(always)]
pub(crate) unsafe fn next(p: *mut u8, offset: usize, key: u32) -> u32 {
    // SAFETY: the link's place lies inside the object's stride, aligned.
    unsafe { p.add(offset).cast::<u32>().read() ^ key }
}

/// Writes the link of a free object.
///
/// # Safety
/// As [`next`].
#[inline(always)]
pub(crate) unsafe fn set_next(p: *mut u8, offset: usize, key: u32, next: u32) {
    // SAFETY: as in `next`.
    unsafe { p.add(offset).cast::<u32>().write(next ^ key) };
}

/// The address of a slab: as the record's own, which has to search for its arena.
#[inline(always)]
pub(crate) fn base(head: PageRef) -> *mut u8 {
    core::ptr::with_exposed_provenance_mut(head.private[3].load(Relaxed) as usize)
}

/// A list of free objects of one slab, by its first: distance plus 8, or 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct List(pub(crate) u32);

impl List {
    pub(crate) const EMPTY: Self = Self(0);

    /// The list that begins with the object at `distance` bytes from the slab's start.
    #[inline(always)]
    pub(crate) fn at(distance: usize) -> Self {
        Self((distance + BIAS) as u32)
    }

    /// From a slab's word.
    #[inline(always)]
    pub(crate) fn of_name(name: u16) -> Self {
        Self(u32::from(name) << 3)
    }

    /// For a slab's word.
    #[inline(always)]
    pub(crate) fn name(self) -> u16 {
        (self.0 >> 3) as u16
    }

    #[inline(always)]
    pub(crate) fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The first object, in the slab at `base`. Only for lists that are not empty.
    #[inline(always)]
    pub(crate) fn first(self, base: *mut u8) -> *mut u8 {
        base.wrapping_add(self.0 as usize).wrapping_sub(BIAS)
    }
}

impl Shape {
    pub(crate) fn new(stride: usize, offset: usize, guard: usize) -> Self {
        let least = if guard > 0 { guard::MIN_ORDER } else { 0 };
        let objects = core::array::from_fn(|order| {
            let fits = order >= usize::from(least);
            if fits {
                (room(order as u8, guard) / stride) as u16
            } else {
                0
            }
        });
        let most = order_for(stride, guard);
        // A slot's first slab holds at least a few objects and wastes little. Slabs with
        // guards are of one order: a guard is too much of a small one.
        let first = (0..most)
            .find(|order| {
                guard == 0
                    && objects[usize::from(*order)] >= 4
                    && room(*order, guard) % stride * 8 <= PAGE_SIZE << order
            })
            .unwrap_or(most);
        Self {
            stride,
            offset,
            guard,
            reciprocal: (1u64 << 32).div_ceil(stride as u64),
            objects,
            first,
            most: AtomicU8::new(most),
        }
    }

    /// The order of slabs in full use.
    pub(crate) fn most(&self) -> u8 {
        self.most.load(Relaxed)
    }

    /// Sets it; slabs of other orders stay as they are. False when no object fits.
    pub(crate) fn set_most(&self, order: u8) -> bool {
        let fits = self.objects.get(usize::from(order)).is_some_and(|n| *n > 0);
        if fits {
            self.most.store(order, Relaxed);
        }
        fits
    }

    /// The order of the next slab of a slot that has used so many pages of slabs: no
    /// larger than all of them together, so that a thread that needs few objects holds
    /// few pages.
    pub(crate) fn order_after(&self, pages: usize) -> u8 {
        let most = self.most();
        let grown = pages.max(1).ilog2().min(u32::from(MAX_ORDER)) as u8;
        grown.max(self.first).min(most)
    }

    /// Objects of a slab in full use.
    pub(crate) fn most_objects(&self) -> u16 {
        self.objects[usize::from(self.most().min(MAX_ORDER))]
    }

    /// Objects of a slab.
    #[inline(always)]
    pub(crate) fn objects(&self, head: PageRef) -> u16 {
        self.objects[usize::from(head.order().min(MAX_ORDER))]
    }

    /// Bytes that a slab's objects take.
    #[inline(always)]
    pub(crate) fn bytes(&self, head: PageRef) -> usize {
        usize::from(self.objects(head)) * self.stride
    }

    /// The slab of an object in use, and the object's distance from its start; `None`
    /// when no arena holds it.
    #[inline(always)]
    pub(crate) fn slab_of(&self, p: *mut u8) -> Option<(PageRef, usize)> {
        // Most slabs have the same order, and then only the head's record is read. The
        // record there is of a slab of that order only if it is the object's: as long
        // as the object is in use, no other slab can cover its address.
        let order = self.most();
        let (head, distance) = chunk_of(p, order)?;
        if head.kind() == PageKind::Slab && head.order() == order {
            return Some((head, distance));
        }
        Self::slab_of_order(p)
    }

    #[inline(never)]
    fn slab_of_order(p: *mut u8) -> Option<(PageRef, usize)> {
        let head = page_of(p)?.head();
        Some((head, p as usize - base(head) as usize))
    }

    /// Makes a slab of fresh pages. Its objects are not linked yet: see
    /// [`Self::link_page`].
    pub(crate) fn init(&self, head: PageRef, cache: u32) {
        let base = head.address();
        for i in 0..1 << head.order() {
            if let Some(page) = page_of(base.wrapping_add(i * PAGE_SIZE)) {
                page.set_cache(cache);
            }
        }
        head.private[1].store(0, Relaxed);
        head.private[2].store(0, Relaxed);
        head.private[3].store(base as u64, Relaxed);
        head.set_kind(PageKind::Slab);
    }

    /// Objects of the slab that were linked so far; the others lie behind them,
    /// untouched. Only the slab's owner changes it.
    #[inline(always)]
    pub(crate) fn linked(&self, head: PageRef) -> u16 {
        head.private[2].load(Relaxed) as u16
    }

    /// Whether objects of the slab were never linked.
    #[inline(always)]
    pub(crate) fn has_unlinked(&self, head: PageRef) -> bool {
        self.linked(head) < self.objects(head)
    }

    /// Objects that are linked at a time: a page's worth.
    pub(crate) fn per_page(&self) -> usize {
        (PAGE_SIZE / self.stride).max(1)
    }

    /// Links the next page's worth of objects that were never linked, in address order
    /// or as `shuffle` says; the list is empty when all are linked.
    ///
    /// # Safety
    /// The caller must own the slab, and its unlinked objects with it.
    pub(crate) unsafe fn link_page(&self, head: PageRef, shuffle: Option<&Shuffle>) -> List {
        let from = usize::from(self.linked(head));
        let to = usize::from(self.objects(head)).min(from + self.per_page());
        let (base, key) = (base(head), key_of(base(head) as usize));
        let order = shuffle.filter(|s| s.len() == to - from).map(Shuffle::pick);
        let mut list = List::EMPTY;
        // From the last to the first, so that the first is handed out first.
        for n in (from..to).rev() {
            let index = match &order {
                Some(order) => from + order.get(n - from),
                None => n,
            };
            let distance = index * self.stride;
            // SAFETY: an object of the slab that nobody has had yet.
            unsafe { set_next(base.add(distance), self.offset, key, list.0) };
            list = List::at(distance);
        }
        head.private[2].store(to as u64, Relaxed);
        list
    }

    /// Whether a link's value names an object of the slab.
    #[inline(always)]
    pub(crate) fn is_object(&self, head: PageRef, list: List) -> bool {
        let distance = (list.0 as usize).wrapping_sub(BIAS);
        // The reciprocal is too large by less than stride / 2^32: exact for multiples
        // up to 2^17 (see the test).
        distance < self.bytes(head)
            && ((distance as u64 * self.reciprocal) >> 32) as usize * self.stride == distance
    }

    /// Walks a list of the slab; returns its last object and length. `None` when a link
    /// leads out of the slab or in a circle.
    ///
    /// # Safety
    /// The list must be the caller's, or otherwise not change.
    pub(crate) unsafe fn walk(
        &self,
        head: PageRef,
        mut list: List,
        mut f: impl FnMut(*mut u8),
    ) -> Option<(*mut u8, u16)> {
        let (base, key) = (base(head), key_of(base(head) as usize));
        let mut last = core::ptr::null_mut();
        let mut count = 0;
        while !list.is_empty() {
            if !self.is_object(head, list) || count == self.objects(head) {
                return None;
            }
            last = list.first(base);
            f(last);
            count += 1;
            // SAFETY: an object of the slab, by the check; free, by the caller.
            list = List(unsafe { next(last, self.offset, key) });
        }
        Some((last, count))
    }

    /// The order as the page layer has it.
    pub(crate) fn page_order(order: u8) -> Order {
        Order::new(order).unwrap_or(Order::ZERO)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn orders_hold_every_class() {
        for stride in (16..=32768).step_by(16) {
            let shape = Shape::new(stride, 0, 0);
            let most = order_for(stride, 0);
            assert!(shape.most() == most && most <= MAX_ORDER, "{stride}");
            assert!(shape.first <= most && shape.objects[usize::from(shape.first)] > 0);
            assert!(shape.most_objects() > 0);
        }
        assert_eq!(order_for(64, 0), SMALL_ORDER);
        assert_eq!(order_for(1024, 0), 2);
    }

    #[test]
    fn slabs_grow_with_use() {
        let shape = Shape::new(64, 32, 0);
        let mut pages = 0;
        let mut orders = Vec::new();
        while orders.len() < 8 {
            let order = shape.order_after(pages);
            assert!(1 << order <= pages.max(1), "no more than doubles");
            orders.push(order);
            pages += 1 << order;
        }
        assert_eq!(orders, [0, 0, 1, 2, 3, 4, 4, 4]);
        assert_eq!(Shape::new(32768, 0, 0).order_after(0), order_for(32768, 0));
    }

    #[test]
    fn distances_are_told_from_others_exactly() {
        for stride in (16..=65536).step_by(16) {
            let shape = Shape::new(stride, 0, 0);
            for distance in (0..PAGE_SIZE << MAX_ORDER).step_by(stride) {
                for (d, is) in [(distance, true), (distance + 8, false)] {
                    let index = ((d as u64 * shape.reciprocal) >> 32) as usize;
                    assert_eq!(index * stride == d, is, "{stride}: {d}");
                }
            }
        }
    }

    #[test]
    fn overwritten_links_lead_out_of_the_slab() {
        init_secret();
        let mut object = [0u64; 8];
        let p = object.as_mut_ptr().cast::<u8>();
        let mut inside = 0;
        for base in (0..4096usize).map(|n| n << 16) {
            let key = key_of(base);
            // SAFETY: `object` is ours and 64 bytes long.
            unsafe {
                set_next(p, 32, key, 72);
                assert_eq!(next(p, 32, key), 72);
                p.write_bytes(0, 64);
                assert!(next(p, 32, key) >= 1 << 31, "zeros are always noticed");
                p.write_bytes(0x81, 64);
                inside += usize::from((next(p, 32, key) as usize) < PAGE_SIZE << MAX_ORDER);
            }
        }
        assert!(inside <= 16, "{inside} of 4096 guesses were near");
    }
}
