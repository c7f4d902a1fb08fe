//! What follows the tables of a workload that compares mallocs: the memory of every row, geometric means by ratio to
//! `system`, and which rows of ours lie above the best peer.
//!
//! A ratio is a row's median divided by the reference's; below 1 is better. Means are geometric, so that it does not
//! matter which of two mallocs is the reference. A peer is every backend that is not ours, `system` too.

use crate::backend::is_own;
use crate::report::{Report, Row};
use crate::table::{align, column_backends, column_head};

/// The metric that every job of such a workload has exactly once.
const TIME: &str = "time";
/// Rows of ours above this many times the best peer's are named.
const LIMIT: f64 = 1.10;

/// The geometric mean; `None` for no values or one that is not above 0.
pub fn geometric_mean(values: &[f64]) -> Option<f64> {
    if values.is_empty() || values.iter().any(|value| *value <= 0.0) {
        return None;
    }
    Some((values.iter().map(|value| value.ln()).sum::<f64>() / values.len() as f64).exp())
}

/// A figure of a row, 0 where it was not measured.
type Figure = fn(&Row) -> f64;

const FIGURES: [(&str, Figure); 3] = [
    (TIME, |row| row.median),
    ("peak RSS", |row| row.rss_peak_kib as f64),
    ("resting RSS", |row| row.rss_rest_kib as f64),
];

/// The time rows of one workload.
struct Rows<'a> {
    rows: Vec<&'a Row>,
    labels: Vec<&'a str>,
    backends: Vec<&'a str>,
    reference: &'a str,
}

impl<'a> Rows<'a> {
    fn new(report: &'a Report, workload: &str) -> Self {
        let rows: Vec<&Row> = report
            .rows
            .iter()
            .filter(|row| row.workload == workload && row.metric == TIME)
            .collect();
        let mut labels: Vec<&str> = Vec::new();
        for row in &rows {
            if !labels.contains(&row.row.as_str()) {
                labels.push(&row.row);
            }
        }
        let backends = column_backends(&report.config);
        let reference = backends
            .iter()
            .copied()
            .find(|name| *name == "system")
            .unwrap_or(&report.config.baseline);
        Self {
            rows,
            labels,
            backends,
            reference,
        }
    }

    fn find(&self, label: &str, backend: &str) -> Option<&'a Row> {
        let mut rows = self.rows.iter().copied();
        rows.find(|row| row.row == label && row.backend == backend)
    }

    /// The figure of a row by that of the reference; `None` where either was not measured.
    fn ratio(&self, label: &str, backend: &str, figure: Figure) -> Option<f64> {
        let new = figure(self.find(label, backend)?);
        let base = figure(self.find(label, self.reference)?);
        (new > 0.0 && base > 0.0).then(|| new / base)
    }

    fn ratios(&self, backend: &str, figure: Figure) -> Vec<f64> {
        let ratio = |label: &&str| self.ratio(label, backend, figure);
        self.labels.iter().filter_map(ratio).collect()
    }

    /// The peer with the least figure in a row, and its ratio.
    fn best_peer(&self, label: &str, figure: Figure) -> Option<(&'a str, f64)> {
        let peers = self.backends.iter().filter(|name| !is_own(name));
        peers
            .filter_map(|name| Some((*name, self.ratio(label, name, figure)?)))
            .min_by(|a, b| a.1.total_cmp(&b.1))
    }

    /// A row's time by its best peer's.
    fn by_best_peer(&self, label: &str, backend: &str) -> Option<f64> {
        let (_, best) = self.best_peer(label, FIGURES[0].1)?;
        Some(self.ratio(label, backend, FIGURES[0].1)? / best)
    }
}

fn two(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.2}"))
}

/// Everything that follows the tables of `workload`; empty when no row of it finished.
pub fn render(report: &Report, workload: &str) -> String {
    let rows = Rows::new(report, workload);
    if rows.rows.is_empty() {
        return String::new();
    }
    [memory(&rows, workload), against_peers(report, workload)].join("\n")
}

/// The geometric means, and the best peer of each row; empty when no row of `workload` finished.
pub fn against_peers(report: &Report, workload: &str) -> String {
    let rows = Rows::new(report, workload);
    if rows.rows.is_empty() {
        return String::new();
    }
    [means(&rows, workload), peers(&rows, workload)].join("\n")
}

