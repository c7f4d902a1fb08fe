//! contest's tables as it prints them, every run, and what drifts.
//!
//! ```text
//! mem_load:
//! Kernel         [runs]   Time    CPU%    Loads   LCPU%   Ratio
//! 2.5.63              3   104     75.0    57.7    1.9     1.32
//! ```

use super::drift::{self, Drift, Rest};
use super::{CPU, LCPU, LOADS_METRIC, REST_HELD, REST_RESIDENT, RUNS, TIME};
use crate::report::{Report, Row};
use crate::table::column_head;

/// A line of a table.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    /// The backend, where contest has the kernel.
    pub name: String,
    /// Runs that the figures are means of.
    pub runs: usize,
    /// Seconds of the foreground.
    pub time: f64,
    /// Its CPU time, in per cent of its time.
    pub cpu: f64,
    /// What the load did: thousands of its steps in a second.
    pub loads: f64,
    /// The load's CPU time, in per cent of the same.
    pub load_cpu: f64,
    /// Seconds of the foreground without load, on the same backend.
    pub no_load: Option<f64>,
}

/// Whole seconds as contest has them; fractions where there are few.
fn seconds(time: f64) -> String {
    match time {
        10.0.. if time.fract() == 0.0 => format!("{time:.0}"),
        100.0.. => format!("{time:.0}"),
        1.0.. => format!("{time:.2}"),
        _ => format!("{time:.4}"),
    }
}

/// The table of one load.
pub fn table(load: &str, lines: &[Line]) -> String {
    let mut text =
        format!("{load}:\nKernel         [runs]   Time    CPU%    Loads   LCPU%   Ratio\n");
    for line in lines {
        let ratio = match line.no_load {
            Some(no_load) if no_load > 0.0 => format!("{:.2}", line.time / no_load),
            _ => "-".to_owned(),
        };
        text.push_str(&format!(
            "{:<15}{:>6}   {:<7} {:<7.1} {:<7.1} {:<7.1} {ratio}\n",
            line.name,
            line.runs,
            seconds(line.time),
            line.cpu,
            line.loads,
            line.load_cpu,
        ));
    }
    text
}

/// The warning about a drift; `None` when there is none.
pub fn warning(load: &str, name: &str, times: &[f64], drift: Drift) -> Option<String> {
    let runs: Vec<String> = times.iter().map(|time| seconds(*time)).collect();
    let runs = runs.join(", ");
    let memory = format!(
        "the memory at rest grows by {:.0} KiB a run",
        drift.growth_kib
    );
    match (drift.growth_kib > 0.0, drift.slower_pct > 0.0) {
        (true, true) => Some(format!(
            "drift: {load} on {name}: suspected leak: {memory}, and later runs take {:.0} % longer ({runs})",
            drift.slower_pct
        )),
        (true, false) => Some(format!(
            "drift: {load} on {name}: suspected leak: {memory} (times {runs})"
        )),
        (false, true) => Some(format!(
            "drift: {load} on {name}: later runs take {:.0} % longer ({runs}), as with a leak; but the memory at rest \
             does not grow: a machine that grows busy does the same, so run it again",
            drift.slower_pct
        )),
        (false, false) => None,
    }
}

fn find<'a>(report: &'a Report, load: &str, metric: &str, backend: &str) -> Option<&'a Row> {
    report.rows.iter().find(|row| {
        row.workload == "contest"
            && row.row == load
            && row.metric == metric
            && row.backend == backend
    })
}

/// All that contest prints of a report.
pub fn render(report: &Report) -> String {
    let mut loads: Vec<&str> = Vec::new();
    for row in report.rows.iter().filter(|row| row.workload == "contest") {
        if !loads.contains(&row.row.as_str()) {
            loads.push(&row.row);
        }
    }
    let backends = crate::table::column_backends(&report.config);
    let (mut text, mut runs_text, mut warnings) = (String::new(), String::new(), String::new());
    for load in loads {
        let mut lines = Vec::new();
        for backend in &backends {
            let mean = |metric| find(report, load, metric, backend).map_or(0.0, |row| row.mean);
            let Some(time) = find(report, load, TIME, backend) else {
                continue;
            };
            let none = Vec::new();
            let processes = time.series.get(RUNS).unwrap_or(&none);
            lines.push(Line {
                name: column_head(backend),
                runs: processes.iter().map(Vec::len).sum(),
                time: time.mean,
                cpu: mean(CPU),
                loads: mean(LOADS_METRIC),
                load_cpu: mean(LCPU),
                no_load: find(report, "no_load", TIME, backend).map(|row| row.mean),
            });
            let each: Vec<String> = processes
                .iter()
                .map(|runs| {
                    runs.iter()
                        .map(|time| seconds(*time))
                        .collect::<Vec<_>>()
                        .join(" ")
                })
                .collect();
            runs_text.push_str(&format!(
                "{load:<13} {:<15} {}\n",
                column_head(backend),
                each.join(" | ")
            ));
            let (found, middle) = drift_of(time, processes);
            if let Some(warning) = warning(load, &column_head(backend), &middle, found) {
                warnings.push_str(&warning);
                warnings.push('\n');
            }
        }
        text.push_str(&table(load, &lines));
        text.push('\n');
    }
    if text.is_empty() {
        return text;
    }
    format!(
        "{text}contest: every run, in seconds; a bar parts processes, whose runs follow one another in one arena\n\
         {runs_text}{}",
        if warnings.is_empty() {
            "drift: none in any load\n"
        } else {
            &warnings
        }
    )
}

/// The drift of a row over its processes, and the mean time of each run.
fn drift_of(row: &Row, processes: &[Vec<f64>]) -> (Drift, Vec<f64>) {
    let (rests, kind) = match row.series.get(REST_HELD) {
        Some(rests) => (Some(rests), Rest::Held),
        None => (row.series.get(REST_RESIDENT), Rest::Resident),
    };
    let all: Vec<Drift> = processes
        .iter()
        .enumerate()
        .map(|(i, times)| {
            let rest = rests.and_then(|rests| rests.get(i)).map_or(&[][..], |r| r);
            drift::of_runs(times, rest, kind)
        })
        .collect();
    let runs = processes.iter().map(Vec::len).max().unwrap_or(0);
    let mean = |run: usize| {
        let times: Vec<f64> = processes
            .iter()
            .filter_map(|p| p.get(run).copied())
            .collect();
        times.iter().sum::<f64>() / times.len().max(1) as f64
    };
    (drift::of_processes(&all), (0..runs).map(mean).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warnings_name_load_backend_and_cause() {
        let calm = Drift {
            slower_pct: 0.0,
            growth_kib: 0.0,
        };
        assert_eq!(warning("io_load", "slub", &[1.0], calm), None);
        let leak = Drift {
            slower_pct: 20.0,
            growth_kib: 512.0,
        };
        let text = warning("io_load", "slub", &[99.0, 148.0], leak).unwrap();
        assert!(text.contains("io_load on slub: suspected leak") && text.contains("512 KiB a run"));
    }
}
