//! Slab micro-benchmarks: Lameter's allocation patterns by object size, and Brouer's bulk sizes.
//!
//! | row | what is timed, for each object |
//! |---|---|
//! | `SIZE/alloc`, `SIZE/free` | 10,000 allocations in a row; then their frees, in the order of allocation |
//! | `SIZE/pair` | an allocation and its free at once, 10,000 times |
//! | `SIZE/remote` | one thread's frees of what the other threads (one for each further CPU) allocated |
//! | `SIZE/all` | allocation and free of 10,000 objects by one thread for each CPU at the same time |
//! | `bulk/N` | alloc_bulk and free_bulk of N objects of 256 bytes |
//!
//! Every object is written after its allocation and read before its free. A sample is the mean of several passes after
//! one that is not counted, in nanoseconds and, on x86-64, in cycles of the time stamp counter.

use super::{Job, Measurement, Options, Outcome, RowSpec, STACK, Workload, args, die, pin};
use crate::objects::{CacheRun, Objects, dispatch};
use crate::stats::Better;
use std::sync::Barrier;
use std::thread::Builder;
use std::time::{Duration, Instant};

/// The workload.
pub struct SlabMicro;

const USAGE: &str = "-s SIZES,.. -n OBJECTS -b BULK,..";
const SIZES: [usize; 11] = [8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192];
const BULK: [usize; 14] = [1, 2, 3, 4, 8, 16, 30, 32, 34, 48, 64, 128, 158, 250];
const PATTERNS: [&str; 5] = ["alloc", "free", "pair", "remote", "all"];
/// Object size of the bulk rows.
const BULK_OBJECT: usize = 256;

struct Settings {
    sizes: Vec<usize>,
    bulk: Vec<usize>,
    objects: usize,
    passes: usize,
}

impl Settings {
    fn parse(options: &Options) -> Result<Self, String> {
        const NAME: &str = "slab-micro";
        let mut settings = Self {
            sizes: SIZES.to_vec(),
            bulk: BULK.to_vec(),
            objects: 10_000,
            passes: if options.quick { 3 } else { 10 },
        };
        if options.quick {
            settings.sizes = vec![8, 64, 256, 1024, 4096];
            settings.bulk = vec![1, 16, 64, 250];
        }
        for (letter, value) in args::parse(NAME, "s:n:b:", USAGE, &options.args)? {
            let value = value.unwrap_or_default();
            match letter {
                's' => settings.sizes = args::numbers(NAME, 's', &value, 8..=32768)?,
                'n' => settings.objects = args::number(NAME, 'n', &value, 1..=1_000_000)?,
                _ => settings.bulk = args::numbers(NAME, 'b', &value, 1..=10_000)?,
            }
        }
        Ok(settings)
    }
}

fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

impl Workload for SlabMicro {
    fn name(&self) -> &'static str {
        "slab-micro"
    }

    fn about(&self) -> &'static str {
        "allocate and free by object size, in a row, in pairs, remotely, on all CPUs, and in bulk"
    }

    fn usage(&self) -> &'static str {
        USAGE
    }

    fn plan(&self, options: &Options) -> Result<Vec<Job>, String> {
        let settings = Settings::parse(options)?;
        let all: [(&'static str, &'static str); 2] = [("time", "ns"), ("cycles", "cycles")];
        let metrics = if cfg!(target_arch = "x86_64") {
            &all[..]
        } else {
            &all[..1]
        };
        let job = |name: String, rows: Vec<String>, threads| Job {
            rows: rows
                .iter()
                .flat_map(|row| metrics.iter().map(|metric| (row.clone(), *metric)))
                .map(|(row, (metric, unit))| RowSpec {
                    row,
                    metric,
                    unit,
                    better: Better::Lower,
                })
                .collect(),
            name,
            time_limit: Duration::from_secs(60)
                + Duration::from_micros(100) * (settings.objects * 20) as u32,
            threads,
        };
        let mut jobs = Vec::new();
        for size in &settings.sizes {
            let rows = PATTERNS
                .iter()
                .map(|pattern| format!("{size}/{pattern}"))
                .collect();
            jobs.push(job(format!("size/{size}"), rows, cpus()));
        }
        for bulk in &settings.bulk {
            jobs.push(job(format!("bulk/{bulk}"), vec![format!("bulk/{bulk}")], 1));
        }
        Ok(jobs)
    }

    fn run(&self, backend: &str, job: &str, options: &Options) -> Result<Outcome, String> {
        dispatch::<Self>(backend, job, options)
    }
}

