//! The runner: interleaved rounds, each sample in a worker process of its own.
//!
//! For each job: round 1 runs every backend once, in a random order; round 2 again; and so on, so that a machine that
//! grows warm or busy does so for all alike. Before a workload's first job each backend runs once unrecorded.
//! Workers that rest (see [`crate::worker::before_rest`]) do so side by side, when all of a round have measured what they
//! time. A backend whose worker fails is left out of the rest of its job; the others go on. The floor, where it was asked
//! for, takes part in the first rounds as one more backend; a workload that it cannot run has no shares.

mod process;
mod sample;

use crate::backend::Backend;
use crate::preload::Route;
use crate::progress::Progress;
use crate::report::{Config, Report, Row};
use crate::rng::Rng;
use crate::workloads::{self, Job, Options};
use process::Process;
use sample::Run;
use std::sync::atomic::{AtomicBool, Ordering};

/// Rounds in which the floor takes part: enough to tell a share of 5 % from one of 50 %.
const FLOOR_ROUNDS: usize = 3;

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
    let floor = config.floor && !backends.contains(&Backend::Floor);
    let floor_rounds = if floor {
        config.runs.min(FLOOR_ROUNDS)
    } else {
        0
    };
    let floor_of = |name: &str, rounds| if floor && has_floor(name) { rounds } else { 0 };
    let samples = missing.iter().map(|task| {
        config.runs * task.columns(backends).count() + floor_of(&task.workload, floor_rounds)
    });
    let warm_ups =
        (workloads.iter()).map(|name| columns(name, backends).count() + floor_of(name, 1));
    let mut progress = Progress::new(samples.chain(warm_ups).sum());
    let mut warm: Option<&str> = None;
    let mut no_floor: Option<&str> = None;
    for task in missing {
        // A job that was cut short or failed before starts afresh.
        report.rows.retain(|row| !task.yields(row));
        report.floor.retain(|row| !task.yields(row));
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
        let columns = runs.len();
        if floor && has_floor(&task.workload) && no_floor != Some(&task.workload) {
            runs.push(Run::new(task, &Backend::Floor, &options));
        }
        if warm != Some(&task.workload) {
            warm = Some(&task.workload);
            for run in &mut runs {
                progress.step(&format!("{} warm-up {}", task.workload, run.label()));
                let seed = rng.next_u64();
                if run.failure.is_none() {
                    // A failure here shows again, and is recorded, in round 1.
                    let _ = (run.begin(seed, false))
                        .and_then(|process| run.end(process, &mut progress));
                }
            }
        }
        rounds(task, &mut runs, columns, &config, &mut rng, &mut progress);
        if interrupted() {
            report.interrupted = true;
            break;
        }
        for run in runs {
            if run.is_floor && run.failure.is_some() {
                no_floor = Some(&task.workload);
                let error = run.failure.unwrap_or_default();
                let note = format!("no shares for {}: {error}", task.workload);
                if !report.notes.contains(&note) {
                    report.notes.push(note);
                }
                continue;
            }
            run.record(task, report);
        }
        progress.finished(&format!("{} {}", task.workload, task.job.name));
        checkpoint(report);
    }
    progress.clear();
    sort_rows(report, tasks);
    report.compute();
}

fn rounds(
    task: &Task,
    runs: &mut [Run],
    columns: usize,
    config: &Config,
    rng: &mut Rng,
    progress: &mut Progress,
) {
    for round in 0..config.max_runs {
        if round >= config.runs {
            let wide = (runs.iter()).any(|run| !run.is_floor && run.is_wider_than(config));
            if !wide {
                return;
            }
            progress.extend(columns);
        }
        let mut order: Vec<usize> = (0..runs.len()).collect();
        rng.shuffle(&mut order);
        let mut resting: Vec<(usize, Process)> = Vec::new();
        for index in order {
            let run = &mut runs[index];
            if run.is_floor && round >= FLOOR_ROUNDS {
                continue;
            }
            progress.step(&format!(
                "{} {} round {} {}",
                task.workload,
                task.job.name,
                round + 1,
                crate::table::column_head(run.label())
            ));
            if run.failure.is_some() {
                continue;
            }
            let process = run.begin(rng.next_u64(), round == 0);
            if interrupted() {
                return;
            }
            match process {
                Ok(process) if process.is_resting() => resting.push((index, process)),
                process => run.take(process, task, progress),
            }
        }
        std::thread::scope(|scope| {
            for (_, process) in &mut resting {
                scope.spawn(|| process.rest());
            }
        });
        if interrupted() {
            return;
        }
        for (index, process) in resting {
            runs[index].take(Ok(process), task, progress);
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

/// Can the floor take part? It is made of caches: it hands out neither pages nor, as a library, memory to programs.
fn has_floor(workload: &str) -> bool {
    workloads::find(workload).is_ok_and(|workload| {
        workload.takes(crate::floor::NAME) && workload.route() == Route::Caches
    })
}

impl Task {
    fn columns<'a>(&self, backends: &'a [Backend]) -> impl Iterator<Item = &'a Backend> {
        columns(&self.workload, backends)
    }

    /// Is the row one of this task's?
    pub fn yields(&self, row: &Row) -> bool {
        row.workload == self.workload
            && self
                .job
                .rows
                .iter()
                .any(|spec| spec.row == row.row && spec.metric == row.metric)
    }
}

impl Task {
    /// Does the label name the job, or one of its rows?
    fn covers(&self, label: &str) -> bool {
        self.job.name == label || self.job.rows.iter().any(|spec| spec.row == label)
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
