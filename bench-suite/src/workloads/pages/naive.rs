//! A page allocator so simple that its state can be read off: a map from each chunk's place to its order and type. It
//! takes the first place that is free, and checks the books of a workload against its own.

use super::books::BlockUse;
use super::ground::{Ground, lock};
use super::held::PageBackend;
use super::owner::Owner;
use super::{BLOCK_PAGES, Migratetype, Order};
use page_alloc::{PAGE_SHIFT, PAGEBLOCK_SIZE};
use std::alloc::Layout;
use std::collections::{BTreeMap, BTreeSet};
use std::ptr::NonNull;
use std::sync::Mutex;

/// What is at a place: order, type, owner.
#[derive(Clone, Copy)]
struct Chunk {
    order: Order,
    migratetype: Migratetype,
    owner: Option<usize>,
}

type Owners = Vec<&'static dyn Owner<usize>>;

/// The allocator. With `ASKS`, it empties a block by its owners' help when an order-9 request fails.
pub struct Naive<const ASKS: bool> {
    base: NonNull<u8>,
    pages: usize,
    chunks: Mutex<BTreeMap<usize, Chunk>>,
    free: Mutex<BTreeSet<usize>>,
    mixing_events: Mutex<u64>,
    owners: Mutex<Owners>,
}

// SAFETY: the arena belongs to the allocator for ever; locks guard the rest.
unsafe impl<const ASKS: bool> Sync for Naive<ASKS> {}

impl<const ASKS: bool> Naive<ASKS> {
    fn find(&self, order: Order) -> Option<usize> {
        let free = lock(&self.free);
        let n = order.pages();
        if n == 1 {
            return free.first().copied();
        }
        (0..self.pages)
            .step_by(n)
            .find(|at| free.range(*at..at + n).count() == n)
    }

    fn block(&self, block: usize) -> Vec<(usize, Chunk)> {
        let range = block * BLOCK_PAGES..(block + 1) * BLOCK_PAGES;
        let chunks = lock(&self.chunks);
        chunks
            .range(range)
            .map(|(at, chunk)| (*at, *chunk))
            .collect()
    }

    fn claim(&self, at: usize, chunk: Chunk) -> usize {
        let neighbours = self.block(at / BLOCK_PAGES);
        if neighbours
            .iter()
            .any(|(_, other)| other.migratetype != chunk.migratetype)
        {
            *lock(&self.mixing_events) += chunk.order.pages() as u64;
        }
        let range = at..at + chunk.order.pages();
        let free = &mut *lock(&self.free);
        range.for_each(|page| assert!(free.remove(&page), "page {page} is in use"));

        lock(&self.chunks).insert(at, chunk);
        at
    }

    fn release(&self, at: usize) {
        let chunk = lock(&self.chunks).remove(&at).expect("a chunk in use");
        lock(&self.free).extend(at..at + chunk.order.pages());
    }

    fn take(&self, chunk: Chunk) -> Option<usize> {
        // What nobody can move goes to the far end: elsewhere it would keep every block from being emptied.
        if ASKS && chunk.owner.is_none() && chunk.order == Order::ZERO {
            let last = lock(&self.free).last().copied()?;
            return Some(self.claim(last, chunk));
        }
        let at = match self.find(chunk.order) {
            Some(at) => at,
            None if ASKS && chunk.order == Order::PAGEBLOCK => {
                self.empty_a_block();
                self.find(chunk.order)?
            }
            None => return None,
        };
        Some(self.claim(at, chunk))
    }

