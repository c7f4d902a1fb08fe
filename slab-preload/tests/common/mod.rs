//! What the tests share: the library built as users get it, C programs compiled once, and
//! programs run under `LD_PRELOAD` with a time limit and a proof that the library was mapped.
//!
//! `SLAB_PRELOAD_LIB=/path/to/other.so` runs the tests on another malloc, to try the tests
//! themselves.

#![allow(dead_code)]

pub mod faults;

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

/// The values of `backend=`.
pub const BACKENDS: [&str; 3] = ["unified", "slub", "slab"];

/// The same with the hardened heap.
pub const SECURE: [&str; 3] = ["unified,secure=1", "slub,secure=1", "slab,secure=1"];

/// The directory of this crate.
pub fn crate_dir() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The target directory's place for tests' files: cargo tells tests, examples look for it.
fn target_tmp() -> PathBuf {
    let path = option_env!("CARGO_TARGET_TMPDIR").map_or_else(
        || {
            let exe = std::env::current_exe().expect("the program's path");
            exe.ancestors()
                .nth(3)
                .expect("target/release/examples")
                .join("tmp")
        },
        PathBuf::from,
    );
    fs::create_dir_all(&path).expect("a directory for scratch files");
    path
}

/// Another malloc to test instead of ours.
pub fn foreign_library() -> Option<PathBuf> {
    std::env::var_os("SLAB_PRELOAD_LIB").map(PathBuf::from)
}

/// The library under test. `cargo test` builds no usable cdylib of its own package, so this asks
/// cargo for the release build, in a target directory of its own (cargo holds a lock on the one
/// the tests run from).
pub fn library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        if let Some(path) = foreign_library() {
            return path;
        }
        let target = target_tmp().with_file_name("preload-lib");
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let output = Command::new(cargo)
            .args([
                "build",
                "--release",
                "--package",
                "slab-preload",
                "--lib",
                "--manifest-path",
            ])
            .arg(crate_dir().join("Cargo.toml"))
            .arg("--target-dir")
            .arg(&target)
            .env_remove("RUSTFLAGS")
            .env_remove("CARGO_ENCODED_RUSTFLAGS")
            .env_remove("CARGO_BUILD_TARGET")
            .output()
            .expect("cargo can be run");
        assert!(
            output.status.success(),
            "cargo build: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        let path = target.join("release/libslab_preload.so");
        assert!(path.is_file(), "{} was not built", path.display());
        path
    })
}

/// Looks a program up, system directories first: shims of version managers are shell scripts.
pub fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    ["/usr/bin".into(), "/bin".into()]
        .into_iter()
        .chain(std::env::split_paths(&path))
        .map(|directory: PathBuf| directory.join(name))
        .find(|candidate| candidate.is_file())
}

/// As [`find_program`]; a missing one is reported, and is a failure where `CI` is set.
pub fn need(name: &str) -> Option<PathBuf> {
    let found = find_program(name);
    if found.is_none() {
        assert!(std::env::var_os("CI").is_none(), "{name} is not installed");
        println!("skipped: {name} not installed");
    }
    found
}

/// A directory for this test process's files, removed by `cargo clean`.
pub fn scratch() -> &'static Path {
    static SCRATCH: OnceLock<tempfile::TempDir> = OnceLock::new();
    SCRATCH
        .get_or_init(|| tempfile::tempdir_in(target_tmp()).expect("a directory for scratch files"))
        .path()
}

/// A fresh directory below [`scratch`].
pub fn fresh_dir(name: &str) -> PathBuf {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let directory = scratch().join(format!("{name}-{}", NEXT.fetch_add(1, Ordering::Relaxed)));
    fs::create_dir(&directory).expect("a fresh directory");
    directory
}

/// Compiles a C or C++ file of `tests/`; the program's path.
pub fn compile(source: &str, flags: &[&str]) -> PathBuf {
    let source = crate_dir().join("tests").join(source);
    let name = source.file_stem().expect("a file name").to_owned();
    let cxx = source.extension() == Some(OsStr::new("cpp"));
    let program = fresh_dir("bin").join(name);
    compile_to(&source, &program, if cxx { "g++" } else { "gcc" }, flags);
    program
}

fn compile_to(source: &Path, program: &Path, compiler: &str, flags: &[&str]) {
    let output = Command::new(compiler)
        .args(["-O1", "-w", "-fno-builtin"])
        .arg(source)
        .arg("-o")
        .arg(program)
        .args(["-pthread", "-ldl"])
        .args(flags)
        .output()
        .unwrap_or_else(|error| panic!("{compiler} is needed by the tests: {error}"));
    assert!(
        output.status.success(),
        "{}: {}",
        source.display(),
        String::from_utf8_lossy(&output.stderr)
    );
}

