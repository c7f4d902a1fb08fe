//! The exact interval that belongs to the Mann–Whitney test: by which factor does one group exceed the other?
//!
//! The pairwise quotients a/b, sorted, are the points at which the U statistic of "a against b times a factor"
//! steps; cutting as many off either end as the null distribution of U allows gives an interval that excludes 1
//! exactly when the test is significant (Hodges and Lehmann 1963). No distribution is assumed, only that both groups
//! have the same shape on a logarithmic scale.

use super::Interval;

/// A quotient of two groups.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ratio {
    /// The median of the pairwise quotients (the Hodges–Lehmann estimate).
    pub estimate: f64,
    /// Its exact interval; `None` when so few samples cannot reach the level.
    pub interval: Option<Interval>,
}

/// The quotient of positive `a` by positive `b` with its interval at tail probability `alpha` (two-sided: 0.05 gives
/// 95 %). `None` when a group is empty or a sample is not positive.
pub fn ratio(a: &[f64], b: &[f64], alpha: f64) -> Option<Ratio> {
    let positive = |v: &[f64]| !v.is_empty() && v.iter().all(|x| *x > 0.0 && x.is_finite());
    if !positive(a) || !positive(b) {
        return None;
    }
    let mut quotients: Vec<f64> = a
        .iter()
        .flat_map(|x| b.iter().map(move |y| x / y))
        .collect();
    quotients.sort_by(f64::total_cmp);
    let pairs = quotients.len();
    // The middle pair's geometric mean: the estimate of b/a is then exactly the inverse.
    let estimate = (quotients[(pairs - 1) / 2] * quotients[pairs / 2]).sqrt();
    let cut = cut(a.len(), b.len(), alpha);
    let interval = cut.map(|cut| Interval {
        low: quotients[cut],
        high: quotients[pairs - 1 - cut],
    });
    Some(Ratio { estimate, interval })
}

/// The largest U that is still significant at `alpha`, two-sided: the critical value of the printed tables. `None`
/// when even disjoint groups are not.
pub fn cut(n1: usize, n2: usize, alpha: f64) -> Option<usize> {
    let ways = ways_by_u(n1, n2);
    let all: f64 = ways.iter().sum();
    let mut below = 0.0;
    let mut cut = None;
    for (u, count) in ways.iter().enumerate().take(n1 * n2 / 2 + 1) {
        below += count;
        // The same tolerance as the tables: p exactly equal to alpha counts.
        if 2.0 * below / all > alpha * (1.0 + 1e-12) {
            break;
        }
        cut = Some(u);
    }
    cut
}

/// In how many orders of n1 + n2 distinct samples is the first group's U equal to u, for each u?
fn ways_by_u(n1: usize, n2: usize) -> Vec<f64> {
    // The Gaussian binomial coefficient: the product of (1 - q^(n2+i)) / (1 - q^i) for i = 1..=n1.
    let most = n1 * n2;
    let mut ways = vec![0.0; most + 1];
    ways[0] = 1.0;
    for i in 1..=n1 {
        for u in (n2 + i..=most).rev() {
            ways[u] -= ways[u - n2 - i];
        }
        for u in i..=most {
            ways[u] += ways[u - i];
        }
    }
    ways
}

/// The fewest rounds, the same for both groups, whose disjoint samples are significant at `alpha`.
pub fn rounds_needed(alpha: f64) -> usize {
    let mut ways = 1.0;
    let mut n = 0;
    while 2.0 / ways > alpha {
        n += 1;
        // C(2n, n) from C(2n - 2, n - 1).
        ways *= (2 * (2 * n - 1)) as f64 / n as f64;
    }
    n
}
