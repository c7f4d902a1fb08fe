//! Many rows, one verdict: Holm's step-down correction, and how many false alarms chance alone explains.

/// Holm's adjusted p-values (Holm 1979), in the order given: a row counts as significant in the whole table at level
/// alpha exactly when its adjusted p is at most alpha.
///
/// The i-th smallest of m values is multiplied by m - i (counting from 0) and may not be smaller than those before it.
pub fn adjusted(p: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..p.len()).collect();
    order.sort_by(|&i, &j| p[i].total_cmp(&p[j]));
    let mut all = vec![1.0; p.len()];
    let mut floor = 0.0f64;
    for (rank, &i) in order.iter().enumerate() {
        floor = floor.max((p[i] * (p.len() - rank) as f64).min(1.0));
        all[i] = floor;
    }
    all
}

/// The level, as a tail probability, at which Holm's procedure tests each row: alpha / (m - i) for the i-th smallest.
pub fn levels(p: &[f64], alpha: f64) -> Vec<f64> {
    let mut order: Vec<usize> = (0..p.len()).collect();
    order.sort_by(|&i, &j| p[i].total_cmp(&p[j]));
    let mut all = vec![alpha; p.len()];
    for (rank, &i) in order.iter().enumerate() {
        all[i] = alpha / (p.len() - rank) as f64;
    }
    all
}

/// The most of `n` rows that chance makes significant at `p` each, exceeded in at most 2.5 % of all A/A tests: the
/// smallest k with P(X <= k) >= 0.975 for X binomial. 16 for 200 rows at 0.05.
pub fn most_by_chance(n: usize, p: f64) -> usize {
    let mut term = (1.0 - p).powi(n as i32);
    let mut sum = term;
    let mut k = 0;
    while sum < 0.975 && k < n {
        term *= (n - k) as f64 / (k + 1) as f64 * p / (1.0 - p);
        sum += term;
        k += 1;
    }
    k
}
