//! compaction: what it costs to empty a half-full movable block, against a cold copy of the pages that live in it.
//!
//! ```text
//!   runs:       | 64 live | 64 free | 64 live | 64 free | ...     moved a run at a time, remapped where the kernel can
//!   scattered:  | live | free | live | free | ...                 moved a page at a time, by copy
//! ```
//! An arena of such blocks; what is free in them was given back to the kernel. A block is chosen, emptied into the
//! others (`claim_blocks`), and given back, with the processor's caches full of other data; before, the same pages were
//! copied, as cold, into pages that are there already, and into fresh ones, as the free places of the other blocks are.
//! A sample is the median over the blocks. `copied` is `runs` with userfaultfd denied: the fall-back.
//!
//! | metric | what |
//! |---|---|
//! | `empty`, `memcpy`, `memcpy_fresh` | µs a block: emptying it, the copy into pages that are there, and into fresh ones |
//! | `ratio`, `ratio_fresh` | the first over each of the others |
//! | `pause_p50`, `pause_p99` | µs that the owner was stopped for a batch of moves |

use super::{ARENA_MIB, BLOCK_PAGES, Migratetype, Order, is_page_backend};
use crate::stats::Better;
use crate::workloads::{Job, Measurement, Options, Outcome, RowSpec, Workload, args, pin};
use page_alloc::evacuate::{claim_blocks, counters, pauses};
use page_alloc::os::{self, Call};
use page_alloc::{OwnerId, PAGE_SIZE, PageOwner, PageRef, config, free_pages, free_run, page_of};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// The workload.
pub struct Compaction;

const NAME: &str = "compaction";
const USAGE: &str = "-b BLOCKS";
const JOBS: [&str; 3] = ["runs", "copied", "scattered"];
const METRICS: [&str; 7] = [
    "empty",
    "memcpy",
    "memcpy_fresh",
    "ratio",
    "ratio_fresh",
    "pause_p50",
    "pause_p99",
];
/// Pages of a run.
const RUN: usize = 64;
/// Blocks emptied in a sample; the others take what was in them.
const EMPTIED: usize = 16;

/// Page frames by handle, which is the first word of the page's record.
#[derive(Default)]
struct Handles {
    pages: Mutex<Vec<Option<PageRef>>>,
    id: OnceLock<OwnerId>,
}

impl Handles {
    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Option<PageRef>>> {
        self.pages.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PageOwner for Handles {
    fn relocate(&self, old: PageRef, new: PageRef) -> bool {
        let Ok(mut pages) = self.pages.try_lock() else {
            return false;
        };
        let handle = old.word.load(std::sync::atomic::Ordering::Relaxed);
        // SAFETY: both are whole pages, the old one ours and the new one fresh.
        unsafe { std::ptr::copy_nonoverlapping(old.address(), new.address(), PAGE_SIZE) };
        new.word.store(handle, std::sync::atomic::Ordering::Relaxed);
        pages[handle as usize] = Some(new);
        true
    }

    fn relocate_run(
        &self,
        old: PageRef,
        new: PageRef,
        count: usize,
        transfer: &mut dyn FnMut(),
    ) -> bool {
        let Ok(mut pages) = self.pages.try_lock() else {
            return false;
        };
        transfer();
        for at in 0..count {
            let record = |base: PageRef| page_of(base.address().wrapping_add(at * PAGE_SIZE));
            let (Some(from), Some(to)) = (record(old), record(new)) else {
                crate::workloads::die("compaction: a page without a record");
            };
            let handle = from.word.load(std::sync::atomic::Ordering::Relaxed);
            to.word.store(handle, std::sync::atomic::Ordering::Relaxed);
            pages[handle as usize] = Some(to);
        }
        true
    }
}

fn blocks_of(options: &Options) -> Result<usize, String> {
    let mut blocks = 2 * EMPTIED + 8;
    for (_, value) in args::parse(NAME, "b:", USAGE, &options.args)? {
        blocks = args::number(
            NAME,
            'b',
            &value.unwrap_or_default(),
            2 * EMPTIED + 2..=ARENA_MIB / 2,
        )?;
    }
    Ok(blocks)
}

impl Workload for Compaction {
    fn name(&self) -> &'static str {
        NAME
    }

    fn about(&self) -> &'static str {
        "emptying half-full movable blocks, by remapping and by copy, against a cold copy of their pages"
    }

    fn usage(&self) -> &'static str {
        USAGE
    }

    fn takes(&self, backend: &str) -> bool {
        is_page_backend(backend) && matches!(backend, "placement" | "plain")
    }

    fn plan(&self, options: &Options) -> Result<Vec<Job>, String> {
        blocks_of(options)?;
        let job = |name: &&str| Job {
            rows: METRICS
                .map(|metric| RowSpec {
                    row: (*name).to_owned(),
                    metric,
                    unit: if metric.starts_with("ratio") {
                        "x"
                    } else {
                        "us"
                    },
                    better: Better::Lower,
                })
                .to_vec(),
            time_limit: Duration::from_secs(60),
            threads: 1,
            name: (*name).to_owned(),
        };
        Ok(JOBS.iter().map(job).collect())
    }

    fn run(&self, backend: &str, job: &str, options: &Options) -> Result<Outcome, String> {
        let blocks = blocks_of(options)?;
        if !JOBS.contains(&job) {
            return Err(format!(
                "{NAME}: no job '{job}'; valid: {}",
                JOBS.join(", ")
            ));
        }
        pin(options.cpus.map(|cpus| cpus.0));
        config::set_arena_max(blocks * BLOCK_PAGES * PAGE_SIZE);
        config::set_placement(backend == "placement");
        config::set_huge_from(None);
        config::set_purge_ms(None);
        os::inject(Call::Userfault, job == "copied");
        measure(blocks, if job == "scattered" { 1 } else { RUN }, job)
    }
}

