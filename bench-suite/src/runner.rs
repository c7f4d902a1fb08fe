//! The runner: interleaved rounds, each sample in a worker process of its own.
//!
//! For each job: round 1 runs every backend once, in a random order; round 2 again; and so on, so that a machine that
//! grows warm or busy does so for all alike. Before a workload's first job each backend runs once unrecorded.
//! A backend whose worker fails is left out of the rest of its job; the others go on.

use crate::backend::Backend;
use crate::preload;
use crate::progress::Progress;
use crate::report::{Config, Failure, Latencies, Report, Row};
use crate::rng::Rng;
use crate::stats::{self, Mean};
use crate::worker::{Answer, Order};
use crate::workloads::{self, Job, Options, Outcome, RowSpec};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::Read;
use std::os::fd::AsRawFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Set by Ctrl-C.
pub static INTERRUPTED: AtomicBool = AtomicBool::new(false);

fn interrupted() -> bool {
    INTERRUPTED.load(Ordering::Relaxed)
}

/// A job and its workload.
pub struct Task {
    /// The workload's name.
    pub workload: String,
    /// The job.
    pub job: Job,
}

/// Runs `tasks` on `backends`, adds the rows to `report` and calls `checkpoint` after each finished job. Jobs whose
/// rows the report already holds are not run again.
pub fn run(
    report: &mut Report,
    backends: &[Backend],
    tasks: &[Task],
    mut checkpoint: impl FnMut(&Report),
) {
    let config = report.config.clone();
    let options = Options {
        quick: config.quick,
        cpus: config.cpus,
        args: config.args.clone(),
    };
    let mut rng = Rng::new(config.seed);
    let missing: Vec<&Task> = tasks
        .iter()
        .filter(|task| !is_done(report, task, backends))
        .collect();
    let mut workloads: Vec<&str> = missing.iter().map(|task| task.workload.as_str()).collect();
    workloads.dedup();
    let samples = missing
        .iter()
        .map(|task| config.runs * task.columns(backends).count())
        .chain(workloads.iter().map(|name| columns(name, backends).count()));
    let mut progress = Progress::new(samples.sum());
    let mut warm: Option<&str> = None;
    for task in missing {
        // A job that was cut short or failed before starts afresh.
        report.rows.retain(|row| !task.yields(row));
        report
            .failures
            .retain(|failure| failure.workload != task.workload || failure.job != task.job.name);
        report
            .latencies
            .retain(|old| old.workload != task.workload || old.job != task.job.name);
        let mut runs: Vec<Run> = task
            .columns(backends)
            .map(|backend| Run::new(task, backend, &options))
            .collect();
        if warm != Some(&task.workload) {
            warm = Some(&task.workload);
            for run in &mut runs {
                progress.step(&format!("{} warm-up {}", task.workload, run.order.backend));
                if run.failure.is_none() {
                    // A failure here shows again, and is recorded, in round 1.
                    let _ = run.once(&mut progress);
                }
            }
        }
        rounds(task, &mut runs, &config, &mut rng, &mut progress);
        if interrupted() {
            report.interrupted = true;
            break;
        }
        for run in runs {
            run.record(task, report);
        }
        progress.finished(&format!("{} {}", task.workload, task.job.name));
        checkpoint(report);
    }
    progress.clear();
    sort_rows(report, tasks);
    report.compute();
}

fn rounds(task: &Task, runs: &mut [Run], config: &Config, rng: &mut Rng, progress: &mut Progress) {
    for round in 0..config.max_runs {
        if round >= config.runs {
            let wide = runs.iter().any(|run| run.is_wider_than(config));
            if !wide {
                return;
            }
            progress.extend(runs.len());
        }
        let mut order: Vec<usize> = (0..runs.len()).collect();
        rng.shuffle(&mut order);
        for index in order {
            let run = &mut runs[index];
            progress.step(&format!(
                "{} {} round {} {}",
                task.workload,
                task.job.name,
                round + 1,
                crate::table::column_head(&run.order.backend)
            ));
            if run.failure.is_some() {
                continue;
            }
            match run.once(progress) {
                Ok(answer) => run.answers.push(answer),
                Err(_) if interrupted() => return,
                Err(error) => {
                    progress.note(&format!(
                        "bench-suite: {} {} failed on {}: {error}",
                        task.workload, task.job.name, run.order.backend
                    ));
                    run.failure = Some(error);
                }
            }
        }
    }
}

/// Those of `backends` on which a workload runs.
fn columns<'a>(workload: &str, backends: &'a [Backend]) -> impl Iterator<Item = &'a Backend> {
    let workload = workloads::find(workload).ok();
    backends
        .iter()
        .filter(move |backend| workload.is_some_and(|w| w.takes(&backend.name())))
}

impl Task {
    fn columns<'a>(&self, backends: &'a [Backend]) -> impl Iterator<Item = &'a Backend> {
        columns(&self.workload, backends)
    }

    fn yields(&self, row: &Row) -> bool {
        row.workload == self.workload
            && self
                .job
                .rows
                .iter()
                .any(|spec| spec.row == row.row && spec.metric == row.metric)
    }
}

