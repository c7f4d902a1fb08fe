//! Drift: do later runs take longer than the first, and does the memory at rest grow?
//!
//! Seed 002 saw times of 99, 148 and 150 and suspected a leak, but looked at the memory and found none. Both are looked
//! at here: times alone make a warning, growing memory makes a suspected leak.

/// What was found over the runs of one process.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Drift {
    /// Every later run took this much longer than the first, in per cent; 0 when some did not.
    pub slower_pct: f64,
    /// Growth of the memory at rest a run, in KiB; 0 when it did not grow after every run.
    pub growth_kib: f64,
}

/// Later runs that are this much slower, each of them, are no noise.
const SLOWER: f64 = 0.15;

/// What is looked at after each run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rest {
    /// The bytes that the allocator says its users hold: exact.
    Held,
    /// The process's resident set: moves by itself, so that only large growth counts.
    Resident,
}

impl Rest {
    /// The least growth after every run that counts, in KiB.
    fn least_kib(self, level: f64) -> f64 {
        match self {
            Self::Held => 16.0,
            Self::Resident => 1024.0f64.max(level * 0.05),
        }
    }
}

/// Looks at the runs of one process: their times, and the memory after each in KiB.
pub fn of_runs(times: &[f64], rest_kib: &[f64], rest: Rest) -> Drift {
    let slower_pct = match times.split_first() {
        Some((first, later)) if !later.is_empty() && *first > 0.0 => {
            let least = later.iter().copied().fold(f64::INFINITY, f64::min);
            let slower = least / first - 1.0;
            if slower > SLOWER { slower * 100.0 } else { 0.0 }
        }
        _ => 0.0,
    };
    let steps: Vec<f64> = rest_kib.windows(2).map(|pair| pair[1] - pair[0]).collect();
    let least = rest.least_kib(rest_kib.first().copied().unwrap_or(0.0));
    let grows = !steps.is_empty() && steps.iter().all(|step| *step >= least);
    Drift {
        slower_pct,
        growth_kib: if grows {
            steps.iter().sum::<f64>() / steps.len() as f64
        } else {
            0.0
        },
    }
}

/// What most of the processes showed: the medians, where more than half of them agree.
pub fn of_processes(all: &[Drift]) -> Drift {
    let most = |of: fn(&Drift) -> f64| {
        let mut found: Vec<f64> = all.iter().map(of).filter(|value| *value > 0.0).collect();
        found.sort_by(f64::total_cmp);
        if 2 * found.len() > all.len() {
            found[found.len() / 2]
        } else {
            0.0
        }
    };
    Drift {
        slower_pct: most(|drift| drift.slower_pct),
        growth_kib: most(|drift| drift.growth_kib),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_times_of_seed_002_are_a_drift_without_a_leak() {
        let drift = of_runs(&[99.0, 148.0, 150.0], &[5000.0; 3], Rest::Held);
        assert!((drift.slower_pct - 49.49).abs() < 0.01);
        assert_eq!(drift.growth_kib, 0.0);
    }

    #[test]
    fn noise_is_no_drift() {
        for times in [
            [104.0, 101.0, 106.0],
            [99.0, 148.0, 101.0],
            [150.0, 99.0, 148.0],
        ] {
            assert_eq!(of_runs(&times, &[], Rest::Held).slower_pct, 0.0);
        }
        assert_eq!(of_runs(&[99.0], &[1.0], Rest::Held).slower_pct, 0.0);
        let wobble = of_runs(&[], &[9000.0, 9400.0, 9300.0], Rest::Resident);
        assert_eq!(wobble.growth_kib, 0.0);
    }

    #[test]
    fn memory_that_grows_after_every_run_is_a_leak() {
        let held = of_runs(&[1.0; 3], &[100.0, 140.0, 180.0], Rest::Held);
        assert_eq!(held.growth_kib, 40.0);
        // As resident memory that is noise.
        let resident = of_runs(&[1.0; 3], &[100.0, 140.0, 180.0], Rest::Resident);
        assert_eq!(resident.growth_kib, 0.0);
        let large = of_runs(&[1.0; 3], &[9000.0, 12000.0, 15000.0], Rest::Resident);
        assert_eq!(large.growth_kib, 3000.0);
    }

    #[test]
    fn one_odd_process_is_outvoted() {
        let calm = Drift {
            slower_pct: 0.0,
            growth_kib: 0.0,
        };
        let odd = Drift {
            slower_pct: 50.0,
            growth_kib: 40.0,
        };
        assert_eq!(of_processes(&[calm, odd, calm]), calm);
        assert_eq!(of_processes(&[odd, odd, calm]), odd);
        assert_eq!(of_processes(&[]), calm);
    }
}
