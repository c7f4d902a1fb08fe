//! Ways for the library to get into a process, other than LD_PRELOAD.

mod common;

use std::path::Path;

use common::{BACKENDS, Run, compile, library};

/// Opened late and closed again, beside the program's own malloc.
#[test]
fn opened_and_closed() {
    let program = compile("c/dlopen.c", &[]);
    for backend in BACKENDS {
        Run::plain(&program)
            .arg(library())
            .env("SLABMALLOC_CONF", format!("backend={backend}"))
            .run()
            .expect_success(backend);
    }
}

/// Linked to by name, as `cc prog.c -lslab_preload` does.
#[test]
fn linked() {
    let directory = library()
        .parent()
        .and_then(Path::to_str)
        .expect("a UTF-8 path");
    let rpath = format!("-Wl,-rpath,{directory}");
    let program = compile(
        "c/info.c",
        &[
            "-L",
            directory,
            "-Wl,--no-as-needed",
            "-lslab_preload",
            &rpath,
        ],
    );
    for backend in BACKENDS {
        let conf = format!("backend={backend},stats=exit");
        let outcome = Run::plain(&program)
            .env("SLABMALLOC_CONF", &conf)
            .run()
            .expect_success(&conf);
        assert!(
            outcome.stderr.contains("slabinfo - version"),
            "{backend}: {}",
            outcome.stderr
        );
    }
}
