//! Cache colouring on and off: seed 000's "if I could only measure it".
//!
//! ```text
//!  off:  |o0 |o1 |o2 |  rest |    on:  |o0 |o1 |o2 |  rest |
//!        |o0 |o1 |o2 |  rest |          64>|o0 |o1 |o2 | r |
//!        |o0 |o1 |o2 |  rest |            128>|o0 |o1 |o2 ||
//! ```
//! Without colours the first lines of all slabs' objects fall into few sets of the cache; slab-classic moves each slab
//! by another colour. The walk reads the first line of every object of a cache, again and again. Only `slab` has
//! colours: for the other backends the two rows are the same measurement twice, which shows how far noise goes.

use super::perf::Misses;
use super::{Job, Measurement, Options, Outcome, RowSpec, Workload, args, pin};
use crate::objects::{CacheRun, Objects, dispatch};
use crate::report::{Report, Row};
use crate::stats::Better;
use std::time::{Duration, Instant};

/// The workload.
pub struct Colour;

const USAGE: &str = "-s SIZE,.. -n OBJECTS -w WALKS";

const WALK: &str = "walk";
const MISSES: &str = "L1 read misses";

struct Settings {
    sizes: Vec<usize>,
    objects: usize,
    walks: usize,
}

impl Settings {
    fn parse(options: &Options) -> Result<Self, String> {
        const NAME: &str = "colour";
        let mut settings = Self {
            // Sizes of which a slab has a rest to move its objects in.
            sizes: if options.quick {
                vec![704, 1088]
            } else {
                vec![320, 704, 1088, 1312]
            },
            // Their first lines fill a level-1 cache of 32 KiB once, if they spread evenly.
            objects: 512,
            walks: if options.quick { 2_000 } else { 20_000 },
        };
        for (letter, value) in args::parse(NAME, "s:n:w:", USAGE, &options.args)? {
            let value = value.unwrap_or_default();
            match letter {
                's' => settings.sizes = args::numbers(NAME, 's', &value, 64..=32768)?,
                'n' => settings.objects = args::number(NAME, 'n', &value, 1..=1_000_000)?,
                _ => settings.walks = args::number(NAME, 'w', &value, 1..=100_000_000)?,
            }
        }
        Ok(settings)
    }
}

impl Workload for Colour {
    fn name(&self) -> &'static str {
        "colour"
    }

    fn about(&self) -> &'static str {
        "first lines of all objects walked, with slab's cache colouring on and off"
    }

    fn usage(&self) -> &'static str {
        USAGE
    }

    fn plan(&self, options: &Options) -> Result<Vec<Job>, String> {
        let settings = Settings::parse(options)?;
        let counts = Misses::open().is_ok();
        let mut jobs = Vec::new();
        for size in &settings.sizes {
            for way in ["off", "on"] {
                let name = format!("{size}/{way}");
                let mut rows = vec![RowSpec {
                    row: name.clone(),
                    metric: WALK,
                    unit: "ns per object",
                    better: Better::Lower,
                }];
                if counts {
                    rows.push(RowSpec {
                        row: name.clone(),
                        metric: MISSES,
                        unit: "per 1000 objects",
                        better: Better::Lower,
                    });
                }
                jobs.push(Job {
                    name,
                    rows,
                    time_limit: Duration::from_secs(600),
                    threads: 1,
                });
            }
        }
        Ok(jobs)
    }

    fn run(&self, backend: &str, job: &str, options: &Options) -> Result<Outcome, String> {
        dispatch::<Self>(backend, job, options)
    }

    fn appendix(&self, report: &Report) -> Option<String> {
        Some(render(report)).filter(|text| !text.is_empty())
    }
}

