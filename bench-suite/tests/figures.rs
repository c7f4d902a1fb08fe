//! `bench-suite figures`: a run's figures in documents, between markers.

use bench_suite::environment::Environment;
use bench_suite::figures::fill;
use bench_suite::report::{Config, Report, Row};
use bench_suite::stats::Better;
use serde_json::json;
use std::process::Command;

const PROGRAM: &str = env!("CARGO_BIN_EXE_bench-suite");

/// hackbench in seconds: unified takes `unified` times slab's time.
fn report(unified: f64) -> Report {
    let backends = ["slab", "slub", "unified"];
    let config = Config {
        workloads: vec!["hackbench".into()],
        backends: backends.map(str::to_owned).to_vec(),
        baseline: "slab".into(),
        runs: 8,
        ..Config::default()
    };
    let mut report = Report::new(Environment::default(), config);
    for (row, base) in [("sockets/1", 2.0), ("sockets/4", 8.0)] {
        for (backend, factor) in backends.iter().zip([1.0, 1.5, unified]) {
            let samples = (0..8)
                .map(|i| base * factor * (1.0 + f64::from(i) / 1000.0))
                .collect();
            report.rows.push(Row::new(
                "hackbench",
                row,
                ("time", "s", Better::Lower),
                backend,
                samples,
            ));
        }
    }
    report.compute();
    report
}

fn filled(what: &str, reports: &[Report]) -> String {
    let document =
        format!("before\n<!-- figures: {what} -->\nstale\n<!-- figures end -->\nafter\n");
    let text = fill(&document, reports, None).unwrap();
    assert!(text.starts_with("before\n") && text.ends_with("<!-- figures end -->\nafter\n"));
    assert!(!text.contains("stale"));
    assert_eq!(
        fill(&text, reports, None).unwrap(),
        text,
        "again changes nothing"
    );
    text
}

#[test]
fn figures_are_those_of_the_results() {
    let table = filled("table hackbench time", &[report(0.5)]);
    assert!(
        table.contains("| sockets/4 |") && table.contains("50.00%"),
        "{table}"
    );
    let summary = filled("summary", &[report(0.5)]);
    assert!(
        summary.contains("| hackbench time | -33.3 % (0, 2) | +100.0 % (2, 0) | 2 |"),
        "{summary}"
    );
    let peers = filled("peers hackbench", &[report(0.5)]);
    assert!(
        peers.contains("```\nhackbench: geometric means") && peers.contains("\nunified "),
        "{peers}"
    );
    let verdict = filled("verdict", &[report(0.5)]);
    assert!(verdict.contains("| all | 2 | 2 | 0 | 0 | 0 |"), "{verdict}");
    let verdict = filled("verdict", &[report(1.2)]);
    assert!(verdict.contains("| all | 2 | 0 | 2 | 0 | 0 |"), "{verdict}");
    assert!(
        verdict.contains("| hackbench sockets/1 time | slab | 1.200 |"),
        "{verdict}"
    );
    // A second run that does not fail them forgives both.
    let verdict = filled("verdict rows", &[report(1.2), report(1.0)]);
    assert!(
        verdict.contains("| 1.000 |") && !verdict.contains("FAIL"),
        "{verdict}"
    );
    assert!(
        filled("environment", &[report(1.0)]).contains("8 to"),
        "rounds"
    );
}

#[test]
fn bad_markers_are_named_with_their_line() {
    let reports = [report(1.0)];
    for (document, part) in [
        ("no marker\n", "no marker"),
        (
            "a\n<!-- figures: summary -->\nb\n",
            "line 2: no '<!-- figures end -->'",
        ),
        (
            "<!-- figures: summary -->\n<!-- figures: summary -->\n<!-- figures end -->\n",
            "line 1: no",
        ),
        (
            "<!-- figures: sumary -->\n<!-- figures end -->\n",
            "'sumary'; valid: environment",
        ),
        (
            "<!-- figures: table hackbench speed -->\n<!-- figures end -->\n",
            "valid: hackbench time",
        ),
        (
            "<!-- figures: instructions -->\n<!-- figures end -->\n",
            "needs --instructions",
        ),
        (
            "<!-- figures: summary\n<!-- figures end -->\n",
            "does not end in -->",
        ),
    ] {
        let error = fill(document, &reports, None).unwrap_err();
        assert!(error.contains(part), "{error}");
    }
}

#[test]
fn the_command_writes_checks_and_leaves_a_document_alone_that_it_cannot_fill() {
    let directory = tempfile::tempdir().unwrap();
    let run = |arguments: &str| {
        let output = Command::new(PROGRAM)
            .current_dir(directory.path())
            .args(arguments.split_whitespace())
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        (
            output.status.code(),
            text + &String::from_utf8_lossy(&output.stderr),
        )
    };
    let file = |name: &str| directory.path().join(name);
    std::fs::write(file("r.json"), serde_json::to_string(&report(0.5)).unwrap()).unwrap();
    std::fs::write(
        file("new.json"),
        serde_json::to_string(&report(0.8)).unwrap(),
    )
    .unwrap();
    std::fs::write(
        file("a.md"),
        "<!-- figures: summary -->\n<!-- figures end -->\n",
    )
    .unwrap();
    std::fs::write(file("b.md"), "nothing\n").unwrap();
    let (status, text) = run("figures r.json a.md b.md");
    assert!(
        status == Some(2) && text.contains("b.md: no marker"),
        "{text}"
    );
    assert!(
        !std::fs::read_to_string(file("a.md"))
            .unwrap()
            .contains("hackbench"),
        "all or none"
    );
    assert_eq!(run("figures r.json a.md").0, Some(0));
    assert!(
        std::fs::read_to_string(file("a.md"))
            .unwrap()
            .contains("+100.0 %")
    );
    assert_eq!(
        run("figures r.json a.md --check"),
        (Some(0), "a.md is up to date\n".to_owned())
    );
    let (status, text) = run("figures new.json a.md --check");
    assert!(
        status == Some(3) && text.contains("bench-suite figures new.json a.md"),
        "{text}"
    );
    assert!(
        std::fs::read_to_string(file("a.md"))
            .unwrap()
            .contains("+100.0 %")
    );
    assert_eq!(run("figures none.json a.md").0, Some(2));
    let count = |allocator: &str, net: f64| json!({"allocator": allocator, "loop": "loop-of-1", "net_ir": net, "ours": true});
    let counts = json!({"rows": [count("unified", 46.04), count("glibc", 128.7)]});
    std::fs::write(file("c.json"), counts.to_string()).unwrap();
    std::fs::write(
        file("c.md"),
        "<!-- figures: instructions -->\n<!-- figures end -->\n",
    )
    .unwrap();
    assert_eq!(run("figures r.json c.md --instructions c.json").0, Some(0));
    let text = std::fs::read_to_string(file("c.md")).unwrap();
    assert!(
        text.contains("| unified | 46 | - | - | - |\n| glibc | 129 | - | - | - |\n"),
        "{text}"
    );
    let (status, text) = run("figures r.json c.md --instructions r.json");
    assert!(
        status == Some(2) && text.contains("r.json: no counts of fastpath"),
        "{text}"
    );
}
