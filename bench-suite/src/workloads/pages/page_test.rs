//! page_test: what a page costs, after AIM9's test of that name, at orders 0, 5 and 9.
//!
//! | row | what is timed, for each operation |
//! |---|---|
//! | `pair` | one get and its put at once, over and over: a get and a put together |
//! | `alone` | with two threads: the same pairs while the other thread waits, first one, then the other |
//! | `bulk_get`, `bulk_put` | gets until the thread holds its share of half the arena; then their puts, in that order |
//! | `random_put` | puts in random order: on one thread of its own chunks, on two of those that the other one took |
//!
//! Nothing is written to the pages: the allocator is measured, not the kernel's page faults. A sample is the mean of
//! several passes after one that is not counted. With two threads each times its own operations; the row is the mean
//! over both, so a perfect allocator shows the same figure as with one. `pair` against `alone` says what the second thread
//! costs: they alternate in one process, so that neither where its memory lies nor what the machine does meanwhile is
//! between them.

#![deny(unsafe_code)]

use super::held::{Held, PageBackend};
use super::{ARENA_MIB, Migratetype, Order, PageRun, dispatch, is_page_backend};
use crate::rng::Rng;
use crate::stats::Better;
use crate::workloads::{Job, Measurement, Options, Outcome, RowSpec, STACK, Workload, args, die};
use std::sync::{Barrier, Mutex, PoisonError};
use std::thread::Builder;
use std::time::{Duration, Instant};

/// The workload.
pub struct PageTest;

const NAME: &str = "page_test";
const USAGE: &str = "-m ARENA_MIB -o ORDERS,.. -n PASSES";
const ORDERS: [usize; 3] = [0, 5, 9];
const THREADS: [usize; 2] = [1, 2];
const PATTERNS: [&str; 5] = ["pair", "bulk_get", "bulk_put", "random_put", "alone"];

/// Those that a job with so many threads measures.
fn patterns(threads: usize) -> &'static [&'static str] {
    &PATTERNS[..if threads > 1 { 5 } else { 4 }]
}

/// Chunks that a pass moves at most: enough to leave the allocator's per-CPU lists behind, few enough for
/// `buddy-heap`, whose put searches its list of free chunks.
const MOST_CHUNKS: usize = 16_384;
/// Pairs in a pass.
const PAIRS: usize = 100_000;
/// Shuffles are the same for every backend and round.
const SEED: u64 = 0x70_61_67_65;

struct Settings {
    arena_mib: usize,
    orders: Vec<usize>,
    passes: usize,
}

impl Settings {
    fn parse(options: &Options) -> Result<Self, String> {
        let mut settings = Self {
            arena_mib: ARENA_MIB,
            orders: ORDERS.to_vec(),
            passes: if options.quick { 3 } else { 10 },
        };
        for (letter, value) in args::parse(NAME, "m:o:n:", USAGE, &options.args)? {
            let value = value.unwrap_or_default();
            match letter {
                // Four chunks of the largest order of the workload for each thread.
                'm' => settings.arena_mib = args::number(NAME, 'm', &value, 32..=65_536)?,
                'o' => settings.orders = args::numbers(NAME, 'o', &value, 0..=9)?,
                _ => settings.passes = args::number(NAME, 'n', &value, 1..=10_000)?,
            }
        }
        Ok(settings)
    }

    /// Chunks that each of `threads` threads takes in bulk: together half the arena at most.
    fn chunks(&self, order: Order, threads: usize) -> usize {
        let half = (self.arena_mib << 20) / 2 / order.bytes();
        (half / threads).clamp(1, MOST_CHUNKS / threads)
    }
}

