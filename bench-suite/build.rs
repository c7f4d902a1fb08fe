//! Records what the binary was built with: the compiler's version and the git revision of the sources.

use std::path::Path;
use std::process::Command;

fn first_line(program: &str, args: &[&str]) -> Option<String> {
    let output = Command::new(program).args(args).output().ok()?;
    if !output.status.success() {
        return None;
    }
    let text = String::from_utf8(output.stdout).ok()?;
    text.lines().next().map(str::to_owned)
}

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // Every commit and checkout appends to this log; a tree without git has no revision to record.
    let log = Path::new("../.git/logs/HEAD");
    if log.exists() {
        println!("cargo::rerun-if-changed={}", log.display());
    }
    let rustc = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".to_owned());
    let version = first_line(&rustc, &["--version"]).unwrap_or_else(|| "unknown".to_owned());
    let revision = first_line("git", &["rev-parse", "--short=12", "HEAD"])
        .unwrap_or_else(|| "unknown".to_owned());
    println!("cargo::rustc-env=BENCH_SUITE_RUSTC={version}");
    println!("cargo::rustc-env=BENCH_SUITE_REVISION={revision}");
}
