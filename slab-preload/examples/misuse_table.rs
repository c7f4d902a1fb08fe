//! What becomes of programs that misuse malloc, by default and with `secure=1`, under each backend:
//!
//! ```text
//! cargo run --release -p slab-preload --example misuse_table
//! ```
//!
//! The programs are those of `tests/cases/misuse`, compiled with gcc. The exit status is 1 when a
//! secure mode stops fewer than 17 of the 19 misuses, hands out addresses in order, or lets harm
//! happen; `tests/misuse.rs` enforces more.

#[path = "../tests/common/mod.rs"]
mod common;

use std::process::ExitCode;

use common::BACKENDS;
use common::faults::{self, Mode, Verdict};

fn main() -> ExitCode {
    let modes = [("default", Mode::Default), ("secure", Mode::Secure)];
    print!("{:<30}", "");
    for (mode, _) in modes {
        for backend in BACKENDS {
            print!("{:<18}", format!("{backend} {mode}"));
        }
    }
    println!();
    let programs = faults::programs();
    let mut stopped = [[0; BACKENDS.len()]; 2];
    let mut misuses = 0;
    let mut failed = false;
    for program in &programs {
        let name = faults::name_of(program);
        let question = faults::is_question(&name);
        misuses += usize::from(!question);
        print!("{name:<30}");
        for (m, (_, mode)) in modes.into_iter().enumerate() {
            for (b, backend) in BACKENDS.into_iter().enumerate() {
                let outcome = faults::run(program, backend, mode);
                let verdict = faults::verdict(&name, &outcome);
                print!("{:<18}", verdict.word(&outcome));
                stopped[m][b] += usize::from(verdict.stopped());
                failed |= verdict == Verdict::Harm && faults::must_not_harm(&name, mode);
                failed |= mode == Mode::Secure && question && verdict != Verdict::Unnoticed;
            }
        }
        println!();
    }
    print!("{:<30}", "stopped");
    for counts in stopped {
        for count in counts {
            print!("{:<18}", format!("{count} of {misuses}"));
        }
    }
    println!(
        "\n\nstopped: one line that names fault and pointer, then abort. SIGSEGV: at a guard page.\n\
         exit 0: went unnoticed. HARM: the damage that the program looks for (exit 3)."
    );
    failed |= stopped[1].iter().any(|count| *count < 17);
    ExitCode::from(u8::from(failed))
}
