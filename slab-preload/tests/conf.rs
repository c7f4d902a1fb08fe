//! `SLABMALLOC_CONF`: the backend it names, the complaints, the reports at exit.

mod common;

use std::fs;
use std::process::Command;

use common::{BACKENDS, Outcome, Run, compile, find_program, fresh_dir};

/// `/bin/true` with these settings.
fn with(conf: &str) -> Outcome {
    Run::preloaded("/bin/true", conf).run().expect_success(conf)
}

/// An unknown key or value makes one line that names it and the nearest valid one, and the
/// program runs.
#[test]
fn unknown_keys_and_values() {
    for (conf, wrong, nearest) in [
        ("backed=slub", "backed", "backend"),
        ("backend=slubb", "slubb", "slub"),
        ("backend=unifed", "unifed", "unified"),
        ("stat=exit", "stat", "stats"),
        ("stats=exitt", "exitt", "exit"),
        ("on_eror=abort", "on_eror", "on_error"),
        ("on_error=abrot", "abrot", "abort"),
        ("hugepage=yes", "yes", "on"),
        ("percpu=rsec", "rsec", "rseq"),
        ("purge=of", "of", "off"),
        ("secure=2", "2", "0"),
    ] {
        let outcome = with(conf);
        let lines: Vec<&str> = outcome.stderr.lines().collect();
        let [line] = lines[..] else {
            panic!("{conf}: {} lines: {}", lines.len(), outcome.stderr)
        };
        for word in [wrong, nearest] {
            let named = line
                .split(|c: char| !(c.is_alphanumeric() || c == '_'))
                .any(|token| token == word);
            assert!(named, "{conf}: {word} is not named in: {line}");
        }
    }
}

/// What is right makes no noise, and neither does what follows a wrong setting.
#[test]
fn silence() {
    for conf in [
        "",
        "backend=slab",
        "backend=slub,purge=100,hugepage=off",
        "purge=off,arena_max=2G,on_error=report",
        "percpu=thread,stats=json:/dev/null",
        "verbose=0",
    ] {
        assert_eq!(with(conf).stderr, "", "{conf:?}");
    }
    assert_eq!(
        with("nonsense=1,backend=slub,stats=json:/dev/null")
            .stderr
            .lines()
            .count(),
        1
    );
}

/// `verbose=1` prints the settings in force.
#[test]
fn verbose() {
    for backend in BACKENDS {
        let outcome = with(&format!("verbose=1,backend={backend},purge=123"));
        let text = outcome.stderr.to_lowercase();
        assert!(text.contains(&format!("backend={backend} ")), "{text}");
        assert!(text.contains("purge=123 "), "{text}");
        for key in [
            "backend",
            "stats",
            "percpu",
            "hugepage",
            "purge",
            "arena_max",
            "on_error",
            "secure",
            "debug",
        ] {
            assert!(outcome.stderr.contains(key), "{key}: {}", outcome.stderr);
        }
    }
}

/// `stats=exit` prints slabinfo, buddyinfo and pagetypeinfo as the kernel lays them out, and a
/// summary line.
#[test]
fn stats_at_exit() {
    let awk = find_program("gawk")
        .or_else(|| find_program("sort"))
        .expect("some program that allocates");
    for backend in BACKENDS {
        let outcome = Run::preloaded(&awk, &format!("backend={backend},stats=exit"))
            .arg("--version")
            .run()
            .expect_success(backend);
        let text = &outcome.stderr;
        assert!(
            text.contains("slabinfo - version: 2.1\n"),
            "{backend}: {text}"
        );
        assert!(
            text.contains(
                "# name            <active_objs> <num_objs> <objsize> <objperslab> <pagesperslab>"
            ),
            "{backend}: {text}"
        );
        let cache = text
            .lines()
            .find(|line| !line.starts_with('#') && line.contains(" : tunables "))
            .unwrap_or_else(|| panic!("{backend}: no cache: {text}"));
        let (before, after) = cache.split_once(" : tunables ").expect("found above");
        let (tunables, slabdata) = after.split_once(" : slabdata ").expect("slabdata");
        assert_eq!(before.split_whitespace().count(), 6, "{cache}");
        for (part, count) in [(tunables, 3), (slabdata, 3)] {
            let numbers: Vec<u64> = part
                .split_whitespace()
                .map(|word| word.parse().expect("a number"))
                .collect();
            assert_eq!(numbers.len(), count, "{cache}");
        }
        let buddy = text
            .lines()
            .find(|line| line.starts_with("Node 0, zone"))
            .unwrap_or_else(|| panic!("{backend}: no buddyinfo: {text}"));
        assert!(
            buddy
                .split_whitespace()
                .skip(4)
                .all(|word| word.parse::<u64>().is_ok()),
            "{buddy}"
        );
        for needed in [
            "Page block order:",
            "Pages per block:",
            "Free pages count per migrate type at order",
            "Number of blocks type",
        ] {
            assert!(
                text.contains(needed),
                "{backend}: {needed:?} is missing: {text}"
            );
        }
        let summary: Vec<&str> = text
            .lines()
            .filter(|line| line.starts_with("slabmalloc: "))
            .collect();
        assert_eq!(summary.len(), 1, "{backend}: {text}");
        assert!(summary[0].contains(backend), "{}", summary[0]);
    }
}

