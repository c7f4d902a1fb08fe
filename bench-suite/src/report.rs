//! The result of a run: what the JSON file holds, and how the raw samples of its rows become figures.
//!
//! The raw samples are the truth. Everything else in a [`Row`] (mean, interval, delta, p) is computed from them by
//! [`Report::compute`], with the settings in [`Config`].

use crate::environment::Environment;
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
    /// Median over the rounds of the worker's resident set after everything was freed.
    #[serde(default)]
    pub rss_rest_kib: u64,
    /// Objects that went through the backend, as a mean of the samples (rows of one job share them).
    #[serde(default)]
    pub objects: u64,
    /// The backend's own counters and the worker's resource usage, as means of the samples, rounded down.
    #[serde(default)]
    pub counters: BTreeMap<String, u64>,
    /// Several figures of each sample, by name; one list a round (rows of one job share them).
    #[serde(default)]
    pub series: BTreeMap<String, Vec<Vec<f64>>>,
}

impl Row {
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
        }
    }

    /// Computes every derived figure from the raw samples.
    pub fn compute(&mut self) {
        let config = self.config.clone();
        for row in &mut self.rows {
            let mean = row.mean_kind();
            row.mean = mean.of(&row.samples);
            row.median = stats::median(&row.samples);
            row.interval = Some(stats::bootstrap(
                &row.samples,
                mean,
                config.level,
                config.seed,
            ));
        }
        let baselines: Vec<Row> = self
            .rows
            .iter()
            .filter(|row| row.backend == config.baseline_of(&row.workload))
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
        for row in &report.rows {
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