/// Compiles every C file of a directory under `tests/` (plugins to shared objects beside the
/// programs) and returns the programs, sorted by name.
pub fn compile_all(directory: &str) -> Vec<PathBuf> {
    let sources = crate_dir().join("tests").join(directory);
    let out = fresh_dir("programs");
    let mut files: Vec<PathBuf> = fs::read_dir(&sources)
        .expect("the directory of sources")
        .map(|entry| entry.expect("a directory entry").path())
        .filter(|path| path.extension() == Some(OsStr::new("c")))
        .collect();
    files.sort();
    let programs = Mutex::new(Vec::new());
    in_parallel(&files, |source| {
        let stem = source
            .file_stem()
            .and_then(OsStr::to_str)
            .expect("a UTF-8 file name");
        if let Some(plugin) = stem.strip_suffix(".plugin") {
            compile_to(
                source,
                &out.join(format!("{plugin}.so")),
                "gcc",
                &["-shared", "-fPIC"],
            );
        } else {
            let program = out.join(stem);
            compile_to(source, &program, "gcc", &[]);
            programs.lock().expect("no panic").push(program);
        }
    });
    let mut programs = programs.into_inner().expect("no panic");
    programs.sort();
    programs
}

/// Runs `work` on each item, two at a time.
pub fn in_parallel<T: Sync>(items: &[T], work: impl Fn(&T) + Sync) {
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some(item) = items.get(next.fetch_add(1, Ordering::Relaxed)) {
                    work(item);
                }
            });
        }
    });
}

/// A program to run.
pub struct Run {
    command: Command,
    limit: Duration,
    preloaded: bool,
}

/// What a program did.
pub struct Outcome {
    pub status: ExitStatus,
    pub stdout: Vec<u8>,
    pub stderr: String,
    pub timed_out: bool,
    /// Names (`comm`) of the program and of its descendants seen with the library mapped.
    pub mapped: BTreeSet<String>,
}

impl Run {
    /// `program` with no preload.
    pub fn plain(program: impl AsRef<OsStr>) -> Run {
        let mut command = Command::new(program);
        command
            .env_remove("LD_PRELOAD")
            .env_remove("LD_LIBRARY_PATH")
            .env_remove("SLABMALLOC_CONF")
            .env_remove("SLAB_PRELOAD_LIB")
            .env("LC_ALL", "C")
            .stdin(Stdio::null());
        Run {
            command,
            limit: Duration::from_secs(120),
            preloaded: false,
        }
    }

    /// `program` under the library, with `conf` in `SLABMALLOC_CONF`.
    pub fn preloaded(program: impl AsRef<OsStr>, conf: &str) -> Run {
        let mut run = Run::plain(program);
        run.command
            .env("LD_PRELOAD", library())
            .env("SLABMALLOC_CONF", conf);
        run.preloaded = true;
        run
    }

    /// Under the given backend, or plain for `None`.
    pub fn under(program: impl AsRef<OsStr>, backend: Option<&str>) -> Run {
        match backend {
            Some(backend) => Run::preloaded(program, &format!("backend={backend}")),
            None => Run::plain(program),
        }
    }

    pub fn arg(mut self, arg: impl AsRef<OsStr>) -> Run {
        self.command.arg(arg);
        self
    }

    pub fn args<A: AsRef<OsStr>>(mut self, args: impl IntoIterator<Item = A>) -> Run {
        self.command.args(args);
        self
    }

    pub fn env(mut self, key: &str, value: impl AsRef<OsStr>) -> Run {
        self.command.env(key, value);
        self
    }

    pub fn dir(mut self, directory: impl AsRef<Path>) -> Run {
        self.command.current_dir(directory);
        self
    }

    /// Standard input from bytes.
    pub fn stdin(mut self, bytes: &[u8]) -> Run {
        let path = fresh_dir("stdin").join("stdin");
        fs::write(&path, bytes).expect("stdin can be written");
        self.command
            .stdin(File::open(path).expect("stdin can be read"));
        self
    }

    /// The time limit; two minutes unless set.
    pub fn limit(mut self, seconds: u64) -> Run {
        self.limit = Duration::from_secs(seconds);
        self
    }

    /// Starts the program and leaves it running.
    pub fn spawn(mut self) -> Child {
        self.command
            .process_group(0)
            .spawn()
            .unwrap_or_else(|error| panic!("{:?}: {error}", self.command))
    }

