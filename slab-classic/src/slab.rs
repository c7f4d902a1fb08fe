//! Slabs: geometry, colours, and the stack of free indices.
//!
//! ```text
//!   slab:   | colour | object 0 | object 1 | ... | object n-1 | (stack) | rest |
//!   stack:  [ in use ... | next | ... | last ]      n indices of 8 or 16 bits
//!                          ^ active
//!   head page's word:  [ link : 32 | colour in granules : 16 | active : 16 ]
//! ```
//! To allocate is to read `stack[active++]`, to free is to write `stack[--active]`;
//! the objects themselves are not touched. The node's lock guards all of it.
//!
//! Where the stack lies ([`Placement`]): with at most 32 objects in the head page's
//! record, where 32 bytes are to spare; otherwise in the metadata pool. Both are out
//! of reach of an overflow. The two places that SLAB preferred, a free object and
//! the slab's end, cost no memory for objects that leave a rest, but one byte
//! written past an object would make the allocator hand out wild pointers; they are
//! there to be asked for.

use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};

use page_alloc::{GRANULE_SHIFT, Order, PAGE_SHIFT, PAGE_SIZE, PageKind, PageRef, meta, page_of};
use slab_api::gaps::Gaps;
use slab_api::guard;

/// Bytes of index stack that fit a page's record.
const IN_RECORD: usize = 32;
/// The largest order of a slab.
const MAX_ORDER: u8 = 5;
/// The smallest step between colours: a cache line.
const LINE: usize = 64;
/// Objects that the largest slab can have.
pub(crate) const MAX_OBJECTS: usize = (PAGE_SIZE << MAX_ORDER) >> GRANULE_SHIFT;

// The word has 16 bits for the number of objects in use, and 16 for the colour.
const _: () = assert!(MAX_OBJECTS < 1 << 16);

/// Where a slab's stack of free indices lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// In the page's record or the metadata pool: out of reach of overflows. The
    /// default.
    Outside,
    /// In the free object that will be handed out last. Only for objects without a
    /// constructor, and as large as the stack; [`Self::Outside`] otherwise.
    InFreeObject,
    /// Behind the last object.
    AtEnd,
}

/// What all slabs of a cache have in common.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Geometry {
    pub(crate) stride: usize,
    pub(crate) order: Order,
    /// Keeps of an object's address that of its slab: slabs are aligned to their size.
    mask: usize,
    /// Objects a slab.
    pub(crate) objects: usize,
    /// Places where a slab can start.
    pub(crate) colours: usize,
    pub(crate) colour_off: usize,
    /// 2^32 / stride, rounded up.
    reciprocal: u64,
    placement: Placement,
    /// Indices have 16 bits.
    wide: bool,
    /// Bytes of the guard behind each slab.
    pub(crate) guard: usize,
}

impl Geometry {
    pub(crate) fn new(
        stride: usize,
        align: usize,
        placement: Placement,
        constructed: bool,
        guard: usize,
    ) -> Self {
        let least = if guard > 0 { guard::MIN_ORDER } else { 0 };
        let width = |objects: usize| if objects > 256 { 2 } else { 1 };
        // Objects of a slab, and the bytes that neither they nor the stack use.
        let fit = |order: u8| {
            let bytes = (PAGE_SIZE << order) - guard;
            let mut objects = bytes / stride;
            let mut stack = 0;
            if placement == Placement::AtEnd {
                while objects > 0 && objects * stride + stack_bytes(objects, width(objects)) > bytes
                {
                    objects -= 1;
                }
                stack = stack_bytes(objects, width(objects));
            }
            (objects, bytes - objects * stride - stack)
        };
        let holds = |order: &u8| fit(*order).0 > 0;
        let order = (least..=MAX_ORDER)
            .filter(holds)
            .find(|order| fit(*order).1 * 8 <= PAGE_SIZE << order)
            // Rests of slabs of different sizes, brought to the largest.
            .or_else(|| {
                (least..=MAX_ORDER)
                    .filter(holds)
                    .min_by_key(|order| (fit(*order).1 << (MAX_ORDER - order), *order))
            })
            .unwrap_or(MAX_ORDER);
        let (objects, rest) = fit(order);
        let colour_off = LINE.max(align);
        let unfit = placement == Placement::InFreeObject
            && (constructed || objects * width(objects) > stride);
        Self {
            stride,
            order: Order::new(order).unwrap_or(Order::MAX),
            mask: !((PAGE_SIZE << order) - 1),
            objects,
            colours: (rest / colour_off).max(1),
            colour_off,
            reciprocal: (1u64 << 32).div_ceil(stride as u64),
            placement: if unfit { Placement::Outside } else { placement },
            wide: width(objects) == 2,
            guard,
        }
    }

