//! What a figure depends on besides the code: the machine, the kernel, the build, and the state they were in.

use serde::{Deserialize, Serialize};
use std::fs;

/// Recorded in every report.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Environment {
    /// CPUs this process may use.
    pub cpus: usize,
    /// The processor's name.
    pub model: String,
    /// Does the machine run under a hypervisor?
    pub virtual_machine: bool,
    /// Memory, in MiB.
    pub memory_mib: u64,
    /// The kernel's release and version.
    pub kernel: String,
    /// The setting of transparent huge pages.
    pub thp: String,
    /// The frequency governor of CPU 0, or "none".
    pub governor: String,
    /// The compiler that built this binary.
    pub rustc: String,
    /// The git revision it was built from.
    pub git_revision: String,
    /// "release" or "debug".
    pub profile: String,
    /// The configuration of the backends, as SLABMALLOC_CONF gives it.
    pub backend_conf: String,
    /// The load average before the run.
    pub load_1min: f64,
    /// What may mislead, and what to try.
    pub warnings: Vec<String>,
}

fn read(path: &str) -> Option<String> {
    fs::read_to_string(path)
        .ok()
        .map(|text| text.trim().to_owned())
}

/// The setting in brackets: `always [madvise] never`.
fn bracketed(text: &str) -> Option<&str> {
    text.split_once('[')?
        .1
        .split_once(']')
        .map(|(inside, _)| inside)
}

impl Environment {
    /// Looks around. `threads` is the largest number of threads a job of the run wants at once, `runs` the rounds.
    pub fn collect(threads: usize, runs: usize) -> Self {
        let cpuinfo = read("/proc/cpuinfo").unwrap_or_default();
        let cpu_field = |name: &str| {
            let line = cpuinfo.lines().find(|line| line.starts_with(name))?;
            line.split_once(':')
                .map(|(_, value)| value.trim().to_owned())
        };
        let meminfo = read("/proc/meminfo").unwrap_or_default();
        let memory_kib: u64 = meminfo
            .split_whitespace()
            .nth(1)
            .and_then(|number| number.parse().ok())
            .unwrap_or(0);
        let unknown = || "unknown".to_owned();
        let thp = read("/sys/kernel/mm/transparent_hugepage/enabled");
        let load = read("/proc/loadavg").unwrap_or_default();
        let mut environment = Self {
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            model: cpu_field("model name").unwrap_or_else(unknown),
            virtual_machine: cpu_field("flags")
                .is_some_and(|f| f.split_whitespace().any(|f| f == "hypervisor")),
            memory_mib: memory_kib / 1024,
            kernel: format!(
                "{} {}",
                read("/proc/sys/kernel/osrelease").unwrap_or_else(unknown),
                read("/proc/sys/kernel/version").unwrap_or_default()
            ),
            thp: thp
                .as_deref()
                .and_then(bracketed)
                .map_or_else(unknown, str::to_owned),
            governor: read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
                .unwrap_or_else(|| "none".to_owned()),
            rustc: env!("BENCH_SUITE_RUSTC").to_owned(),
            git_revision: env!("BENCH_SUITE_REVISION").to_owned(),
            profile: if cfg!(debug_assertions) {
                "debug"
            } else {
                "release"
            }
            .to_owned(),
            backend_conf: std::env::var("SLABMALLOC_CONF").unwrap_or_default(),
            load_1min: load
                .split_whitespace()
                .next()
                .and_then(|number| number.parse().ok())
                .unwrap_or(0.0),
            warnings: Vec::new(),
        };
        environment.warnings = environment.find_warnings(threads, runs);
        environment
    }

    fn find_warnings(&self, threads: usize, runs: usize) -> Vec<String> {
        let mut warnings = Vec::new();
        if self.profile == "debug" {
            warnings.push(
                "debug build: these figures say nothing about speed; run with cargo run --release"
                    .to_owned(),
            );
        }
        if runs == 1 {
            warnings
                .push("one run only: no significance and no interval; try --runs 10".to_owned());
        }
        if self.load_1min > 0.25 * self.cpus as f64 {
            warnings.push(format!(
                "the machine is busy: load average {:.2} on {} CPUs; stop other work, or try more --runs",
                self.load_1min, self.cpus
            ));
        }
        if threads > self.cpus {
            warnings.push(format!(
                "oversubscription: up to {threads} threads on {} CPUs, so that figures include the scheduler's share; \
                 compare backends within a row, and try more --runs",
                self.cpus
            ));
        }
        if !matches!(self.governor.as_str(), "none" | "performance") {
            warnings.push(format!(
                "frequency governor '{}': clock rates change during the run; try the governor 'performance'",
                self.governor
            ));
        }
        if self.virtual_machine {
            warnings.push(
                "virtual machine: its host may take CPU time at any moment; try more --runs"
                    .to_owned(),
            );
        }
        warnings
    }

    /// The environment as short lines of text.
    pub fn lines(&self) -> Vec<String> {
        let mut lines = vec![
            format!(
                "{} CPUs ({}), {} MiB",
                self.cpus, self.model, self.memory_mib
            ),
            format!(
                "kernel {}, THP {}, governor {}",
                self.kernel, self.thp, self.governor
            ),
            format!(
                "{}, revision {}, {} build",
                self.rustc, self.git_revision, self.profile
            ),
        ];
        if !self.backend_conf.is_empty() {
            lines.push(format!("SLABMALLOC_CONF={}", self.backend_conf));
        }
        lines.extend(
            self.warnings
                .iter()
                .map(|warning| format!("warning: {warning}")),
        );
        lines
    }

    /// What differs from `other` and makes figures hard to compare.
    pub fn differences(&self, other: &Self) -> Vec<String> {
        let mut all = Vec::new();
        let mut check = |what: &str, old: &str, new: &str| {
            if old != new {
                all.push(format!("{what} differs: '{old}' and '{new}'"));
            }
        };
        check(
            "the number of CPUs",
            &self.cpus.to_string(),
            &other.cpus.to_string(),
        );
        check("the processor", &self.model, &other.model);
        check("the kernel", &self.kernel, &other.kernel);
        check("the THP setting", &self.thp, &other.thp);
        check("the governor", &self.governor, &other.governor);
        check("the compiler", &self.rustc, &other.rustc);
        check("the build profile", &self.profile, &other.profile);
        check(
            "the backends' configuration",
            &self.backend_conf,
            &other.backend_conf,
        );
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_around() {
        let environment = Environment::collect(1, 10);
        assert!(environment.cpus >= 1 && environment.memory_mib > 0);
        assert!(!environment.kernel.contains("unknown"));
        assert!(environment.rustc.contains("rustc"));
    }

    #[test]
    fn warns_of_what_misleads() {
        let calm = Environment {
            cpus: 4,
            profile: "release".into(),
            governor: "performance".into(),
            ..Default::default()
        };
        assert_eq!(calm.find_warnings(4, 5), Vec::<String>::new());
        let has = |environment: &Environment, threads, runs, text: &str| {
            environment
                .find_warnings(threads, runs)
                .iter()
                .any(|warning| warning.contains(text))
        };
        assert!(has(&calm, 5, 5, "oversubscription"));
        assert!(has(&calm, 4, 1, "one run only"));
        assert!(has(
            &Environment {
                load_1min: 3.0,
                ..calm.clone()
            },
            4,
            5,
            "busy"
        ));
        assert!(has(
            &Environment {
                governor: "powersave".into(),
                ..calm.clone()
            },
            4,
            5,
            "'powersave'"
        ));
        assert_eq!(bracketed("always [madvise] never"), Some("madvise"));
    }
}
