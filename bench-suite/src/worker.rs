//! The worker: one process measures one job on one backend, once, and prints one line of JSON.
//!
//! A process of its own makes the resident set the backend's alone, starts every sample from the same state, lets any
//! malloc be preloaded, and keeps a crash from taking the other results with it.

use crate::workloads::{self, Options, Outcome};
use serde::{Deserialize, Serialize};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// What the runner tells a worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Order {
    /// The workload.
    pub workload: String,
    /// The job.
    pub job: String,
    /// The backend.
    pub backend: String,
    /// The library that must have been preloaded into the worker.
    #[serde(default)]
    pub preload: Option<PathBuf>,
    /// The workload's settings.
    pub options: Options,
    /// Drawn anew for each worker from the run's seed.
    #[serde(default)]
    pub seed: u64,
    /// The resting set of this sample counts: let the program rest before it is read.
    #[serde(default)]
    pub rest: bool,
    /// The worker waits for a line on its standard input before each rest.
    #[serde(default)]
    pub hold: bool,
}

/// The line that a worker prints when it waits to be allowed to rest.
pub const RESTING: &str = "resting";

static SEED: AtomicU64 = AtomicU64::new(0);

static RESTS: AtomicBool = AtomicBool::new(false);
static HOLD: AtomicBool = AtomicBool::new(false);

/// Whether this worker's sample is one that rests before its resting set is read.
pub fn rests() -> bool {
    RESTS.load(Ordering::Relaxed)
}

/// A rest, in which time passes and nothing is timed, comes next: waits until the other workers of this round have measured
/// what they time, so that all can rest at once and nobody's purging disturbs a measurement.
pub fn before_rest() {
    if HOLD.load(Ordering::Relaxed) {
        println!("{RESTING}");
        // The end of the input is an answer as well: its runner is gone, and soon so is the worker.
        let _ = std::fs::File::open("/proc/self/fd/0").and_then(|mut stdin| stdin.read(&mut [0]));
    }
}

/// The seed of this worker's only sample: another in every round, and the same when a run is repeated with `--seed`.
pub fn seed() -> u64 {
    SEED.load(Ordering::Relaxed)
}

/// What a worker answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Answer {
    /// The workload's figures.
    pub outcome: Outcome,
    /// The largest resident set, in KiB.
    pub rss_peak_kib: u64,
    /// The resident set after everything was freed, in KiB.
    pub rss_rest_kib: u64,
}

/// Does what `order` says and prints the answer on standard output.
pub fn main(order: &str) -> Result<(), String> {
    // SAFETY: plain system call: a worker does not outlive its runner.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    let order: Order =
        serde_json::from_str(order).map_err(|e| format!("worker: bad order: {e}"))?;
    map_own_text();
    SEED.store(order.seed, Ordering::Relaxed);
    RESTS.store(order.rest, Ordering::Relaxed);
    HOLD.store(order.hold, Ordering::Relaxed);
    if let Some(library) = &order.preload {
        check_preloaded(library)?;
    }
    let mut outcome =
        workloads::find(&order.workload)?.run(&order.backend, &order.job, &order.options)?;
    let rest = resident_kib();
    let peak = status_kib("VmHWM:").max(rest).max(outcome.child_peak_kib);
    // A workload that measures programs reports theirs.
    let (peak, rest) = outcome.program_rss_kib.unwrap_or((peak, rest));
    outcome.counters.extend(usage());
    let answer = Answer {
        outcome,
        rss_peak_kib: peak,
        rss_rest_kib: rest,
    };
    let line = serde_json::to_string(&answer).map_err(|e| format!("worker: {e}"))?;
    println!("{line}");
    Ok(())
}

/// Maps all pages of this program's file at once. Else how many of them a run touches, and how many the kernel maps around
/// each, would make up to 8 % of a small row's resident set, by chance and by backend.
fn map_own_text() {
    let Ok(exe) = std::env::current_exe() else {
        return;
    };
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    for line in maps
        .lines()
        .filter(|line| line.ends_with(&*exe.to_string_lossy()))
    {
        let range = line.split(' ').next().unwrap_or_default();
        let bounds = range.split_once('-').map(|(low, high)| {
            let address = |text| usize::from_str_radix(text, 16).unwrap_or(0);
            (address(low), address(high))
        });
        if let Some((low, high)) = bounds {
            // SAFETY: reads in pages of a file mapping of this program, and changes nothing; a kernel before 5.14 refuses.
            unsafe { libc::madvise(low as *mut _, high - low, libc::MADV_POPULATE_READ) };
        }
    }
}

/// The dynamic linker only warns about a library it cannot preload: look whether it is there.
fn check_preloaded(library: &Path) -> Result<(), String> {
    let maps =
        std::fs::read_to_string("/proc/self/maps").map_err(|e| format!("/proc/self/maps: {e}"))?;
    // The kernel lists what links point to.
    let real = library
        .canonicalize()
        .unwrap_or_else(|_| library.to_owned());
    let name = real.to_string_lossy();
    if maps.lines().any(|line| line.ends_with(&*name)) {
        return Ok(());
    }
    Err(format!("{name} was not loaded: LD_PRELOAD had no effect"))
}

/// The current resident set of this process, in KiB. smaps_rollup counts pages; VmRSS may lag by some dozens of them.
pub(crate) fn resident_kib() -> u64 {
    let exact = std::fs::read_to_string("/proc/self/smaps_rollup")
        .ok()
        .and_then(|text| field(&text, "Rss:"));
    exact.unwrap_or_else(|| status_kib("VmRSS:"))
}

fn status_kib(name: &str) -> u64 {
    process_kib("self", name)
}

/// A figure of a process's status in KiB, 0 where there is none.
pub(crate) fn process_kib(pid: &str, name: &str) -> u64 {
    std::fs::read_to_string(format!("/proc/{pid}/status"))
        .ok()
        .and_then(|text| field(&text, name))
        .unwrap_or(0)
}

fn field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Page faults and context switches of this process and its children.
fn usage() -> Vec<(String, u64)> {
    let mut sums = [0u64; 3];
    for who in [libc::RUSAGE_SELF, libc::RUSAGE_CHILDREN] {
        // SAFETY: an all-zero rusage is valid, and the kernel overwrites it.
        let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
        // SAFETY: `usage` is valid for writing.
        if unsafe { libc::getrusage(who, &mut usage) } == 0 {
            for (sum, value) in
                sums.iter_mut()
                    .zip([usage.ru_minflt, usage.ru_nvcsw, usage.ru_nivcsw])
            {
                *sum += u64::try_from(value).unwrap_or(0);
            }
        }
    }
    let names = ["page_faults", "switches_voluntary", "switches_involuntary"];
    names
        .iter()
        .map(|name| (*name).to_owned())
        .zip(sums)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_its_own_memory() {
        assert!(resident_kib() > 100);
        assert!(status_kib("VmHWM:") > 100);
        assert_eq!(field("VmRSS:\t  123 kB\n", "VmRSS:"), Some(123));
    }

    #[test]
    fn a_library_that_is_not_there_is_named() {
        assert!(
            check_preloaded(Path::new("/nonexistent/malloc.so"))
                .unwrap_err()
                .contains("/nonexistent/malloc.so")
        );
    }
}
