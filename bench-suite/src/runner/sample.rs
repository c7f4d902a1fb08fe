//! One worker process: started, watched, read to its end, and what it says put together.

use super::{Task, interrupted};
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
use std::io::Read;
use std::os::fd::AsRawFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

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

    /// One worker, one sample; `watch` keeps its memory over time, and its resting set.
    pub fn once(
        &mut self,
        progress: &mut Progress,
        seed: u64,
        watch: bool,
    ) -> Result<Answer, String> {
        self.order.seed = seed;
        self.order.rest = watch;
        let order = serde_json::to_string(&self.order).map_err(|e| e.to_string())?;
        // The link and not its target: it names this very binary even after a rebuild.
        let mut command = Command::new("/proc/self/exe");
        command.arg0("bench-suite").arg("worker").arg(order);
        // Ctrl-C on a terminal reaches this process only, which then decides what becomes of the worker.
        command.process_group(0);
        command
            .envs(self.variables.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command
            .spawn()
            .map_err(|e| format!("cannot start a worker: {e}"))?;
        let mut watched = watch.then(Watch::default);
        let (stdout, stderr, late) = read_both(&mut child, self.time_limit, watched.as_mut());
        if let Some(watched) = watched {
            self.rss_series = watched.series;
        }
        let status = child
            .wait()
            .map_err(|e| format!("cannot wait for the worker: {e}"))?;
        if late {
            return Err(format!("no result within {} s", self.time_limit.as_secs()));
        }
        if !status.success() {
            return Err(describe(status, &stderr));
        }
        let mut answer: Answer = stdout
            .lines()
            .last()
            .and_then(|line| serde_json::from_str(line).ok())
            .ok_or_else(|| {
                format!(
                    "the worker printed no result: {}",
                    describe(status, &stderr)
                )
            })?;
        if !watch && self.rests {
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

/// Points kept of a worker's memory over time; when there are more, every second one goes.
const POINTS: usize = 64;
/// The first distance of two points. A look costs the idle runner some microseconds.
const DISTANCE: Duration = Duration::from_millis(10);

/// Memory of a worker over time, seen from outside.
struct Watch {
    began: Instant,
    distance: Duration,
    next: Duration,
    series: RssSeries,
}

impl Default for Watch {
    fn default() -> Self {
        Self {
            began: Instant::now(),
            distance: DISTANCE,
            next: Duration::ZERO,
            series: Vec::new(),
        }
    }
}

impl Watch {
    /// Looks when it is time to.
    fn look(&mut self, pid: u32) {
        let now = self.began.elapsed();
        if now < self.next {
            return;
        }
        if let Some(kib) = resident_kib(pid) {
            self.series.push((now.as_millis() as u64, kib));
        }
        if self.series.len() > POINTS {
            let mut keep = false;
            self.series.retain(|_| {
                keep = !keep;
                keep
            });
            self.distance *= 2;
        }
        self.next = now + self.distance;
    }
}

/// The second figure of statm: resident pages.
fn resident_kib(pid: u32) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/statm")).ok()?;
    let pages: u64 = text.split_whitespace().nth(1)?.parse().ok()?;
    // SAFETY: plain query.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    // A worker that has ended has no memory, which says nothing about its life.
    (pages > 0).then(|| pages * u64::try_from(page).unwrap_or(4096) / 1024)
}

/// Reads the worker's output to its end. Kills it on Ctrl-C and when its time is up (the last of the three says so).
fn read_both(
    child: &mut Child,
    limit: Duration,
    mut watch: Option<&mut Watch>,
) -> (String, String, bool) {
    let (Some(mut stdout), Some(mut stderr)) = (child.stdout.take(), child.stderr.take()) else {
        return (String::new(), String::new(), false);
    };
    let errors = std::thread::spawn(move || {
        let mut text = Vec::new();
        // What was read up to an error is still worth showing.
        let _ = stderr.read_to_end(&mut text);
        String::from_utf8_lossy(&text).into_owned()
    });
    let end = Instant::now() + limit;
    let (mut text, mut late, mut killed) = (Vec::new(), false, false);
    let mut buffer = [0; 4096];
    loop {
        if !killed && (interrupted() || Instant::now() > end) {
            late = !interrupted();
            killed = true;
            // With its own children. It may have ended by itself: there is nothing to kill then.
            // SAFETY: the worker leads a group of its own and is not yet reaped, so its number is still its group's.
            unsafe { libc::kill(-(child.id() as libc::pid_t), libc::SIGKILL) };
        }
        if let Some(watch) = &mut watch {
            watch.look(child.id());
        }
        let wait = watch
            .as_ref()
            .map_or(100, |watch| watch.distance.as_millis().min(100) as i32);
        let mut poll = libc::pollfd {
            fd: stdout.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: one valid pollfd.
        if unsafe { libc::poll(&mut poll, 1, wait) } <= 0 {
            continue;
        }
        match stdout.read(&mut buffer) {
            Ok(0) => break,
            Ok(n) => text.extend_from_slice(&buffer[..n]),
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(_) => break,
        }
    }
    let errors = errors.join().unwrap_or_default();
    (String::from_utf8_lossy(&text).into_owned(), errors, late)
}

/// Why a worker ended, in one line.
fn describe(status: ExitStatus, stderr: &str) -> String {
    let cause = match (status.signal(), status.code()) {
        (Some(signal), _) => format!("killed by signal {signal}{}", signal_name(signal)),
        (None, Some(code)) => format!("exit status {code}"),
        (None, None) => "ended".to_owned(),
    };
    match stderr.lines().rev().find(|line| !line.trim().is_empty()) {
        Some(line) => format!("{cause}: {}", line.trim()),
        None => cause,
    }
}

fn signal_name(signal: i32) -> &'static str {
    match signal {
        libc::SIGABRT => " (SIGABRT)",
        libc::SIGBUS => " (SIGBUS)",
        libc::SIGFPE => " (SIGFPE)",
        libc::SIGILL => " (SIGILL)",
        libc::SIGKILL => " (SIGKILL, often for want of memory)",
        libc::SIGSEGV => " (SIGSEGV)",
        libc::SIGTRAP => " (SIGTRAP)",
        _ => "",
    }
}
