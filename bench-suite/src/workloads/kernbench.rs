//! kernbench: how long does the build of a C tree take when every process of it uses the allocator under test?
//!
//! The tree is [`super::ctree`], written anew for each sample; `gcc` compiles its files, so many at a time, links them
//! and the program's checksum is compared with the one that is known. The allocator is preloaded into gcc and all that
//! gcc starts: for this project's backends the preload library, told by SLABMALLOC_CONF which one to be.

use super::ctree::{self, Tree};
use super::{Job, Measurement, Options, Outcome, RowSpec, STACK, Workload, args, crew, die, pin};
use crate::backend::Backend;
use crate::preload;
use crate::report::Report;
use crate::stats::Better;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::Builder;
use std::time::{Duration, Instant};

/// The workload.
pub struct Kernbench;

const USAGE: &str = "-j PROCESSES,.. -m MODULES -O LEVEL -c COMPILER -L LIBSLAB_PRELOAD.SO";

const ELAPSED: &str = "Elapsed Time";
const USER: &str = "User Time";
const SYSTEM: &str = "System Time";
const PERCENT: &str = "Percent CPU";

struct Settings {
    at_once: Vec<usize>,
    modules: usize,
    level: String,
    compiler: String,
    library: Option<PathBuf>,
}

impl Settings {
    fn parse(options: &Options) -> Result<Self, String> {
        const NAME: &str = "kernbench";
        let mut at_once = vec![1, crew::cpus(), 4 * crew::cpus()];
        if options.quick {
            at_once = vec![crew::cpus()];
        }
        at_once.dedup();
        let mut settings = Self {
            at_once,
            modules: if options.quick { 5 } else { 24 },
            level: if options.quick { "0" } else { "2" }.to_owned(),
            compiler: "gcc".to_owned(),
            library: None,
        };
        for (letter, value) in args::parse(NAME, "j:m:O:c:L:", USAGE, &options.args)? {
            let value = value.unwrap_or_default();
            match letter {
                'j' => settings.at_once = args::numbers(NAME, 'j', &value, 1..=256)?,
                'm' => settings.modules = args::number(NAME, 'm', &value, 1..=1000)?,
                'O' => {
                    settings.level =
                        args::words(NAME, 'O', &value, &["0", "1", "2", "3", "s"])?.concat()
                }
                'c' => settings.compiler = value,
                _ => {
                    let path = Path::new(&value);
                    if !path.is_file() {
                        return Err(format!("kernbench: -L '{value}': not a file"));
                    }
                    let path = std::path::absolute(path);
                    settings.library =
                        Some(path.map_err(|e| format!("kernbench: -L '{value}': {e}"))?);
                }
            }
        }
        Ok(settings)
    }
}

impl Workload for Kernbench {
    fn name(&self) -> &'static str {
        "kernbench"
    }

    fn about(&self) -> &'static str {
        "gcc builds a generated C tree with the allocator preloaded, checked by the program's output"
    }

    fn usage(&self) -> &'static str {
        USAGE
    }

    // The floor is no library that a compiler could be run on.
    fn takes(&self, backend: &str) -> bool {
        !super::pages::is_page_backend(backend) && backend != crate::floor::NAME
    }

    fn plan(&self, options: &Options) -> Result<Vec<Job>, String> {
        let settings = Settings::parse(options)?;
        let jobs = settings.at_once.iter().map(|&at_once| {
            let name = format!("-j{at_once}");
            let row = |metric, unit, better| RowSpec {
                row: name.clone(),
                metric,
                unit,
                better,
            };
            Job {
                rows: vec![
                    row(ELAPSED, "s", Better::Lower),
                    row(USER, "s", Better::Lower),
                    row(SYSTEM, "s", Better::Lower),
                    row(PERCENT, "%", Better::Higher),
                ],
                // The first worker may have to build the preload library.
                time_limit: Duration::from_secs(1200),
                threads: at_once,
                name,
            }
        });
        Ok(jobs.collect())
    }

    fn run(&self, backend: &str, job: &str, options: &Options) -> Result<Outcome, String> {
        let settings = Settings::parse(options)?;
        let at_once = job
            .strip_prefix("-j")
            .ok_or_else(|| format!("kernbench: no row '{job}'"))?;
        let at_once = args::number("kernbench", 'j', at_once, 1..=256)?;
        let environment = environment_of(backend, &settings)?;
        build(&settings, at_once, options, &environment).map(|figures| outcome(job, figures))
    }

    fn appendix(&self, report: &Report) -> Option<String> {
        Some(render(report)).filter(|text| !text.is_empty())
    }
}

