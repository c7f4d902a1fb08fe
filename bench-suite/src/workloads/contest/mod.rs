//! contest: how long does a job take while a load runs beside it?
//!
//! A worker runs one load several times in one process, as contest runs in one booted kernel, so that what a run
//! leaves behind is there for the next. Before each run everything free goes back to the kernel; cacherun alone keeps
//! what is cached. The foreground is [`foreground`], the loads are [`loads`], [`drift`] looks for leaks and
//! [`original`] prints what contest prints.

pub mod drift;
pub mod foreground;
pub mod loads;
pub mod mapping;
pub mod original;

use super::ctree::{self, Tree};
use super::{Job, Measurement, Options, Outcome, RowSpec, Workload, args, crew, die};
use crate::objects::{CacheRun, Objects, dispatch};
use crate::report::Report;
use crate::stats::Better;
use crate::worker::resident_kib;
use foreground::Work;
use loads::{Done, LOADS, Setting};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The workload.
pub struct Contest;

const USAGE: &str = "-t LOAD,.. -r RUNS -m MODULES -p PASSES -a ARENA_MIB";

/// Metrics of a row.
pub const TIME: &str = "Time";
/// The foreground's CPU time in per cent of Time.
pub const CPU: &str = "CPU%";
/// Thousands of steps of the load in a second of Time.
pub const LOADS_METRIC: &str = "Loads";
/// The load's CPU time in per cent of Time.
pub const LCPU: &str = "LCPU%";
/// Series: seconds of each run.
pub const RUNS: &str = "run_s";
/// Series: KiB that users of the allocator hold after each run, by its own accounts.
pub const REST_HELD: &str = "held_kib";
/// Series: KiB of the resident set after each run.
pub const REST_RESIDENT: &str = "resident_kib";

struct Settings {
    loads: Vec<&'static str>,
    runs: usize,
    modules: usize,
    passes: usize,
    limit: usize,
}

impl Settings {
    fn parse(options: &Options) -> Result<Self, String> {
        const NAME: &str = "contest";
        let mut settings = Self {
            loads: LOADS.to_vec(),
            runs: 3,
            modules: if options.quick { 6 } else { 24 },
            passes: if options.quick { 40 } else { 100 },
            limit: (if options.quick { 16 } else { 64 }) << 20,
        };
        for (letter, value) in args::parse(NAME, "t:r:m:p:a:", USAGE, &options.args)? {
            let value = value.unwrap_or_default();
            match letter {
                't' => settings.loads = args::words(NAME, 't', &value, &LOADS)?,
                'r' => settings.runs = args::number(NAME, 'r', &value, 1..=1000)?,
                'm' => settings.modules = args::number(NAME, 'm', &value, 1..=1000)?,
                'p' => settings.passes = args::number(NAME, 'p', &value, 1..=10_000)?,
                _ => settings.limit = args::number(NAME, 'a', &value, 4..=1 << 20)? << 20,
            }
        }
        Ok(settings)
    }
}

impl Workload for Contest {
    fn name(&self) -> &'static str {
        "contest"
    }

    fn about(&self) -> &'static str {
        "how long a parse-and-index job takes beside each of eight loads; looks for leaks by drift"
    }

    fn usage(&self) -> &'static str {
        USAGE
    }

    fn plan(&self, options: &Options) -> Result<Vec<Job>, String> {
        let settings = Settings::parse(options)?;
        let row = |load: &str, metric, unit, better| RowSpec {
            row: load.to_owned(),
            metric,
            unit,
            better,
        };
        let job = |load: &&'static str| Job {
            name: (*load).to_owned(),
            rows: vec![
                row(load, TIME, "s", Better::Lower),
                row(load, CPU, "%", Better::Higher),
                row(load, LOADS_METRIC, "thousand steps per s", Better::Higher),
                row(load, LCPU, "%", Better::Higher),
            ],
            time_limit: Duration::from_secs(60)
                + Duration::from_millis(100)
                    * (settings.runs * settings.passes * settings.modules) as u32,
            threads: crew::cpus() + loads::threads_of(load),
        };
        Ok(settings.loads.iter().map(job).collect())
    }

    fn run(&self, backend: &str, job: &str, options: &Options) -> Result<Outcome, String> {
        dispatch::<Self>(backend, job, options)
    }

    fn appendix(&self, report: &Report) -> Option<String> {
        Some(original::render(report)).filter(|text| !text.is_empty())
    }
}

