//! The C programs of `tests/cases/misuse`: each does one bad thing.
//!
//! By default double frees, frees of what is no object, and sized frees and reallocs of the
//! wrong thing must stop the process with one line that names the fault and the pointer.
//! Overflows and writes to freed memory may go unnoticed, but must not hand a block out twice or
//! hand out an attacker's address.

mod common;

use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock};

use common::{BACKENDS, Outcome, Run, compile_all, in_parallel};

fn programs() -> &'static [PathBuf] {
    static PROGRAMS: OnceLock<Vec<PathBuf>> = OnceLock::new();
    PROGRAMS.get_or_init(|| compile_all("cases/misuse"))
}

fn name_of(program: &Path) -> String {
    program
        .file_name()
        .expect("a name")
        .to_string_lossy()
        .into_owned()
}

/// Must the default mode stop this program?
fn must_be_detected(name: &str) -> bool {
    name.starts_with(['d', 'f']) || name.starts_with("s01") || name.starts_with("u06")
}

/// Must the harm that the program looks for (exit 3) never happen?
fn must_not_harm(name: &str) -> bool {
    name.starts_with(['d', 'f', 'u'])
}

/// The words of which a message about this program's fault must hold one.
fn faults(name: &str) -> &'static [&'static str] {
    match &name[..3] {
        "f01" | "f03" => &["middle of an object", "middle of a large object"],
        "f02" => &["misaligned"],
        "f04" | "f06" | "f08" => &["foreign"],
        "u06" => &["realloc of a pointer that is no object in use"],
        "s01" => &["size of another class"],
        _ => &["double free"],
    }
}

/// Stopped by abort() with one line that names the fault and an address?
fn detected(name: &str, outcome: &Outcome) -> Result<(), String> {
    if !outcome.aborted() {
        return Err(outcome.ending());
    }
    let lines: Vec<&str> = outcome.stderr.lines().collect();
    let [line] = lines[..] else {
        return Err(format!("{} lines on stderr", lines.len()));
    };
    if !faults(name).iter().any(|fault| line.contains(fault)) {
        return Err(format!("does not name the fault: {line}"));
    }
    let address = if name.starts_with("f06") {
        "0x123456789000"
    } else {
        "0x"
    };
    if !line.contains(address) {
        return Err(format!("does not name the pointer: {line}"));
    }
    Ok(())
}

fn verdict(name: &str, outcome: &Outcome) -> String {
    match detected(name, outcome) {
        Ok(()) => "detected".to_owned(),
        Err(_) if outcome.aborted() => "stopped".to_owned(),
        Err(_) => match outcome.ending().as_str() {
            "exit 0" => "unnoticed".to_owned(),
            "exit 3" => "HARM".to_owned(),
            other => other.to_owned(),
        },
    }
}

#[test]
fn default_mode() {
    let failures = Mutex::new(Vec::new());
    let rows = Mutex::new(Vec::new());
    in_parallel(programs(), |program| {
        let name = name_of(program);
        let mut row = format!("{name:<30}");
        for backend in BACKENDS {
            let outcome = Run::under(program, Some(backend)).run();
            row += &format!("{:<12}", verdict(&name, &outcome));
            let fail = |why: String| {
                failures
                    .lock()
                    .expect("no panic")
                    .push(format!("{name}, {backend}: {why}"))
            };
            if must_be_detected(&name)
                && let Err(why) = detected(&name, &outcome)
            {
                fail(why);
            }
            if must_not_harm(&name) && outcome.status.code() == Some(3) {
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
