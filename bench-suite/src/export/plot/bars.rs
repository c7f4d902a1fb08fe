//! Bars with intervals: a group for each row, a bar for each column, its length relative to the row's baseline, so that
//! rows of very different size share a plot. Whiskers are confidence intervals, dots the raw samples.

use super::{COLOURS, WIDTH, push, short};
use crate::export::html::escape;
use crate::report::Row;
use crate::stats::Better;
use crate::table::{Table, column_head};

const BARS: f64 = 372.0;
const BAR: f64 = 12.0;
const HEAD: f64 = 18.0;
const GAP: f64 = 10.0;
const AXIS: f64 = 22.0;
const X: f64 = 2.0;
/// Longer bars than this many times the baseline are cut, so that one of them does not flatten the rest.
const CUT: f64 = 4.0;

/// A row's label and its figures, one a column.
pub type Group<'a> = (&'a str, Vec<Option<&'a Row>>);

/// The plot of some rows of a table.
pub fn plot(table: &Table, title: &str, groups: &[Group<'_>]) -> String {
    let ends = groups.iter().flat_map(|(_, rows)| {
        let base = base_of(rows);
        rows.iter()
            .flatten()
            .map(move |row| row.interval.map_or(row.mean, |i| i.high.max(row.mean)) / base)
    });
    let longest = ends.fold(1.0, f64::max).min(CUT);
    let scale = BARS / longest;
    let columns = table.columns.len() as f64;
    let group_height = HEAD + columns * BAR + GAP;
    let height = AXIS + groups.len() as f64 * group_height + 4.0;
    let direction = match table.better {
        Better::Higher => "longer is better",
        Better::Lower => "shorter is better",
    };
    let base = escape(table.columns.first().map_or("", String::as_str));
    let mut svg = format!(
        "<svg data-plot=\"bars\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{} {}, relative to {base}\">\n",
        escape(&table.title()),
        escape(title),
    );
    push(
        &mut svg,
        format_args!(
            "<text class=\"title\" x=\"{X}\" y=\"12\">relative to {base}; {direction}</text>\n"
        ),
    );
    for tick in ticks(longest) {
        let x = X + tick * scale;
        let class = if tick == 1.0 { "base" } else { "grid" };
        push(
            &mut svg,
            format_args!("<path class=\"{class}\" d=\"M{x:.1} {AXIS}V{height}\"/>"),
        );
    }
    for (g, (label, rows)) in groups.iter().enumerate() {
        let y = AXIS + g as f64 * group_height;
        push(
            &mut svg,
            format_args!(
                "<text class=\"row\" x=\"{X}\" y=\"{:.1}\">{}</text>\n",
                y + 13.0,
                escape(label)
            ),
        );
        let base = base_of(rows);
        for (c, row) in rows.iter().enumerate() {
            let top = y + HEAD + c as f64 * BAR;
            match row {
                Some(row) => bar(&mut svg, table, row, base, scale, top, c),
                None => push(
                    &mut svg,
                    format_args!(
                        "<text class=\"value\" x=\"{X}\" y=\"{:.1}\">failed</text>\n",
                        top + 9.0
                    ),
                ),
            }
        }
    }
    svg.push_str("</svg>\n");
    svg
}

fn ticks(longest: f64) -> Vec<f64> {
    let step = if longest > 2.5 { 1.0 } else { 0.5 };
    (1..)
        .map(|i| f64::from(i) * step)
        .take_while(|t| *t <= longest)
        .collect()
}

/// What the bars of a group are relative to: the baseline, or the first that is there.
fn base_of(rows: &[Option<&Row>]) -> f64 {
    let means = rows.iter().flatten().map(|row| row.mean);
    means.into_iter().find(|mean| *mean > 0.0).unwrap_or(1.0)
}

fn bar(svg: &mut String, table: &Table, row: &Row, base: f64, scale: f64, y: f64, column: usize) {
    let x = |value: f64| X + (value / base * scale).clamp(0.0, BARS);
    let cut = row.mean / base * scale > BARS * 1.001;
    let (end, middle) = (x(row.mean), y + BAR / 2.0 - 0.5);
    let head = column_head(&row.backend);
    let tip = format!(
        "{} {head}: {} {}",
        row.row,
        table.format_value(row.mean),
        row.unit
    );
    push(
        svg,
        format_args!(
            "<g data-series=\"{}\" class=\"c{}\"><rect class=\"bar\" x=\"{X}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{:.1}\" rx=\"1\"><title>{}</title></rect>",
            escape(&head),
            column % COLOURS,
            end - X,
            BAR - 1.5,
            escape(&tip)
        ),
    );
    let mut right = end;
    if let Some(interval) = row.interval.filter(|i| i.high > i.low) {
        let (low, high) = (x(interval.low), x(interval.high));
        right = right.max(high);
        let (up, down) = (middle - 3.0, middle + 3.0);
        push(
            svg,
            format_args!(
                "<path class=\"whisker\" d=\"M{low:.1} {middle:.1}H{high:.1}M{low:.1} {up:.1}V{down:.1}M{high:.1} {up:.1}V{down:.1}\"/>"
            ),
        );
    }
    for sample in &row.samples {
        let at = x(*sample);
        right = right.max(at);
        push(
            svg,
            format_args!("<circle class=\"sample\" cx=\"{at:.1}\" cy=\"{middle:.1}\" r=\"1.3\"/>"),
        );
    }
    let more = if cut { "» " } else { "" };
    let delta = match row.delta_pct {
        Some(delta) if column > 0 => format!(" {delta:+.1}%"),
        _ => String::new(),
    };
    push(
        svg,
        format_args!(
            "<text class=\"value\" x=\"{:.1}\" y=\"{:.1}\">{more}{}{delta}</text></g>\n",
            right + 5.0,
            middle + 3.6,
            short(row.mean)
        ),
    );
}
