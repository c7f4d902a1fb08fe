//! The command line. Every bad argument ends in one line on standard error and exit status 2.
//!
//! | status | meaning |
//! |---|---|
//! | 0 | done |
//! | 1 | a workload failed (the others are still reported), or a result could not be written |
//! | 2 | bad arguments |
//! | 3 | `--fail-above` found a regression, `verdict` a row that fails, `aa` more differences than chance explains |
//! | 130 | stopped by Ctrl-C; what was finished is reported |

use crate::aa::{self, Aa};
use crate::compare::{self, Compare};
use crate::figures::{self, Figures};
use crate::pagemap::{self, PageMap};
use crate::verdict::{self, Verdict};
use crate::{fastpath, footprint, rivals, worker, workloads};
use clap::error::ErrorKind;
use clap::{CommandFactory, Parser, Subcommand};
use std::io::Write;
use std::process::ExitCode;

/// hackbench, netperf and the other tables of the kernel lists, for user-space allocators.
///
/// Without a command: compare --quick, that is hackbench and netperf on all backends, in a minute or two.
#[derive(Parser)]
#[command(name = "bench-suite", version, disable_help_subcommand = true)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand)]
enum Command {
    /// List the workloads: their rows, units, directions and options.
    List,
    /// Compare backends, or (--from) two finished runs.
    Compare(Box<Compare>),
    /// Judge one backend against the better of its rivals, row by row, from finished runs.
    Verdict(Verdict),
    /// Write the figures of a finished run into documents, between markers.
    Figures(Figures),
    /// Compare a backend with itself: are the suite's differences real?
    Aa(Aa),
    /// Count the instructions of a malloc and free pair, for every allocator here.
    #[command(disable_help_flag = true)]
    Fastpath {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// Draw the arena's pageblocks by type and fill, as text and SVG.
    Pagemap(Box<PageMap>),
    /// Measure what an idle thread and a small program keep in memory, for every allocator here.
    #[command(disable_help_flag = true)]
    Footprint {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// Build the other mallocs in the directory rivals, as far as this machine can.
    Rivals,
    #[command(hide = true)]
    Worker { order: String },
}

/// The whole program.
pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error)
            if matches!(
                error.kind(),
                ErrorKind::DisplayHelp | ErrorKind::DisplayVersion
            ) =>
        {
            print(&error.to_string());
            return ExitCode::SUCCESS;
        }
        Err(error) => return bad_arguments(&one_line(&error)),
    };
    match cli.command {
        None => compare::main(&Compare::quick()),
        Some(Command::Compare(options)) => compare::main(&options),
        Some(Command::Verdict(options)) => verdict::main(&options),
        Some(Command::Figures(options)) => figures::main(&options),
        Some(Command::Aa(options)) => aa::main(&options),
        Some(Command::List) => {
            print(&list());
            ExitCode::SUCCESS
        }
        Some(Command::Fastpath { args }) => fastpath::run(&args),
        Some(Command::Pagemap(options)) => pagemap::main(&options),
        Some(Command::Footprint { args }) => footprint::run(&args),
        Some(Command::Rivals) => rivals::main(),
        Some(Command::Worker { order }) => match worker::main(&order) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => workloads::die(&error),
        },
    }
}

/// Reports what is wrong with the arguments.
pub fn bad_arguments(message: &str) -> ExitCode {
    eprintln!("bench-suite: {message}");
    ExitCode::from(2)
}

/// Prints to standard output; a reader that has seen enough (`| head`) is no error.
pub fn print(text: &str) {
    if let Err(error) = std::io::stdout().write_all(text.as_bytes())
        && error.kind() != std::io::ErrorKind::BrokenPipe
    {
        eprintln!("bench-suite: standard output: {error}");
    }
}

/// clap's error in one line: what is wrong, and what is valid.
fn one_line(error: &clap::Error) -> String {
    let rendered = error.render().to_string();
    let lines = rendered
        .lines()
        .map(str::trim)
        .take_while(|line| !line.starts_with("Usage:"));
    let parts: Vec<&str> = lines
        .filter(|line| {
            !line.is_empty() && !line.starts_with("For more") && !line.starts_with("tip: to pass")
        })
        .collect();
    let mut text = parts
        .join("; ")
        .replace(":; ", ": ")
        .replace("tip: a similar", "a similar");
    if let Some(rest) = text.strip_prefix("error: ") {
        text = rest.to_owned();
    }
    match error.kind() {
        ErrorKind::UnknownArgument => {
            text.push_str(&format!("; valid: {}", valid_options().join(", ")))
        }
        ErrorKind::InvalidSubcommand => {
            let command = Cli::command();
            let names: Vec<&str> = command
                .get_subcommands()
                .filter(|c| !c.is_hide_set())
                .map(clap::Command::get_name)
                .collect();
            text.push_str(&format!("; valid: {}", names.join(", ")));
        }
        _ => {}
    }
    text
}

/// The options of the command that was asked for.
fn valid_options() -> Vec<String> {
    let command = Cli::command();
    let asked = std::env::args().nth(1).unwrap_or_default();
    let found = command
        .find_subcommand(asked)
        .or_else(|| command.find_subcommand("compare"))
        .map(clap::Command::get_arguments);
    found
        .into_iter()
        .flatten()
        .filter_map(|arg| arg.get_long())
        .map(|name| format!("--{name}"))
        .collect()
}

fn list() -> String {
    let mut text = String::new();
    for workload in workloads::ALL {
        text.push_str(&format!("{}: {}\n", workload.name(), workload.about()));
        text.push_str(&format!("    options after --: {}\n", workload.usage()));
        let quick = rows_of(*workload, true);
        let mut grid = vec![
            ["    row", "metric", "unit", "better", "in --quick"]
                .map(str::to_owned)
                .to_vec(),
        ];
        for (row, metric, unit, better) in rows_of(*workload, false) {
            let in_quick = quick.iter().any(|(r, m, ..)| *r == row && *m == metric);
            let yes = if in_quick { "yes" } else { "no" };
            grid.push(vec![
                format!("    {row}"),
                metric,
                unit,
                better,
                yes.to_owned(),
            ]);
        }
        text.push_str(&crate::table::align(&grid));
        text.push('\n');
    }
    text.push_str(&format!("backends: {}\n", crate::backend::valid()));
    text.push_str("--against debian, rivals: the mallocs of Debian, and those that `bench-suite rivals` builds\n");
    text
}

fn rows_of(
    workload: &dyn workloads::Workload,
    quick: bool,
) -> Vec<(String, String, String, String)> {
    let options = workloads::Options {
        quick,
        ..workloads::Options::default()
    };
    let jobs = workload.plan(&options).unwrap_or_default();
    let rows = jobs.into_iter().flat_map(|job| job.rows);
    rows.map(|row| {
        let better = if row.better == crate::stats::Better::Higher {
            "higher"
        } else {
            "lower"
        };
        (
            row.row,
            row.metric.to_owned(),
            row.unit.to_owned(),
            better.to_owned(),
        )
    })
    .collect()
}
