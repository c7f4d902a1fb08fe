//! `bench-suite compare`: from options to a report, its tables and its files.

use crate::backend::{self, Backend};
use crate::cli::{bad_arguments, print};
use crate::compare_from;
use crate::environment::Environment;
use crate::export::{self, csv, html, json, markdown};
use crate::report::{Config, Report};
use crate::runner::{self, INTERRUPTED, Task};
use crate::stats::Delta;
use crate::table::{render_memory, tables_of};
use crate::workloads::{self, Options};
use clap::Args;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::Ordering;

/// Rounds that --quick takes at least: five against five can reach p = 0.008.
const QUICK_RUNS: usize = 5;
const DEFAULT_RUNS: usize = 10;
/// netperf's own limit on repeats for the sake of the interval.
const CONFIDENCE_MAX_RUNS: usize = 30;
/// More would make the exact test slow.
const MOST_RUNS: u16 = 100;
const DEFAULT_BACKENDS: &str = "slab,slub,unified,system";
const DEFAULT_JSON: &str = "results/latest.json";
const DEFAULT_HTML: &str = "results/latest.html";

/// The options of `compare`.
#[derive(Args, Default)]
pub struct Compare {
    /// Workloads to run [default: hackbench netperf]
    #[arg(value_name = "WORKLOAD", conflicts_with_all = ["from", "resume"])]
    workloads: Vec<String>,

    /// Backends to compare: slab, slub, unified, system, and so:PATH for any malloc [default: slab,slub,unified,system]
    #[arg(long, value_name = "LIST", conflicts_with_all = ["from", "resume"])]
    backends: Option<String>,

    /// The backend against which deltas are taken [default: the first]
    #[arg(long, value_name = "NAME", conflicts_with_all = ["from", "resume"])]
    baseline: Option<String>,

    /// Rounds of every row [default: 10, with --quick 5]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=MOST_RUNS as i64), conflicts_with_all = ["from", "resume"])]
    runs: Option<u16>,

    /// Rounds at most, while an interval is wider than asked [default: --runs; with --confidence 30]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=MOST_RUNS as i64), conflicts_with_all = ["from", "resume"])]
    max_runs: Option<u16>,

    /// Level and whole width, in per cent, asked of the confidence intervals [default: 95,5]
    #[arg(long, value_name = "LEVEL,WIDTH", conflicts_with_all = ["from", "resume"])]
    confidence: Option<String>,

    /// Pin the sending side to CPU A and the receiving side to CPU B
    #[arg(long, value_name = "A,B", conflicts_with_all = ["from", "resume"])]
    cpus: Option<String>,

    /// Seed of the order of rounds and of the bootstrap [default: from the clock]
    #[arg(long, value_name = "N", value_parser = parse_seed, conflicts_with_all = ["from", "resume"])]
    seed: Option<u64>,

    /// Short samples and fewer rows, at least 5 rounds a row
    #[arg(long, conflicts_with_all = ["from", "resume"])]
    quick: bool,

    /// Run every workload
    #[arg(long, conflicts_with_all = ["workloads", "from", "resume"])]
    all: bool,

    /// How deltas are computed: base divides by the baseline, lkml-2010 by the new value
    #[arg(long, value_name = "HOW", value_parser = ["base", "lkml-2010"], default_value = "base")]
    delta: String,

    /// Write the report as JSON [default: results/latest.json, with --resume the resumed file]
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,

    /// Write the report as one HTML file [default: results/latest.html]
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,

    /// Write the figures as CSV
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,

    /// Write the tables as Markdown
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,

    /// Continue an interrupted run: its settings hold, and its finished rows are not run again
    #[arg(long, value_name = "FILE.json", conflicts_with_all = ["from", "args"])]
    resume: Option<PathBuf>,

    /// Compare two finished runs; nothing is run, and only the files asked for are written
    #[arg(long, num_args = 2, value_names = ["OLD.json", "NEW.json"])]
    from: Option<Vec<PathBuf>>,

    /// With --from: exit with status 3 when a row became worse by more than PCT per cent
    #[arg(long, value_name = "PCT", allow_negative_numbers = true, value_parser = parse_percentage)]
    fail_above: Option<f64>,

