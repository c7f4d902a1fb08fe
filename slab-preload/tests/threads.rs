//! Threads: their ends, their starts without memory, blocks that change hands; and a sandbox.

mod common;

use std::path::Path;

use common::{BACKENDS, Run, compile};

fn passes(source: &str, args: &[&str]) {
    let program = compile(source, &[]);
    let plain = Run::plain(&program).args(args).run();
    if plain.status.code() == Some(77) {
        println!("skipped: {source} is not applicable here");
        return;
    }
    plain.expect_success("the test program without a preload");
    passes_preloaded(&program, args);
}

fn passes_preloaded(program: &Path, args: &[&str]) {
    for backend in BACKENDS {
        Run::under(program, Some(backend))
            .args(args)
            .run()
            .expect_success(&format!("{args:?}, {backend}"));
    }
}

/// Frees and allocations after the thread's slot is gone.
#[test]
fn late_frees() {
    passes("c/late_free.c", &[]);
}

/// Contents, alignment and sizes while blocks change hands.
#[test]
fn blocks_change_hands() {
    passes("c/stress.c", &[]);
}

/// No memory while threads start, by either limit.
#[test]
fn out_of_memory_while_threads_start() {
    // No run without a preload: glibc strands its memory in the arenas of the threads and does
    // not recover.
    let program = compile("c/threads_oom.c", &[]);
    passes_preloaded(&program, &["as"]);
    passes_preloaded(&program, &["data"]);
}

/// System calls that an allocator likes to have, refused.
#[test]
fn in_a_sandbox() {
    passes("c/sandbox.c", &[]);
}
