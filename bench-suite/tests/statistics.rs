//! The statistics against published tables and against naive oracles.

use bench_suite::rng::Rng;
use bench_suite::stats::{
    Better, Delta, Mean, bootstrap, holm, mann_whitney_p, mann_whitney_u, median, outliers, shift,
};
use bench_suite::workloads::selftest::normal;
use proptest::prelude::*;

/// Two untied samples of sizes `n1` and `n2` whose smaller U is `u`.
fn samples_with_u(n1: usize, n2: usize, mut u: usize) -> (Vec<f64>, Vec<f64>) {
    let b: Vec<f64> = (0..n2).map(|i| i as f64).collect();
    let mut a: Vec<f64> = (0..n1).map(|i| -1.0 - i as f64).collect();
    for (i, x) in a.iter_mut().enumerate() {
        let above = u.min(n2);
        u -= above;
        if above > 0 {
            // Above `above` of b's values; the fraction keeps the samples distinct.
            *x = above as f64 - 0.5 + i as f64 * 1e-3;
        }
    }
    assert_eq!(u, 0);
    (a, b)
}

#[test]
fn known_exact_p_values() {
    let close = |p: f64, want: f64| assert!((p - want).abs() < 1e-9, "{p} is not {want}");
    let low = [1.0, 2.0, 3.0, 4.0, 5.0];
    let high = [11.0, 12.0, 13.0, 14.0, 15.0];
    close(mann_whitney_p(&low, &high), 2.0 / 252.0);
    close(mann_whitney_p(&high, &low), 2.0 / 252.0);
    close(mann_whitney_p(&low[..4], &high[..4]), 2.0 / 70.0);
    close(mann_whitney_p(&low[..3], &high[..3]), 0.1);
    close(mann_whitney_p(&low, &low), 1.0);
    // The worked example of R's wilcox.test documentation (depression scale, unpaired): p = 0.2544 two-sided.
    let x = [0.80, 0.83, 1.89, 1.04, 1.45, 1.38, 1.91, 1.64, 0.73, 1.46];
    let y = [1.15, 0.88, 0.90, 0.74, 1.21];
    assert_eq!(mann_whitney_u(&x, &y), 35.0);
    assert!((mann_whitney_p(&x, &y) - 0.254_4).abs() < 5e-5);
}

/// Critical values of U for the two-tailed test at 0.05, from the tables printed in statistics textbooks: the
/// largest U that is still significant.
const CRITICAL_05: &[(usize, usize, usize)] = &[
    (2, 8, 0),
    (3, 5, 0),
    (4, 4, 0),
    (3, 10, 3),
    (4, 10, 5),
    (5, 5, 2),
    (5, 6, 3),
    (5, 10, 8),
    (6, 6, 5),
    (6, 10, 11),
    (7, 7, 8),
    (7, 10, 14),
    (8, 8, 13),
    (8, 10, 17),
    (9, 9, 17),
    (9, 10, 20),
    (10, 10, 23),
    (11, 11, 30),
    (12, 12, 37),
    (13, 13, 45),
    (14, 14, 55),
    (15, 15, 64),
    (16, 16, 75),
    (17, 17, 87),
    (18, 18, 99),
    (19, 19, 113),
    (20, 20, 127),
];

/// The same at 0.01.
const CRITICAL_01: &[(usize, usize, usize)] = &[
    (5, 5, 0),
    (6, 6, 2),
    (7, 7, 4),
    (8, 8, 7),
    (9, 9, 11),
    (10, 10, 16),
    (15, 15, 51),
    (20, 20, 105),
];

#[test]
fn published_critical_values() {
    for (alpha, table) in [(0.05, CRITICAL_05), (0.01, CRITICAL_01)] {
        for &(n1, n2, u) in table {
            let (a, b) = samples_with_u(n1, n2, u);
            assert_eq!(mann_whitney_u(&a, &b), u as f64);
            let at = mann_whitney_p(&a, &b);
            assert!(at <= alpha, "U = {u} of {n1}, {n2}: p = {at} > {alpha}");
            let (a, b) = samples_with_u(n1, n2, u + 1);
            let past = mann_whitney_p(&a, &b);
            assert!(
                past > alpha,
                "U = {} of {n1}, {n2}: p = {past} <= {alpha}",
                u + 1
            );
        }
    }
}

