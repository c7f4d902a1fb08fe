//! Statistics, as numbers and as the kernel prints them.

#![deny(unsafe_code)]

use core::fmt::{self, Write};

use crate::arena;
use crate::buddy::Buddy;
use crate::evacuate;
pub use crate::hist::Histogram;
use crate::pcp;
use crate::types::{
    MAX_ORDER, MIGRATETYPES, Migratetype, ORDERS, PAGE_SHIFT, PAGEBLOCK_ORDER, PAGEBLOCK_PAGES,
};
use crate::zone::{self, ZoneCounters};

/// A snapshot of one node's zone.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct ZoneStats {
    /// The node.
    pub node: usize,
    /// Pages below the frontier.
    pub managed_pages: usize,
    /// Free pages on the buddy's lists.
    pub free_pages: usize,
    /// Free pages that may still hold memory.
    pub dirty_pages: usize,
    /// Free chunks by order and type.
    pub chunks: [[usize; MIGRATETYPES]; ORDERS],
    /// Pageblocks by type.
    pub blocks: [usize; MIGRATETYPES],
    /// Wholly free pageblocks that anybody may claim.
    pub free_blocks: usize,
    /// Pageblocks that hold pages of several types.
    pub mixed_blocks: usize,
    /// Pages in use (slots' lists included), by type: the census.
    pub used: [usize; MIGRATETYPES],
    /// Event counters.
    pub counters: ZoneCounters,
}

/// Heap bytes that somebody uses: those committed less the free ones. Pages in slots' lists
/// count as used. Takes each zone's lock for a moment.
pub fn used_bytes() -> usize {
    let free: usize = (zone::zones().iter())
        .map(|zone| {
            let zone = zone.lock();
            zone.buddy.free_pages() + zone.recent_pages()
        })
        .sum();
    arena::committed_bytes().saturating_sub(free << PAGE_SHIFT)
}

/// Takes a snapshot of a node's zone; `None` for a node that does not exist.
pub fn zone_stats(node: usize) -> Option<ZoneStats> {
    let zone = zone::zones().get(node)?.lock();
    let mut stats = ZoneStats {
        node,
        managed_pages: 0,
        free_pages: zone.buddy.free_pages(),
        dirty_pages: zone.buddy.idle_pages(),
        chunks: [[0; MIGRATETYPES]; ORDERS],
        blocks: [0; MIGRATETYPES],
        free_blocks: 0,
        mixed_blocks: 0,
        used: [0; MIGRATETYPES],
        counters: zone.counters,
    };
    arena::for_each_block_of(node, |frame| {
        let block = frame.arena.block(frame.index);
        let mt = block.migratetype() as usize;
        block.free_map().chunks(|_, order| {
            if !Buddy::is_whole(block) {
                stats.chunks[order as usize][mt] += 1;
            }
        });
        stats.managed_pages += PAGEBLOCK_PAGES;
        stats.blocks[block.migratetype() as usize] += 1;
        stats.free_blocks += usize::from(Buddy::is_whole(block));
        stats.mixed_blocks += usize::from(block.is_mixed());
        for mt in Migratetype::ALL {
            stats.used[mt as usize] += block.used(mt);
        }
        true
    });
    // Whole blocks count for the type that their first one had last.
    for (arena, from, to) in zone::stretches(node) {
        let mut index = from;
        while index < to {
            let order = index.trailing_zeros().min((to - index).ilog2());
            let order = order.min(u32::from(MAX_ORDER)) as usize;
            stats.chunks[order][arena.block(index).migratetype() as usize] += 1;
            index += 1 << order;
        }
    }
    Some(stats)
}

impl ZoneStats {
    /// Free chunks of one order, all types.
    pub fn chunks_of_order(&self, order: usize) -> usize {
        self.chunks[order].iter().sum()
    }

    /// The kernel's fragmentation index for an order, in thousandths: towards 0 a
    /// failure would be for lack of memory, towards 1000 because of
    /// fragmentation; −1000 when a request would succeed.
    pub fn fragmentation_index(&self, order: usize) -> i64 {
        let total: usize = (0..ORDERS).map(|o| self.chunks_of_order(o)).sum();
        if (order..ORDERS).any(|o| self.chunks_of_order(o) > 0) {
            return -1000;
        }
        if total == 0 {
            return 0;
        }
        let wanted = (1000 * self.free_pages as i64) >> order;
        1000 - (1000 + wanted) / total as i64
    }

    /// The kernel's unusable free space index for an order, in thousandths of the
    /// free pages that lie in chunks too small for it.
    pub fn unusable_index(&self, order: usize) -> i64 {
        if self.free_pages == 0 {
            return 0;
        }
        let usable: usize = (order..ORDERS).map(|o| self.chunks_of_order(o) << o).sum();
        (1000 * (self.free_pages - usable) / self.free_pages) as i64
    }
}