/// Peak and resting set of each row, beside each other.
fn memory(rows: &Rows<'_>, workload: &str) -> String {
    let mib = |kib: u64| {
        if kib == 0 {
            "-".to_owned()
        } else {
            format!("{:.1}", kib as f64 / 1024.0)
        }
    };
    let mut grid = vec![vec![String::new()]];
    grid[0].extend(rows.backends.iter().map(|name| column_head(name)));
    for label in &rows.labels {
        let mut line = vec![(*label).to_owned()];
        line.extend(rows.backends.iter().map(|backend| {
            rows.find(label, backend).map_or_else(
                || "failed".to_owned(),
                |row| format!("{}/{}", mib(row.rss_peak_kib), mib(row.rss_rest_kib)),
            )
        }));
        grid.push(line);
    }
    format!(
        "{workload}: peak/resting RSS, MiB (less is better)\n{}",
        align(&grid)
    )
}

/// Geometric means by ratio to the reference.
fn means(rows: &Rows<'_>, workload: &str) -> String {
    let mut grid = vec![vec![String::new(), "rows".to_owned()]];
    grid[0].extend(FIGURES.iter().map(|(name, _)| (*name).to_owned()));
    for backend in &rows.backends {
        let all = FIGURES.map(|(_, figure)| rows.ratios(backend, figure));
        let mut line = vec![column_head(backend), all[0].len().to_string()];
        line.extend(all.iter().map(|ratios| two(geometric_mean(ratios))));
        grid.push(line);
    }
    let best = FIGURES.map(|(_, figure)| -> Vec<f64> {
        let best = |label: &&str| Some(rows.best_peer(label, figure)?.1);
        rows.labels.iter().filter_map(best).collect()
    });
    if !best[0].is_empty() {
        let mut line = vec![
            "best peer of each row".to_owned(),
            best[0].len().to_string(),
        ];
        line.extend(best.iter().map(|ratios| two(geometric_mean(ratios))));
        grid.push(line);
    }
    format!(
        "{workload}: geometric means of ratios to {}, of medians (below 1 is better)\n{}",
        column_head(rows.reference),
        align(&grid)
    )
}

