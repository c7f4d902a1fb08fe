//! Arenas: large aligned reservations, grown from the bottom, with the page map.
//!
//! ```text
//!   reservation: [ granule map: 1/16 | page records: 1/64 | blocks | whole | heap .. ]
//!                                                          base ^   frontier ^
//! ```
//! The whole reservation is inaccessible address space at first. A region's
//! frontier moves up as the zone needs memory; heap and metadata below it are
//! committed. Address -> record is a subtraction, a shift and an index; a pointer
//! outside every arena's committed heap is foreign, exactly. When a reservation
//! is refused (RLIMIT_AS, valgrind, a container) half of it is asked for, down to
//! [`SMALLEST`]; when an arena is full another one is reserved.
//!
//! With several nodes the heap is split into one region a node.
//!
//! Lock order: cache locks, then zone, then [`GROWTH`] here, then the metadata
//! pool.

use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU8, AtomicU64, AtomicUsize, Ordering};

use crate::block::{BLOCK_HUGE, Block};
use crate::config;
use crate::granule;
use crate::os::{self, Userfault};
use crate::page::{Page, PageKind, PageRef};
use crate::sync::Lock;
use crate::topology::{self, MAX_NODES};
use crate::types::{
    GRANULE_SHIFT, MAX_ORDER, PAGE_SHIFT, PAGE_SIZE, PAGEBLOCK_ORDER, PAGEBLOCK_PAGES,
    PAGEBLOCK_SIZE,
};

const MAX_ARENAS: usize = 64;
/// Heap bytes of a full-size arena: address space only.
const LARGEST: usize = 256 << 30;
/// Heap bytes below which no arena is worth having.
const SMALLEST: usize = 4 << 20;
/// Metadata is committed for so much heap at a time.
const META_STEP: usize = 64 << 20;

/// A node's part of an arena, in pages from the arena's base.
struct Region {
    start: AtomicUsize,
    end: AtomicUsize,
    frontier: AtomicUsize,
    meta_end: AtomicUsize,
    /// Below this, memory is registered with the process's userfaultfd.
    registered: AtomicUsize,
}

/// One reservation.
pub(crate) struct Arena {
    base: AtomicUsize,
    /// Heap pages, committed or not.
    pages: AtomicUsize,
    map: AtomicPtr<AtomicU8>,
    records: AtomicPtr<Page>,
    blocks: AtomicPtr<Block>,
    /// A bit for each block: wholly free, and on its zone's list.
    whole: AtomicPtr<AtomicU64>,
    /// Pages of each node's region but the last.
    share: AtomicUsize,
    regions: [Region; MAX_NODES],
}

static ARENAS: [Arena; MAX_ARENAS] = [const { Arena::empty() }; MAX_ARENAS];
/// Arenas that exist. Release on growth pairs with acquire in the look-ups.
static COUNT: AtomicUsize = AtomicUsize::new(0);
/// Serialises reservation and growth.
pub(crate) static GROWTH: Lock<()> = Lock::new(());
/// Heap bytes committed in all arenas.
static COMMITTED: AtomicUsize = AtomicUsize::new(0);

/// A page by its place: arena and index.
#[derive(Clone, Copy)]
pub(crate) struct Frame {
    pub(crate) arena: &'static Arena,
    pub(crate) index: usize,
}

/// A fresh part of an arena: pages that were never used and read as zero.
pub(crate) struct Growth {
    pub(crate) start: Frame,
    pub(crate) pages: usize,
}

impl Arena {
    const fn empty() -> Self {
        Self {
            base: AtomicUsize::new(0),
            pages: AtomicUsize::new(0),
            map: AtomicPtr::new(ptr::null_mut()),
            records: AtomicPtr::new(ptr::null_mut()),
            blocks: AtomicPtr::new(ptr::null_mut()),
            whole: AtomicPtr::new(ptr::null_mut()),
            share: AtomicUsize::new(usize::MAX),
            regions: [const {
                Region {
                    start: AtomicUsize::new(0),
                    end: AtomicUsize::new(0),
                    frontier: AtomicUsize::new(0),
                    meta_end: AtomicUsize::new(0),
                    registered: AtomicUsize::new(0),
                }
            }; MAX_NODES],
        }
    }