    /// Runs the program to its end, or kills its process group at the time limit.
    pub fn run(mut self) -> Outcome {
        // Files, not pipes: a descendant that keeps a pipe open cannot hang the test.
        let directory = fresh_dir("run");
        let (out, err) = (directory.join("out"), directory.join("err"));
        self.command
            .stdout(File::create(&out).expect("a file"))
            .stderr(File::create(&err).expect("a file"));
        let library = self.preloaded.then(library);
        let limit = self.limit;
        let mut child = self.spawn();
        let started = Instant::now();
        let mut mapped = BTreeSet::new();
        let mut timed_out = false;
        let mut pause = Duration::from_micros(500);
        let status = loop {
            if let Some(status) = child.try_wait().expect("wait") {
                break status;
            }
            if let Some(library) = library {
                look_for(library, child.id(), &mut mapped);
            }
            if started.elapsed() > limit {
                timed_out = true;
                kill_group(&child);
                break child.wait().expect("wait");
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(5));
        };
        let outcome = Outcome {
            status,
            stdout: fs::read(&out).expect("stdout"),
            stderr: String::from_utf8_lossy(&fs::read(&err).expect("stderr")).into_owned(),
            timed_out,
            mapped,
        };
        let _ = fs::remove_dir_all(directory);
        outcome
    }
}

/// Kills a child of [`Run::spawn`] with everything it started.
pub fn kill_group(child: &Child) {
    let _ = Command::new("kill")
        .args(["-KILL", "--", &format!("-{}", child.id())])
        .stderr(Stdio::null())
        .status();
}

impl Outcome {
    pub fn success(&self) -> bool {
        self.status.success() && !self.timed_out
    }

    /// Ended by abort().
    pub fn aborted(&self) -> bool {
        self.status.signal() == Some(6)
    }

    /// Ended by an access to memory that is none.
    pub fn segfaulted(&self) -> bool {
        self.status.signal() == Some(11)
    }

    pub fn stdout_text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    /// How it ended, in a few words.
    pub fn ending(&self) -> String {
        match (self.timed_out, self.status.code(), self.status.signal()) {
            (true, ..) => "hangs".to_owned(),
            (_, Some(code), _) => format!("exit {code}"),
            (_, _, Some(signal)) => format!("signal {signal}"),
            _ => "?".to_owned(),
        }
    }

    /// Panics with everything there is to see unless the program succeeded.
    #[track_caller]
    pub fn expect_success(self, what: &str) -> Outcome {
        assert!(
            self.success(),
            "{what}: {}\n{}\n{}",
            self.ending(),
            self.stdout_text(),
            self.stderr
        );
        self
    }
}

/// Runs the program without the library and under each backend and compares. `workers` are the
/// processes (by name) that must have been seen with the library mapped.
pub fn same_output(workers: &[&str], run: impl Fn(Option<&str>) -> Outcome) {
    same_output_in(&BACKENDS, workers, run);
}

/// As [`same_output`], under the settings named.
pub fn same_output_in(backends: &[&str], workers: &[&str], run: impl Fn(Option<&str>) -> Outcome) {
    let plain = run(None).expect_success("without a preload");
    assert!(
        !plain.stdout.is_empty(),
        "the program prints something to compare"
    );
    for &backend in backends {
        let outcome = run(Some(backend)).expect_success(backend);
        assert!(
            outcome.stdout == plain.stdout,
            "{backend}: the output differs:\n{}\nwithout a preload:\n{}",
            outcome.stdout_text(),
            plain.stdout_text()
        );
        assert_eq!(outcome.stderr, plain.stderr, "{backend}: standard error");
        for worker in workers {
            assert!(
                outcome.mapped.iter().any(|name| name.starts_with(worker)),
                "{backend}: {worker} was not seen with the library mapped, only {:?}",
                outcome.mapped
            );
        }
    }
}

/// Is `library` mapped in the process?
pub fn is_mapped(library: &Path, pid: u32) -> bool {
    let library: OsString = library.file_name().expect("a file name").to_owned();
    let name = library.to_str().expect("UTF-8");
    fs::read_to_string(format!("/proc/{pid}/maps"))
        .is_ok_and(|maps| maps.lines().any(|line| line.ends_with(name)))
}

/// Adds the names of `pid` and of its descendants that have `library` mapped.
fn look_for(library: &Path, pid: u32, mapped: &mut BTreeSet<String>) {
    let comm = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    let comm = comm.trim_end();
    if !comm.is_empty() && !mapped.contains(comm) && is_mapped(library, pid) {
        mapped.insert(comm.to_owned());
    }
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else {
        return;
    };
    for thread in threads.flatten() {
        let children = fs::read_to_string(thread.path().join("children")).unwrap_or_default();
        for child in children
            .split_ascii_whitespace()
            .filter_map(|child| child.parse().ok())
        {
            look_for(library, child, mapped);
        }
    }
}
