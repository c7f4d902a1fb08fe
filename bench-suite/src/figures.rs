//! `bench-suite figures RESULTS.json FILE.md …`: writes the figures of a run into documents, between markers, so that none
//! is ever copied by hand.
//!
//! ```text
//!  <!-- figures: table netperf throughput -->     what to write; everything up to the end is replaced
//!  | | slab | unified |
//!  <!-- figures end -->
//! ```
//! `environment`: the machine and the run. `summary`: each metric's mean change. `verdict`: unified against the better of
//! slab and slub, counted by workload, and each row that fails. `verdict rows`: every row. `peers WORKLOAD`: geometric means
//! by ratio to `system`, and the best peer of each row, of the first results that have the workload. `table WORKLOAD METRIC`.
//! `instructions`: what `fastpath --json` counted, of the file that `--instructions` names.

use crate::cli::{bad_arguments, print};
use crate::export::{self, markdown};
use crate::fastpath;
use crate::report::Report;
use crate::summary;
use crate::table::{Table, column_head, format_share, tables_of};
use crate::verdict::{Judgement, Line, Verdict, judge_all};
use clap::Args;
use std::path::PathBuf;
use std::process::ExitCode;

const START: &str = "<!-- figures: ";
const END: &str = "<!-- figures end -->";
const VALID: &str = "environment, summary, verdict, verdict rows, peers WORKLOAD, table WORKLOAD METRIC, instructions";

/// The options of `figures`.
#[derive(Args)]
pub struct Figures {
    /// A finished run: a file that `compare` wrote
    #[arg(value_name = "RESULTS.json")]
    results: PathBuf,

    /// Documents with markers: <!-- figures: WHAT --> and <!-- figures end -->
    #[arg(value_name = "FILE.md", required = true)]
    documents: Vec<PathBuf>,

    /// A second run of the same machine: a row's verdict fails only if it fails in both
    #[arg(long, value_name = "SECOND.json")]
    second: Option<PathBuf>,

    /// Counts that `fastpath --json` wrote, for the marker `instructions`
    #[arg(long, value_name = "COUNTS.json")]
    instructions: Option<PathBuf>,

    /// Change nothing; exit with status 3 where a document differs from the results
    #[arg(long)]
    check: bool,
}

/// Runs `bench-suite figures`.
pub fn main(options: &Figures) -> ExitCode {
    match update(options) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::from(3),
        Err(error) => bad_arguments(&error),
    }
}

/// Writes, or with --check compares; returns how many documents are out of date.
fn update(options: &Figures) -> Result<usize, String> {
    let mut reports = Vec::new();
    for path in std::iter::once(&options.results).chain(&options.second) {
        let mut report = Report::read(path)?;
        report.compute();
        reports.push(report);
    }
    let counts = (options.instructions.as_deref())
        .map(fastpath::markdown)
        .transpose()?;
    let mut ready = Vec::new();
    for path in &options.documents {
        let name = path.display();
        let text = std::fs::read_to_string(path).map_err(|e| format!("{name}: {e}"))?;
        let new = fill(&text, &reports, counts.as_deref()).map_err(|e| format!("{name}: {e}"))?;
        ready.push((path, text, new));
    }
    let mut stale = 0;
    for (path, old, new) in ready {
        if old == new {
            print(&format!("{} is up to date\n", path.display()));
        } else if options.check {
            stale += 1;
            print(&format!(
                "{} differs from the results; run: bench-suite figures {} {0}\n",
                path.display(),
                options.results.display()
            ));
        } else {
            export::write(path, &new)?;
            print(&format!("wrote {}\n", path.display()));
        }
    }
    Ok(stale)
}

/// The document with every marked part written anew, from reports and from a table of
/// instruction counts; the error names the line.
pub fn fill(
    document: &str,
    reports: &[Report],
    instructions: Option<&str>,
) -> Result<String, String> {
    let mut text = String::new();
    let mut lines = document.split_inclusive('\n').enumerate();
    let mut marks = 0;
    while let Some((number, line)) = lines.next() {
        text.push_str(line);
        let Some(what) = line.trim().strip_prefix(START) else {
            continue;
        };
        let at = |error: String| format!("line {}: {error}", number + 1);
        let what = what
            .strip_suffix("-->")
            .ok_or_else(|| at("the marker does not end in -->".to_owned()))?;
        let figures = figures(what.trim(), reports, instructions).map_err(at)?;
        text.push_str(&figures);
        let end = lines
            .find(|(_, line)| line.trim() == END || line.trim().starts_with(START))
            .filter(|(_, line)| line.trim() == END);
        let (_, end) = end.ok_or_else(|| at(format!("no '{END}' follows this marker")))?;
        text.push_str(end);
        marks += 1;
    }
    if marks == 0 {
        return Err(format!("no marker '{START}WHAT -->'; WHAT is {VALID}"));
    }
    Ok(text)
}