/// A variable of the compilers' environment; `None` takes it away.
type Variable = (&'static str, Option<OsString>);

/// What makes a program use the backend.
fn environment_of(backend: &str, settings: &Settings) -> Result<Vec<Variable>, String> {
    if backend.ends_with(":plain") {
        return Err(
            "kernbench: the preload library has no setting that switches placement off".into(),
        );
    }
    match Backend::parse(backend)? {
        Backend::Own(name @ ("slab" | "slub" | "unified" | crate::backend::V4)) => {
            let library = match &settings.library {
                Some(path) => path.clone(),
                None => preload_library()?,
            };
            let conf = OsString::from(format!("backend={name}"));
            Ok(vec![
                ("LD_PRELOAD", Some(library.into_os_string())),
                ("SLABMALLOC_CONF", Some(conf)),
            ])
        }
        Backend::Shared(path) => Ok(vec![("LD_PRELOAD", Some(path.into_os_string()))]),
        Backend::System => Ok(vec![("LD_PRELOAD", None)]),
        _ => Err(format!("kernbench: no program can be run on '{backend}'")),
    }
}

/// The preload library beside this program, or else a fresh build of it.
fn preload_library() -> Result<PathBuf, String> {
    let beside = std::env::current_exe()
        .ok()
        .and_then(|exe| Some(exe.parent()?.join("libslab_preload.so")));
    match beside {
        Some(path) if path.is_file() => Ok(path),
        _ => preload::library()
            .map(|path| path.to_owned())
            .map_err(|e| format!("kernbench: no preload library; name one with -L: {e}")),
    }
}

struct Figures {
    elapsed: f64,
    user: f64,
    system: f64,
    peak_kib: u64,
}

/// Compiles, links and runs the tree.
fn build(
    settings: &Settings,
    at_once: usize,
    options: &Options,
    environment: &[Variable],
) -> Result<Figures, String> {
    let tree = ctree::generate(settings.modules);
    let directory = Directory::new()?;
    for file in &tree.files {
        let path = directory.0.join(&file.name);
        std::fs::write(&path, &file.text).map_err(|e| format!("{}: {e}", path.display()))?;
    }
    let before = crew::children_usage();
    let began = Instant::now();
    compile_all(&tree, &directory.0, settings, at_once, options, environment);
    let mut link = command(settings, &directory.0, environment);
    for file in tree.files.iter().filter(|file| is_source(&file.name)) {
        link.arg(object_of(&file.name));
    }
    run(link.args(["-o", "program"]));
    let elapsed = began.elapsed().as_secs_f64();
    let after = crew::children_usage();
    check(&tree, &directory.0)?;
    Ok(Figures {
        elapsed,
        user: after.user - before.user,
        system: after.system - before.system,
        peak_kib: after.peak_kib,
    })
}

fn is_source(name: &str) -> bool {
    name.ends_with(".c")
}

fn object_of(name: &str) -> String {
    name.replace(".c", ".o")
}

fn command(settings: &Settings, directory: &Path, environment: &[Variable]) -> Command {
    let mut command = Command::new(&settings.compiler);
    command.current_dir(directory).stdin(Stdio::null());
    for (name, value) in environment {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command
}

/// Runs a compiler; a failed one ends the worker, with what it said.
fn run(command: &mut Command) {
    let output = command.output().unwrap_or_else(|e| {
        let program = command.get_program().display();
        die(&format!(
            "kernbench: {program}: {e}; install it or name a compiler with -c"
        ))
    });
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        die(&format!(
            "kernbench: {:?} ended with {}: {}",
            command.get_program(),
            output.status,
            said.lines().next().unwrap_or("it said nothing")
        ));
    }
}

fn compile_all(
    tree: &Tree,
    directory: &Path,
    settings: &Settings,
    at_once: usize,
    options: &Options,
    environment: &[Variable],
) {
    let sources: Vec<&str> = tree
        .files
        .iter()
        .map(|file| file.name.as_str())
        .filter(|name| is_source(name))
        .collect();
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for number in 0..at_once {
            let (next, sources) = (&next, &sources);
            let member = Builder::new()
                .stack_size(STACK)
                .spawn_scoped(scope, move || {
                    // Children inherit the CPU.
                    pin(crew::cpu_of(options.cpus, number));
                    while let Some(source) = sources.get(next.fetch_add(1, Ordering::Relaxed)) {
                        let level = format!("-O{}", settings.level);
                        let object = object_of(source);
                        run(command(settings, directory, environment)
                            .args(["-c", &level, "-o", &object, source]));
                    }
                });
            member.unwrap_or_else(|e| die(&format!("kernbench: cannot start a thread: {e}")));
        }
    });
}

