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

use crate::block::Block;
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

mod growth;

pub(crate) use growth::{grow, grow_at};

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