/// Does the report hold every row of the task for every backend?
fn is_done(report: &Report, task: &Task, backends: &[Backend]) -> bool {
    let wanted = task.job.rows.len() * task.columns(backends).count();
    report
        .rows
        .iter()
        .filter(|row| task.yields(row) && row.samples.len() >= report.config.runs)
        .count()
        == wanted
}

/// Puts rows into the order of the plan, backends in the order of the columns.
fn sort_rows(report: &mut Report, tasks: &[Task]) {
    let backends = report.config.backends.clone();
    report.rows.sort_by_key(|row| {
        let task = tasks
            .iter()
            .position(|task| task.yields(row))
            .unwrap_or(usize::MAX);
        let specs = tasks.get(task).map_or(&[][..], |task| &task.job.rows);
        let spec = specs
            .iter()
            .position(|spec| spec.row == row.row && spec.metric == row.metric);
        (
            task,
            spec,
            backends.iter().position(|name| *name == row.backend),
        )
    });
}

/// One job on one backend, over all rounds.
struct Run {
    order: Order,
    variables: Vec<(&'static str, OsString)>,
    time_limit: Duration,
    specs: Vec<RowSpec>,
    answers: Vec<Answer>,
    failure: Option<String>,
}

impl Run {
    fn new(task: &Task, backend: &Backend, options: &Options) -> Self {
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
                backend: backend.name(),
                preload: setting.worker,
                options: options.clone(),
            },
            variables: setting.variables,
            time_limit: task.job.time_limit,
            specs: task.job.rows.clone(),
            answers: Vec::new(),
            failure,
        }
    }

    /// One worker, one sample.
    fn once(&self, progress: &mut Progress) -> Result<Answer, String> {
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
        let (stdout, stderr, late) = read_both(&mut child, self.time_limit);
        let status = child
            .wait()
            .map_err(|e| format!("cannot wait for the worker: {e}"))?;
        if late {
            return Err(format!("no result within {} s", self.time_limit.as_secs()));
        }
        if !status.success() {
            return Err(describe(status, &stderr));
        }
        let answer: Answer = stdout
            .lines()
            .last()
            .and_then(|line| serde_json::from_str(line).ok())
            .ok_or_else(|| {
                format!(
                    "the worker printed no result: {}",
                    describe(status, &stderr)
                )
            })?;
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
            progress.note(&format!("{}: {line}", self.order.backend));
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
    fn is_wider_than(&self, config: &Config) -> bool {
        self.failure.is_none()
            && self.specs.iter().any(|spec| {
                let mean = Mean::of_unit(spec.unit);
                let samples = self.samples(&spec.row, spec.metric);
                let interval = stats::bootstrap(&samples, mean, config.level, config.seed);
                interval.width_pct(mean.of(&samples)) > config.width
            })
    }

    fn record(self, task: &Task, report: &mut Report) {
        if let Some(error) = self.failure {
            report.failures.push(Failure {
                workload: self.order.workload,
                job: self.order.job,
                backend: self.order.backend,
                error,
            });
            return;
        }
        if self
            .answers
            .iter()
            .any(|answer| !answer.outcome.latencies.is_empty())
        {
            let of = |take: fn(&Outcome) -> &Vec<u64>| {
                let outcomes = self.answers.iter().map(|answer| &answer.outcome);
                outcomes.map(|outcome| take(outcome).clone()).collect()
            };
            report.latencies.push(Latencies {
                workload: self.order.workload.clone(),
                job: self.order.job.clone(),
                backend: self.order.backend.clone(),
                served: of(|outcome| &outcome.latencies),
                failed: of(|outcome| &outcome.failed_latencies),
            });
        }
        let middle = |of: fn(&Answer) -> u64| {
            let all: Vec<f64> = self
                .answers
                .iter()
                .map(|answer| of(answer) as f64)
                .collect();
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
        for (name, figures) in self
            .answers
            .iter()
            .flat_map(|answer| &answer.outcome.series)
        {
            series
                .entry(name.clone())
                .or_default()
                .push(figures.clone());
        }
        for spec in &task.job.rows {
            report.rows.push(Row {
                workload: task.workload.clone(),
                row: spec.row.clone(),
                metric: spec.metric.to_owned(),
                unit: spec.unit.to_owned(),
                better: spec.better,
                backend: self.order.backend.clone(),
                samples: self.samples(&spec.row, spec.metric),
                mean: 0.0,
                median: 0.0,
                interval: None,
                delta_pct: None,
                p: None,
                significant: false,
                rss_peak_kib: middle(|answer| answer.rss_peak_kib),
                rss_rest_kib: middle(|answer| answer.rss_rest_kib),
                objects: self
                    .answers
                    .iter()
                    .map(|answer| answer.outcome.objects)
                    .sum::<u64>()
                    / count,
                counters: counters.clone(),
                series: series.clone(),
            });
        }
    }
}

/// Reads the worker's output to its end. Kills it on Ctrl-C and when its time is up (the last of the three says so).
fn read_both(child: &mut Child, limit: Duration) -> (String, String, bool) {
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
        let mut poll = libc::pollfd {
            fd: stdout.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: one valid pollfd.
        if unsafe { libc::poll(&mut poll, 1, 100) } <= 0 {
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
