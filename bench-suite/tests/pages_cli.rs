//! The page workloads and `pagemap` through the command line: rows, figures that must hold on any machine, one-line
//! errors.

use assert_cmd::Command;
use serde_json::Value;
use std::collections::BTreeMap;
use tempfile::TempDir;

const PROGRAM: &str = env!("CARGO_BIN_EXE_bench-suite");

fn bench(directory: &TempDir, arguments: &str) -> Command {
    let mut command = Command::new(PROGRAM);
    command
        .current_dir(directory.path())
        .args(arguments.split_whitespace());
    command
}

fn temp() -> TempDir {
    tempfile::tempdir().expect("a temporary directory")
}

/// Runs `arguments` with success; returns what it printed and the report.
fn run(arguments: &str) -> (String, Value) {
    let directory = temp();
    let output = bench(&directory, arguments).assert().success();
    let text = String::from_utf8(output.get_output().stdout.clone()).unwrap();
    let json = std::fs::read_to_string(directory.path().join("results/latest.json")).unwrap();
    (text, serde_json::from_str(&json).unwrap())
}

/// The means by row, metric and backend.
fn means(report: &Value) -> BTreeMap<(String, String, String), f64> {
    let text = |row: &Value, key: &str| row[key].as_str().unwrap().to_owned();
    let rows = report["rows"].as_array().unwrap().iter();
    rows.map(|row| {
        let key = (text(row, "row"), text(row, "metric"), text(row, "backend"));
        (key, row["mean"].as_f64().unwrap())
    })
    .collect()
}

#[test]
fn page_workloads_run_on_page_backends_without_being_told() {
    let (text, report) = run("compare page_test --runs 1 -- -m 32 -n 1 -o 0,9");
    assert_eq!(
        report["config"]["backends"],
        serde_json::json!(["plain", "placement"])
    );
    let means = means(&report);
    // Two orders; one thread has four rows, two threads five.
    assert_eq!(means.len(), 2 * (4 + 5) * 2);
    for order in ["order0", "order9"] {
        for row in [
            "1t/pair",
            "2t/alone",
            "2t/bulk_get",
            "1t/bulk_put",
            "2t/random_put",
        ] {
            for backend in ["plain", "placement"] {
                let key = (
                    format!("{order}/{row}"),
                    "time".to_owned(),
                    backend.to_owned(),
                );
                assert!(means[&key] > 0.0);
            }
        }
    }
    assert!(text.contains("page_test: time, ns (less is better)"));
    assert!(text.contains("page_test: memory"));
}

#[test]
fn workloads_of_both_kinds_keep_their_own_columns() {
    let (text, report) = run(
        "compare slab-micro page_test --runs 1 --backends system,plain,placement --baseline system",
    );
    for row in report["rows"].as_array().unwrap() {
        let of_pages = row["workload"] == "page_test";
        assert_eq!(row["backend"] == "system", !of_pages, "{row}");
        // The page workloads' own baseline is the first of their backends.
        let is_base = row["backend"] == "system" || row["backend"] == "plain";
        assert_eq!(row["p"].is_null(), is_base, "{row}");
    }
    assert!(!text.contains("failed"), "{text}");
}

#[test]
fn order5_prints_the_table_of_2005() {
    let (text, report) = run("compare order5 --runs 2 -- -m 64 -n 100");
    let means = means(&report);
    let get = |row: &str, metric: &str, backend: &str| {
        means[&(row.to_owned(), metric.to_owned(), backend.to_owned())]
    };
    for backend in ["plain", "placement"] {
        let figures = ["p50", "p99", "p999", "max"].map(|row| get(row, "cycles", backend));
        assert!(figures.is_sorted() && figures[0] > 0.0, "{figures:?}");
        assert!(get("avg", "cycles", backend) <= figures[3]);
    }
    // What is pinned is apart with placement, and everywhere without.
    assert_eq!(get("failures", "failures", "placement"), 0.0);
    assert!(get("failures", "failures", "plain") < 100.0);
    let at = |part: &str| {
        text.find(part)
            .unwrap_or_else(|| panic!("no {part} in\n{text}"))
    };
    assert!(at("\nStandard\n     Average          Max") < at("\nModified\n"));
    assert!(at("\nModified\n") < at("\nFailures\nStandard\n"));
    assert!(text.contains("Modified / Standard: "));
    // A map of the 32 blocks for each: placement keeps more of them apart.
    let maps = report["pagemaps"].as_array().unwrap();
    let mixed = |backend: &str| {
        let map = maps.iter().find(|map| map["backend"] == backend).unwrap();
        let kinds = map["kinds"].as_str().unwrap();
        assert_eq!(kinds.len(), 32);
        kinds.matches('X').count()
    };
    assert!(mixed("placement") < mixed("plain"));
    let latencies = &report["latencies"].as_array().unwrap()[0];
    for round in 0..2 {
        let served = latencies["served"][round].as_array().unwrap().len();
        let failed = latencies["failed"][round].as_array().unwrap().len();
        assert_eq!(served + failed, 100);
    }
}