/// Time and cycles that passed.
#[derive(Clone, Copy, Default)]
struct Span {
    ns: f64,
    cycles: f64,
}

struct Clock {
    began: Instant,
    cycles: u64,
}

pub(super) fn time_stamp() -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: rdtsc exists on every x86-64 processor.
    unsafe {
        std::arch::x86_64::_rdtsc()
    }
    #[cfg(not(target_arch = "x86_64"))]
    0
}

impl Clock {
    fn start() -> Self {
        Self {
            began: Instant::now(),
            cycles: time_stamp(),
        }
    }

    fn stop(&self) -> Span {
        let cycles = time_stamp().wrapping_sub(self.cycles) as f64;
        Span {
            ns: self.began.elapsed().as_nanos() as f64,
            cycles,
        }
    }
}

/// Sums passes of one row; the first is warm-up.
#[derive(Default)]
struct Total {
    sum: Span,
    operations: usize,
    warm: bool,
}

impl Total {
    fn add(&mut self, span: Span, operations: usize) {
        if self.warm {
            self.sum.ns += span.ns;
            self.sum.cycles += span.cycles;
            self.operations += operations;
        }
        self.warm = true;
    }

    fn report(&self, row: &str, outcome: &mut Outcome) {
        let operations = self.operations.max(1) as f64;
        let mut push = |metric: &str, value: f64| {
            outcome.measurements.push(Measurement {
                row: row.to_owned(),
                metric: metric.to_owned(),
                value,
            });
        };
        push("time", self.sum.ns / operations);
        if cfg!(target_arch = "x86_64") {
            push("cycles", self.sum.cycles / operations);
        }
    }
}

/// Objects in the hand of one thread at a time.
struct Hand(Vec<*mut u8>);

// SAFETY: the objects are plain memory, and whoever holds the hand owns them.
unsafe impl Send for Hand {}

impl Hand {
    fn fill<O: Objects>(&mut self, cache: O::Cache, count: usize) {
        for _ in 0..count {
            let object = O::alloc(cache);
            if object.is_null() {
                die(&format!("{}: out of memory", O::NAME));
            }
            // SAFETY: a fresh object of at least 8 bytes.
            unsafe { object.write(1) };
            self.0.push(object);
        }
    }

    fn empty<O: Objects>(&mut self, cache: O::Cache) {
        for object in self.0.drain(..) {
            // SAFETY: `fill` allocated and wrote it; it leaves the hand here.
            unsafe {
                std::hint::black_box(object.read());
                O::free(cache, object);
            }
        }
    }
}

impl CacheRun for SlabMicro {
    fn run<O: Objects>(job: &str, options: &Options) -> Result<Outcome, String> {
        let settings = Settings::parse(options)?;
        let (kind, number) = job
            .split_once('/')
            .ok_or_else(|| format!("slab-micro: no job '{job}'"))?;
        let mut outcome = Outcome::default();
        match kind {
            "size" => by_size::<O>(
                args::number("slab-micro", 's', number, 8..=32768)?,
                &settings,
                options,
                &mut outcome,
            )?,
            "bulk" => in_bulk::<O>(
                args::number("slab-micro", 'b', number, 1..=10_000)?,
                &settings,
                options,
                &mut outcome,
            )?,
            _ => return Err(format!("slab-micro: no job '{job}'")),
        }
        Ok(outcome)
    }
}

fn by_size<O: Objects>(
    size: usize,
    settings: &Settings,
    options: &Options,
    outcome: &mut Outcome,
) -> Result<(), String> {
    let cache = O::create("micro", size)?;
    let n = settings.objects;
    let passes = settings.passes + 1;
    // The parallel rows come first: their threads take this thread's affinity, which pinning narrows.
    let all = all_at_once::<O>(cache, n, passes);
    pin(options.cpus.map(|cpus| cpus.0));
    let (mut alloc, mut free, mut pair, mut remote) = (
        Total::default(),
        Total::default(),
        Total::default(),
        Total::default(),
    );
    let mut hand = Hand(Vec::with_capacity(n));
    for _ in 0..passes {
        let clock = Clock::start();
        hand.fill::<O>(cache, n);
        alloc.add(clock.stop(), n);
        let clock = Clock::start();
        hand.empty::<O>(cache);
        free.add(clock.stop(), n);
        let clock = Clock::start();
        for _ in 0..n {
            hand.fill::<O>(cache, 1);
            hand.empty::<O>(cache);
        }
        pair.add(clock.stop(), n);
    }
    let others = (cpus() - 1).max(1);
    for _ in 0..passes {
        let mut hands = allocate_elsewhere::<O>(cache, n, others, options);
        let clock = Clock::start();
        hands.iter_mut().for_each(|hand| hand.empty::<O>(cache));
        remote.add(clock.stop(), n * others);
    }
    outcome.objects += (passes * n * (2 + others + cpus())) as u64;
    let totals = [alloc, free, pair, remote, all];
    for (pattern, total) in PATTERNS.iter().zip(&totals) {
        total.report(&format!("{size}/{pattern}"), outcome);
    }
    Ok(())
}