/// Writes `/proc/buddyinfo`: free chunks by order, a line a zone.
///
/// # Errors
/// Those of the writer.
pub fn write_buddyinfo(out: &mut dyn Write) -> fmt::Result {
    for node in 0..zone::zones().len() {
        let Some(stats) = zone_stats(node) else {
            continue;
        };
        write!(out, "Node {node}, zone   Normal ")?;
        for order in 0..ORDERS {
            write!(out, "{:6} ", stats.chunks_of_order(order))?;
        }
        out.write_char('\n')?;
    }
    Ok(())
}

/// Writes `/proc/pagetypeinfo`: free chunks by type and order, blocks by type, and
/// the census that the kernel cannot print.
///
/// # Errors
/// Those of the writer.
pub fn write_pagetypeinfo(out: &mut dyn Write) -> fmt::Result {
    writeln!(out, "Page block order: {PAGEBLOCK_ORDER}")?;
    writeln!(out, "Pages per block:  {PAGEBLOCK_PAGES}\n")?;
    write!(out, "Free pages count per migrate type at order  ")?;
    for order in 0..ORDERS {
        write!(out, "{order:6} ")?;
    }
    out.write_char('\n')?;
    for node in 0..zone::zones().len() {
        let Some(stats) = zone_stats(node) else {
            continue;
        };
        for mt in Migratetype::ALL {
            write!(
                out,
                "Node {node:4}, zone {:>8}, type {:>12} ",
                "Normal",
                mt.name()
            )?;
            for order in 0..ORDERS {
                write!(out, "{:6} ", stats.chunks[order][mt as usize])?;
            }
            out.write_char('\n')?;
        }
    }
    write!(out, "\nNumber of blocks type ")?;
    for mt in Migratetype::ALL {
        write!(out, "{:>12} ", mt.name())?;
    }
    out.write_char('\n')?;
    for node in 0..zone::zones().len() {
        let Some(stats) = zone_stats(node) else {
            continue;
        };
        write!(out, "Node {node}, zone {:>8} ", "Normal")?;
        for n in stats.blocks {
            write!(out, "{n:>12} ")?;
        }
        write!(out, "\nNumber of mixed blocks  {}\n", stats.mixed_blocks)?;
        write!(out, "Pages in use by type   ")?;
        for n in stats.used {
            write!(out, "{n:>12} ")?;
        }
        writeln!(
            out,
            "\nFree pages {} (holding memory: {}), wholly free blocks {}, in page lists {}",
            stats.free_pages,
            stats.dirty_pages,
            stats.free_blocks,
            pcp::cached_pages()
        )?;
        let c = stats.counters;
        writeln!(
            out,
            "Claims whole {} partial {}, steals {}, mixing events {}, growths {}, purged pages {}, failures {}",
            c.claims_whole,
            c.claims_partial,
            c.steals,
            c.mixing_events,
            c.growths,
            c.purged_pages,
            c.failures
        )?;
        writeln!(out, "Urgent reserve {} released {}", c.reserved, c.released)?;
    }
    let e = evacuate::counters();
    let pauses = evacuate::pauses();
    writeln!(
        out,
        "Blocks emptied {} given up {}; pages reclaimed {}, copied {}, remapped {}; moves refused {}, bad {}; pause p50 {} ns, p99 {} ns",
        e.emptied,
        e.given_up,
        e.reclaimed_pages,
        e.copied_pages,
        e.remapped_pages,
        e.refused_moves,
        e.bad_relocates,
        pauses.quantile(0.5),
        pauses.quantile(0.99)
    )
}

/// One pageblock, as it was when asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BlockInfo {
    /// Where the block starts.
    pub address: usize,
    /// The type whose pages it takes; of a wholly free block, the last one.
    pub migratetype: Migratetype,
    /// Pages in use (slots' lists included), by type.
    pub used_by_type: [u16; MIGRATETYPES],
    /// Free pages.
    pub free: u16,
}

/// Calls `f` with every committed pageblock, by arena and address.
///
/// Each block is read without the zone's lock: while other threads allocate, a
/// block's numbers may be of slightly different moments.
pub fn for_each_block(mut f: impl FnMut(BlockInfo)) {
    for node in 0..zone::zones().len() {
        arena::for_each_block_of(node, |frame| {
            let block = frame.arena.block(frame.index);
            f(BlockInfo {
                address: frame.arena.address(frame.index) as usize,
                migratetype: block.migratetype(),
                used_by_type: Migratetype::ALL.map(|mt| block.used(mt) as u16),
                free: block.free() as u16,
            });
            true
        });
    }
}