#[test]
fn highalloc_counts_alike_on_both_backends_and_every_round() {
    let (_, report) = run("compare highalloc --runs 2 -- -m 64 -p 3 -s 1,2");
    for row in report["rows"].as_array().unwrap() {
        let samples = row["samples"].as_array().unwrap();
        // Latencies differ from round to round; what is counted does not.
        if row["unit"] != "ns" {
            assert_eq!(samples[0], samples[1], "{row}");
        }
    }
    let means = means(&report);
    let get = |row: &str, metric: &str, backend: &str| {
        means[&(
            format!("pinned=3/{row}"),
            metric.to_owned(),
            backend.to_owned(),
        )]
    };
    for backend in ["plain", "placement"] {
        for pass in ["pass1", "pass2", "rest"] {
            let success = get(pass, "success_pct", backend);
            assert!((0.0..=100.0).contains(&success));
            assert!(success <= get(pass, "ceiling_pct", backend) + 0.01);
            assert!(get(pass, "success_floor_pct", backend) <= success);
            assert!(get(pass, "p50", backend) <= get(pass, "max", backend));
        }
        assert!(get("rest", "free_blocks_pct", backend) <= 100.0);
        // 491 pinned pages fit one of the 32 blocks.
        assert_eq!(
            get("rest", "ceiling_blocks_pct", backend),
            100.0 * 31.0 / 32.0
        );
    }
    assert_eq!(get("steals", "steals", "plain"), 0.0);
    assert!(get("mixing", "mixing", "plain") > 1000.0);
}

/// Runs with bad arguments: status 2 and one line that contains all of `parts`.
fn assert_bad(arguments: &str, parts: &[&str]) {
    let output = bench(&temp(), arguments).assert().code(2);
    let error = String::from_utf8(output.get_output().stderr.clone()).unwrap();
    assert_eq!(error.lines().count(), 1, "{arguments}: {error}");
    for part in parts {
        assert!(
            error.contains(part),
            "{arguments}: '{error}' lacks '{part}'"
        );
    }
}

#[test]
fn bad_arguments_are_named_in_one_line() {
    assert_bad(
        "compare page_test --backends slab",
        &["'page_test'", "slab", "valid for it: plain, placement"],
    );
    assert_bad(
        "compare hackbench --backends placement",
        &["'hackbench'", "placement", "valid for it: slab"],
    );
    assert_bad(
        "compare hackbench --backends slab,placement",
        &["'placement' takes no part in hackbench"],
    );
    assert_bad(
        "compare page_test --backends llfree",
        &["'llfree'", "not on crates.io"],
    );
    #[cfg(not(feature = "rivals"))]
    assert_bad(
        "compare page_test --backends frame-allocator",
        &["'frame-allocator'", "--features rivals"],
    );
    assert_bad("compare page_test -- -o 10", &["-o '10'", "from 0 to 9"]);
    assert_bad("compare order5 -- -n 0", &["-n '0'"]);
    assert_bad(
        "compare highalloc -- -r oldest",
        &["'oldest'", "block or lru"],
    );
    assert_bad("pagemap --backend slub", &["'slub'", "placement or plain"]);
    assert_bad("pagemap --stage later", &["later", "aged, pass1, rest"]);
    assert_bad("pagemap --nope", &["--nope", "--svg"]);
    assert_bad(
        "pagemap slab-micro --backend system",
        &["'system'", "slab, slub, unified"],
    );
    assert_bad("pagemap frob", &["'frob'", "hackbench"]);
}

#[cfg(feature = "rivals")]
#[test]
fn the_rivals_take_part() {
    let backends = "plain,frame-allocator,buddy-heap";
    let (_, report) = run(&format!(
        "compare highalloc --runs 1 --backends {backends} -- -m 32 -p 3 -s 1"
    ));
    let names: Vec<&Value> = report["rows"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| &row["backend"])
        .collect();
    for backend in backends.split(',') {
        assert!(names.contains(&&Value::from(backend)), "{backend}");
    }
}

#[test]
fn a_map_is_drawn_as_text_svg_and_json() {
    let directory = temp();
    let output = bench(
        &directory,
        "pagemap --arena 64 --stage rest --width 16 --svg a/map.svg --json map.json",
    )
    .assert()
    .success();
    let text = String::from_utf8(output.get_output().stdout.clone()).unwrap();
    assert!(
        text.starts_with("placement, 64 MiB, 3 % pinned, seed 1, at rest\n"),
        "{text}"
    );
    let svg = std::fs::read_to_string(directory.path().join("a/map.svg")).unwrap();
    assert!(svg.starts_with("<svg") && svg.contains("currentColor"));
    let json = std::fs::read_to_string(directory.path().join("map.json")).unwrap();
    let map: Value = serde_json::from_str(&json).unwrap();
    let blocks = map["blocks"].as_array().unwrap();
    assert_eq!(blocks.len(), 32);
    assert_eq!(svg.matches("<title>").count(), 32);
    let used = |block: &Value| -> u64 {
        let all = block["used_by_type"].as_array().unwrap().iter();
        all.map(|n| n.as_u64().unwrap()).sum()
    };
    for block in blocks {
        assert_eq!(used(block) + block["free"].as_u64().unwrap(), 512);
    }
    // 3 % of 16,384 pages, and nothing else.
    assert_eq!(blocks.iter().map(used).sum::<u64>(), 491);
    let lines: Vec<&str> = text.lines().skip(1).take(2).collect();
    for (line, blocks) in lines.iter().zip(blocks.chunks(16)) {
        let letters = line.split_whitespace().last().unwrap();
        for (letter, block) in letters.chars().zip(blocks) {
            assert_eq!(letter == '.', used(block) == 0, "{line}");
        }
    }
}

#[test]
fn a_map_of_a_running_workload_shows_its_fullest_moment() {
    let output = bench(&temp(), "pagemap page_test -- -m 64 -n 300 -o 0")
        .assert()
        .success();
    let text = String::from_utf8(output.get_output().stdout.clone()).unwrap();
    assert!(text.starts_with("page_test order0/"), "{text}");
    assert!(text.lines().nth(1).unwrap().contains('M'), "{text}");
    let error = bench(&temp(), "pagemap highalloc -- -m 16 -s 1,2")
        .assert()
        .code(1);
    let error = String::from_utf8(error.get_output().stderr.clone()).unwrap();
    assert!(
        error.contains("nothing to draw") && error.contains("-s 1"),
        "{error}"
    );
}
