//! The plots of the HTML report, as inline SVG that needs no script.
//!
//! Every plot has the same width, so that a page can set them side by side or, on a narrow screen, one below the
//! other. A series has the class `cN` of its column, which gives it its colour, and its name in `data-series`.

pub mod bars;
pub mod blocks;
pub mod distribution;
pub mod lines;
pub mod memory;

use super::html::escape;
use std::fmt::Write;

/// Width of every plot, in SVG units; about a CSS pixel on a wide screen.
pub const WIDTH: f64 = 480.0;
/// Height of the plots with two axes.
const HEIGHT: f64 = 250.0;
const LEFT: f64 = 54.0;
const RIGHT: f64 = 14.0;
const TOP: f64 = 24.0;
const BOTTOM: f64 = 36.0;
/// Colours there are; more columns repeat them.
pub const COLOURS: usize = 8;
/// Shapes of markers, so that colour is not all that tells two lines apart.
const SHAPES: usize = 4;

/// x, y, and the interval of y where there is one.
pub type Point = (f64, f64, Option<(f64, f64)>);

/// One curve.
pub struct Series<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its column: colour and marker.
    pub column: usize,
    /// From left to right.
    pub points: Vec<Point>,
}

/// How values lie along an axis.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scale {
    /// Evenly, from .0 to .1.
    Linear(f64, f64),
    /// By their logarithms, from .0 to .1, both above 0.
    Log(f64, f64),
}

impl Scale {
    /// From zero to a round number above `max`.
    pub fn from_zero(max: f64) -> Self {
        let step = round_step(max);
        Self::Linear(0.0, (max / step).ceil().max(1.0) * step)
    }

    /// Logarithmic where the values span more than a factor of 20, else from zero.
    pub fn fitting(values: impl Iterator<Item = f64> + Clone) -> Self {
        let max = values.clone().fold(0.0, f64::max);
        let min = values.fold(f64::INFINITY, f64::min);
        if min > 0.0 && max / min > 20.0 {
            Self::Log(min / 1.15, max * 1.15)
        } else {
            Self::from_zero(max)
        }
    }

    /// Where `value` lies, from 0 to 1.
    fn at(self, value: f64) -> f64 {
        let share = match self {
            Self::Linear(low, high) => (value - low) / (high - low).max(f64::MIN_POSITIVE),
            Self::Log(low, high) => {
                (value.max(low) / low).ln() / (high / low).ln().max(f64::MIN_POSITIVE)
            }
        };
        share.clamp(0.0, 1.0)
    }

    /// Round values to write on the axis.
    fn ticks(self) -> Vec<f64> {
        match self {
            Self::Linear(low, high) => {
                let step = round_step(high - low);
                let count = ((high - low) / step).round() as usize;
                (0..=count).map(|i| low + i as f64 * step).collect()
            }
            Self::Log(low, high) => {
                let steps: &[f64] = match (high / low).log10() {
                    decades if decades < 1.2 => &[1.0, 2.0, 3.0, 5.0, 7.0],
                    decades if decades < 3.0 => &[1.0, 2.0, 5.0],
                    _ => &[1.0],
                };
                let decades = low.log10().floor() as i32..=high.log10().ceil() as i32;
                decades
                    .flat_map(|d| steps.iter().map(move |step| step * 10f64.powi(d)))
                    .filter(|tick| (low..=high).contains(tick))
                    .collect()
            }
        }
    }
}

/// 1, 2 or 5 times a power of ten, so that four to seven of them cover `span`.
fn round_step(span: f64) -> f64 {
    if span <= 0.0 || !span.is_finite() {
        return 1.0;
    }
    let rough = span / 5.0;
    let power = 10f64.powf(rough.log10().floor());
    let factor = rough / power;
    let round = match factor {
        f if f < 1.5 => 1.0,
        f if f < 3.5 => 2.0,
        f if f < 7.5 => 5.0,
        _ => 10.0,
    };
    round * power
}

/// A number in few characters.
pub fn short(value: f64) -> String {
    let (value, suffix) = match value.abs() {
        v if v >= 1e9 => (value / 1e9, "G"),
        v if v >= 1e6 => (value / 1e6, "M"),
        v if v >= 1e4 => (value / 1e3, "k"),
        _ => (value, ""),
    };
    let decimals = match value.abs() {
        0.0 => 0,
        v if v >= 100.0 => 0,
        v if v >= 10.0 => 1,
        v if v >= 1.0 => 2,
        v => (2.0 - v.log10().floor()) as usize,
    };
    let text = format!("{value:.decimals$}");
    let text = match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.'),
        false => &text,
    };
    format!("{text}{suffix}")
}

