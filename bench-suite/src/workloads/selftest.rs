//! A workload that measures nothing: it draws its samples, so that everything behind a sample (workers, rounds, files,
//! statistics, verdicts) can be tried with differences that are known. Not listed, and no part of `--all`.
//!
//! Samples are log-normal: `100 · (1 + slow/100) · exp(noise/100 · z)` nanoseconds, z standard normal, drawn from the
//! run's seed. `-b` names the one backend that is slow; `-c` crashes it; `-d` makes a worker last some milliseconds.

use super::{Job, Measurement, Options, Outcome, RowSpec, Workload, args};
use crate::rng::Rng;
use crate::series::{Histogram, PageMap};
use crate::stats::Better;
use crate::worker;
use std::time::Duration;

/// The workload.
pub struct SelfTest;

const NAME: &str = "selftest";
const USAGE: &str = "-n ROWS -v NOISE_PCT -s SLOW_PCT -b SLOW_BACKEND -d MILLISECONDS -c (crash)";

struct Settings {
    rows: usize,
    noise: usize,
    slow: usize,
    slow_backend: Option<String>,
    delay: usize,
    crash: bool,
}

impl Settings {
    fn parse(options: &Options) -> Result<Self, String> {
        let mut settings = Self {
            rows: 8,
            noise: 2,
            slow: 0,
            slow_backend: None,
            delay: 0,
            crash: false,
        };
        for (letter, value) in args::parse(NAME, "n:v:s:b:d:c", USAGE, &options.args)? {
            let value = value.unwrap_or_default();
            match letter {
                'n' => settings.rows = args::number(NAME, 'n', &value, 1..=1000)?,
                'v' => settings.noise = args::number(NAME, 'v', &value, 0..=100)?,
                's' => settings.slow = args::number(NAME, 's', &value, 0..=1000)?,
                'b' => settings.slow_backend = Some(value),
                'd' => settings.delay = args::number(NAME, 'd', &value, 0..=60_000)?,
                _ => settings.crash = true,
            }
        }
        Ok(settings)
    }
}

/// A standard normal deviate (Box and Muller).
pub fn normal(rng: &mut Rng) -> f64 {
    let uniform = |rng: &mut Rng| ((rng.next_u64() >> 11) as f64 + 0.5) / (1u64 << 53) as f64;
    let (u, v) = (uniform(rng), uniform(rng));
    (-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos()
}

impl Workload for SelfTest {
    fn name(&self) -> &'static str {
        NAME
    }

    fn about(&self) -> &'static str {
        "draws its samples instead of measuring: known differences for the statistics"
    }

    fn usage(&self) -> &'static str {
        USAGE
    }

    fn plan(&self, options: &Options) -> Result<Vec<Job>, String> {
        let settings = Settings::parse(options)?;
        let spec = |row: usize| RowSpec {
            row: format!("row/{row}"),
            metric: "time",
            unit: "ns",
            better: Better::Lower,
        };
        // Eight rows a worker: as many samples as a test needs, in few processes.
        let rows: Vec<RowSpec> = (1..=settings.rows).map(spec).collect();
        let jobs = rows.chunks(8).map(|rows| Job {
            name: rows[0].row.clone(),
            rows: rows.to_vec(),
            time_limit: Duration::from_secs(60),
            threads: 1,
        });
        Ok(jobs.collect())
    }

    fn run(&self, backend: &str, job: &str, options: &Options) -> Result<Outcome, String> {
        let settings = Settings::parse(options)?;
        let hit = settings
            .slow_backend
            .as_deref()
            .is_none_or(|slow| slow == backend);
        if settings.crash && hit {
            std::process::abort();
        }
        std::thread::sleep(Duration::from_millis(settings.delay as u64));
        let mut rng = Rng::new(worker::seed());
        let slow = if hit {
            settings.slow as f64 / 100.0
        } else {
            0.0
        };
        let noise = settings.noise as f64 / 100.0;
        let mut outcome = Outcome::default();
        let jobs = self.plan(options)?;
        let planned = jobs.iter().find(|planned| planned.name == job);
        for spec in planned.map_or(&[][..], |planned| &planned.rows) {
            let mut draw = || 100.0 * (1.0 + slow) * (noise * normal(&mut rng)).exp();
            let mut latencies = Histogram::new();
            (0..1000).for_each(|_| latencies.record(draw() as u64));
            outcome
                .histograms
                .insert(spec.row.clone(), latencies.trimmed());
            outcome.measurements.push(Measurement {
                row: spec.row.clone(),
                metric: spec.metric.to_owned(),
                value: draw(),
            });
        }
        outcome.pagemaps.push(page_map(&mut rng));
        Ok(outcome)
    }
}

fn page_map(rng: &mut Rng) -> PageMap {
    const KINDS: [char; 6] = ['U', 'U', 'M', 'R', 'L', '.'];
    let mut map = PageMap {
        pages_per_block: 512,
        ..PageMap::default()
    };
    for _ in 0..64 {
        let kind = KINDS[rng.below(KINDS.len())];
        map.kinds.push(kind);
        map.used.push(if kind == '.' {
            0
        } else {
            1 + rng.below(512) as u32
        });
    }
    map
}
