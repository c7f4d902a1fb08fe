//! A histogram of durations that costs one relaxed add.

#![deny(unsafe_code)]

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Buckets of an octave: a bucket is a quarter of its value wide at most.
const SUB: usize = 4;
const BUCKETS: usize = 44 * SUB;

/// Counts of durations in nanoseconds, in buckets four to a doubling, up to about
/// four hours.
#[derive(Debug)]
pub struct Histogram([AtomicU64; BUCKETS]);

impl Default for Histogram {
    fn default() -> Self {
        Self::new()
    }
}

impl Histogram {
    /// An empty one.
    pub const fn new() -> Self {
        Self([const { AtomicU64::new(0) }; BUCKETS])
    }

    /// Counts one duration.
    pub fn note(&self, ns: u64) {
        self.0[bucket(ns)].fetch_add(1, Relaxed);
    }

    /// How many were counted.
    pub fn count(&self) -> u64 {
        self.0.iter().map(|n| n.load(Relaxed)).sum()
    }

    /// The upper end of the bucket that holds the given fraction (0 to 1), in
    /// nanoseconds; 0 when nothing was counted.
    pub fn quantile(&self, fraction: f64) -> u64 {
        let count = self.count();
        let rank = (fraction.clamp(0.0, 1.0) * count as f64).ceil().max(1.0) as u64;
        let mut seen = 0;
        for (i, n) in self.0.iter().enumerate() {
            seen += n.load(Relaxed);
            if count > 0 && seen >= rank {
                return upper(i);
            }
        }
        0
    }

    /// The buckets that are not empty: upper end in nanoseconds, and count.
    pub fn buckets(&self) -> impl Iterator<Item = (u64, u64)> {
        self.0.iter().enumerate().filter_map(|(i, n)| {
            let n = n.load(Relaxed);
            (n > 0).then(|| (upper(i), n))
        })
    }
}

fn bucket(ns: u64) -> usize {
    if ns < SUB as u64 {
        return ns as usize;
    }
    let octave = ns.ilog2() as usize;
    let sub = (ns >> (octave - 2)) as usize & (SUB - 1);
    ((octave - 1) * SUB + sub).min(BUCKETS - 1)
}

/// The largest duration of a bucket.
fn upper(bucket: usize) -> u64 {
    if bucket < SUB {
        return bucket as u64;
    }
    let (octave, sub) = (bucket / SUB + 1, (bucket % SUB) as u64);
    ((SUB as u64 + sub + 1) << (octave - 2)) - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_hold_what_they_say() {
        for ns in (0..10_000).chain((4..43).flat_map(|o| [(1 << o) - 1, 1 << o, (1 << o) + 1])) {
            let b = bucket(ns);
            assert!(ns <= upper(b), "{ns} in {b}");
            assert!(b == 0 || ns > upper(b - 1), "{ns} in {b}");
        }
    }

    #[test]
    fn quantiles_are_upper_ends() {
        let h = Histogram::new();
        assert_eq!(h.quantile(0.5), 0);
        for ns in 1..=100 {
            h.note(ns * 1000);
        }
        assert_eq!(h.count(), 100);
        let p50 = h.quantile(0.5);
        assert!((50_000..62_500).contains(&p50), "{p50}");
        assert!(h.quantile(1.0) >= 100_000);
        assert_eq!(h.buckets().map(|(_, n)| n).sum::<u64>(), 100);
    }
}