/// Nanoseconds with a unit.
pub fn short_ns(ns: f64) -> String {
    match ns {
        v if v >= 1e9 => format!("{} s", short(v / 1e9)),
        v if v >= 1e6 => format!("{} ms", short(v / 1e6)),
        v if v >= 1e3 => format!("{} µs", short(v / 1e3)),
        v => format!("{} ns", short(v)),
    }
}

/// A position on an axis and what is written there.
type Tick = (f64, String);

/// A plot with two axes.
pub struct Chart<'a> {
    /// The kind, for `data-plot`.
    pub kind: &'static str,
    /// What it shows, for those who do not see it.
    pub label: &'a str,
    /// Horizontal scale.
    pub x: Scale,
    /// Vertical scale.
    pub y: Scale,
    /// Named positions of the horizontal axis; the scale's own where empty.
    pub x_ticks: Vec<Tick>,
    /// Named positions of the vertical axis; the scale's own where empty.
    pub y_ticks: Vec<Tick>,
    /// What stands below the horizontal axis.
    pub x_title: &'a str,
    /// What stands above the vertical axis.
    pub y_title: &'a str,
    /// Points marked by a shape, or a line alone.
    pub markers: bool,
}

impl Chart<'_> {
    fn x_at(&self, x: f64) -> f64 {
        LEFT + self.x.at(x) * (WIDTH - LEFT - RIGHT)
    }

    fn y_at(&self, y: f64) -> f64 {
        HEIGHT - BOTTOM - self.y.at(y) * (HEIGHT - TOP - BOTTOM)
    }

    /// The whole plot.
    pub fn render(&self, series: &[Series<'_>]) -> String {
        let mut svg = format!(
            "<svg data-plot=\"{}\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{}\">\n",
            self.kind,
            escape(self.label)
        );
        self.axes(&mut svg);
        for one in series.iter().filter(|one| !one.points.is_empty()) {
            self.curve(&mut svg, one);
        }
        svg.push_str("</svg>\n");
        svg
    }

    fn axes(&self, svg: &mut String) {
        let own = |scale: Scale, given: &[Tick]| -> Vec<Tick> {
            if given.is_empty() {
                scale.ticks().into_iter().map(|v| (v, short(v))).collect()
            } else {
                given.to_vec()
            }
        };
        let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
        for (value, text) in own(self.y, &self.y_ticks) {
            let y = self.y_at(value);
            push(
                svg,
                format_args!("<path class=\"grid\" d=\"M{LEFT} {y:.1}H{right}\"/>"),
            );
            let text = escape(&text);
            push(
                svg,
                format_args!(
                    "<text class=\"tick\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{text}</text>\n",
                    LEFT - 7.0,
                    y + 4.0
                ),
            );
        }
        let mut last = f64::NEG_INFINITY;
        for (value, text) in own(self.x, &self.x_ticks) {
            let x = self.x_at(value);
            push(
                svg,
                format_args!("<path class=\"axis\" d=\"M{x:.1} {bottom}v4\"/>"),
            );
            let half = text.chars().count() as f64 * 3.4;
            // A tick without a name where two names would touch.
            if x - half < last + 4.0 {
                continue;
            }
            last = x + half;
            let text = escape(&text);
            push(
                svg,
                format_args!(
                    "<text class=\"tick\" x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{text}</text>\n",
                    bottom + 16.0
                ),
            );
        }
        push(
            svg,
            format_args!("<path class=\"axis\" d=\"M{LEFT} {bottom}H{right}\"/>"),
        );
        let (x_title, y_title) = (escape(self.x_title), escape(self.y_title));
        push(
            svg,
            format_args!(
                "<text class=\"title\" x=\"{right}\" y=\"{:.1}\" text-anchor=\"end\">{x_title}</text>\n",
                HEIGHT - 5.0
            ),
        );
        push(
            svg,
            format_args!("<text class=\"title\" x=\"4\" y=\"12\">{y_title}</text>\n"),
        );
    }

    fn curve(&self, svg: &mut String, series: &Series<'_>) {
        let name = escape(series.name);
        push(
            svg,
            format_args!(
                "<g data-series=\"{name}\" class=\"c{}\">",
                series.column % COLOURS
            ),
        );
        for (x, _, interval) in &series.points {
            if let Some((low, high)) = interval {
                let (x, low, high) = (self.x_at(*x), self.y_at(*low), self.y_at(*high));
                push(
                    svg,
                    format_args!(
                        "<path class=\"whisker\" d=\"M{x:.1} {low:.1}V{high:.1}M{0:.1} {low:.1}H{1:.1}M{0:.1} {high:.1}H{1:.1}\"/>",
                        x - 3.0,
                        x + 3.0
                    ),
                );
            }
        }
        let path: Vec<String> = (series.points.iter())
            .map(|(x, y, _)| format!("{:.1} {:.1}", self.x_at(*x), self.y_at(*y)))
            .collect();
        push(
            svg,
            format_args!(
                "<path class=\"line\" d=\"M{}\"><title>{name}</title></path>",
                path.join("L")
            ),
        );
        if self.markers {
            for (x, y, _) in &series.points {
                let tip = format!("{} at {}: {}", series.name, short(*x), short(*y));
                svg.push_str(&marker(self.x_at(*x), self.y_at(*y), series.column, &tip));
            }
        }
        svg.push_str("</g>\n");
    }
}

