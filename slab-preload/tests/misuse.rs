//! The C programs of `tests/cases/misuse`: each does one bad thing.
//!
//! By default double frees, frees of what is no object, and sized frees and reallocs of the
//! wrong thing must stop the process with one line that names the fault and the pointer; with
//! `secure=1` nearly everything must. `cargo run --release -p slab-preload --example misuse_table`
//! prints both.
//! Overflows and writes to freed memory may go unnoticed, but must not hand a block out twice or
//! hand out an attacker's address.

mod common;

use std::path::PathBuf;
use std::sync::{Mutex, OnceLock};

use common::faults::{self, Mode, Verdict, name_of};
use common::{BACKENDS, Run, in_parallel};

fn programs() -> &'static [PathBuf] {
    static PROGRAMS: OnceLock<Vec<PathBuf>> = OnceLock::new();
    PROGRAMS.get_or_init(faults::programs)
}

/// Runs everything in a mode; `check` sees each verdict and says what is wrong with it. The table
/// is printed, and the number of programs stopped under each backend returned.
fn run_all(
    mode: Mode,
    check: impl Fn(&str, &common::Outcome, Verdict) -> Result<(), String> + Sync,
) -> [usize; BACKENDS.len()] {
    assert_eq!(programs().len(), 20, "every program is there");
    let failures = Mutex::new(Vec::new());
    let rows = Mutex::new(Vec::new());
    let stopped = Mutex::new([0; BACKENDS.len()]);
    in_parallel(programs(), |program| {
        let name = name_of(program);
        let mut row = format!("{name:<30}");
        for (b, backend) in BACKENDS.into_iter().enumerate() {
            let outcome = faults::run(program, backend, mode);
            let verdict = faults::verdict(&name, &outcome);
            row += &format!("{:<12}", verdict.word(&outcome));
            stopped.lock().expect("no panic")[b] += usize::from(verdict.stopped());
            let fail = |why: String| {
                let mut failures = failures.lock().expect("no panic");
                failures.push(format!("{name}, {backend}: {why}\n    {}", outcome.stderr));
            };
            if let Err(why) = check(&name, &outcome, verdict) {
                fail(why);
            }
            if faults::must_not_harm(&name, mode) && verdict == Verdict::Harm {
                fail("harm was done".to_owned());
            }
        }
        rows.lock().expect("no panic").push(row);
    });
    let mut rows = rows.into_inner().expect("no panic");
    rows.sort();
    let header: String = BACKENDS
        .iter()
        .map(|backend| format!("{backend:<12}"))
        .collect();
    println!("{:<30}{header}\n{}", "", rows.join("\n"));
    let failures = failures.into_inner().expect("no panic");
    assert!(
        failures.is_empty(),
        "{} failures:\n  {}",
        failures.len(),
        failures.join("\n  ")
    );
    stopped.into_inner().expect("no panic")
}

#[test]
fn default_mode() {
    run_all(Mode::Default, |name, outcome, _| {
        if faults::must_be_detected(name) {
            faults::detected(name, outcome)
        } else {
            Ok(())
        }
    });
}

/// `secure=1` stops nearly everything. What depends on chance (a canary's byte that happens to be
/// the one written, an object without a neighbour) may make two of the 19 go unnoticed, never more.
#[test]
fn secure_mode() {
    let stopped = run_all(Mode::Secure, |name, outcome, verdict| {
        if faults::is_question(name) {
            return match verdict {
                Verdict::Unnoticed => Ok(()),
                _ => Err(format!("must exit with 0: {}", outcome.ending())),
            };
        }
        // What is detected by default is never a matter of chance.
        if faults::must_be_detected(name) {
            return faults::detected(name, outcome);
        }
        match verdict {
            Verdict::Other => Err(outcome.ending()),
            _ => Ok(()),
        }
    });
    for (backend, stopped) in BACKENDS.into_iter().zip(stopped) {
        assert!(
            stopped >= 17,
            "{backend}: only {stopped} of 19 were stopped"
        );
    }
}

/// `on_error=report` names the fault and goes on; `ignore` goes on in silence.
#[test]
fn on_error() {
    let program = programs()
        .iter()
        .find(|program| name_of(program) == "d01_double_free")
        .expect("the program");
    for backend in BACKENDS {
        let outcome = Run::preloaded(program, &format!("backend={backend},on_error=report")).run();
        assert_eq!(
            outcome.status.code(),
            Some(0),
            "{backend}: report: {} {}",
            outcome.ending(),
            outcome.stderr
        );
        assert_eq!(
            outcome.stderr.lines().count(),
            1,
            "{backend}: report: {}",
            outcome.stderr
        );
        assert!(
            outcome.stderr.contains("0x"),
            "{backend}: report: {}",
            outcome.stderr
        );
        let outcome = Run::preloaded(program, &format!("backend={backend},on_error=ignore")).run();
        assert_eq!(
            outcome.status.code(),
            Some(0),
            "{backend}: ignore: {} {}",
            outcome.ending(),
            outcome.stderr
        );
        assert_eq!(outcome.stderr, "", "{backend}: ignore");
    }
}