    #[inline]
    pub(crate) fn base(&self) -> usize {
        self.base.load(Ordering::Relaxed)
    }

    /// The record of the page `index`, which must lie below a frontier.
    #[inline]
    pub(crate) fn page(&self, index: usize) -> PageRef {
        debug_assert!(index < self.pages.load(Ordering::Relaxed));
        // SAFETY: records are committed below each frontier and never unmapped;
        // callers pass indices from frames, which lie below one.
        unsafe { &*self.records.load(Ordering::Relaxed).add(index) }
    }

    /// The pageblock of the page `index`, which must lie below a frontier.
    #[inline]
    pub(crate) fn block(&self, index: usize) -> &'static Block {
        debug_assert!(index < self.pages.load(Ordering::Relaxed));
        // SAFETY: block records are committed below each frontier and never
        // unmapped; callers pass indices from frames, which lie below one.
        unsafe {
            &*self
                .blocks
                .load(Ordering::Relaxed)
                .add(index >> PAGEBLOCK_ORDER)
        }
    }

    #[inline]
    pub(crate) fn address(&self, index: usize) -> *mut u8 {
        ptr::with_exposed_provenance_mut(self.base() + (index << PAGE_SHIFT))
    }

    /// The node whose region holds the page `index`.
    #[inline]
    pub(crate) fn node_of(&self, index: usize) -> usize {
        match topology::nodes() {
            1 => 0,
            nodes => (index / self.share.load(Ordering::Relaxed)).min(nodes - 1),
        }
    }

    /// The granule map of the page `index` and those after it.
    #[inline]
    pub(crate) fn granules(&self, index: usize) -> *mut u8 {
        let map = self.map.load(Ordering::Relaxed).cast::<u8>();
        map.wrapping_add(index << (PAGE_SHIFT - GRANULE_SHIFT))
    }

    fn region_of(&self, index: usize) -> &Region {
        &self.regions[self.node_of(index)]
    }

    fn whole_word(&self, block: usize) -> &AtomicU64 {
        // SAFETY: a bit for each block of the heap, committed when the arena is made.
        unsafe { &*self.whole.load(Ordering::Relaxed).add(block / 64) }
    }

    /// Notes whether the block of the page `index` is wholly free.
    pub(crate) fn set_whole(&self, index: usize, whole: bool) {
        let block = index >> PAGEBLOCK_ORDER;
        // A step, not a load and a store: two regions may share a word.
        let (word, bit) = (self.whole_word(block), 1u64 << (block % 64));
        if whole {
            word.fetch_or(bit, Ordering::Relaxed);
        } else {
            word.fetch_and(!bit, Ordering::Relaxed);
        }
    }

    /// The first stretch [from, to) of wholly free blocks' pages at or behind the page
    /// `at`, below `end`.
    pub(crate) fn next_whole(&self, at: usize, end: usize) -> Option<(usize, usize)> {
        let limit = end >> PAGEBLOCK_ORDER;
        let next = |mut block: usize, set: bool| {
            while block < limit {
                let word = self.whole_word(block).load(Ordering::Relaxed);
                let word = (if set { word } else { !word }) >> (block % 64);
                if word != 0 {
                    return (block + word.trailing_zeros() as usize).min(limit);
                }
                block = block / 64 * 64 + 64;
            }
            limit
        };
        let from = next(at.div_ceil(PAGEBLOCK_PAGES), true);
        let to = next(from, false);
        (from < to).then_some((from << PAGEBLOCK_ORDER, to << PAGEBLOCK_ORDER))
    }

    /// The pages [start, frontier) of the region that holds the page `index`:
    /// where its buddies can be.
    #[inline]
    pub(crate) fn bounds(&self, index: usize) -> (usize, usize) {
        let region = self.region_of(index);
        (
            region.start.load(Ordering::Relaxed),
            region.frontier.load(Ordering::Relaxed),
        )
    }

    /// Registers the region of the page `index` with a userfaultfd, up to its frontier,
    /// unless that was done; false when the kernel refuses.
    pub(crate) fn register(&self, index: usize, fd: Userfault) -> bool {
        let region = self.region_of(index);
        if index < region.registered.load(Ordering::Relaxed) {
            return true;
        }
        let (start, frontier) = self.bounds(index);
        // SAFETY: committed memory of this arena.
        let done = unsafe { fd.register(self.address(start), (frontier - start) << PAGE_SHIFT) };
        if done {
            region.registered.store(frontier, Ordering::Relaxed);
        }
        done
    }

    fn holds_record(&self, page: *const Page) -> bool {
        let records = self.records.load(Ordering::Relaxed) as usize;
        (page as usize).wrapping_sub(records) < self.pages.load(Ordering::Relaxed) << 6
    }

    fn holds_address(&self, p: usize) -> bool {
        let offset = p.wrapping_sub(self.base());
        if offset >> PAGE_SHIFT >= self.pages.load(Ordering::Relaxed) {
            return false;
        }
        let (_, frontier) = self.bounds(offset >> PAGE_SHIFT);
        offset >> PAGE_SHIFT < frontier
    }
}

