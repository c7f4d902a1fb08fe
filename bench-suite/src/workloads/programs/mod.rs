//! programs: whole programs under each malloc, with their time and the memory of the program itself.
//!
//! The worker is not preloaded, the program is. Each sample first runs the program without the library; both must write
//! the same output. Inputs are generated (`inputs`), so that every machine does the same work. A program that is not
//! installed is named and left out.
//!
//! The peak is the kernel's figure for the program and the descendants it waits for (`wait4`). A process starts out with the
//! peak of the worker that started it, about 5 MB, so programs smaller than that show that figure.

mod child;
mod inputs;
mod redis;

use super::{Job, Measurement, Options, Outcome, RowSpec, Workload, args};
use crate::preload::Route;
use crate::stats::Better;
use child::{Ended, Scratch};
use std::path::Path;
use std::time::Duration;

/// The workload.
pub struct Programs;

const NAME: &str = "programs";
const USAGE: &str = "-r PROGRAMS,.. -n PER_CENT (of the usual work)";

/// Work of a full sample, relative to that of --quick.
const FULL: usize = 4;

/// How much work a program gets.
#[derive(Clone, Copy)]
pub struct Size {
    quick: bool,
    percent: usize,
}

impl Size {
    fn count(&self, quick: usize) -> usize {
        let full = if self.quick { 1 } else { FULL };
        (quick * full * self.percent / 100).max(1)
    }
}

/// What a program does with its generated file.
struct Script {
    /// The file's name.
    file: &'static str,
    /// Its text, by the amount of work.
    text: fn(usize) -> String,
    /// The work of --quick.
    quick: usize,
    arguments: &'static [&'static str],
    variables: &'static [(&'static str, &'static str)],
    /// A file that the program writes and that is output too.
    result: Option<&'static str>,
}

enum Work {
    Script(Script),
    Redis,
}

struct Program {
    name: &'static str,
    /// The program by the first of its names that is there, and the package that has it.
    names: &'static [&'static str],
    package: &'static str,
    /// Further programs it needs.
    also: &'static [&'static str],
    work: Work,
}

const PYTHON: Script = Script {
    file: "work.py",
    text: inputs::python,
    quick: 8,
    arguments: &["work.py"],
    variables: &[("PYTHONHASHSEED", "0"), ("PYTHONDONTWRITEBYTECODE", "1")],
    result: None,
};

const PROGRAMS: &[Program] = &[
    Program {
        name: "python3",
        names: &["python3"],
        package: "python3",
        also: &[],
        work: Work::Script(PYTHON),
    },
    Program {
        // Without Python's own allocator for small objects, which otherwise hides the malloc.
        name: "python3/malloc",
        names: &["python3"],
        package: "python3",
        also: &[],
        work: Work::Script(Script {
            variables: &[
                ("PYTHONHASHSEED", "0"),
                ("PYTHONDONTWRITEBYTECODE", "1"),
                ("PYTHONMALLOC", "malloc"),
            ],
            ..PYTHON
        }),
    },
    Program {
        name: "gcc",
        names: &["gcc"],
        package: "gcc",
        also: &[],
        work: Work::Script(Script {
            file: "work.c",
            text: inputs::c,
            quick: 25,
            arguments: &["-O1", "-S", "-o", "out.s", "work.c"],
            variables: &[],
            result: Some("out.s"),
        }),
    },
    Program {
        name: "g++",
        names: &["g++"],
        package: "g++",
        also: &[],
        work: Work::Script(Script {
            file: "work.cpp",
            text: inputs::cxx,
            quick: 1,
            arguments: &["-O0", "-S", "-o", "out.s", "work.cpp"],
            variables: &[],
            result: Some("out.s"),
        }),
    },
    Program {
        name: "perl",
        names: &["perl"],
        package: "perl",
        also: &[],
        work: Work::Script(Script {
            file: "work.pl",
            text: inputs::perl,
            quick: 15,
            arguments: &["work.pl"],
            variables: &[("PERL_HASH_SEED", "0")],
            result: None,
        }),
    },
    Program {
        name: "sqlite3",
        names: &["sqlite3"],
        package: "sqlite3",
        also: &[],
        work: Work::Script(Script {
            file: "work.sql",
            text: inputs::sqlite,
            quick: 12,
            arguments: &["-batch", ":memory:", ".read work.sql"],
            variables: &[],
            result: None,
        }),
    },
    Program {
        name: "redis",
        names: &["redis-server"],
        package: "redis-server",
        also: &["redis-benchmark"],
        work: Work::Redis,
    },
    Program {
        name: "gawk",
        names: &["gawk"],
        package: "gawk",
        also: &[],
        work: Work::Script(Script {
            file: "work.awk",
            text: inputs::awk,
            quick: 15,
            arguments: &["-f", "work.awk"],
            variables: &[],
            result: None,
        }),
    },
    Program {
        name: "lua",
        names: &["lua", "lua5.4", "lua5.3"],
        package: "lua5.4",
        also: &[],
        work: Work::Script(Script {
            file: "work.lua",
            text: inputs::lua,
            quick: 6,
            arguments: &["work.lua"],
            variables: &[],
            result: None,
        }),
    },
    Program {
        name: "git",
        names: &["sh"],
        package: "git",
        also: &["git"],
        work: Work::Script(Script {
            file: "work.sh",
            text: inputs::git,
            quick: 80,
            arguments: &["work.sh"],
            variables: &[
                ("GIT_CONFIG_NOSYSTEM", "1"),
                ("GIT_AUTHOR_NAME", "a"),
                ("GIT_AUTHOR_EMAIL", "a@example.org"),
                ("GIT_AUTHOR_DATE", "2010-05-20T12:00:00Z"),
                ("GIT_COMMITTER_NAME", "a"),
                ("GIT_COMMITTER_EMAIL", "a@example.org"),
                ("GIT_COMMITTER_DATE", "2010-05-20T12:00:00Z"),
            ],
            result: None,
        }),
    },
];

