//! `bench-suite footprint`: what an idle thread and a small program keep in memory, for every
//! allocator here.
//!
//! One C program runs under each. A thousand threads allocate, free everything and wait; what RSS
//! has grown by is divided by their number. The same with threads that never allocate is what a
//! thread itself costs: its stack and its thread-local storage. Then a program that holds 1 MiB
//! in blocks of 16 to 515 bytes.
//!
//! Last, 256 threads of which each takes 200 blocks of 16 to 1024 bytes, frees them and waits: what
//! the whole process has grown by, stacks included. `one by one` a thread has freed its blocks
//! before most others begin, and all that remains is what allocators keep for idle threads; `all
//! at once` every thread holds its blocks (26 MB together) at the same moment, and RSS is read two
//! seconds after they were freed, in which the main thread goes on lightly.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use serde_json::json;

use crate::fastpath::{Scratch, Subject, compile, subjects};
use crate::preload;

/// What is measured: the driver's argument, the column's title, its decimals.
const COLUMNS: [(&str, &str, usize); 6] = [
    ("bare", "thread alone", 1),
    ("one-size", "100 of 100 B", 1),
    ("many-sizes", "20 to 1 KiB", 1),
    ("small", "1 MiB live", 0),
    ("mixed", "256 one by one", 0),
    ("mixed-at-once", "256 at once", 0),
];

/// Slots that are CPUs: what to print, and the value of `backend=`.
const ON_CPUS: [(&str, &str); 3] = [
    ("unified+cpu", "unified,percpu=rseq"),
    ("slub+cpu", "slub,percpu=rseq"),
    ("slab+cpu", "slab,percpu=rseq"),
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
enum { THREADS = 1000, MOST = 100, MIXED_THREADS = 256, MIXED = 200 };
static pthread_barrier_t ready, full;
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
static void *mixed(void *arg) {
    void *p[MIXED];
    unsigned seed = (unsigned)(long)arg * 2654435761u + 1;
    for (int i = 0; i < MIXED; i++) {
        seed = seed * 1664525u + 1013904223u;
        size_t size = 16 + (seed >> 8) % 1009;
        p[i] = malloc(size);
        memset(p[i], 1, size);
    }
    if (!strcmp(mode, "mixed-at-once")) pthread_barrier_wait(&full);
    for (int i = 0; i < MIXED; i++) free(p[i]);
    pthread_barrier_wait(&ready);
    pause();
    return arg;
}
int main(int argc, char **argv) {
    mode = argv[1];
    int is_mixed = !strncmp(mode, "mixed", 5), threads = is_mixed ? MIXED_THREADS : THREADS;
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
    pthread_barrier_init(&ready, 0, threads + 1);
    pthread_barrier_init(&full, 0, threads);
    free(malloc(100));
    long before = rss_kb();
    for (int i = 0; i < threads; i++) {
        pthread_t t;
        if (pthread_create(&t, &attr, is_mixed ? mixed : idle, (void *)(long)i)) return 1;
    }
    pthread_barrier_wait(&ready);
    if (!strcmp(mode, "mixed-at-once"))
        for (int i = 0; i < 200; i++) {
            usleep(10000);
            free(malloc(100));
        }
    printf("%.1f\n", (double)(rss_kb() - before) / (is_mixed ? 1 : threads));
    fflush(stdout);
    _exit(0);
}
"#;

const USAGE: &str = "usage: bench-suite footprint [--lib LIBSLAB_PRELOAD.SO] [--json FILE]\n\
    \n\
    kB of RSS for each of 1000 idle threads, of a program with 1 MiB live, and of 256 idle threads together,\n\
    for every allocator here.\n\
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
        "kB of RSS: for each of 1000 idle threads that took and freed objects; of a program with 1 MiB live;\n\
         and by which a program has grown whose 256 threads took and freed 200 blocks each and wait\n"
    );
    let title: String = COLUMNS
        .iter()
        .map(|(_, title, _)| format!("{title:>16}"))
        .collect();
    println!("{:<12}{title}", "");
    let mut rows = Vec::new();
    let on_cpus = ON_CPUS.map(|(name, backend)| Subject {
        name: name.to_owned(),
        library: Some(ours.clone()),
        backend: Some(backend),
    });
    for subject in subjects(false, false, &ours).into_iter().chain(on_cpus) {
        print!("{:<12}", subject.name);
        for (mode, _, decimals) in COLUMNS {
            let mut all = Vec::new();
            for _ in 0..RUNS {
                all.push(kilobytes(&driver, mode, &subject)?);
            }
            all.sort_by(f64::total_cmp);
            let middle = all[RUNS / 2];
            print!("{middle:>16.decimals$}");
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
    if subject.backend.is_some() && !output.stderr.is_empty() {
        // The library says what it could not do.
        eprint!(
            "{}: {}",
            subject.name,
            String::from_utf8_lossy(&output.stderr)
        );
    }
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
