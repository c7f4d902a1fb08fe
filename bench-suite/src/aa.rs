//! `bench-suite aa`: the same backend twice, as if it were two. Whatever differs then differs by chance, so about one
//! row in twenty is significant at 5 %; many more would mean that the suite finds differences where there are none.

use crate::backend::Backend;
use crate::cli::{bad_arguments, print};
use crate::compare::{self, Compare};
use crate::report::Report;
use crate::stats::{SIGNIFICANCE, holm};
use clap::Args;
use std::process::ExitCode;

/// The options of `aa`.
#[derive(Args)]
pub struct Aa {
    /// Workloads to run [default: hackbench netperf]
    #[arg(value_name = "WORKLOAD")]
    workloads: Vec<String>,

    /// The backend to compare with itself
    #[arg(long, value_name = "NAME", default_value = "unified")]
    backend: String,

    /// Rows to collect; the workloads are repeated until there are as many
    #[arg(long, value_name = "N", default_value = "200", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    rows: u32,

    /// Rounds of every row
    #[arg(long, value_name = "N", default_value = "5", value_parser = clap::value_parser!(u16).range(4..=100))]
    runs: u16,

    /// Seed of the first pass; each further pass takes the next [default: from the clock]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,

    /// The workload's own options
    #[arg(last = true, value_name = "WORKLOAD OPTIONS")]
    args: Vec<String>,
}

/// Rows of one pass: how many, and which of them are significant.
fn count(report: &Report) -> (usize, Vec<String>) {
    let mut rows = 0;
    let mut found = Vec::new();
    let mut seen: Vec<(&str, &str)> = Vec::new();
    for row in report.rows.iter().filter(|row| row.p.is_some()) {
        // Two metrics of one row are two views of the same samples.
        let key = (row.workload.as_str(), row.row.as_str());
        if seen.contains(&key) {
            continue;
        }
        seen.push(key);
        rows += 1;
        if row.significant {
            let delta = row.delta_pct.unwrap_or(0.0);
            let p = row.p.unwrap_or(1.0);
            found.push(format!("{} {}: {delta:+.2}%, p = {p:.4}", key.0, key.1));
        }
    }
    (rows, found)
}

/// Runs `bench-suite aa`: status 3 when more rows are significant than chance explains, 130 on Ctrl-C.
pub fn main(options: &Aa) -> ExitCode {
    let backend = match Backend::parse(&options.backend) {
        Ok(Backend::Again(..)) => return bad_arguments("--backend: a name without a number"),
        Ok(backend) => backend.name(),
        Err(error) => return bad_arguments(&error),
    };
    let wanted = options.rows as usize;
    let (mut rows, mut found) = (0, Vec::new());
    let mut seed = options.seed;
    let mut interrupted = false;
    while rows < wanted && !interrupted {
        let pass = Compare::twice(
            &options.workloads,
            &backend,
            options.runs,
            seed,
            &options.args,
        );
        let report = match compare::measure(&pass) {
            Ok(report) => report,
            Err(error) => return bad_arguments(&error),
        };
        if let Some(failure) = report.failures.first() {
            eprintln!(
                "bench-suite: {} {} on {}: {}",
                failure.workload, failure.job, failure.backend, failure.error
            );
            return ExitCode::from(1);
        }
        let (more, significant) = count(&report);
        interrupted = report.interrupted;
        if more == 0 && !interrupted {
            return bad_arguments("the workloads gave no row to compare");
        }
        print(&format!(
            "seed {}: {more} rows, {} significant\n",
            report.config.seed,
            significant.len()
        ));
        // A pass that goes past the wanted number counts in full: leaving out rows would be a choice.
        rows += more;
        found.extend(significant);
        seed = Some(report.config.seed.wrapping_add(1));
    }
    for line in &found {
        print(&format!("significant: {line}\n"));
    }
    let most = holm::most_by_chance(rows, SIGNIFICANCE);
    print(&format!(
        "A/A {backend}: {} of {rows} rows significant at {:.0} %; chance gives {:.0}, and more than {most} in one test of forty\n",
        found.len(),
        100.0 * SIGNIFICANCE,
        rows as f64 * SIGNIFICANCE
    ));
    match (interrupted, found.len() > most) {
        (true, _) => ExitCode::from(130),
        (false, true) => ExitCode::from(3),
        (false, false) => ExitCode::SUCCESS,
    }
}
