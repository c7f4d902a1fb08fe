//! The load that ages an arena: a port of what runs beside stress-highalloc.
//!
//! - 16 *jobs* take movable pages, two a turn each, until a job has its size (0.44–1.31 % of the arena), and free all of
//!   them together, as a compiler run does; on average they hold 7 % of the arena.
//! - A *cache* takes 64 reclaimable pages a turn and uses 32 old ones again; whenever 97 % of the arena is in use, its
//!   oldest pages go until 95 % are.
//! - *Pinned* pages: 0.5 % of the arena that live shortly (one a turn, a random one goes for it), and a set that grows
//!   evenly over the ageing until it holds its share of the arena, and never shrinks.
//!
//! The shares and steps are this port's own: the protocol gives the kinds of pages, the fullness and the turnover. The
//! jobs' size was chosen so that with 3 % pinned, packing would leave 89 % of the blocks, as in the published runs.
//! Compare backends within a run; figures of another load are not comparable to the last per cent.
//!
//! The ageing ends when 16 times the arena's pages were taken. All of it is one thread and one seeded generator, so that
//! a seed gives the same requests on every backend. A request that fails has the cache's oldest 32 pages given back and
//! tries again; with nothing left to give back the load stalls, which is counted.

#![deny(unsafe_code)]

use super::cache::Cache;
use super::ground::{Ground, Kept};
use super::held::PageBackend;
use super::jobs::Handles;
use super::owner::Owner;
use super::{Migratetype, Order};
use crate::rng::Rng;

const JOBS: usize = 16;
/// Pages a job takes in a turn.
const JOB_STEP: usize = 2;
const CACHE_STEP: usize = 64;
const TOUCHES: usize = 32;
/// Pages of the cache that a load out of memory gives back at a time.
const RECLAIM: usize = 32;
/// The arena's size is taken so many times over.
const TURNOVER: u64 = 16;

/// Sizes of the load.
#[derive(Clone, Copy, Debug)]
pub struct Params {
    /// Share of the arena that is pinned in the end, in per cent.
    pub pinned_pct: usize,
    /// Seed of everything random.
    pub seed: u64,
}

struct Job {
    handles: Vec<u32>,
    size: usize,
}

/// The load.
pub struct Load<B: PageBackend> {
    ground: &'static Ground<B>,
    /// The reclaimable pages.
    pub cache: &'static Cache<B>,
    /// The movable pages.
    pub handles: &'static Handles<B>,
    cache_owner: B::Owner,
    job_owner: B::Owner,
    jobs: Vec<Job>,
    short_lived: Vec<Kept<B>>,
    pinned: Vec<Kept<B>>,
    pinned_goal: usize,
    taken: u64,
    stalls: u64,
    rng: Rng,
}

impl<B: PageBackend> Load<B> {
    /// A load that holds nothing yet. It registers its owners with the backend, for ever.
    pub fn new(ground: &'static Ground<B>, params: Params) -> Result<Self, String> {
        let cache: &'static Cache<B> = Box::leak(Box::new(Cache::new(ground)));
        let handles: &'static Handles<B> = Box::leak(Box::new(Handles::new(ground)));
        let mut load = Self {
            ground,
            cache,
            handles,
            cache_owner: ground.backend().register(cache)?,
            job_owner: ground.backend().register(handles)?,
            jobs: Vec::new(),
            short_lived: Vec::new(),
            pinned: Vec::new(),
            pinned_goal: ground.pages() * params.pinned_pct / 100,
            taken: 0,
            stalls: 0,
            rng: Rng::new(params.seed),
        };
        for _ in 0..JOBS {
            // A first size between nothing and the whole staggers the jobs.
            let size = load.job_size();
            let size = 1 + load.rng.below(size);
            load.jobs.push(Job {
                handles: Vec::new(),
                size,
            });
        }
        Ok(load)
    }

    /// Runs until the arena was turned over 16 times.
    pub fn age(&mut self) {
        let goal = TURNOVER * self.ground.pages() as u64;
        while self.taken < goal {
            let before = self.taken;
            self.turn();
            if self.taken == before {
                // Nothing can be had any more, so nothing would change.
                break;
            }
        }
    }