fn figures(what: &str, reports: &[Report], instructions: Option<&str>) -> Result<String, String> {
    let report = &reports[0];
    let words: Vec<&str> = what.split_whitespace().collect();
    match words[..] {
        ["environment"] => Ok(environment(report)),
        ["summary"] => Ok(mean_changes(report)),
        ["instructions"] => instructions.map(str::to_owned).ok_or_else(|| {
            "needs --instructions COUNTS.json, which fastpath --json writes".to_owned()
        }),
        ["verdict"] => verdict(reports, false),
        ["verdict", "rows"] => verdict(reports, true),
        ["peers", workload] => {
            let mut texts = (reports.iter())
                .map(|report| summary::against_peers(report, workload))
                .filter(|text| !text.is_empty());
            let text = texts
                .next()
                .ok_or_else(|| format!("the results have no row of '{workload}'"))?;
            Ok(format!("```\n{}\n```\n", text.trim_end()))
        }
        ["table", workload, ref metric @ ..] if !metric.is_empty() => {
            let metric = metric.join(" ");
            let tables = tables_of(report);
            let found = (tables.iter()).find(|t| t.workload == workload && t.metric == metric);
            let table = found.ok_or_else(|| {
                let names: Vec<String> = (tables.iter())
                    .map(|table| format!("{} {}", table.workload, table.metric))
                    .collect();
                format!(
                    "the results have no table '{workload} {metric}'; valid: {}",
                    names.join(", ")
                )
            })?;
            Ok(markdown::render_table(table))
        }
        _ => Err(format!("unknown figures '{what}'; valid: {VALID}")),
    }
}

fn environment(report: &Report) -> String {
    let mut lines = report.environment.lines();
    lines.push(format!(
        "{} to {} rounds a row, interleaved, seed {}{}",
        report.config.runs,
        report.config.max_runs,
        report.config.seed,
        if report.config.quick { ", --quick" } else { "" }
    ));
    let items = lines
        .iter()
        .map(|line| format!("- {}\n", markdown::escape(line)));
    items.collect()
}

fn row(cells: &[String]) -> String {
    format!("| {} |\n", cells.join(" | "))
}

fn head(cells: &[String]) -> String {
    format!("{}|:--{}|\n", row(cells), "|--:".repeat(cells.len() - 1))
}

/// A table for each set of columns, a line for each metric.
fn mean_changes(report: &Report) -> String {
    let tables = tables_of(report);
    let mut text = String::new();
    let mut known: Vec<&Vec<String>> = Vec::new();
    for set in tables.iter().map(|table| &table.columns) {
        if known.contains(&set) || set.len() < 2 {
            continue;
        }
        known.push(set);
        let mut heads = vec![format!("against {}", set[0])];
        heads.extend(set[1..].iter().cloned());
        heads.push("rows".to_owned());
        text.push_str(&format!(
            "{}{}",
            if text.is_empty() { "" } else { "\n" },
            head(&heads)
        ));
        for table in tables.iter().filter(|table| table.columns == *set) {
            text.push_str(&summary_line(table));
        }
    }
    text + "\nGeometric means, over the rows, of the change in speed (times inverted): + is better. In brackets: rows \
            significantly better and worse.\n"
}

fn summary_line(table: &Table) -> String {
    let mut cells = vec![format!("{} {}", table.workload, table.metric)];
    cells.extend((1..table.columns.len()).map(|column| {
        table.change(column).map_or_else(
            || "-".to_owned(),
            |c| format!("{:+.1} % ({}, {})", c.percent, c.better, c.worse),
        )
    }));
    cells.push(table.lines.len().to_string());
    row(&cells)
}

fn verdict(reports: &[Report], all: bool) -> Result<String, String> {
    let options = Verdict::of_unified();
    let lines = judge_all(reports, &options);
    if lines.is_empty() {
        return Err("the results have no row with unified, slab and slub".to_owned());
    }
    let count = |part: &[&Line], judgement| {
        let hits = part
            .iter()
            .filter(|line| line.judgement == judgement)
            .count();
        hits.to_string()
    };
    let heads = ["", "rows", "pass", "slower", "larger", "undecided"].map(str::to_owned);
    let mut text = String::new();
    if !all {
        text.push_str(&head(&heads));
        let mut workloads: Vec<&str> = Vec::new();
        for line in &lines {
            if !workloads.contains(&line.workload()) {
                workloads.push(line.workload());
            }
        }
        let mut add = |name: &str, part: &[&Line]| {
            let figures = [
                Judgement::Pass,
                Judgement::Fail,
                Judgement::Memory,
                Judgement::Undecided,
            ];
            let mut cells = vec![name.to_owned(), part.len().to_string()];
            cells.extend(figures.map(|judgement| count(part, judgement)));
            text.push_str(&row(&cells));
        };
        for name in workloads {
            let part: Vec<&Line> = lines
                .iter()
                .filter(|line| line.workload() == name)
                .collect();
            add(name, &part);
        }
        add("all", &lines.iter().collect::<Vec<_>>());
    }
    let shown: Vec<&Line> = (lines.iter())
        .filter(|line| all || !matches!(line.judgement, Judgement::Pass | Judgement::Undecided))
        .collect();
    if !shown.is_empty() {
        let heads = [
            "row", "against", "cost", "interval", "peak RSS", "share", "verdict",
        ];
        text.push_str(&format!(
            "{}{}",
            if all { "" } else { "\n" },
            head(&heads.map(str::to_owned))
        ));
        text.extend(shown.into_iter().map(verdict_line));
    }
    Ok(text)
}

fn verdict_line(line: &Line) -> String {
    let number = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |v| format!("{v:.3}"));
    let interval = line.interval.map_or_else(
        || "-".to_owned(),
        |i| format!("{:.3} to {:.3}", i.low, i.high),
    );
    row(&[
        markdown::escape(&line.label),
        column_head(&line.rival),
        number(Some(line.ratio).filter(|ratio| ratio.is_finite())),
        interval,
        number(line.rss),
        format_share(line.share),
        line.judgement.name().to_owned(),
    ])
}
