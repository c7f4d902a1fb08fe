//! `debug=FZPUT`: every kind of fault is reported in the kernel's form, with tracks, by every
//! backend; caches are chosen by glob; and programs that do nothing wrong run as ever.

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock};

use common::{BACKENDS, Outcome, Run, compile, compile_all, fresh_dir, in_parallel};

fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| compile("c/debug.c", &["-rdynamic"]))
}

fn run(conf: &str, kind: &str) -> Outcome {
    Run::preloaded(program(), conf).arg(kind).run()
}

/// The number behind `key=` in a line.
fn number(line: &str, key: &str) -> u64 {
    line.split_whitespace()
        .find_map(|word| word.strip_prefix(key)?.strip_prefix('='))
        .unwrap_or_else(|| panic!("no {key}: {line}"))
        .parse()
        .unwrap_or_else(|_| panic!("{key} is no number: {line}"))
}

/// The one line that starts with `start`.
#[track_caller]
fn line<'a>(text: &'a str, start: &str) -> &'a str {
    let lines: Vec<&str> = text.lines().filter(|l| l.starts_with(start)).collect();
    let [line] = lines[..] else {
        panic!("{} lines start with {start:?}:\n{text}", lines.len())
    };
    line
}

/// An address range as the reports print it, `0xA-0xB`; its bounds.
fn range(text: &str) -> (u64, u64) {
    let (from, to) = text.split_once('-').expect("a range");
    let parse = |word: &str| {
        let digits = word.strip_prefix("0x").expect("0x");
        u64::from_str_radix(digits, 16).expect("an address")
    };
    (parse(from), parse(to))
}

/// `INFO: Allocated in maker+0x1/0x2 age=0 cpu=0 pid=1`, and the stack below it.
fn is_track(text: &str, what: &str, function: &str) {
    let head = line(text, &format!("INFO: {what} in "));
    let words: Vec<&str> = head.split_whitespace().collect();
    let (symbol, offset) = words[3].split_once('+').expect("symbol+offset");
    assert_eq!(symbol, function, "{text}");
    let (offset, size) = offset.split_once('/').expect("offset/size");
    assert!(offset.starts_with("0x") && size.starts_with("0x"), "{head}");
    assert!(number(head, "age") < 60_000, "{head}");
    assert!(number(head, "cpu") < 4096, "{head}");
    assert!(number(head, "pid") > 0, "{head}");
    let stack: Vec<&str> = text
        .lines()
        .skip_while(|l| *l != head)
        .skip(1)
        .take_while(|l| l.starts_with('\t'))
        .collect();
    assert!(stack.len() >= 2, "a stack follows: {text}");
    assert!(stack[0].starts_with(&format!("\t{function}+0x")), "{text}");
}

/// The kernel's title, between its rules.
fn is_titled(text: &str, title: &str) {
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], "=".repeat(77), "{text}");
    assert_eq!(lines[1], title, "{text}");
    assert_eq!(lines[2], "-".repeat(77), "{text}");
    assert_eq!(lines[3], "", "{text}");
}

/// Of an overwritten zone: kind, cache, zone, the byte found, the byte that belongs there.
const OVERWRITTEN: [(&str, &str, &str, u8, u8); 7] = [
    ("right", "malloc-48", "Redzone", b'X', 0xcc),
    ("left", "malloc-48", "Redzone", b'X', 0xcc),
    ("aligned", "malloc-576", "Redzone", b'X', 0xcc),
    ("padding", "malloc-512", "Padding", b'X', 0x5a),
    ("large", "malloc-large", "Redzone", b'X', 0xcc),
    ("poison", "malloc-48", "Poison", b'X', 0x6b),
    ("poison-at-exit", "malloc-48", "Poison", b'X', 0x6b),
];