/// The arenas that exist.
pub(crate) fn arenas() -> &'static [Arena] {
    &ARENAS[..COUNT.load(Ordering::Acquire)]
}

/// Heap bytes committed so far: the limit that `arena_max` bounds.
pub fn committed_bytes() -> usize {
    COMMITTED.load(Ordering::Relaxed)
}

fn arena_of_record(page: *const Page) -> &'static Arena {
    if ARENAS[0].holds_record(page) {
        return &ARENAS[0];
    }
    // A record exists only inside an arena, so the search finds one.
    arenas()
        .iter()
        .find(|a| a.holds_record(page))
        .unwrap_or(&ARENAS[0])
}

/// The place of a page.
#[inline]
pub(crate) fn frame_of(page: &Page) -> Frame {
    let arena = arena_of_record(page);
    let offset = ptr::from_ref(page) as usize - arena.records.load(Ordering::Relaxed) as usize;
    Frame {
        arena,
        index: offset >> 6,
    }
}

/// The place of a block: its first page.
pub(crate) fn frame_of_block(block: &Block) -> Frame {
    let at = ptr::from_ref(block) as usize;
    let offset_in = |arena: &Arena| {
        let blocks = arena.blocks.load(Ordering::Relaxed) as usize;
        let bytes = (arena.pages.load(Ordering::Relaxed) >> PAGEBLOCK_ORDER) * size_of::<Block>();
        let offset = at.wrapping_sub(blocks);
        (offset < bytes).then_some(offset)
    };
    // A record exists only inside an arena, so the search finds one.
    let (arena, offset) = match offset_in(&ARENAS[0]) {
        Some(offset) => (&ARENAS[0], offset),
        None => arenas()
            .iter()
            .find_map(|arena| Some((arena, offset_in(arena)?)))
            .unwrap_or((&ARENAS[0], 0)),
    };
    Frame {
        arena,
        index: (offset / size_of::<Block>()) << PAGEBLOCK_ORDER,
    }
}

/// The address of a page.
#[inline]
pub(crate) fn address_of(page: &Page) -> *mut u8 {
    let frame = frame_of(page);
    frame.arena.address(frame.index)
}

/// The first page of the naturally aligned chunk that `page`, not a first page, is part
/// of; `page` itself when it is in none any more.
#[inline]
pub(crate) fn order_head(page: PageRef) -> PageRef {
    let Frame { arena, index } = frame_of(page);
    let whole = arena.block(index).chunk();
    if whole > 0 {
        return arena.page(index & !((1 << whole) - 1));
    }
    let head = arena.page(index & !((1 << page.order()) - 1));
    let is_tail = page.kind() == PageKind::Tail && head.order() == page.order();
    if is_tail { head } else { page }
}