impl Workload for PageTest {
    fn name(&self) -> &'static str {
        NAME
    }

    fn about(&self) -> &'static str {
        "get and put pages of orders 0, 5 and 9: in pairs, in bulk, in random order, on one thread and two"
    }

    fn usage(&self) -> &'static str {
        USAGE
    }

    fn takes(&self, backend: &str) -> bool {
        is_page_backend(backend)
    }

    fn plan(&self, options: &Options) -> Result<Vec<Job>, String> {
        let settings = Settings::parse(options)?;
        let mut jobs = Vec::new();
        for order in &settings.orders {
            for threads in THREADS {
                let name = format!("order{order}/{threads}t");
                let row = |pattern: &&str| RowSpec {
                    row: format!("{name}/{pattern}"),
                    metric: "time",
                    unit: "ns",
                    better: Better::Lower,
                };
                jobs.push(Job {
                    rows: patterns(threads).iter().map(row).collect(),
                    // A heap whose free takes time in proportion to what is free needs seconds for a random pass.
                    time_limit: Duration::from_secs(60 + 20 * settings.passes as u64),
                    threads,
                    name,
                });
            }
        }
        Ok(jobs)
    }

    fn run(&self, backend: &str, job: &str, options: &Options) -> Result<Outcome, String> {
        dispatch::<Self>(backend, job, options)
    }
}

fn parse_job(job: &str) -> Option<(Order, usize)> {
    let (order, threads) = job.strip_prefix("order")?.split_once('/')?;
    let order = Order::new(order.parse().ok()?)?;
    Some((order, threads.strip_suffix('t')?.parse().ok()?))
}

impl PageRun for PageTest {
    fn run<B: PageBackend>(
        backend: &'static B,
        job: &str,
        options: &Options,
    ) -> Result<Outcome, String> {
        let settings = Settings::parse(options)?;
        let (order, threads) = parse_job(job).ok_or_else(|| format!("{NAME}: no job '{job}'"))?;
        let bench = Bench {
            backend,
            order,
            chunks: settings.chunks(order, threads),
            pairs: PAIRS,
            passes: settings.passes + 1,
            barrier: Barrier::new(threads),
            tables: (0..threads).map(|_| Mutex::new(Vec::new())).collect(),
        };
        let totals = bench.run(options)?;
        let mut outcome = Outcome {
            objects: (threads * bench.passes * (threads * bench.pairs + 2 * bench.chunks)) as u64,
            ..Outcome::default()
        };
        for (pattern, at) in patterns(threads).iter().zip(0..) {
            let of = |total: &Totals| total.0[at];
            let ns: f64 = totals.iter().map(|total| of(total).ns).sum();
            let operations: usize = totals.iter().map(|total| of(total).operations).sum();
            outcome.measurements.push(Measurement {
                row: format!("{job}/{pattern}"),
                metric: "time".to_owned(),
                value: ns / operations.max(1) as f64,
            });
        }
        Ok(outcome)
    }

    fn arena_bytes(options: &Options) -> Result<usize, String> {
        Ok(Settings::parse(options)?.arena_mib << 20)
    }
}

#[derive(Clone, Copy, Default)]
struct Sum {
    ns: f64,
    operations: usize,
}

/// One thread's sums, in the order of [`PATTERNS`].
#[derive(Clone, Copy, Default)]
struct Totals([Sum; PATTERNS.len()]);

struct Bench<B: PageBackend> {
    backend: &'static B,
    order: Order,
    chunks: usize,
    pairs: usize,
    passes: usize,
    barrier: Barrier,
    /// Where a thread leaves its chunks for the next one.
    tables: Vec<Mutex<Vec<Held<B>>>>,
}

impl<B: PageBackend> Bench<B> {
    fn run(&self, options: &Options) -> Result<Vec<Totals>, String> {
        std::thread::scope(|scope| {
            let spawn = |me| {
                let cpu = options.cpus.map(|(a, b)| if me == 0 { a } else { b });
                Builder::new()
                    .stack_size(STACK)
                    .spawn_scoped(scope, move || {
                        crate::workloads::pin(cpu);
                        self.thread(me)
                    })
            };
            let threads: Vec<_> = (0..self.tables.len()).map(spawn).collect();
            threads
                .into_iter()
                .map(|thread| {
                    let thread = thread.map_err(|e| format!("{NAME}: cannot start a thread: {e}"));
                    // The others would wait for one that is missing.
                    let thread = thread.unwrap_or_else(|e| die(&e));
                    thread
                        .join()
                        .map_err(|_| format!("{NAME}: a thread panicked"))
                })
                .collect()
        })
    }

