//! `compare --from OLD.json NEW.json`: two finished runs against each other.
//!
//! The pair becomes a report of its own, in which OLD and NEW take the backends' place and a row is named after the
//! row and the backend; tables and exports work on it as on any other.

use crate::report::{Config, Report, Row};
use crate::stats::shift::{cut, rounds_needed};
use crate::stats::{Better, Delta, SIGNIFICANCE, can_be_significant, holm};

/// The name of the first run in the combined report.
pub const OLD: &str = "OLD";
/// The name of the second.
pub const NEW: &str = "NEW";

/// The combined report, and notes on what does not match.
pub struct Pair {
    /// Rows of both runs, with OLD as the baseline.
    pub report: Report,
    /// One line each.
    pub notes: Vec<String>,
}

/// Puts two runs side by side; the error is one line.
pub fn pair(old: &Report, new: &Report, delta: Delta) -> Result<Pair, String> {
    let mut notes = old.environment.differences(&new.environment);
    if old.config.quick != new.config.quick || old.config.args != new.config.args {
        notes.push("the runs had different workload options".to_owned());
    }
    if old.config.cpus != new.config.cpus {
        notes.push("the runs had different --cpus".to_owned());
    }
    let config = Config {
        backends: vec![OLD.to_owned(), NEW.to_owned()],
        baseline: OLD.to_owned(),
        delta,
        ..new.config.clone()
    };
    let mut report = Report::new(new.environment.clone(), config);
    let relabel = |row: &Row, name: &str| Row {
        row: format!("{} {}", row.row, row.backend),
        backend: name.to_owned(),
        ..row.clone()
    };
    let partner = |rows: &'_ [Row], row: &Row| -> Option<Row> {
        rows.iter()
            .find(|other| other.same_measurement(row) && other.backend == row.backend)
            .cloned()
    };
    for row in &old.rows {
        let label = || {
            format!(
                "{} {} {} {}",
                row.workload, row.row, row.metric, row.backend
            )
        };
        match partner(&new.rows, row) {
            None => notes.push(format!("only in {OLD}: {}", label())),
            Some(other) if other.unit != row.unit || other.better != row.better => {
                return Err(format!(
                    "{}: unit or direction changed from {} to {}",
                    label(),
                    row.unit,
                    other.unit
                ));
            }
            Some(other) => {
                report.rows.push(relabel(row, OLD));
                report.rows.push(relabel(&other, NEW));
            }
        }
    }
    for row in new
        .rows
        .iter()
        .filter(|row| partner(&old.rows, row).is_none())
    {
        notes.push(format!(
            "only in {NEW}: {} {} {} {}",
            row.workload, row.row, row.metric, row.backend
        ));
    }
    if report.rows.is_empty() {
        return Err("the two files have no row in common".to_owned());
    }
    report.compute();
    Ok(Pair { report, notes })
}

/// What `--fail-above` found.
pub struct Regressions {
    /// One line for each row that became worse.
    pub rows: Vec<String>,
    /// What limits the answer.
    pub notes: Vec<String>,
}

