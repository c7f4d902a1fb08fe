//! `bench-suite footprint`: what an idle thread and a small program keep in memory, for every
//! allocator here.
//!
//! One C program runs under each. A thousand threads allocate, free everything and wait; what RSS
//! has grown by is divided by their number. The same with threads that never allocate is what a
//! thread itself costs: its stack and its thread-local storage. Last, a program that holds 1 MiB
//! in blocks of 16 to 515 bytes.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use serde_json::json;

use crate::fastpath::{Scratch, Subject, compile, subjects};
use crate::preload;

/// What is measured: the driver's argument, the column's title.
const COLUMNS: [(&str, &str); 4] = [
    ("bare", "thread alone"),
    ("one-size", "100 of 100 B"),
    ("many-sizes", "20 to 1 KiB"),
    ("small", "1 MiB live"),
];

/// Runs of each, of which the middle one counts.
const RUNS: usize = 3;

const DRIVER: &str = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
enum { THREADS = 1000, MOST = 100 };
static pthread_barrier_t ready;
static const char *mode;
static long rss_kb(void) {
    char text[128];
    int f = open("/proc/self/statm", O_RDONLY);
    ssize_t n = read(f, text, sizeof text - 1);
    close(f);
    text[n < 0 ? 0 : n] = 0;
    long size = 0, resident = 0;
    sscanf(text, "%ld %ld", &size, &resident);
    return resident * (sysconf(_SC_PAGESIZE) / 1024);
}
static void *idle(void *arg) {
    void *p[MOST];
    int n = !strcmp(mode, "one-size") ? 100 : !strcmp(mode, "many-sizes") ? 20 : 0;
    for (int i = 0; i < n; i++) {
        size_t size = n == 100 ? 100 : 16 + i * 53;
        p[i] = malloc(size);
        memset(p[i], 1, size);
    }
    for (int i = 0; i < n; i++) free(p[i]);
    pthread_barrier_wait(&ready);
    pause();
    return arg;
}
int main(int argc, char **argv) {
    mode = argv[1];
    if (!strcmp(mode, "small")) {
        static void *live[20000];
        unsigned seed = 1;
        long bytes = 0;
        for (int i = 0; bytes < 1 << 20; i++) {
            seed = seed * 1664525u + 1013904223u;
            size_t n = 16 + (seed >> 10) % 500;
            live[i] = malloc(n);
            memset(live[i], 1, n);
            bytes += n;
        }
        printf("%ld\n", rss_kb());
        return 0;
    }
    pthread_attr_t attr;
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, 256 << 10);
    pthread_barrier_init(&ready, 0, THREADS + 1);
    free(malloc(100));
    long before = rss_kb();
    for (int i = 0; i < THREADS; i++) {
        pthread_t t;
        if (pthread_create(&t, &attr, idle, 0)) return 1;
    }
    pthread_barrier_wait(&ready);
    printf("%.1f\n", (double)(rss_kb() - before) / THREADS);
    fflush(stdout);
    _exit(0);
}
"#;

const USAGE: &str = "usage: bench-suite footprint [--lib LIBSLAB_PRELOAD.SO] [--json FILE]\n\
    \n\
    kB of RSS for each of 1000 idle threads, and of a program with 1 MiB live, for every allocator here.\n\
    --lib FILE   the library to measure (default: built by cargo)\n\
    --json FILE  writes the figures ('-': to standard output)";

/// Runs the subcommand; the exit status is 0, 1 (a run failed) or 2 (bad arguments).
pub fn run(args: &[String]) -> ExitCode {
    let (mut library, mut json) = (None, None);
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let target = match arg.as_str() {
            "--lib" => &mut library,
            "--json" => &mut json,
            "--help" | "-h" => {
                println!("{USAGE}");
                return ExitCode::SUCCESS;
            }
            other => {
                eprintln!("bench-suite footprint: unknown argument {other}; --help lists them");
                return ExitCode::from(2);
            }
        };
        let Some(file) = args.next() else {
            eprintln!("bench-suite footprint: {arg} needs a file name");
            return ExitCode::from(2);
        };
        *target = Some(PathBuf::from(file));
    }
    match measure(library, json.as_deref()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("bench-suite footprint: {why}");
            ExitCode::FAILURE
        }
    }
}

fn measure(library: Option<PathBuf>, json: Option<&Path>) -> Result<(), String> {
    let directory = Scratch::new()?;
    let driver = directory.0.join("driver");
    compile(
        &directory.0.join("driver.c"),
        DRIVER,
        &driver,
        &["-O1", "-fno-builtin", "-pthread"],
    )?;
    let ours = match library {
        Some(path) => path
            .canonicalize()
            .map_err(|error| format!("{}: {error}", path.display()))?,
        None => preload::library()?.to_owned(),
    };
    println!(
        "kB of RSS: for each of 1000 idle threads that took and freed objects, and of a program with 1 MiB live\n"
    );
    let title: String = COLUMNS
        .iter()
        .map(|(_, title)| format!("{title:>16}"))
        .collect();
    println!("{:<12}{title}", "");
    let mut rows = Vec::new();
    for subject in subjects(false, false, &ours) {
        print!("{:<12}", subject.name);
        for (mode, _) in COLUMNS {
            let mut all = Vec::new();
            for _ in 0..RUNS {
                all.push(kilobytes(&driver, mode, &subject)?);
            }
            all.sort_by(f64::total_cmp);
            let middle = all[RUNS / 2];
            if mode == "small" {
                print!("{middle:>16.0}");
            } else {
                print!("{middle:>16.1}");
            }
            rows.push(json!({"allocator": subject.name, "what": mode, "unit": "kB", "kb": middle, "samples": all}));
        }
        println!();
    }
    let report = json!({"schema_version": 1, "rows": rows});
    match json {
        Some(path) if path == Path::new("-") => println!("{report:#}"),
        Some(path) => std::fs::write(path, format!("{report:#}\n"))
            .map_err(|error| format!("{}: {error}", path.display()))?,
        None => {}
    }
    Ok(())
}

/// What one run of the driver prints.
fn kilobytes(driver: &Path, mode: &str, subject: &Subject) -> Result<f64, String> {
    let mut command = Command::new(driver);
    command
        .arg(mode)
        .env_remove("LD_PRELOAD")
        .env_remove("SLABMALLOC_CONF");
    if let Some(library) = &subject.library {
        command.env("LD_PRELOAD", library);
    }
    if let Some(backend) = subject.backend {
        command.env("SLABMALLOC_CONF", format!("backend={backend}"));
    }
    let output = command.output().map_err(|error| error.to_string())?;
    let text = String::from_utf8_lossy(&output.stdout);
    match text.trim().parse() {
        Ok(kb) if output.status.success() => Ok(kb),
        _ => Err(format!(
            "{mode} under {}: {}: {text}{}",
            subject.name,
            output.status,
            String::from_utf8_lossy(&output.stderr)
        )),
    }
}
