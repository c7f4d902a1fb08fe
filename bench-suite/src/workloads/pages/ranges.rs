//! The latency table of Mel Gorman's mail of 2005: latencies grouped into ranges, in thousands of cycles.
//!
//! ```text
//!      Average          Max          Min       Allocs
//!      -------          ---          ---       ------
//!         0.73         1.09         0.53         1476
//!         1.33         1.87         1.10           23
//! ```
//! The values are taken in ascending order. A value joins the first range whose average so far is within half of that
//! average of it; otherwise it opens a range of its own.

#![deny(unsafe_code)]

/// One range of like latencies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// The least value.
    pub min: u64,
    /// The largest value.
    pub max: u64,
    /// Number of values.
    pub count: usize,
    sum: u64,
}

impl Range {
    /// The mean of the values.
    pub fn average(&self) -> f64 {
        self.sum as f64 / self.count as f64
    }

    fn takes(&self, value: u64) -> bool {
        let average = self.average();
        (value as f64 - average).abs() <= average / 2.0
    }
}

/// Groups values into ranges, ascending.
pub fn ranges(values: &[u64]) -> Vec<Range> {
    let mut sorted = values.to_vec();
    sorted.sort_unstable();
    let mut ranges: Vec<Range> = Vec::new();
    for value in sorted {
        match ranges.iter_mut().find(|range| range.takes(value)) {
            Some(range) => {
                range.max = value;
                range.count += 1;
                range.sum += value;
            }
            None => ranges.push(Range {
                min: value,
                max: value,
                count: 1,
                sum: value,
            }),
        }
    }
    ranges
}

/// The table under a title, in thousands of the values' unit.
pub fn render(title: &str, values: &[u64]) -> String {
    let mut text = format!(
        "{title}\n{:>12} {:>12} {:>12} {:>12}\n{:>12} {:>12} {:>12} {:>12}\n",
        "Average", "Max", "Min", "Allocs", "-------", "---", "---", "------"
    );
    let thousands = |value: f64| value / 1000.0;
    for range in ranges(values) {
        text.push_str(&format!(
            "{:12.2} {:12.2} {:12.2} {:12}\n",
            thousands(range.average()),
            thousands(range.max as f64),
            thousands(range.min as f64),
            range.count
        ));
    }
    text
}

/// The value below or at which `per_mille` thousandths of the sorted values lie (the nearest rank); 0 for none.
pub fn percentile(sorted: &[u64], per_mille: usize) -> u64 {
    let rank = (sorted.len() * per_mille).div_ceil(1000);
    sorted.get(rank.saturating_sub(1)).copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `count` values from `min` to `max` whose mean is `average` to the cycle: the two ends, and the rest around what
    /// is missing.
    fn spread(average: u64, max: u64, min: u64, count: u64) -> Vec<u64> {
        if count == 1 {
            return vec![max];
        }
        let mut values = vec![min, max];
        let rest = count - 2;
        let sum = average * count - min - max;
        for i in 0..rest {
            values.push(sum / rest + u64::from(i < sum % rest));
        }
        assert_eq!(values.iter().sum::<u64>(), average * count);
        values
    }

    fn shuffled(parts: [Vec<u64>; 3]) -> Vec<u64> {
        let mut values = parts.concat();
        crate::rng::Rng::new(3).shuffle(&mut values);
        values
    }

    #[test]
    fn the_tables_of_2005_to_the_letter() {
        let golden = include_str!("../../../tests/data/order5_2005.txt");
        let standard = shuffled([
            spread(730, 1090, 530, 1476),
            spread(1330, 1870, 1100, 23),
            spread(2100, 2100, 2100, 1),
        ]);
        // Between 1.2265 and 1.2345 thousand lies the bound of the first range, 1.5 times its average.
        let modified = shuffled([
            spread(820, 1229, 600, 1440),
            spread(1360, 1960, 1231, 57),
            spread(2420, 2920, 2090, 3),
        ]);
        let printed = format!(
            "{}\n{}",
            render("Standard", &standard),
            render("Modified", &modified)
        );
        assert_eq!(printed, golden);
    }

    #[test]
    fn a_value_on_the_bound_joins_and_the_next_one_opens() {
        let found = ranges(&[100, 100, 150]);
        assert_eq!(found.len(), 1);
        let found = ranges(&[100, 100, 151]);
        assert_eq!(found.len(), 2);
        assert_eq!((found[1].min, found[1].max, found[1].count), (151, 151, 1));
        assert_eq!(ranges(&[]), []);
    }

    #[test]
    fn percentiles_are_nearest_ranks() {
        let values: Vec<u64> = (1..=1000).collect();
        assert_eq!(percentile(&values, 500), 500);
        assert_eq!(percentile(&values, 990), 990);
        assert_eq!(percentile(&values, 999), 999);
        assert_eq!(percentile(&[7], 500), 7);
        assert_eq!(percentile(&[], 500), 0);
    }
}
