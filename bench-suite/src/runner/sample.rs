//! The samples of one job on one backend, and what they say put together.

use super::Task;
use super::process::{Ended, Process};
use crate::backend::Backend;
use crate::preload;
use crate::progress::Progress;
use crate::report::{Config, Failure, Latencies, Report, Row};
use crate::series::{Histogram, RssSeries};
use crate::stats::{self, Mean};
use crate::worker::{Answer, Order};
use crate::workloads::{self, Options, Outcome, RowSpec};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::time::Duration;

/// One job on one backend, over all rounds.
pub struct Run {
    order: Order,
    label: String,
    variables: Vec<(&'static str, OsString)>,
    time_limit: Duration,
    specs: Vec<RowSpec>,
    rss_series: RssSeries,
    /// Samples whose resting set counts rest before it is read.
    rests: bool,
    /// Its rows go beside the others, not among them.
    pub is_floor: bool,
    /// One for each round so far.
    pub answers: Vec<Answer>,
    /// Why it takes part no more.
    pub failure: Option<String>,
}

impl Run {
    /// Nothing measured yet.
    pub fn new(task: &Task, backend: &Backend, options: &Options) -> Self {
        let setting = workloads::find(&task.workload)
            .and_then(|workload| preload::setting(backend, workload.route()));
        let (setting, failure) = match setting {
            Ok(setting) => (setting, None),
            Err(error) => (preload::Setting::default(), Some(error)),
        };
        Self {
            order: Order {
                workload: task.workload.clone(),
                job: task.job.name.clone(),
                backend: backend.plain_name(),
                preload: setting.worker,
                options: options.clone(),
                seed: 0,
                rest: false,
                hold: false,
            },
            label: backend.name(),
            variables: setting.variables,
            time_limit: task.job.time_limit,
            specs: task.job.rows.clone(),
            rss_series: Vec::new(),
            rests: workloads::find(&task.workload).is_ok_and(|w| w.rests()),
            is_floor: *backend == Backend::Floor,
            answers: Vec::new(),
            failure,
        }
    }

    /// The backend's name in the report.
    pub fn label(&self) -> &str {
        &self.label
    }

    /// Starts one worker for one sample, which goes on to its first rest or its end; `watch` keeps its memory over
    /// time, and its resting set.
    pub fn begin(&mut self, seed: u64, watch: bool) -> Result<Process, String> {
        self.order.seed = seed;
        self.order.rest = watch;
        self.order.hold = self.rests;
        Process::start(&self.order, &self.variables, self.time_limit, watch)
    }

    /// Keeps what a worker says at its end, or why it does not.
    pub fn take(&mut self, process: Result<Process, String>, task: &Task, progress: &mut Progress) {
        match process.and_then(|process| self.end(process, progress)) {
            Ok(answer) => self.answers.push(answer),
            Err(error) => {
                progress.note(&format!(
                    "bench-suite: {} {} failed on {}: {error}",
                    task.workload, task.job.name, self.label
                ));
                self.failure = Some(error);
            }
        }
    }

    /// What a worker that has come to its end says.
    pub fn end(&mut self, process: Process, progress: &mut Progress) -> Result<Answer, String> {
        let watched = process.is_watched();
        let Ended {
            last_line,
            stderr,
            how,
            series,
        } = process.end()?;
        if watched {
            self.rss_series = series;
        }
        let mut answer: Answer = last_line
            .and_then(|line| serde_json::from_str(&line).ok())
            .ok_or_else(|| format!("the worker printed no result: {how}"))?;
        if !watched && self.rests {
            // It went on to its end without the rest that the first round had.
            answer.rss_rest_kib = 0;
        }
        if answer.outcome.child_peak_kib > 0 || answer.outcome.program_rss_kib.is_some() {
            // The memory that counts was not the worker's.
            self.rss_series.clear();
        }
        for spec in &self.specs {
            let mut all = answer.outcome.measurements.iter();
            if !all.any(|m| m.row == spec.row && m.metric == spec.metric && m.value.is_finite()) {
                return Err(format!(
                    "the worker did not measure '{} {}'",
                    spec.row, spec.metric
                ));
            }
        }
        for line in stderr.lines() {
            progress.note(&format!("{}: {line}", self.label));
        }
        Ok(answer)
    }

    fn samples(&self, row: &str, metric: &str) -> Vec<f64> {
        let found = |answer: &Answer| {
            let mut all = answer.outcome.measurements.iter();
            all.find(|m| m.row == row && m.metric == metric)
                .map(|m| m.value)
        };
        self.answers.iter().filter_map(found).collect()
    }

