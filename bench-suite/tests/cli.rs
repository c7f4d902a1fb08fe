//! The command line: exit statuses, one-line errors, crashing backends, full disks, Ctrl-C, comparing two files.

use assert_cmd::Command;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};
use tempfile::TempDir;

const PROGRAM: &str = env!("CARGO_BIN_EXE_bench-suite");

fn bench(directory: &TempDir) -> Command {
    let mut command = Command::new(PROGRAM);
    command.current_dir(directory.path());
    command
}

fn temp() -> TempDir {
    tempfile::tempdir().expect("a temporary directory")
}

/// Words of a command line, split at blanks.
fn words(text: &str) -> Vec<&str> {
    text.split_whitespace().collect()
}

/// A short netperf run.
const SHORT: &str = "compare netperf --backends system --runs 2";
const SHORT_OPTIONS: &str = "-- -t TCP_RR -m 64 -l 0.1";

fn read_json(path: &Path) -> Value {
    serde_json::from_str(&std::fs::read_to_string(path).expect("a file")).expect("JSON")
}

/// Runs with bad arguments: status 2, nothing on standard output, one line that contains all of `parts`.
fn assert_bad(arguments: &str, parts: &[&str]) {
    let directory = temp();
    let output = bench(&directory)
        .args(words(arguments))
        .assert()
        .code(2)
        .get_output()
        .clone();
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(output.stdout.is_empty(), "{arguments}");
    assert_eq!(error.lines().count(), 1, "{arguments}: {error}");
    assert!(error.starts_with("bench-suite: "), "{error}");
    for part in parts {
        assert!(
            error.contains(part),
            "{arguments}: '{error}' lacks '{part}'"
        );
    }
    assert_eq!(
        std::fs::read_dir(directory.path()).unwrap().count(),
        0,
        "{arguments} left a file"
    );
}

#[test]
fn bad_arguments_are_named_in_one_line() {
    assert_bad("compare hackbensh", &["'hackbensh'", "hackbench, netperf"]);
    assert_bad(
        "compare --backends slab,slob",
        &[
            "'slob'",
            "slab, slub, unified, each also with :plain (placement off), unified:v4 (the design of 2010), system, so:PATH",
        ],
    );
    assert_bad(
        "compare --backends so:/nonexistent/malloc.so",
        &["so:/nonexistent/malloc.so", "No such file"],
    );
    assert_bad("compare --backends system,system", &["'system'", "twice"]);
    assert_bad(
        "compare --backends system --baseline slub",
        &["'slub'", "system"],
    );
    assert_bad(
        "compare --backends system --baseline nosuch",
        &["'nosuch'", "valid: slab"],
    );
    assert_bad("compare --cpus 0", &["--cpus '0'", "0,1"]);
    assert_bad("compare --cpus 0,1023", &["1023", "this process may use"]);
    assert_bad("compare --confidence 95", &["--confidence '95'", "95,5"]);
    assert_bad("compare --confidence 12,5", &["--confidence '12,5'"]);
    assert_bad("compare --runs 0", &["--runs", "1..=100"]);
    assert_bad("compare --quick --runs 3", &["--runs 3", "at least 5"]);
    assert_bad("compare --runs 9 --max-runs 3", &["--max-runs 3", "9"]);
    assert_bad("compare --delta sideways", &["sideways", "base, lkml-2010"]);
    assert_bad("compare --qick", &["--qick", "--quick"]);
    assert_bad("compre", &["compre", "compare"]);
    assert_bad(
        "compare --nope",
        &["--nope", "--backends, --against, --baseline"],
    );
    assert_bad("frob", &["frob", "valid: list, compare"]);
    assert_bad("compare --seed x", &["'x'", "--seed", "whole number"]);
    assert_bad("compare --fail-above 5", &["--fail-above needs --from"]);
    assert_bad(
        "compare --from a.json b.json --fail-above -1",
        &["--fail-above"],
    );
    assert_bad(
        "compare hackbench netperf -- -g 1",
        &["exactly one WORKLOAD"],
    );
    assert_bad(
        "compare --backends system hackbench -- -z",
        &["-z", "-g GROUPS"],
    );
    assert_bad(
        "compare --backends system hackbench -- -g none",
        &["-g 'none'"],
    );
    assert_bad("compare --backends system netperf -- -m 1", &["-m '1'"]);
    assert_bad(
        "compare --from /nonexistent/a.json /nonexistent/b.json",
        &["/nonexistent/a.json"],
    );
    assert_bad(
        "compare --resume /nonexistent/a.json",
        &["/nonexistent/a.json"],
    );
}