impl Program {
    /// What is missing of it.
    fn missing(&self) -> Option<String> {
        let program = self.names.iter().any(|name| child::find(name).is_some());
        let absent = if program {
            self.also.iter().find(|name| child::find(name).is_none())
        } else {
            self.names.first()
        };
        absent.map(|name| {
            format!(
                "{}: {name} is not on this machine; run: apt-get install {}",
                self.name, self.package
            )
        })
    }

    fn measure(&self, size: Size) -> Result<(Duration, u64, u64), String> {
        let library = child::library();
        let library = library.as_deref();
        let scratch = Scratch::new(self.name)?;
        match &self.work {
            Work::Redis => {
                let plain = redis::measure(scratch.path(), None, size, false)?;
                let under = redis::measure(scratch.path(), library, size, true)?;
                same(self.name, &plain.output, &under.output)?;
                Ok((under.time, under.peak_kib, under.rest_kib))
            }
            Work::Script(script) => {
                let (plain, expected) =
                    self.run(script, &scratch.path().join("plain"), None, size)?;
                let (under, output) =
                    self.run(script, &scratch.path().join("under"), library, size)?;
                if plain.output.is_empty() && script.result.is_none() {
                    return Err(format!("{}: it wrote nothing to compare", self.name));
                }
                same(self.name, &expected, &output)?;
                // It ended: there is no resting set.
                Ok((under.time, under.peak_kib, 0))
            }
        }
    }

    /// Runs the program in a directory of its own; returns how it ended and all that it wrote.
    fn run(
        &self,
        script: &Script,
        directory: &Path,
        library: Option<&Path>,
        size: Size,
    ) -> Result<(Ended, Vec<u8>), String> {
        std::fs::create_dir(directory).map_err(|e| format!("{}: {e}", directory.display()))?;
        let file = directory.join(script.file);
        std::fs::write(&file, (script.text)(size.count(script.quick)))
            .map_err(|e| format!("{}: {e}", file.display()))?;
        let program = self.names.iter().find_map(|name| child::find(name));
        let program = program.ok_or_else(|| format!("{} is gone", self.name))?;
        let mut command = child::command(&program, directory, library);
        command
            .args(script.arguments)
            .envs(script.variables.iter().copied());
        let ended = child::run(command, directory)?;
        let mut output = ended.output.clone();
        if let Some(result) = script.result {
            output.extend(child::read(&directory.join(result))?);
        }
        Ok((ended, output))
    }
}

/// An error that says where two outputs differ.
fn same(name: &str, expected: &[u8], output: &[u8]) -> Result<(), String> {
    if expected == output {
        return Ok(());
    }
    let differ = expected.iter().zip(output).position(|(a, b)| a != b);
    Err(format!(
        "{name}: the output differs from the run without the library: {} bytes against {}, from byte {} on",
        output.len(),
        expected.len(),
        differ.unwrap_or(expected.len().min(output.len()))
    ))
}

struct Settings {
    programs: Vec<&'static Program>,
    size: Size,
}