/// A byte that does not belong is found, named, shown, and the process stops.
#[test]
fn overwritten_zones() {
    in_parallel(&BACKENDS, |backend| {
        for (kind, cache, zone, found, wanted) in OVERWRITTEN {
            let outcome = run(&format!("backend={backend},debug=FZPU"), kind);
            let text = &outcome.stderr;
            assert!(
                outcome.aborted(),
                "{backend} {kind}: {}\n{text}",
                outcome.ending()
            );
            is_titled(
                text,
                &format!("BUG {cache} (Not tainted): {zone} overwritten"),
            );
            let info = line(text, "INFO: 0x");
            let words: Vec<&str> = info.split_whitespace().collect();
            let (from, to) = range(words[1]);
            assert_eq!(from, to, "one byte was written: {info}");
            let object = line(text, "INFO: Object 0x");
            let at = words[2].strip_prefix("@offset=").expect("@offset=");
            let at: u64 = at.trim_end_matches('.').parse().expect("an offset");
            assert_eq!(
                words[3..].join(" "),
                format!("First byte {found:#x} instead of {wanted:#x}")
            );
            // What the program did, seen from the object.
            let user = range(&format!(
                "{}-0x0",
                object.split_whitespace().nth(2).unwrap()
            ))
            .0;
            let (size, user_offset) = (number(object, "size"), number(object, "@offset"));
            assert_eq!(
                from.wrapping_sub(user),
                at.wrapping_sub(user_offset),
                "{text}"
            );
            match kind {
                "left" => assert_eq!(from, user - 1, "{text}"),
                "padding" => assert!(from >= user + size + 16, "{text}"),
                "poison" | "poison-at-exit" => assert_eq!(from, user + 7, "{text}"),
                _ => assert_eq!(from, user + size, "{text}"),
            }
            let maker = match kind {
                "aligned" | "padding" => "main",
                _ => "maker",
            };
            is_track(text, "Allocated", maker);
            if zone == "Poison" {
                is_track(text, "Freed", "freer");
            }
            let slab = line(text, "INFO: Slab 0x");
            assert!(number(slab, "used") >= 1 && number(slab, "objects") >= number(slab, "used"));
            for dump in ["Bytes b4", "Object  ", "Redzone "] {
                let shown = text.lines().find(|l| l.starts_with(dump)).expect(dump);
                let (_, bytes) = shown.split_once(": ").expect("a dump");
                assert!(u8::from_str_radix(&bytes[..2], 16).is_ok(), "{shown}");
            }
            // A check at exit looks at objects that others may have: it repairs nothing.
            if kind == "poison-at-exit" {
                assert!(!text.contains("FIX "), "{text}");
                continue;
            }
            assert_eq!(
                line(text, "FIX "),
                format!("FIX {cache}: Restoring {zone} {}={wanted:#x}", words[1])
            );
        }
    });
}

/// Poison that was overwritten after the quarantine is found by the next allocation, before exit.
#[test]
fn poison_is_checked_at_the_next_allocation() {
    for backend in BACKENDS {
        let outcome = run(
            &format!("backend={backend},debug=FZPU"),
            "poison-at-allocation",
        );
        assert!(outcome.aborted(), "{backend}: {}", outcome.ending());
        assert_eq!(outcome.stdout_text(), "", "{backend}: before the loop ends");
        is_titled(
            &outcome.stderr,
            "BUG malloc-48 (Not tainted): Poison overwritten",
        );
        is_track(&outcome.stderr, "Freed", "freer");
    }
}

/// What must not be done is named, with the object it was done to.
#[test]
fn wrong_operations() {
    in_parallel(&BACKENDS, |backend| {
        for (kind, cache, what, freed) in [
            (
                "double",
                "malloc-48",
                "Object already free (double free)",
                true,
            ),
            (
                "realloc",
                "malloc-48",
                "Object already free (realloc again)",
                true,
            ),
            ("interior", "malloc-416", "Invalid object pointer 0x", false),
            (
                "sized",
                "malloc-48",
                "Sized free with 41 bytes of an object of 40",
                false,
            ),
            ("record", "malloc-48", "Object record overwritten", false),
            ("foreign", "malloc", "free of a foreign pointer 0x", false),
        ] {
            let outcome = run(&format!("backend={backend},debug=FZPU"), kind);
            let text = &outcome.stderr;
            assert!(
                outcome.aborted(),
                "{backend} {kind}: {}\n{text}",
                outcome.ending()
            );
            let title = text.lines().nth(1).unwrap_or_default();
            let wanted = format!("BUG {cache} (Not tainted): {what}");
            assert!(title.starts_with(&wanted), "{backend} {kind}: {text}");
            if !matches!(kind, "record" | "foreign") {
                is_track(text, "Allocated", "maker");
            }
            if freed {
                is_track(text, "Freed", "freer");
            }
            assert!(line(text, "FIX ").contains("not freed"), "{text}");
        }
    });
}

/// `on_error=report` restores what was overwritten and goes on; `ignore` does so in silence.
#[test]
fn going_on() {
    for backend in BACKENDS {
        for kind in [
            "right", "left", "poison", "double", "interior", "foreign", "sized", "record",
        ] {
            let conf = format!("backend={backend},debug=FZPU,on_error=report");
            let outcome = run(&conf, kind).expect_success(&conf);
            let reports = outcome.stderr.matches("BUG ").count();
            // An overwritten record stays as it is, and is seen at exit once more.
            let wanted = if kind == "record" { 2 } else { 1 };
            assert_eq!(reports, wanted, "{backend} {kind}: {}", outcome.stderr);
            let conf = format!("backend={backend},debug=FZPU,on_error=ignore");
            let outcome = run(&conf, kind).expect_success(&conf);
            assert_eq!(outcome.stderr, "", "{backend} {kind}");
        }
    }
}

