//! What the programs of `cases/misuse` do wrong, and what must come of it: by default and with
//! `secure=1`. Shared by the tests and by the table (`examples/misuse_table.rs`).

use std::path::{Path, PathBuf};

use super::{Outcome, Run, compile_all};

/// How the library is set up.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    Default,
    Secure,
}

/// What came of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Stopped by one line that names the fault, and abort().
    Line,
    /// Stopped by an access to a guard page.
    Guard,
    /// Went to its end without harm.
    Unnoticed,
    /// The harm that the program looks for (exit 3).
    Harm,
    /// Anything else: another message, a crash, a time-out.
    Other,
}

impl Verdict {
    pub fn stopped(self) -> bool {
        matches!(self, Verdict::Line | Verdict::Guard)
    }

    pub fn word(self, outcome: &Outcome) -> String {
        match self {
            Verdict::Line => "stopped".to_owned(),
            Verdict::Guard => "SIGSEGV".to_owned(),
            Verdict::Harm => "HARM".to_owned(),
            Verdict::Unnoticed | Verdict::Other => outcome.ending(),
        }
    }
}

/// The programs, compiled.
pub fn programs() -> Vec<PathBuf> {
    compile_all("cases/misuse")
}

/// A program's name.
pub fn name_of(program: &Path) -> String {
    program
        .file_name()
        .expect("a name")
        .to_string_lossy()
        .into_owned()
}

/// Runs a program under a backend in a mode.
pub fn run(program: &Path, backend: &str, mode: Mode) -> Outcome {
    let secure = u8::from(mode == Mode::Secure);
    Run::preloaded(program, &format!("backend={backend},secure={secure}")).run()
}

/// Is it no misuse but a question: whether addresses can be foretold?
pub fn is_question(name: &str) -> bool {
    name.starts_with('r')
}

/// Must the default mode stop this program?
pub fn must_be_detected(name: &str) -> bool {
    name.starts_with(['d', 'f']) || name.starts_with("s01") || name.starts_with("u06")
}

/// Must the harm that the program looks for (exit 3) never happen?
pub fn must_not_harm(name: &str, mode: Mode) -> bool {
    mode == Mode::Secure || name.starts_with(['d', 'f', 'u'])
}

/// The words of which a message about this program's fault must hold one.
fn faults(name: &str) -> &'static [&'static str] {
    match &name[..3] {
        "f01" | "f03" => &["middle of an object", "middle of a large object"],
        "f02" => &["misaligned"],
        "f04" | "f06" | "f08" => &["foreign"],
        "u06" => &["realloc of a pointer that is no object in use"],
        "s01" => &["size of another class"],
        "o01" | "o06" | "z01" => &["write behind the end"],
        // The bytes belong to a neighbour's canary too, and are seen from either side.
        "o03" | "o04" => &["write before the start", "write behind the end"],
        "u01" | "u02" => &["write to freed memory", "free object was overwritten"],
        _ => &["double free"],
    }
}

/// Stopped by abort() with one line that names the fault and an address?
pub fn detected(name: &str, outcome: &Outcome) -> Result<(), String> {
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

/// What came of a program. Only an overflow may end at a guard page.
pub fn verdict(name: &str, outcome: &Outcome) -> Verdict {
    if detected(name, outcome).is_ok() {
        return Verdict::Line;
    }
    if outcome.segfaulted() && name.starts_with('o') {
        return Verdict::Guard;
    }
    match outcome.status.code() {
        Some(0) => Verdict::Unnoticed,
        Some(3) => Verdict::Harm,
        _ => Verdict::Other,
    }
}
