//! classic: the multithreaded malloc tests of the literature, and the patterns in which mallocs are known to be weak.
//!
//! Every row goes through the C functions, whatever the backend: the worker is the same program for all of them, and
//! the malloc under test is preloaded into it (`slab`, `slub` and `unified` too, see [`crate::preload`]). A row is a fixed amount
//! of work and reports its time; some report more (kB a thread, RSS/live, latency percentiles).
//!
//! `block` owns the memory; `threads`, `sizes`, `memory` and `latency` hold the rows; `ROWS` lists them.

mod block;
mod latency;
mod memory;
mod sizes;
mod threads;

use super::{Job, Measurement, Options, Outcome, RowSpec, STACK, Workload, args, die};
use crate::preload::Route;
use crate::rng::Rng;
use crate::stats::Better;
use crate::worker;
use std::thread::{Builder, Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

/// The workload.
pub struct Classic;

const USAGE: &str =
    "-r ROWS,.. (a row's name or what it begins with) -n PER_CENT (of the usual work)";
const NAME: &str = "classic";

/// Work of a full sample, relative to that of --quick.
const FULL: usize = 4;

/// How much work a row does.
#[derive(Clone, Copy)]
struct Size {
    quick: bool,
    percent: usize,
}

impl Size {
    /// `quick` operations, scaled; at least one.
    fn count(&self, quick: usize) -> usize {
        let full = if self.quick { 1 } else { FULL };
        (quick * full * self.percent / 100).max(1)
    }

    /// An amount of live memory that --quick scales down and -n as well: `quick` or `full`.
    fn live(&self, quick: usize, full: usize) -> usize {
        let base = if self.quick { quick } else { full };
        base * self.percent / 100
    }

    /// How long the program rests.
    fn rest(&self) -> Duration {
        self.wait(if self.quick { QUICK_REST } else { REST })
    }

    /// A wait, which -n shortens and does not lengthen.
    fn wait(&self, time: Duration) -> Duration {
        time * self.percent.min(100) as u32 / 100
    }
}

/// How long the program rests before its resting set is read: two looks of our purger. A
/// malloc whose memory decays over longer (jemalloc's does over 10 s) has not finished by then.
const REST: Duration = Duration::from_millis(1500);
/// The same under --quick: the purger gives memory back after two looks, half a second apart.
const QUICK_REST: Duration = Duration::from_millis(1200);

/// What a row brings home.
struct Figures {
    /// Time of its measured part.
    time: Duration,
    /// Objects it allocated.
    objects: usize,
    /// What it measured besides, in the order of the row's `more`.
    more: Vec<f64>,
}

impl Figures {
    /// Times `work`, which returns the number of objects.
    fn time(work: impl FnOnce() -> usize) -> Self {
        let began = Instant::now();
        let objects = work();
        Self {
            time: began.elapsed(),
            objects,
            more: Vec::new(),
        }
    }
}

/// A figure besides the time: label, metric, unit. An empty label is the row's own.
type Extra = (&'static str, &'static str, &'static str);

/// A row.
struct RowDef {
    name: &'static str,
    threads: usize,
    more: &'static [Extra],
    run: fn(Size) -> Figures,
}

const fn row(name: &'static str, threads: usize, run: fn(Size) -> Figures) -> RowDef {
    RowDef {
        name,
        threads,
        more: &[],
        run,
    }
}

const RATIO: Extra = ("", "rss_per_live", "ratio");

/// Every row, in the order of the table. `threads` 0: one a CPU, see [`lanes`].
const ROWS: &[RowDef] = &[
    row("larson", 0, threads::larson),
    row("threadtest", 0, threads::threadtest),
    row("prodcons/one-way", 0, threads::one_way),
    row("prodcons/both-ways", 0, threads::both_ways),
    row("cross-thread/2t", 2, |size| threads::cross(size, 2)),
    row("cross-thread/16t", 16, |size| threads::cross(size, 16)),
    row("cache-scratch", 0, threads::cache_scratch),
    row("cache-thrash", 0, threads::cache_thrash),
    row("alloc-test/512", 0, |size| sizes::alloc_test(size, 512)),
    row("alloc-test/8192", 0, |size| sizes::alloc_test(size, 8192)),
    RowDef {
        name: "server",
        threads: 0,
        more: &[RATIO],
        run: memory::server,
    },
    RowDef {
        name: "hand-off",
        threads: 0,
        more: &[RATIO],
        run: threads::hand_off,
    },
    row("thread-churn", 0, threads::churn),
    RowDef {
        name: "idle-threads",
        threads: 0,
        more: &[("", "memory a thread", "kB")],
        run: memory::idle,
    },
    RowDef {
        name: "burst",
        threads: 0,
        more: &[("", "kept after a rest", "MB")],
        run: memory::burst,
    },
    RowDef {
        name: "fragment/shift",
        threads: 1,
        more: &[
            ("fragment/shift/1", "rss_per_live", "ratio"),
            ("fragment/shift/2", "rss_per_live", "ratio"),
            ("fragment/shift/3", "rss_per_live", "ratio"),
            ("fragment/shift/4", "rss_per_live", "ratio"),
            ("fragment/shift/5", "rss_per_live", "ratio"),
            ("fragment/shift/6", "rss_per_live", "ratio"),
        ],
        run: memory::shift,
    },
    RowDef {
        name: "fragment/pinned",
        threads: 1,
        more: &[
            ("fragment/pinned/full", "rss_per_live", "ratio"),
            ("fragment/pinned/rest", "rss_per_live", "ratio"),
            ("fragment/pinned/floor", "rss_per_live", "ratio"),
        ],
        run: memory::pinned,
    },
    row("realloc/small", 1, sizes::realloc_small),
    row("realloc/double", 1, sizes::realloc_double),
    row("realloc/large", 1, sizes::realloc_large),
    row("aligned", 0, sizes::aligned),
    row("calloc/small", 0, sizes::calloc_small),
    row("calloc/large", 1, sizes::calloc_large),
    row("large/untouched", 1, sizes::large_untouched),
    row("large/touched", 1, sizes::large_touched),
    RowDef {
        name: "latency",
        threads: 0,
        more: &[
            ("latency/p50", "latency", "ns"),
            ("latency/p99", "latency", "ns"),
            ("latency/p99.9", "latency", "ns"),
            ("latency/p99.99", "latency", "ns"),
            ("latency/max", "latency", "ns"),
        ],
        run: latency::mixed,
    },
];

struct Settings {
    rows: Vec<&'static RowDef>,
    size: Size,
}

impl Settings {
    fn parse(options: &Options) -> Result<Self, String> {
        let mut settings = Self {
            rows: ROWS.iter().collect(),
            size: Size {
                quick: options.quick,
                percent: 100,
            },
        };
        for (letter, value) in args::parse(NAME, "r:n:", USAGE, &options.args)? {
            let value = value.unwrap_or_default();
            match letter {
                'r' => settings.rows = chosen(&value)?,
                _ => settings.size.percent = args::number(NAME, 'n', &value, 1..=10_000)?,
            }
        }
        Ok(settings)
    }
}

/// The rows that begin with one of `names`.
fn chosen(names: &str) -> Result<Vec<&'static RowDef>, String> {
    let names: Vec<&str> = names.split(',').map(str::trim).collect();
    for name in &names {
        if name.is_empty() || !ROWS.iter().any(|row| row.name.starts_with(name)) {
            let all: Vec<&str> = ROWS.iter().map(|row| row.name).collect();
            return Err(format!(
                "{NAME}: -r '{name}': no row begins so; rows: {}",
                all.join(", ")
            ));
        }
    }
    let wanted = |row: &&RowDef| names.iter().any(|name| row.name.starts_with(name));
    Ok(ROWS.iter().filter(wanted).collect())
}

/// Threads of a row with one a CPU: at least 2, so that something is shared, and at most 16.
fn lanes() -> usize {
    std::thread::available_parallelism().map_or(2, |n| n.get().clamp(2, 16))
}

/// Starts a thread with a small stack.
fn start<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    work: impl FnOnce() -> T + Send + 'scope,
) -> ScopedJoinHandle<'scope, T> {
    Builder::new()
        .stack_size(STACK)
        .spawn_scoped(scope, work)
        .unwrap_or_else(|e| die(&format!("{NAME}: cannot start a thread: {e}")))
}

