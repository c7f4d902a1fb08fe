//! The page cache of an ageing load: reclaimable pages in the order of their last use.
//!
//! ```text
//!   entries:  oldest ⇄ … ⇄ newest        shrink(n) takes from the old end
//!   frames:   address ──► entry          shrink_block(heads) takes what lies in a block, whatever its age
//! ```

#![deny(unsafe_code)]

use super::books::{BlockId, FrameTable};
use super::ground::{Ground, Kept, lock};
use super::held::PageBackend;
use super::owner::Owner;
use crate::rng::Rng;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

const NONE: u32 = u32::MAX;

struct Entry<B: PageBackend> {
    kept: Option<Kept<B>>,
    older: u32,
    newer: u32,
}

struct Lru<B: PageBackend> {
    entries: Vec<Entry<B>>,
    vacant: Vec<u32>,
    frames: FrameTable,
    oldest: u32,
    newest: u32,
    len: usize,
    reclaimed: u64,
}

/// The cache.
pub struct Cache<B: PageBackend> {
    ground: &'static Ground<B>,
    lru: Mutex<Lru<B>>,
    by_age_only: AtomicBool,
}

impl<B: PageBackend> Cache<B> {
    /// An empty cache.
    pub fn new(ground: &'static Ground<B>) -> Self {
        Self {
            ground,
            lru: Mutex::new(Lru {
                entries: Vec::new(),
                vacant: Vec::new(),
                frames: FrameTable::default(),
                oldest: NONE,
                newest: NONE,
                len: 0,
                reclaimed: 0,
            }),
            by_age_only: AtomicBool::new(false),
        }
    }

    /// Refuses from now on to give a named block back, whoever asks: only age counts.
    pub fn only_by_age(&self) {
        self.by_age_only.store(true, Relaxed);
    }

    /// Pages in the cache. (Each entry is one page.)
    pub fn pages(&self) -> usize {
        lock(&self.lru).len
    }

    /// Pages given back so far, asked for by whomever.
    pub fn reclaimed(&self) -> u64 {
        lock(&self.lru).reclaimed
    }

    /// Adds a page as the newest.
    pub fn insert(&self, kept: Kept<B>) {
        let address = self.ground.address(&kept);
        let lru = &mut *lock(&self.lru);
        let entry = Entry {
            kept: Some(kept),
            older: NONE,
            newer: NONE,
        };
        let at = match lru.vacant.pop() {
            Some(at) => {
                lru.entries[at as usize] = entry;
                at
            }
            None => {
                lru.entries.push(entry);
                (lru.entries.len() - 1) as u32
            }
        };
        lru.frames.set(address, at);
        lru.len += 1;
        lru.link_newest(at);
    }

    /// Uses a page of the cache chosen at random: it is the newest again.
    pub fn touch(&self, rng: &mut Rng) {
        let lru = &mut *lock(&self.lru);
        if lru.entries.is_empty() {
            return;
        }
        let at = rng.below(lru.entries.len()) as u32;
        if lru.entries[at as usize].kept.is_some() {
            lru.unlink(at);
            lru.link_newest(at);
        }
    }

    /// First pages of the cache's runs in one block, by address: the linear scan.
    pub fn heads_in(&self, block: BlockId) -> Vec<B::Page> {
        let lru = lock(&self.lru);
        let entries = lru.frames.entries_in(block);
        entries
            .filter_map(|at| Some(lru.entries[at as usize].kept.as_ref()?.held.page()))
            .collect()
    }

    /// Gives every page back; not counted as reclaimed.
    pub fn drop_all(&self) {
        let pages = self.pages();
        self.give(|lru| (0..pages).map_while(|_| lru.take(lru.oldest)).collect());
    }

    /// Gives back what `choose` takes out. The lock is free again by then: the backend may ask for more.
    fn give(&self, choose: impl FnOnce(&mut Lru<B>) -> Vec<(Kept<B>, u32)>) -> usize {
        let chosen = {
            let lru = &mut *lock(&self.lru);
            let chosen = choose(lru);
            for (kept, at) in &chosen {
                lru.frames.clear(self.ground.address(kept));
                lru.vacant.push(*at);
            }
            chosen
        };
        let pages = chosen.len();
        chosen
            .into_iter()
            .for_each(|(kept, _)| self.ground.give(kept));
        pages
    }

    fn count(&self, pages: usize) -> usize {
        lock(&self.lru).reclaimed += pages as u64;
        pages
    }
}

impl<B: PageBackend> Owner<B::Page> for Cache<B> {
    fn shrink_block(&self, heads: &[B::Page]) -> usize {
        if self.by_age_only.load(Relaxed) {
            return 0;
        }
        let pages = self.give(|lru| {
            let at = |page| lru.frames.get(self.ground.backend().address(page));
            let entries: Vec<u32> = heads.iter().filter_map(|page| at(*page)).collect();
            entries.into_iter().filter_map(|at| lru.take(at)).collect()
        });
        self.count(pages)
    }

    fn shrink(&self, pages: usize) -> usize {
        let pages = self.give(|lru| (0..pages).map_while(|_| lru.take(lru.oldest)).collect());
        self.count(pages)
    }
}

impl<B: PageBackend> Lru<B> {
    fn link_newest(&mut self, at: u32) {
        let before = std::mem::replace(&mut self.newest, at);
        match self.entries.get_mut(before as usize) {
            Some(entry) => entry.newer = at,
            None => self.oldest = at,
        }
        let entry = &mut self.entries[at as usize];
        (entry.older, entry.newer) = (before, NONE);
    }

    fn unlink(&mut self, at: u32) {
        let (older, newer) = {
            let entry = &self.entries[at as usize];
            (entry.older, entry.newer)
        };
        match self.entries.get_mut(older as usize) {
            Some(entry) => entry.newer = newer,
            None => self.oldest = newer,
        }
        match self.entries.get_mut(newer as usize) {
            Some(entry) => entry.older = older,
            None => self.newest = older,
        }
    }

    /// Takes an entry's page out; `None` for an entry that has none, or for none at all.
    fn take(&mut self, at: u32) -> Option<(Kept<B>, u32)> {
        let kept = self.entries.get_mut(at as usize)?.kept.take()?;
        self.unlink(at);
        self.len -= 1;
        Some((kept, at))
    }
}
