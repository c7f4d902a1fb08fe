//! The reaim results of 15 January 2005 on the kernel list ("Avoiding fragmentation through different allocator V2"),
//! reproduced to the byte from their numbers: by reaim's own lines, and as tables of this program.

use bench_suite::environment::Environment;
use bench_suite::report::{Config, Report, Row};
use bench_suite::stats::Better;
use bench_suite::table::tables_of;
use bench_suite::workloads::{find, reaim};
use std::collections::BTreeMap;

const REAIM: &str = include_str!("data/lkml_2005_reaim.txt");

/// The figure in a line, and what stands before "Test".
fn parse(line: &str) -> Option<(&str, f64, usize)> {
    let (test, rest) = line.split_once(" Test: Maximum Jobs per Minute ")?;
    let (maximum, runs) = rest.split_once(" (average of ")?;
    let runs = runs.strip_suffix(" runs)")?;
    Some((test, maximum.parse().ok()?, runs.parse().ok()?))
}

#[test]
fn every_line_of_2005_is_reproduced() {
    let mut figures = 0;
    for line in REAIM.lines() {
        if let Some((test, maximum, runs)) = parse(line) {
            figures += 1;
            assert_eq!(reaim::line(test, maximum, runs), format!("{line}\n"));
        }
    }
    assert_eq!(figures, 12);
}

/// A row as a run would have left it: three maxima whose mean is the printed figure.
fn row(row: &str, backend: &str, maximum: f64) -> Row {
    let runs = vec![maximum - 10.0, maximum, maximum + 10.0];
    let kind = (reaim::METRIC, "jobs/min", Better::Higher);
    Row {
        series: BTreeMap::from([(reaim::METRIC.to_owned(), vec![runs])]),
        ..Row::new("reaim", row, kind, backend, vec![maximum])
    }
}

/// The report of one of the mail's machines: the lines of one block of REAIM.
fn report(block: &str, file: &str) -> Report {
    let (mut rows, mut backends, mut kernel) = (Vec::new(), Vec::new(), "");
    for line in block.lines() {
        if let Some(name) = line.strip_prefix("kernel: ") {
            kernel = name;
            backends.push(name.to_owned());
        } else if let Some((test, maximum, _)) = parse(line) {
            let rule = if test == "Peak load" { "peak" } else { "quick" };
            rows.push(row(&format!("{file}/{rule}"), kernel, maximum));
        }
    }
    let config = Config {
        workloads: vec!["reaim".to_owned()],
        baseline: backends[0].clone(),
        backends,
        ..Config::default()
    };
    let mut report = Report::new(Environment::default(), config);
    report.rows = rows;
    report.compute();
    report
}

#[test]
fn blocks_are_printed_as_in_2005() {
    let blocks: Vec<&str> = REAIM.split("\n\n").map(str::trim).collect();
    assert_eq!(blocks.len(), 3);
    for (block, file) in blocks.iter().zip(["multiuser", "multiuser", "compute"]) {
        let printed = find("reaim")
            .unwrap()
            .appendix(&report(block, file))
            .unwrap();
        // The mail's heads also name the machine.
        let lines = |text: &str| -> Vec<String> {
            let all = text.lines().filter(|line| !line.contains(" LOAD"));
            all.filter(|line| !line.is_empty())
                .map(str::to_owned)
                .collect()
        };
        assert_eq!(lines(&printed), lines(block));
    }
}

#[test]
fn tables_carry_the_figures_and_their_change() {
    let four_way = REAIM.split("\n\n").next().unwrap();
    let text = tables_of(&report(four_way, "multiuser"))[0].render();
    assert!(
        text.contains("reaim: Maximum Jobs per Minute, jobs/min (more is better)"),
        "{text}"
    );
    assert!(
        text.contains("4881.87 (  0.00%)  5065.93 ( +3.77%)"),
        "{text}"
    );
    assert!(
        text.contains("4961.19 (  0.00%)  5294.48 ( +6.72%)"),
        "{text}"
    );
}
