//! highalloc: how many whole pageblocks an aged arena still gives, after Mel Gorman's stress-highalloc.
//!
//! ```text
//!   age (16 × the arena) ─ pass 1 ─ refill ─ pass 2 ─ jobs end, cache dropped ─ rest
//!                          loaded            loaded                             not loaded
//! ```
//! Each pass asks for 95 % of the blocks, 2 MiB a request, and holds what it gets until its end; in the loaded passes
//! the load has a turn before each request. See [`super::ageing`] for the load and [`super::passes`] for what is given
//! back for a request.
//!
//! A job pins 1, 3 or 10 % of the arena. It runs once for each of three fixed seeds, each in a process of its own (an
//! arena cannot be made young again), and a sample is the mean over them. With one seed (`-s 7`) it runs in the worker.
//!
//! | metric | what |
//! |---|---|
//! | `success_pct`, `success_floor_pct` | successes of the attempts: as they are, and rounded down as the original does |
//! | `ceiling_pct` | what packing every page that cannot be given back would allow, of the attempts, at most 100 |
//! | `ceiling_blocks_pct` | the same, of all blocks |
//! | `free_blocks_pct` | at rest: wholly free blocks, of those that packing would leave free |
//! | `reclaimed` | pages given back for a success (for none at all, the pages given back) |
//! | `mixing`, `steals` | pages placed among pages of another type, by the workload's own census; the allocator's steals |
//! | `p50`, `p99`, `max` | latency of the requests |

#![deny(unsafe_code)]

use super::ageing::{Load, Params, time_limit};
use super::ground::Ground;
use super::held::PageBackend;
use super::passes::{Pass, Policy, ideal_free_blocks, pass};
use super::ranges::percentile;
use super::{ARENA_MIB, PageRun, dispatch, is_page_backend};
use crate::stats::Better;
use crate::worker::{Answer, Order};
use crate::workloads::{Job, Measurement, Options, Outcome, RowSpec, Workload, args, pin};
use std::process::{Command, Stdio};

/// The workload.
pub struct HighAlloc;

const NAME: &str = "highalloc";
const USAGE: &str = "-m ARENA_MIB -p PINNED_PCT,.. -r block|lru -s SEED,..";
/// With --quick: a quarter, aged once, so that five rounds take a minute.
const QUICK_ARENA_MIB: usize = 256;
const PINNED: [usize; 3] = [1, 3, 10];
const SEEDS: [usize; 3] = [1, 2, 3];
const PASSES: [&str; 3] = ["pass1", "pass2", "rest"];

struct Settings {
    arena_mib: usize,
    pinned: Vec<usize>,
    policy: Policy,
    seeds: Vec<usize>,
}

impl Settings {
    fn parse(options: &Options) -> Result<Self, String> {
        let mut settings = Self {
            arena_mib: ARENA_MIB,
            pinned: PINNED.to_vec(),
            policy: Policy::Block,
            seeds: SEEDS.to_vec(),
        };
        if options.quick {
            settings.pinned = vec![3];
            settings.arena_mib = QUICK_ARENA_MIB;
            settings.seeds.truncate(1);
        }
        for (letter, value) in args::parse(NAME, "m:p:r:s:", USAGE, &options.args)? {
            let value = value.unwrap_or_default();
            match letter {
                'm' => settings.arena_mib = args::number(NAME, 'm', &value, 16..=65_536)?,
                'p' => settings.pinned = args::numbers(NAME, 'p', &value, 0..=50)?,
                's' => settings.seeds = args::numbers(NAME, 's', &value, 0..=usize::MAX)?,
                _ => {
                    settings.policy = match value.as_str() {
                        "block" => Policy::Block,
                        "lru" => Policy::Lru,
                        _ => return Err(format!("{NAME}: -r '{value}': not block or lru")),
                    }
                }
            }
        }
        Ok(settings)
    }
}

fn rows(job: &str) -> Vec<RowSpec> {
    let mut rows = Vec::new();
    let mut push = |row: String, metric, unit, better| {
        rows.push(RowSpec {
            row: format!("{job}/{row}"),
            metric,
            unit,
            better,
        });
    };
    for pass in PASSES {
        for metric in [
            "success_pct",
            "success_floor_pct",
            "ceiling_pct",
            "ceiling_blocks_pct",
        ] {
            push(pass.to_owned(), metric, "%", Better::Higher);
        }
        for metric in ["p50", "p99", "max"] {
            push(pass.to_owned(), metric, "ns", Better::Lower);
        }
    }
    push("rest".to_owned(), "free_blocks_pct", "%", Better::Higher);
    push(
        "reclaimed_per_success".to_owned(),
        "reclaimed",
        "pages",
        Better::Lower,
    );
    push(
        "pass2/reclaimed_per_success".to_owned(),
        "reclaimed",
        "pages",
        Better::Lower,
    );
    push("mixing".to_owned(), "mixing", "count", Better::Lower);
    push("steals".to_owned(), "steals", "count", Better::Lower);
    rows
}