impl CacheRun for Contest {
    fn run<O: Objects>(job: &str, options: &Options) -> Result<Outcome, String> {
        let settings = Settings::parse(options)?;
        let tree = ctree::generate(settings.modules);
        if job == "mem_load" {
            // Allocators without such a limit keep to that of the load's own cache.
            O::limit(settings.limit);
        }
        if job == "cacherun" {
            foreground::run::<O>(&tree, settings.passes, crew::cpus(), options.cpus);
        }
        let mut outcome = Outcome::default();
        let (mut times, mut rests) = (Vec::new(), Vec::new());
        let (mut work, mut load) = (Work::default(), Done::default());
        for _ in 0..settings.runs {
            if job != "cacherun" {
                O::trim();
            }
            let (one, beside) = one_run::<O>(job, &tree, &settings, options)?;
            if work.uses != 0 && one.uses != work.uses {
                return Err(format!(
                    "contest: {job}: the foreground found {} names, then {}: {} corrupts memory",
                    work.uses,
                    one.uses,
                    O::NAME
                ));
            }
            work.uses = one.uses;
            work.time += one.time;
            work.cpu += one.cpu;
            load.steps += beside.steps;
            load.cpu += beside.cpu;
            outcome.objects += one.objects + beside.objects;
            times.push(one.time.as_secs_f64());
            rests.push(O::held().map_or_else(
                || {
                    O::trim();
                    resident_kib() as f64
                },
                |bytes| bytes as f64 / 1024.0,
            ));
        }
        let total = work.time.as_secs_f64().max(1e-9);
        for (metric, value) in [
            (TIME, total / settings.runs as f64),
            (CPU, work.cpu.as_secs_f64() / total * 100.0),
            (LOADS_METRIC, load.steps as f64 / total / 1000.0),
            (LCPU, load.cpu.as_secs_f64() / total * 100.0),
        ] {
            outcome.measurements.push(Measurement {
                row: job.to_owned(),
                metric: metric.to_owned(),
                value,
            });
        }
        let rest = if O::held().is_some() {
            REST_HELD
        } else {
            REST_RESIDENT
        };
        outcome.series.insert(RUNS.to_owned(), times);
        outcome.series.insert(rest.to_owned(), rests);
        Ok(outcome)
    }
}

/// The foreground once, beside the load.
fn one_run<O: Objects>(
    load: &str,
    tree: &Tree,
    settings: &Settings,
    options: &Options,
) -> Result<(Work, Done), String> {
    let stop = AtomicBool::new(false);
    let start = Barrier::new(loads::threads_of(load) + 1);
    let setting = Setting {
        stop: &stop,
        start: &start,
        limit: settings.limit,
        cpus: options.cpus,
    };
    std::thread::scope(|scope| {
        let members = loads::start::<O>(load, scope, &setting)?;
        start.wait();
        let work = foreground::run::<O>(tree, settings.passes, crew::cpus(), options.cpus);
        stop.store(true, Ordering::Relaxed);
        let mut sum = Done::default();
        for member in members {
            let done = member
                .join()
                .unwrap_or_else(|_| die("contest: a thread of the load panicked"));
            sum.steps += done.steps;
            sum.cpu += done.cpu;
            sum.objects += done.objects;
        }
        Ok((work, sum))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::SystemMalloc;

    fn options(text: &str) -> Options {
        Options {
            quick: true,
            args: text.split_whitespace().map(str::to_owned).collect(),
            ..Options::default()
        }
    }

    #[test]
    fn runs_are_reported_one_by_one() {
        let outcome =
            <Contest as CacheRun>::run::<SystemMalloc>("ctar_load", &options("-m 1 -r 4")).unwrap();
        assert_eq!(outcome.series[RUNS].len(), 4);
        assert_eq!(outcome.series[REST_RESIDENT].len(), 4);
        let value = |metric: &str| {
            let mut all = outcome.measurements.iter();
            all.find(|m| m.metric == metric).unwrap().value
        };
        let mean = outcome.series[RUNS].iter().sum::<f64>() / 4.0;
        assert!((value(TIME) - mean).abs() < 1e-6);
        assert!(value(CPU) > 0.0 && value(LOADS_METRIC) > 0.0);
    }

    #[test]
    fn wrong_options_are_named() {
        let error = |text| Settings::parse(&options(text)).map(|_| ()).unwrap_err();
        assert!(error("-t dbench_load").contains("'dbench_load'; valid: no_load"));
        assert!(error("-a 1").contains("-a '1'"));
    }
}