#[test]
fn the_normal_approximation_takes_over_smoothly() {
    // 100 against 100 is exact, 101 against 100 is not: the same overlap must give nearly the same p.
    let a: Vec<f64> = (0..101).map(|i| i as f64).collect();
    let b: Vec<f64> = (0..100).map(|i| i as f64 + 14.5).collect();
    let exact = mann_whitney_p(&a[..100], &b);
    let normal = mann_whitney_p(&a, &b);
    assert!((exact - normal).abs() < 0.01, "{exact} and {normal}");
}

#[test]
fn better_prints_as_plus_in_both_directions() {
    for delta in [Delta::Base, Delta::Lkml2010] {
        assert!(delta.percent(Better::Higher, 100.0, 110.0).unwrap() > 0.0);
        assert!(delta.percent(Better::Higher, 100.0, 90.0).unwrap() < 0.0);
        assert!(delta.percent(Better::Lower, 100.0, 90.0).unwrap() > 0.0);
        assert!(delta.percent(Better::Lower, 100.0, 110.0).unwrap() < 0.0);
    }
    assert_eq!(Delta::Base.percent(Better::Lower, 100.0, 90.0), Some(10.0));
    assert_eq!(Delta::Base.percent(Better::Higher, 0.0, 0.0), Some(0.0));
    assert_eq!(Delta::Base.percent(Better::Higher, 0.0, 1.0), None);
}

#[test]
fn means_by_unit() {
    assert_eq!(Mean::of_unit("MB/s"), Mean::Harmonic);
    assert_eq!(Mean::of_unit("trans/s"), Mean::Harmonic);
    assert_eq!(Mean::of_unit("jobs/min"), Mean::Harmonic);
    assert_eq!(Mean::of_unit("s"), Mean::Arithmetic);
    assert_eq!(Mean::of_unit("ns"), Mean::Arithmetic);
    assert!((Mean::Harmonic.of(&[40.0, 60.0]) - 48.0).abs() < 1e-9);
    assert_eq!(Mean::Harmonic.of(&[40.0, 0.0]), 0.0);
    assert_eq!(Mean::Arithmetic.of(&[40.0, 60.0]), 50.0);
    assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
    assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
}

/// The p-value by walking through every assignment.
fn brute_force_p(a: &[f64], b: &[f64]) -> f64 {
    let pool: Vec<f64> = a.iter().chain(b).copied().collect();
    let centre = (a.len() * b.len()) as f64 / 2.0;
    let distance = (mann_whitney_u(a, b) - centre).abs();
    let (mut extreme, mut all) = (0u32, 0u32);
    for mask in 0u32..1 << pool.len() {
        if mask.count_ones() as usize != a.len() {
            continue;
        }
        let pick = |side: bool| -> Vec<f64> {
            pool.iter()
                .enumerate()
                .filter(|(i, _)| (mask >> i & 1 == 1) == side)
                .map(|(_, x)| *x)
                .collect()
        };
        all += 1;
        if (mann_whitney_u(&pick(true), &pick(false)) - centre).abs() >= distance - 1e-9 {
            extreme += 1;
        }
    }
    f64::from(extreme) / f64::from(all)
}

fn few(values: std::ops::Range<u8>) -> impl Strategy<Value = Vec<f64>> {
    prop::collection::vec(values.prop_map(f64::from), 1..6)
}

fn positive() -> impl Strategy<Value = Vec<f64>> {
    prop::collection::vec(0.1f64..1e6, 1..30)
}

