//! Samples that do not belong to the rest: Tukey's outer fences.

/// Fewer samples than this have no quartiles worth the name.
const LEAST: usize = 5;

/// How many samples lie more than three interquartile ranges outside the quartiles (Tukey 1977, "far out"). 0 for
/// fewer than five samples. Quartiles are interpolated as R's default (type 7) does.
pub fn far_out(samples: &[f64]) -> usize {
    if samples.len() < LEAST {
        return 0;
    }
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let (q1, q3) = (quantile(&sorted, 0.25), quantile(&sorted, 0.75));
    let fence = 3.0 * (q3 - q1);
    samples
        .iter()
        .filter(|x| **x < q1 - fence || **x > q3 + fence)
        .count()
}

/// The quantile `q` (0 to 1) of ascending `sorted`, linear between order statistics; 0 for none.
pub fn quantile(sorted: &[f64], q: f64) -> f64 {
    let Some(last) = sorted.len().checked_sub(1) else {
        return 0.0;
    };
    let at = q.clamp(0.0, 1.0) * last as f64;
    let (below, above) = (at.floor() as usize, at.ceil() as usize);
    sorted[below] + (sorted[above] - sorted[below]) * (at - below as f64)
}