    fn bytes_of_stack(&self) -> usize {
        self.objects << u32::from(self.wide)
    }

    /// Whether the index stack lies outside of the slab.
    pub(crate) fn is_outside(&self) -> bool {
        self.placement == Placement::Outside
    }

    fn in_pool(&self) -> bool {
        self.placement == Placement::Outside && self.bytes_of_stack() > IN_RECORD
    }

    /// The index of the object at so many bytes from the first one: a multiple of the
    /// stride. The reciprocal is too large by less than stride / 2^32, so the product
    /// for n * stride lies above n * 2^32 by less than n * stride <= 2^17: exact.
    #[inline(always)]
    fn index(&self, offset: usize) -> usize {
        ((offset as u64 * self.reciprocal) >> 32) as usize
    }

    /// The address of the slab that an object lies in.
    #[inline(always)]
    pub(crate) fn base_of(&self, p: *mut u8) -> usize {
        p as usize & self.mask
    }

    /// Bytes from the slab's start to the object with this index, without the colour.
    #[inline(always)]
    fn offset(&self, index: usize) -> usize {
        index * self.stride
    }
}

const fn stack_bytes(objects: usize, width: usize) -> usize {
    (objects * width).next_multiple_of(2)
}

/// The head page's word, taken apart.
#[derive(Clone, Copy)]
struct State {
    /// Objects that are not in the slab: in use or in arrays.
    active: usize,
    /// Bytes before the first object.
    colour: usize,
    /// Index of the stack in the pool, or of the object that holds it, plus one.
    link: u32,
}

impl State {
    fn of(head: PageRef) -> Self {
        let word = head.word.load(Relaxed);
        Self {
            active: word as u16 as usize,
            colour: ((word >> 16) as u16 as usize) << GRANULE_SHIFT,
            link: (word >> 32) as u32,
        }
    }

    fn store(self, head: PageRef) {
        let colour = (self.colour >> GRANULE_SHIFT) as u64;
        head.word.store(
            u64::from(self.link) << 32 | colour << 16 | self.active as u64,
            Relaxed,
        );
    }
}

/// A slab's stack of indices.
#[derive(Clone, Copy)]
struct Stack {
    at: *mut u8,
    wide: bool,
}

impl Stack {
    fn of(g: &Geometry, head: PageRef, state: State) -> Self {
        let at = match g.placement {
            Placement::Outside if g.in_pool() => meta::at(state.link.wrapping_sub(1)),
            // The words are atomics: they may be written through a shared reference.
            Placement::Outside => head.private.as_ptr().cast_mut().cast(),
            Placement::InFreeObject => head
                .address()
                .wrapping_add(state.colour + g.offset(state.link.wrapping_sub(1) as usize)),
            Placement::AtEnd => {
                let end = state.colour + g.offset(g.objects);
                head.address().wrapping_add(end)
            }
        };
        Self { at, wide: g.wide }
    }

    #[inline(always)]
    fn get(self, place: usize) -> usize {
        // SAFETY: the stack has room for as many indices as the slab has objects, and
        // callers stay below that. The node's lock is held. All places are aligned to
        // two bytes.
        unsafe {
            if self.wide {
                self.at.cast::<u16>().add(place).read() as usize
            } else {
                self.at.add(place).read() as usize
            }
        }
    }

    #[inline(always)]
    fn set(self, place: usize, index: usize) {
        // SAFETY: as in `get`.
        unsafe {
            if self.wide {
                self.at.cast::<u16>().add(place).write(index as u16);
            } else {
                self.at.add(place).write(index as u8);
            }
        }
    }
}

/// Objects of a slab that are in use or in arrays.
#[inline]
pub(crate) fn active(head: PageRef) -> usize {
    State::of(head).active
}

static COLOURING: AtomicBool = AtomicBool::new(true);

/// Switches the colouring of slabs on (the default) or off, to measure what it is
/// worth. Slabs made so far stay as they are.
pub fn set_colouring(on: bool) {
    COLOURING.store(on, Relaxed);
}

/// Bytes before the slab's first object.
pub(crate) fn colour(head: PageRef) -> usize {
    State::of(head).colour
}

