//! fork: from signal handlers that interrupted malloc, with handlers that allocate, from several
//! threads at once, with other threads at work.

mod common;

use common::{BACKENDS, Run, compile};

/// A handler that forks while malloc is interrupted, alone and with other threads.
#[test]
fn in_a_signal_handler() {
    let program = compile("c/fork_in_signal.c", &[]);
    for backend in BACKENDS {
        for args in [
            ["0", "300", "0"],
            ["3", "150", "0"],
            ["0", "300", "1"],
            ["3", "150", "1"],
        ] {
            let outcome = Run::under(&program, Some(backend))
                .args(args)
                .limit(90)
                .run();
            let outcome = outcome.expect_success(&format!("{backend} {args:?}"));
            print!("{backend} {args:?} {}", outcome.stderr);
        }
    }
}

/// Handlers of the program that allocate, registered before and after the library's.
#[test]
fn with_handlers_that_allocate() {
    let program = compile("c/atfork_nested.c", &[]);
    Run::plain(&program)
        .run()
        .expect_success("the test program without a preload");
    for backend in BACKENDS {
        Run::under(&program, Some(backend))
            .limit(90)
            .run()
            .expect_success(backend);
    }
}

/// Threads that fork while others are in the middle of a fork, with children that allocate.
#[test]
fn by_several_threads_at_once() {
    let program = compile("c/fork_at_once.c", &[]);
    for backend in BACKENDS {
        Run::under(&program, Some(backend))
            .limit(90)
            .run()
            .expect_success(backend);
    }
}
