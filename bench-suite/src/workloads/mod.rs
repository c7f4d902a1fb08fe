//! The workloads: one file each, and the list of all of them.
//!
//! A workload plans *jobs*. A job is what one worker process measures in one go: one row of a table, or several rows
//! that one measurement yields (for example nanoseconds and cycles).

pub mod aim9;
pub mod args;
mod backlog;
pub mod classic;
pub mod colour;
pub mod contest;
pub mod crew;
pub mod ctree;
pub mod hackbench;
pub mod kernbench;
pub mod message;
pub mod netperf;
pub mod pages;
pub mod perf;
pub mod process;
pub mod programs;
pub mod reaim;
pub mod selftest;
pub mod slab_micro;
pub mod store;
pub mod sysbench;

use crate::preload::Route;
use crate::report::Report;
use crate::series::{Histogram, PageMap};
use crate::stats::Better;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;

/// What the command line tells a workload.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Options {
    /// Short samples and fewer rows.
    pub quick: bool,
    /// The CPUs of the local (sending) and the remote (receiving) side.
    pub cpus: Option<(usize, usize)>,
    /// The workload's own options, as they stood after `--`.
    pub args: Vec<String>,
}

/// One line of a table, before it is measured.
#[derive(Clone, Debug, PartialEq)]
pub struct RowSpec {
    /// Its label.
    pub row: String,
    /// What is measured.
    pub metric: &'static str,
    /// In which unit.
    pub unit: &'static str,
    /// Which direction is an improvement.
    pub better: Better,
}

/// What one worker measures.
#[derive(Clone, Debug, PartialEq)]
pub struct Job {
    /// The name by which the worker is told.
    pub name: String,
    /// The rows it yields.
    pub rows: Vec<RowSpec>,
    /// A worker that takes longer than this hangs.
    pub time_limit: Duration,
    /// Threads (or processes) that want to run at once.
    pub threads: usize,
}

/// One figure.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measurement {
    /// The row's label.
    pub row: String,
    /// What is measured.
    pub metric: String,
    /// The figure.
    pub value: f64,
}

/// What a workload brings home.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// One figure for each of the job's rows.
    pub measurements: Vec<Measurement>,
    /// Objects allocated from the backend under test.
    pub objects: u64,
    /// Structural counters.
    pub counters: BTreeMap<String, u64>,
    /// Several figures of one sample, by name: for example the time of each run.
    #[serde(default)]
    pub series: BTreeMap<String, Vec<f64>>,
    /// The largest resident set of a child process; 0 without children.
    pub child_peak_kib: u64,
    /// Latencies of single operations, by row: plotted as cumulative distributions.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub histograms: BTreeMap<String, Histogram>,
    /// Maps of pageblocks at chosen moments; the runner fills in workload and, where empty, row and backend.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pagemaps: Vec<PageMap>,
    /// The latency of every request that was served, for workloads that show more of them than rows.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub latencies: Vec<u64>,
    /// The latency of every request that was refused.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failed_latencies: Vec<u64>,
    /// Peak and resting set of the program measured, in place of the worker's; resting 0: it did not rest.
    #[serde(default)]
    pub program_rss_kib: Option<(u64, u64)>,
}

/// A workload.
pub trait Workload: Sync {
    /// The name on the command line.
    fn name(&self) -> &'static str;
    /// One line for `bench-suite list`.
    fn about(&self) -> &'static str;
    /// The options it takes after `--`, for `list` and error messages.
    fn usage(&self) -> &'static str;
    /// Does it run on the backend of this name? Workloads of objects leave out those that hand out pages.
    fn takes(&self, backend: &str) -> bool {
        !pages::is_page_backend(backend)
    }
    /// Whether it rests, where asked to ([`crate::worker::rests`]), before its resting set is read.
    fn rests(&self) -> bool {
        false
    }
    /// Its jobs; the error is one line that names the option which is wrong.
    fn plan(&self, options: &Options) -> Result<Vec<Job>, String>;
    /// What stands under the workload's tables, if anything.
    fn appendix(&self, report: &Report) -> Option<String> {
        let _ = report;
        None
    }
    /// What it cannot measure on this machine, a line each.
    fn missing(&self) -> Vec<String> {
        Vec::new()
    }
    /// How the malloc under test reaches what is measured.
    fn route(&self) -> Route {
        Route::Caches
    }
    /// Measures one job in this process.
    fn run(&self, backend: &str, job: &str, options: &Options) -> Result<Outcome, String>;
}

/// Every workload, in the order of `list`.
pub const ALL: &[&dyn Workload] = &[
    &hackbench::Hackbench,
    &netperf::Netperf,
    &slab_micro::SlabMicro,
    &pages::page_test::PageTest,
    &pages::order5::Order5,
    &pages::highalloc::HighAlloc,
    &pages::compaction::Compaction,
    &classic::Classic,
    &programs::Programs,
    &sysbench::Sysbench,
    &reaim::Reaim,
    &aim9::Aim9,
    &contest::Contest,
    &colour::Colour,
    &kernbench::Kernbench,
];

/// Workloads that measure nothing of an allocator: neither listed nor part of --all.
const HIDDEN: &[&dyn Workload] = &[&selftest::SelfTest];

/// The workloads of a run that names none.
pub const DEFAULT: [&str; 2] = ["hackbench", "netperf"];

/// The workload called `name`; the error lists what there is.
pub fn find(name: &str) -> Result<&'static dyn Workload, String> {
    ALL.iter()
        .chain(HIDDEN)
        .copied()
        .find(|workload| workload.name() == name)
        .ok_or_else(|| {
            let names: Vec<&str> = ALL.iter().map(|workload| workload.name()).collect();
            format!("unknown workload '{name}'; valid: {}", names.join(", "))
        })
}

/// Ends the worker. A thread of a workload that cannot go on must not leave the others waiting for it.
#[cold]
pub fn die(message: &str) -> ! {
    eprintln!("{message}");
    std::process::exit(1)
}

/// Pins the calling thread to `cpu`.
pub fn pin(cpu: Option<usize>) {
    let Some(cpu) = cpu else { return };
    // SAFETY: an all-zero cpu_set_t is the empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the command line accepted only CPUs below CPU_SETSIZE, so the bit lies inside `set`.
    unsafe { libc::CPU_SET(cpu, &mut set) };
    // SAFETY: `set` is valid for its whole size; 0 is the calling thread.
    let failed = unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set) } != 0;
    if failed {
        die(&format!(
            "cannot run on CPU {cpu}: {}",
            std::io::Error::last_os_error()
        ));
    }
}

/// Threads of a workload: small stacks, so that 320 of them do not count as the allocator's memory.
pub const STACK: usize = 256 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_plan_has_jobs_with_distinct_rows() {
        for workload in ALL {
            for quick in [false, true] {
                let jobs = workload
                    .plan(&Options {
                        quick,
                        ..Options::default()
                    })
                    .unwrap();
                let mut keys: Vec<_> = jobs
                    .iter()
                    .flat_map(|job| &job.rows)
                    .map(|row| (row.row.clone(), row.metric))
                    .collect();
                assert!(!keys.is_empty());
                let count = keys.len();
                keys.sort();
                keys.dedup();
                assert_eq!(keys.len(), count, "{}", workload.name());
            }
        }
    }

    #[test]
    fn unknown_workloads_are_named() {
        let error = find("hackbensh").map(|w| w.name()).unwrap_err();
        assert!(error.contains("'hackbensh'") && error.contains("hackbench, netperf"));
    }
}
