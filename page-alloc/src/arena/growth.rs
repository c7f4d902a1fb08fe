//! How arenas come to be and grow: reservations, and the frontiers that move up in them.

use super::*;

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