    /// Is the interval of any row still wider than asked?
    pub fn is_wider_than(&self, config: &Config) -> bool {
        self.failure.is_none()
            && self.specs.iter().any(|spec| {
                let mean = Mean::of_unit(spec.unit);
                let samples = self.samples(&spec.row, spec.metric);
                let interval = stats::bootstrap(&samples, mean, config.level, config.seed);
                interval.width_pct(mean.of(&samples)) > config.width
            })
    }

    /// Adds the rows, or the failure, to the report.
    pub fn record(self, task: &Task, report: &mut Report) {
        if let Some(error) = self.failure {
            report.failures.push(Failure {
                workload: self.order.workload,
                job: self.order.job,
                backend: self.label,
                error,
            });
            return;
        }
        self.record_latencies(report);
        let middle = |of: fn(&Answer) -> u64| {
            let all: Vec<f64> = self
                .answers
                .iter()
                .map(|answer| of(answer) as f64)
                .filter(|kib| *kib > 0.0)
                .collect();
            if all.is_empty() {
                return 0;
            }
            stats::median(&all) as u64
        };
        let count = self.answers.len().max(1) as u64;
        let mut counters = BTreeMap::new();
        for (name, events) in self
            .answers
            .iter()
            .flat_map(|answer| &answer.outcome.counters)
        {
            *counters.entry(name.clone()).or_insert(0) += events;
        }
        counters.values_mut().for_each(|events| *events /= count);
        let mut series: BTreeMap<String, Vec<Vec<f64>>> = BTreeMap::new();
        let all = self
            .answers
            .iter()
            .flat_map(|answer| &answer.outcome.series);
        for (name, figures) in all {
            let lists = series.entry(name.clone()).or_default();
            lists.push(figures.clone());
        }
        for (i, spec) in task.job.rows.iter().enumerate() {
            let kind = (spec.metric, spec.unit, spec.better);
            let samples = self.samples(&spec.row, spec.metric);
            let row = Row {
                rss_peak_kib: middle(|answer| answer.rss_peak_kib),
                rss_rest_kib: middle(|answer| answer.rss_rest_kib),
                objects: (self.answers.iter())
                    .map(|answer| answer.outcome.objects)
                    .sum::<u64>()
                    / count,
                counters: counters.clone(),
                series: series.clone(),
                histogram: self.histogram(&spec.row),
                // Rows of one job share a worker: once is enough.
                rss_series: if i == 0 {
                    self.rss_series.clone()
                } else {
                    Vec::new()
                },
                ..Row::new(&task.workload, &spec.row, kind, &self.label, samples)
            };
            if self.is_floor {
                report.floor.push(row);
            } else {
                report.rows.push(row);
            }
        }
        if self.is_floor {
            return;
        }
        report.pagemaps.retain(|map| {
            map.workload != task.workload || map.backend != self.label || !task.covers(&map.row)
        });
        let last = self.answers.last();
        for map in last.into_iter().flat_map(|answer| &answer.outcome.pagemaps) {
            let mut map = map.clone();
            map.workload = task.workload.clone();
            if map.row.is_empty() {
                map.row = task.job.name.clone();
            }
            if map.backend.is_empty() {
                map.backend = self.label.clone();
            }
            match map.check() {
                Ok(()) => report.pagemaps.push(map),
                Err(error) => report.notes.push(format!("{}: {error}", task.workload)),
            }
        }
    }

    /// Latencies one by one, of the workloads that give them.
    fn record_latencies(&self, report: &mut Report) {
        let outcomes = || self.answers.iter().map(|answer| &answer.outcome);
        if self.is_floor || outcomes().all(|outcome| outcome.latencies.is_empty()) {
            return;
        }
        let of = |take: fn(&Outcome) -> &Vec<u64>| {
            outcomes().map(|outcome| take(outcome).clone()).collect()
        };
        report.latencies.push(Latencies {
            workload: self.order.workload.clone(),
            job: self.order.job.clone(),
            backend: self.label.clone(),
            served: of(|outcome| &outcome.latencies),
            failed: of(|outcome| &outcome.failed_latencies),
        });
    }

    /// All rounds' latencies of a row, if the workload measured any.
    fn histogram(&self, row: &str) -> Option<Histogram> {
        let mut all = Histogram::default();
        for answer in &self.answers {
            if let Some(latencies) = answer.outcome.histograms.get(row) {
                all.merge(latencies);
            }
        }
        (all.total() > 0).then(|| all.trimmed())
    }
}
