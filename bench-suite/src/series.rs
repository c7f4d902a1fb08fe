//! What a workload may bring home besides one figure: a distribution of latencies, memory over time, a map of pages.
//!
//! All three are optional. A workload fills them through [`crate::workloads::Outcome`]; the report plots them.

use serde::{Deserialize, Serialize};

/// Buckets of a power of two: a bucket is at most 1/8 (12.5 %) wider than its lower end.
const STEPS: u64 = 8;
const STEP_BITS: u32 = STEPS.trailing_zeros();
/// Buckets in all: values below [`STEPS`] have one each.
const BUCKETS: usize = ((64 - STEP_BITS as usize) + 1) * STEPS as usize;

/// A histogram of nanoseconds in logarithmic buckets, eight to a power of two.
///
/// ```text
///  0 1 2 … 7 | 8 9 … 15 | 16 18 20 … 30 | 32 36 … 60 | 64 72 …
///  exact       exact      width 2         width 4      width 8
/// ```
/// Recording costs a shift and an addition, and the size is fixed, so a workload can keep one for each thread and
/// [`Histogram::merge`] them at the end.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Histogram {
    /// Counts of the buckets up to the last that is not 0.
    counts: Vec<u64>,
}

impl Histogram {
    /// An empty histogram that never allocates again: for use while time is measured.
    pub fn new() -> Self {
        Self {
            counts: vec![0; BUCKETS],
        }
    }

    /// Counts one latency.
    #[inline]
    pub fn record(&mut self, ns: u64) {
        let bucket = bucket_of(ns);
        if bucket >= self.counts.len() {
            self.counts.resize(bucket + 1, 0);
        }
        self.counts[bucket] += 1;
    }

    /// Adds all of `other`.
    pub fn merge(&mut self, other: &Self) {
        if self.counts.len() < other.counts.len() {
            self.counts.resize(other.counts.len(), 0);
        }
        for (sum, count) in self.counts.iter_mut().zip(&other.counts) {
            *sum += count;
        }
    }

    /// How many latencies were counted.
    pub fn total(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Drops the empty buckets behind the last full one, for storage.
    pub fn trimmed(mut self) -> Self {
        while self.counts.last() == Some(&0) {
            self.counts.pop();
        }
        self
    }

    /// The upper end, in nanoseconds, of the bucket in which the share `q` (0 to 1) of all is reached; `None` if empty.
    pub fn quantile(&self, q: f64) -> Option<u64> {
        let total = self.total();
        let wanted = ((q * total as f64).ceil() as u64).clamp(1, total.max(1));
        let mut seen = 0;
        self.counts.iter().enumerate().find_map(|(bucket, count)| {
            seen += count;
            (seen >= wanted && total > 0).then(|| lower_end(bucket + 1).saturating_sub(1).max(1))
        })
    }

    /// The cumulative distribution: the upper end of each bucket that is not empty, and the share at or below it.
    pub fn cdf(&self) -> Vec<(u64, f64)> {
        let total = self.total() as f64;
        let mut seen = 0;
        let mut points = Vec::new();
        for (bucket, count) in self.counts.iter().enumerate().filter(|(_, c)| **c > 0) {
            seen += count;
            points.push((lower_end(bucket + 1).saturating_sub(1), seen as f64 / total));
        }
        points
    }
}

fn bucket_of(ns: u64) -> usize {
    if ns < STEPS {
        return ns as usize;
    }
    let power = ns.ilog2() - STEP_BITS;
    (u64::from(power) * STEPS + (ns >> power)) as usize
}

fn lower_end(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    if bucket < 2 * STEPS {
        return bucket;
    }
    let power = bucket / STEPS - 1;
    (STEPS + bucket % STEPS)
        .checked_shl(power as u32)
        .filter(|_| power < 61)
        .unwrap_or(u64::MAX)
}

/// Resident memory over a worker's life: milliseconds since its start, and KiB.
pub type RssSeries = Vec<(u64, u64)>;

/// A map of pageblocks: one letter a block for its migratetype, and how many of its pages are in use.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PageMap {
    /// The workload that left the arena in this state.
    #[serde(default)]
    pub workload: String,
    /// The row during which it was taken.
    #[serde(default)]
    pub row: String,
    /// The backend, or the placement policy, that was at work.
    #[serde(default)]
    pub backend: String,
    /// Pages of a whole block.
    pub pages_per_block: u32,
    /// A letter for each block, in the order of addresses; see [`PageMap::KINDS`].
    pub kinds: String,
    /// Pages in use of each block.
    pub used: Vec<u32>,
}