/// Whole numbers without ties.
fn distinct() -> impl Strategy<Value = Vec<f64>> {
    prop::collection::hash_set(1u16..500, 1..12)
        .prop_map(|set| set.into_iter().map(f64::from).collect())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn exact_p_is_what_enumeration_gives_with_ties(a in few(0..5), b in few(0..5)) {
        prop_assert!((mann_whitney_p(&a, &b) - brute_force_p(&a, &b)).abs() < 1e-9);
    }

    #[test]
    fn p_is_a_probability_and_symmetric(a in positive(), b in positive()) {
        let p = mann_whitney_p(&a, &b);
        prop_assert!(p > 0.0 && p <= 1.0);
        prop_assert!((p - mann_whitney_p(&b, &a)).abs() < 1e-9);
        let n = (a.len() * b.len()) as f64;
        prop_assert!((mann_whitney_u(&a, &b) + mann_whitney_u(&b, &a) - n).abs() < 1e-9);
    }

    #[test]
    fn the_interval_excludes_one_exactly_when_the_test_is_significant(a in distinct(), b in distinct()) {
        let b: Vec<f64> = b.iter().map(|x| x + 0.5).collect();
        if let Some(interval) = shift::ratio(&a, &b, 0.05).and_then(|r| r.interval) {
            let outside = interval.low > 1.0 || interval.high < 1.0;
            prop_assert_eq!(outside, mann_whitney_p(&a, &b) <= 0.05);
        } else {
            prop_assert!(mann_whitney_p(&a, &b) > 0.05);
        }
    }

    #[test]
    fn only_the_ranks_count(a in positive(), b in positive()) {
        let stretch = |v: &[f64]| v.iter().map(|x| x * 8.0 + 3.0).collect::<Vec<_>>();
        prop_assert!((mann_whitney_p(&a, &b) - mann_whitney_p(&stretch(&a), &stretch(&b))).abs() < 1e-9);
    }

    #[test]
    fn the_harmonic_mean_is_the_smaller(v in positive()) {
        let (harmonic, arithmetic) = (Mean::Harmonic.of(&v), Mean::Arithmetic.of(&v));
        prop_assert!(harmonic <= arithmetic * (1.0 + 1e-12));
        let min = v.iter().copied().fold(f64::INFINITY, f64::min);
        prop_assert!(harmonic >= min * (1.0 - 1e-12));
    }

    #[test]
    fn the_bootstrap_stays_inside_the_samples_and_repeats(v in positive(), seed: u64) {
        for mean in [Mean::Arithmetic, Mean::Harmonic] {
            let interval = bootstrap(&v, mean, 95.0, seed);
            let min = v.iter().copied().fold(f64::INFINITY, f64::min);
            let max = v.iter().copied().fold(0.0, f64::max);
            prop_assert!(interval.low <= interval.high);
            prop_assert!(interval.low >= min * (1.0 - 1e-9) && interval.high <= max * (1.0 + 1e-9));
            prop_assert_eq!(interval, bootstrap(&v, mean, 95.0, seed));
            let wider = bootstrap(&v, mean, 99.0, seed);
            prop_assert!(wider.low <= interval.low && wider.high >= interval.high);
        }
    }

    #[test]
    fn the_sign_of_a_delta_is_the_direction(base in 0.1f64..1e6, new in 0.1f64..1e6) {
        for delta in [Delta::Base, Delta::Lkml2010] {
            let rate = delta.percent(Better::Higher, base, new).unwrap();
            let time = delta.percent(Better::Lower, base, new).unwrap();
            prop_assert_eq!(rate > 0.0, new > base);
            prop_assert_eq!(time > 0.0, new < base);
        }
    }
}

#[test]
fn harmonic_means_of_the_textbooks() {
    let close = |samples: &[f64], want: f64| {
        let got = Mean::Harmonic.of(samples);
        assert!(
            (got - want).abs() < 1e-9 * want,
            "{samples:?}: {got} is not {want}"
        );
    };
    // Half the way at 60, half at 20: 30 on average. And the mean of 1, 4, 4 is 2.
    close(&[60.0, 20.0], 30.0);
    close(&[1.0, 4.0, 4.0], 2.0);
    // Of 1 … 10: ten over the tenth harmonic number, 7381/2520.
    let ten: Vec<f64> = (1..=10).map(f64::from).collect();
    close(&ten, 10.0 * 2520.0 / 7381.0);
}

#[test]
fn the_cut_of_the_interval_is_the_critical_value_of_the_tables() {
    for (alpha, table) in [(0.05, CRITICAL_05), (0.01, CRITICAL_01)] {
        for &(n1, n2, u) in table {
            assert_eq!(shift::cut(n1, n2, alpha), Some(u), "{n1}, {n2} at {alpha}");
            assert_eq!(shift::cut(n2, n1, alpha), Some(u));
        }
    }
    assert_eq!(shift::cut(3, 4, 0.05), None);
    assert_eq!(shift::cut(4, 4, 0.01), None);
    // 2 / C(10, 5) = 0.0079 and 2 / C(12, 6) = 0.0022.
    assert_eq!(shift::rounds_needed(0.008), 5);
    assert_eq!(shift::rounds_needed(0.007), 6);
    assert_eq!(shift::rounds_needed(0.05), 4);
}