/// What the thread returned.
fn join<T>(thread: ScopedJoinHandle<'_, T>) -> T {
    thread
        .join()
        .unwrap_or_else(|_| die(&format!("{NAME}: a thread panicked")))
}

/// Runs `work` in [`lanes`] threads, each with its number, and returns what they return.
fn in_lanes<T: Send>(work: impl Fn(usize) -> T + Sync) -> Vec<T> {
    in_threads(lanes(), work)
}

fn in_threads<T: Send>(count: usize, work: impl Fn(usize) -> T + Sync) -> Vec<T> {
    std::thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> = (0..count)
            .map(|lane| start(scope, move || work(lane)))
            .collect();
        threads.into_iter().map(join).collect()
    })
}

/// A size from `least` to `least << octaves` (exclusive): every octave equally often, as programs' sizes are.
#[inline]
fn log_size(rng: &mut Rng, least: usize, octaves: usize) -> usize {
    let octave = least << rng.below(octaves);
    octave + rng.below(octave)
}

/// What a program that is not quite idle does: a few small objects now and then, for `time`. No row times anything
/// after it.
fn light_activity(time: Duration) {
    worker::before_rest();
    let mut rng = Rng::new(99);
    let end = Instant::now() + time;
    while Instant::now() < end {
        for _ in 0..100 {
            drop(block::Block::new(log_size(&mut rng, 16, 7)));
        }
        std::thread::sleep(Duration::from_millis(10).min(time));
    }
}

