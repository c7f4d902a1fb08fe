//! The result of a run: what the JSON file holds, and how the raw samples of its rows become figures.
//!
//! The raw samples are the truth. Everything else in a [`Row`] (mean, interval, delta, p) is computed from them by
//! [`Report::compute`], with the settings in [`Config`].

use crate::environment::Environment;
use crate::series::{Histogram, PageMap, RssSeries};
use crate::stats::{self, Better, Delta, Interval, Mean};
use crate::workloads;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;

/// The version of the JSON this program writes and reads.
pub const SCHEMA_VERSION: u32 = 1;

/// The settings of a run, as far as its figures depend on them; `--resume` demands that they match.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Config {
    /// Names of the workloads, in order.
    pub workloads: Vec<String>,
    /// Names of the backends, in the order of the columns.
    pub backends: Vec<String>,
    /// The backend against which deltas are taken.
    pub baseline: String,
    /// Rounds of every row.
    pub runs: usize,
    /// Rounds at most, where the interval is still wider than asked.
    pub max_runs: usize,
    /// The level of the confidence intervals, in per cent.
    pub level: f64,
    /// The width asked of them, in per cent of the mean.
    pub width: f64,
    /// The seed of the order of rounds and of the bootstrap.
    pub seed: u64,
    /// Short samples and fewer rows.
    pub quick: bool,
    /// The CPUs of the local (sending) and the remote (receiving) side.
    pub cpus: Option<(usize, usize)>,
    /// The arithmetic of the deltas.
    pub delta: Delta,
    /// The workload's own options.
    pub args: Vec<String>,
    /// Does the floor run beside the backends?
    #[serde(default)]
    pub floor: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            workloads: Vec::new(),
            backends: Vec::new(),
            baseline: String::new(),
            runs: 10,
            max_runs: 10,
            level: 95.0,
            width: 5.0,
            seed: 0,
            quick: false,
            cpus: None,
            delta: Delta::Base,
            args: Vec::new(),
            floor: false,
        }
    }
}

impl Config {
    /// The backend against which a workload's deltas are taken: the run's baseline, or the first backend that the
    /// workload runs on when it does not run on that one.
    pub fn baseline_of(&self, workload: &str) -> &str {
        match workloads::find(workload) {
            Ok(workload) if !workload.takes(&self.baseline) => self
                .backends
                .iter()
                .find(|backend| workload.takes(backend))
                .unwrap_or(&self.baseline),
            _ => &self.baseline,
        }
    }
}

/// One backend's figures of one metric of one row.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// The workload.
    pub workload: String,
    /// The row's label.
    pub row: String,
    /// What is measured.
    pub metric: String,
    /// In which unit.
    pub unit: String,
    /// Which direction is an improvement.
    pub better: Better,
    /// The backend.
    pub backend: String,
    /// The raw samples, one a round.
    pub samples: Vec<f64>,
    /// Harmonic mean of rates, arithmetic mean of anything else.
    #[serde(default)]
    pub mean: f64,
    /// The median.
    #[serde(default)]
    pub median: f64,
    /// The bootstrap confidence interval of the mean.
    #[serde(default)]
    pub interval: Option<Interval>,
    /// Change from the baseline in per cent, + is better; null for a baseline of 0 or a missing baseline.
    #[serde(default)]
    pub delta_pct: Option<f64>,
    /// Two-sided exact Mann–Whitney p against the baseline; null for the baseline itself.
    #[serde(default)]
    pub p: Option<f64>,
    /// Is p below 0.05?
    #[serde(default)]
    pub significant: bool,
    /// Median over the rounds of the worker's largest resident set.
    #[serde(default)]
    pub rss_peak_kib: u64,
    /// The worker's resident set after everything was freed: the median over the rounds; of a
    /// workload that rests before, of the first round, which does.
    #[serde(default)]
    pub rss_rest_kib: u64,
    /// Objects that went through the backend, as a mean of the samples (rows of one job share them).
    #[serde(default)]
    pub objects: u64,
    /// The backend's own counters and the worker's resource usage, as means of the samples, rounded down.
    #[serde(default)]
    pub counters: BTreeMap<String, u64>,
    /// The allocator's share of the row's time in per cent, against the floor; null without a floor, and for metrics
    /// that are neither times nor rates.
    #[serde(default)]
    pub share_pct: Option<f64>,
    /// Samples far outside the others (Tukey's outer fences).
    #[serde(default)]
    pub outliers: usize,
    /// Latencies of the workload's single operations, over all rounds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub histogram: Option<Histogram>,
    /// Resident memory during the first round: milliseconds and KiB.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rss_series: RssSeries,
    /// Several figures of each sample, by name; one list a round (rows of one job share them).
    #[serde(default)]
    pub series: BTreeMap<String, Vec<Vec<f64>>>,
}