#[test]
fn list_prints_rows_units_and_directions() {
    let output = bench(&temp())
        .arg("list")
        .assert()
        .success()
        .get_output()
        .stdout
        .clone();
    let text = String::from_utf8(output).unwrap();
    for part in [
        "hackbench",
        "sockets/8",
        "netperf",
        "UDP_STREAM/16384",
        "MB/s",
        "trans/s",
        "higher",
        "lower",
        "-g GROUPS",
    ] {
        assert!(text.contains(part), "no {part} in\n{text}");
    }
}

#[test]
fn help_and_version_succeed() {
    bench(&temp()).arg("--help").assert().success();
    bench(&temp()).arg("--version").assert().success();
    bench(&temp())
        .args(["compare", "--help"])
        .assert()
        .success();
}

#[test]
fn a_run_writes_every_format() {
    let directory = temp();
    let files = "--json deep/a.json --html a.html --csv a.csv --markdown a.md --seed 7 --cpus 0,0";
    let output = bench(&directory)
        .args(words(&format!("{SHORT} {files} {SHORT_OPTIONS}")))
        .assert()
        .success();
    let text = String::from_utf8(output.get_output().stdout.clone()).unwrap();
    assert!(
        text.contains("TCP_RR/64")
            && text.contains("(  0.00%)")
            && text.contains("+ is always better"),
        "{text}"
    );
    let report = read_json(&directory.path().join("deep/a.json"));
    assert_eq!(report["schema_version"], 1);
    assert_eq!(report["config"]["seed"], 7);
    assert!(report["environment"]["cpus"].as_u64().unwrap() > 0);
    let row = &report["rows"][0];
    for (key, value) in [
        ("workload", "netperf"),
        ("row", "TCP_RR/64"),
        ("unit", "trans/s"),
        ("better", "higher"),
    ] {
        assert_eq!(row[key], value);
    }
    assert_eq!(row["backend"], "system");
    assert_eq!(row["samples"].as_array().unwrap().len(), 2);
    assert_eq!(row["delta_pct"], 0.0);
    assert!(row["p"].is_null() && row["significant"] == false);
    assert!(row["objects"].as_u64().unwrap() > 0);
    let (peak, rest) = (
        row["rss_peak_kib"].as_u64().unwrap(),
        row["rss_rest_kib"].as_u64().unwrap(),
    );
    assert!(peak >= rest && rest > 0);
    let html = std::fs::read_to_string(directory.path().join("a.html")).unwrap();
    assert!(html.contains("<svg") && html.contains("prefers-color-scheme: dark"));
    assert!(
        !html.contains("http") && !html.contains("<script") && !html.contains("<link"),
        "not self-contained"
    );
    let csv = std::fs::read_to_string(directory.path().join("a.csv")).unwrap();
    assert_eq!(csv.lines().count(), 2);
    let markdown = std::fs::read_to_string(directory.path().join("a.md")).unwrap();
    assert!(markdown.contains("| TCP_RR/64 |"));
}

#[test]
fn results_go_to_the_default_files() {
    let directory = temp();
    bench(&directory)
        .args(words(&format!("{SHORT} {SHORT_OPTIONS}")))
        .assert()
        .success();
    assert!(directory.path().join("results/latest.json").is_file());
    assert!(directory.path().join("results/latest.html").is_file());
}

#[test]
fn hackbench_in_processes_copies_on_both_sides() {
    for kind in ["", "-p"] {
        let directory = temp();
        let arguments =
            format!("compare hackbench --backends system --runs 1 -- -P -g 2 -f 3 -l 4 {kind}");
        bench(&directory).args(words(&arguments)).assert().success();
        let report = read_json(&directory.path().join("results/latest.json"));
        // Two groups of three to three, four messages each, two objects on either side.
        assert_eq!(report["rows"][0]["objects"], 4 * 2 * 3 * 3 * 4);
        assert!(
            report["environment"]["warnings"]
                .to_string()
                .contains("one run only")
        );
    }
}

/// Compiles a shared library from C.
fn library(directory: &TempDir, name: &str, source: &str) -> PathBuf {
    let c = directory.path().join(format!("{name}.c"));
    let so = directory.path().join(format!("{name}.so"));
    std::fs::write(&c, source).unwrap();
    let status = std::process::Command::new("cc")
        .args(["-shared", "-fPIC", "-o"])
        .arg(&so)
        .arg(&c)
        .status();
    assert!(status.expect("a C compiler").success());
    so
}