/// Copies pages of ours to the start of `target`, in their order.
fn copy(pages: &[usize], target: &mut [u8]) -> Duration {
    let began = Instant::now();
    for (from, to) in pages.iter().zip(target.chunks_exact_mut(PAGE_SIZE)) {
        let from = std::ptr::with_exposed_provenance::<u8>(*from);
        // SAFETY: a live page of ours, and a page of the target.
        unsafe { std::ptr::copy_nonoverlapping(from, to.as_mut_ptr(), PAGE_SIZE) };
    }
    std::hint::black_box(target);
    began.elapsed()
}

fn measure(blocks: usize, run: usize, job: &str) -> Result<Outcome, String> {
    let handles: &'static Handles = Box::leak(Box::default());
    let id = page_alloc::owner::register(handles).map_err(|e| e.to_string())?;
    let id = *handles.id.get_or_init(|| id);
    // Every page of the arena, by address; then each second run goes.
    for handle in 0..blocks * BLOCK_PAGES {
        let page = id
            .alloc_pages(Order::ZERO, Migratetype::Movable)
            .ok_or("the arena is smaller than asked for")?;
        // SAFETY: a page of ours.
        unsafe { page.address().write_bytes(handle as u8 | 1, PAGE_SIZE) };
        page.word
            .store(handle as u64, std::sync::atomic::Ordering::Relaxed);
        handles.lock().push(Some(page));
    }
    for cell in handles.lock().iter_mut() {
        if let Some(page) = *cell
            && (page.address() as usize / PAGE_SIZE / run).is_multiple_of(2)
        {
            *cell = None;
            free_pages(page).map_err(|e| e.to_string())?;
        }
    }
    page_alloc::purge::trim();

    let mut trash = vec![1u8; 64 << 20];
    let mut chill = || {
        trash
            .iter_mut()
            .step_by(64)
            .for_each(|b| *b = b.wrapping_add(1));
        std::hint::black_box(&trash);
    };
    // Pages that are there already, to copy to.
    let mut target = vec![1u8; BLOCK_PAGES * PAGE_SIZE];
    let block_bytes = BLOCK_PAGES * PAGE_SIZE;
    // And pages that nobody touched: a zeroed buffer of this size is a mapping of its own.
    let mut fresh = vec![0u8; EMPTIED * block_bytes];
    let mut starts: Vec<usize> = (handles.lock().iter().flatten())
        .map(|page| page.address() as usize / block_bytes * block_bytes)
        .collect();
    starts.sort_unstable();
    starts.dedup();
    let (mut empty, mut memcpy, mut memcpy_fresh) = (Vec::new(), Vec::new(), Vec::new());
    let mut emptied = 0;
    for (start, fresh) in starts.into_iter().zip(fresh.chunks_exact_mut(block_bytes)) {
        let live: Vec<usize> = (handles.lock().iter().flatten())
            .map(|page| page.address() as usize)
            .filter(|at| at / block_bytes * block_bytes == start)
            .collect();
        chill();
        let copied = copy(&live, &mut target);
        chill();
        let copied_fresh = copy(&live, fresh);
        chill();
        let at = std::ptr::with_exposed_provenance::<u8>(start);
        let began = Instant::now();
        let run = claim_blocks(at, 1, Migratetype::Large).map_err(|e| e.to_string())?;
        let took = began.elapsed();
        free_run(run).map_err(|e| e.to_string())?;
        // Later blocks may have filled up with what came from earlier ones: only half-full ones count.
        if live.len() == BLOCK_PAGES / 2 {
            emptied += 1;
            empty.push(took.as_secs_f64() * 1e6);
            memcpy.push(copied.as_secs_f64() * 1e6);
            memcpy_fresh.push(copied_fresh.as_secs_f64() * 1e6);
        }
    }
    if emptied == 0 {
        return Err(format!("{NAME}: no half-full block was left to empty"));
    }
    for (handle, page) in handles.lock().iter().enumerate() {
        // SAFETY: a live page of ours.
        let sound = page.is_none_or(|page| unsafe { page.address().read() } == handle as u8 | 1);
        if !sound {
            return Err(format!(
                "{NAME}: page {handle} was moved without its content"
            ));
        }
    }
    let middle = |values: &mut Vec<f64>| {
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    };
    let (empty, memcpy) = (middle(&mut empty), middle(&mut memcpy));
    let memcpy_fresh = middle(&mut memcpy_fresh);
    let us = |fraction| pauses().quantile(fraction) as f64 / 1000.0;
    let mut outcome = Outcome {
        objects: (emptied * BLOCK_PAGES / 2) as u64,
        ..Outcome::default()
    };
    let values = [
        empty,
        memcpy,
        memcpy_fresh,
        empty / memcpy,
        empty / memcpy_fresh,
        us(0.5),
        us(0.99),
    ];
    for (metric, value) in METRICS.into_iter().zip(values) {
        outcome.measurements.push(Measurement {
            row: job.to_owned(),
            metric: metric.to_owned(),
            value,
        });
    }
    let counts = counters();
    for (name, count) in [
        ("pages_copied", counts.copied_pages),
        ("pages_remapped", counts.remapped_pages),
        ("userfaults_refused", os::refusals(Call::Userfault)),
    ] {
        outcome.counters.insert(name.to_owned(), count);
    }
    Ok(outcome)
}