    /// The workload's own options, as the original program has them
    #[arg(last = true, value_name = "WORKLOAD OPTIONS", conflicts_with = "from")]
    args: Vec<String>,
}

impl Compare {
    /// What `bench-suite` alone does.
    pub fn quick() -> Self {
        Self {
            quick: true,
            delta: "base".to_owned(),
            ..Self::default()
        }
    }

    fn delta(&self) -> Delta {
        if self.delta == "lkml-2010" {
            Delta::Lkml2010
        } else {
            Delta::Base
        }
    }
}

/// Runs `bench-suite compare`.
pub fn main(options: &Compare) -> ExitCode {
    match &options.from {
        Some(files) => from_files(options, &files[0], &files[1]),
        None if options.fail_above.is_some() => {
            bad_arguments("--fail-above needs --from OLD.json NEW.json")
        }
        None => match prepare(options) {
            Ok(prepared) => run(options, prepared),
            Err(message) => bad_arguments(&message),
        },
    }
}

struct Prepared {
    report: Report,
    backends: Vec<Backend>,
    tasks: Vec<Task>,
}

fn prepare(options: &Compare) -> Result<Prepared, String> {
    let previous = options.resume.as_deref().map(Report::read).transpose()?;
    let mut config = match &previous {
        Some(report) => report.config.clone(),
        None => config_of(options)?,
    };
    config.delta = options.delta();
    let backends: Vec<Backend> = config
        .backends
        .iter()
        .map(|name| Backend::parse(name))
        .collect::<Result<_, _>>()?;
    let workload_options = Options {
        quick: config.quick,
        cpus: config.cpus,
        args: config.args.clone(),
    };
    let mut tasks = Vec::new();
    for name in &config.workloads {
        for job in workloads::find(name)?.plan(&workload_options)? {
            tasks.push(Task {
                workload: name.clone(),
                job,
            });
        }
    }
    let threads = tasks.iter().map(|task| task.job.threads).max().unwrap_or(1);
    let mut environment = Environment::collect(threads, config.runs);
    let mut report = match previous {
        Some(previous) => {
            let differences = previous.environment.differences(&environment);
            environment
                .warnings
                .extend(differences.into_iter().map(|d| format!("resumed run: {d}")));
            Report {
                environment,
                config,
                interrupted: false,
                ..previous
            }
        }
        None => Report::new(environment, config),
    };
    report.compute();
    Ok(Prepared {
        report,
        backends,
        tasks,
    })
}

fn config_of(options: &Compare) -> Result<Config, String> {
    let names: Vec<String> = if options.all {
        workloads::ALL
            .iter()
            .map(|workload| workload.name().to_owned())
            .collect()
    } else if options.workloads.is_empty() {
        workloads::DEFAULT.map(str::to_owned).to_vec()
    } else {
        options.workloads.clone()
    };
    for (i, name) in names.iter().enumerate() {
        workloads::find(name)?;
        if names[..i].contains(name) {
            return Err(format!("workload '{name}' is listed twice"));
        }
    }
    if !options.args.is_empty() && names.len() != 1 {
        return Err(format!(
            "options after -- need exactly one WORKLOAD, here are {}: {}",
            names.len(),
            names.join(", ")
        ));
    }
    let backends = backend::parse_list(options.backends.as_deref().unwrap_or(DEFAULT_BACKENDS))?;
    let backend_names: Vec<String> = backends.iter().map(Backend::name).collect();
    let baseline = match &options.baseline {
        None => backend_names[0].clone(),
        Some(name) => {
            let full = Backend::parse(name)?.name();
            if !backend_names.contains(&full) {
                return Err(format!(
                    "--baseline '{name}' is not among the backends {}",
                    backend_names.join(", ")
                ));
            }
            full
        }
    };
    let runs = match options.runs.map(usize::from) {
        Some(runs) if options.quick && runs < QUICK_RUNS => {
            return Err(format!(
                "--runs {runs}: --quick takes at least {QUICK_RUNS} rounds; leave --quick out for fewer"
            ));
        }
        Some(runs) => runs,
        None if options.quick => QUICK_RUNS,
        None => DEFAULT_RUNS,
    };
    let max_runs = match options.max_runs.map(usize::from) {
        Some(max) if max < runs => {
            return Err(format!(
                "--max-runs {max} is less than the {runs} rounds of --runs"
            ));
        }
        Some(max) => max,
        None if options.confidence.is_some() => runs.max(CONFIDENCE_MAX_RUNS),
        None => runs,
    };
    let (level, width) = options
        .confidence
        .as_deref()
        .map_or(Ok((95.0, 5.0)), parse_confidence)?;
    Ok(Config {
        workloads: names,
        backends: backend_names,
        baseline,
        runs,
        max_runs,
        level,
        width,
        seed: options.seed.unwrap_or_else(clock_seed),
        quick: options.quick,
        cpus: options.cpus.as_deref().map(parse_cpus).transpose()?,
        delta: options.delta(),
        args: options.args.clone(),
    })
}