/// The record of the page that holds an address; `None` when no arena does.
#[inline]
pub fn page_of(p: *const u8) -> Option<PageRef> {
    let arena = &ARENAS[0];
    // The first region's frontier bounds what is committed when there is one
    // node; a failed test goes to the full search. Acquire: pairs with the release
    // in `commit`, so whoever sees a frontier sees base and records too.
    let frontier = arena.regions[0].frontier.load(Ordering::Acquire);
    let offset = (p as usize).wrapping_sub(arena.base());
    if offset >> PAGE_SHIFT < frontier {
        return Some(arena.page(offset >> PAGE_SHIFT));
    }
    page_of_elsewhere(p)
}

/// The first arena's page map as it was at one moment, for loops that look up many
/// addresses: what does not change is loaded once.
#[derive(Clone, Copy, Debug)]
pub struct PageMap {
    base: usize,
    frontier: usize,
    records: *const Page,
}

impl PageMap {
    /// The map as it is now. Addresses had before are looked up in it at full speed,
    /// later ones correctly.
    #[inline]
    pub fn now() -> Self {
        let arena = &ARENAS[0];
        // Acquire: as in `page_of`.
        let frontier = arena.regions[0].frontier.load(Ordering::Acquire);
        Self {
            base: arena.base(),
            frontier,
            records: arena.records.load(Ordering::Relaxed),
        }
    }

    /// The record of the page that holds `p`, after that of the first page of the
    /// naturally aligned chunk of `order` around it; `None` when no arena holds `p`. For
    /// chunks of [`crate::alloc_pages`] whose order the caller knows: no record is read.
    #[inline]
    pub fn find(self, p: *const u8, order: u8) -> Option<(PageRef, PageRef)> {
        let index = (p as usize).wrapping_sub(self.base) >> PAGE_SHIFT;
        if index >= self.frontier {
            return find_elsewhere(p, order);
        }
        // SAFETY: records are committed below each frontier and never unmapped.
        unsafe {
            let head = &*self.records.add(index & !((1 << order) - 1));
            Some((head, &*self.records.add(index)))
        }
    }
}

#[cold]
#[inline(never)]
fn find_elsewhere(p: *const u8, order: u8) -> Option<(PageRef, PageRef)> {
    let page = page_of_elsewhere(p)?;
    Some((chunk_of_elsewhere(p, order)?.0, page))
}

/// The first page of the naturally aligned chunk of `order` that holds `p`, and the
/// distance of `p` from its start; `None` when no arena holds `p`. For chunks of
/// [`crate::alloc_pages`] whose order the caller knows: no record is read.
#[inline]
pub fn chunk_of(p: *const u8, order: u8) -> Option<(PageRef, usize)> {
    let arena = &ARENAS[0];
    let offset = (p as usize).wrapping_sub(arena.base());
    let index = (offset >> PAGE_SHIFT) & !((1 << order) - 1);
    if index < arena.regions[0].frontier.load(Ordering::Relaxed) {
        return Some((arena.page(index), offset - (index << PAGE_SHIFT)));
    }
    chunk_of_elsewhere(p, order)
}

#[cold]
fn chunk_of_elsewhere(p: *const u8, order: u8) -> Option<(PageRef, usize)> {
    let arena = arenas().iter().find(|a| a.holds_address(p as usize))?;
    let offset = p as usize - arena.base();
    let index = (offset >> PAGE_SHIFT) & !((1 << order) - 1);
    Some((arena.page(index), offset - (index << PAGE_SHIFT)))
}

#[cold]
fn page_of_elsewhere(p: *const u8) -> Option<PageRef> {
    let arena = arenas().iter().find(|a| a.holds_address(p as usize))?;
    Some(arena.page((p as usize - arena.base()) >> PAGE_SHIFT))
}

/// The granule map's byte for an aligned address; `None` when no arena holds it.
pub(crate) fn granule_cell(p: *const u8) -> Option<&'static AtomicU8> {
    let arena = arenas().iter().find(|a| a.holds_address(p as usize))?;
    let index = (p as usize - arena.base()) >> GRANULE_SHIFT;
    // SAFETY: the map is committed below each frontier (`holds_address`) and
    // never unmapped.
    Some(unsafe { &*arena.map.load(Ordering::Relaxed).add(index) })
}

