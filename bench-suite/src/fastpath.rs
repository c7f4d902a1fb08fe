//! `bench-suite fastpath`: how many instructions a malloc + free pair costs, for every allocator
//! here.
//!
//! callgrind counts the instructions of one C driver at two run lengths under each library; the
//! slope between them is the cost of one more pair, free of start-up. The driver's own share is
//! the same slope under a library whose malloc and free do next to nothing, less the six
//! instructions of those two. What is left is the allocator: the jump through the program's own
//! PLT belongs to the driver, the dispatch inside a library to the library.
//!
//! Fast paths count the same on every run and machine, so a recorded figure can be checked: `--check
//! FILE.json`.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use serde_json::{Value, json};

/// How many instructions a recorded figure may be exceeded by, or which part of it if that is more:
/// slow paths look at the clock, so that loops full of them repeat less exactly.
const TOLERANCE: (f64, f64) = (3.0, 0.05);

/// Instructions of the do-nothing malloc (5) and free (1).
const NOOP_PAIR: f64 = 6.0;

/// The loops: name, and how many pairs the short and the long run make.
const LOOPS: [(&str, u64, u64); 4] = [
    // One object, taken and given back.
    ("loop-of-1", 100_000, 300_000),
    // 1000 objects taken, then given back in the same order.
    ("batch-of-1000", 100_000, 300_000),
    // 300,000 objects taken, then given back in random order.
    ("scattered-300k", 300_000, 900_000),
    // 300,000 objects live; one at a random place is given back and another taken.
    ("replace-300k", 300_000, 900_000),
];

const BACKENDS: [&str; 3] = ["unified", "slub", "slab"];

/// The same with the hardened heap: what to print, and the value of `backend=`.
const SECURE: [(&str, &str); 3] = [
    ("unified+sec", "unified,secure=1"),
    ("slub+sec", "slub,secure=1"),
    ("slab+sec", "slab,secure=1"),
];

/// Hardened allocators: by the files that Debian or their own makefiles install.
const HARDENED: [(&str, &str); 2] = [
    ("scudo", "libclang_rt.scudo_standalone-x86_64.so"),
    ("hardened", "libhardened_malloc.so"),
];

/// Other allocators, by the files that Debian installs.
const PEERS: [(&str, &str); 3] = [
    ("mimalloc", "libmimalloc.so.2"),
    ("jemalloc", "libjemalloc.so.2"),
    ("tcmalloc", "libtcmalloc_minimal.so.4"),
];

const LIBRARY_DIRECTORIES: [&str; 3] = ["/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib"];

const DRIVER: &str = r#"
#include <stdlib.h>
#include <string.h>
static void *slots[300000];
static unsigned order[300000];
__attribute__((noinline)) static void loop_of_1(long n) {
    for (long i = 0; i < n; i++) {
        void *p = malloc(64);
        __asm__ volatile("" : : "r"(p) : "memory");
        free(p);
    }
}
__attribute__((noinline)) static void batches(long n) {
    for (long done = 0; done < n; done += 1000) {
        for (int i = 0; i < 1000; i++) slots[i] = malloc(64);
        for (int i = 0; i < 1000; i++) free(slots[i]);
    }
}
__attribute__((noinline)) static void scattered(long n) {
    for (long done = 0; done < n; done += 300000) {
        for (int i = 0; i < 300000; i++) slots[i] = malloc(64);
        for (int i = 0; i < 300000; i++) free(slots[order[i]]);
    }
}
__attribute__((noinline)) static void replace(long n) {
    unsigned s = 7;
    for (int i = 0; i < 300000; i++) slots[i] = malloc(64);
    for (long i = 0; i < n; i++) {
        s = s * 1664525u + 1013904223u;
        unsigned k = (s >> 8) % 300000;
        free(slots[k]);
        slots[k] = malloc(64);
    }
}
int main(int argc, char **argv) {
    long n = atol(argv[2]);
    unsigned long seed = 88172645463325252;
    for (int i = 0; i < 300000; i++) order[i] = i;
    for (int i = 299999; i > 0; i--) {
        seed ^= seed << 13; seed ^= seed >> 7; seed ^= seed << 17;
        int j = seed % (i + 1);
        unsigned t = order[i]; order[i] = order[j]; order[j] = t;
    }
    if (!strcmp(argv[1], "loop-of-1")) loop_of_1(n);
    else if (!strcmp(argv[1], "batch-of-1000")) batches(n);
    else if (!strcmp(argv[1], "scattered-300k")) scattered(n);
    else if (!strcmp(argv[1], "replace-300k")) replace(n);
    else return 2;
    return 0;
}
"#;

