//! The golden test of `--delta lkml-2010`: the NETPERF UDP and SYSBENCH tables of 19 October 2010 on the kernel list
//! ("The Unified slab allocator (V4)"), reproduced to the digit from their means and interval widths.

use bench_suite::stats::{Better, Delta};
use bench_suite::table::{Cell, Line, Table};

const NETPERF_UDP: &str = include_str!("data/lkml_2010_netperf_udp.txt");
const SYSBENCH: &str = include_str!("data/lkml_2010_sysbench.txt");

/// The label, the means and the trailing widths of a printed row; deltas and stars are not read.
fn parse(line: &str) -> (String, Vec<f64>, Vec<f64>) {
    let mut outside = String::new();
    let mut depth = 0;
    for c in line.chars() {
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            '*' => {}
            _ if depth == 0 => outside.push(c),
            _ => {}
        }
    }
    let mut words = outside.split_whitespace();
    let label = words.next().expect("a label").to_owned();
    let (widths, means): (Vec<&str>, Vec<&str>) = words.partition(|word| word.ends_with('%'));
    let number = |word: &str| word.trim_end_matches('%').parse::<f64>().expect("a number");
    (
        label,
        means.into_iter().map(number).collect(),
        widths.into_iter().map(number).collect(),
    )
}

fn table_of(text: &str) -> Table {
    let lines = text.lines().map(|line| {
        let (label, means, widths) = parse(line);
        let base = means[0];
        let cell = |(i, &value): (usize, &f64)| {
            Some(Cell {
                value,
                delta: Delta::Lkml2010.percent(Better::Higher, base, value),
                significant: false,
                width: widths.get(i).copied().unwrap_or(1.0),
            })
        };
        Line {
            label,
            cells: means.iter().enumerate().map(cell).collect(),
        }
    });
    Table {
        workload: "netperf-udp".to_owned(),
        metric: "throughput".to_owned(),
        unit: "Mbit/s".to_owned(),
        better: Better::Higher,
        columns: ["slab-vanilla", "slub-vanilla", "unified-v4r1"]
            .map(str::to_owned)
            .to_vec(),
        lines: lines.collect(),
        delta: Delta::Lkml2010,
        level: 99.0,
        width: 1.0,
    }
}

fn normal(line: &str) -> String {
    // Padding inside the brackets is white space too.
    line.replace("( ", "(")
        .split_whitespace()
        .collect::<Vec<_>>()
        .join(" ")
}

fn assert_reproduced(text: &str) {
    let rendered = table_of(text).render();
    let rows: Vec<&str> = rendered
        .lines()
        .skip(2)
        .take(text.lines().count())
        .collect();
    assert_eq!(rows.len(), text.lines().count());
    for (ours, printed) in rows.iter().zip(text.lines()) {
        assert_eq!(normal(ours), normal(printed));
    }
}

#[test]
fn netperf_udp_is_reproduced() {
    assert_eq!(NETPERF_UDP.lines().count(), 9);
    assert_reproduced(NETPERF_UDP);
}

#[test]
fn sysbench_is_reproduced() {
    assert_eq!(SYSBENCH.lines().count(), 8);
    assert_reproduced(SYSBENCH);
}

#[test]
fn division_by_the_baseline_gives_other_figures() {
    let base = |base, new| Delta::Base.percent(Better::Higher, base, new).unwrap();
    assert_eq!(format!("{:.2}", base(52.23, 53.80)), "3.01");
    assert_eq!(format!("{:.2}", base(7521.24, 7719.38)), "2.63");
}
