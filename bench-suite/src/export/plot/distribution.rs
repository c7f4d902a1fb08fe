//! Latency CDFs: the share of operations that took at most so long, the slow tail stretched so that each nine of 90, 99,
//! 99.9 … takes as much room as the last.

use super::{Chart, Scale, Series, short_ns};
use crate::report::Row;

/// Nines at the top of the plot.
const NINES: f64 = 5.0;

/// The plot of one row, a curve for each column that has latencies; `None` without any.
pub fn plot(title: &str, rows: &[(&str, Option<&Row>)]) -> Option<String> {
    let mut series = Vec::new();
    for (column, (name, row)) in rows.iter().enumerate() {
        let Some(latencies) = row.and_then(|row| row.histogram.as_ref()) else {
            continue;
        };
        let cdf = latencies.cdf();
        let Some(first) = cdf.first() else { continue };
        let mut points = vec![(first.0.max(1) as f64, 0.0, None)];
        let mut below = 0.0;
        for (ns, share) in cdf {
            let x = ns.max(1) as f64;
            points.push((x, nines(below), None));
            points.push((x, nines(share), None));
            below = share;
        }
        series.push(Series {
            name,
            column,
            points,
        });
    }
    let ends = series.iter().flat_map(|s: &Series<'_>| {
        let last = s.points.len() - 1;
        [s.points[0].0, s.points[last].0]
    });
    let (low, high) = ends.fold((f64::INFINITY, 0.0f64), |(low, high), x| {
        (low.min(x), high.max(x))
    });
    if series.is_empty() {
        return None;
    }
    let x = Scale::Log(low / 1.1, (high * 1.1).max(low * 2.0));
    let percent = [
        ("0", 0.0),
        ("50%", 0.5),
        ("90%", 0.9),
        ("99%", 0.99),
        ("99.9%", 0.999),
        ("99.99%", 0.9999),
    ];
    let label = format!("latency distribution of {title}");
    let chart = Chart {
        kind: "cdf",
        label: &label,
        x,
        y: Scale::Linear(0.0, NINES),
        x_ticks: x.ticks().into_iter().map(|v| (v, short_ns(v))).collect(),
        y_ticks: percent
            .iter()
            .map(|(t, share)| (nines(*share), (*t).to_owned()))
            .collect(),
        x_title: "took at most",
        y_title: "share of operations",
        markers: false,
    };
    Some(chart.render(&series))
}

/// How many nines a share has: 0.9 has one, 0.99 two.
fn nines(share: f64) -> f64 {
    if share >= 1.0 {
        return NINES;
    }
    (-(1.0 - share).log10()).min(NINES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_nine_is_one_step() {
        assert!((nines(0.9) - 1.0).abs() < 1e-9);
        assert!((nines(0.999) - 3.0).abs() < 1e-9);
        assert_eq!(nines(1.0), NINES);
        assert_eq!(nines(0.0), 0.0);
    }
}
