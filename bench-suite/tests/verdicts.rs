//! From a worker's sample to a verdict: planted differences are found, and differences that are not there are not.
//! The samples come from `selftest`, which draws them from the seed given, through the same workers, rounds and files
//! as measured ones.

use assert_cmd::Command;
use bench_suite::environment::Environment;
use bench_suite::report::{Config, Report, Row};
use bench_suite::rng::Rng;
use bench_suite::stats::{Better, holm, mann_whitney_p};
use bench_suite::verdict::{Judgement, judge};
use bench_suite::workloads::selftest::normal;
use std::path::Path;
use tempfile::TempDir;

/// Runs the program in `directory`; its exit status, standard output and standard error.
fn bench(directory: &TempDir, arguments: &str) -> (i32, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_bench-suite"))
        .current_dir(directory.path())
        .args(arguments.split_whitespace())
        .output()
        .expect("bench-suite runs");
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    (
        output.status.code().unwrap_or(-1),
        text(output.stdout),
        text(output.stderr),
    )
}

fn temp() -> TempDir {
    tempfile::tempdir().expect("a temporary directory")
}

/// A run of selftest's eight rows on one backend, ten rounds.
fn run(directory: &TempDir, name: &str, seed: usize, options: &str) {
    let (status, _, error) = bench(
        directory,
        &format!(
            "compare selftest --backends slub --runs 10 --no-floor --seed {seed} --json {name}.json --html {name}.html \
             -- -n 8 {options}"
        ),
    );
    assert_eq!(status, 0, "{error}");
}

#[test]
fn a_planted_slow_down_is_found_and_a_null_change_is_not_ten_times_of_ten() {
    let directory = temp();
    for attempt in 0..10 {
        run(&directory, "old", 1000 + attempt, "");
        run(&directory, "same", 2000 + attempt, "");
        run(&directory, "slow", 3000 + attempt, "-s 10");
        let (status, text, _) = bench(
            &directory,
            "compare --from old.json same.json --fail-above 5",
        );
        assert_eq!(status, 0, "attempt {attempt}: {text}");
        assert!(!text.contains("regression:"), "{text}");
        let (status, text, _) = bench(
            &directory,
            "compare --from old.json slow.json --fail-above 5",
        );
        assert_eq!(status, 3, "attempt {attempt}: {text}");
        assert_eq!(text.matches("regression:").count(), 8, "{text}");
        assert!(!text.contains("too few samples"), "{text}");
    }
}

#[test]
fn too_few_rounds_for_all_rows_are_said_to_be() {
    let directory = temp();
    let short = |name: &str, seed: usize, options: &str| {
        let arguments = format!(
            "compare selftest --backends slub --runs 5 --no-floor --seed {seed} --json {name}.json -- -n 8 {options}"
        );
        assert_eq!(bench(&directory, &arguments).0, 0);
    };
    short("old", 1, "");
    short("slow", 2, "-s 10");
    let (status, text, _) = bench(
        &directory,
        "compare --from old.json slow.json --fail-above 5",
    );
    assert_eq!(status, 3);
    // 0.05 / 8 needs C(12, 6) orders: 2 / 924 is below it, 2 / 252 is not.
    assert!(text.contains("8 of 8 rows have too few samples"), "{text}");
    assert!(text.contains("6 rounds in both runs are enough"), "{text}");
}

#[test]
fn the_same_backend_twice_differs_by_chance_only() {
    let directory = temp();
    let (status, text, error) = bench(
        &directory,
        "aa selftest --backend unified --rows 200 --runs 5 --seed 1 -- -n 200",
    );
    assert_eq!(status, 0, "{text}{error}");
    let line = text.lines().last().unwrap_or_default();
    let words: Vec<&str> = line.split_whitespace().collect();
    assert_eq!(words[..2], ["A/A", "unified:"], "{line}");
    let significant: usize = words[2].parse().expect("a number");
    assert_eq!(words[4], "200", "{line}");
    assert!((1..=16).contains(&significant), "{line}");
    assert_eq!(text.matches("significant: ").count(), significant);
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
}