/// `slabmalloc_validate` finds faults in live, freed and large objects, and restores them.
#[test]
fn validation() {
    for backend in BACKENDS {
        let conf = format!("backend={backend},debug=FZPU,on_error=report");
        let outcome = run(&conf, "validate").expect_success(&conf);
        assert_eq!(
            outcome.stdout_text(),
            "faults 0\nfaults 3\nfaults 0\n",
            "{backend}"
        );
        for title in [
            "BUG malloc-48 (Not tainted): Redzone overwritten",
            "BUG malloc-112 (Not tainted): Poison overwritten",
            "BUG malloc-large (Not tainted): Redzone overwritten",
        ] {
            line(&outcome.stderr, title);
        }
        let outcome = run(&conf, "reused-after-poison").expect_success(&conf);
        assert_eq!(outcome.stdout_text(), "faults 0\n", "{backend}");
        assert_eq!(outcome.stderr, "", "{backend}");
        // Without debugging it checks the caches alone.
        let conf = format!("backend={backend},on_error=report");
        let outcome = run(&conf, "reused-after-poison").expect_success(&conf);
        assert_eq!(outcome.stdout_text(), "faults 0\n", "{backend}");
    }
}

/// Only the caches that a glob names are debugged, each with the letters of its group.
#[test]
fn globs() {
    for backend in BACKENDS {
        let sizes = |debug: &str| -> Vec<bool> {
            let conf = format!("backend={backend},debug={debug}");
            let outcome = run(&conf, "usable").expect_success(&conf);
            outcome
                .stdout_text()
                .lines()
                .map(|line| {
                    let (asked, usable) = line.split_once(' ').expect("two numbers");
                    asked == usable
                })
                .collect()
        };
        // The sizes of the program: 0, 24, 40, 64, 640, 1000, 40000, 100000; those that are
        // classes have the same size with and without.
        assert_eq!(sizes("Z"), [true; 8], "{backend}");
        let plain = [false, false, false, true, true, false, false, false];
        assert_eq!(sizes("Z:no-such-cache"), plain, "{backend}");
        assert_eq!(
            sizes("Z:malloc-3?;malloc-1k"),
            [false, true, false, true, true, true, false, false],
            "{backend}"
        );
        assert_eq!(
            sizes("P:malloc-large/U:malloc-4*"),
            [false, false, true, true, true, false, true, true],
            "{backend}"
        );
        let detects =
            |debug: &str, kind| run(&format!("backend={backend},debug={debug}"), kind).aborted();
        assert!(detects("Z:malloc-4*", "right"), "{backend}");
        assert!(!detects("Z:malloc-64", "right"), "{backend}");
        assert!(
            !detects("P:malloc-4*", "right"),
            "{backend}: no red zones without Z"
        );
        assert!(detects("P:malloc-4*", "poison"), "{backend}");
        assert!(
            !detects("Z:malloc-4*", "poison"),
            "{backend}: no poison without P"
        );
        assert!(detects("F", "sized") && !detects("Z", "sized"), "{backend}");
        assert!(!detects("malloc-64", "right"), "{backend}: no letters");
    }
}

/// Fresh memory is poisoned, zeroed memory is zero.
#[test]
fn fresh_memory() {
    for backend in BACKENDS {
        let conf = format!("backend={backend},debug=P");
        let outcome = run(&conf, "fresh").expect_success(&conf);
        assert_eq!(outcome.stdout_text(), "6b 6b 6b 0\n", "{backend}");
    }
}

/// T prints a line for each operation of the caches it names; with U the stack too.
#[test]
fn trace() {
    for backend in BACKENDS {
        let conf = format!("backend={backend},debug=UT:malloc-416");
        let outcome = run(&format!("{conf},on_error=report"), "interior").expect_success(&conf);
        let traced = line(&outcome.stderr, "TRACE malloc-416 alloc 0x");
        assert_eq!(number(traced, "size"), 400);
        assert!(
            outcome.stderr.contains("\n\tmaker+0x"),
            "{}",
            outcome.stderr
        );
        let conf = format!("backend={backend},debug=T:malloc-large");
        let outcome = run(&conf, "large").expect_success(&conf);
        let lines: Vec<&str> = outcome.stderr.lines().collect();
        let [first, second] = lines[..] else {
            panic!("{}", outcome.stderr)
        };
        assert!(first.starts_with("TRACE malloc-large alloc 0x"), "{first}");
        assert!(second.starts_with("TRACE malloc-large free 0x"), "{second}");
    }
}

