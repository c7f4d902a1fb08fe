//! Slabs: freelists inside the free objects, with encoded pointers.
//!
//! ```text
//!   slab:   [ object | object | object | ... | rest ]
//!   free object:  ....[ next ^ secret ^ address ]....   near its middle
//! ```
//! The free pointer lies near the object's middle, where an overflow of the
//! neighbour does not reach first (behind the object when the cache has a
//! constructor), and is encoded with a secret of the process and its own address.
//! Whoever overwrites it makes a pointer that leads out of the slab, which the next
//! allocation notices.

use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use page_alloc::{GRANULE_SHIFT, Order, PAGE_SIZE, PageKind, PageRef, page_of};
use slab_api::guard;

/// A slab's shape, the same for all slabs of a cache.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) stride: usize,
    /// Where in an object the free pointer is.
    pub(crate) offset: usize,
    pub(crate) order: Order,
    pub(crate) objects: u16,
    /// Bytes of the guard behind each slab.
    pub(crate) guard: usize,
}

/// Small objects, up to 256 bytes, take [`SMALL_ORDER`]; then the kernel's rule: the
/// lowest order up to 3 with at least 12 objects that wastes at most 1/16, else 1/8,
/// else 1/4; objects too large for that take the order up to 5 that wastes least. The
/// last `guard` bytes of a slab hold no objects.
pub(crate) fn order_for(stride: usize, guard: usize) -> Order {
    if stride <= 256 {
        return Order::new(SMALL_ORDER).unwrap_or(Order::ZERO);
    }
    // 4 * (fls(cpus) + 1) for two CPUs; a constant, so that the same program has the
    // same slabs on every machine.
    const MIN_OBJECTS: usize = 12;
    let least = if guard > 0 { guard::MIN_ORDER } else { 0 };
    let room = |order: u8| (PAGE_SIZE << order) - guard;
    let waste = |order: u8| room(order) % stride;
    for fraction in [16, 8, 4] {
        let found = (least..=3).find(|order| {
            room(*order) / stride >= MIN_OBJECTS && waste(*order) * fraction <= PAGE_SIZE << order
        });
        if let Some(order) = found.and_then(Order::new) {
            return order;
        }
    }
    let holds = |order: &u8| room(*order) >= stride;
    (3..=3)
        .filter(holds)
        .find(|order| waste(*order) * 8 <= PAGE_SIZE << order)
        .or_else(|| {
            (least..=5)
                .filter(holds)
                .min_by_key(|o| (waste(*o) << (5 - o), *o))
        })
        .and_then(Order::new)
        .unwrap_or(Order::MAX)
}

/// The order for small objects. The kernel would take one page; but a thread's frees
/// to other slabs than its CPU slab cost a compare-exchange each, so a larger CPU slab
/// serves longer bursts, and as its objects are linked a page at a time
/// ([`Shape::link_page`]) it takes no more memory than it uses.
const SMALL_ORDER: u8 = 4;

static SECRET: AtomicUsize = AtomicUsize::new(0);