/// Forgets what [`Arena::register`] did, which holds for one process's memory.
pub(crate) fn forget_registered() {
    for arena in &ARENAS[..COUNT.load(Ordering::Acquire)] {
        for region in &arena.regions {
            region.registered.store(0, Ordering::Relaxed);
        }
    }
}

/// Moves a frontier up by at least `pages`, for `node`, reserving a further arena
/// when the present ones are full. `None` when the kernel or `arena_max` refuses.
///
/// The fresh pages start at a pageblock boundary and are whole pageblocks.
pub(crate) fn grow(node: usize, pages: usize) -> Option<Growth> {
    let _growth = GROWTH.lock();
    let need = pages.next_multiple_of(PAGEBLOCK_PAGES);
    for arena in arenas() {
        match grow_in(arena, node, need) {
            Err(Refusal::NoRoom) => {}
            // What was refused here would be refused in a new arena: reserve none,
            // or each failed request would leave one behind.
            result => return result.ok(),
        }
    }
    if need > room_under_limit() {
        return None;
    }
    let arena = new_arena(need)?;
    grow_in(arena, node, need).ok()
}

/// Why a frontier did not move.
enum Refusal {
    /// The region's reservation is used up.
    NoRoom,
    /// `arena_max` or the kernel refused.
    Refused,
}

/// Pages that `arena_max` still allows.
fn room_under_limit() -> usize {
    config::arena_max().saturating_sub(committed_bytes()) >> PAGE_SHIFT
}

/// Moves the frontier at which `end` stands up by at least `pages`; `None` when
/// `end` is not a frontier or there is no room.
pub(crate) fn grow_at(end: Frame, pages: usize) -> Option<Growth> {
    let _growth = GROWTH.lock();
    let arena = end.arena;
    if end.index == 0 {
        return None;
    }
    let region = arena.region_of(end.index - 1);
    if region.frontier.load(Ordering::Relaxed) != end.index {
        return None;
    }
    let node = arena.node_of(end.index - 1);
    grow_in(arena, node, pages.next_multiple_of(PAGEBLOCK_PAGES)).ok()
}

fn grow_in(arena: &'static Arena, node: usize, need: usize) -> Result<Growth, Refusal> {
    let region = &arena.regions[node];
    let frontier = region.frontier.load(Ordering::Relaxed);
    let room = region.end.load(Ordering::Relaxed) - frontier;
    if room < need {
        return Err(Refusal::NoRoom);
    }
    // Geometric steps keep the number of system calls and mappings small; an
    // eighth of what is in use bounds the waste.
    let used = frontier - region.start.load(Ordering::Relaxed);
    let step = (used / 8)
        .min(64 << 20 >> PAGE_SHIFT)
        .next_multiple_of(PAGEBLOCK_PAGES);
    let limit = room_under_limit();
    for pages in [step.clamp(need, room), need] {
        if pages <= limit && commit(arena, region, node, pages) {
            let start = Frame {
                arena,
                index: frontier,
            };
            return Ok(Growth { start, pages });
        }
    }
    Err(Refusal::Refused)
}