    fn take(&self) -> Held<B> {
        Held::take(self.backend, self.order, Migratetype::Movable).unwrap_or_else(|| {
            die(&format!(
                "{NAME}: {} is out of pages of order {}",
                B::NAME,
                self.order.get()
            ))
        })
    }

    // Not inlined: alone and beside another thread the loop is the same code.
    #[inline(never)]
    fn pairs(&self) {
        for _ in 0..self.pairs {
            // Opaque, or a backend that is inlined could drop the pair.
            std::hint::black_box(self.take()).give_back(self.backend);
        }
    }

    fn thread(&self, me: usize) -> Totals {
        let mut totals = Totals::default();
        let mut rng = Rng::new(SEED + me as u64);
        let mut hand: Vec<Held<B>> = Vec::with_capacity(self.chunks);
        let next = (me + 1) % self.tables.len();
        for pass in 0..self.passes {
            let mut add = |at: usize, began: Instant, operations: usize| {
                // The first pass is warm-up.
                if pass > 0 {
                    totals.0[at].ns += began.elapsed().as_nanos() as f64;
                    totals.0[at].operations += operations;
                }
            };
            for turn in 0..self.tables.len() {
                self.barrier.wait();
                if turn == me && self.tables.len() > 1 {
                    let began = Instant::now();
                    self.pairs();
                    add(4, began, self.pairs);
                }
            }

            self.barrier.wait();
            let began = Instant::now();
            self.pairs();
            add(0, began, self.pairs);

            self.barrier.wait();
            let began = Instant::now();
            hand.extend((0..self.chunks).map(|_| self.take()));
            add(1, began, self.chunks);

            self.barrier.wait();
            let began = Instant::now();
            hand.drain(..)
                .for_each(|chunk| chunk.give_back(self.backend));
            add(2, began, self.chunks);

            hand.extend((0..self.chunks).map(|_| self.take()));
            rng.shuffle(&mut hand);
            let table = |at: usize| {
                self.tables[at]
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
            };
            std::mem::swap(&mut *table(me), &mut hand);
            self.barrier.wait();
            std::mem::swap(&mut *table(next), &mut hand);
            self.barrier.wait();
            let began = Instant::now();
            hand.drain(..)
                .for_each(|chunk| chunk.give_back(self.backend));
            add(3, began, self.chunks);
        }
        totals
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workloads::pages::own::Placement;

    #[test]
    fn the_share_of_a_thread_fits_the_arena() {
        let settings = Settings::parse(&Options::default()).unwrap();
        for order in ORDERS {
            for threads in THREADS {
                let order = Order::new(order as u8).unwrap();
                let bytes = settings.chunks(order, threads) * threads * order.bytes();
                assert!(bytes <= 512 << 20, "order {order:?}, {threads} threads");
                assert!(bytes >= 64 << 20, "order {order:?}, {threads} threads");
            }
        }
    }

    #[test]
    fn every_planned_row_is_measured_and_every_page_comes_back() {
        let options = Options {
            args: ["-m", "64", "-n", "2"].map(str::to_owned).to_vec(),
            ..Options::default()
        };
        let backend = Box::leak(Box::new(Placement::create(64 << 20).unwrap()));
        let in_use = || -> usize {
            page_alloc::pcp::drain_current();
            let stats = page_alloc::stats::zone_stats(0).unwrap();
            stats.managed_pages - stats.free_pages
        };
        let before = in_use();
        for job in PageTest.plan(&options).unwrap() {
            let outcome = <PageTest as PageRun>::run(&*backend, &job.name, &options).unwrap();
            for row in &job.rows {
                let found = outcome.measurements.iter().find(|m| m.row == row.row);
                assert!(found.is_some_and(|m| m.value > 0.0), "{}", row.row);
            }
        }
        assert_eq!(in_use(), before);
    }
}