impl Settings {
    fn parse(options: &Options) -> Result<Self, String> {
        let mut settings = Self {
            programs: PROGRAMS
                .iter()
                .filter(|program| program.missing().is_none())
                .collect(),
            size: Size {
                quick: options.quick,
                percent: 100,
            },
        };
        for (letter, value) in args::parse(NAME, "r:n:", USAGE, &options.args)? {
            let value = value.unwrap_or_default();
            match letter {
                'r' => settings.programs = chosen(&value)?,
                _ => settings.size.percent = args::number(NAME, 'n', &value, 1..=10_000)?,
            }
        }
        Ok(settings)
    }
}

/// The programs named; each must be there.
fn chosen(names: &str) -> Result<Vec<&'static Program>, String> {
    let mut programs: Vec<&Program> = Vec::new();
    for name in names.split(',').map(str::trim) {
        let program = PROGRAMS.iter().find(|program| program.name == name);
        let program = program.ok_or_else(|| {
            let all: Vec<&str> = PROGRAMS.iter().map(|program| program.name).collect();
            format!(
                "{NAME}: -r '{name}': not known; programs: {}",
                all.join(", ")
            )
        })?;
        if let Some(missing) = program.missing() {
            return Err(format!("{NAME}: {missing}"));
        }
        if programs.iter().any(|other| other.name == name) {
            return Err(format!("{NAME}: -r '{names}': {name} is listed twice"));
        }
        programs.push(program);
    }
    Ok(programs)
}

impl Workload for Programs {
    fn name(&self) -> &'static str {
        NAME
    }

    fn about(&self) -> &'static str {
        "python3, gcc, perl, sqlite3, redis and others under each malloc; the output must not change"
    }

    fn usage(&self) -> &'static str {
        USAGE
    }

    fn plan(&self, options: &Options) -> Result<Vec<Job>, String> {
        let job = |program: &&Program| Job {
            name: program.name.to_owned(),
            rows: vec![RowSpec {
                row: program.name.to_owned(),
                metric: "time",
                unit: "s",
                better: Better::Lower,
            }],
            time_limit: Duration::from_secs(300),
            threads: 1,
        };
        Ok(Settings::parse(options)?.programs.iter().map(job).collect())
    }

    fn missing(&self) -> Vec<String> {
        PROGRAMS.iter().filter_map(Program::missing).collect()
    }

    fn route(&self) -> Route {
        Route::Programs
    }

    fn run(&self, _backend: &str, job: &str, options: &Options) -> Result<Outcome, String> {
        let settings = Settings::parse(options)?;
        let program = PROGRAMS
            .iter()
            .find(|program| program.name == job)
            .ok_or_else(|| format!("{NAME}: no job '{job}'"))?;
        let (time, peak, rest) = program.measure(settings.size)?;
        Ok(Outcome {
            measurements: vec![Measurement {
                row: program.name.to_owned(),
                metric: "time".to_owned(),
                value: time.as_secs_f64(),
            }],
            program_rss_kib: Some((peak, rest)),
            ..Outcome::default()
        })
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
    fn every_program_that_is_here_runs_and_repeats_its_output() {
        let options = options("-n 10");
        let jobs = Programs.plan(&options).unwrap();
        assert_eq!(jobs.len() + Programs.missing().len(), PROGRAMS.len());
        for job in jobs {
            let outcome = Programs.run("system", &job.name, &options).unwrap();
            assert!(outcome.measurements[0].value > 0.0, "{}", job.name);
            let (peak, rest) = outcome.program_rss_kib.unwrap();
            assert!(peak > 500, "{}: {peak} kB", job.name);
            assert_eq!(rest > 0, job.name == "redis", "{}", job.name);
        }
    }

    #[test]
    fn unknown_programs_and_other_outputs_are_named() {
        let error = Programs.plan(&options("-r emacs")).unwrap_err();
        assert!(
            error.contains("'emacs'") && error.contains("python3, "),
            "{error}"
        );
        let error = Programs.plan(&options("-r perl,perl")).unwrap_err();
        assert!(error.contains("perl is listed twice"), "{error}");
        assert_eq!(same("x", b"abc", b"abc"), Ok(()));
        let error = same("x", b"abc", b"abd").unwrap_err();
        assert!(
            error.contains("3 bytes against 3, from byte 2 on"),
            "{error}"
        );
        assert!(
            same("x", b"abc", b"ab")
                .unwrap_err()
                .contains("from byte 2 on")
        );
    }

    #[test]
    fn a_missing_program_is_named_with_its_package() {
        let program = Program {
            name: "x",
            names: &["no-such-program"],
            package: "some-package",
            also: &[],
            work: Work::Redis,
        };
        let line = program.missing().unwrap();
        assert!(line.contains("no-such-program") && line.contains("apt-get install some-package"));
    }
}