/// Few digits, so that a reader can type the seed again.
fn clock_seed() -> u64 {
    std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(1, |time| time.as_secs() % 1_000_000)
}

fn parse_seed(text: &str) -> Result<u64, String> {
    text.parse()
        .map_err(|_| format!("not a whole number from 0 to {}", u64::MAX))
}

fn parse_percentage(text: &str) -> Result<f64, String> {
    let number = text
        .parse()
        .ok()
        .filter(|number: &f64| *number >= 0.0 && number.is_finite());
    number.ok_or_else(|| "not a percentage of 0 or more".to_owned())
}

fn parse_confidence(text: &str) -> Result<(f64, f64), String> {
    let valid = || {
        format!(
            "--confidence '{text}': not LEVEL,WIDTH with a level from 50 to 99.9 and a width above 0, as in 95,5"
        )
    };
    let (level, width) = text.split_once(',').ok_or_else(valid)?;
    let level: f64 = level.trim().parse().map_err(|_| valid())?;
    let width: f64 = width.trim().parse().map_err(|_| valid())?;
    if (50.0..=99.9).contains(&level) && width > 0.0 && width.is_finite() {
        Ok((level, width))
    } else {
        Err(valid())
    }
}

fn parse_cpus(text: &str) -> Result<(usize, usize), String> {
    let invalid = || format!("--cpus '{text}': not two CPU numbers, as in 0,1");
    let (local, remote) = text.split_once(',').ok_or_else(invalid)?;
    let parse = |cpu: &str| cpu.trim().parse::<usize>().map_err(|_| invalid());
    let allowed = allowed_cpus();
    for cpu in [parse(local)?, parse(remote)?] {
        if !allowed.contains(&cpu) {
            let names: Vec<String> = allowed.iter().map(usize::to_string).collect();
            return Err(format!(
                "--cpus '{text}': no CPU {cpu}; this process may use {}",
                names.join(",")
            ));
        }
    }
    Ok((parse(local)?, parse(remote)?))
}

fn allowed_cpus() -> Vec<usize> {
    // SAFETY: an all-zero cpu_set_t is the empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: `set` is valid for its whole size; 0 is the calling thread.
    unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set) };
    // SAFETY: every CPU asked about lies inside the set.
    (0..libc::CPU_SETSIZE as usize)
        .filter(|cpu| unsafe { libc::CPU_ISSET(*cpu, &set) })
        .collect()
}

