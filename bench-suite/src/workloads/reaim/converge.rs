//! When reaim stops raising the number of users.
//!
//! *Peak*: until the rate lies more than 1 % under the mean of its last five points, or their deviation is under 1 % of
//! that mean. *Quick convergence*: until there are no more than so many jobs a minute for each user.

/// Which of the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// Peak load.
    Peak,
    /// Quick convergence.
    Quick,
}

/// Points of the mean.
const POINTS: usize = 5;
/// One per cent.
const NEAR: f64 = 0.01;

/// Jobs a minute, from `users` who ran `jobs_per_user` each.
pub fn jobs_per_minute(jobs_per_user: usize, users: usize, elapsed_s: f64) -> f64 {
    jobs_per_user as f64 / elapsed_s.max(1e-9) * 60.0 * users as f64
}

impl Rule {
    /// Is `rates`, jobs a minute of each step so far, all that is needed? `users` ran in the last one; `crossover` is
    /// the jobs a minute and user at which quick convergence ends.
    pub fn is_done(self, rates: &[f64], users: usize, crossover: f64) -> bool {
        let Some(last) = rates.last() else {
            return false;
        };
        match self {
            Self::Quick => last / users as f64 <= crossover,
            Self::Peak => {
                let Some(from) = rates.len().checked_sub(POINTS) else {
                    return false;
                };
                let points = &rates[from..];
                let mean = points.iter().sum::<f64>() / POINTS as f64;
                let variance =
                    points.iter().map(|rate| (rate - mean).powi(2)).sum::<f64>() / POINTS as f64;
                *last < mean * (1.0 - NEAR) || variance.sqrt() < mean * NEAR
            }
        }
    }

    /// How many users come after `users`.
    pub fn next(self, users: usize) -> usize {
        match self {
            // One by one at first, then in larger steps.
            Self::Peak => users + 1 + users / 8,
            Self::Quick => users * 2,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_formula_of_reaim() {
        // Ten jobs each, four users, two seconds: twenty jobs a second.
        assert_eq!(jobs_per_minute(10, 4, 2.0), 1200.0);
    }

    #[test]
    fn quick_convergence_ends_at_the_crossover() {
        let done = |rate| Rule::Quick.is_done(&[rate], 100, 60.0);
        assert!(!done(6001.0) && done(6000.0) && done(5.0));
        assert!(!Rule::Quick.is_done(&[], 100, 60.0));
    }

    #[test]
    fn peak_ends_when_the_rate_falls_or_settles() {
        let done = |rates: &[f64]| Rule::Peak.is_done(rates, 1, 0.0);
        assert!(!done(&[100.0; 4]));
        assert!(done(&[100.0; 5]));
        assert!(!done(&[100.0, 110.0, 120.0, 130.0, 140.0]));
        assert!(done(&[100.0, 110.0, 120.0, 130.0, 110.0]));
        // Only the last five count.
        assert!(done(&[1.0, 100.0, 100.5, 100.0, 100.2, 100.1]));
    }
}
