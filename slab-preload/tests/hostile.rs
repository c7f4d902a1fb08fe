//! Moments at which few programs allocate and some do: while the program is relocated, after its
//! end, on the smallest stacks, in processes that share memory; and systems that refuse.

mod common;

use std::fs;
use std::path::Path;

use common::{BACKENDS, Outcome, Run, compile, fresh_dir};

/// Runs `program` without a preload, for the program's own sake, and under each backend. A program
/// that exits with 77 is not applicable on this machine.
fn passes(program: &Path, args: &[&str]) -> bool {
    let plain = Run::plain(program).args(args).run();
    if plain.status.code() == Some(77) {
        println!(
            "skipped: {} {args:?} is not applicable here",
            program.display()
        );
        return false;
    }
    plain.expect_success(&format!("{args:?} without a preload"));
    for backend in BACKENDS {
        Run::under(program, Some(backend))
            .args(args)
            .run()
            .expect_success(&format!("{args:?}, {backend}"));
    }
    true
}

/// In an ifunc's resolver, before constructors, after destructors.
#[test]
fn before_the_start_and_after_the_end() {
    for flags in [&[][..], &["-Wl,-z,now"]] {
        let program = compile("c/early.c", flags);
        for backend in BACKENDS {
            // The backend is still the one that was asked for, although the first call came
            // before the environment could be read.
            let json = fresh_dir("early").join("stats");
            let outcome = Run::preloaded(
                &program,
                &format!("backend={backend},stats=json:{}", json.display()),
            )
            .run()
            .expect_success(backend);
            assert_eq!(outcome.stdout_text(), "all moments\n", "{backend}");
            assert_eq!(report(&json)["backend"], backend);
        }
    }
}

/// vfork, posix_spawn, popen and system while threads allocate.
#[test]
fn processes_started_without_fork() {
    passes(&compile("c/spawn.c", &[]), &[]);
}

/// A child that shares memory and thread-local storage with its waiting parent.
#[test]
fn children_of_clone_vm() {
    passes(&compile("c/clone_vm.c", &[]), &[]);
}

/// Slow paths on a stack of 16 KiB.
#[test]
fn tiny_stacks() {
    passes(&compile("c/tiny_stacks.c", &[]), &[]);
}

/// A static program has its own malloc: the library is not loaded and nothing changes.
#[test]
fn static_programs_are_untouched() {
    let program = compile("c/clone_vm.c", &["-static"]);
    let outcome = Run::preloaded(&program, "backend=slub,stats=exit")
        .run()
        .expect_success("a static program");
    assert!(outcome.mapped.is_empty(), "{:?}", outcome.mapped);
    assert_eq!(outcome.stderr, "");
}

fn report(path: &Path) -> serde_json::Value {
    serde_json::from_slice(&fs::read(path).expect("the report")).expect("JSON")
}

/// Runs `program` under a backend and returns what the library counted.
fn counted(program: &Path, args: &[&str], backend: &str) -> (Outcome, serde_json::Value) {
    let json = fresh_dir("counted").join("stats");
    let conf = format!("backend={backend},stats=json:{}", json.display());
    let outcome = Run::preloaded(program, &conf)
        .args(args)
        .run()
        .expect_success(&format!("{args:?}, {backend}"));
    (outcome, report(&json))
}

/// One system call refused by a seccomp filter. What the library falls back from is counted,
/// and without the filter it is not.
#[test]
fn in_sandboxes() {
    let program = compile("c/deny.c", &[]);
    for call in [
        "madvise",
        "mremap",
        "getrandom",
        "prctl",
        "sched_getaffinity",
        "getcpu",
    ] {
        if !passes(&program, &[call]) {
            continue;
        }
        let refusals = match call {
            "madvise" => "advise",
            "mremap" => "remap",
            // The library does without: that the programs above ran is all there is to see.
            _ => continue,
        };
        for backend in BACKENDS {
            let (_, refused) = counted(&program, &[call], backend);
            let (_, free) = counted(&program, &[call, "unconfined"], backend);
            assert!(
                refused["refusals"][refusals].as_u64() > Some(0),
                "{backend}: {call} was refused, and no fall-back is counted: {}",
                refused["refusals"]
            );
            assert_eq!(free["refusals"][refusals], 0, "{backend}: {call}");
            if call == "mremap" {
                assert!(refused["realloc"]["copied"].as_u64() > Some(0), "{backend}");
                assert!(free["realloc"]["moved"].as_u64() > Some(0), "{backend}");
                assert_eq!(refused["realloc"]["moved"], 0, "{backend}");
            }
        }
    }
}

/// Neither /proc nor /sys: a bare container.
#[test]
fn without_proc() {
    let program = compile("c/no_proc.c", &[]);
    if passes(&program, &[]) {
        for backend in BACKENDS {
            let outcome = Run::under(&program, Some(backend))
                .run()
                .expect_success(backend);
            assert_eq!(outcome.stdout_text(), "served without /proc\n", "{backend}");
        }
    }
}

/// Locked memory cannot be given back: the refusals are counted, nothing that is only reserved is
/// populated, and calloc is zero all the same.
#[test]
fn under_mlockall() {
    let program = compile("c/mlockall.c", &[]);
    if passes(&program, &[]) {
        for backend in BACKENDS {
            let (_, counted) = counted(&program, &[], backend);
            assert!(
                counted["refusals"]["advise"].as_u64() > Some(0),
                "{backend}: {}",
                counted["refusals"]
            );
        }
    }
}

/// Memory runs out by either limit, for blocks of ten sizes in a row.
#[test]
fn limits_are_met_and_left_again() {
    let program = compile("c/limits.c", &[]);
    for kind in ["as", "data"] {
        for backend in BACKENDS {
            let (outcome, counted) = counted(&program, &[kind], backend);
            println!("{backend}, {kind}:\n{}", outcome.stderr);
            let refusals = &counted["refusals"];
            let refused = [&refusals["reserve"], &refusals["commit"]]
                .map(|count| count.as_u64().expect("a count"));
            assert!(refused[0] + refused[1] > 0, "{backend}, {kind}: {refusals}");
        }
    }
}

/// No mapping is left to be had.
#[test]
fn with_a_full_map_count() {
    passes(&compile("c/map_count.c", &[]), &[]);
}

/// Contents, zeroes, alignment, honest sizes, and memory that stays untouched.
#[test]
fn semantics() {
    let program = compile("c/semantics.c", &[]);
    for backend in BACKENDS {
        for (conf, arg) in [("hugepage=auto", None), ("hugepage=off", Some("small"))] {
            Run::preloaded(&program, &format!("backend={backend},{conf}"))
                .args(arg)
                .run()
                .expect_success(&format!("{backend}, {conf}"));
        }
    }
}
