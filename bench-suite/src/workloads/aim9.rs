//! AIM9: single tests over a fixed time, in operations a second.
//!
//! | row | an operation |
//! |---|---|
//! | page_test | take 32 pages one by one, write one byte of each, give them back |
//! | brk_test | 17 extents of 64 KiB taken and given back in reverse order, as a heap's end moves up and down; nothing is written |
//! | small_objects | 32 objects of 16 to 512 bytes, written, given back in another order |
//! | fork_test | fork of a process that holds 1,000 objects; the child frees ten, takes ten and leaves |

use super::store::{Buf, Extent, taken};
use super::{Job, Measurement, Options, Outcome, RowSpec, Workload, args, crew, die, pin};
use crate::objects::{CacheRun, Objects, dispatch};
use crate::stats::Better;
use std::time::{Duration, Instant};

/// The workload.
pub struct Aim9;

const USAGE: &str = "-t page_test|brk_test|small_objects|fork_test,.. -l SECONDS";

/// The tests.
pub const TESTS: [&str; 4] = ["page_test", "brk_test", "small_objects", "fork_test"];

const PAGE: usize = 4096;
const PAGES: usize = 32;
const STEPS: usize = 17;
const STEP: usize = 64 << 10;

struct Settings {
    tests: Vec<&'static str>,
    length: Duration,
}

impl Settings {
    fn parse(options: &Options) -> Result<Self, String> {
        let mut settings = Self {
            tests: TESTS.to_vec(),
            length: Duration::from_millis(if options.quick { 100 } else { 1000 }),
        };
        for (letter, value) in args::parse("aim9", "t:l:", USAGE, &options.args)? {
            let value = value.unwrap_or_default();
            match letter {
                't' => settings.tests = args::words("aim9", 't', &value, &TESTS)?,
                _ => settings.length = args::seconds("aim9", 'l', &value)?,
            }
        }
        Ok(settings)
    }
}

impl Workload for Aim9 {
    fn name(&self) -> &'static str {
        "aim9"
    }

    fn about(&self) -> &'static str {
        "page_test, brk_test, small objects and fork, operations a second over a fixed time"
    }

    fn usage(&self) -> &'static str {
        USAGE
    }

    fn plan(&self, options: &Options) -> Result<Vec<Job>, String> {
        let settings = Settings::parse(options)?;
        let job = |test: &&'static str| Job {
            name: (*test).to_owned(),
            rows: vec![RowSpec {
                row: (*test).to_owned(),
                metric: "operations",
                unit: "ops/s",
                better: Better::Higher,
            }],
            time_limit: Duration::from_secs(30) + settings.length * 4,
            threads: 1,
        };
        Ok(settings.tests.iter().map(job).collect())
    }

    fn run(&self, backend: &str, job: &str, options: &Options) -> Result<Outcome, String> {
        dispatch::<Self>(backend, job, options)
    }
}

impl CacheRun for Aim9 {
    fn run<O: Objects>(job: &str, options: &Options) -> Result<Outcome, String> {
        let settings = Settings::parse(options)?;
        let one = |body: fn()| {
            crew::run(1, settings.length, options.cpus, |_, meter| {
                loop {
                    body();
                    if !meter.tick() {
                        break;
                    }
                }
            })
        };
        let (rate, objects) = match job {
            "page_test" => of(one(page_test::<O>)),
            "brk_test" => of(one(brk_test::<O>)),
            "small_objects" => of(one(small_objects::<O>)),
            // A process with other threads is no place to fork in.
            "fork_test" => fork_test::<O>(&settings, options)?,
            _ => {
                return Err(format!(
                    "aim9: no test '{job}'; valid: {}",
                    TESTS.join(", ")
                ));
            }
        };
        if rate <= 0.0 {
            return Err(format!(
                "aim9: {job}: nothing was done after the warm-up; try a longer -l"
            ));
        }
        Ok(Outcome {
            objects,
            measurements: vec![Measurement {
                row: job.to_owned(),
                metric: "operations".to_owned(),
                value: rate,
            }],
            ..Outcome::default()
        })
    }
}

