//! order5: the micro-benchmark of seed 003, 1,500 allocations of order 5, on an arena that has aged.
//!
//! The arena ages as in highalloc and comes to rest: what is pinned stays where the load put it, 3 % of the arena unless
//! `-p` says otherwise. Then 1,500 chunks of 32 pages are taken, one after the other, and the time stamp counter is
//! read around each request. Nothing is given back meanwhile and nobody reclaims for the allocator, so a request that
//! cannot be served fails; failures are no part of the figures and have a table of their own.
//!
//! The rows are in cycles. Under them stands the table as the mail printed it, "Standard" (placement off) over
//! "Modified" (placement on), from the round whose average is the median one.

#![deny(unsafe_code)]

use super::ageing::{Load, Params};
use super::ground::Ground;
use super::held::PageBackend;
use super::ranges::{percentile, render};
use super::ticks::ticks;
use super::{ARENA_MIB, Held, Migratetype, Order, PageRun, dispatch, is_page_backend};
use crate::report::{Latencies, Report};
use crate::series::Histogram;
use crate::stats::{self, Better};
use crate::workloads::{Job, Measurement, Options, Outcome, RowSpec, Workload, args, pin};

/// The workload.
pub struct Order5;

const NAME: &str = "order5";
const USAGE: &str = "-m ARENA_MIB -n ALLOCATIONS -p PINNED_PCT -s SEED";
const JOB: &str = "order5";
const ORDER: u8 = 5;

struct Settings {
    arena_mib: usize,
    allocations: usize,
    params: Params,
}

impl Settings {
    fn parse(options: &Options) -> Result<Self, String> {
        let mut settings = Self {
            arena_mib: ARENA_MIB,
            allocations: 1500,
            params: Params {
                pinned_pct: 3,
                seed: 1,
            },
        };
        for (letter, value) in args::parse(NAME, "m:n:p:s:", USAGE, &options.args)? {
            let value = value.unwrap_or_default();
            match letter {
                'm' => settings.arena_mib = args::number(NAME, 'm', &value, 16..=65_536)?,
                'n' => settings.allocations = args::number(NAME, 'n', &value, 1..=1_000_000)?,
                'p' => settings.params.pinned_pct = args::number(NAME, 'p', &value, 0..=50)?,
                _ => {
                    settings.params.seed = args::number(NAME, 's', &value, 0..=usize::MAX)? as u64;
                }
            }
        }
        Ok(settings)
    }
}

/// Row, thousandths; the average and the largest are computed apart.
const PERCENTILES: [(&str, usize); 3] = [("p50", 500), ("p99", 990), ("p999", 999)];

impl Workload for Order5 {
    fn name(&self) -> &'static str {
        NAME
    }

    fn about(&self) -> &'static str {
        "the latency of 1,500 allocations of order 5 on an aged arena, Standard against Modified"
    }

    fn usage(&self) -> &'static str {
        USAGE
    }

    fn takes(&self, backend: &str) -> bool {
        is_page_backend(backend)
    }

    fn plan(&self, options: &Options) -> Result<Vec<Job>, String> {
        let settings = Settings::parse(options)?;
        let row = |row: &str, metric, unit| RowSpec {
            row: row.to_owned(),
            metric,
            unit,
            better: Better::Lower,
        };
        let mut rows: Vec<RowSpec> = ["avg", "p50", "p99", "p999", "max"]
            .iter()
            .map(|name| row(name, "cycles", "cycles"))
            .collect();
        rows.push(row("failures", "failures", "count"));
        Ok(vec![Job {
            name: JOB.to_owned(),
            rows,
            time_limit: super::ageing::time_limit(settings.arena_mib),
            threads: 1,
        }])
    }

    fn run(&self, backend: &str, job: &str, options: &Options) -> Result<Outcome, String> {
        dispatch::<Self>(backend, job, options)
    }

    fn appendix(&self, report: &Report) -> Option<String> {
        appendix(report)
    }
}

