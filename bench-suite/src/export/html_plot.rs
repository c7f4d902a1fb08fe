//! The bar plots of the HTML report, as inline SVG.
//!
//! A group of bars for each row, a bar for each backend, its length relative to the baseline of that row, so that
//! rows of very different size share a plot. Whiskers are confidence intervals, dots the raw samples.

use super::html::escape;
use crate::report::{Report, Row};
use crate::stats::Better;
use crate::table::{Table, column_head, columns_of};

const LABEL: f64 = 150.0;
const BARS: f64 = 520.0;
const VALUE: f64 = 110.0;
const BAR: f64 = 11.0;
const GAP: f64 = 9.0;
const LINE: f64 = 15.0;
/// Longer bars than this many times the baseline are cut, so that one outlier does not flatten the rest.
const CUT: f64 = 4.0;
/// Colours there are; more backends repeat them.
const COLOURS: usize = 8;

/// The plot of one table.
pub fn plot(report: &Report, table: &Table) -> String {
    let backends = columns_of(&report.config, &table.workload);
    let row_of = |label: &str, backend: &str| {
        report.rows.iter().find(|row| {
            row.workload == table.workload
                && row.metric == table.metric
                && row.unit == table.unit
                && row.row == label
                && row.backend == backend
        })
    };
    let groups: Vec<(&str, Vec<Option<&Row>>)> = table
        .lines
        .iter()
        .map(|line| {
            (
                line.label.as_str(),
                backends
                    .iter()
                    .map(|backend| row_of(&line.label, backend))
                    .collect(),
            )
        })
        .collect();
    let longest = groups
        .iter()
        .flat_map(|(_, rows)| {
            let base = base_of(rows);
            rows.iter()
                .flatten()
                .map(move |row| row.interval.map_or(row.mean, |i| i.high.max(row.mean)) / base)
        })
        .fold(1.0, f64::max)
        .min(CUT);
    let scale = BARS / longest;
    let group_height = backends.len() as f64 * BAR + GAP;
    let direction = if table.better == Better::Higher {
        "longer is better"
    } else {
        "shorter is better"
    };
    let (key, top) = key(&backends, direction);
    let height = top + groups.len() as f64 * group_height + 4.0;
    let width = LABEL + BARS + VALUE;
    let mut svg = format!(
        "<svg viewBox=\"0 0 {width} {height}\" role=\"img\" aria-label=\"{} relative to {}\">\n",
        escape(&table.title()),
        escape(&column_head(backends[0]))
    );
    svg.push_str(&key);
    let base_x = LABEL + scale;
    svg.push_str(&format!("<line class=\"base\" x1=\"{base_x:.1}\" y1=\"{top}\" x2=\"{base_x:.1}\" y2=\"{height}\"/>\n"));
    for (g, (label, rows)) in groups.iter().enumerate() {
        let y = top + g as f64 * group_height + GAP / 2.0;
        let middle = y + backends.len() as f64 * BAR / 2.0 + 4.0;
        svg.push_str(&format!(
            "<text x=\"{:.1}\" y=\"{middle:.1}\" text-anchor=\"end\">{}</text>\n",
            LABEL - 8.0,
            escape(label)
        ));
        let base = base_of(rows);
        for (b, row) in rows.iter().enumerate() {
            if let Some(row) = row {
                svg.push_str(&bar(table, row, base, scale, y + b as f64 * BAR, b));
            }
        }
    }
    svg.push_str("</svg>\n");
    svg
}

/// What the bars of a group are relative to: the baseline, or the first that is there.
fn base_of(rows: &[Option<&Row>]) -> f64 {
    rows.iter()
        .flatten()
        .map(|row| row.mean)
        .find(|mean| *mean > 0.0)
        .unwrap_or(1.0)
}

/// The key above the bars, and how far down it reaches.
fn key(backends: &[&str], direction: &str) -> (String, f64) {
    let mut svg = String::new();
    let (mut x, mut y) = (LABEL, 4.0);
    for (b, backend) in backends.iter().enumerate() {
        let name = column_head(backend);
        let width = 30.0 + 7.0 * name.chars().count() as f64;
        if x > LABEL && x + width > LABEL + BARS + VALUE {
            (x, y) = (LABEL, y + LINE);
        }
        svg.push_str(&format!(
            "<rect class=\"c{}\" x=\"{x:.1}\" y=\"{y}\" width=\"10\" height=\"10\"/>",
            b % COLOURS
        ));
        svg.push_str(&format!(
            "<text x=\"{:.1}\" y=\"{}\">{}</text>\n",
            x + 14.0,
            y + 9.0,
            escape(&name)
        ));
        x += width;
    }
    y += LINE;
    let base = escape(&column_head(backends[0]));
    svg.push_str(&format!(
        "<text class=\"quiet\" x=\"{LABEL}\" y=\"{}\">relative to {base} (where it has no figure: to the first that \
         has); {direction}</text>\n",
        y + 9.0
    ));
    (svg, y + LINE)
}

fn bar(table: &Table, row: &Row, base: f64, scale: f64, y: f64, backend: usize) -> String {
    let x = |value: f64| LABEL + (value / base * scale).clamp(0.0, BARS);
    let end = x(row.mean);
    let middle = y + BAR / 2.0 - 0.5;
    let mut svg = format!(
        "<rect class=\"c{}\" x=\"{LABEL}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{:.1}\"><title>{}</title></rect>",
        backend % COLOURS,
        end - LABEL,
        BAR - 1.0,
        escape(&format!(
            "{} {}: {} {}",
            row.row,
            row.backend,
            table.format_value(row.mean),
            row.unit
        ))
    );
    let mut right = end;
    if let Some(interval) = row.interval.filter(|interval| interval.high > interval.low) {
        let (low, high) = (x(interval.low), x(interval.high));
        right = right.max(high);
        svg.push_str(&format!(
            "<path class=\"whisker\" d=\"M{low:.1} {middle:.1}H{high:.1}M{low:.1} {0:.1}V{1:.1}M{high:.1} {0:.1}V{1:.1}\"/>",
            middle - 3.0,
            middle + 3.0
        ));
    }
    for sample in &row.samples {
        let at = x(*sample);
        right = right.max(at);
        svg.push_str(&format!(
            "<circle cx=\"{at:.1}\" cy=\"{middle:.1}\" r=\"1.3\"/>"
        ));
    }
    let text = table.format_value(row.mean);
    svg.push_str(&format!(
        "<text class=\"value\" x=\"{:.1}\" y=\"{:.1}\">{text}</text>\n",
        right + 5.0,
        middle + 3.5
    ));
    svg
}