impl Workload for Classic {
    fn name(&self) -> &'static str {
        NAME
    }

    fn about(&self) -> &'static str {
        "larson, threadtest, producers and consumers, fragmentation, latency: malloc itself, each backend preloaded"
    }

    fn usage(&self) -> &'static str {
        USAGE
    }

    fn plan(&self, options: &Options) -> Result<Vec<Job>, String> {
        let spec = |row: &str, metric, unit| RowSpec {
            row: row.to_owned(),
            metric,
            unit,
            better: Better::Lower,
        };
        let job = |row: &&RowDef| {
            let mut rows = vec![spec(row.name, "time", "s")];
            rows.extend(row.more.iter().map(|(label, metric, unit)| {
                let label = if label.is_empty() { row.name } else { label };
                spec(label, metric, unit)
            }));
            Job {
                name: row.name.to_owned(),
                rows,
                time_limit: Duration::from_secs(300),
                threads: if row.threads == 0 {
                    lanes()
                } else {
                    row.threads
                },
            }
        };
        Ok(Settings::parse(options)?.rows.iter().map(job).collect())
    }

    fn rests(&self) -> bool {
        true
    }

    fn route(&self) -> Route {
        Route::Worker
    }

    fn run(&self, _backend: &str, job: &str, options: &Options) -> Result<Outcome, String> {
        let settings = Settings::parse(options)?;
        let row = ROWS
            .iter()
            .find(|row| row.name == job)
            .ok_or_else(|| format!("{NAME}: no job '{job}'"))?;
        let figures = (row.run)(settings.size);
        let mut outcome = Outcome {
            objects: figures.objects as u64,
            ..Outcome::default()
        };
        let mut push = |row: &str, metric: &str, value: f64| {
            outcome.measurements.push(Measurement {
                row: row.to_owned(),
                metric: metric.to_owned(),
                value,
            });
        };
        push(row.name, "time", figures.time.as_secs_f64());
        for ((label, metric, _), value) in row.more.iter().zip(&figures.more) {
            let label = if label.is_empty() { row.name } else { label };
            push(label, metric, *value);
        }
        // The resting set is read next: a malloc's purge comes first.
        if worker::rests() {
            light_activity(settings.size.rest());
        }
        Ok(outcome)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(text: &str) -> Options {
        Options {
            args: text.split_whitespace().map(str::to_owned).collect(),
            ..Options::default()
        }
    }

    #[test]
    fn every_row_yields_all_its_figures() {
        let options = options("-n 1");
        for job in Classic.plan(&options).unwrap() {
            let outcome = Classic.run("system", &job.name, &options).unwrap();
            for row in &job.rows {
                let mut found = outcome.measurements.iter();
                let value = found
                    .find(|m| m.row == row.row && m.metric == row.metric)
                    .unwrap_or_else(|| panic!("{} {} is missing", row.row, row.metric))
                    .value;
                assert!(value.is_finite(), "{} {}: {value}", row.row, row.metric);
                assert!(
                    row.metric != "time" || value > 0.0,
                    "{} took no time",
                    row.row
                );
            }
            assert!(outcome.objects > 0, "{}", job.name);
        }
    }

    #[test]
    fn rows_are_chosen_by_their_beginnings() {
        let names = |text: &str| -> Vec<String> {
            let jobs = Classic.plan(&options(text)).unwrap();
            jobs.into_iter().map(|job| job.name).collect()
        };
        assert_eq!(
            names("-r large,burst"),
            ["burst", "large/untouched", "large/touched"]
        );
        let error = Classic.plan(&options("-r lasron")).unwrap_err();
        assert!(
            error.contains("'lasron'") && error.contains("larson, threadtest"),
            "{error}"
        );
        assert!(
            Classic
                .plan(&options("-n 0"))
                .unwrap_err()
                .contains("-n '0'")
        );
    }

    #[test]
    fn sizes_stay_in_their_range_and_reach_both_ends() {
        let mut rng = Rng::new(1);
        let all: Vec<usize> = (0..20_000).map(|_| log_size(&mut rng, 16, 8)).collect();
        assert!(all.iter().all(|size| (16..4096).contains(size)));
        assert!(all.iter().any(|size| *size < 20) && all.iter().any(|size| *size > 4000));
        let small = all.iter().filter(|size| **size < 256).count();
        assert!(
            (8_000..12_000).contains(&small),
            "half lie below 256: {small}"
        );
    }
}
