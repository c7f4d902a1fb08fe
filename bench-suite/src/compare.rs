//! `bench-suite compare`: from options to a report, its tables and its files.

pub mod settings;

use crate::backend::Backend;
use crate::cli::{bad_arguments, print};
use crate::compare_from;
use crate::environment::Environment;
use crate::export::{self, csv, html, json, markdown};
use crate::preload::{self, Route};
use crate::report::{Report, outlier_notes};
use crate::rivals;
use crate::runner::{self, INTERRUPTED, Task};
use crate::stats::Delta;
use crate::summary;
use crate::table::{render_memory, shares_of, tables_of};
use crate::workloads::{self, Options};
use clap::Args;
use settings::{MOST_RUNS, config_of, parse_percentage, parse_seed};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::Ordering;

const DEFAULT_JSON: &str = "results/latest.json";
const DEFAULT_HTML: &str = "results/latest.html";

/// The options of `compare`.
#[derive(Args, Default)]
pub struct Compare {
    /// Workloads to run [default: hackbench netperf]
    #[arg(value_name = "WORKLOAD", conflicts_with_all = ["from", "resume"])]
    workloads: Vec<String>,

    /// Backends to compare: slab, slub, unified, system, and so:PATH for any malloc; for page workloads plain, placement [default: all but so:PATH]
    #[arg(long, value_name = "LIST", conflicts_with_all = ["from", "resume"])]
    backends: Option<String>,

    /// More backends, by what is installed (debian) or built by `bench-suite rivals` (rivals)
    #[arg(long, value_name = "debian,rivals", conflicts_with_all = ["from", "resume"])]
    against: Option<String>,

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

    /// Leave out the floor, and with it the allocator's share of each row
    #[arg(long, conflicts_with_all = ["from", "resume"])]
    no_floor: bool,

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

    /// What `bench-suite aa` does in one pass: `backend` against itself, without the floor.
    pub fn twice(
        workloads: &[String],
        backend: &str,
        runs: u16,
        seed: Option<u64>,
        args: &[String],
    ) -> Self {
        Self {
            workloads: workloads.to_vec(),
            backends: Some(format!("{backend},{backend}#2")),
            runs: Some(runs),
            quick: runs >= settings::QUICK_RUNS as u16,
            no_floor: true,
            seed,
            args: args.to_vec(),
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
    for name in &config.workloads {
        let route = workloads::find(name)?.route();
        for backend in &backends {
            // Before the first sample: what cannot be had should not cost minutes.
            preload::setting(backend, route)?;
        }
    }
    let threads = tasks.iter().map(|task| task.job.threads).max().unwrap_or(1);
    let mut environment = Environment::collect(threads, config.runs);
    if let Some(list) = &options.against {
        environment.warnings.extend(rivals::missing(list));
    }
    for name in &config.workloads {
        environment
            .warnings
            .extend(workloads::find(name)?.missing());
    }
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

/// Runs what `options` say and returns the report; nothing is printed or written.
pub fn measure(options: &Compare) -> Result<Report, String> {
    let Prepared {
        mut report,
        backends,
        tasks,
    } = prepare(options)?;
    catch_ctrl_c();
    runner::run(&mut report, &backends, &tasks, |_| {});
    Ok(report)
}

fn catch_ctrl_c() {
    static SET: std::sync::Once = std::sync::Once::new();
    SET.call_once(|| {
        if let Err(error) = ctrlc::set_handler(|| INTERRUPTED.store(true, Ordering::Relaxed)) {
            eprintln!("bench-suite: Ctrl-C will not report: {error}");
        }
    });
}

fn run(options: &Compare, prepared: Prepared) -> ExitCode {
    let Prepared {
        mut report,
        backends,
        tasks,
    } = prepared;
    catch_ctrl_c();
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
        print(&format!(
            "{}\n",
            table.render_with(&shares_of(report, table))
        ));
        if tables
            .get(i + 1)
            .is_none_or(|next| next.workload != table.workload)
        {
            print(&format!("{}\n", render_memory(report, &table.workload)));
            // Nothing is known of a workload that an old file names.
            let workload = workloads::find(&table.workload).ok();
            if let Some(text) = workload.and_then(|workload| workload.appendix(report)) {
                print(&format!("{text}\n"));
            }
            if workload.is_some_and(|workload| workload.route() != Route::Caches) {
                print(&format!("{}\n", summary::render(report, &table.workload)));
            }
        }
    }
    for failure in &report.failures {
        print(&format!(
            "FAILED {} {} on {}: {}\n",
            failure.workload, failure.job, failure.backend, failure.error
        ));
    }
    for note in report.notes.iter().chain(&outlier_notes(report)) {
        print(&format!("note: {note}\n"));
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
        for line in regressions.rows.iter().chain(&regressions.notes) {
            print(&format!("{line}\n"));
        }
        if !regressions.rows.is_empty() {
            return ExitCode::from(3);
        }
    }
    if written {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(1)
    }
}