fn allocate_elsewhere<O: Objects>(
    cache: O::Cache,
    n: usize,
    threads: usize,
    options: &Options,
) -> Vec<Hand> {
    std::thread::scope(|scope| {
        let spawn = |_| {
            Builder::new()
                .stack_size(STACK)
                .spawn_scoped(scope, move || {
                    pin(options.cpus.map(|cpus| cpus.1));
                    let mut hand = Hand(Vec::with_capacity(n));
                    hand.fill::<O>(cache, n);
                    hand
                })
        };
        let threads: Vec<_> = (0..threads).map(spawn).collect();
        let join = |thread: std::io::Result<std::thread::ScopedJoinHandle<'_, Hand>>| match thread {
            Ok(thread) => thread
                .join()
                .unwrap_or_else(|_| die("slab-micro: a thread panicked")),
            Err(e) => die(&format!("slab-micro: cannot start a thread: {e}")),
        };
        threads.into_iter().map(join).collect()
    })
}

fn all_at_once<O: Objects>(cache: O::Cache, n: usize, passes: usize) -> Total {
    let threads = cpus();
    let barrier = Barrier::new(threads);
    let body = || {
        let mut total = Total::default();
        let mut hand = Hand(Vec::with_capacity(n));
        for _ in 0..passes {
            barrier.wait();
            let clock = Clock::start();
            hand.fill::<O>(cache, n);
            hand.empty::<O>(cache);
            total.add(clock.stop(), n);
        }
        total
    };
    let totals: Vec<Total> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads)
            .map(|_| {
                Builder::new()
                    .stack_size(STACK)
                    .spawn_scoped(scope, body)
                    .unwrap_or_else(|e| die(&format!("slab-micro: cannot start a thread: {e}")))
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| {
                thread
                    .join()
                    .unwrap_or_else(|_| die("slab-micro: a thread panicked"))
            })
            .collect()
    });
    let mut sum = Total {
        warm: true,
        ..Total::default()
    };
    for total in totals {
        sum.add(total.sum, total.operations);
    }
    sum
}

fn in_bulk<O: Objects>(
    bulk: usize,
    settings: &Settings,
    options: &Options,
    outcome: &mut Outcome,
) -> Result<(), String> {
    let cache = O::create("micro_bulk", BULK_OBJECT)?;
    pin(options.cpus.map(|cpus| cpus.0));
    let rounds = settings.objects.div_ceil(bulk);
    let passes = settings.passes + 1;
    let mut total = Total::default();
    let mut objects = vec![std::ptr::null_mut(); bulk];
    for _ in 0..passes {
        let clock = Clock::start();
        for _ in 0..rounds {
            if O::alloc_bulk(cache, &mut objects) != bulk {
                die(&format!(
                    "{}: alloc_bulk of {bulk} objects came short",
                    O::NAME
                ));
            }
            for &object in &objects {
                // SAFETY: a fresh object of 256 bytes.
                unsafe { object.write(1) };
            }
            // SAFETY: all of them were just allocated, each stands there once.
            unsafe { O::free_bulk(cache, &objects) };
        }
        total.add(clock.stop(), rounds * bulk);
    }
    outcome.objects += (passes * rounds * bulk) as u64;
    total.report(&format!("bulk/{bulk}"), outcome);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::SystemMalloc;

    #[test]
    fn every_planned_row_is_measured() {
        let args = "-s 64 -n 100 -b 4".split(' ').map(str::to_owned).collect();
        let options = Options {
            args,
            ..Options::default()
        };
        for job in SlabMicro.plan(&options).unwrap() {
            let outcome =
                <SlabMicro as CacheRun>::run::<SystemMalloc>(&job.name, &options).unwrap();
            for row in &job.rows {
                let found = outcome
                    .measurements
                    .iter()
                    .find(|m| m.row == row.row && m.metric == row.metric);
                assert!(
                    found.is_some_and(|m| m.value > 0.0),
                    "{} {}",
                    row.row,
                    row.metric
                );
            }
            assert!(outcome.objects > 0);
        }
    }
}