impl PageRun for Order5 {
    fn run<B: PageBackend>(
        backend: &'static B,
        job: &str,
        options: &Options,
    ) -> Result<Outcome, String> {
        if job != JOB {
            return Err(format!("{NAME}: no job '{job}'"));
        }
        let settings = Settings::parse(options)?;
        pin(options.cpus.map(|cpus| cpus.0));
        let order = Order::new(ORDER).ok_or("no order 5")?;
        let ground = Box::leak(Box::new(Ground::new(backend, settings.arena_mib << 20)));
        let mut load = Load::new(ground, settings.params)?;
        let (start, first) = (std::time::Instant::now(), ticks());
        load.age();
        load.rest();
        let passed = ticks().wrapping_sub(first).max(1) as f64;
        let ns_per_tick = start.elapsed().as_nanos() as f64 / passed;
        // Aged and at rest; nothing for allocators other than page-alloc.
        let map = crate::pagemap::Map::take(JOB.to_owned()).for_report();
        let mut hand: Vec<Held<B>> = Vec::with_capacity(settings.allocations);
        let (mut served, mut failed) = (Vec::with_capacity(settings.allocations), Vec::new());
        for _ in 0..settings.allocations {
            let began = ticks();
            let held = Held::take(backend, order, Migratetype::Movable);
            let took = ticks().wrapping_sub(began);
            match held {
                Some(held) => {
                    hand.push(held);
                    served.push(took);
                }
                None => failed.push(took),
            }
        }
        let objects = load.taken() + hand.len() as u64;
        hand.drain(..).for_each(|held| held.give_back(backend));
        load.end();
        if served.is_empty() {
            return Err(format!(
                "{NAME}: {} served none of {} requests of order {ORDER}; pin less than {} % (-p)",
                B::NAME,
                settings.allocations,
                settings.params.pinned_pct
            ));
        }
        let mut sorted = served.clone();
        sorted.sort_unstable();
        let mut outcome = Outcome {
            objects,
            ..Outcome::default()
        };
        let mut push = |row: &str, metric: &str, value: f64| {
            outcome.measurements.push(Measurement {
                row: row.to_owned(),
                metric: metric.to_owned(),
                value,
            });
        };
        push("avg", "cycles", average(&served));
        for (row, per_mille) in PERCENTILES {
            push(row, "cycles", percentile(&sorted, per_mille) as f64);
        }
        push("max", "cycles", percentile(&sorted, 1000) as f64);
        push("failures", "failures", failed.len() as f64);
        let mut histogram = Histogram::new();
        let ns = |took: &u64| (*took as f64 * ns_per_tick) as u64;
        served.iter().map(ns).for_each(|ns| histogram.record(ns));
        outcome
            .histograms
            .insert("avg".to_owned(), histogram.trimmed());
        outcome.pagemaps.extend(map);
        outcome.latencies = served;
        outcome.failed_latencies = failed;
        Ok(outcome)
    }

    fn arena_bytes(options: &Options) -> Result<usize, String> {
        Ok(Settings::parse(options)?.arena_mib << 20)
    }
}

fn average(values: &[u64]) -> f64 {
    values.iter().sum::<u64>() as f64 / values.len().max(1) as f64
}

/// What the mail called the backend.
fn title(backend: &str) -> &str {
    match backend {
        "plain" => "Standard",
        "placement" => "Modified",
        other => other,
    }
}

/// The round whose average is the median one (the lower of the two middle ones).
fn median_round(latencies: &Latencies) -> usize {
    let averages: Vec<f64> = latencies
        .served
        .iter()
        .map(|round| average(round))
        .collect();
    let mut order: Vec<usize> = (0..averages.len()).collect();
    order.sort_by(|a, b| averages[*a].total_cmp(&averages[*b]));
    order
        .get((order.len().max(1) - 1) / 2)
        .copied()
        .unwrap_or(0)
}

fn appendix(report: &Report) -> Option<String> {
    let all: Vec<&Latencies> = report
        .config
        .backends
        .iter()
        .filter_map(|name| {
            let mut all = report.latencies.iter();
            all.find(|l| l.workload == NAME && l.backend == *name && !l.served.is_empty())
        })
        .collect();
    if all.is_empty() {
        return None;
    }
    let mut text = String::new();
    for latencies in &all {
        let round = median_round(latencies);
        text.push_str(&render(title(&latencies.backend), &latencies.served[round]));
        text.push('\n');
    }
    text.push_str("Failures\n");
    for latencies in &all {
        let failed = latencies.failed.get(median_round(latencies));
        let failed = failed.map_or(&[][..], Vec::as_slice);
        text.push_str(&render(title(&latencies.backend), failed));
        text.push('\n');
    }
    text.push_str(
        "The average, max and min are in 1000's of clock cycles for an allocation; the round whose average is the \
         median.\n",
    );
    let averages = |name: &str| -> Option<Vec<f64>> {
        let found = all.iter().find(|latencies| latencies.backend == name)?;
        Some(found.served.iter().map(|round| average(round)).collect())
    };
    if let (Some(standard), Some(modified)) = (averages("plain"), averages("placement")) {
        text.push_str(&format!(
            "Modified / Standard: {:.3} (medians of the rounds' averages; 0.82 / 0.73 = 1.12 in 2005)\n",
            stats::median(&modified) / stats::median(&standard)
        ));
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn latencies(backend: &str, served: &[&[u64]], failed: &[&[u64]]) -> Latencies {
        let rounds = |all: &[&[u64]]| all.iter().map(|round| round.to_vec()).collect();
        Latencies {
            workload: NAME.to_owned(),
            job: JOB.to_owned(),
            backend: backend.to_owned(),
            served: rounds(served),
            failed: rounds(failed),
        }
    }

    #[test]
    fn the_median_round_is_printed_standard_over_modified() {
        let mut report = Report::new(Default::default(), Default::default());
        assert_eq!(appendix(&report), None);
        report.config.backends = ["plain", "placement"].map(str::to_owned).to_vec();
        report.latencies = vec![
            latencies(
                "placement",
                &[&[3000], &[1000, 1020], &[500]],
                &[&[], &[7000], &[]],
            ),
            latencies("plain", &[&[900], &[1000], &[5000]], &[&[], &[], &[]]),
        ];
        let text = appendix(&report).unwrap();
        let head = "     Average          Max          Min       Allocs\n     -------          ---          ---       ------\n";
        let want = format!(
            "Standard\n{head}        1.00         1.00         1.00            1\n\n\
             Modified\n{head}        1.01         1.02         1.00            2\n\n\
             Failures\nStandard\n{head}\nModified\n{head}        7.00         7.00         7.00            1\n\n"
        );
        assert!(text.starts_with(&want), "{text}");
        assert!(text.contains("Modified / Standard: 1.010 "), "{text}");
    }
}
