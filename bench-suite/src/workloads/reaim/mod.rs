//! reaim, AIM7's successor: users run jobs, more and more of them; jobs a minute at the best number of users.
//!
//! A user is a thread that runs its list of jobs ([`jobs`]) in a random order of its own. [`converge`] says when the
//! number of users is raised no further. A sample is the maximum of such a climb, as a mean of three.

pub mod converge;
pub mod jobs;

use super::store::taken;
use super::{Job, Measurement, Options, Outcome, RowSpec, STACK, Workload, args, crew, die, pin};
use crate::objects::{CacheRun, Objects, dispatch};
use crate::report::Report;
use crate::rng::Rng;
use crate::stats::Better;
use converge::{Rule, jobs_per_minute};
use jobs::{Entry, FILES};
use std::sync::Barrier;
use std::thread::Builder;
use std::time::{Duration, Instant};

/// The workload.
pub struct Reaim;

const USAGE: &str =
    "-f multiuser|compute,.. -r RUNS -x JOBS_A_MINUTE_AND_USER -u MAX_USERS -j JOBS_PER_USER";

/// The name of a row's metric, and of the series with the maximum of each run.
pub const METRIC: &str = "Maximum Jobs per Minute";

struct Settings {
    files: Vec<&'static str>,
    runs: usize,
    crossover: f64,
    max_users: usize,
    jobs_per_user: usize,
}

impl Settings {
    fn parse(options: &Options) -> Result<Self, String> {
        const NAME: &str = "reaim";
        let mut settings = Self {
            files: FILES.to_vec(),
            runs: 3,
            // The original's 60 were for jobs of a second on one CPU of 2005; these take a hundredth of it or less.
            crossover: 6000.0 * crew::cpus() as f64,
            max_users: if options.quick { 32 } else { 512 },
            jobs_per_user: if options.quick { 20 } else { 100 },
        };
        for (letter, value) in args::parse(NAME, "f:r:x:u:j:", USAGE, &options.args)? {
            let value = value.unwrap_or_default();
            match letter {
                'f' => settings.files = args::words(NAME, 'f', &value, &FILES)?,
                'r' => settings.runs = args::number(NAME, 'r', &value, 1..=1000)?,
                'x' => {
                    settings.crossover = args::number(NAME, 'x', &value, 1..=1_000_000_000)? as f64
                }
                'u' => settings.max_users = args::number(NAME, 'u', &value, 1..=4096)?,
                _ => settings.jobs_per_user = args::number(NAME, 'j', &value, 1..=1_000_000)?,
            }
        }
        Ok(settings)
    }
}

/// The rows of a job file, by rule.
const RULES: [(&str, Rule); 2] = [("peak", Rule::Peak), ("quick", Rule::Quick)];

impl Workload for Reaim {
    fn name(&self) -> &'static str {
        "reaim"
    }

    fn about(&self) -> &'static str {
        "AIM7 job mixes, users raised to the peak and to quick convergence, maximum jobs a minute"
    }

    fn usage(&self) -> &'static str {
        USAGE
    }

    fn plan(&self, options: &Options) -> Result<Vec<Job>, String> {
        let settings = Settings::parse(options)?;
        let mut jobs = Vec::new();
        for file in &settings.files {
            for (rule, _) in RULES {
                let name = format!("{file}/{rule}");
                jobs.push(Job {
                    rows: vec![RowSpec {
                        row: name.clone(),
                        metric: METRIC,
                        unit: "jobs/min",
                        better: Better::Higher,
                    }],
                    name,
                    time_limit: Duration::from_secs(600),
                    threads: crew::cpus(),
                });
            }
        }
        Ok(jobs)
    }

    fn run(&self, backend: &str, job: &str, options: &Options) -> Result<Outcome, String> {
        dispatch::<Self>(backend, job, options)
    }

    fn appendix(&self, report: &Report) -> Option<String> {
        Some(render(report)).filter(|text| !text.is_empty())
    }
}

impl CacheRun for Reaim {
    fn run<O: Objects>(job: &str, options: &Options) -> Result<Outcome, String> {
        let settings = Settings::parse(options)?;
        let unknown = || format!("reaim: no row '{job}'; valid: {USAGE}");
        let (file, rule) = job.split_once('/').ok_or_else(unknown)?;
        let entries = jobs::file::<O>(file).ok_or_else(unknown)?;
        let (_, rule) = RULES
            .into_iter()
            .find(|(name, _)| *name == rule)
            .ok_or_else(unknown)?;
        let mut outcome = Outcome::default();
        let (mut maxima, mut peaks) = (Vec::new(), Vec::new());
        for run in 0..settings.runs {
            let (maximum, users) = climb(&entries, rule, &settings, options, run, &mut outcome);
            maxima.push(maximum);
            peaks.push(users as f64);
        }
        outcome.measurements.push(Measurement {
            row: job.to_owned(),
            metric: METRIC.to_owned(),
            value: maxima.iter().sum::<f64>() / maxima.len() as f64,
        });
        outcome.series.insert(METRIC.to_owned(), maxima);
        outcome.series.insert("users".to_owned(), peaks);
        Ok(outcome)
    }
}