/// A child has the parent's objects, tracks and quarantine.
#[test]
fn fork() {
    for backend in BACKENDS {
        let conf = format!("backend={backend},debug=FZPU");
        let outcome = run(&conf, "fork").expect_success(&conf);
        assert_eq!(
            outcome.stdout_text(),
            "child 0\n",
            "{backend}: {}",
            outcome.stderr
        );
    }
}

/// `leaks=` groups what is in use by the stack that allocated it.
#[test]
fn leaks() {
    let directory = fresh_dir("leaks");
    for backend in BACKENDS {
        let conf = format!("backend={backend},debug=U,leaks=exit");
        let outcome = run(&conf, "leaks").expect_success(&conf);
        let text = &outcome.stderr;
        let group = text
            .lines()
            .find(|l| !l.starts_with('\t') && l.contains(" leaker+0x"))
            .unwrap_or_else(|| panic!("{backend}: {text}"));
        let words: Vec<&str> = group.split_whitespace().collect();
        assert_eq!(words[0], "10", "twelve less two: {group}");
        assert!(
            words[1].starts_with("leaker+0x") && words[1].contains("/0x"),
            "{group}"
        );
        let ages: Vec<u64> = words[2]
            .strip_prefix("age=")
            .expect("age=")
            .split('/')
            .map(|age| age.parse().expect("milliseconds"))
            .collect();
        assert!(
            ages.len() == 3 && ages[0] <= ages[1] && ages[1] <= ages[2],
            "{group}"
        );
        assert!(number(group, "pid") > 0, "{group}");
        assert!(words[4].starts_with("cpus="), "{group}");
        assert_eq!(number(group, "bytes"), 400, "{group}");
        let below: Vec<&str> = text
            .lines()
            .skip_while(|l| l != &group)
            .skip(1)
            .take(2)
            .collect();
        assert!(
            below[0].starts_with("\tleaker+0x") && below[1].starts_with("\tmain+0x"),
            "{text}"
        );
        assert!(
            text.lines()
                .any(|l| l.contains(" maker+0x") && l.ends_with(" bytes=50000")),
            "{backend}: {text}"
        );
        let counts: Vec<u64> = text
            .lines()
            .skip(1)
            .filter(|l| !l.starts_with('\t'))
            .map(|l| {
                l.split_whitespace()
                    .next()
                    .expect("a count")
                    .parse()
                    .expect("a number")
            })
            .collect();
        assert!(counts.is_sorted_by(|a, b| a >= b), "most first: {counts:?}");
        let path = directory.join(format!("{backend}-%p"));
        let conf = format!("backend={backend},debug=U,leaks={}", path.display());
        let outcome = run(&conf, "leaks").expect_success(&conf);
        assert_eq!(outcome.stderr, "", "{backend}");
    }
    let files: Vec<_> = fs::read_dir(&directory)
        .expect("the directory")
        .map(|entry| fs::read_to_string(entry.expect("an entry").path()).expect("text"))
        .collect();
    assert_eq!(files.len(), BACKENDS.len());
    assert!(files.iter().all(|text| text.contains(" leaker+0x")));
}

/// The programs of `tests/cases/misuse` that one can tell: every one is reported by this layer.
#[test]
fn misuse_programs() {
    let programs = compile_all("cases/misuse");
    let failures = Mutex::new(Vec::new());
    in_parallel(&programs, |program| {
        let name = program.file_name().expect("a name").to_string_lossy();
        // Which object comes next is not this mode's business.
        if name.starts_with("r01") {
            return;
        }
        for backend in BACKENDS {
            let outcome = Run::preloaded(program, &format!("backend={backend},debug=FZPU")).run();
            if !outcome.aborted() || !outcome.stderr.contains("BUG malloc") {
                failures.lock().expect("no panic").push(format!(
                    "{name}, {backend}: {}: {}",
                    outcome.ending(),
                    outcome.stderr.lines().nth(1).unwrap_or("nothing said")
                ));
            }
        }
    });
    let failures = failures.into_inner().expect("no panic");
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// The programs of `tests/cases` pass.
fn all_pass(backend: &str) {
    let programs = compile_all("cases");
    assert_eq!(programs.len(), 26, "every program is there");
    let failures = Mutex::new(Vec::new());
    in_parallel(&programs, |program| {
        let conf = format!("backend={backend},debug=FZPU");
        let outcome = Run::preloaded(program, &conf).run();
        if !matches!(outcome.status.code(), Some(0 | 77)) || !outcome.stderr.is_empty() {
            failures.lock().expect("no panic").push(format!(
                "{}: {}\n{}",
                program.display(),
                outcome.ending(),
                outcome.stderr
            ));
        }
    });
    let failures = failures.into_inner().expect("no panic");
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn cases_unified() {
    all_pass("unified");
}

#[test]
fn cases_slub() {
    all_pass("slub");
}

#[test]
fn cases_slab() {
    all_pass("slab");
}