    /// Runs until the arena is as full as the load keeps it, at most twice the arena's pages long.
    pub fn refill(&mut self) {
        let goal = self.taken + 2 * self.ground.pages() as u64;
        while self.in_use() < self.ground.pages() * 95 / 100 && self.taken < goal {
            let before = self.taken;
            self.turn();
            if self.taken == before {
                break;
            }
        }
    }

    /// One turn of everybody.
    pub fn turn(&mut self) {
        for at in 0..self.jobs.len() {
            self.work(at);
        }
        for _ in 0..CACHE_STEP {
            let Some(kept) = self.page(Migratetype::Reclaimable, Some(self.cache_owner)) else {
                break;
            };
            self.cache.insert(kept);
        }
        for _ in 0..TOUCHES {
            self.cache.touch(&mut self.rng);
        }
        if let Some(kept) = self.page(Migratetype::Unmovable, None) {
            self.short_lived.push(kept);
        }
        while self.short_lived.len() > self.ground.pages() / 200 {
            let at = self.rng.below(self.short_lived.len());
            self.ground.give(self.short_lived.swap_remove(at));
        }
        while self.pinned.len() < self.pinned_due() {
            let Some(kept) = self.page(Migratetype::Unmovable, None) else {
                break;
            };
            self.pinned.push(kept);
        }
        let pages = self.ground.pages();
        let in_use = self.in_use();
        if in_use > pages * 97 / 100 {
            self.cache.shrink(in_use - pages * 95 / 100);
        }
    }

    /// Ends the jobs and what lives shortly, and drops the cache: only the pinned set stays.
    pub fn rest(&mut self) {
        for job in self.jobs.drain(..) {
            job.handles.into_iter().for_each(|h| self.handles.remove(h));
        }
        let ground = self.ground;
        self.short_lived
            .drain(..)
            .for_each(|kept| ground.give(kept));
        self.cache.drop_all();
    }

    /// Gives back everything.
    pub fn end(mut self) {
        self.rest();
        let ground = self.ground;
        self.pinned.drain(..).for_each(|kept| ground.give(kept));
    }

    /// Pages the load took so far.
    pub fn taken(&self) -> u64 {
        self.taken
    }

    /// Requests that found no page although the cache was empty.
    pub fn stalls(&self) -> u64 {
        self.stalls
    }

    /// Pages in use that cannot be given back: what packing has to place.
    pub fn live(&self) -> usize {
        let census = self.ground.census();
        census.used(Migratetype::Unmovable) + census.used(Migratetype::Movable)
    }

    fn in_use(&self) -> usize {
        self.ground.census().total()
    }

    fn job_size(&mut self) -> usize {
        let mean = self.ground.pages() * 7 / 100 * 2 / JOBS;
        mean / 2 + self.rng.below(mean.max(1)) + 1
    }

    fn work(&mut self, at: usize) {
        if self.jobs[at].handles.len() >= self.jobs[at].size {
            let handles = std::mem::take(&mut self.jobs[at].handles);
            handles.into_iter().for_each(|h| self.handles.remove(h));
            self.jobs[at].size = self.job_size();
        }
        for _ in 0..JOB_STEP {
            let Some(kept) = self.page(Migratetype::Movable, Some(self.job_owner)) else {
                return;
            };
            let handle = self.handles.insert(kept);
            self.jobs[at].handles.push(handle);
        }
    }

    /// Pages that should be pinned by now.
    fn pinned_due(&self) -> usize {
        let goal = TURNOVER * self.ground.pages() as u64;
        (self.pinned_goal as u64 * self.taken.min(goal) / goal) as usize
    }

    fn page(&mut self, migratetype: Migratetype, owner: Option<B::Owner>) -> Option<Kept<B>> {
        loop {
            if let Some(kept) = self.ground.take(Order::ZERO, migratetype, owner) {
                self.taken += 1;
                return Some(kept);
            }
            if self.cache.shrink(RECLAIM) == 0 {
                self.stalls += 1;
                return None;
            }
        }
    }
}

/// How long a worker that ages an arena may take: far more than it needs, so that only one that hangs is stopped.
pub fn time_limit(arena_mib: usize) -> std::time::Duration {
    std::time::Duration::from_secs(120 + arena_mib as u64 / 2)
}
