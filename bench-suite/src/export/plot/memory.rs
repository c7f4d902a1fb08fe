//! Resident memory over the life of a worker, a curve for each column.

use super::{Chart, Point, Scale, Series, short};
use crate::report::Row;

/// The plot of one row; `None` when nothing was seen of any column.
pub fn plot(title: &str, rows: &[(&str, Option<&Row>)]) -> Option<String> {
    let series: Vec<Series<'_>> = (rows.iter().enumerate())
        .filter_map(|(column, (name, row))| {
            let seen = row.map(|row| &row.rss_series).filter(|s| s.len() > 1)?;
            let points = (seen.iter())
                .map(|(ms, kib)| (*ms as f64 / 1000.0, *kib as f64 / 1024.0, None))
                .collect();
            Some(Series {
                name,
                column,
                points,
            })
        })
        .collect();
    if series.is_empty() {
        return None;
    }
    let max = |of: fn(&Point) -> f64| {
        let points = series.iter().flat_map(|one| &one.points);
        points.map(of).fold(0.0, f64::max)
    };
    let end = max(|point| point.0);
    let x = Scale::Linear(0.0, end);
    let step = super::round_step(end);
    let ticks = (0..=(end / step) as usize).map(|i| i as f64 * step);
    let label = format!("resident memory over time, {title}");
    let chart = Chart {
        kind: "rss",
        label: &label,
        x,
        y: Scale::from_zero(max(|point| point.1)),
        x_ticks: ticks.map(|t| (t, short(t))).collect(),
        y_ticks: Vec::new(),
        x_title: "seconds since the worker's start",
        y_title: "MiB",
        markers: false,
    };
    Some(chart.render(&series))
}
