//! Statistics of raw samples: means, the percentage delta, the exact Mann–Whitney U test and a bootstrap interval.
//!
//! The samples of a row are few (5 to 100), so the test is exact: it counts every way in which the ranks could have
//! fallen, ties included, instead of trusting the normal approximation.

pub mod holm;
pub mod outliers;
pub mod shift;

use crate::rng::Rng;
use serde::{Deserialize, Serialize};

/// Which direction of a metric is an improvement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Better {
    /// Rates: more is better.
    Higher,
    /// Times and counts of trouble: less is better.
    Lower,
}

/// Which mean belongs to a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mean {
    /// The mean of times and counts.
    Arithmetic,
    /// The mean of rates over equal amounts of work.
    Harmonic,
}

impl Mean {
    /// Rates (a unit "per second" or "per minute") take the harmonic mean, everything else the arithmetic one.
    pub fn of_unit(unit: &str) -> Self {
        if unit.ends_with("/s") || unit.ends_with("/min") {
            Self::Harmonic
        } else {
            Self::Arithmetic
        }
    }

    /// The mean of `samples`; 0 for none. A rate of 0 makes the harmonic mean 0, its limit.
    pub fn of(self, samples: &[f64]) -> f64 {
        self.of_values(samples.len(), samples.iter().copied())
    }

    fn of_values(self, n: usize, values: impl Iterator<Item = f64>) -> f64 {
        if n == 0 {
            return 0.0;
        }
        match self {
            Self::Arithmetic => values.sum::<f64>() / n as f64,
            Self::Harmonic => {
                let mut sum = 0.0;
                for v in values {
                    if v <= 0.0 {
                        return 0.0;
                    }
                    sum += 1.0 / v;
                }
                n as f64 / sum
            }
        }
    }
}

/// The median; the mean of the middle two for an even count, 0 for none.
pub fn median(samples: &[f64]) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let n = sorted.len();
    match n {
        0 => 0.0,
        _ if n % 2 == 1 => sorted[n / 2],
        _ => (sorted[n / 2 - 1] + sorted[n / 2]) / 2.0,
    }
}

/// The arithmetic of the percentage delta.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Delta {
    /// Change from the baseline, divided by the baseline.
    #[default]
    #[serde(rename = "base")]
    Base,
    /// The tables of 2010 on the kernel list: the same change divided by the new value.
    #[serde(rename = "lkml-2010")]
    Lkml2010,
}

impl Delta {
    /// The change from `base` to `new` in per cent, signed so that + is better. `None` where the divisor is 0 and
    /// the two differ.
    pub fn percent(self, better: Better, base: f64, new: f64) -> Option<f64> {
        if base == new {
            return Some(0.0);
        }
        let divisor = match self {
            Self::Base => base,
            Self::Lkml2010 => new,
        };
        let gain = match better {
            Better::Higher => new - base,
            Better::Lower => base - new,
        };
        (divisor != 0.0).then(|| gain / divisor * 100.0)
    }
}

/// Above this many samples in all, the exact count takes too long and the normal approximation is close.
const EXACT_LIMIT: usize = 200;

/// The U statistic of `a` against `b`: the pairs in which `a` is larger, a tie counting one half.
pub fn mann_whitney_u(a: &[f64], b: &[f64]) -> f64 {
    let mut u = 0.0;
    for x in a {
        for y in b {
            if x > y {
                u += 1.0;
            } else if x == y {
                u += 0.5;
            }
        }
    }
    u
}

/// The two-sided p-value of the Mann–Whitney U test: the share of all assignments of the pooled (mid)ranks to the
/// two groups whose U lies at least as far from its expectation as the one observed.
///
/// Exact, ties included, up to 200 samples in all; the normal approximation with tie and continuity corrections
/// beyond. 1.0 when either group is empty.
pub fn mann_whitney_p(a: &[f64], b: &[f64]) -> f64 {
    if a.is_empty() || b.is_empty() {
        return 1.0;
    }
    let (small, large) = if a.len() <= b.len() { (a, b) } else { (b, a) };
    let ranks = doubled_midranks(small, large);
    let (n, total) = (small.len(), ranks.len());
    let observed: usize = ranks[..n].iter().sum();
    // The expectation of the doubled rank sum: n (N + 1).
    let expected = n * (total + 1);
    let distance = observed.abs_diff(expected);
    if total > EXACT_LIMIT {
        return normal_p(&ranks, n, distance);
    }
    exact_p(&ranks, n, expected, distance)
}

/// Twice the midrank of each sample in the pool (so that halves stay integers), those of `small` first.
fn doubled_midranks(small: &[f64], large: &[f64]) -> Vec<usize> {
    let pool: Vec<f64> = small.iter().chain(large).copied().collect();
    let mut order: Vec<usize> = (0..pool.len()).collect();
    order.sort_by(|&i, &j| pool[i].total_cmp(&pool[j]));
    let mut ranks = vec![0; pool.len()];
    let mut start = 0;
    while start < order.len() {
        let mut end = start + 1;
        while end < order.len() && pool[order[end]] == pool[order[start]] {
            end += 1;
        }
        // Ranks start+1 ..= end share their mean; doubled: start + 1 + end.
        for &i in &order[start..end] {
            ranks[i] = start + 1 + end;
        }
        start = end;
    }
    ranks
}

