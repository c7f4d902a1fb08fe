//! `percpu=rseq`: slots that are CPUs, and what happens where they are not to be had.

mod common;

use std::path::Path;

use common::{BACKENDS, Outcome, Run, compile, fresh_dir, need};

/// The line of `stats=exit` about slots.
fn slots(outcome: &Outcome) -> &str {
    let line = outcome.stderr.lines().find(|l| l.starts_with("slots: "));
    line.unwrap_or_else(|| panic!("no line about slots: {}", outcome.stderr))
}

/// A counter of that line.
fn count(outcome: &Outcome, name: &str) -> u64 {
    let line = slots(outcome);
    line.split([',', ':'])
        .find_map(|part| part.trim().strip_prefix(name)?.trim().parse().ok())
        .unwrap_or_else(|| panic!("no counter {name}: {line}"))
}

/// Whether this machine has them at all; a failure where `CI` is set.
fn available(program: &Path) -> bool {
    let outcome = Run::preloaded(program, "percpu=rseq,stats=exit")
        .args(["4", "1000"])
        .run()
        .expect_success("the stress program");
    let available = slots(&outcome).starts_with("slots: rseq:");
    if !available {
        assert!(std::env::var_os("CI").is_none(), "{}", outcome.stderr);
        println!("skipped: {}", outcome.stderr);
    }
    available
}

/// More threads than CPUs, signals and moves from CPU to CPU; the sections are interrupted, and
/// every object keeps its content.
#[test]
fn contents_survive_interruptions() {
    let program = compile("c/percpu.c", &[]);
    if !available(&program) {
        return;
    }
    for backend in BACKENDS {
        let outcome = Run::preloaded(
            &program,
            &format!("backend={backend},percpu=rseq,stats=exit"),
        )
        .args(["16", "40000"])
        .run()
        .expect_success(backend);
        assert!(slots(&outcome).starts_with("slots: rseq:"), "{backend}");
        assert!(
            count(&outcome, "aborts") > 0,
            "{backend}: {}",
            slots(&outcome)
        );
        assert!(
            count(&outcome, "refills") > 0,
            "{backend}: {}",
            slots(&outcome)
        );
        assert!(
            count(&outcome, "flushes") > 0,
            "{backend}: {}",
            slots(&outcome)
        );
        assert!(
            count(&outcome, "trims") > 0,
            "{backend}: {}",
            slots(&outcome)
        );
        assert_eq!(count(&outcome, "unavailable"), 0, "{backend}");
        println!("{backend}: {}", slots(&outcome));
    }
}

fn falls_back(outcome: &Outcome, why: &str) {
    let lines: Vec<_> = outcome
        .stderr
        .lines()
        .filter(|line| line.contains("percpu=rseq"))
        .collect();
    assert_eq!(lines.len(), 1, "{}", outcome.stderr);
    assert!(lines[0].contains(why), "{}", lines[0]);
    assert!(lines[0].ends_with("slots are threads"), "{}", lines[0]);
    assert!(
        slots(outcome).starts_with("slots: thread:"),
        "{}",
        outcome.stderr
    );
    assert_eq!(count(outcome, "unavailable"), 1);
    assert_eq!(count(outcome, "refills"), 0, "no CPU slot was used");
}

/// glibc's switch: no thread is registered.
#[test]
fn without_registration_threads_serve() {
    let program = compile("c/percpu.c", &[]);
    for backend in BACKENDS {
        let outcome = Run::preloaded(
            &program,
            &format!("backend={backend},percpu=rseq,stats=exit"),
        )
        .env("GLIBC_TUNABLES", "glibc.pthread.rseq=0")
        .args(["4", "1000"])
        .run()
        .expect_success(backend);
        falls_back(&outcome, "has not registered");
    }
}

/// valgrind knows no restartable sequences.
#[test]
fn under_valgrind_threads_serve() {
    let Some(valgrind) = need("valgrind") else {
        return;
    };
    let program = compile("c/percpu.c", &[]);
    // The preload is the program's, not valgrind's.
    let log = fresh_dir("valgrind").join("log");
    let outcome = Run::plain(valgrind)
        .args(["--tool=none", "--trace-children=yes"])
        .arg(format!("--log-file={}", log.display()))
        .arg("env")
        .arg(format!("LD_PRELOAD={}", common::library().display()))
        .arg("SLABMALLOC_CONF=percpu=rseq,stats=exit")
        .arg(&program)
        .args(["2", "50"])
        .run()
        .expect_success("under valgrind");
    falls_back(&outcome, "has not registered");
}

/// The setting, and what it led to.
#[test]
fn verbose_names_the_slots_in_force() {
    let program = compile("c/percpu.c", &[]);
    for (conf, mode) in [("percpu=auto", "thread"), ("percpu=thread", "thread")] {
        let outcome = Run::preloaded(&program, &format!("{conf},verbose=1"))
            .args(["1", "10"])
            .run()
            .expect_success(conf);
        let wanted = format!("slabmalloc: slots in force: {mode}");
        assert!(
            outcome.stderr.contains(&wanted),
            "{conf}: {}",
            outcome.stderr
        );
    }
    if available(&program) {
        let outcome = Run::preloaded(&program, "percpu=rseq,verbose=1")
            .args(["1", "10"])
            .run()
            .expect_success("percpu=rseq");
        let wanted = "slabmalloc: slots in force: rseq";
        assert!(outcome.stderr.contains(wanted), "{}", outcome.stderr);
    }
}

/// Threads that wait hold nothing; what CPUs hold is given back by malloc_trim.
#[test]
fn idle_threads_keep_little() {
    let program = compile("c/idle_threads.c", &[]);
    if !available(&compile("c/percpu.c", &[])) {
        return;
    }
    for backend in BACKENDS {
        Run::preloaded(&program, &format!("backend={backend},percpu=rseq"))
            .arg("8192")
            .run()
            .expect_success(backend);
    }
}