fn commit(arena: &'static Arena, region: &Region, node: usize, pages: usize) -> bool {
    let frontier = region.frontier.load(Ordering::Relaxed);
    let end = frontier + pages;
    let meta_end = region.meta_end.load(Ordering::Relaxed);
    if end > meta_end {
        let to = end
            .next_multiple_of(META_STEP >> PAGE_SHIFT)
            .min(region.end.load(Ordering::Relaxed));
        // SAFETY: the arrays have room for every page of the heap and lie in the
        // reservation; `commit_span` widens to whole kernel pages.
        let ok = unsafe {
            let records = arena.records.load(Ordering::Relaxed).cast::<u8>();
            let map = arena.map.load(Ordering::Relaxed).cast::<u8>();
            let per_page = PAGE_SHIFT - GRANULE_SHIFT;
            commit_span(records, meta_end << 6, to << 6)
                && commit_span(map, meta_end << per_page, to << per_page)
                && commit_span(
                    arena.blocks.load(Ordering::Relaxed).cast(),
                    (meta_end >> PAGEBLOCK_ORDER) * size_of::<Block>(),
                    (to >> PAGEBLOCK_ORDER) * size_of::<Block>(),
                )
        };
        if !ok {
            return false;
        }
        region.meta_end.store(to, Ordering::Relaxed);
    }
    let at = arena.address(frontier);
    // SAFETY: the pages lie in the reservation, above what is committed.
    if !unsafe { os::commit(at, pages << PAGE_SHIFT) } {
        return false;
    }
    // A large first growth may span the point from which huge pages are wanted.
    let from = config::huge_from().map_or(end, |from| {
        from.div_ceil(PAGEBLOCK_SIZE)
            .saturating_mul(PAGEBLOCK_PAGES)
            .clamp(frontier, end)
    });
    let huge = from < end && {
        // SAFETY: just committed.
        unsafe { os::huge(arena.address(from), (end - from) << PAGE_SHIFT, true) }
    };
    for index in (frontier..end).step_by(PAGEBLOCK_PAGES) {
        arena
            .block(index)
            .set_flag(BLOCK_HUGE, huge && index >= from);
    }
    COMMITTED.fetch_add(pages << PAGE_SHIFT, Ordering::Relaxed);
    region.frontier.store(end, Ordering::Release);
    if ptr::eq(arena, &raw const ARENAS[0]) && node + 1 == topology::nodes() {
        // With several nodes the map has holes below the last region's frontier:
        // those nodes go through the search.
        let granules = if topology::nodes() == 1 {
            end << (PAGE_SHIFT - GRANULE_SHIFT)
        } else {
            0
        };
        granule::publish_primary(arena.base(), granules, arena.map.load(Ordering::Relaxed));
    }
    true
}

/// Commits the bytes [from, to) of an array, widened to whole kernel pages.
///
/// # Safety
/// The array must lie in a reservation with room for the widening.
unsafe fn commit_span(array: *mut u8, from: usize, to: usize) -> bool {
    let mask = os::page_size() - 1;
    let from = from & !mask;
    let to = (to + mask) & !mask;
    // SAFETY: as promised by the caller.
    unsafe { os::commit(array.add(from), to - from) }
}

/// Reserves an arena in which each node has at least `need` pages, as large as it
/// can be had.
fn new_arena(need: usize) -> Option<&'static Arena> {
    let count = COUNT.load(Ordering::Relaxed);
    if count == MAX_ARENAS {
        return None;
    }
    let nodes = topology::nodes();
    // Regions of several nodes start at whole maximum orders in a large arena.
    let unit = if nodes > 1 && need >= 1 << MAX_ORDER {
        1 << MAX_ORDER
    } else {
        PAGEBLOCK_PAGES
    };
    let need = need
        .checked_next_multiple_of(unit)?
        .checked_mul(nodes << PAGE_SHIFT)?
        .max(SMALLEST);
    let mut heap = LARGEST.min(config::arena_max().max(SMALLEST)).max(need);
    heap = heap.next_multiple_of(PAGEBLOCK_SIZE);
    loop {
        if let Some(arena) = reserve_arena(count, heap) {
            return Some(arena);
        }
        if heap <= need {
            return None;
        }
        heap = (heap / 2).next_multiple_of(PAGEBLOCK_SIZE).max(need);
    }
}