/// `stats=json:PATH` writes one JSON object; `%p` is the process id.
#[test]
fn stats_as_json() {
    let sort = find_program("sort").expect("sort");
    let directory = fresh_dir("json");
    for backend in BACKENDS {
        let template = directory.join(format!("{backend}-%p.json"));
        Run::preloaded(
            &sort,
            &format!("backend={backend},stats=json:{}", template.display()),
        )
        .arg("/etc/passwd")
        .run()
        .expect_success(backend);
        let written: Vec<_> = fs::read_dir(&directory)
            .expect("the directory")
            .map(|entry| entry.expect("an entry").path())
            .filter(|path| path.to_string_lossy().contains(&format!("/{backend}-")))
            .collect();
        let [path] = &written[..] else {
            panic!("{backend}: {written:?}")
        };
        let value: serde_json::Value =
            serde_json::from_slice(&fs::read(path).expect("the report")).expect("JSON");
        assert_eq!(value["backend"], backend);
        let pid = value["pid"].as_u64().expect("a process id");
        assert_eq!(
            path.file_name().expect("a name").to_string_lossy(),
            format!("{backend}-{pid}.json")
        );
        assert!(
            value["mapped_bytes"].as_u64().expect("a number")
                >= value["in_use_bytes"].as_u64().expect("a number"),
            "{value}"
        );
        assert!(value["in_use_bytes"].as_u64() > Some(0), "{value}");
    }
    let outcome = with("stats=json:/no/such/directory/x");
    assert_eq!(outcome.stderr.lines().count(), 1, "{}", outcome.stderr);
    assert!(
        outcome.stderr.contains("/no/such/directory/x"),
        "{}",
        outcome.stderr
    );
}

/// The limit of `arena_max` gives ENOMEM, and no more memory than it says is taken.
#[test]
fn arena_max() {
    let python = find_program("python3");
    let Some(python) = python else {
        println!("skipped: python3 not installed");
        return;
    };
    for backend in BACKENDS {
        let conf = format!("backend={backend},arena_max=64M");
        let script = "a = bytearray(40 << 20)\ntry:\n    b = bytearray(40 << 20)\n    print('served')\nexcept MemoryError:\n    print('refused')\ndel a\nb = bytearray(40 << 20)\nprint('recovered')";
        let outcome = Run::preloaded(&python, &conf)
            .args(["-c", script])
            .run()
            .expect_success(&conf);
        assert_eq!(outcome.stdout_text(), "refused\nrecovered\n", "{conf}");
    }
}

/// A set-user-ID program takes no settings from its environment. (It is linked to the library by
/// path, as the loader drops LD_PRELOAD itself.)
#[test]
fn at_secure_ignores_the_environment() {
    let directory = tempfile::tempdir().expect("a directory");
    let library = directory.path().join("libslab_preload.so");
    fs::copy(common::library(), &library).expect("a copy of the library");
    let program = compile(
        "c/secure.c",
        &[
            library.to_str().expect("UTF-8"),
            &format!("-Wl,-rpath,{}", directory.path().display()),
        ],
    );
    let setuid = directory.path().join("secure");
    fs::copy(&program, &setuid).expect("a copy of the program");
    let run = |program: &std::path::Path| {
        Run::plain(program)
            .env("SLABMALLOC_CONF", "stats=exit,no_such_key=1")
            .run()
            .expect_success("secure.c")
    };
    let ordinary = run(&setuid);
    assert_eq!(ordinary.stdout_text(), "AT_SECURE 0\n");
    assert!(
        ordinary.stderr.contains("no_such_key") && ordinary.stderr.contains("slabinfo"),
        "{}",
        ordinary.stderr
    );
    let given_away = Command::new("sh")
        .args([
            "-c",
            "chmod 755 \"$1\" && chown 65534 \"$2\" && chmod 4755 \"$2\"",
            "sh",
        ])
        .args([directory.path(), &setuid])
        .output()
        .expect("sh");
    if !given_away.status.success() {
        println!("skipped: only root can make a set-user-ID program for another user");
        return;
    }
    let secure = run(&setuid);
    if secure.stdout_text() == "AT_SECURE 0\n" {
        println!(
            "skipped: set-user-ID has no effect in {}",
            directory.path().display()
        );
        return;
    }
    assert_eq!(secure.stdout_text(), "AT_SECURE 1\n");
    assert_eq!(secure.stderr, "");
}