fn run(options: &Compare, prepared: Prepared) -> ExitCode {
    let Prepared {
        mut report,
        backends,
        tasks,
    } = prepared;
    if let Err(error) = ctrlc::set_handler(|| INTERRUPTED.store(true, Ordering::Relaxed)) {
        eprintln!("bench-suite: Ctrl-C will not report: {error}");
    }
    for line in report.environment.lines() {
        print(&format!("# {line}\n"));
    }
    print(&format!(
        "# seed {}, {} rounds a row, interleaved\n\n",
        report.config.seed, report.config.runs
    ));
    let json_file = options
        .json
        .clone()
        .or_else(|| options.resume.clone())
        .unwrap_or_else(|| DEFAULT_JSON.into());
    let html_file = options.html.clone().unwrap_or_else(|| DEFAULT_HTML.into());
    runner::run(&mut report, &backends, &tasks, |so_far| {
        // Devices and pipes get the final report only. An error shows again at the end.
        if !json_file.exists() || json_file.is_file() {
            let mut partial = so_far.clone();
            partial.interrupted = true;
            let _ = write_json(&partial, &json_file);
        }
    });
    show(&report);
    let mut failed = !report.failures.is_empty();
    let mut files: Vec<(&Path, Result<String, String>)> = vec![
        (&json_file, json::render(&report)),
        (&html_file, Ok(html::render(&report))),
    ];
    files.extend(extra_files(options, &report));
    failed |= !write_files(files);
    if report.interrupted {
        eprintln!(
            "bench-suite: interrupted; continue with: bench-suite compare --resume {}",
            json_file.display()
        );
        return ExitCode::from(130);
    }
    if failed {
        ExitCode::from(1)
    } else {
        ExitCode::SUCCESS
    }
}

fn write_json(report: &Report, path: &Path) -> Result<(), String> {
    export::write(path, &json::render(report)?)
}

type File<'a> = (&'a Path, Result<String, String>);

fn extra_files<'a>(options: &'a Compare, report: &Report) -> Vec<File<'a>> {
    let mut files: Vec<File<'a>> = Vec::new();
    if let Some(path) = &options.csv {
        files.push((path, Ok(csv::render(report))));
    }
    if let Some(path) = &options.markdown {
        files.push((path, Ok(markdown::render(report))));
    }
    files
}

/// Writes all files and names each one; false when any failed.
fn write_files(files: Vec<File<'_>>) -> bool {
    let mut fine = true;
    for (path, text) in files {
        match text.and_then(|text| export::write(path, &text)) {
            Ok(()) => print(&format!("wrote {}\n", path.display())),
            Err(error) => {
                eprintln!("bench-suite: {error}");
                fine = false;
            }
        }
    }
    fine
}

/// Prints the tables of a run.
fn show(report: &Report) {
    let tables = tables_of(report);
    for (i, table) in tables.iter().enumerate() {
        print(&format!("{}\n", table.render()));
        if tables
            .get(i + 1)
            .is_none_or(|next| next.workload != table.workload)
        {
            print(&format!("{}\n", render_memory(report, &table.workload)));
            let original = workloads::find(&table.workload).map(|w| w.original(report));
            if let Ok(text) = original
                && !text.is_empty()
            {
                print(&format!("{text}\n"));
            }
        }
    }
    for failure in &report.failures {
        print(&format!(
            "FAILED {} {} on {}: {}\n",
            failure.workload, failure.job, failure.backend, failure.error
        ));
    }
    if report.interrupted {
        print("INTERRUPTED: only finished rows are shown\n");
    }
}

fn from_files(options: &Compare, old: &Path, new: &Path) -> ExitCode {
    let limit = options.fail_above;
    let pair = Report::read(old)
        .and_then(|old| Report::read(new).map(|new| (old, new)))
        .and_then(|(old, new)| compare_from::pair(&old, &new, options.delta()));
    let pair = match pair {
        Ok(pair) => pair,
        Err(error) => return bad_arguments(&error),
    };
    print(&format!(
        "# OLD {}\n# NEW {}\n",
        old.display(),
        new.display()
    ));
    for note in &pair.notes {
        print(&format!("# note: {note}\n"));
    }
    print("\n");
    for table in tables_of(&pair.report) {
        print(&format!("{}\n", table.render()));
    }
    let mut files = Vec::new();
    if let Some(path) = &options.json {
        files.push((path.as_path(), json::render(&pair.report)));
    }
    if let Some(path) = &options.html {
        files.push((path.as_path(), Ok(html::render(&pair.report))));
    }
    files.extend(extra_files(options, &pair.report));
    let written = write_files(files);
    if let Some(limit) = limit {
        let regressions = compare_from::regressions(&pair.report, limit);
        for line in &regressions {
            print(&format!("{line}\n"));
        }
        if !regressions.is_empty() {
            return ExitCode::from(3);
        }
    }
    if written {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(1)
    }
}
