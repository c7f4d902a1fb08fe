//! The books of a page workload: which pages are in use where, by type, exactly and for any backend.
//!
//! ```text
//!   block (2 MiB) ──► used: [Unmovable, Movable, Reclaimable, Large]     the census
//!   block (2 MiB) ──► [entry + 1; 512], 0 = none                         a table of frames
//! ```
//! The allocator under test may count for itself; these books are the same for all and need its word for nothing.

#![deny(unsafe_code)]

use super::BLOCK_PAGES;
use page_alloc::{MIGRATETYPES, Migratetype, PAGE_SHIFT, PAGEBLOCK_ORDER};
use std::collections::BTreeMap;
use std::ptr::NonNull;

/// A pageblock, as its address divided by its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BlockId(usize);

/// The block of an address, and the page's place in it.
fn place_of(address: NonNull<u8>) -> (BlockId, usize) {
    let frame = address.addr().get() >> PAGE_SHIFT;
    (BlockId(frame >> PAGEBLOCK_ORDER), frame % BLOCK_PAGES)
}

impl BlockId {
    /// The block that holds an address.
    pub fn of(address: NonNull<u8>) -> Self {
        place_of(address).0
    }
}

/// One block's pages in use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockUse {
    used: [usize; MIGRATETYPES],
}

impl BlockUse {
    /// Pages of one type.
    pub fn used(&self, migratetype: Migratetype) -> usize {
        self.used[migratetype as usize]
    }

    /// Pages of all types.
    pub fn total(&self) -> usize {
        self.used.iter().sum()
    }
}

/// The census of all blocks in use.
#[derive(Debug, Default)]
pub struct Census {
    blocks: BTreeMap<BlockId, BlockUse>,
    used: [usize; MIGRATETYPES],
    mixing_events: u64,
}

impl Census {
    /// Counts a chunk in. Its pages are mixing events when the block holds pages of another type.
    pub fn add(&mut self, address: NonNull<u8>, pages: usize, migratetype: Migratetype) {
        let block = self.blocks.entry(BlockId::of(address)).or_default();
        if block.total() > block.used(migratetype) {
            self.mixing_events += pages as u64;
        }
        block.used[migratetype as usize] += pages;
        self.used[migratetype as usize] += pages;
    }

    /// Counts a chunk out.
    pub fn remove(&mut self, address: NonNull<u8>, pages: usize, migratetype: Migratetype) {
        let id = BlockId::of(address);
        if let Some(block) = self.blocks.get_mut(&id) {
            block.used[migratetype as usize] -= pages;
            self.used[migratetype as usize] -= pages;
            if block.total() == 0 {
                self.blocks.remove(&id);
            }
        }
    }

    /// Pages in use, of one type.
    pub fn used(&self, migratetype: Migratetype) -> usize {
        self.used[migratetype as usize]
    }

    /// Pages in use, of all types.
    pub fn total(&self) -> usize {
        self.used.iter().sum()
    }

    /// Pages so far that came to a block which held another type.
    pub fn mixing_events(&self) -> u64 {
        self.mixing_events
    }

    /// The blocks that hold any page, in the order of their addresses.
    pub fn blocks(&self) -> impl Iterator<Item = (BlockId, BlockUse)> {
        self.blocks.iter().map(|(id, used)| (*id, *used))
    }

    /// The block that is cheapest to empty by giving pages back: it holds nothing but reclaimable pages, and the
    /// fewest of them.
    pub fn cheapest(&self) -> Option<BlockId> {
        let only_reclaimable =
            |used: &BlockUse| used.used(Migratetype::Reclaimable) == used.total();
        self.blocks()
            .filter(|(_, used)| only_reclaimable(used))
            .min_by_key(|(_, used)| used.total())
            .map(|(id, _)| id)
    }
}

/// Which entry of its owner's table a page belongs to, by the page's address.
#[derive(Debug, Default)]
pub struct FrameTable {
    blocks: BTreeMap<BlockId, Box<[u32]>>,
}

impl FrameTable {
    /// Notes that the page at `address` belongs to `entry`.
    pub fn set(&mut self, address: NonNull<u8>, entry: u32) {
        let (id, at) = place_of(address);
        let cells = self
            .blocks
            .entry(id)
            .or_insert_with(|| vec![0; BLOCK_PAGES].into());
        cells[at] = entry + 1;
    }

    /// Forgets the page at `address`.
    pub fn clear(&mut self, address: NonNull<u8>) {
        let (id, at) = place_of(address);
        if let Some(cells) = self.blocks.get_mut(&id) {
            cells[at] = 0;
        }
    }

    /// The entry of the page at `address`.
    pub fn get(&self, address: NonNull<u8>) -> Option<u32> {
        let (id, at) = place_of(address);
        self.blocks.get(&id)?[at].checked_sub(1)
    }

    /// The entries with a page in one block, by address.
    pub fn entries_in(&self, block: BlockId) -> impl Iterator<Item = u32> {
        let cells = self.blocks.get(&block).map_or(&[][..], |cells| cells);
        cells.iter().filter_map(|cell| cell.checked_sub(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(block: usize, at: usize) -> NonNull<u8> {
        let address = ((block << PAGEBLOCK_ORDER) + at) << PAGE_SHIFT;
        NonNull::new(std::ptr::without_provenance_mut(address)).unwrap()
    }

    #[test]
    fn pages_among_others_are_mixing_events() {
        use Migratetype::{Movable, Reclaimable, Unmovable};
        let mut census = Census::default();
        census.add(page(5, 0), 4, Movable);
        census.add(page(5, 4), 2, Movable);
        assert_eq!(census.mixing_events(), 0);
        census.add(page(5, 8), 8, Unmovable);
        census.add(page(6, 0), 1, Reclaimable);
        assert_eq!(census.mixing_events(), 8);
        // Each page that comes to a mixed block mixes, whichever type it is of.
        census.add(page(5, 16), 1, Movable);
        assert_eq!(census.mixing_events(), 9);
        assert_eq!((census.total(), census.used(Movable)), (16, 7));
        census.remove(page(5, 0), 4, Movable);
        census.remove(page(6, 0), 1, Reclaimable);
        assert_eq!(census.blocks().count(), 1);
        assert_eq!(census.total(), 11);
    }

    #[test]
    fn the_cheapest_block_holds_nothing_but_reclaimable_pages() {
        use Migratetype::{Movable, Reclaimable};
        let mut census = Census::default();
        assert_eq!(census.cheapest(), None);
        census.add(page(1, 0), 1, Reclaimable);
        census.add(page(1, 1), 1, Movable);
        census.add(page(2, 0), 9, Reclaimable);
        census.add(page(3, 0), 5, Reclaimable);
        assert_eq!(census.cheapest(), Some(BlockId(3)));
    }

    #[test]
    fn frames_tell_their_entries() {
        let mut table = FrameTable::default();
        table.set(page(7, 3), 0);
        table.set(page(7, 1), 41);
        table.set(page(8, 0), 2);
        assert_eq!(table.get(page(7, 3)), Some(0));
        assert_eq!(table.get(page(7, 2)), None);
        let entries: Vec<u32> = table.entries_in(BlockId(7)).collect();
        assert_eq!(entries, [41, 0]);
        table.clear(page(7, 1));
        assert_eq!(table.get(page(7, 1)), None);
    }
}