#[test]
fn a_number_behind_a_name_is_the_same_backend_again() {
    let directory = temp();
    let (status, _, error) = bench(
        &directory,
        "compare selftest --backends slub,slub#2,slab --runs 6 --seed 3 --no-floor --json r.json -- -n 1 -b slub -s 50",
    );
    assert_eq!(status, 0, "{error}");
    let report = Report::read(&directory.path().join("r.json")).unwrap();
    // Workers know the plain name: both columns are slow, by samples of their own.
    let [slub, again, slab] = &report.rows[..] else {
        panic!("{} rows", report.rows.len());
    };
    assert_eq!(again.backend, "slub#2");
    assert!(slub.mean > 140.0 && again.mean > 140.0 && slab.mean < 110.0);
    assert_ne!(slub.samples, again.samples);
    assert!(slab.significant && slab.delta_pct.unwrap() > 25.0);
}

/// The share of A/A rows that are significant, for samples of a given shape.
fn false_alarms(rows: usize, n: usize, seed: u64, draw: impl Fn(&mut Rng) -> f64) -> usize {
    let mut rng = Rng::new(seed);
    let mut sample = || -> Vec<f64> { (0..n).map(|_| draw(&mut rng)).collect() };
    (0..rows)
        .filter(|_| mann_whitney_p(&sample(), &sample()) < 0.05)
        .count()
}

#[test]
fn false_alarms_are_as_rare_as_promised_whatever_the_shape() {
    let skewed = |rng: &mut Rng| (2.0 * normal(rng)).exp();
    let outliers =
        |rng: &mut Rng| 100.0 + normal(rng) + if rng.below(10) == 0 { 400.0 } else { 0.0 };
    let tied = |rng: &mut Rng| rng.below(4) as f64;
    // 2000 rows: the expectation is at most 100, its standard deviation 10.
    for n in [5, 10] {
        for (i, found) in [
            false_alarms(2000, n, 1, normal),
            false_alarms(2000, n, 2, skewed),
            false_alarms(2000, n, 3, outliers),
            false_alarms(2000, n, 4, tied),
        ]
        .into_iter()
        .enumerate()
        {
            assert!(
                (15..=130).contains(&found),
                "shape {i}, {n} samples: {found} of 2000"
            );
        }
    }
    // Twenty A/A tests of 200 rows: more than 16 in one of forty, so in none to two of twenty.
    let above = (0..20)
        .filter(|seed| false_alarms(200, 10, 100 + seed, normal) > 16)
        .count();
    assert!(above <= 2, "{above} of 20");
    assert_eq!(holm::most_by_chance(200, 0.05), 16);
}

/// A report whose rows cost `100 · factor` on unified and 100 on slab, 120 on slub, with noise.
fn planted(factors: &[f64], n: usize, seed: u64) -> Report {
    let mut rng = Rng::new(seed);
    let config = Config {
        backends: ["slab", "slub", "unified"].map(str::to_owned).to_vec(),
        baseline: "slab".into(),
        ..Config::default()
    };
    let mut report = Report::new(Environment::default(), config);
    for (i, factor) in factors.iter().enumerate() {
        for (backend, cost) in [
            ("slab", 100.0),
            ("slub", 120.0),
            ("unified", 100.0 * factor),
        ] {
            // Every other row is a rate: more is better there.
            let (unit, better) = if i % 2 == 0 {
                ("ns", Better::Lower)
            } else {
                ("ops/s", Better::Higher)
            };
            let mut draw = || {
                let cost = cost * (0.01 * normal(&mut rng)).exp();
                if i % 2 == 0 { cost } else { 1e9 / cost }
            };
            let samples = (0..n).map(|_| draw()).collect();
            let mut row = Row::new("w", &format!("r{i}"), ("m", unit, better), backend, samples);
            row.rss_peak_kib = if backend == "slab" { 3000 } else { 2000 };
            report.rows.push(row);
        }
    }
    report.compute();
    report
}