impl PageMap {
    /// The letters and what they stand for.
    pub const KINDS: [(char, &'static str); 7] = [
        ('U', "unmovable"),
        ('M', "movable"),
        ('R', "reclaimable"),
        ('L', "large"),
        ('H', "high atomic"),
        ('X', "mixed"),
        ('.', "free"),
    ];

    /// Is every block described, with a known letter and no more pages than a block has?
    pub fn check(&self) -> Result<(), String> {
        if self.pages_per_block == 0 || self.kinds.chars().count() != self.used.len() {
            return Err(format!(
                "pagemap of {} blocks has {} counts of pages",
                self.kinds.chars().count(),
                self.used.len()
            ));
        }
        if let Some(kind) = (self.kinds.chars()).find(|c| !Self::KINDS.iter().any(|(k, _)| k == c))
        {
            return Err(format!("pagemap: no kind of block is called '{kind}'"));
        }
        match self.used.iter().find(|used| **used > self.pages_per_block) {
            Some(used) => Err(format!(
                "pagemap: {used} pages in use in a block of {}",
                self.pages_per_block
            )),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_cover_every_value_without_gaps() {
        for ns in (0..5000).chain([1 << 20, (1 << 40) + 12345, u64::MAX / 2, u64::MAX]) {
            let bucket = bucket_of(ns);
            assert!(bucket < BUCKETS, "{ns}");
            assert!(lower_end(bucket) <= ns, "{ns}");
            assert!(lower_end(bucket + 1) > ns || ns == u64::MAX, "{ns}");
            let width = lower_end(bucket + 1) - lower_end(bucket);
            assert!(width == 1 || width <= lower_end(bucket) / STEPS + 1, "{ns}");
        }
    }

    #[test]
    fn quantiles_of_a_known_distribution() {
        let mut low = Histogram::new();
        let mut high = Histogram::default();
        (1..=990).for_each(|_| low.record(100));
        (1..=10).for_each(|_| high.record(100_000));
        low.merge(&high);
        let all = low.trimmed();
        assert_eq!(all.total(), 1000);
        assert_eq!(all.quantile(0.5), Some(103));
        assert_eq!(all.quantile(0.99), Some(103));
        assert!(all.quantile(0.999).unwrap() >= 100_000);
        let cdf = all.cdf();
        assert_eq!(cdf.len(), 2);
        assert_eq!(cdf[0], (103, 0.99));
        assert_eq!(cdf[1].1, 1.0);
        assert_eq!(Histogram::new().quantile(0.5), None);
    }

    #[test]
    fn maps_that_do_not_add_up_are_refused() {
        let good = PageMap {
            pages_per_block: 512,
            kinds: "UM.".into(),
            used: vec![512, 3, 0],
            ..PageMap::default()
        };
        assert_eq!(good.check(), Ok(()));
        let mut bad = good.clone();
        bad.used.pop();
        assert!(bad.check().unwrap_err().contains("3 blocks has 2"));
        let mut bad = good.clone();
        bad.used[0] = 513;
        assert!(bad.check().unwrap_err().contains("513"));
        bad.used[0] = 1;
        bad.kinds = "Q..".into();
        assert!(bad.check().unwrap_err().contains("'Q'"));
    }
}