/// The best peer of each row, and ours against it.
fn peers(rows: &Rows<'_>, workload: &str) -> String {
    let own: Vec<&str> = rows
        .backends
        .iter()
        .copied()
        .filter(|name| is_own(name))
        .collect();
    let mut grid = vec![vec![
        String::new(),
        "best peer".to_owned(),
        "its ratio".to_owned(),
    ]];
    grid[0].extend(own.iter().map(|name| format!("{name}/best")));
    let mut above: Vec<Vec<String>> = vec![Vec::new(); own.len()];
    for label in &rows.labels {
        let Some((peer, ratio)) = rows.best_peer(label, FIGURES[0].1) else {
            continue;
        };
        let mut line = vec![
            (*label).to_owned(),
            column_head(peer),
            format!("{ratio:.2}"),
        ];
        for (backend, above) in own.iter().zip(&mut above) {
            let by_best = rows.by_best_peer(label, backend);
            let over = by_best.is_some_and(|by_best| by_best > LIMIT);
            if let (true, Some(by_best)) = (over, by_best) {
                above.push(format!("{label} {by_best:.2}"));
            }
            line.push(format!("{}{}", two(by_best), if over { "!" } else { " " }));
        }
        grid.push(line);
    }
    if grid.len() == 1 {
        return String::new();
    }
    let mut text = format!(
        "{workload}: the best peer's time by row (ratio to {}), and ours by it\n{}",
        column_head(rows.reference),
        align(&grid)
    );
    for (backend, above) in own.iter().zip(&above) {
        let rows = if above.is_empty() {
            "none".to_owned()
        } else {
            above.join(", ")
        };
        text.push_str(&format!(
            "above {LIMIT:.2} x the best peer: {backend}: {rows}\n"
        ));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::environment::Environment;
    use crate::report::Config;
    use crate::stats::Better;

    #[test]
    fn geometric_means_computed_by_hand() {
        // sqrt(2 * 8) = 4; cube root of 1 * 10 * 100 = 10; 0.5 and 2 cancel.
        for (values, mean) in [
            (&[2.0, 8.0][..], 4.0),
            (&[1.0, 10.0, 100.0], 10.0),
            (&[0.5, 2.0], 1.0),
            (&[0.81], 0.81),
        ] {
            assert!((geometric_mean(values).unwrap() - mean).abs() < 1e-12);
        }
        assert_eq!(geometric_mean(&[]), None);
        assert_eq!(geometric_mean(&[1.0, 0.0]), None);
    }

    fn row(label: &str, backend: &str, samples: &[f64], peak: u64, rest: u64) -> Row {
        Row {
            rss_peak_kib: peak,
            rss_rest_kib: rest,
            objects: 1,
            ..Row::new(
                "classic",
                label,
                (TIME, "s", Better::Lower),
                backend,
                samples.to_vec(),
            )
        }
    }

    fn report() -> Report {
        let backends = ["unified", "system", "so:/x/one.so", "so:/y/two.so"];
        let config = Config {
            backends: backends.map(str::to_owned).to_vec(),
            baseline: "unified".into(),
            ..Config::default()
        };
        let mut report = Report::new(Environment::default(), config);
        report.rows = vec![
            // The median, 2, is not the mean.
            row("a", "system", &[2.0, 2.0, 11.0], 10240, 1024),
            row("a", "unified", &[1.0], 5120, 2048),
            row("a", "so:/x/one.so", &[0.5], 20480, 0),
            row("a", "so:/y/two.so", &[4.0], 20480, 0),
            row("b", "system", &[1.0], 10240, 1024),
            row("b", "unified", &[2.0], 10240, 2048),
            row("b", "so:/x/one.so", &[2.0], 40960, 0),
            // two failed in row b.
        ];
        report.compute();
        report
    }

    /// The blank-separated words of the line that begins with `head`, after `title`.
    fn line(text: &str, title: &str, head: &str) -> Vec<String> {
        let (_, rest) = text.split_once(title).expect(title);
        let line = rest.lines().find_map(|line| line.strip_prefix(head));
        let words = line.expect(head).split_whitespace();
        words.map(str::to_owned).collect()
    }

    #[test]
    fn ratios_of_a_report_computed_by_hand() {
        let text = render(&report(), "classic");
        let means = |head| line(&text, "geometric means", head);
        assert_eq!(means("system"), ["2", "1.00", "1.00", "1.00"]);
        // Time 1/2 and 2/1; peak 1/2 and 1; rest 2 and 2.
        assert_eq!(means("unified"), ["2", "1.00", "0.71", "2.00"]);
        // Time 1/4 and 2; peak 2 and 4; it never rested.
        assert_eq!(means("so:one.so"), ["2", "0.71", "2.83", "-"]);
        assert_eq!(means("so:two.so"), ["1", "2.00", "2.00", "-"]);
        // Best of a: one, 1/4; of b: system, 1. Best peak: system in both.
        assert_eq!(
            means("best peer of each row"),
            ["2", "0.50", "1.00", "1.00"]
        );
    }

    #[test]
    fn rows_above_the_best_peer_are_named() {
        let text = render(&report(), "classic");
        let peers = |head| line(&text, "the best peer's time", head);
        assert_eq!(peers("a "), ["so:one.so", "0.25", "2.00!"]);
        assert_eq!(peers("b "), ["system", "1.00", "2.00!"]);
        assert!(
            text.contains("above 1.10 x the best peer: unified: a 2.00, b 2.00\n"),
            "{text}"
        );
    }

    #[test]
    fn memory_stands_beside_each_row() {
        let text = render(&report(), "classic");
        let memory = |head| line(&text, "peak/resting RSS", head);
        assert_eq!(memory("a "), ["5.0/2.0", "10.0/1.0", "20.0/-", "20.0/-"]);
        assert_eq!(memory("b "), ["10.0/2.0", "10.0/1.0", "40.0/-", "failed"]);
        assert_eq!(render(&report(), "programs"), "");
    }

    #[test]
    fn without_system_ratios_are_to_the_baseline() {
        let mut report = report();
        report.config.backends.retain(|name| name != "system");
        report.rows.retain(|row| row.backend != "system");
        let text = render(&report, "classic");
        assert!(text.contains("ratios to unified"), "{text}");
        assert_eq!(
            line(&text, "geometric means", "so:one.so"),
            ["2", "0.71", "4.00", "-"]
        );
    }
}