    /// Has the block with the fewest pages emptied, of those whose pages all have owners.
    fn empty_a_block(&self) {
        let owners = lock(&self.owners).clone();
        let blocks = (0..self.pages / BLOCK_PAGES).map(|block| self.block(block));
        let Some(chunks) = blocks
            .filter(|chunks| chunks.iter().all(|(_, chunk)| chunk.owner.is_some()))
            .min_by_key(Vec::len)
        else {
            return;
        };
        let Some((first, _)) = chunks.first() else {
            return;
        };
        let target = first / BLOCK_PAGES;
        for (index, owner) in owners.iter().enumerate() {
            let mine = chunks
                .iter()
                .filter(|(_, chunk)| chunk.owner == Some(index));
            let heads: Vec<usize> = mine.map(|(at, _)| *at).collect();
            owner.shrink_block(&heads);
        }
        for (at, chunk) in self.block(target) {
            let outside = |to: &&usize| **to / BLOCK_PAGES != target;
            let to = lock(&self.free).iter().find(outside).copied();
            let (Some(to), Some(owner)) = (to, chunk.owner) else {
                return;
            };
            self.claim(to, chunk);
            // SAFETY: a fresh page.
            if unsafe { owners[owner].relocate(at, to) } {
                self.release(at);
            } else {
                self.release(to);
            }
        }
    }

    fn census(&self) -> Vec<(usize, [usize; page_alloc::MIGRATETYPES])> {
        let mut blocks: BTreeMap<usize, [usize; page_alloc::MIGRATETYPES]> = BTreeMap::new();
        for (at, chunk) in lock(&self.chunks).iter() {
            blocks.entry(at / BLOCK_PAGES).or_default()[chunk.migratetype as usize] +=
                chunk.order.pages();
        }
        blocks.into_iter().collect()
    }
}

// SAFETY: `claim` marks what it hands out, `release` what comes back, and both lie in the arena.
unsafe impl<const ASKS: bool> PageBackend for Naive<ASKS> {
    const NAME: &'static str = "naive";
    const RECLAIMS: bool = ASKS;
    type Page = usize;
    type Owner = usize;

    fn create(bytes: usize) -> Result<Self, String> {
        let layout = Layout::from_size_align(bytes, PAGEBLOCK_SIZE).map_err(|e| e.to_string())?;
        // SAFETY: not empty.
        let base = unsafe { std::alloc::alloc_zeroed(layout) };
        let pages = bytes >> PAGE_SHIFT;
        Ok(Self {
            base: NonNull::new(base).ok_or("no memory")?,
            pages,
            chunks: Mutex::default(),
            free: Mutex::new((0..pages).collect()),
            mixing_events: Mutex::default(),
            owners: Mutex::default(),
        })
    }

    fn register(&self, owner: &'static dyn Owner<usize>) -> Result<usize, String> {
        let mut owners = lock(&self.owners);
        owners.push(owner);
        Ok(owners.len() - 1)
    }

    fn get(&self, order: Order, migratetype: Migratetype) -> Option<usize> {
        self.take(Chunk {
            order,
            migratetype,
            owner: None,
        })
    }

    fn get_owned(&self, owner: usize, order: Order, migratetype: Migratetype) -> Option<usize> {
        self.take(Chunk {
            order,
            migratetype,
            owner: Some(owner),
        })
    }

    unsafe fn put(&self, page: usize, order: Order) {
        assert_eq!(lock(&self.chunks).get(&page).map(|c| c.order), Some(order));
        self.release(page);
    }

    fn address(&self, page: usize) -> NonNull<u8> {
        // SAFETY: pages lie in the arena.
        unsafe { self.base.add(page << PAGE_SHIFT) }
    }
}

mod tests {
    use super::*;
    use crate::workloads::pages::ageing::{Load, Params};
    use crate::workloads::pages::highalloc::{Figures, protocol};
    use crate::workloads::pages::passes::{Policy, pass};

    const ARENA: usize = 64 << 20;
    /// For whole protocols, which a search by page makes slow.
    const SMALL: usize = 24 << 20;
    const BLOCKS: usize = SMALL / PAGEBLOCK_SIZE;
    const PARAMS: Params = Params {
        pinned_pct: 10,
        seed: 5,
    };