/// Counts, by dynamic programming over the pooled ranks, the subsets of `n` ranks by their sum.
fn exact_p(ranks: &[usize], n: usize, expected: usize, distance: usize) -> f64 {
    let mut sorted = ranks.to_vec();
    sorted.sort_unstable();
    let max_sum: usize = sorted.iter().rev().take(n).sum();
    let width = max_sum + 1;
    // ways[k * width + s]: subsets of k of the ranks seen so far whose sum is s.
    let mut ways = vec![0.0f64; (n + 1) * width];
    ways[0] = 1.0;
    for (seen, &rank) in sorted.iter().enumerate() {
        for k in (1..=n.min(seen + 1)).rev() {
            let (lower, upper) = ways.split_at_mut(k * width);
            let from = &lower[(k - 1) * width..];
            for sum in rank..width {
                upper[sum] += from[sum - rank];
            }
        }
    }
    let counts = &ways[n * width..];
    let all: f64 = counts.iter().sum();
    let extreme: f64 = counts
        .iter()
        .enumerate()
        .filter(|(sum, _)| sum.abs_diff(expected) >= distance)
        .map(|(_, ways)| ways)
        .sum();
    (extreme / all).min(1.0)
}

fn normal_p(ranks: &[usize], n: usize, doubled_distance: usize) -> f64 {
    let total = ranks.len() as f64;
    let (n1, n2) = (n as f64, total - n as f64);
    let mut sorted = ranks.to_vec();
    sorted.sort_unstable();
    let ties: f64 = sorted
        .chunk_by(|a, b| a == b)
        .map(|run| (run.len() as f64).powi(3) - run.len() as f64)
        .sum();
    let variance = n1 * n2 / 12.0 * (total + 1.0 - ties / (total * (total - 1.0)));
    if variance <= 0.0 {
        return 1.0;
    }
    let z = ((doubled_distance as f64 / 2.0) - 0.5).max(0.0) / variance.sqrt();
    erfc(z / std::f64::consts::SQRT_2).min(1.0)
}

/// The complementary error function for x >= 0 (Abramowitz and Stegun 7.1.26, error below 1.5e-7).
fn erfc(x: f64) -> f64 {
    let t = 1.0 / (1.0 + 0.327_591_1 * x);
    let poly = t
        * (0.254_829_592
            + t * (-0.284_496_736
                + t * (1.421_413_741 + t * (-1.453_152_027 + t * 1.061_405_429))));
    poly * (-x * x).exp()
}

/// A confidence interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// Its lower end.
    pub low: f64,
    /// Its upper end.
    pub high: f64,
}

impl Interval {
    /// The whole width in per cent of `centre`; 0 when the centre is 0.
    pub fn width_pct(&self, centre: f64) -> f64 {
        if centre == 0.0 {
            0.0
        } else {
            (self.high - self.low) / centre.abs() * 100.0
        }
    }
}

/// Resamples drawn for one bootstrap interval.
const RESAMPLES: usize = 2000;

/// The percentile bootstrap interval of the mean at `level` per cent; the same seed gives the same interval.
pub fn bootstrap(samples: &[f64], mean: Mean, level: f64, seed: u64) -> Interval {
    let n = samples.len();
    if n < 2 {
        let only = mean.of(samples);
        return Interval {
            low: only,
            high: only,
        };
    }
    let mut rng = Rng::new(seed);
    let mut means: Vec<f64> = (0..RESAMPLES)
        .map(|_| mean.of_values(n, (0..n).map(|_| samples[rng.below(n)])))
        .collect();
    means.sort_by(f64::total_cmp);
    let tail = (1.0 - level / 100.0) / 2.0;
    let low = (tail * RESAMPLES as f64).floor() as usize;
    let low = low.min(RESAMPLES / 2);
    Interval {
        low: means[low],
        high: means[RESAMPLES - 1 - low],
    }
}

/// Can samples of these sizes reach significance at all? Four against four is the least that can (p = 0.0286);
/// the smallest p is that of two disjoint groups.
pub fn can_be_significant(n1: usize, n2: usize) -> bool {
    let low: Vec<f64> = (0..n1.min(100)).map(|i| i as f64).collect();
    let high: Vec<f64> = (0..n2.min(100)).map(|i| 1000.0 + i as f64).collect();
    n1 > 0 && n2 > 0 && mann_whitney_p(&low, &high) < SIGNIFICANCE
}

/// The level below which a p-value counts as significant.
pub const SIGNIFICANCE: f64 = 0.05;
