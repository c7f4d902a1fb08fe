//! A runner for loom models: counts them, and fails when there were none.
//!
//! The model targets have no test harness of their own, so that `cargo loom` can
//! say how many models ran, and so that a build in which `--cfg loom` was dropped
//! (a set `RUSTFLAGS` hides the alias's flags) fails instead of passing emptily.

// Runs in test binaries only.
#![allow(clippy::disallowed_methods, clippy::disallowed_macros)]

/// Runs the named models in turn; to be returned from `main`. A word on the
/// command line runs only the models whose name contains it.
#[cfg(loom)]
pub fn run(models: &[(&str, fn())]) -> std::process::ExitCode {
    let filter = std::env::args()
        .skip(1)
        .find(|a| !a.starts_with('-'))
        .unwrap_or_default();
    let mut ran = 0;
    for (name, model) in models.iter().filter(|(name, _)| name.contains(&filter)) {
        let start = std::time::Instant::now();
        model();
        println!(
            "model {name} ... ok ({:.1} s)",
            start.elapsed().as_secs_f32()
        );
        ran += 1;
    }
    println!("models: {ran} passed, 0 failed");
    if ran == 0 {
        eprintln!("no model ran: none is named {filter:?}");
        return std::process::ExitCode::FAILURE;
    }
    std::process::ExitCode::SUCCESS
}

/// Without `--cfg loom` there is nothing to run; under `cargo loom` that is an
/// error.
#[cfg(not(loom))]
pub fn run(_: &[(&str, fn())]) -> std::process::ExitCode {
    if std::env::var_os("SLAB_LOOM").is_some() {
        eprintln!("--cfg loom was dropped: unset RUSTFLAGS and run `cargo loom` again");
        return std::process::ExitCode::FAILURE;
    }
    println!("models run under `cargo loom` only");
    std::process::ExitCode::SUCCESS
}