fn of(pace: crew::Pace) -> (f64, u64) {
    (pace.rate, pace.objects)
}

fn page_test<O: Objects>() {
    let pages: [Extent<O>; PAGES] = std::array::from_fn(|i| {
        let mut page = Extent::new(PAGE);
        page.touch(i * 64, i as u8);
        page
    });
    drop(pages);
}

fn brk_test<O: Objects>() {
    let mut steps: [Option<Extent<O>>; STEPS] = std::array::from_fn(|_| Some(Extent::new(STEP)));
    for step in steps.iter_mut().rev() {
        *step = None;
    }
}

fn small_objects<O: Objects>() {
    // Sizes in a fixed disorder, freed in another.
    let mut objects: [Option<Buf<O>>; 32] =
        std::array::from_fn(|i| Some(Buf::filled(16 + (i * 11 % 32) * 16, i as u8)));
    for i in 0..objects.len() {
        objects[i * 13 % 32] = None;
    }
}

fn fork_test<O: Objects>(settings: &Settings, options: &Options) -> Result<(f64, u64), String> {
    pin(options.cpus.map(|cpus| cpus.0));
    let mut objects: Vec<Buf<O>> = (0..1000).map(|i| Buf::filled(16 + i % 1000, 1)).collect();
    let warm_until = Instant::now() + settings.length / 4;
    while Instant::now() < warm_until {
        fork_once(&mut objects)?;
    }
    let began = Instant::now();
    let mut forks = 0u64;
    while began.elapsed() < settings.length {
        fork_once(&mut objects)?;
        forks += 1;
    }
    Ok((forks as f64 / began.elapsed().as_secs_f64(), taken()))
}

fn fork_once<O: Objects>(objects: &mut Vec<Buf<O>>) -> Result<(), String> {
    // SAFETY: this process has no other thread, so the child finds no lock held.
    let pid = unsafe { libc::fork() };
    if pid < 0 {
        return Err(format!("aim9: fork: {}", std::io::Error::last_os_error()));
    }
    if pid == 0 {
        objects.truncate(990);
        objects.extend((0..10).map(|i| Buf::filled(100, i)));
        let whole = objects.iter().all(|object| !object.is_empty());
        // SAFETY: leaves at once: the parent's buffers and exit handlers are not this process's to run.
        unsafe { libc::_exit(i32::from(!whole)) }
    }
    let mut status = 0;
    // SAFETY: the child is ours, and `status` is valid for writing.
    if unsafe { libc::waitpid(pid, &mut status, 0) } != pid {
        die(&format!("aim9: wait: {}", std::io::Error::last_os_error()));
    }
    if status == 0 {
        Ok(())
    } else {
        Err(format!("aim9: a child ended with wait status {status:#x}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::Cached;

    fn options(text: &str) -> Options {
        Options {
            args: text.split_whitespace().map(str::to_owned).collect(),
            ..Options::default()
        }
    }

    #[test]
    fn tests_take_what_they_say() {
        type Classic = Cached<slab_classic::Classic>;
        for (body, objects) in [
            (page_test::<Classic> as fn(), PAGES),
            (brk_test::<Classic>, STEPS),
            (small_objects::<Classic>, 32),
        ] {
            let before = taken();
            body();
            assert_eq!(taken() - before, objects as u64);
        }
        let outcome = <Aim9 as CacheRun>::run::<Classic>("page_test", &options("-l 0.01")).unwrap();
        assert!(outcome.measurements[0].value > 0.0);
    }

    #[test]
    fn small_objects_frees_every_object() {
        // 13 and 32 have no common factor, and neither have 11 and 32.
        for factor in [11, 13] {
            let mut places: Vec<usize> = (0..32).map(|i| i * factor % 32).collect();
            places.sort_unstable();
            assert_eq!(places, (0..32).collect::<Vec<_>>());
        }
    }

    #[test]
    fn wrong_options_are_named() {
        let error = |text| Settings::parse(&options(text)).map(|_| ()).unwrap_err();
        assert!(error("-t disk_test").contains("'disk_test'; valid: page_test"));
        assert!(error("-t page_test,page_test").contains("twice"));
    }
}