impl CacheRun for Colour {
    fn run<O: Objects>(job: &str, options: &Options) -> Result<Outcome, String> {
        let settings = Settings::parse(options)?;
        let unknown = || format!("colour: no row '{job}'; valid: SIZE/on, SIZE/off");
        let (size, way) = job.split_once('/').ok_or_else(unknown)?;
        let size = args::number("colour", 's', size, 64..=32768)?;
        pin(options.cpus.map(|cpus| cpus.0));
        slab_classic::set_colouring(match way {
            "on" => true,
            "off" => false,
            _ => return Err(unknown()),
        });
        let cache = O::create("colour", size)?;
        let mut objects = Vec::with_capacity(settings.objects);
        for _ in 0..settings.objects {
            let object = O::alloc(cache);
            if object.is_null() {
                return Err(format!("{}: out of memory", O::NAME));
            }
            // SAFETY: a fresh object of at least 64 bytes, aligned to 16.
            unsafe { object.cast::<u64>().write(1) };
            objects.push(object);
        }
        walk(&objects, settings.walks / 10 + 1)?;
        let mut misses = Misses::open().ok();
        let before = misses.as_mut().and_then(Misses::count);
        let began = Instant::now();
        walk(&objects, settings.walks)?;
        let elapsed = began.elapsed();
        let after = misses.as_mut().and_then(Misses::count);
        let reads = (settings.objects * settings.walks) as f64;
        let mut outcome = Outcome {
            objects: settings.objects as u64,
            ..Outcome::default()
        };
        let mut add = |metric: &str, value| {
            outcome.measurements.push(Measurement {
                row: job.to_owned(),
                metric: metric.to_owned(),
                value,
            });
        };
        add(WALK, elapsed.as_nanos() as f64 / reads);
        if let (Some(before), Some(after)) = (before, after) {
            add(MISSES, after.saturating_sub(before) as f64 / reads * 1000.0);
        }
        let lines: std::collections::BTreeSet<usize> = objects
            .iter()
            .map(|object| *object as usize >> 6 & 63)
            .collect();
        outcome
            .counters
            .insert("sets_of_first_lines".to_owned(), lines.len() as u64);
        for object in objects {
            // SAFETY: the object came from this cache, and nobody uses it any more.
            unsafe { O::free(cache, object) };
        }
        Ok(outcome)
    }
}

/// Reads the first line of every object, so many times.
fn walk(objects: &[*mut u8], times: usize) -> Result<(), String> {
    let mut sum = 0u64;
    for _ in 0..times {
        for object in std::hint::black_box(objects) {
            // SAFETY: the object is live, its first word was written and it is aligned to 16.
            sum += unsafe { object.cast::<u64>().read() };
        }
    }
    if sum == (objects.len() * times) as u64 {
        Ok(())
    } else {
        Err("colour: an object was overwritten".to_owned())
    }
}

/// On beside off, for each backend.
fn render(report: &Report) -> String {
    let rows = |metric: &str| -> Vec<&Row> {
        let all = report.rows.iter();
        all.filter(|row| {
            row.workload == "colour" && row.metric == metric && row.row.ends_with("/off")
        })
        .collect()
    };
    let mut text = String::new();
    for metric in [WALK, MISSES] {
        let mut grid: Vec<Vec<String>> = Vec::new();
        for off in rows(metric) {
            let name = off.row.replace("/off", "/on");
            let on = report.rows.iter().find(|row| {
                row.workload == "colour"
                    && row.metric == metric
                    && row.row == name
                    && row.backend == off.backend
            });
            let Some(on) = on else { continue };
            if grid.is_empty() {
                let heads = [
                    "size", "backend", "off", "on", "change", "sets off", "sets on",
                ];
                grid.push(heads.map(str::to_owned).to_vec());
            }
            let sets = |row: &Row| {
                let sets = row.counters.get("sets_of_first_lines");
                sets.map_or_else(|| "-".to_owned(), u64::to_string)
            };
            let change = crate::stats::Delta::Base.percent(Better::Lower, off.mean, on.mean);
            grid.push(vec![
                off.row.replace("/off", ""),
                crate::table::column_head(&off.backend),
                format!("{:.3}", off.mean),
                format!("{:.3}", on.mean),
                change.map_or_else(|| "-".to_owned(), |change| format!("{change:+.2}%")),
                sets(off),
                sets(on),
            ]);
        }
        if let Some(first) = rows(metric).first() {
            text.push_str(&format!(
                "colour: {metric}, {}, colouring off and on (+ is better); sets: of 64, that the first lines fall into\n",
                first.unit
            ));
            text.push_str(&crate::table::align(&grid));
        }
    }
    if !text.is_empty()
        && rows(MISSES).is_empty()
        && let Err(why) = Misses::open()
    {
        text.push_str(&format!("({why}; the time of the walk stands for them)\n"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::SystemMalloc;

    fn options(text: &str) -> Options {
        Options {
            quick: true,
            args: text.split_whitespace().map(str::to_owned).collect(),
            ..Options::default()
        }
    }

    #[test]
    fn every_planned_row_is_measured() {
        let options = options("-s 704 -n 20 -w 10");
        for job in Colour.plan(&options).unwrap() {
            let outcome = <Colour as CacheRun>::run::<SystemMalloc>(&job.name, &options).unwrap();
            for row in job.rows {
                assert!(outcome.measurements.iter().any(|m| m.metric == row.metric));
            }
        }
    }

    #[test]
    fn wrong_options_are_named() {
        let error = |text| Settings::parse(&options(text)).map(|_| ()).unwrap_err();
        assert!(error("-s 1").contains("-s '1'"));
    }
}