/// Makes a slab of fresh pages, with all objects free and the given colour. False
/// without memory for its stack: the pages are then the caller's still.
pub(crate) fn init(g: &Geometry, head: PageRef, cache: u32, colour: usize) -> bool {
    let link = match g.placement {
        Placement::Outside if g.in_pool() => match meta::alloc(g.bytes_of_stack()) {
            Some(stack) => meta::index_of(stack.as_ptr()) + 1,
            None => return false,
        },
        // The last object is the last to be handed out.
        Placement::InFreeObject => g.objects as u32,
        _ => 0,
    };
    for page in 0..g.order.pages() {
        if let Some(page) = page_of(head.address().wrapping_add(page << PAGE_SHIFT)) {
            page.set_cache(cache);
        }
    }
    head.set_kind(PageKind::Slab);
    let colours = if COLOURING.load(Relaxed) {
        g.colours
    } else {
        1
    };
    let state = State {
        active: 0,
        colour: (colour % colours) * g.colour_off,
        link,
    };
    state.store(head);
    let stack = Stack::of(g, head, state);
    for index in 0..g.objects {
        stack.set(index, index);
    }
    true
}

/// Gives the pages of a slab that is on no list back, and its stack.
pub(crate) fn discard(g: &Geometry, head: PageRef) {
    let link = State::of(head).link;
    if g.in_pool()
        && let Some(index) = link.checked_sub(1)
        && let Some(stack) = NonNull::new(meta::at(index))
    {
        // SAFETY: made by `init` with this size; nobody uses the slab any more.
        unsafe { meta::free(stack, g.bytes_of_stack()) };
    }
    guard::free_slab(head, g.guard);
}

/// Takes up to `out.len()` free objects; returns how many.
pub(crate) fn take(g: &Geometry, head: PageRef, out: &mut [*mut u8]) -> usize {
    let mut state = State::of(head);
    let stack = Stack::of(g, head, state);
    let first = head.address().wrapping_add(state.colour);
    let n = out.len().min(g.objects.saturating_sub(state.active));
    for (i, cell) in out[..n].iter_mut().enumerate() {
        *cell = first.wrapping_add(g.offset(stack.get(state.active + i)));
    }
    state.active += n;
    if state.active == g.objects && g.placement == Placement::InFreeObject {
        // The object that held the stack is out; a full slab needs none.
        state.link = 0;
    }
    state.store(head);
    n
}

/// Puts objects of this slab back; returns how many were in use or in arrays before, and how
/// many are now.
#[inline(always)]
pub(crate) fn give(g: &Geometry, head: PageRef, objects: &[*mut u8]) -> (usize, usize) {
    let mut state = State::of(head);
    let before = state.active;
    // Cheaper than from the head's record.
    let base = objects.first().map_or(0, |p| g.base_of(*p));
    debug_assert!(objects.is_empty() || base == head.address() as usize);
    let first = base + state.colour;
    if g.placement == Placement::InFreeObject
        && state.link == 0
        && let Some(p) = objects.first()
    {
        // The first to come back lies deepest, and so is the last to leave again.
        state.link = g.index(*p as usize - first) as u32 + 1;
    }
    let stack = Stack::of(g, head, state);
    for p in objects {
        debug_assert!(state.active > 0, "more objects freed than were in use");
        let Some(active) = state.active.checked_sub(1) else {
            break;
        };
        state.active = active;
        stack.set(active, g.index((*p as usize).wrapping_sub(first)));
    }
    state.store(head);
    (before, state.active)
}

/// Calls `f` with the index of each free object, as the stack has it.
pub(crate) fn for_each_free(g: &Geometry, head: PageRef, mut f: impl FnMut(usize)) {
    let state = State::of(head);
    if state.active >= g.objects {
        return;
    }
    let stack = Stack::of(g, head, state);
    for place in state.active..g.objects {
        f(stack.get(place));
    }
}

/// The slab's free objects, a bit each by its index.
pub(crate) fn free_map(g: &Geometry, head: PageRef) -> [u64; MAX_OBJECTS / 64] {
    let mut free = [0u64; MAX_OBJECTS / 64];
    for_each_free(g, head, |index| {
        // Below the number of objects, or the stack was overwritten.
        if let Some(word) = free.get_mut(index / 64) {
            *word |= 1 << (index % 64);
        }
    });
    free
}

