//! Workloads that compare mallocs: ours are the preloaded library, broken mallocs fail, errors say what to do.

use assert_cmd::Command;
use serde_json::Value;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

fn bench(directory: &TempDir, arguments: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_bench-suite"));
    command
        .current_dir(directory.path())
        .args(arguments.split_whitespace())
        .env_remove("SLABMALLOC_CONF");
    command
}

fn temp() -> TempDir {
    tempfile::tempdir().expect("a temporary directory")
}

/// Compiles `source` into a library.
fn library(directory: &TempDir, source: &str) -> PathBuf {
    let file = directory.path().join("malloc.c");
    std::fs::write(&file, source).unwrap();
    let so = directory.path().join("malloc.so");
    let status = std::process::Command::new("gcc")
        .args(["-O1", "-fno-builtin", "-shared", "-fPIC", "-o"])
        .arg(&so)
        .arg(&file)
        .status()
        .unwrap();
    assert!(status.success());
    so
}

/// Runs and returns the status, standard output, standard error.
fn output(mut command: Command) -> (i32, String, String) {
    let output = command.output().unwrap();
    (
        output.status.code().expect("no signal"),
        String::from_utf8(output.stdout).unwrap(),
        String::from_utf8(output.stderr).unwrap(),
    )
}

fn read_json(path: &Path) -> Value {
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

#[test]
fn every_backend_takes_part_in_classic_and_programs_as_the_preloaded_library() {
    let directory = temp();
    let backends = "--backends system,unified,slub,slab --runs 1 --json out.json --markdown out.md";
    // The settings in force prove which backend the library ran.
    let mut classic = bench(
        &directory,
        &format!("compare classic {backends} -- -r larson,idle -n 1"),
    );
    classic.env("SLABMALLOC_CONF", "verbose=1");
    let (status, text, errors) = output(classic);
    assert_eq!(status, 0, "{text}{errors}");
    for backend in ["unified", "slub", "slab"] {
        let said = errors.lines().any(|line| {
            line.starts_with(&format!("{backend}: "))
                && line.contains(&format!("backend={backend} "))
        });
        assert!(said, "{backend} is not in force:\n{errors}");
    }
    assert!(
        text.contains("geometric means of ratios to system"),
        "{text}"
    );
    let report = read_json(&directory.path().join("out.json"));
    let rows = report["rows"].as_array().unwrap();
    assert_eq!(
        rows.len(),
        3 * 4,
        "larson, and idle-threads' time and memory"
    );
    assert!(
        rows.iter()
            .all(|row| row["rss_peak_kib"].as_u64().unwrap() > 0)
    );
    let markdown = std::fs::read_to_string(directory.path().join("out.md")).unwrap();
    assert!(markdown.contains("geometric means"));

    let programs = format!("compare programs {backends} -- -r perl -n 5");
    let (status, text, errors) = output(bench(&directory, &programs));
    assert_eq!(status, 0, "{text}{errors}");
    assert!(text.contains("best peer"), "{text}");
}

#[test]
fn a_malloc_that_hands_out_a_block_twice_fails_the_row() {
    let directory = temp();
    let so = library(
        &directory,
        "#include <stddef.h>\nextern void *__libc_malloc(size_t); extern void __libc_free(void *);\n\
         static char same[64] __attribute__((aligned(16))); static int calls;\n\
         void *malloc(size_t n) { return n == 64 && ++calls > 2000 ? same : __libc_malloc(n); }\n\
         void free(void *p) { if (p != same) __libc_free(p); }\n",
    );
    let arguments = format!(
        "compare classic --backends system,so:{} --runs 1 -- -r threadtest -n 1",
        so.display()
    );
    let (status, text, _) = output(bench(&directory, &arguments));
    assert_eq!(status, 1, "{text}");
    assert!(
        text.contains("FAILED classic threadtest on so:") && text.contains("was overwritten"),
        "{text}"
    );
    // The other malloc's row is still there.
    let report = read_json(&directory.path().join("results/latest.json"));
    assert_eq!(report["rows"][0]["backend"], "system");
}

#[test]
fn a_realloc_that_loses_the_contents_fails_the_row() {
    let directory = temp();
    let so = library(
        &directory,
        "#include <stddef.h>\n#include <string.h>\nextern void *__libc_malloc(size_t);\n\
         extern void *__libc_realloc(void *, size_t);\n\
         void *realloc(void *p, size_t n) { void *q = __libc_realloc(p, n);\n\
         if (q && n == 131072) memset(q, 0, 8); return q; }\n",
    );
    let arguments = format!(
        "compare classic --backends so:{} --runs 1 -- -r realloc/large -n 1",
        so.display()
    );
    let (status, text, _) = output(bench(&directory, &arguments));
    assert_eq!(status, 1, "{text}");
    assert!(text.contains("realloc lost the contents"), "{text}");
}

#[test]
fn a_library_that_programs_cannot_load_fails_them() {
    let directory = temp();
    // The dynamic linker only warns of what is no library: the program would run on another malloc.
    let text_file = directory.path().join("text.so");
    std::fs::write(&text_file, "not a library").unwrap();
    let arguments = format!(
        "compare programs --backends so:{} --runs 1 -- -r perl -n 1",
        text_file.display()
    );
    let (status, text, _) = output(bench(&directory, &arguments));
    assert_eq!(status, 1, "{text}");
    assert!(text.contains("cannot be preloaded"), "{text}");
}

#[test]
fn bad_arguments_say_what_to_do() {
    let cases = [
        ("compare classic --against fedora", "debian, rivals"),
        ("compare classic -- -r lasron", "larson, threadtest"),
        ("compare classic -- -n none", "-n 'none'"),
        (
            "compare programs -- -r emacs",
            "python3, python3/malloc, gcc",
        ),
    ];
    for (arguments, part) in cases {
        let directory = temp();
        let (status, text, error) = output(bench(&directory, arguments));
        assert_eq!(status, 2, "{arguments}: {error}");
        assert!(text.is_empty() && error.lines().count() == 1, "{error}");
        assert!(error.contains(part), "{arguments}: {error}");
    }
    let directory = temp();
    let mut command = bench(&directory, "compare classic --backends unified");
    command.env("SLAB_PRELOAD_LIB", "/nonexistent/lib.so");
    let (status, _, error) = output(command);
    assert_eq!(status, 2);
    assert!(
        error.contains("SLAB_PRELOAD_LIB=/nonexistent/lib.so"),
        "{error}"
    );
}

#[test]
fn list_names_the_rows_of_both_workloads() {
    let (status, text, _) = output(bench(&temp(), "list"));
    assert_eq!(status, 0);
    for part in [
        "classic: ",
        "cross-thread/16t",
        "latency/p99.99",
        "programs: ",
        "perl",
        "--against",
    ] {
        assert!(text.contains(part), "no {part} in\n{text}");
    }
}