impl Workload for HighAlloc {
    fn name(&self) -> &'static str {
        NAME
    }

    fn about(&self) -> &'static str {
        "order-9 requests on an aged arena with 1, 3 and 10 % pinned, while the load runs and at rest"
    }

    fn usage(&self) -> &'static str {
        USAGE
    }

    fn takes(&self, backend: &str) -> bool {
        is_page_backend(backend)
    }

    fn plan(&self, options: &Options) -> Result<Vec<Job>, String> {
        let settings = Settings::parse(options)?;
        let job = |pinned: &usize| {
            let name = format!("pinned={pinned}");
            Job {
                rows: rows(&name),
                time_limit: time_limit(settings.arena_mib) * settings.seeds.len() as u32,
                threads: 1,
                name,
            }
        };
        Ok(settings.pinned.iter().map(job).collect())
    }

    fn run(&self, backend: &str, job: &str, options: &Options) -> Result<Outcome, String> {
        let settings = Settings::parse(options)?;
        if settings.seeds.len() == 1 {
            return dispatch::<Self>(backend, job, options);
        }
        let each = settings.seeds.iter();
        let outcomes = each.map(|seed| in_process_of_its_own(backend, job, options, *seed));
        mean(outcomes.collect::<Result<_, _>>()?)
    }
}

/// Runs one seed in a worker of this worker.
fn in_process_of_its_own(
    backend: &str,
    job: &str,
    options: &Options,
    seed: usize,
) -> Result<Outcome, String> {
    let mut options = options.clone();
    // The last one counts.
    options.args.extend(["-s".to_owned(), seed.to_string()]);
    let order = Order {
        workload: NAME.to_owned(),
        job: job.to_owned(),
        backend: backend.to_owned(),
        options,
        preload: None,
        seed: seed as u64,
        rest: false,
        hold: false,
    };
    let order = serde_json::to_string(&order).map_err(|e| format!("{NAME}: {e}"))?;
    let output = Command::new("/proc/self/exe")
        .arg("worker")
        .arg(order)
        .stdin(Stdio::null())
        .output()
        .map_err(|e| format!("{NAME}: cannot start a worker for seed {seed}: {e}"))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    let answer = text(&output.stdout)
        .lines()
        .last()
        .and_then(|line| serde_json::from_str::<Answer>(line).ok());
    match answer {
        Some(answer) if output.status.success() => {
            let mut outcome = answer.outcome;
            outcome.child_peak_kib = answer.rss_peak_kib;
            Ok(outcome)
        }
        _ => Err(format!(
            "{NAME}: seed {seed}: {}: {}",
            output.status,
            text(&output.stderr)
        )),
    }
}

/// The mean of the seeds' figures; counts are summed.
fn mean(outcomes: Vec<Outcome>) -> Result<Outcome, String> {
    let count = outcomes.len() as f64;
    let mut outcomes = outcomes.into_iter();
    let mut sum = outcomes.next().ok_or("no seeds")?;
    for outcome in outcomes {
        for (total, one) in sum.measurements.iter_mut().zip(&outcome.measurements) {
            if (&total.row, &total.metric) != (&one.row, &one.metric) {
                return Err(format!("{NAME}: the seeds measured different rows"));
            }
            total.value += one.value;
        }
        sum.objects += outcome.objects;
        sum.child_peak_kib = sum.child_peak_kib.max(outcome.child_peak_kib);
        for (name, events) in outcome.counters {
            *sum.counters.entry(name).or_insert(0) += events;
        }
    }
    sum.measurements.iter_mut().for_each(|m| m.value /= count);
    Ok(sum)
}

/// Everything counted on one seed.
pub(super) struct Figures {
    pub(super) passes: [Pass; 3],
    /// Wholly free blocks at rest, before the pass.
    pub(super) free_blocks: usize,
    /// As many as packing would leave.
    pub(super) ideal_free_blocks: usize,
    pub(super) mixing_events: u64,
    pub(super) stalls: u64,
    pub(super) taken: u64,
    pub(super) moved: u64,
}

/// The protocol, once. Everything is given back in the end.
pub(super) fn protocol<B: PageBackend>(
    ground: &'static Ground<B>,
    params: Params,
    policy: Policy,
) -> Result<Figures, String> {
    let mut load = Load::new(ground, params)?;
    if policy == Policy::Lru {
        // An allocator that asks the owners itself must not get around the policy.
        load.cache.only_by_age();
    }
    load.age();
    let pass1 = pass(ground, &mut load, policy, true);
    load.refill();
    let pass2 = pass(ground, &mut load, policy, true);
    load.rest();
    let free_blocks = ground.blocks() - ground.census().blocks().count();
    let ideal = ideal_free_blocks(ground.blocks(), load.live());
    let rest = pass(ground, &mut load, policy, false);
    let figures = Figures {
        passes: [pass1, pass2, rest],
        free_blocks,
        ideal_free_blocks: ideal,
        mixing_events: ground.census().mixing_events(),
        stalls: load.stalls(),
        taken: load.taken(),
        moved: load.handles.moved(),
    };
    load.end();
    let left = ground.census().total();
    if left > 0 {
        return Err(format!("{NAME}: {left} pages were not given back"));
    }
    Ok(figures)
}

