//! The rows of classic in which several threads allocate, free and hand blocks on.

use super::block::{Block, Buffer, Slots};
use super::{Figures, Size, in_lanes, in_threads, join, lanes, log_size, start};
use crate::rng::Rng;
use crate::worker::resident_kib;
use std::sync::mpsc::sync_channel;
use std::time::Duration;

/// Blocks that travel together between threads.
const BATCH: usize = 256;
/// Batches that may be under way.
const WINDOW: usize = 16;

/// Larson and Krishnan's server: each lane holds 1,000 blocks of 8 to 1,000 bytes and replaces random ones; every
/// 50,000 replacements the lane's blocks go to a fresh thread and the old one ends.
pub fn larson(size: Size) -> Figures {
    const HELD: usize = 1000;
    const PER_THREAD: usize = 50_000;
    let draw = |rng: &mut Rng| 8 + rng.below(993);
    let replacements = size.count(2_000_000);
    Figures::time(|| {
        in_lanes(|lane| {
            let mut rng = Rng::new(lane as u64);
            let mut held: Vec<Block> = (0..HELD).map(|_| Block::new(draw(&mut rng))).collect();
            let mut left = replacements;
            while left > 0 {
                let now = left.min(PER_THREAD);
                left -= now;
                std::thread::scope(|scope| {
                    join(start(scope, || {
                        for _ in 0..now {
                            let at = rng.below(HELD);
                            held[at] = Block::new(draw(&mut rng));
                        }
                    }));
                });
            }
        });
        lanes() * (HELD + replacements)
    })
}

/// Berger's threadtest: each thread allocates 30,000 blocks of 64 bytes and frees them, over and over.
pub fn threadtest(size: Size) -> Figures {
    const BLOCKS: usize = 30_000;
    let rounds = size.count(60);
    Figures::time(|| {
        in_lanes(|_| {
            let mut blocks = Vec::with_capacity(BLOCKS);
            for _ in 0..rounds {
                blocks.extend((0..BLOCKS).map(|_| Block::new(64)));
                blocks.clear();
            }
        });
        lanes() * rounds * BLOCKS
    })
}

fn batch(rng: &mut Rng) -> Vec<Block> {
    (0..BATCH)
        .map(|_| Block::new(log_size(rng, 16, 5)))
        .collect()
}

/// As xmalloc-test: half of the threads only allocate, the other half only free.
pub fn one_way(size: Size) -> Figures {
    let batches = size.count(5_000);
    let pairs = lanes() / 2;
    Figures::time(|| {
        in_threads(pairs, |pair| {
            let (send, receive) = sync_channel::<Vec<Block>>(WINDOW);
            std::thread::scope(|scope| {
                let consumer = start(scope, move || receive.into_iter().for_each(drop));
                let mut rng = Rng::new(pair as u64);
                for _ in 0..batches {
                    // The consumer ends only when this sender is gone.
                    let _ = send.send(batch(&mut rng));
                }
                drop(send);
                join(consumer);
            });
        });
        pairs * batches * (BATCH + 1)
    })
}

/// Both threads of a pair allocate batches for the other and free the other's.
pub fn both_ways(size: Size) -> Figures {
    let batches = size.count(5_000);
    let pairs = lanes() / 2;
    Figures::time(|| {
        in_threads(pairs, |pair| {
            let (to_left, from_right) = sync_channel::<Vec<Block>>(WINDOW);
            let (to_right, from_left) = sync_channel::<Vec<Block>>(WINDOW);
            std::thread::scope(|scope| {
                let sides =
                    [(to_left, from_left), (to_right, from_right)].map(|(send, receive)| {
                        start(scope, move || {
                            let mut rng = Rng::new(pair as u64);
                            let ahead = batches.min(WINDOW / 2);
                            for sent in 0..batches {
                                // The other side stays until it has received as much as it sent.
                                let _ = send.send(batch(&mut rng));
                                if sent >= ahead {
                                    drop(receive.recv());
                                }
                            }
                            for _ in 0..ahead {
                                drop(receive.recv());
                            }
                        })
                    });
                sides.into_iter().for_each(join);
            });
        });
        2 * pairs * batches * (BATCH + 1)
    })
}

