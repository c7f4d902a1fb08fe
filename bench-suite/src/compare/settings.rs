//! From the options of `compare` to the settings of a run, each bad one named.

use super::Compare;
use crate::backend::{self, Backend};
use crate::report::Config;
use crate::rivals;
use crate::workloads::{self, pages};

/// Rounds that --quick takes at least: five against five can reach p = 0.008.
pub const QUICK_RUNS: usize = 5;
const DEFAULT_RUNS: usize = 10;
/// netperf's own limit on repeats for the sake of the interval.
const CONFIDENCE_MAX_RUNS: usize = 30;
/// More would make the exact test slow.
pub const MOST_RUNS: u16 = 100;
const DEFAULT_BACKENDS: &str = "slab,slub,unified,system";

/// The settings of a run that starts afresh; the error is one line.
pub fn config_of(options: &Compare) -> Result<Config, String> {
    let names: Vec<String> = if options.all {
        workloads::ALL
            .iter()
            .map(|workload| workload.name().to_owned())
            .collect()
    } else if options.workloads.is_empty() {
        workloads::DEFAULT.map(str::to_owned).to_vec()
    } else {
        options.workloads.clone()
    };
    for (i, name) in names.iter().enumerate() {
        workloads::find(name)?;
        if names[..i].contains(name) {
            return Err(format!("workload '{name}' is listed twice"));
        }
    }
    if !options.args.is_empty() && names.len() != 1 {
        return Err(format!(
            "options after -- need exactly one WORKLOAD, here are {}: {}",
            names.len(),
            names.join(", ")
        ));
    }
    let mut backends = match &options.backends {
        Some(list) => backend::parse_list(list)?,
        None => backend::parse_list(&default_backends(&names)?)?,
    };
    if let Some(list) = &options.against {
        let peers = rivals::against(list)?;
        backends.extend(
            peers
                .into_iter()
                .filter(|peer| !backends.contains(peer))
                .collect::<Vec<_>>(),
        );
    }
    let backend_names: Vec<String> = backends.iter().map(Backend::name).collect();
    check_columns(&names, &backend_names)?;
    let baseline = match &options.baseline {
        None => backend_names[0].clone(),
        Some(name) => {
            let full = Backend::parse(name)?.name();
            if !backend_names.contains(&full) {
                return Err(format!(
                    "--baseline '{name}' is not among the backends {}",
                    backend_names.join(", ")
                ));
            }
            full
        }
    };
    let runs = match options.runs.map(usize::from) {
        Some(runs) if options.quick && runs < QUICK_RUNS => {
            return Err(format!(
                "--runs {runs}: --quick takes at least {QUICK_RUNS} rounds; leave --quick out for fewer"
            ));
        }
        Some(runs) => runs,
        None if options.quick => QUICK_RUNS,
        None => DEFAULT_RUNS,
    };
    let max_runs = match options.max_runs.map(usize::from) {
        Some(max) if max < runs => {
            return Err(format!(
                "--max-runs {max} is less than the {runs} rounds of --runs"
            ));
        }
        Some(max) => max,
        None if options.confidence.is_some() => runs.max(CONFIDENCE_MAX_RUNS),
        None => runs,
    };
    let (level, width) = options
        .confidence
        .as_deref()
        .map_or(Ok((95.0, 5.0)), parse_confidence)?;
    Ok(Config {
        workloads: names,
        backends: backend_names,
        baseline,
        runs,
        max_runs,
        level,
        width,
        seed: options.seed.unwrap_or_else(clock_seed),
        quick: options.quick,
        cpus: options.cpus.as_deref().map(parse_cpus).transpose()?,
        delta: options.delta(),
        args: options.args.clone(),
        floor: !options.no_floor,
    })
}

/// The backends of a run that names none: those of each kind of workload in it.
fn default_backends(names: &[String]) -> Result<String, String> {
    let pages = pages::DEFAULT.join(",");
    let mut lists = Vec::new();
    for (probe, list) in [("system", DEFAULT_BACKENDS), (pages::DEFAULT[0], &pages)] {
        for name in names {
            if workloads::find(name)?.takes(probe) {
                lists.push(list);
                break;
            }
        }
    }
    Ok(lists.join(","))
}

/// Every workload needs a backend that it runs on, and every backend a workload.
fn check_columns(names: &[String], backends: &[String]) -> Result<(), String> {
    for name in names {
        let workload = workloads::find(name)?;
        if !backends.iter().any(|backend| workload.takes(backend)) {
            let kind = if workload.takes(pages::DEFAULT[0]) {
                pages::NAMES.join(", ")
            } else {
                "slab, slub, unified, system, so:PATH".to_owned()
            };
            return Err(format!(
                "workload '{name}' runs on none of the backends {}; valid for it: {kind}",
                backends.join(", ")
            ));
        }
    }
    for backend in backends {
        let mut takers = names.iter().filter_map(|name| workloads::find(name).ok());
        if !takers.any(|workload| workload.takes(backend)) {
            return Err(format!(
                "backend '{backend}' takes no part in {}",
                names.join(", ")
            ));
        }
    }
    Ok(())
}

/// Few digits, so that a reader can type the seed again.
fn clock_seed() -> u64 {
    std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(1, |time| time.as_secs() % 1_000_000)
}

/// clap's parser of --seed.
pub fn parse_seed(text: &str) -> Result<u64, String> {
    text.parse()
        .map_err(|_| format!("not a whole number from 0 to {}", u64::MAX))
}

/// clap's parser of a percentage.
pub fn parse_percentage(text: &str) -> Result<f64, String> {
    let number = text
        .parse()
        .ok()
        .filter(|number: &f64| *number >= 0.0 && number.is_finite());
    number.ok_or_else(|| "not a percentage of 0 or more".to_owned())
}

fn parse_confidence(text: &str) -> Result<(f64, f64), String> {
    let valid = || {
        format!(
            "--confidence '{text}': not LEVEL,WIDTH with a level from 50 to 99.9 and a width above 0, as in 95,5"
        )
    };
    let (level, width) = text.split_once(',').ok_or_else(valid)?;
    let level: f64 = level.trim().parse().map_err(|_| valid())?;
    let width: f64 = width.trim().parse().map_err(|_| valid())?;
    if (50.0..=99.9).contains(&level) && width > 0.0 && width.is_finite() {
        Ok((level, width))
    } else {
        Err(valid())
    }
}

fn parse_cpus(text: &str) -> Result<(usize, usize), String> {
    let invalid = || format!("--cpus '{text}': not two CPU numbers, as in 0,1");
    let (local, remote) = text.split_once(',').ok_or_else(invalid)?;
    let parse = |cpu: &str| cpu.trim().parse::<usize>().map_err(|_| invalid());
    let allowed = allowed_cpus();
    for cpu in [parse(local)?, parse(remote)?] {
        if !allowed.contains(&cpu) {
            let names: Vec<String> = allowed.iter().map(usize::to_string).collect();
            return Err(format!(
                "--cpus '{text}': no CPU {cpu}; this process may use {}",
                names.join(",")
            ));
        }
    }
    Ok((parse(local)?, parse(remote)?))
}

fn allowed_cpus() -> Vec<usize> {
    // SAFETY: an all-zero cpu_set_t is the empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: `set` is valid for its whole size; 0 is the calling thread.
    unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set) };
    // SAFETY: every CPU asked about lies inside the set.
    (0..libc::CPU_SETSIZE as usize)
        .filter(|cpu| unsafe { libc::CPU_ISSET(*cpu, &set) })
        .collect()
}