/// Raises the users until the rule is content: the highest jobs a minute, and how many users reached it.
fn climb(
    entries: &[Entry],
    rule: Rule,
    settings: &Settings,
    options: &Options,
    run: usize,
    outcome: &mut Outcome,
) -> (f64, usize) {
    let (mut rates, mut best) = (Vec::new(), (0.0, 0));
    let mut users = 1;
    loop {
        let (elapsed, objects) = step(entries, users, settings, options, run);
        outcome.objects += objects;
        let rate = jobs_per_minute(settings.jobs_per_user, users, elapsed.as_secs_f64());
        rates.push(rate);
        if rate > best.0 {
            best = (rate, users);
        }
        users = match rule.next(users) {
            next if next <= settings.max_users
                && !rule.is_done(&rates, users, settings.crossover) =>
            {
                next
            }
            _ => return best,
        };
    }
}

/// The order in which a user runs its jobs: the list of the job file over and over, shuffled.
fn order(entries: &[Entry], jobs: usize, rng: &mut Rng) -> Vec<usize> {
    let each = entries
        .iter()
        .enumerate()
        .flat_map(|(i, entry)| std::iter::repeat_n(i, entry.weight));
    let list: Vec<usize> = each.collect();
    let mut order: Vec<usize> = list.into_iter().cycle().take(jobs).collect();
    rng.shuffle(&mut order);
    order
}

/// So many users, each with its list of jobs. Returns how long they took, and the objects they took.
fn step(
    entries: &[Entry],
    users: usize,
    settings: &Settings,
    options: &Options,
    run: usize,
) -> (Duration, u64) {
    let start = Barrier::new(users);
    let mut objects = 0;
    // By the users' own clocks: on a busy machine they may be done before this thread runs again.
    let mut span: Option<(Instant, Instant)> = None;
    std::thread::scope(|scope| {
        let members: Vec<_> = (0..users)
            .map(|user| {
                let start = &start;
                let body = move || {
                    pin(crew::cpu_of(options.cpus, user));
                    // The same list for every backend.
                    let mut rng = Rng::new((run * 10_000 + user) as u64);
                    let order = order(entries, settings.jobs_per_user, &mut rng);
                    start.wait();
                    let began = Instant::now();
                    for job in order {
                        std::hint::black_box((entries[job].test)(&mut rng));
                    }
                    (began, Instant::now(), taken())
                };
                let member = Builder::new().stack_size(STACK).spawn_scoped(scope, body);
                // The others wait for it.
                member.unwrap_or_else(|e| die(&format!("reaim: cannot start user {user}: {e}")))
            })
            .collect();
        for member in members {
            let (began, ended, taken) = member
                .join()
                .unwrap_or_else(|_| die("reaim: a user panicked"));
            objects += taken;
            let (first, last) = span.unwrap_or((began, ended));
            span = Some((first.min(began), last.max(ended)));
        }
    });
    let elapsed = span.map_or(Duration::ZERO, |(first, last)| last - first);
    (elapsed, objects)
}

/// A line as reaim's reports have it.
pub fn line(test: &str, maximum: f64, runs: usize) -> String {
    format!("{test} Test: Maximum Jobs per Minute {maximum:.2} (average of {runs} runs)\n")
}

/// All that reaim prints of a report.
fn render(report: &Report) -> String {
    let mut text = String::new();
    for (file, load) in [("multiuser", "NORMAL LOAD"), ("compute", "COMPUTE LOAD")] {
        for backend in crate::table::column_backends(&report.config) {
            let mut lines = String::new();
            for (rule, test) in [("peak", "Peak load"), ("quick", "Quick Convergence")] {
                let row = report.rows.iter().find(|row| {
                    row.workload == "reaim"
                        && row.backend == backend
                        && row.row == format!("{file}/{rule}")
                });
                if let Some(row) = row {
                    let runs = row
                        .series
                        .get(METRIC)
                        .map_or(row.samples.len(), |all| all.iter().map(Vec::len).sum());
                    lines.push_str(&line(test, row.mean, runs));
                }
            }
            if !lines.is_empty() {
                let name = crate::table::column_head(backend);
                text.push_str(&format!("{load}\nkernel: {name}\n{lines}\n"));
            }
        }
    }
    text
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
    fn every_row_is_the_mean_of_its_runs() {
        let options = options("-j 3 -u 4 -r 3");
        for job in Reaim.plan(&options).unwrap() {
            let outcome = <Reaim as CacheRun>::run::<SystemMalloc>(&job.name, &options).unwrap();
            let maxima = &outcome.series[METRIC];
            assert_eq!(maxima.len(), 3);
            let mean = maxima.iter().sum::<f64>() / 3.0;
            assert_eq!(outcome.measurements[0].value, mean);
            assert!(outcome.objects > 0);
        }
    }

    #[test]
    fn lists_keep_the_weights_of_the_file() {
        let entries = jobs::file::<SystemMalloc>("compute").unwrap();
        let total: usize = entries.iter().map(|entry| entry.weight).sum();
        let order = order(&entries, total * 3, &mut Rng::new(1));
        for (i, entry) in entries.iter().enumerate() {
            let count = order.iter().filter(|job| **job == i).count();
            assert_eq!(count, 3 * entry.weight, "{}", entry.name);
        }
    }

    #[test]
    fn wrong_options_are_named() {
        let error = |text| Settings::parse(&options(text)).map(|_| ()).unwrap_err();
        assert!(error("-f disk").contains("'disk'; valid: multiuser, compute"));
        assert!(error("-u 0").contains("-u '0'"));
    }
}
