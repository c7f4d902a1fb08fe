//! Scaling lines: rows whose labels differ in one number (threads, groups, bytes) as curves over that number.

use super::{Chart, Scale, Series, number_in};
use crate::report::Row;
use crate::table::Table;

/// Fewer points than this make no curve.
const LEAST: usize = 3;

/// One plot for each set of rows that scale; the title of each, and the SVG.
pub fn plots<'a>(
    table: &Table,
    rows_of: impl Fn(&str) -> Vec<Option<&'a Row>>,
) -> Vec<(String, String)> {
    let mut sets: Vec<(String, Vec<(f64, &str)>)> = Vec::new();
    for line in &table.lines {
        let Some((name, number)) = number_in(&line.label) else {
            continue;
        };
        match sets.iter_mut().find(|(known, _)| *known == name) {
            Some((_, points)) => points.push((number, &line.label)),
            None => sets.push((name, vec![(number, &line.label)])),
        }
    }
    let mut plots = Vec::new();
    for (name, mut points) in sets {
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        points.dedup_by_key(|point| point.0);
        if points.len() < LEAST {
            continue;
        }
        let figures: Vec<Vec<Option<&Row>>> =
            points.iter().map(|(_, label)| rows_of(label)).collect();
        let series: Vec<Series<'_>> = (table.columns.iter().enumerate())
            .map(|(column, name)| Series {
                name,
                column,
                points: (points.iter().zip(&figures))
                    .filter_map(|((x, _), rows)| {
                        let row = (*rows.get(column)?)?;
                        let interval = row.interval.filter(|i| i.high > i.low);
                        Some((*x, row.mean, interval.map(|i| (i.low, i.high))))
                    })
                    .collect(),
            })
            .collect();
        let values = (series.iter())
            .flat_map(|one| &one.points)
            .flat_map(|(_, y, interval)| [*y, interval.map_or(*y, |(_, high)| high)]);
        let (first, last) = (points[0].0, points[points.len() - 1].0);
        let title = if name.is_empty() {
            table.metric.clone()
        } else {
            name
        };
        let label = format!("{} {title} over {first} to {last}", table.title());
        let chart = Chart {
            kind: "lines",
            label: &label,
            x: if first > 0.0 && last / first > 10.0 {
                Scale::Log(first, last)
            } else {
                Scale::Linear(first.min(0.0).max(first - 1.0), last)
            },
            y: Scale::fitting(values),
            x_ticks: points.iter().map(|(x, _)| (*x, tick(*x))).collect(),
            y_ticks: Vec::new(),
            x_title: scale_of(&table.workload),
            y_title: &table.unit,
            markers: true,
        };
        plots.push((title, chart.render(&series)));
    }
    plots
}

/// What the number in a workload's rows counts.
fn scale_of(workload: &str) -> &'static str {
    match workload {
        "hackbench" => "groups of 40 threads",
        "netperf" => "bytes of payload",
        "slab-micro" | "colour" => "bytes of an object",
        "sysbench" => "threads",
        _ => "the number in the row's name",
    }
}

fn tick(number: f64) -> String {
    if number >= 1024.0 && number % 1024.0 == 0.0 {
        format!("{}K", number / 1024.0)
    } else {
        format!("{number}")
    }
}
