//! The C programs of `tests/cases`, each distilled from public reports against other allocators,
//! under each backend, and under its hardened heap.

mod common;

use std::path::PathBuf;
use std::sync::{Mutex, OnceLock};

use common::{Run, SECURE, compile_all, in_parallel};

fn programs() -> &'static [PathBuf] {
    static PROGRAMS: OnceLock<Vec<PathBuf>> = OnceLock::new();
    PROGRAMS.get_or_init(|| compile_all("cases"))
}

fn all_pass(backend: Option<&str>) {
    assert_eq!(programs().len(), 26, "every program is there");
    let failures = Mutex::new(Vec::new());
    in_parallel(programs(), |program| {
        let name = program
            .file_name()
            .expect("a name")
            .to_string_lossy()
            .into_owned();
        let outcome = Run::under(program, backend).run();
        match outcome.status.code() {
            Some(0) => {}
            Some(77) => println!("{name}: not applicable here"),
            _ => failures.lock().expect("no panic").push(format!(
                "{name}: {}\n    {}",
                outcome.ending(),
                outcome.stderr.trim_end()
            )),
        }
    });
    let failures = failures.into_inner().expect("no panic");
    assert!(
        failures.is_empty(),
        "{} of {} fail:\n  {}",
        failures.len(),
        programs().len(),
        failures.join("\n  ")
    );
}

#[test]
fn without_a_preload() {
    all_pass(None);
}

#[test]
fn unified() {
    all_pass(Some("unified"));
}

#[test]
fn slub() {
    all_pass(Some("slub"));
}

#[test]
fn slab() {
    all_pass(Some("slab"));
}

#[test]
fn unified_v4() {
    all_pass(Some("unified:v4"));
}

#[test]
fn unified_secure() {
    all_pass(Some(SECURE[0]));
}

#[test]
fn slub_secure() {
    all_pass(Some(SECURE[1]));
}

#[test]
fn slab_secure() {
    all_pass(Some(SECURE[2]));
}

#[test]
fn unified_on_cpus() {
    all_pass(Some("unified,percpu=rseq"));
}

#[test]
fn slub_on_cpus() {
    all_pass(Some("slub,percpu=rseq"));
}

#[test]
fn slab_on_cpus() {
    all_pass(Some("slab,percpu=rseq"));
}

#[test]
fn unified_secure_on_cpus() {
    all_pass(Some("unified,secure=1,percpu=rseq"));
}