/// The rows that became worse by more than `limit` per cent, certainly so: significant in the whole table at 5 %
/// after Holm's correction over its rows. Where so few samples cannot reach that level, significance of the row alone
/// decides, and where even that is out of reach (under four against four) the delta does; a note says so.
pub fn regressions(report: &Report, limit: f64) -> Regressions {
    let rows: Vec<(&Row, &Row)> = (report.rows.iter())
        .filter(|row| row.backend == NEW)
        .filter_map(|row| {
            let old =
                (report.rows.iter()).find(|old| old.backend == OLD && old.same_measurement(row))?;
            Some((old, row))
        })
        .collect();
    let p: Vec<f64> = rows.iter().map(|(_, row)| row.p.unwrap_or(1.0)).collect();
    let adjusted = holm::adjusted(&p);
    let strictest = SIGNIFICANCE / rows.len().max(1) as f64;
    let mut found = Regressions {
        rows: Vec::new(),
        notes: Vec::new(),
    };
    let mut uncorrected = 0;
    for (i, (old, row)) in rows.iter().enumerate() {
        // A baseline of 0 has no percentage, but getting worse than 0 is worse by any limit.
        let worse = match row.delta_pct {
            Some(delta) => delta < -limit,
            None => (row.mean > old.mean) == (row.better == Better::Lower),
        };
        let (n_old, n_new) = (old.samples.len(), row.samples.len());
        let certain = if can_reach(n_old, n_new, strictest) {
            adjusted[i] < SIGNIFICANCE
        } else {
            uncorrected += 1;
            p[i] < SIGNIFICANCE || !can_be_significant(n_old, n_new)
        };
        if worse && certain {
            let delta = row
                .delta_pct
                .map_or_else(|| "from 0".to_owned(), |delta| format!("{delta:+.2}%"));
            found.rows.push(format!(
                "regression: {} {} {}: {:.4} -> {:.4} {} ({delta}, p = {:.4})",
                row.workload, row.row, row.metric, old.mean, row.mean, row.unit, p[i]
            ));
        }
    }
    if uncorrected > 0 {
        found.notes.push(format!(
            "note: {uncorrected} of {} rows have too few samples for a correction over all rows, so that about one in \
             {} of them is called different by chance; {} rounds in both runs are enough",
            rows.len(),
            (1.0 / SIGNIFICANCE) as u32,
            rounds_needed(strictest)
        ));
    }
    found
}

/// Do disjoint samples of these sizes reach the level `alpha`?
fn can_reach(n1: usize, n2: usize, alpha: f64) -> bool {
    cut(n1, n2, alpha).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::environment::Environment;

    fn report(samples: &[f64], better: Better) -> Report {
        let config = Config {
            backends: vec!["slub".into()],
            baseline: "slub".into(),
            ..Config::default()
        };
        let mut report = Report::new(Environment::default(), config);
        let unit = if better == Better::Higher {
            "MB/s"
        } else {
            "s"
        };
        let row = Row::new("w", "r", ("m", unit, better), "slub", samples.to_vec());
        report.rows.push(row);
        report
    }

    fn found(old: &[f64], new: &[f64], better: Better, limit: f64) -> usize {
        let pair = pair(&report(old, better), &report(new, better), Delta::Base).unwrap();
        regressions(&pair.report, limit).rows.len()
    }

    const BASE: [f64; 5] = [100.0, 101.0, 99.0, 100.5, 99.5];

    #[test]
    fn regressions_in_both_directions() {
        let worse = BASE.map(|x| x * 0.8);
        let better = BASE.map(|x| x * 1.25);
        assert_eq!(found(&BASE, &worse, Better::Higher, 5.0), 1);
        assert_eq!(found(&BASE, &worse, Better::Lower, 5.0), 0);
        assert_eq!(found(&BASE, &better, Better::Lower, 5.0), 1);
        assert_eq!(found(&BASE, &better, Better::Higher, 5.0), 0);
        assert_eq!(found(&BASE, &BASE, Better::Higher, 0.0), 0);
        assert_eq!(found(&BASE, &worse, Better::Higher, 30.0), 0);
    }

    #[test]
    fn noise_is_no_regression_but_a_single_bad_run_is() {
        assert_eq!(
            found(
                &BASE,
                &[50.0, 101.5, 102.0, 100.2, 100.1],
                Better::Higher,
                5.0
            ),
            0
        );
        assert_eq!(found(&[100.0], &[80.0], Better::Higher, 5.0), 1);
    }

    #[test]
    fn a_baseline_of_zero() {
        assert_eq!(found(&[0.0; 5], &[1.0; 5], Better::Lower, 5.0), 1);
        assert_eq!(found(&[0.0; 5], &[1.0; 5], Better::Higher, 5.0), 0);
    }

    #[test]
    fn nothing_in_common_is_an_error() {
        let mut other = report(&BASE, Better::Lower);
        other.rows[0].row = "another".into();
        assert!(pair(&report(&BASE, Better::Lower), &other, Delta::Base).is_err());
    }
}
