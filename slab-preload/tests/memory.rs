//! Memory that is given back, and memory that does not grow.
//!
//! `cargo test -p slab-preload --test memory -- --ignored` runs what takes a minute a piece.

mod common;

use common::{BACKENDS, Run, compile, in_parallel};

/// Ways to use 300 MB and free them, as `given_back.c` has them.
const WAYS: [&str; 6] = ["small", "mixed", "large", "thread", "handed", "drift"];

fn given_back(when: &str, conf: &str) {
    let program = compile("c/given_back.c", &[]);
    let all: Vec<(&str, &str)> = BACKENDS
        .iter()
        .flat_map(|backend| WAYS.map(|way| (*backend, way)))
        .collect();
    in_parallel(&all, |(backend, way)| {
        let what = format!("{backend}, {way}, {when}");
        let outcome = Run::preloaded(&program, &format!("backend={backend},{conf}"))
            .args([way, when])
            .run()
            .expect_success(&what);
        print!("{what}: {}", outcome.stdout_text());
    });
}

/// 1.5 s after, with 300 calls a second and all of them fast paths.
#[test]
fn given_back_under_light_activity() {
    given_back("light", "");
}

/// 2 s after, with 20,000 calls a second in short bursts, nearly all of them fast paths.
#[test]
fn given_back_between_bursts() {
    given_back("bursts", "");
}

/// At once after malloc_trim.
#[test]
fn given_back_by_trim() {
    given_back("trim", "");
}

/// After a churn the few blocks that stay keep their pages, the page records, and not much more:
/// 1.1 to 1.3 times their pages, where a map that stays and free objects that hold links make it
/// 2.4 and 5 times.
#[test]
fn blocks_that_stay_keep_little_else() {
    let program = compile("c/pinned.c", &[]);
    for backend in BACKENDS {
        for conf in ["hugepage=auto", "hugepage=on"] {
            let what = format!("{backend}, {conf}");
            let outcome = Run::preloaded(&program, &format!("backend={backend},{conf}"))
                .args(["140"])
                .run()
                .expect_success(&what);
            print!("{what}: {}", outcome.stdout_text());
        }
    }
}

/// khugepaged fills partly purged huge pages again, after half a minute or so.
#[test]
#[ignore = "a minute a piece: cargo test -p slab-preload --test memory -- --ignored"]
fn still_given_back_after_a_minute_of_huge_pages() {
    given_back("60", "hugepage=on");
}

/// Threads come and go and leave blocks to one another.
#[test]
fn abandoned_blocks() {
    let program = compile("c/abandoned.c", &[]);
    for backend in BACKENDS {
        // Without huge pages, of which each that is touched counts as a whole.
        let outcome = Run::preloaded(&program, &format!("backend={backend},hugepage=off"))
            .run()
            .expect_success(backend);
        print!("{backend}: {}", outcome.stdout_text());
    }
}

/// What an idle thread keeps, its stack included; and what a small program has of its own: its
/// RSS counts the library's text as well, which every process shares. A slab of slub belongs to one
/// thread alone, of which it needs at least one of each size: hence its larger figure.
#[test]
fn idle_threads_and_small_programs() {
    let program = compile("c/idle.c", &[]);
    for (backend, conf, most) in [
        ("unified", "hugepage=auto", "24"),
        ("slab", "hugepage=auto", "24"),
        ("slub", "hugepage=off", "40"),
    ] {
        for args in [&[most][..], &["small", "1536"]] {
            let outcome = Run::preloaded(&program, &format!("backend={backend},{conf}"))
                .args(args)
                .run()
                .expect_success(&format!("{backend} {args:?}"));
            print!("{backend} {args:?}: {}", outcome.stdout_text());
        }
    }
}