/// Gives back the pages of the slab that lie wholly in free objects; returns how many.
/// The node's lock must be held, and the objects' content be of no use: no constructor,
/// and no index stack among them.
pub(crate) fn discard_free(g: &Geometry, head: PageRef) -> usize {
    let (start, first) = (head.address() as usize, object(g, head, 0) as usize);
    let mut gaps = Gaps::new(
        start..start + g.order.bytes() - g.guard,
        first..first + g.offset(g.objects),
    );
    // The stack has the indices in any order.
    let free = free_map(g, head);
    for index in (0..g.objects).filter(|i| free[i / 64] >> (i % 64) & 1 != 0) {
        // SAFETY: a free object of the slab, by address; the node's lock keeps it so, and
        // the stack is not in the slab.
        unsafe { gaps.add(object(g, head, index), g.stride) };
    }
    gaps.finish()
}

/// The address of the object with this index.
pub(crate) fn object(g: &Geometry, head: PageRef, index: usize) -> *mut u8 {
    head.address()
        .wrapping_add(State::of(head).colour + g.offset(index))
}

/// A null pointer: an array's place that holds nothing.
pub(crate) const NONE: *mut u8 = ptr::null_mut();

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use page_alloc::{Migratetype, alloc_pages};

    #[test]
    fn indices_follow_from_addresses() {
        for stride in (16..=32768).step_by(16) {
            let g = Geometry::new(stride, 16, Placement::Outside, false, 0);
            for index in 0..g.objects {
                assert_eq!(g.index(g.offset(index)), index, "{stride}");
            }
        }
    }

    #[test]
    fn slabs_waste_little_and_colours_keep_alignment() {
        for stride in (0..slab_api::class::CLASSES).map(slab_api::class::size) {
            let align = (1 << stride.trailing_zeros()).min(PAGE_SIZE);
            let g = Geometry::new(stride, align, Placement::Outside, false, 0);
            let bytes = g.order.bytes();
            let rest = bytes - g.objects * stride;
            assert!(g.objects > 0 && g.order.get() <= MAX_ORDER);
            // No slab of up to order 5 holds 22 or 26 KiB with less waste.
            let eighths = if matches!(stride >> 10, 22 | 26) {
                1.5
            } else {
                1.0
            };
            assert!(
                rest as f64 * 8.0 <= bytes as f64 * eighths,
                "{stride}: {rest} of {bytes}"
            );
            assert!(g.colour_off.is_multiple_of(align));
            assert!((g.colours - 1) * g.colour_off <= rest, "{stride}");
        }
    }

    #[test]
    fn every_object_once_whatever_the_placement() {
        for placement in [
            Placement::Outside,
            Placement::InFreeObject,
            Placement::AtEnd,
        ] {
            for stride in [16, 48, 64, 112, 128, 1008, 4096, 9216] {
                let g = Geometry::new(stride, 16, placement, false, 0);
                let head = alloc_pages(g.order, Migratetype::Unmovable).unwrap();
                assert!(init(&g, head, 7, 1));
                let mut out = vec![NONE; g.objects + 5];
                let some = take(&g, head, &mut out[..g.objects / 2]);
                let all = some + take(&g, head, &mut out[some..]);
                assert_eq!(all, g.objects);
                assert_eq!(active(head), g.objects);
                let mut seen: Vec<_> = out[..all].to_vec();
                for p in &seen {
                    // SAFETY: objects of the slab, all handed out.
                    unsafe { p.write_bytes(0xff, stride) };
                }
                seen.sort_unstable();
                for (i, p) in seen.iter().enumerate() {
                    assert_eq!(*p, object(&g, head, i));
                }
                // Back in another order, in two parts.
                out[..all].reverse();
                give(&g, head, &out[..all / 3]);
                give(&g, head, &out[all / 3..all]);
                assert_eq!(active(head), 0);
                let mut again = vec![NONE; all];
                assert_eq!(take(&g, head, &mut again), all);
                again.sort_unstable();
                assert_eq!(again, seen);
                give(&g, head, &again);
                discard(&g, head);
            }
        }
    }

    #[test]
    fn constructed_objects_hold_no_stack() {
        let g = Geometry::new(512, 16, Placement::InFreeObject, true, 0);
        assert_eq!(g.placement, Placement::Outside);
        let g = Geometry::new(16, 16, Placement::InFreeObject, false, 0);
        assert_eq!(g.placement, Placement::Outside, "too large for an object");
    }
}