impl Row {
    /// A row with raw samples and nothing derived from them.
    pub fn new(
        workload: &str,
        row: &str,
        (metric, unit, better): (&str, &str, Better),
        backend: &str,
        samples: Vec<f64>,
    ) -> Self {
        Self {
            workload: workload.to_owned(),
            row: row.to_owned(),
            metric: metric.to_owned(),
            unit: unit.to_owned(),
            better,
            backend: backend.to_owned(),
            samples,
            mean: 0.0,
            median: 0.0,
            interval: None,
            delta_pct: None,
            p: None,
            significant: false,
            rss_peak_kib: 0,
            rss_rest_kib: 0,
            objects: 0,
            counters: BTreeMap::new(),
            share_pct: None,
            outliers: 0,
            series: BTreeMap::new(),
            histogram: None,
            rss_series: Vec::new(),
        }
    }

    /// The samples as costs, so that more is worse whatever the metric: times as they are, rates inverted.
    pub fn costs(&self) -> Vec<f64> {
        match self.better {
            Better::Lower => self.samples.clone(),
            Better::Higher => self.samples.iter().map(|rate| 1.0 / rate).collect(),
        }
    }

    /// Is the metric a time, or a rate whose inverse is one?
    pub fn is_time(&self) -> bool {
        matches!(
            self.unit.as_str(),
            "s" | "ms" | "us" | "ns" | "cycles" | "ticks"
        ) || self.mean_kind() == Mean::Harmonic
    }

    /// The mean this row's unit asks for.
    pub fn mean_kind(&self) -> Mean {
        Mean::of_unit(&self.unit)
    }

    /// The whole width of the confidence interval in per cent of the mean.
    pub fn width_pct(&self) -> f64 {
        self.interval
            .map_or(0.0, |interval| interval.width_pct(self.mean))
    }

    /// Is this the same measurement as `other`, whatever the backend?
    pub fn same_measurement(&self, other: &Self) -> bool {
        self.workload == other.workload && self.row == other.row && self.metric == other.metric
    }
}

/// A worker that failed: the row it was measuring is not reported for this backend.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Failure {
    /// The workload.
    pub workload: String,
    /// The job (one row, or a group of rows measured together).
    pub job: String,
    /// The backend.
    pub backend: String,
    /// What happened.
    pub error: String,
}

/// Every latency that a backend's workers measured in one job, for workloads that show more of them than rows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Latencies {
    /// The workload.
    pub workload: String,
    /// The job.
    pub job: String,
    /// The backend.
    pub backend: String,
    /// Requests that were served, a list for each round, in the order of the requests.
    pub served: Vec<Vec<u64>>,
    /// Requests that were refused, likewise.
    pub failed: Vec<Vec<u64>>,
}

/// Everything a run produced.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// The machine, the build and the state they were in.
    #[serde(default)]
    pub environment: Environment,
    /// The settings.
    #[serde(default)]
    pub config: Config,
    /// Was the run stopped before its end?
    #[serde(default)]
    pub interrupted: bool,
    /// Workers that failed.
    #[serde(default)]
    pub failures: Vec<Failure>,
    /// Latencies one by one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub latencies: Vec<Latencies>,
    /// The figures.
    pub rows: Vec<Row>,
    /// The same rows on the floor, from which the allocators' shares follow.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub floor: Vec<Row>,
    /// Maps of pageblocks that workloads left.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pagemaps: Vec<PageMap>,
    /// What else a reader should know, one line each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

impl Report {
    /// An empty report.
    pub fn new(environment: Environment, config: Config) -> Self {
        Self {
            schema_version: SCHEMA_VERSION,
            environment,
            config,
            interrupted: false,
            failures: Vec::new(),
            latencies: Vec::new(),
            rows: Vec::new(),
            floor: Vec::new(),
            pagemaps: Vec::new(),
            notes: Vec::new(),
        }
    }