/// The process's secret: from the kernel's random bytes for new programs.
pub(crate) fn init_secret() {
    if SECRET.load(Relaxed) != 0 {
        return;
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
}

#[inline(always)]
fn code(place: usize) -> usize {
    SECRET.load(Relaxed) ^ place
}

/// Reads the free object's next one.
///
/// # Safety
/// `p` must be an object that nobody else uses, `offset` its shape's.
#[inline(always)]
pub(crate) unsafe fn next(p: *mut u8, offset: usize) -> *mut u8 {
    // SAFETY: the free pointer's place lies inside the object's stride, aligned.
    unsafe {
        let place = p.add(offset).cast::<usize>();
        core::ptr::with_exposed_provenance_mut(place.read() ^ code(place as usize))
    }
}

/// Writes the free object's next one.
///
/// # Safety
/// As [`next`].
#[inline(always)]
pub(crate) unsafe fn set_next(p: *mut u8, offset: usize, next: *mut u8) {
    // SAFETY: as in `next`.
    unsafe {
        let place = p.add(offset).cast::<usize>();
        place.write(next as usize ^ code(place as usize));
    }
}

/// The name of an object in its slab's word.
#[inline]
pub(crate) fn granule_of(head: PageRef, p: *mut u8) -> u16 {
    ((p as usize - head.address() as usize) >> GRANULE_SHIFT) as u16 + 1
}

/// The object of that name; null for 0.
#[inline]
pub(crate) fn object_at(head: PageRef, granule: u16) -> *mut u8 {
    object_in(head.address(), granule)
}

/// As [`object_at`] for a slab that starts at `base`.
#[inline]
pub(crate) fn object_in(base: *mut u8, granule: u16) -> *mut u8 {
    match granule {
        0 => core::ptr::null_mut(),
        n => base.wrapping_add((n as usize - 1) << GRANULE_SHIFT),
    }
}

impl Shape {
    /// Bytes of a slab.
    pub(crate) fn bytes(&self) -> usize {
        self.order.bytes()
    }

    /// Makes a slab of fresh pages. Its objects are not linked yet: see
    /// [`Self::link_page`].
    pub(crate) fn init(&self, head: PageRef, cache: u32) {
        let base = head.address();
        for i in 0..self.order.pages() {
            if let Some(page) = page_of(base.wrapping_add(i * PAGE_SIZE)) {
                page.set_cache(cache);
            }
        }
        head.set_kind(PageKind::Slab);
        head.private[2].store(0, Relaxed);
    }

    /// Objects of the slab that were linked so far; the others lie behind them,
    /// untouched. Only the slab's owner changes it.
    pub(crate) fn linked(&self, head: PageRef) -> u16 {
        head.private[2].load(Relaxed) as u16
    }

    /// Links the next page's worth of objects that were never linked, in address
    /// order; returns the first, null when all are linked.
    ///
    /// # Safety
    /// The caller must own the slab, and its unlinked objects with it.
    pub(crate) unsafe fn link_page(&self, head: PageRef) -> *mut u8 {
        // SAFETY: promised by the caller.
        unsafe { self.link(head, (PAGE_SIZE / self.stride).max(1) as u16) }
    }

    /// As [`Self::link_page`] for up to `count` objects.
    ///
    /// # Safety
    /// As [`Self::link_page`].
    pub(crate) unsafe fn link(&self, head: PageRef, count: u16) -> *mut u8 {
        let from = self.linked(head);
        let to = self.objects.min(from.saturating_add(count));
        if from == to {
            return core::ptr::null_mut();
        }
        let base = head.address();
        for i in usize::from(from)..usize::from(to) {
            let p = base.wrapping_add(i * self.stride);
            let next = if i + 1 < usize::from(to) {
                p.wrapping_add(self.stride)
            } else {
                core::ptr::null_mut()
            };
            // SAFETY: an object of the slab that nobody has had yet.
            unsafe { set_next(p, self.offset, next) };
        }
        head.private[2].store(u64::from(to), Relaxed);
        base.wrapping_add(usize::from(from) * self.stride)
    }

    /// Whether `p` starts an object of the slab.
    pub(crate) fn is_object(&self, head: PageRef, p: *mut u8) -> bool {
        let offset = (p as usize).wrapping_sub(head.address() as usize);
        offset < self.objects as usize * self.stride && offset.is_multiple_of(self.stride)
    }

    /// Walks a freelist of the slab from `p`; returns its last object and length.
    /// `None` when a link leads out of the slab or in a circle.
    ///
    /// # Safety
    /// The list must be the caller's, or otherwise not change.
    pub(crate) unsafe fn walk(
        &self,
        head: PageRef,
        mut p: *mut u8,
        mut f: impl FnMut(*mut u8),
    ) -> Option<(*mut u8, u16)> {
        let mut last = core::ptr::null_mut();
        let mut count = 0;
        while !p.is_null() {
            if !self.is_object(head, p) || count == self.objects {
                return None;
            }
            f(p);
            count += 1;
            last = p;
            // SAFETY: an object of the slab, by the check; free, by the caller.
            p = unsafe { next(p, self.offset) };
        }
        Some((last, count))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn orders_hold_every_class() {
        for stride in (16..=32768).step_by(16) {
            let order = order_for(stride, 0);
            assert!(order.bytes() >= stride && order.get() <= 5, "{stride}");
            assert!(order.bytes() / stride < u16::MAX as usize);
        }
        assert_eq!(order_for(64, 0).get(), SMALL_ORDER);
        assert_eq!(order_for(1024, 0).get(), 2);
    }

    #[test]
    fn overwritten_links_lead_out_of_the_slab() {
        init_secret();
        let mut object = [0u64; 8];
        let p = object.as_mut_ptr().cast::<u8>();
        // SAFETY: `object` is ours and 64 bytes long.
        unsafe {
            set_next(p, 32, p);
            assert_eq!(next(p, 32), p);
            p.write_bytes(0x41, 64);
            let far = (next(p, 32) as usize).abs_diff(p as usize);
            assert!(far > 1 << 32, "a guessed link stays near: {far:x}");
        }
    }
}