// As little as an allocator can do: valgrind's own launcher must still run on it. In assembly,
// so that it is known how many instructions a pair has.
const NOOP: &str = r#"
#include <stddef.h>
#include <string.h>
char area[1 << 28] __attribute__((aligned(64), visibility("hidden")));
char *next __attribute__((visibility("hidden"))) = area;
__asm__(".globl malloc; .type malloc, @function; malloc:"
        "mov next(%rip), %rax; lea 15(%rax, %rdi), %rcx; and $-16, %rcx; mov %rcx, next(%rip); ret;"
        ".globl free; .type free, @function; free: ret");
void *malloc(size_t), *memcpy(void *, const void *, size_t);
void *calloc(size_t n, size_t size) { return malloc(n * size); }
void *realloc(void *p, size_t size) { void *q = malloc(size); return p ? memcpy(q, p, size) : q; }
"#;

/// An allocator to count.
pub(crate) struct Subject {
    pub(crate) name: String,
    /// The library to preload; none for the system's malloc.
    pub(crate) library: Option<PathBuf>,
    /// The value of `backend=`, for ours.
    pub(crate) backend: Option<&'static str>,
}

#[derive(Default)]
struct Options {
    library: Option<PathBuf>,
    json: Option<PathBuf>,
    check: Option<PathBuf>,
    ours_only: bool,
    unchecked: bool,
    secure: bool,
    v4: bool,
}

const USAGE: &str = "usage: bench-suite fastpath [--lib LIBSLAB_PRELOAD.SO] [--ours] [--unchecked] [--secure] [--v4] [--json FILE] [--check FILE]\n\
    \n\
    Instructions of a malloc + free pair of 64 bytes, counted by callgrind, the driver's own subtracted.\n\
    --lib FILE    the library to count (default: built by cargo)\n\
    --ours        our three backends only, no other allocators\n\
    --unchecked   our three once more, built without the detection of misuse: what it costs\n\
    --secure      our hardened heaps (secure=1), glibc and hardened allocators\n\
    --v4          the unified allocator of 2010 as well, below the default\n\
    --json FILE   writes the figures ('-': to standard output)\n\
    --check FILE  exit status 3 if one of ours exceeds the figure recorded in FILE by more than 3 (or 5 %)";

/// Runs the subcommand; the exit status is 0, 1 (a run failed), 2 (bad arguments) or 3
/// (`--check` found a regression).
pub fn run(args: &[String]) -> ExitCode {
    let options = match parse(args) {
        Ok(Some(options)) => options,
        Ok(None) => {
            println!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        Err(why) => {
            eprintln!("bench-suite fastpath: {why}");
            return ExitCode::from(2);
        }
    };
    match measure_all(&options) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(3),
        Err(why) => {
            eprintln!("bench-suite fastpath: {why}");
            ExitCode::FAILURE
        }
    }
}

fn parse(args: &[String]) -> Result<Option<Options>, String> {
    let mut options = Options::default();
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let mut file = || {
            args.next()
                .map(PathBuf::from)
                .ok_or_else(|| format!("{arg} needs a file name"))
        };
        match arg.as_str() {
            "--lib" => options.library = Some(file()?),
            "--json" => options.json = Some(file()?),
            "--check" => options.check = Some(file()?),
            "--ours" => options.ours_only = true,
            "--unchecked" => options.unchecked = true,
            "--secure" => options.secure = true,
            "--v4" => options.v4 = true,
            "--help" | "-h" => return Ok(None),
            other => return Err(format!("unknown argument {other}; --help lists them")),
        }
    }
    Ok(Some(options))
}