/// A compiler that an allocator has corrupted may still end well: the program must print what is known.
fn check(tree: &Tree, directory: &Path) -> Result<(), String> {
    let program = directory.join("program");
    let output = Command::new(&program)
        .env_remove("LD_PRELOAD")
        .output()
        .map_err(|e| format!("{}: {e}", program.display()))?;
    let printed = String::from_utf8_lossy(&output.stdout);
    if output.status.success() && printed.trim() == tree.checksum.to_string() {
        Ok(())
    } else {
        Err(format!(
            "kernbench: the program ended with {} and printed '{}', not {}",
            output.status,
            printed.trim(),
            tree.checksum
        ))
    }
}

fn outcome(job: &str, figures: Figures) -> Outcome {
    let percent = (figures.user + figures.system) / figures.elapsed.max(1e-9) * 100.0;
    let measurement = |(metric, value): (&str, f64)| Measurement {
        row: job.to_owned(),
        metric: metric.to_owned(),
        value,
    };
    let all = [
        (ELAPSED, figures.elapsed),
        (USER, figures.user),
        (SYSTEM, figures.system),
        (PERCENT, percent),
    ];
    Outcome {
        measurements: all.into_iter().map(measurement).collect(),
        child_peak_kib: figures.peak_kib,
        ..Outcome::default()
    }
}

/// What kernbench prints of a report.
fn render(report: &Report) -> String {
    let mut text = String::new();
    let mut rows: Vec<&str> = Vec::new();
    for row in report.rows.iter().filter(|row| row.workload == "kernbench") {
        if !rows.contains(&row.row.as_str()) {
            rows.push(&row.row);
        }
    }
    for name in rows {
        for backend in crate::table::column_backends(&report.config) {
            let figure = |metric: &str| {
                report.rows.iter().find(|row| {
                    row.workload == "kernbench"
                        && row.row == name
                        && row.metric == metric
                        && row.backend == backend
                })
            };
            let Some(elapsed) = figure(ELAPSED) else {
                continue;
            };
            text.push_str(&format!(
                "{}\nAverage Load {name} Run (of {} runs):\n",
                crate::table::column_head(backend),
                elapsed.samples.len()
            ));
            for metric in [ELAPSED, USER, SYSTEM, PERCENT] {
                if let Some(row) = figure(metric) {
                    text.push_str(&format!("{metric} {:.3}\n", row.mean));
                }
            }
            text.push('\n');
        }
    }
    text
}

/// A directory of its own, removed at the end.
struct Directory(PathBuf);

impl Directory {
    fn new() -> Result<Self, String> {
        let name = format!("bench-suite-kernbench-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        Ok(Self(path))
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(text: &str) -> Options {
        Options {
            quick: true,
            args: text.split_whitespace().map(str::to_owned).collect(),
            ..Options::default()
        }
    }

    #[test]
    fn a_build_is_measured_and_checked() {
        let options = options("-j 2 -m 1 -c cc");
        let outcome = Kernbench.run("system", "-j2", &options).unwrap();
        let metrics: Vec<&str> = outcome
            .measurements
            .iter()
            .map(|m| m.metric.as_str())
            .collect();
        assert_eq!(metrics, [ELAPSED, USER, SYSTEM, PERCENT]);
        assert!(outcome.measurements[0].value > 0.0 && outcome.child_peak_kib > 0);
    }

    #[test]
    fn a_wrong_program_is_found() {
        let directory = tempfile::tempdir().unwrap();
        let mut tree = ctree::generate(1);
        std::os::unix::fs::symlink("/bin/true", directory.path().join("program")).unwrap();
        tree.checksum ^= 1;
        assert!(
            check(&tree, directory.path())
                .unwrap_err()
                .contains("printed ''")
        );
    }

    #[test]
    fn wrong_options_are_named() {
        let error = |text| Settings::parse(&options(text)).map(|_| ()).unwrap_err();
        assert!(error("-L /nonexistent.so").contains("-L '/nonexistent.so'"));
        assert!(error("-O 9").contains("'9'"));
        let settings = Settings::parse(&options("")).unwrap();
        assert!(
            environment_of("slub:plain", &settings)
                .unwrap_err()
                .contains("placement")
        );
    }
}