#[test]
fn a_crashing_backend_leaves_the_others_reported() {
    let directory = temp();
    let so = library(
        &directory,
        "crash",
        "#include <stdlib.h>\n__attribute__((constructor)) static void f(void) { abort(); }\n",
    );
    let arguments = format!(
        "compare netperf --backends system,so:{} --runs 2 {SHORT_OPTIONS}",
        so.display()
    );
    let output = bench(&directory)
        .args(words(&arguments))
        .assert()
        .code(1)
        .get_output()
        .clone();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        text.contains("TCP_RR/64") && text.contains("failed") && text.contains("SIGABRT"),
        "{text}"
    );
    let report = read_json(&directory.path().join("results/latest.json"));
    assert_eq!(report["rows"].as_array().unwrap().len(), 1);
    assert_eq!(report["rows"][0]["backend"], "system");
    assert_eq!(report["failures"].as_array().unwrap().len(), 1);
}

#[test]
fn a_library_that_cannot_be_preloaded_fails() {
    let directory = temp();
    let so = directory.path().join("text.so");
    std::fs::write(&so, "not a library").unwrap();
    let arguments = format!(
        "compare netperf --backends so:{} --runs 1 {SHORT_OPTIONS}",
        so.display()
    );
    let output = bench(&directory)
        .args(words(&arguments))
        .assert()
        .code(1)
        .get_output()
        .clone();
    assert!(
        String::from_utf8(output.stdout)
            .unwrap()
            .contains("LD_PRELOAD had no effect")
    );
}

#[test]
fn a_preloaded_malloc_is_the_one_that_runs() {
    let directory = temp();
    // Says so once on standard error when a block of 512 bytes is asked for.
    let so = library(
        &directory,
        "tag",
        "#include <stdlib.h>\n#include <unistd.h>\nextern void *__libc_malloc(size_t);\n\
         static int said;\nvoid *malloc(size_t n) { if (n == 512 && !said) { said = 1; (void)!write(2, \"tagged\\n\", 7); }\n\
         return __libc_malloc(n); }\n",
    );
    let arguments = format!(
        "compare netperf --backends so:{} --runs 1 {SHORT_OPTIONS}",
        so.display()
    );
    let output = bench(&directory)
        .args(words(&arguments))
        .assert()
        .success()
        .get_output()
        .clone();
    // 64 bytes and their headroom make a data object of 512 bytes: the library sees it.
    assert!(String::from_utf8(output.stderr).unwrap().contains("tagged"));
}

#[test]
fn a_full_disk_is_reported_after_the_tables() {
    let directory = temp();
    let arguments = format!("{SHORT} --json /dev/full {SHORT_OPTIONS}");
    let output = bench(&directory)
        .args(words(&arguments))
        .assert()
        .code(1)
        .get_output()
        .clone();
    assert!(
        String::from_utf8(output.stdout)
            .unwrap()
            .contains("TCP_RR/64")
    );
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(
        error.contains("cannot write /dev/full: No space left"),
        "{error}"
    );
}

#[test]
fn ctrl_c_keeps_the_finished_rows_and_resume_completes_them() {
    let directory = temp();
    let file = directory.path().join("run.json");
    let arguments = "compare netperf --backends system --runs 2 --json run.json -- -t TCP_RR,UDP_RR -m 64,128 -l 0.3";
    let child = std::process::Command::new(PROGRAM)
        .args(words(arguments))
        .current_dir(directory.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // The first finished row is written at once.
    let end = Instant::now() + Duration::from_secs(60);
    while !file.exists() && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(10));
    }
    // SAFETY: the child is ours and not yet waited for.
    unsafe { libc::kill(child.id() as libc::pid_t, libc::SIGINT) };
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(130), "{text}");
    assert!(
        text.contains("TCP_RR/64") && text.contains("INTERRUPTED"),
        "{text}"
    );
    let before = read_json(&file);
    let finished = before["rows"].as_array().unwrap().len();
    assert_eq!(before["interrupted"], true);
    assert!((1..4).contains(&finished), "{finished} rows");

    bench(&directory)
        .args(["compare", "--resume", "run.json"])
        .assert()
        .success();
    let after = read_json(&file);
    let rows: Vec<&str> = after["rows"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| row["row"].as_str().unwrap())
        .collect();
    assert_eq!(rows, ["TCP_RR/64", "TCP_RR/128", "UDP_RR/64", "UDP_RR/128"]);
    assert_eq!(after["interrupted"], false);
    assert_eq!(after["rows"][0]["samples"], before["rows"][0]["samples"]);
}