impl PageRun for HighAlloc {
    fn run<B: PageBackend>(
        backend: &'static B,
        job: &str,
        options: &Options,
    ) -> Result<Outcome, String> {
        let settings = Settings::parse(options)?;
        let pinned = job.strip_prefix("pinned=").and_then(|n| n.parse().ok());
        let params = Params {
            pinned_pct: pinned.ok_or_else(|| format!("{NAME}: no job '{job}'"))?,
            seed: settings.seeds.first().copied().unwrap_or(SEEDS[0]) as u64,
        };
        pin(options.cpus.map(|cpus| cpus.0));
        let ground = Box::leak(Box::new(Ground::new(backend, settings.arena_mib << 20)));
        let figures = protocol(ground, params, settings.policy)?;
        Ok(outcome(job, ground.blocks(), &figures, backend))
    }

    fn arena_bytes(options: &Options) -> Result<usize, String> {
        Ok(Settings::parse(options)?.arena_mib << 20)
    }
}

fn outcome<B: PageBackend>(job: &str, blocks: usize, figures: &Figures, backend: &B) -> Outcome {
    let own = backend.counters();
    let mut outcome = Outcome {
        objects: figures.taken,
        ..Outcome::default()
    };
    let mut push = |row: &str, metric: &str, value: f64| {
        outcome.measurements.push(Measurement {
            row: format!("{job}/{row}"),
            metric: metric.to_owned(),
            value,
        });
    };
    let share = |part: f64, whole: usize| 100.0 * part / whole.max(1) as f64;
    for (name, pass) in PASSES.iter().zip(&figures.passes) {
        push(name, "success_pct", pass.success_pct());
        push(name, "success_floor_pct", pass.success_floor_pct());
        push(name, "ceiling_pct", pass.ceiling_pct());
        push(
            name,
            "ceiling_blocks_pct",
            share(pass.ceiling_blocks, blocks),
        );
        for (metric, per_mille) in [("p50", 500), ("p99", 990), ("max", 1000)] {
            push(name, metric, percentile(&pass.latencies, per_mille) as f64);
        }
    }
    push(
        "rest",
        "free_blocks_pct",
        share(figures.free_blocks as f64, figures.ideal_free_blocks),
    );
    let [pass1, pass2, _] = &figures.passes;
    push(
        "reclaimed_per_success",
        "reclaimed",
        pass1.reclaimed_per_success(),
    );
    push(
        "pass2/reclaimed_per_success",
        "reclaimed",
        pass2.reclaimed_per_success(),
    );
    push("mixing", "mixing", figures.mixing_events as f64);
    push("steals", "steals", own.steals as f64);
    let counters = [
        ("allocator_mixing_events", own.mixing_events),
        ("allocator_claims", own.claims),
        ("load_stalls", figures.stalls),
        ("pages_moved", figures.moved),
        ("pass1_successes", pass1.successes as u64),
        ("pass2_successes", pass2.successes as u64),
        ("rest_free_blocks", figures.free_blocks as u64),
        ("rest_ideal_free_blocks", figures.ideal_free_blocks as u64),
    ];
    outcome.counters = counters
        .map(|(name, events)| (name.to_owned(), events))
        .into();
    outcome
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn means_over_seeds() {
        let one = |value: f64, events| Outcome {
            measurements: vec![Measurement {
                row: "r".to_owned(),
                metric: "m".to_owned(),
                value,
            }],
            objects: 10,
            counters: [("c".to_owned(), events)].into(),
            child_peak_kib: events,
            ..Outcome::default()
        };
        let sum = mean(vec![one(1.0, 5), one(3.0, 7)]).unwrap();
        assert_eq!(sum.measurements[0].value, 2.0);
        assert_eq!(
            (sum.objects, sum.counters["c"], sum.child_peak_kib),
            (20, 12, 7)
        );
        let mut other = one(1.0, 1);
        other.measurements[0].row = "x".to_owned();
        assert!(mean(vec![one(1.0, 1), other]).is_err());
    }

    #[test]
    fn wrong_options_are_named() {
        let parse = |words: &str| {
            let args = words.split(' ').map(str::to_owned).collect();
            let options = Options {
                args,
                ..Options::default()
            };
            Settings::parse(&options).err().unwrap_or_default()
        };
        assert!(parse("-r oldest").contains("-r 'oldest': not block or lru"));
        assert!(parse("-p 51").contains("-p '51'"));
        assert!(parse("-s 1,1").contains("listed twice"));
        assert_eq!(parse("-m 64 -p 3 -r lru -s 7"), "");
    }
}