    /// Computes every derived figure from the raw samples.
    pub fn compute(&mut self) {
        let config = self.config.clone();
        for row in self.rows.iter_mut().chain(&mut self.floor) {
            let mean = row.mean_kind();
            row.mean = mean.of(&row.samples);
            row.median = stats::median(&row.samples);
            row.interval = Some(stats::bootstrap(
                &row.samples,
                mean,
                config.level,
                config.seed,
            ));
            row.outliers = stats::outliers::far_out(&row.samples);
        }
        let baselines: Vec<Row> = self
            .rows
            .iter()
            .filter(|row| row.backend == config.baseline_of(&row.workload))
            .cloned()
            .collect();
        // Somebody may have asked for the floor as a column.
        let listed_floor: Vec<Row> = (self.rows.iter())
            .filter(|row| row.backend == crate::floor::NAME)
            .cloned()
            .collect();
        for row in &mut self.rows {
            let base = baselines.iter().find(|base| base.same_measurement(row));
            row.delta_pct =
                base.and_then(|base| config.delta.percent(row.better, base.mean, row.mean));
            row.p = base
                .filter(|base| base.backend != row.backend)
                .map(|base| stats::mann_whitney_p(&base.samples, &row.samples));
            row.significant = row.p.is_some_and(|p| p < stats::SIGNIFICANCE);
            row.share_pct = (self.floor.iter().chain(&listed_floor))
                .find(|floor| floor.same_measurement(row))
                .and_then(|floor| share_pct(floor, row));
        }
    }

    /// Reads a report; the error is one line that names the file.
    pub fn read(path: &Path) -> Result<Self, String> {
        let text = std::fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?;
        let report: Self = serde_json::from_str(&text)
            .map_err(|e| format!("{}: not a report of bench-suite: {e}", path.display()))?;
        if report.schema_version != SCHEMA_VERSION {
            return Err(format!(
                "{}: schema version {}, this program reads version {SCHEMA_VERSION}",
                path.display(),
                report.schema_version
            ));
        }
        for map in &report.pagemaps {
            map.check()
                .map_err(|e| format!("{}: {e}", path.display()))?;
        }
        for row in report.rows.iter().chain(&report.floor) {
            if row.samples.is_empty() || row.samples.iter().any(|sample| !sample.is_finite()) {
                return Err(format!(
                    "{}: {} {} has no usable samples",
                    path.display(),
                    row.workload,
                    row.row
                ));
            }
        }
        Ok(report)
    }
}

/// One line for each workload with samples far outside the others, and what to do about them.
pub fn outlier_notes(report: &Report) -> Vec<String> {
    let mut notes = Vec::new();
    let mut seen: Vec<&str> = Vec::new();
    for workload in report.rows.iter().map(|row| row.workload.as_str()) {
        if seen.contains(&workload) {
            continue;
        }
        seen.push(workload);
        let rows: Vec<&Row> = (report.rows.iter())
            .filter(|row| row.workload == workload)
            .collect();
        let hit: Vec<&&Row> = rows.iter().filter(|row| row.outliers > 0).collect();
        if let Some(first) = hit.first() {
            notes.push(format!(
                "{workload}: {} of {} figures have outliers (samples more than 3 interquartile ranges off; {} {} {}: \
                 {} of {}); something else ran: see the samples in the JSON, and try more --runs",
                hit.len(),
                rows.len(),
                first.row,
                first.metric,
                first.backend,
                first.outliers,
                first.samples.len()
            ));
        }
    }
    notes
}

/// How much of `row`'s time the floor does without, in per cent; 0 where the floor was no faster.
fn share_pct(floor: &Row, row: &Row) -> Option<f64> {
    let (own, least) = match row.better {
        Better::Lower => (row.mean, floor.mean),
        Better::Higher => (1.0 / row.mean, 1.0 / floor.mean),
    };
    let share = (1.0 - least / own) * 100.0;
    (row.is_time() && share.is_finite()).then(|| share.max(0.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn share(unit: &str, better: Better, floor: f64, own: f64) -> Option<f64> {
        let row = |backend, value| Row::new("w", "r", ("m", unit, better), backend, vec![value; 5]);
        let config = Config {
            backends: vec!["slub".into()],
            baseline: "slub".into(),
            ..Config::default()
        };
        let mut report = Report::new(Environment::default(), config);
        report.rows.push(row("slub", own));
        report.floor.push(row("floor", floor));
        report.compute();
        report.rows[0].share_pct
    }

    #[test]
    fn the_share_is_what_the_floor_does_without() {
        assert_eq!(share("ns", Better::Lower, 15.0, 20.0), Some(25.0));
        assert_eq!(share("trans/s", Better::Higher, 200.0, 100.0), Some(50.0));
        // A floor that noise made slower leaves nothing, not less than nothing.
        assert_eq!(share("s", Better::Lower, 1.1, 1.0), Some(0.0));
        assert_eq!(share("%", Better::Lower, 1.0, 2.0), None);
    }
}