/// A report with one row of rates and one of times.
fn saved(directory: &TempDir, name: &str, rates: &[f64], times: &[f64]) -> PathBuf {
    let row = |row: &str, unit: &str, better: &str, samples: &[f64]| {
        json!({"workload": "w", "row": row, "metric": "m", "unit": unit, "better": better, "backend": "slub",
               "samples": samples})
    };
    // The least the schema demands: raw samples, nothing derived.
    let report = json!({"schema_version": 1, "environment": {},
        "rows": [row("rate", "MB/s", "higher", rates), row("time", "s", "lower", times)]});
    let path = directory.path().join(name);
    std::fs::write(&path, report.to_string()).unwrap();
    path
}

const RATES: [f64; 5] = [100.0, 101.0, 99.0, 100.5, 99.5];
const TIMES: [f64; 5] = [1.0, 1.01, 0.99, 1.005, 0.995];

fn compare_files(directory: &TempDir, old: &Path, new: &Path, more: &str) -> (i32, String) {
    let output = bench(directory)
        .args(["compare", "--from"])
        .arg(old)
        .arg(new)
        .args(words(more))
        .output()
        .unwrap();
    (
        output.status.code().unwrap(),
        String::from_utf8(output.stdout).unwrap(),
    )
}

#[test]
fn comparing_files_finds_regressions_in_both_directions() {
    let directory = temp();
    let old = saved(&directory, "old.json", &RATES, &TIMES);
    let same = saved(&directory, "same.json", &RATES, &TIMES);
    let slow = saved(&directory, "slow.json", &RATES.map(|x| x * 0.9), &TIMES);
    let late = saved(&directory, "late.json", &RATES, &TIMES.map(|x| x * 1.1));
    let better = saved(
        &directory,
        "better.json",
        &RATES.map(|x| x * 1.1),
        &TIMES.map(|x| x * 0.9),
    );
    assert_eq!(
        compare_files(&directory, &old, &same, "--fail-above 0").0,
        0
    );
    assert_eq!(
        compare_files(&directory, &old, &better, "--fail-above 5").0,
        0
    );
    assert_eq!(
        compare_files(&directory, &old, &slow, "--fail-above 20").0,
        0
    );
    assert_eq!(compare_files(&directory, &old, &slow, "").0, 0);
    let (status, text) = compare_files(&directory, &old, &slow, "--fail-above 5");
    assert_eq!(status, 3);
    assert!(text.contains("regression: w rate slub"), "{text}");
    let (status, text) = compare_files(&directory, &old, &late, "--fail-above 5");
    assert_eq!(status, 3);
    assert!(text.contains("regression: w time slub"), "{text}");
    // Better prints as + in the tables of both, worse as -.
    let (_, text) = compare_files(&directory, &old, &better, "");
    assert!(
        text.contains("*+10.00%*") && !text.contains("-10.00%"),
        "{text}"
    );
    let (_, text) = compare_files(&directory, &old, &late, "");
    assert!(text.contains("*-10.00%*"), "{text}");
}

#[test]
fn the_arithmetic_of_2010_divides_by_the_new_value() {
    let directory = temp();
    let old = saved(&directory, "old.json", &[52.23; 5], &TIMES);
    let new = saved(&directory, "new.json", &[53.80; 5], &TIMES);
    let (_, text) = compare_files(&directory, &old, &new, "");
    assert!(text.contains("53.80 * +3.01%*"), "{text}");
    let (_, text) = compare_files(&directory, &old, &new, "--delta lkml-2010");
    assert!(text.contains("53.80 ( 2.92%)"), "{text}");
}

#[test]
fn comparing_files_writes_what_is_asked_and_nothing_else() {
    let directory = temp();
    let old = saved(&directory, "old.json", &RATES, &TIMES);
    let (status, _) = compare_files(&directory, &old, &old, "");
    assert_eq!(status, 0);
    assert!(!directory.path().join("results").exists());
    compare_files(&directory, &old, &old, "--html pair.html --csv pair.csv");
    assert!(
        directory.path().join("pair.html").is_file() && directory.path().join("pair.csv").is_file()
    );
}

#[test]
fn files_that_are_no_reports_are_named() {
    let directory = temp();
    let good = saved(&directory, "good.json", &RATES, &TIMES);
    for (name, text) in [
        ("broken.json", "{"),
        ("future.json", "{\"schema_version\": 99, \"rows\": []}"),
    ] {
        let path = directory.path().join(name);
        std::fs::write(&path, text).unwrap();
        let output = bench(&directory)
            .args(["compare", "--from"])
            .arg(&good)
            .arg(&path)
            .output()
            .unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2));
        assert!(
            error.lines().count() == 1 && error.contains(name),
            "{error}"
        );
    }
}
