//! The time of each single malloc and free, in a histogram.

use super::block::Block;
use super::{Figures, Size, in_lanes, lanes, log_size};
use crate::rng::Rng;
use crate::workloads::slab_micro::time_stamp;
use std::time::Instant;

/// Buckets of each octave: a figure is exact to 1/32.
const STEPS: usize = 32;
const BUCKETS: usize = 60 * STEPS;

/// A histogram of ticks: exact below 32, then 32 buckets an octave.
///
/// ```text
///  0 1 2 … 31 | 32 33 … 63 | 64 66 68 … 126 | 128 132 … 252 | …
/// ```
struct Histogram {
    counts: Vec<u64>,
    max: u64,
}

impl Histogram {
    fn new() -> Self {
        Self {
            counts: vec![0; BUCKETS],
            max: 0,
        }
    }

    fn bucket(ticks: u64) -> usize {
        let steps = STEPS as u64;
        if ticks < steps {
            return ticks as usize;
        }
        let shift = ticks.ilog2() - steps.ilog2();
        (shift as usize * STEPS + (ticks >> shift) as usize).min(BUCKETS - 1)
    }

    /// The least value of a bucket.
    fn value(bucket: usize) -> u64 {
        if bucket < STEPS {
            return bucket as u64;
        }
        let shift = bucket / STEPS - 1;
        ((bucket - shift * STEPS) as u64) << shift
    }

    #[inline]
    fn add(&mut self, ticks: u64) {
        self.counts[Self::bucket(ticks)] += 1;
        self.max = self.max.max(ticks);
    }

    fn merge(&mut self, other: &Self) {
        for (sum, count) in self.counts.iter_mut().zip(&other.counts) {
            *sum += count;
        }
        self.max = self.max.max(other.max);
    }

    /// The value that `share` of all are at most, by its bucket's least value.
    fn percentile(&self, share: f64) -> u64 {
        let total: u64 = self.counts.iter().sum();
        let rank = ((total as f64 * share).ceil() as u64).max(1);
        let mut seen = 0;
        for (bucket, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= rank {
                return Self::value(bucket);
            }
        }
        self.max
    }
}

/// Ticks now: the time stamp counter where there is one, nanoseconds elsewhere.
#[inline]
fn ticks(began: Instant) -> u64 {
    if cfg!(target_arch = "x86_64") {
        time_stamp()
    } else {
        began.elapsed().as_nanos() as u64
    }
}

/// Each thread replaces random ones of 10,000 blocks of 16 bytes to 32 KiB; each malloc and each free is timed, the
/// two readings of the clock included. Reports p50, p99, p99.9, p99.99 and the longest, in nanoseconds.
pub fn mixed(size: Size) -> Figures {
    const HELD: usize = 10_000;
    let replacements = size.count(400_000);
    let began = Instant::now();
    let first = ticks(began);
    let mut all = Histogram::new();
    let mut figures = Figures::time(|| {
        let parts = in_lanes(|lane| {
            let mut histogram = Histogram::new();
            let mut rng = Rng::new(lane as u64);
            let mut blocks: Vec<Option<Block>> = (0..HELD).map(|_| None).collect();
            for _ in 0..replacements {
                let at = rng.below(HELD);
                let size = log_size(&mut rng, 16, 11);
                if let Some(old) = blocks[at].take() {
                    let start = ticks(began);
                    drop(old);
                    histogram.add(ticks(began).wrapping_sub(start));
                }
                let start = ticks(began);
                let new = Block::new(size);
                histogram.add(ticks(began).wrapping_sub(start));
                blocks[at] = Some(new);
            }
            histogram
        });
        parts.iter().for_each(|part| all.merge(part));
        lanes() * replacements
    });
    let passed = ticks(began).wrapping_sub(first).max(1) as f64;
    let ns = began.elapsed().as_nanos() as f64 / passed;
    figures.more = [0.5, 0.99, 0.999, 0.9999]
        .map(|share| all.percentile(share) as f64 * ns)
        .to_vec();
    figures.more.push(all.max as f64 * ns);
    figures
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_within_a_thirty_second() {
        for ticks in (0..5000).chain([1 << 20, (1 << 40) + 12345, u64::MAX >> 8]) {
            let low = Histogram::value(Histogram::bucket(ticks));
            assert!(low <= ticks, "{ticks}: {low}");
            assert!(ticks - low <= ticks / 32, "{ticks}: {low}");
        }
    }

    #[test]
    fn percentiles_of_a_hundred_numbers() {
        let mut one = Histogram::new();
        let mut other = Histogram::new();
        for n in 1..=20 {
            one.add(n);
        }
        for n in 21..=31 {
            other.add(n);
        }
        other.add(1_000_000);
        one.merge(&other);
        // 32 numbers: the 16th is 16, the 31st 31, the last the large one.
        assert_eq!(one.percentile(0.5), 16);
        assert_eq!(one.percentile(31.0 / 32.0), 31);
        assert_eq!(one.max, 1_000_000);
        assert!(one.percentile(1.0) > 1_000_000 * 31 / 32);
    }
}