/// The mark of a column: a disc, a square, a diamond or a triangle.
pub fn marker(x: f64, y: f64, column: usize, tip: &str) -> String {
    let shape = match column % SHAPES {
        0 => format!("<circle class=\"mark\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.4\">"),
        1 => format!(
            "<path class=\"mark\" d=\"M{:.1} {:.1}h6v6h-6z\">",
            x - 3.0,
            y - 3.0
        ),
        2 => format!(
            "<path class=\"mark\" d=\"M{x:.1} {:.1}l4.2 4.2l-4.2 4.2l-4.2 -4.2z\">",
            y - 4.2
        ),
        _ => format!("<path class=\"mark\" d=\"M{x:.1} {:.1}l4 7h-8z\">", y - 4.2),
    };
    let end = if column.is_multiple_of(SHAPES) {
        "circle"
    } else {
        "path"
    };
    format!("{shape}<title>{}</title></{end}>", escape(tip))
}

/// The key of a set of plots: a marker and a name for each column.
pub fn key(columns: &[String]) -> String {
    let mut html = String::from("<ul class=\"key\">");
    for (i, column) in columns.iter().enumerate() {
        push(
            &mut html,
            format_args!(
                "<li class=\"c{}\"><svg class=\"swatch\" viewBox=\"0 0 12 12\" aria-hidden=\"true\">{}</svg>{}</li>",
                i % COLOURS,
                marker(6.0, 6.0, i, column),
                escape(column)
            ),
        );
    }
    html.push_str("</ul>\n");
    html
}

/// Appends to a string, which cannot fail.
pub fn push(text: &mut String, what: std::fmt::Arguments<'_>) {
    let _ = text.write_fmt(what);
}

/// The number in a row's label, and what is left of the label without it: `sockets/4` is 4 of `sockets`, `64/alloc` is 64
/// of `alloc`. `None` without exactly one number.
pub fn number_in(label: &str) -> Option<(String, f64)> {
    let parts: Vec<&str> = label.split(['/', ' ']).collect();
    let numeric: Vec<usize> = (0..parts.len())
        .filter(|i| parts[*i].parse::<u64>().is_ok())
        .collect();
    let [at] = numeric[..] else { return None };
    let number = parts[at].parse().ok()?;
    let rest: Vec<&str> = (parts.iter().enumerate())
        .filter(|(i, _)| *i != at)
        .map(|(_, part)| *part)
        .collect();
    Some((rest.join(" "), number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_cover_the_data() {
        assert_eq!(
            Scale::from_zero(9.3).ticks(),
            [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]
        );
        assert_eq!(Scale::from_zero(0.0), Scale::Linear(0.0, 1.0));
        let log = Scale::fitting([50.0, 8000.0].into_iter());
        assert!(matches!(log, Scale::Log(..)));
        assert_eq!(log.ticks()[..3], [50.0, 100.0, 200.0]);
        assert!(log.at(50.0) > 0.0 && log.at(8000.0) < 1.0);
        assert_eq!(Scale::Linear(0.0, 10.0).at(5.0), 0.5);
    }

    #[test]
    fn numbers_are_short() {
        for (value, want) in [
            (0.0, "0"),
            (0.05, "0.05"),
            (2.5, "2.5"),
            (1500.0, "1500"),
            (12_300.0, "12.3k"),
            (2e6, "2M"),
        ] {
            assert_eq!(short(value), want);
        }
        assert_eq!(short_ns(2500.0), "2.5 µs");
        assert_eq!(short_ns(40.0), "40 ns");
    }

    #[test]
    fn labels_with_one_number_scale() {
        assert_eq!(number_in("sockets/4"), Some(("sockets".into(), 4.0)));
        assert_eq!(number_in("64/alloc"), Some(("alloc".into(), 64.0)));
        assert_eq!(number_in("8"), Some((String::new(), 8.0)));
        assert_eq!(
            number_in("UDP_RR/64 slub"),
            Some(("UDP_RR slub".into(), 64.0))
        );
        assert_eq!(number_in("a/1/2"), None);
        assert_eq!(number_in("page_test"), None);
    }
}