fn names(list: &[&str]) -> Vec<String> {
    list.iter().map(|name| (*name).to_owned()).collect()
}

#[test]
fn a_verdict_names_exactly_the_rows_that_are_worse_than_allowed() {
    let mut factors = [1.0; 40];
    (factors[3], factors[8], factors[20]) = (1.1, 1.06, 0.8);
    for seed in 0..10 {
        let lines = judge(
            &[planted(&factors, 10, seed)],
            "unified",
            &names(&["slab", "slub"]),
            2.0,
        );
        assert_eq!(lines.len(), 40);
        for (i, line) in lines.iter().enumerate() {
            let want = if [3, 8].contains(&i) {
                Judgement::Fail
            } else {
                Judgement::Pass
            };
            assert_eq!(line.judgement, want, "seed {seed}: {line:?}");
            assert_eq!(line.rival, "slab");
            assert!((line.ratio / factors[i] - 1.0).abs() < 0.03, "{line:?}");
            assert_eq!(line.rss, Some(1.0));
        }
    }
}

#[test]
fn a_verdict_without_enough_samples_is_no_pass() {
    let lines = judge(
        &[planted(&[1.0; 40], 5, 1)],
        "unified",
        &names(&["slab", "slub"]),
        2.0,
    );
    assert!(
        lines
            .iter()
            .any(|line| line.judgement == Judgement::Undecided)
    );
}

#[test]
fn the_whole_table_is_right_nineteen_times_of_twenty() {
    // Every row exactly at the limit: any failure is a false one, and a table must have one in at most 5 % of all.
    let wrong = (0..200).filter(|seed| {
        let report = planted(&[1.02; 12], 8, 50 + seed);
        judge(&[report], "unified", &names(&["slab"]), 2.0)
            .iter()
            .any(|line| line.judgement == Judgement::Fail)
    });
    // 200 tables: 10 expected at most, standard deviation 3.
    let wrong = wrong.count();
    assert!(wrong <= 19, "{wrong} of 200");
}

fn save(report: &Report, path: &Path) {
    std::fs::write(path, serde_json::to_string(report).unwrap()).unwrap();
}

#[test]
fn verdict_on_the_command_line() {
    let directory = temp();
    save(
        &planted(&[1.0; 6], 10, 1),
        &directory.path().join("good.json"),
    );
    save(
        &planted(&[1.0, 1.2, 1.0], 10, 2),
        &directory.path().join("bad.json"),
    );
    save(
        &planted(&[1.0; 40], 5, 3),
        &directory.path().join("few.json"),
    );
    let (status, text, _) = bench(&directory, "verdict good.json");
    assert_eq!(status, 0, "{text}");
    assert!(
        text.contains("6 pass, 0 fail, 0 fail by memory, 0 undecided"),
        "{text}"
    );
    save(
        &planted(&[1.0, 1.2, 1.0], 10, 4),
        &directory.path().join("bad2.json"),
    );
    // What one of two runs fails, the other forgives; what both fail, fails.
    let (status, text, _) = bench(&directory, "verdict bad.json good.json --brief");
    assert_eq!(status, 0, "{text}");
    assert!(text.contains("6 pass, 0 fail"), "{text}");
    let (status, text, _) = bench(&directory, "verdict bad.json bad2.json --brief");
    assert_eq!(status, 3, "{text}");
    assert!(text.contains("2 pass, 1 fail, 0 fail by memory"), "{text}");
    let failed = text.lines().filter(|line| line.ends_with("FAIL")).count();
    assert_eq!(failed, 1, "{text}");
    let mut fat = planted(&[1.0; 3], 10, 5);
    for row in fat.rows.iter_mut().filter(|row| row.backend == "unified") {
        row.rss_peak_kib = 2120;
    }
    save(&fat, &directory.path().join("fat.json"));
    let (status, text, _) = bench(&directory, "verdict fat.json");
    assert_eq!(status, 3, "{text}");
    assert!(text.contains("0 pass, 0 fail, 3 fail by memory"), "{text}");
    assert_eq!(bench(&directory, "verdict fat.json --rss-within 7").0, 0);
    assert_eq!(bench(&directory, "verdict fat.json good.json").0, 0);
    let (status, _, error) = bench(&directory, "verdict few.json");
    assert_eq!(status, 1);
    assert!(error.contains("--runs 7"), "{error}");
    // 20 % worse passes where 25 % is allowed.
    assert_eq!(bench(&directory, "verdict bad.json --within 25").0, 0);
    for (arguments, part) in [
        ("verdict", "FILE.json"),
        ("verdict none.json", "none.json"),
        (
            "verdict good.json --of nobody",
            "the files hold slab, slub, unified",
        ),
        ("verdict good.json --of slab", "judged itself"),
        ("verdict good.json --within -3", "--within"),
        ("verdict --nope", "valid: --of, --against"),
        ("aa --nope", "valid: --backend, --rows"),
        ("aa --backend nobody", "'nobody'"),
        ("aa --backend slab#2", "without a number"),
        ("aa nobody", "'nobody'"),
    ] {
        let (status, _, error) = bench(&directory, arguments);
        assert_eq!(status, 2, "{arguments}: {error}");
        assert!(error.contains(part), "{arguments}: {error}");
        assert_eq!(error.lines().count(), 1, "{error}");
    }
}