/// Counts everything, prints the table, writes the JSON; false when `--check` found a regression.
fn measure_all(options: &Options) -> Result<bool, String> {
    // Read first: a bad file should not cost a minute of counting.
    let recorded = options.check.as_deref().map(read_recorded).transpose()?;
    let directory = Scratch::new()?;
    let driver = directory.0.join("driver");
    compile(
        &directory.0.join("driver.c"),
        DRIVER,
        &driver,
        &["-O2", "-fno-builtin"],
    )?;
    let noop = directory.0.join("noop.so");
    compile(
        &directory.0.join("noop.c"),
        NOOP,
        &noop,
        &["-O2", "-fno-builtin", "-shared", "-fPIC"],
    )?;
    let ours = match &options.library {
        Some(path) => path
            .canonicalize()
            .map_err(|error| format!("{}: {error}", path.display()))?,
        None => crate::preload::library()?.to_owned(),
    };

    let mut own = BTreeMap::new();
    for (name, short, long) in LOOPS {
        own.insert(
            name,
            slope(&driver, Some(&noop), "", name, short, long, &directory.0)? - NOOP_PAIR,
        );
    }
    println!("net instructions of a malloc + free pair of 64 bytes (callgrind)\n");
    print!("{:<12}", "");
    for (name, ..) in LOOPS {
        print!("{name:>16}");
    }
    println!();
    let mut rows = Vec::new();
    let mut good = true;
    let mut all = subjects(options.ours_only, options.secure, &ours);
    if options.unchecked {
        let library = build_with(
            &["--features", "slab-preload/unchecked"],
            "target/preload-lib-unchecked",
        )?;
        for (at, backend) in BACKENDS.into_iter().enumerate() {
            all.insert(
                2 * at + 1,
                Subject {
                    name: "  unchecked".to_owned(),
                    library: Some(library.clone()),
                    backend: Some(backend),
                },
            );
        }
    }
    if options.v4 {
        let after = all
            .iter()
            .rposition(|subject| subject.backend == Some("unified"));
        all.insert(
            after.map_or(0, |at| at + 1),
            Subject {
                name: crate::backend::V4.to_owned(),
                library: Some(ours.clone()),
                backend: Some(crate::backend::V4),
            },
        );
    }
    for subject in all {
        print!("{:<12}", subject.name);
        let conf = subject
            .backend
            .map(|backend| format!("backend={backend}"))
            .unwrap_or_default();
        for (name, short, long) in LOOPS {
            let net = slope(
                &driver,
                subject.library.as_deref(),
                &conf,
                name,
                short,
                long,
                &directory.0,
            )? - own[name];
            print!("{net:>16.1}");
            rows.push(json!({"allocator": subject.name, "loop": name, "net_ir": (net * 10.0).round() / 10.0, "backend": subject.backend, "ours": subject.backend == Some(subject.name.as_str())}));
        }
        println!();
    }
    print!("{:<12}", "(driver)");
    for (name, ..) in LOOPS {
        print!("{:>16.1}", own[name]);
    }
    println!();
    let report = json!({"schema_version": 1, "unit": "instructions a pair", "block_bytes": 64, "rows": rows});
    match options.json.as_deref() {
        Some(path) if path == Path::new("-") => println!("{report:#}"),
        Some(path) => fs::write(path, format!("{report:#}\n"))
            .map_err(|error| format!("{}: {error}", path.display()))?,
        None => {}
    }
    if let Some(recorded) = recorded {
        good = compare(&rows, &recorded)?;
    }
    Ok(good)
}

/// Our three backends, and the other allocators unless only ours are wanted.
pub(crate) fn subjects(ours_only: bool, secure: bool, ours: &Path) -> Vec<Subject> {
    let mut all = Vec::new();
    let plain = BACKENDS.map(|backend| (backend, backend));
    for (name, backend) in if secure { SECURE } else { plain } {
        all.push(Subject {
            name: name.to_owned(),
            library: Some(ours.to_owned()),
            backend: Some(backend),
        });
    }
    if !ours_only {
        all.push(Subject {
            name: "glibc".to_owned(),
            library: None,
            backend: None,
        });
        let peers: &[(&str, &str)] = if secure { &HARDENED } else { &PEERS };
        for (name, file) in peers {
            let found = LIBRARY_DIRECTORIES
                .iter()
                .map(PathBuf::from)
                .chain(compiler_directories())
                .map(|directory| directory.join(file))
                .find(|path| path.exists());
            match found {
                Some(library) => all.push(Subject {
                    name: (*name).to_owned(),
                    library: Some(library),
                    backend: None,
                }),
                None => eprintln!("skipped: {name} ({file}) is not installed"),
            }
        }
    }
    all
}