#[test]
fn the_interval_of_a_known_quotient() {
    // Five against five: the critical U at 95 % is 2, so the interval runs from the third to the 23rd of 25 quotients.
    let a = [2.0, 4.0, 8.0, 16.0, 32.0];
    let b = [1.0; 5];
    let ratio = shift::ratio(&a, &b, 0.05).unwrap();
    assert_eq!(ratio.estimate, 8.0);
    let interval = ratio.interval.unwrap();
    assert_eq!((interval.low, interval.high), (2.0, 32.0));
    // Turned round, everything is inverted.
    let inverse = shift::ratio(&b, &a, 0.05).unwrap();
    assert_eq!(inverse.estimate, 1.0 / 8.0);
    assert_eq!(inverse.interval.unwrap().high, 0.5);
    assert!(shift::ratio(&a, &[0.0], 0.05).is_none());
    assert!(
        shift::ratio(&a[..3], &b[..3], 0.05)
            .unwrap()
            .interval
            .is_none()
    );
}

#[test]
fn holm_by_hand() {
    // The example of many textbooks: 0.01, 0.04, 0.03, 0.005 become 0.03, 0.06, 0.06, 0.02.
    let adjusted = holm::adjusted(&[0.01, 0.04, 0.03, 0.005]);
    for (got, want) in adjusted.iter().zip([0.03, 0.06, 0.06, 0.02]) {
        assert!((got - want).abs() < 1e-12, "{adjusted:?}");
    }
    assert_eq!(holm::adjusted(&[0.9, 0.8]), [1.0, 1.0]);
    assert_eq!(holm::levels(&[0.5, 0.1], 0.05), [0.05, 0.025]);
    assert!(holm::adjusted(&[]).is_empty());
}

#[test]
fn counts_by_chance_are_binomial() {
    // Cumulative binomial tables: n = 20, p = 0.05 reaches 0.9841 at 3; n = 100 reaches 0.9885 at 10 (0.9718 at 9).
    assert_eq!(holm::most_by_chance(20, 0.05), 3);
    assert_eq!(holm::most_by_chance(100, 0.05), 10);
    assert_eq!(holm::most_by_chance(1, 0.05), 1);
}

#[test]
fn far_out_samples_are_counted() {
    // Quartiles of 1 … 9 are 3 and 7, so the outer fences lie at -9 and 19.
    let mut samples: Vec<f64> = (1..=9).map(f64::from).collect();
    assert_eq!(outliers::far_out(&samples), 0);
    assert_eq!(outliers::quantile(&samples, 0.25), 3.0);
    samples[8] = 19.0;
    assert_eq!(outliers::far_out(&samples), 0);
    samples[8] = 19.5;
    assert_eq!(outliers::far_out(&samples), 1);
    assert_eq!(outliers::far_out(&[1.0, 1.0, 1.0, 99.0]), 0);
    assert_eq!(outliers::quantile(&[], 0.5), 0.0);
    // R: quantile(c(1, 2, 4, 8), 0.25) is 1.75.
    assert_eq!(outliers::quantile(&[1.0, 2.0, 4.0, 8.0], 0.25), 1.75);
}

#[test]
fn the_bootstrap_covers_the_true_mean_as_often_as_it_is_known_to() {
    // The percentile bootstrap of n normal samples is narrower than it claims: it covers like a normal interval with
    // the biased deviation. For n = 10 that is about 90 % instead of 95 %, for n = 30 about 93.5 %.
    for (n, low, high) in [(10, 0.87, 0.935), (30, 0.91, 0.965)] {
        let mut rng = Rng::new(n as u64);
        let covered = (0..1000).filter(|round| {
            let samples: Vec<f64> = (0..n).map(|_| 100.0 + 5.0 * normal(&mut rng)).collect();
            let interval = bootstrap(&samples, Mean::Arithmetic, 95.0, *round);
            (interval.low..=interval.high).contains(&100.0)
        });
        let share = covered.count() as f64 / 1000.0;
        assert!((low..=high).contains(&share), "{n} samples: {share}");
    }
}

#[test]
fn the_exact_interval_covers_the_true_quotient() {
    let mut rng = Rng::new(11);
    let covered = (0..2000).filter(|_| {
        let mut draw = |centre: f64| -> Vec<f64> {
            (0..6)
                .map(|_| centre * (0.1 * normal(&mut rng)).exp())
                .collect()
        };
        let (a, b) = (draw(130.0), draw(100.0));
        let ratio = shift::ratio(&a, &b, 0.05).unwrap();
        let interval = ratio.interval.unwrap();
        (interval.low..=interval.high).contains(&1.3)
    });
    // Six against six: the exact level is 1 - 0.0411 (the critical U of 5); the deviation of the share is 0.5 %.
    let share = covered.count() as f64 / 2000.0;
    assert!((0.942..=0.975).contains(&share), "{share}");
}
