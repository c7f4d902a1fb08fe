//! `SLABMALLOC_CONF` is understood, whatever it holds; what is wrong is named.

use proptest::prelude::*;
use slab_api::config::{Backend, HugePage, KEYS, Leaks, PerCpu, Problem, Settings, Stats, parse};
use slab_api::misuse::OnError;

fn problems(text: &str) -> Vec<Problem<'_>> {
    let mut found = Vec::new();
    parse(text.as_bytes(), |p| found.push(p));
    found
}

fn line(text: &str) -> String {
    let found = problems(text);
    let [problem] = &found[..] else {
        panic!("{text}: {found:?}")
    };
    problem.to_string()
}

#[test]
fn every_key_is_understood() {
    let text = "backend=slub,stats=json:/tmp/a%p,verbose=1,percpu=thread,hugepage=off,\
                purge=off,arena_max=3G,on_error=report,secure=0,debug=FU:malloc-*,leaks=/tmp/l%p";
    let settings = parse(text.as_bytes(), |p| panic!("{p}"));
    assert_eq!(settings.backend, Backend::Slub);
    assert_eq!(settings.stats, Stats::Json(b"/tmp/a%p"));
    assert!(settings.verbose && !settings.secure);
    assert_eq!(settings.percpu, PerCpu::Thread);
    assert_eq!(settings.hugepage, HugePage::Off);
    assert_eq!(settings.purge, None);
    assert_eq!(settings.arena_max, Some(3 << 30));
    assert_eq!(settings.on_error, OnError::Report);
    for (index, key) in KEYS.iter().enumerate() {
        assert!(settings.is_given(index), "{key}");
    }
    assert_eq!(settings.debug, b"FU:malloc-*");
    assert_eq!(settings.leaks, Leaks::File(b"/tmp/l%p"));
    assert!(!settings.is_given(KEYS.len()));
}

#[test]
fn no_text_is_the_defaults() {
    assert_eq!(parse(b"", |p| panic!("{p}")), Settings::DEFAULT);
    assert_eq!(parse(b",,,", |p| panic!("{p}")), Settings::DEFAULT);
    assert_eq!(Settings::DEFAULT.to_string(), "");
}

#[test]
fn suffixes_are_powers_of_two() {
    for (text, bytes) in [
        ("arena_max=4096", 4096),
        ("arena_max=64k", 64 << 10),
        ("arena_max=64M", 64 << 20),
        ("arena_max=2g", 2 << 30),
    ] {
        assert_eq!(
            parse(text.as_bytes(), |p| panic!("{p}")).arena_max,
            Some(bytes)
        );
    }
}

#[test]
fn nonsense_is_named_with_the_nearest_word() {
    for (text, wrong, nearest) in [
        ("backed=slub", "backed", "backend"),
        ("hugepages", "hugepages", "hugepage"),
        ("backend=slubb", "slubb", "slub"),
        ("stats=exitt", "exitt", "exit"),
        ("stats=json:", "json:", "json:PATH"),
        ("purge=of", "of", "off"),
        ("purge=5OO", "5OO", "milliseconds"),
        ("on_error=abrot", "abrot", "abort"),
        ("arena_max=12Q", "12Q", "bytes"),
        ("arena_max=0", "0", "bytes"),
        ("arena_max=99999999999999999999G", "99999", "bytes"),
        ("debug=XY", "XY", "FZPUT"),
        ("debug=FZ:", "FZ:", "FZPUT"),
        ("debug=U,leaks", "leaks", "exit"),
        ("leaks=exit,debug=FZP", "leaks", "debug=U"),
        ("verbose", "verbose", "0"),
    ] {
        let line = line(text);
        assert!(line.contains(wrong) && line.contains(nearest), "{line}");
    }
    let settings = parse(b"backend=nix,purge=7,purge=x", |_| {});
    assert_eq!(settings.backend, Backend::Unified);
    assert_eq!(settings.purge, Some(7), "a wrong value changes nothing");
}

#[test]
fn what_is_not_built_is_said() {
    let line = line("secure=1,debug=Z");
    assert!(line.contains("is not available in this build: "), "{line}");
}

#[test]
fn a_complaint_stays_on_one_short_line() {
    let text = format!("backend=a\nslab: double free\x1b[2J{}", "x".repeat(5000));
    let line = line(&text);
    assert!(!line.contains(['\n', '\x1b']), "{line}");
    assert!(line.len() < 400, "{} bytes", line.len());
}

fn pair() -> impl Strategy<Value = String> {
    prop_oneof![
        prop_oneof!["unified", "slub", "slab"].prop_map(|v| format!("backend={v}")),
        "exit|json:/[a-z%/.]{1,40}".prop_map(|v| format!("stats={v}")),
        "[01]".prop_map(|v| format!("verbose={v}")),
        "auto|rseq|thread".prop_map(|v| format!("percpu={v}")),
        "auto|on|off".prop_map(|v| format!("hugepage={v}")),
        prop_oneof![
            Just("purge=off".to_owned()),
            any::<u32>().prop_map(|n| format!("purge={n}"))
        ],
        (1..usize::MAX).prop_map(|n| format!("arena_max={n}")),
        "abort|report|ignore".prop_map(|v| format!("on_error={v}")),
        "[01]".prop_map(|v| format!("secure={v}")),
        "[FZPUT]{1,5}(:[a-z*-]{1,9}){0,1}(/U)?".prop_map(|v| format!("debug={v}")),
    ]
}

proptest! {
    #[test]
    fn any_bytes_are_survived(text in prop::collection::vec(any::<u8>(), 0..300)) {
        parse(&text, |p| assert!(!p.to_string().is_empty()));
    }

    #[test]
    fn nearly_right_text_is_survived(
        pairs in prop::collection::vec(pair(), 0..6),
        spoil in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
    ) {
        let mut text = pairs.join(",").into_bytes();
        for (at, byte) in spoil {
            if !text.is_empty() {
                let at = at.index(text.len());
                text[at] = byte;
            }
        }
        let mut complaints = 0;
        parse(&text, |p| {
            complaints += 1;
            assert!(p.to_string().bytes().all(|b| (b' '..=b'~').contains(&b)));
        });
        prop_assert!(complaints <= text.len() + 3);
    }

    #[test]
    fn settings_survive_being_written(pairs in prop::collection::vec(pair(), 0..12)) {
        let text = pairs.join(",");
        let complain = |p: Problem<'_>| assert!(matches!(p, Problem::NotBuilt(..)), "{p}");
        let settings = parse(text.as_bytes(), complain);
        let written = settings.to_string();
        prop_assert_eq!(parse(written.as_bytes(), complain), settings, "{}", written);
    }
}