/// Where clang keeps its run-time libraries, in each installed version.
fn compiler_directories() -> impl Iterator<Item = PathBuf> {
    let entries = |directory: PathBuf| fs::read_dir(directory).into_iter().flatten().flatten();
    entries("/usr/lib".into())
        .filter(|entry| entry.file_name().to_string_lossy().starts_with("llvm-"))
        .flat_map(move |llvm| entries(llvm.path().join("lib/clang")))
        .map(|version| version.path().join("lib/linux"))
}

/// A figure of a file that `--json` wrote.
struct Count {
    allocator: String,
    name: String,
    net: f64,
    ours: bool,
}

fn read_counts(path: &Path) -> Result<Vec<Count>, String> {
    let bytes = fs::read(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let value: Value =
        serde_json::from_slice(&bytes).map_err(|error| format!("{}: {error}", path.display()))?;
    let rows = value["rows"]
        .as_array()
        .ok_or_else(|| format!("{}: no rows", path.display()))?;
    let count = |row: &Value| {
        Some(Count {
            allocator: row["allocator"].as_str()?.to_owned(),
            name: row["loop"].as_str()?.to_owned(),
            net: row["net_ir"].as_f64()?,
            ours: row["ours"] == true,
        })
    };
    Ok(rows.iter().filter_map(count).collect())
}

/// The recorded figures of ours: (allocator, loop) to instructions.
type Recorded = BTreeMap<(String, String), f64>;

fn read_recorded(path: &Path) -> Result<Recorded, String> {
    let recorded: Recorded = (read_counts(path)?.into_iter())
        .filter(|count| count.ours)
        .map(|count| ((count.allocator, count.name), count.net))
        .collect();
    if recorded.is_empty() {
        return Err(format!(
            "{}: it records none of our backends",
            path.display()
        ));
    }
    Ok(recorded)
}

/// The figures of a file that `--json` wrote, as a table for a document.
pub(crate) fn markdown(path: &Path) -> Result<String, String> {
    let counts = read_counts(path)?;
    let mut allocators: Vec<&str> = Vec::new();
    for count in &counts {
        if !allocators.contains(&count.allocator.as_str()) {
            allocators.push(&count.allocator);
        }
    }
    if allocators.is_empty() {
        return Err(format!("{}: no counts of fastpath", path.display()));
    }
    let mut text = String::from("| |");
    for (name, ..) in LOOPS {
        text += &format!(" {name} |");
    }
    text += &format!("\n|:--{}|\n", "|--:".repeat(LOOPS.len()));
    for allocator in allocators {
        text += &format!("| {allocator} |");
        for (name, ..) in LOOPS {
            let found = (counts.iter()).find(|c| c.allocator == allocator && c.name == name);
            text += &found.map_or_else(|| " - |".to_owned(), |c| format!(" {:.0} |", c.net));
        }
        text.push('\n');
    }
    Ok(text)
}

/// Prints each figure that is over its recorded one; true when there is none.
fn compare(rows: &[Value], recorded: &Recorded) -> Result<bool, String> {
    let mut good = true;
    for ((allocator, name), before) in recorded {
        let now = rows
            .iter()
            .find(|row| row["allocator"] == **allocator && row["loop"] == **name)
            .and_then(|row| row["net_ir"].as_f64())
            .ok_or_else(|| format!("{allocator} {name} is recorded and was not counted"))?;
        if now > before + TOLERANCE.0.max(before * TOLERANCE.1) {
            println!(
                "regression: {allocator} {name}: {now:.1} instructions a pair, recorded {before:.1}"
            );
            good = false;
        }
    }
    Ok(good)
}

/// Instructions that one more pair costs, the driver's included.
fn slope(
    driver: &Path,
    library: Option<&Path>,
    conf: &str,
    name: &str,
    short: u64,
    long: u64,
    directory: &Path,
) -> Result<f64, String> {
    let few = count(driver, library, conf, name, short, directory)?;
    let many = count(driver, library, conf, name, long, directory)?;
    Ok((many as f64 - few as f64) / (long - short) as f64)
}

/// Instructions of one run of the driver.
fn count(
    driver: &Path,
    library: Option<&Path>,
    conf: &str,
    name: &str,
    pairs: u64,
    directory: &Path,
) -> Result<u64, String> {
    let out = directory.join("callgrind.out");
    let _ = fs::remove_file(&out);
    let mut command = Command::new("valgrind");
    command
        .args(["--tool=callgrind", "--trace-children=yes"])
        .arg(format!("--callgrind-out-file={}", out.display()))
        .arg("env");
    if let Some(library) = library {
        command.arg(with_value("LD_PRELOAD=", library.as_os_str()));
    }
    command
        // Without the purge timer: a count must not depend on the clock.
        .arg(format!("SLABMALLOC_CONF={conf},purge=off"))
        .arg(driver)
        .arg(name)
        .arg(pairs.to_string());
    command.env_remove("LD_PRELOAD");
    let output = command
        .output()
        .map_err(|error| format!("valgrind: {error}"))?;
    if !output.status.success() {
        return Err(format!(
            "{name} under {conf} {library:?}: {}: {}",
            output.status,
            String::from_utf8_lossy(&output.stderr)
        ));
    }
    let text = fs::read_to_string(&out).map_err(|error| format!("callgrind's figures: {error}"))?;
    // env becomes the driver by exec, so that the file that is left is the driver's: check.
    let is_driver = text
        .lines()
        .any(|line| line.starts_with("cmd:") && line.contains(&*driver.to_string_lossy()));
    let total = text.lines().find_map(|line| {
        line.strip_prefix("totals:")
            .or_else(|| line.strip_prefix("summary:"))
    });
    match total.and_then(|total| total.trim().parse().ok()) {
        Some(total) if is_driver => Ok(total),
        _ => Err("callgrind left no figures of the driver".to_owned()),
    }
}

fn with_value(key: &str, value: &OsStr) -> std::ffi::OsString {
    let mut text = std::ffi::OsString::from(key);
    text.push(value);
    text
}

pub(crate) fn compile(
    source: &Path,
    text: &str,
    target: &Path,
    flags: &[&str],
) -> Result<(), String> {
    fs::write(source, text).map_err(|error| format!("{}: {error}", source.display()))?;
    let output = Command::new("gcc")
        .args(flags)
        .arg(source)
        .arg("-o")
        .arg(target)
        .output()
        .map_err(|error| format!("gcc: {error}"))?;
    if output.status.success() {
        Ok(())
    } else {
        Err(format!("gcc: {}", String::from_utf8_lossy(&output.stderr)))
    }
}

/// [`crate::preload`]'s library, with features and a target directory of their own.
fn build_with(features: &[&str], target: &str) -> Result<PathBuf, String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .ok_or("the workspace is not where it was built")?;
    let target = root.join(target);
    let output = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args([
            "build",
            "--release",
            "--package",
            "slab-preload",
            "--manifest-path",
        ])
        .arg(root.join("Cargo.toml"))
        .arg("--target-dir")
        .arg(&target)
        .args(features)
        .output()
        .map_err(|error| format!("cargo: {error}"))?;
    if !output.status.success() {
        return Err(format!(
            "cargo build: {}",
            String::from_utf8_lossy(&output.stderr)
        ));
    }
    Ok(target.join("release/libslab_preload.so"))
}

/// A directory for the driver and callgrind's file, removed at the end.
pub(crate) struct Scratch(pub(crate) PathBuf);

impl Scratch {
    pub(crate) fn new() -> Result<Scratch, String> {
        let path =
            std::env::temp_dir().join(format!("bench-suite-fastpath-{}", std::process::id()));
        fs::create_dir_all(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(Scratch(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