fn reserve_arena(slot: usize, heap: usize) -> Option<&'static Arena> {
    let pages = heap >> PAGE_SHIFT;
    let align = if heap >= 8 << 30 {
        PAGE_SIZE << MAX_ORDER
    } else {
        PAGEBLOCK_SIZE
    };
    let unit = os::page_size();
    let map_bytes = (pages << (PAGE_SHIFT - GRANULE_SHIFT)).next_multiple_of(unit);
    let record_bytes = (pages << 6).next_multiple_of(unit);
    let blocks = pages >> PAGEBLOCK_ORDER;
    let block_bytes = (blocks * size_of::<Block>()).next_multiple_of(unit);
    let whole_bytes = (blocks.div_ceil(64) * size_of::<u64>()).next_multiple_of(unit);
    let meta = map_bytes + record_bytes + block_bytes + whole_bytes;
    let total = meta.checked_add(heap)?.checked_add(align)?;
    let at = os::reserve(total);
    if at.is_null() {
        return None;
    }
    let base = (at as usize + meta).next_multiple_of(align);
    let first = base - meta;
    // SAFETY: [at, at + total) is ours and unused; what lies before the metadata
    // and behind the heap is not needed.
    unsafe {
        os::unreserve(at, first - at as usize);
        let end = base + heap;
        os::unreserve(
            ptr::with_exposed_provenance_mut(end),
            at as usize + total - end,
        );
    }
    at.expose_provenance();
    let map: *mut u8 = ptr::with_exposed_provenance_mut(first);
    let records: *mut Page = ptr::with_exposed_provenance_mut(first + map_bytes);
    let blocks: *mut Block = ptr::with_exposed_provenance_mut(first + map_bytes + record_bytes);
    let whole: *mut AtomicU64 = ptr::with_exposed_provenance_mut(base - whole_bytes);
    // SAFETY: inside the reservation, whole kernel pages.
    if !unsafe { os::commit(whole.cast(), whole_bytes) } {
        // SAFETY: nothing refers to the reservation yet.
        unsafe { os::unreserve(map, meta + heap) };
        return None;
    }
    let arena = &ARENAS[slot];
    arena.base.store(base, Ordering::Relaxed);
    arena.map.store(map.cast(), Ordering::Relaxed);
    arena.records.store(records, Ordering::Relaxed);
    arena.blocks.store(blocks, Ordering::Relaxed);
    arena.whole.store(whole, Ordering::Relaxed);
    arena.pages.store(pages, Ordering::Relaxed);
    split_regions(arena, pages);
    COUNT.store(slot + 1, Ordering::Release);
    Some(arena)
}

/// Divides an arena's heap among the nodes, in whole maximum orders where it is
/// large enough for that, else in whole pageblocks.
fn split_regions(arena: &Arena, pages: usize) {
    let nodes = topology::nodes();
    let unit = if pages >= nodes << MAX_ORDER {
        1 << MAX_ORDER
    } else {
        PAGEBLOCK_PAGES
    };
    let share = pages / nodes / unit * unit;
    arena.share.store(share, Ordering::Relaxed);
    for (node, region) in arena.regions.iter().enumerate().take(nodes) {
        let start = node * share;
        let end = if node + 1 == nodes {
            pages
        } else {
            start + share
        };
        for (cell, value) in [
            (&region.start, start),
            (&region.end, end),
            (&region.frontier, start),
            (&region.meta_end, start),
        ] {
            cell.store(value, Ordering::Relaxed);
        }
    }
}

/// Calls `f` with the first page of every committed pageblock of a node, until it
/// returns false.
pub(crate) fn for_each_block_of(node: usize, mut f: impl FnMut(Frame) -> bool) {
    for arena in arenas() {
        let (start, end) = arena.region_span(node);
        for index in (start..end).step_by(PAGEBLOCK_PAGES) {
            if !f(Frame { arena, index }) {
                return;
            }
        }
    }
}

/// Calls `f` with the first page of every slab and run in use: for checks and reports.
/// Pages that change hands meanwhile may be missed, or passed as what they were.
pub fn for_each_head(mut f: impl FnMut(PageRef)) {
    for node in 0..topology::nodes() {
        for_each_block_of(node, |Frame { arena, index }| {
            for at in index..index + PAGEBLOCK_PAGES {
                let page = arena.page(at);
                if matches!(page.kind(), PageKind::Slab | PageKind::Run) {
                    f(page);
                }
            }
            true
        });
    }
}

impl Arena {
    /// The pages [start, frontier) of a node's region.
    pub(crate) fn region_span(&self, node: usize) -> (usize, usize) {
        let region = &self.regions[node];
        (
            region.start.load(Ordering::Relaxed),
            region.frontier.load(Ordering::Acquire),
        )
    }
}