#[test]
fn confidence_repeats_rounds_until_the_interval_is_narrow_enough() {
    let directory = temp();
    let samples = |options: &str| -> usize {
        let arguments = format!(
            "compare selftest --backends slub --runs 4 --seed 5 --no-floor --json r.json {options}"
        );
        let (status, _, error) = bench(&directory, &arguments);
        assert_eq!(status, 0, "{error}");
        Report::read(&directory.path().join("r.json")).unwrap().rows[0]
            .samples
            .len()
    };
    // Noise of 20 %: the interval of n samples is about 80 / sqrt(n) % wide, so 25 % wants about ten.
    let repeated = samples("--confidence 95,25 --max-runs 30 -- -n 1 -v 20");
    assert!((6..=20).contains(&repeated), "{repeated}");
    assert_eq!(samples("--confidence 95,1 --max-runs 12 -- -n 1 -v 20"), 12);
    assert_eq!(samples("--confidence 95,25 -- -n 1 -v 1"), 4);
}

#[test]
fn rows_carry_the_share_the_latencies_and_the_memory_over_time() {
    let directory = temp();
    let arguments = "compare selftest --backends slub --runs 4 --seed 5 --json r.json -- -n 2 -s 50 -b slub -v 1 -d 60";
    let (status, text, error) = bench(&directory, arguments);
    assert_eq!(status, 0, "{error}");
    let report = Report::read(&directory.path().join("r.json")).unwrap();
    // The floor is not slow: a third of slub's time is its own.
    let share = report.rows[0].share_pct.expect("a share");
    assert!((30.0..37.0).contains(&share), "{share}");
    assert!(text.contains("34%") && text.contains("alloc"), "{text}");
    assert_eq!(report.floor.len(), 2);
    assert_eq!(report.floor[0].samples.len(), 3);
    let latencies = report.rows[1].histogram.as_ref().expect("latencies");
    assert_eq!(latencies.total(), 4000);
    let median = latencies.quantile(0.5).unwrap();
    assert!((140..=165).contains(&median), "{median}");
    assert!(report.rows[0].rss_series.len() >= 2);
    // The first look may find a process that has hardly begun.
    let seen = report.rows[0].rss_series.iter().map(|(_, kib)| *kib);
    assert!(seen.max() > Some(100));
    assert_eq!(report.pagemaps.len(), 1);
    assert_eq!(report.pagemaps[0].backend, "slub");
}
