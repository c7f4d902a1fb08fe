//! `bench-suite pagemap`: a map of page-alloc's arena, block by block, as text, SVG and JSON.
//!
//! Without a WORKLOAD an arena ages in this process as in highalloc, and is drawn at one of the protocol's stages. With
//! one, the workload's jobs run in this process, and the fullest moment that a sampling thread saw is drawn.

mod map;
mod svg;

pub use map::{Block, Map};

use crate::cli::{bad_arguments, print};
use crate::export;
use crate::workloads::pages::ageing::{Load, Params};
use crate::workloads::pages::ground::Ground;
use crate::workloads::pages::own::{Placement, Plain};
use crate::workloads::pages::passes::{Policy, pass};
use crate::workloads::pages::{ARENA_MIB, PageBackend};
use crate::workloads::{self, Options};
use clap::{Args, ValueEnum};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

/// Between two looks at a running workload.
const SAMPLE_EVERY: Duration = Duration::from_millis(5);

/// When to draw an ageing arena.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Stage {
    /// Aged, 95 to 97 % full
    #[default]
    Aged,
    /// After the first pass of order-9 requests gave its blocks back
    Pass1,
    /// After the jobs ended and the cache was dropped: what is pinned
    Rest,
}

/// The options of `pagemap`.
#[derive(Args)]
pub struct PageMap {
    /// Run this workload in this process and draw its fullest moment [default: age an arena]
    #[arg(value_name = "WORKLOAD", conflicts_with_all = ["stage", "pinned", "seed", "arena"])]
    workload: Option<String>,

    /// placement or plain; with a WORKLOAD any backend of it that page-alloc serves [default: placement, or unified]
    #[arg(long, value_name = "NAME")]
    backend: Option<String>,

    /// When to draw
    #[arg(long, value_enum, default_value_t)]
    stage: Stage,

    /// Share of the arena that is pinned in the end, in per cent
    #[arg(long, value_name = "PCT", default_value_t = 3, value_parser = clap::value_parser!(u8).range(0..=50))]
    pinned: u8,

    /// Seed of the load
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,

    /// Size of the arena, in MiB
    #[arg(long, value_name = "MIB", default_value_t = ARENA_MIB as u32, value_parser = clap::value_parser!(u32).range(16..=65_536))]
    arena: u32,

    /// Blocks in a line
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=1024))]
    width: u16,

    /// Write the map as SVG
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,

    /// Write the blocks as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,

    /// The workload's own options
    #[arg(last = true, value_name = "WORKLOAD OPTIONS", requires = "workload")]
    args: Vec<String>,
}

/// Runs `bench-suite pagemap`.
pub fn main(options: &PageMap) -> ExitCode {
    let map = match &options.workload {
        None => match options.backend.as_deref().unwrap_or("placement") {
            "placement" => aged::<Placement>(options),
            "plain" => aged::<Plain>(options),
            other => {
                return bad_arguments(&format!(
                    "--backend '{other}': a map is drawn of placement or plain"
                ));
            }
        },
        Some(name) => match check(name, options) {
            Ok((workload, backend)) => fullest(workload, &backend, options),
            Err(message) => return bad_arguments(&message),
        },
    };
    match map.and_then(|map| show(&map, options)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("bench-suite: {message}");
            ExitCode::from(1)
        }
    }
}

fn show(map: &Map, options: &PageMap) -> Result<(), String> {
    let width = usize::from(options.width);
    print(&map.text(width));
    if let Some(path) = &options.svg {
        export::write(path, &svg::render(map, width))?;
        print(&format!("wrote {}\n", path.display()));
    }
    if let Some(path) = &options.json {
        let text = serde_json::to_string_pretty(map).map_err(|e| format!("JSON: {e}"))?;
        export::write(path, &(text + "\n"))?;
        print(&format!("wrote {}\n", path.display()));
    }
    Ok(())
}

fn aged<B: PageBackend>(options: &PageMap) -> Result<Map, String> {
    let bytes = (options.arena as usize) << 20;
    let backend: &'static B = Box::leak(Box::new(B::create(bytes)?));
    let ground = Box::leak(Box::new(Ground::new(backend, bytes)));
    let params = Params {
        pinned_pct: options.pinned.into(),
        seed: options.seed,
    };
    let mut load = Load::new(ground, params)?;
    load.age();
    let stage = match options.stage {
        Stage::Aged => "aged",
        Stage::Pass1 => {
            pass(ground, &mut load, Policy::Block, true);
            "after pass 1"
        }
        Stage::Rest => {
            load.rest();
            // Pages in the lists of this thread would count as used.
            page_alloc::pcp::drain_current();
            "at rest"
        }
    };
    let title = format!(
        "{}, {} MiB, {} % pinned, seed {}, {stage}",
        B::NAME,
        options.arena,
        options.pinned,
        options.seed
    );
    Ok(Map::take(title))
}

/// The workload and the backend that a map can be drawn of.
fn check(
    name: &str,
    options: &PageMap,
) -> Result<(&'static dyn workloads::Workload, String), String> {
    let workload = workloads::find(name)?;
    let drawn = if workload.takes("placement") {
        ["placement", "plain"].as_slice()
    } else {
        crate::backend::OWN.as_slice()
    };
    let default = if workload.takes("placement") {
        "placement"
    } else {
        "unified"
    };
    let backend = options.backend.as_deref().unwrap_or(default);
    if !drawn.contains(&backend) {
        return Err(format!(
            "--backend '{backend}': of {name} a map is drawn with {}",
            drawn.join(", ")
        ));
    }
    workload.plan(&workload_options(options))?;
    Ok((workload, backend.to_owned()))
}

fn workload_options(options: &PageMap) -> Options {
    Options {
        quick: true,
        cpus: None,
        args: options.args.clone(),
    }
}

/// Runs all jobs of a workload and keeps the fullest of the maps taken meanwhile.
fn fullest(
    workload: &dyn workloads::Workload,
    backend: &str,
    options: &PageMap,
) -> Result<Map, String> {
    let workload_options = workload_options(options);
    let jobs = workload.plan(&workload_options)?;
    let fullest = Mutex::new(Map::default());
    let done = AtomicBool::new(false);
    let look = |job: &str| {
        let map = Map::take(format!("{} {job}, {backend}", workload.name()));
        let mut best = fullest.lock().unwrap_or_else(|e| e.into_inner());
        if map.used_pages() > best.used_pages() {
            *best = map;
        }
    };
    let job_name = Mutex::new(String::new());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Relaxed) {
                let job = job_name.lock().unwrap_or_else(|e| e.into_inner()).clone();
                look(&job);
                std::thread::sleep(SAMPLE_EVERY);
            }
        });
        let mut result = Ok(());
        for job in &jobs {
            *job_name.lock().unwrap_or_else(|e| e.into_inner()) = job.name.clone();
            if let Err(error) = workload.run(backend, &job.name, &workload_options) {
                result = Err(error);
                break;
            }
            look(&job.name);
        }
        done.store(true, Relaxed);
        result
    })?;
    let map = fullest.into_inner().unwrap_or_else(|e| e.into_inner());
    if map.used_pages() == 0 {
        return Err(format!(
            "{} took no pages in this process, so there is nothing to draw; for one that measures in processes of its \
             own, ask for a single one, as in: pagemap highalloc -- -s 1",
            workload.name()
        ));
    }
    Ok(map)
}
