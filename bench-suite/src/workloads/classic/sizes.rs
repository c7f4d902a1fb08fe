//! The rows of classic about sizes and the other functions of malloc: random sizes, realloc, alignment, calloc, large.

use super::block::{Block, Buffer, Untouched};
use super::{Figures, Size, in_lanes, lanes, log_size};
use crate::rng::Rng;

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// As alloc-test: each thread replaces random ones of 20,000 blocks of 1 to `largest` bytes.
pub fn alloc_test(size: Size, largest: usize) -> Figures {
    const HELD: usize = 20_000;
    replace(size.count(800_000), HELD, |rng| {
        Block::new(1 + rng.below(largest))
    })
}

/// Each lane holds up to `held` blocks and replaces random ones by new ones.
fn replace(replacements: usize, held: usize, make: impl Fn(&mut Rng) -> Block + Sync) -> Figures {
    Figures::time(|| {
        in_lanes(|lane| {
            let mut rng = Rng::new(lane as u64);
            let mut blocks: Vec<Option<Block>> = (0..held).map(|_| None).collect();
            for _ in 0..replacements {
                // The old block goes first: it is the one a malloc would reuse.
                let at = rng.below(held);
                blocks[at] = None;
                blocks[at] = Some(make(&mut rng));
            }
        });
        lanes() * replacements
    })
}

/// Alignments of 32 to 4,096 for blocks of 16 to 2,047 bytes.
pub fn aligned(size: Size) -> Figures {
    replace(size.count(800_000), 2000, |rng| {
        Block::aligned(32 << rng.below(8), log_size(rng, 16, 7))
    })
}

/// calloc of 16 to 1,023 bytes.
pub fn calloc_small(size: Size) -> Figures {
    replace(size.count(2_000_000), 2000, |rng| {
        Block::zeroed(log_size(rng, 16, 6))
    })
}

/// calloc of 256 KiB to 1 MiB, each page of which is then written.
pub fn calloc_large(size: Size) -> Figures {
    let blocks = size.count(3_000);
    Figures::time(|| {
        let mut rng = Rng::new(1);
        for _ in 0..blocks {
            Buffer::zeroed(log_size(&mut rng, 256 * KIB, 2)).touch();
        }
        blocks
    })
}

/// Sixteen strings that grow in turn, by 16 bytes to 4 KiB.
pub fn realloc_small(size: Size) -> Figures {
    const STRINGS: usize = 16;
    let rounds = size.count(1_000);
    Figures::time(|| {
        for _ in 0..rounds {
            let mut strings: Vec<Buffer> = (0..STRINGS).map(|_| Buffer::new(16)).collect();
            for length in (32..=4 * KIB).step_by(16) {
                for string in &mut strings {
                    string.resize(length);
                    string.fill(length - 16);
                }
            }
        }
        rounds * STRINGS * 256
    })
}

/// A vector that doubles from 16 bytes to 4 MiB, while another one does.
pub fn realloc_double(size: Size) -> Figures {
    let rounds = size.count(50);
    Figures::time(|| {
        for _ in 0..rounds {
            let mut pair = [Buffer::new(16), Buffer::new(16)];
            while pair[0].size() < 4 * MIB {
                for vector in &mut pair {
                    let old = vector.size();
                    vector.resize(2 * old);
                    vector.fill(old);
                }
            }
        }
        rounds * 2 * 19
    })
}

/// A file that is read into memory: 64 KiB more each time, to 16 MiB.
pub fn realloc_large(size: Size) -> Figures {
    const STEP: usize = 64 * KIB;
    let rounds = size.count(20);
    Figures::time(|| {
        for _ in 0..rounds {
            let mut file = Buffer::new(STEP);
            file.fill(0);
            while file.size() < 16 * MIB {
                let old = file.size();
                file.resize(old + STEP);
                file.fill(old);
            }
        }
        rounds * 256
    })
}

/// 70 KiB to 64 MiB: every octave equally often.
fn large(rng: &mut Rng) -> usize {
    log_size(rng, 64 * KIB, 10).max(70 * KIB)
}

/// Pairs of large blocks that nobody writes.
pub fn large_untouched(size: Size) -> Figures {
    let blocks = size.count(100_000);
    Figures::time(|| {
        let mut rng = Rng::new(1);
        for _ in 0..blocks {
            drop(Untouched::new(large(&mut rng)));
        }
        blocks
    })
}

/// Pairs of large blocks, each page of which is written.
pub fn large_touched(size: Size) -> Figures {
    let blocks = size.count(200);
    Figures::time(|| {
        let mut rng = Rng::new(1);
        for _ in 0..blocks {
            Buffer::new(large(&mut rng)).touch();
        }
        blocks
    })
}
