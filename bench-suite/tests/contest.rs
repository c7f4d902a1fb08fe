//! contest's tables and its search for leaks, from the command line; and the table of 4 March 2003 on the kernel list
//! ("2.5.63-mm2 + i/o schedulers with contest"), reproduced to the byte from its numbers.

use assert_cmd::Command;
use bench_suite::workloads::contest::drift::{self, Rest};
use bench_suite::workloads::contest::original::{Line, table, warning};

const MEM_LOAD: &str = include_str!("data/lkml_2003_contest_mem_load.txt");

/// Seconds without load. The mail does not print them; they follow from its ratios.
const NO_LOAD: [f64; 4] = [79.0, 79.0, 80.0, 79.0];

#[test]
fn the_table_of_2003_is_reproduced() {
    let lines: Vec<Line> = MEM_LOAD
        .lines()
        .skip(2)
        .zip(NO_LOAD)
        .map(|(line, no_load)| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let number = |i: usize| words[i].parse::<f64>().expect("a number");
            Line {
                name: words[0].to_owned(),
                runs: words[1].parse().expect("a count"),
                time: number(2),
                cpu: number(3),
                loads: number(4),
                load_cpu: number(5),
                // The ratio is computed.
                no_load: Some(no_load),
            }
        })
        .collect();
    assert_eq!(lines.len(), 4);
    assert_eq!(table("mem_load", &lines), MEM_LOAD);
}

#[test]
fn the_runs_of_2003_are_warned_about() {
    let times = [99.0, 148.0, 150.0];
    // Their mean is the row's time.
    assert_eq!(format!("{:.0}", times.iter().sum::<f64>() / 3.0), "132");
    let drift = drift::of_runs(&times, &[800_000.0; 3], Rest::Held);
    let text = warning("mem_load", "2.5.63-mm2", &times, drift).expect("a warning");
    assert!(
        text.contains("mem_load on 2.5.63-mm2: later runs take 49 % longer (99, 148, 150)"),
        "{text}"
    );
    assert!(!text.contains("suspected leak"), "{text}");
}

#[test]
fn a_planted_leak_is_named_and_a_sound_backend_is_not() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let arguments = "compare contest --backends slub,unified,test:leak --runs 2 -- -t no_load,ctar_load -m 3 -p 1";
    let output = Command::new(env!("CARGO_BIN_EXE_bench-suite"))
        .current_dir(directory.path())
        .args(arguments.split_whitespace())
        .assert()
        .success()
        .get_output()
        .clone();
    let text = String::from_utf8(output.stdout).expect("text");
    let head = "Kernel         [runs]   Time    CPU%    Loads   LCPU%   Ratio";
    assert!(
        text.contains(&format!("no_load:\n{head}\nslub                6")),
        "{text}"
    );
    for load in ["no_load", "ctar_load"] {
        assert!(
            text.contains(&format!("drift: {load} on test:leak: suspected leak")),
            "{text}"
        );
    }
    let leaks = text.lines().filter(|line| line.contains("suspected leak"));
    assert_eq!(leaks.count(), 2, "{text}");
}