    fn ground<const ASKS: bool>(bytes: usize) -> &'static Ground<Naive<ASKS>> {
        let backend = Box::leak(Box::new(Naive::create(bytes).unwrap()));
        Box::leak(Box::new(Ground::new(backend, bytes)))
    }

    fn compare<const ASKS: bool>(ground: &Ground<Naive<ASKS>>) {
        let census = ground.census();
        let used = |used: BlockUse| Migratetype::ALL.map(|mt| used.used(mt));
        let books: Vec<_> = census.blocks().map(|(_, block)| used(block)).collect();
        let naive: Vec<_> = ground
            .backend()
            .census()
            .into_iter()
            .map(|(_, used)| used)
            .collect();
        assert_eq!(books, naive);
        assert_eq!(
            census.mixing_events(),
            *lock(&ground.backend().mixing_events)
        );
    }

    #[test]
    fn the_books_agree_with_a_naive_allocator_at_every_stage() {
        let ground = ground::<false>(ARENA);
        let mut load = Load::new(ground, PARAMS).unwrap();
        for _ in 0..200 {
            load.turn();
            compare(ground);
        }
        load.age();
        compare(ground);
        let full = ground.census().total() * 100 / ground.pages();
        assert!((95..=97).contains(&full), "{full} % full");
        let pinned = ground.pages() / 10;
        let live_unmovable = ground.census().used(Migratetype::Unmovable);
        assert!((pinned..=pinned + ground.pages() / 200).contains(&live_unmovable));
        assert_eq!(load.stalls(), 0);
        pass(ground, &mut load, Policy::Block, true);
        compare(ground);
        assert_eq!(
            ground.census().used(Migratetype::Large),
            0,
            "all blocks came back"
        );
        load.rest();
        compare(ground);
        assert_eq!(ground.census().total(), pinned);
        load.end();
        assert_eq!(ground.census().total(), 0);
        assert!(lock(&ground.backend().chunks).is_empty());
    }

    fn check(figures: &Figures) {
        let [pass1, pass2, rest] = &figures.passes;
        for pass in [pass1, pass2, rest] {
            assert_eq!(pass.attempts, BLOCKS * 95 / 100);
            assert_eq!(pass.latencies.len(), pass.attempts);
            assert!(pass.successes <= pass.attempts);
        }
        assert!(figures.taken >= 16 * (SMALL >> PAGE_SHIFT) as u64);
        assert_eq!(rest.reclaimed, 0);
        // 614 pinned pages take 2 blocks when packed.
        assert_eq!(figures.ideal_free_blocks, BLOCKS - 2);
        assert!(figures.free_blocks <= figures.ideal_free_blocks);
        assert_eq!(rest.ceiling_blocks, (BLOCKS - 2) as f64);
    }

    #[test]
    fn a_seed_gives_the_same_figures_again() {
        let run = |policy| {
            let figures = protocol(ground::<false>(SMALL), PARAMS, policy).unwrap();
            check(&figures);
            let figure =
                |pass: &crate::workloads::pages::passes::Pass| (pass.successes, pass.reclaimed);
            (
                figures.passes.each_ref().map(figure),
                figures.free_blocks,
                figures.mixing_events,
            )
        };
        assert_eq!(run(Policy::Block), run(Policy::Block));
        // First fit mixes all types, so no block is ever cache alone and hardly one is served.
        let (passes, _, mixing) = run(Policy::Lru);
        assert!(passes[0].0 < BLOCKS / 4, "{passes:?}");
        assert!(mixing > 1000);
    }

    #[test]
    fn an_allocator_that_asks_the_owners_gets_blocks_and_moves_pages_whole() {
        let asked = protocol(ground::<true>(SMALL), PARAMS, Policy::Block).unwrap();
        check(&asked);
        // Marks are checked whenever a page goes back, so the content moved with the pages.
        assert!(asked.moved > 0);
        // With `lru` the allocator asks in vain for blocks that hold cache.
        let by_age = protocol(ground::<true>(SMALL), PARAMS, Policy::Lru).unwrap();
        check(&by_age);
        assert_eq!(by_age.passes[0].reclaimed, 0);
        assert!(asked.passes[0].reclaimed > 0);
        assert!(by_age.passes[0].successes < asked.passes[0].successes);
        let unasked = protocol(ground::<false>(SMALL), PARAMS, Policy::Lru).unwrap();
        assert_eq!(unasked.moved, 0);
        assert!(asked.passes[0].successes >= unasked.passes[0].successes);
    }
}
