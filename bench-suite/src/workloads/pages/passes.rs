//! The passes of highalloc: requests for whole pageblocks, and what was done and counted for them.
//!
//! A *request* asks for 2 MiB. Where the backend asks owners itself ([`PageBackend::RECLAIMS`]) that is all. For the
//! others the workload does what such a caller has to do when the request fails:
//! - `block`: give back all of the block that is cheapest to empty and holds nothing but cache, twice at most; then as
//!   `lru`;
//! - `lru`: give back the cache's oldest pages, 32 at a time and 512 at most, as many as were asked for.
//!
//! After each step the request is tried again.

#![deny(unsafe_code)]

use super::ageing::Load;
use super::ground::{Ground, Kept};
use super::held::PageBackend;
use super::owner::Owner;
use super::{BLOCK_PAGES, Migratetype, Order};
use std::time::Instant;

/// Blocks that are emptied for one request at most.
const BLOCKS: usize = 2;
/// Pages given back between two tries, oldest first.
const BATCH: usize = 32;

/// What to give back for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// A chosen block.
    Block,
    /// What was used least recently.
    Lru,
}

/// One pass, as counted.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Pass {
    /// Requests.
    pub attempts: usize,
    /// Requests that were served.
    pub successes: usize,
    /// Pages given back while requests were served or refused; what the load needed for itself is not in it.
    pub reclaimed: u64,
    /// Blocks that could have been had with every live page packed: the mean over the requests.
    pub ceiling_blocks: f64,
    /// Nanoseconds of each request, ascending.
    pub latencies: Vec<u64>,
}

impl Pass {
    /// Success in per cent of the attempts.
    pub fn success_pct(&self) -> f64 {
        100.0 * self.successes as f64 / self.attempts.max(1) as f64
    }

    /// The same as the original prints it.
    pub fn success_floor_pct(&self) -> f64 {
        self.success_pct().floor()
    }

    /// The success that packing would allow, in per cent of the attempts.
    pub fn ceiling_pct(&self) -> f64 {
        (100.0 * self.ceiling_blocks / self.attempts.max(1) as f64).min(100.0)
    }

    /// Pages given back for each success; for none, all of them.
    pub fn reclaimed_per_success(&self) -> f64 {
        self.reclaimed as f64 / self.successes.max(1) as f64
    }
}

/// Blocks left over when so many pages are packed.
pub fn ideal_free_blocks(blocks: usize, live: usize) -> usize {
    blocks.saturating_sub(live.div_ceil(BLOCK_PAGES))
}

/// Asks for 95 % of the blocks and holds what it gets until the end. With `loaded`, the load has a turn before each
/// request.
pub fn pass<B: PageBackend>(
    ground: &Ground<B>,
    load: &mut Load<B>,
    policy: Policy,
    loaded: bool,
) -> Pass {
    let mut counts = Pass {
        attempts: ground.blocks() * 95 / 100,
        ..Pass::default()
    };
    let mut held: Vec<Kept<B>> = Vec::with_capacity(counts.attempts);
    let mut ceilings = 0;
    for _ in 0..counts.attempts {
        if loaded {
            load.turn();
        }
        ceilings += ideal_free_blocks(ground.blocks(), load.live());
        let before = load.cache.reclaimed();
        let began = Instant::now();
        let kept = request(ground, load, policy);
        let took = began.elapsed().as_nanos() as u64;
        counts.latencies.push(took);
        counts.reclaimed += load.cache.reclaimed() - before;
        held.extend(kept);
    }
    counts.successes = held.len();
    counts.ceiling_blocks = ceilings as f64 / counts.attempts.max(1) as f64;
    counts.latencies.sort_unstable();
    held.into_iter().for_each(|kept| ground.give(kept));
    counts
}

fn request<B: PageBackend>(ground: &Ground<B>, load: &Load<B>, policy: Policy) -> Option<Kept<B>> {
    // Of the type that promises nothing: a huge page stays where it is until it is freed.
    let attempt = || ground.take(Order::PAGEBLOCK, Migratetype::Large, None);
    if let Some(kept) = attempt() {
        return Some(kept);
    }
    if B::RECLAIMS {
        return None;
    }
    if policy == Policy::Block {
        for _ in 0..BLOCKS {
            let cheapest = ground.census().cheapest();
            let Some(block) = cheapest else { break };
            load.cache.shrink_block(&load.cache.heads_in(block));
            if let Some(kept) = attempt() {
                return Some(kept);
            }
        }
    }
    for _ in 0..BLOCK_PAGES / BATCH {
        if load.cache.shrink(BATCH) == 0 {
            break;
        }
        if let Some(kept) = attempt() {
            return Some(kept);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentages() {
        let pass = Pass {
            attempts: 486,
            successes: 431,
            reclaimed: 862,
            ceiling_blocks: 457.7,
            latencies: Vec::new(),
        };
        assert!((pass.success_pct() - 88.683).abs() < 0.001);
        assert_eq!(pass.success_floor_pct(), 88.0);
        assert!((pass.ceiling_pct() - 94.177).abs() < 0.001);
        assert_eq!(pass.reclaimed_per_success(), 2.0);
        assert_eq!(ideal_free_blocks(512, 7864), 496);
        assert_eq!(ideal_free_blocks(512, 0), 512);
        assert_eq!(ideal_free_blocks(2, 1025), 0);
    }
}