/// Random frees across threads: each thread puts a new block of 16 to 511 bytes in a random one of 65,536 places that
/// all share, and frees the one that was there.
pub fn cross(size: Size, threads: usize) -> Figures {
    const PLACES: usize = 65_536;
    let each = size.count(1_500_000) / threads;
    let places = Slots::new(PLACES);
    Figures::time(|| {
        in_threads(threads, |thread| {
            let mut rng = Rng::new(thread as u64);
            for _ in 0..each {
                let block = Block::new(log_size(&mut rng, 16, 5));
                drop(places.swap(rng.below(PLACES), block));
            }
        });
        threads * each
    })
}

const WRITES: usize = 500;

fn write_own(rounds: usize) {
    for _ in 0..rounds {
        let mut block = Block::new(8);
        block.hammer(WRITES);
    }
}

/// Berger's cache-scratch: the main thread allocates neighbours of 8 bytes, one for each thread; each thread writes and frees its own, then
/// allocates, writes and frees on. A malloc that gives a thread the neighbour of another's block makes them share a line.
pub fn cache_scratch(size: Size) -> Figures {
    let rounds = size.count(400_000);
    Figures::time(|| {
        let first: Vec<Block> = (0..lanes()).map(|_| Block::new(8)).collect();
        std::thread::scope(|scope| {
            let threads: Vec<_> = first
                .into_iter()
                .map(|mut block| {
                    start(scope, move || {
                        block.hammer(WRITES);
                        drop(block);
                        write_own(rounds);
                    })
                })
                .collect();
            threads.into_iter().for_each(join);
        });
        lanes() * (rounds + 1)
    })
}

/// Berger's cache-thrash: as above without the blocks of the main thread.
pub fn cache_thrash(size: Size) -> Figures {
    let rounds = size.count(400_000);
    Figures::time(|| {
        in_lanes(|_| write_own(rounds));
        lanes() * rounds
    })
}

/// Generations of threads: each thread frees what a thread of the generation before it made, makes 40,000 blocks of 16
/// to 511 bytes and ends. Also: the largest RSS / live bytes at the end of a generation.
pub fn hand_off(size: Size) -> Figures {
    const GENERATIONS: usize = 12;
    let blocks = size.count(50_000);
    let mut worst = 0.0f64;
    let mut checks = Duration::ZERO;
    let mut figures = Figures::time(|| {
        let mut estates: Vec<Vec<Buffer>> = (0..lanes()).map(|_| Vec::new()).collect();
        for generation in 0..GENERATIONS {
            // A thread inherits from its neighbour, never from its own lane.
            estates.rotate_left(1);
            estates = std::thread::scope(|scope| {
                let threads: Vec<_> = estates
                    .drain(..)
                    .enumerate()
                    .map(|(lane, inherited)| {
                        start(scope, move || {
                            drop(inherited);
                            let mut rng = Rng::new((generation * 100 + lane) as u64);
                            let make = |_| {
                                let mut buffer = Buffer::new(log_size(&mut rng, 16, 5));
                                buffer.fill(0);
                                buffer
                            };
                            (0..blocks).map(make).collect()
                        })
                    })
                    .collect();
                threads.into_iter().map(join).collect()
            });
            let began = std::time::Instant::now();
            let live: usize = estates.iter().flatten().map(Buffer::size).sum();
            worst = worst.max(super::memory::per_live(resident_kib(), live));
            checks += began.elapsed();
        }
        GENERATIONS * lanes() * blocks
    });
    figures.time -= checks;
    figures.more = vec![worst];
    figures
}

/// Thousands of short threads: each frees what its predecessor left, allocates 100 blocks, frees half of them and leaves the rest.
pub fn churn(size: Size) -> Figures {
    const BLOCKS: usize = 100;
    let threads = size.count(2_000);
    Figures::time(|| {
        in_lanes(|lane| {
            let mut rng = Rng::new(lane as u64);
            let mut left: Vec<Block> = Vec::new();
            for _ in 0..threads {
                left = std::thread::scope(|scope| {
                    join(start(scope, || {
                        drop(std::mem::take(&mut left));
                        let mut blocks: Vec<Block> = (0..BLOCKS)
                            .map(|_| Block::new(log_size(&mut rng, 16, 7)))
                            .collect();
                        blocks.truncate(BLOCKS / 2);
                        blocks
                    }))
                });
            }
        });
        lanes() * threads * BLOCKS
    })
}
