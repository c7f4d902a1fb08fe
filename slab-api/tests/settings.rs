//! The settings of a process: read once, put in force, said when asked. Each check runs
//! `child` in a process of its own.

use std::ffi::CStr;
use std::process::{Command, Output};

use slab_api::config::{Stats, settings};
use slab_api::misuse::{self, OnError};

fn run(conf: Option<&str>) -> Output {
    let mut command = Command::new(std::env::current_exe().expect("this test"));
    command
        .args(["--exact", "child", "--nocapture", "--test-threads=1"])
        .env("SLAB_SETTINGS_CHILD", "1")
        .env_remove("SLABMALLOC_CONF");
    if let Some(conf) = conf {
        command.env("SLABMALLOC_CONF", conf);
    }
    let output = command.output().expect("the child runs");
    assert!(output.status.success(), "{conf:?}: {output:?}");
    output
}

fn stderr(conf: &str) -> String {
    String::from_utf8(run(Some(conf)).stderr).expect("UTF-8")
}

/// Overwrites the environment's own memory, as programs that set their title do.
fn spoil_environment() {
    unsafe extern "C" {
        static mut environ: *const *mut libc::c_char;
    }
    // SAFETY: the only thread of this process reads no variable afterwards; each string
    // is written within its length.
    unsafe {
        let mut at = environ;
        while !(*at).is_null() {
            let length = CStr::from_ptr(*at).to_bytes().len();
            (*at).write_bytes(b'!', length);
            at = at.add(1);
        }
    }
}

#[test]
fn child() {
    if std::env::var_os("SLAB_SETTINGS_CHILD").is_none() {
        return;
    }
    misuse::set_on_error(OnError::Ignore);
    // All threads see the same settings, already in force.
    let all: Vec<usize> = std::thread::scope(|s| {
        let threads: Vec<_> = (0..8)
            .map(|_| {
                s.spawn(|| {
                    let settings = settings();
                    if let Some(bytes) = settings.arena_max {
                        assert_eq!(page_alloc::config::arena_max(), bytes);
                    }
                    std::ptr::from_ref(settings) as usize
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().expect("a thread"))
            .collect()
    });
    assert!(
        all.iter().all(|at| *at == all[0]),
        "one copy of the settings"
    );
    spoil_environment();
    if let Stats::Json(path) = settings().stats {
        println!("path={}", String::from_utf8_lossy(path));
    }
    println!("purge={:?}", page_alloc::config::purge_ms());
    println!("huge={:?}", page_alloc::config::huge_from());
}

#[test]
fn what_is_given_is_put_in_force() {
    let output = run(Some(
        "purge=77,hugepage=off,arena_max=1G,stats=json:/tmp/%p.json",
    ));
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    for line in ["path=/tmp/%p.json", "purge=Some(77)", "huge=None"] {
        assert!(text.contains(line), "{line} is missing: {text}");
    }
    assert!(output.stderr.is_empty(), "{:?}", output.stderr);
    let defaults = String::from_utf8(run(None).stdout).expect("UTF-8");
    assert!(defaults.contains("purge=Some(500)"), "{defaults}");
    assert!(defaults.contains("huge=Some(8388608)"), "{defaults}");
}

#[test]
fn each_problem_is_one_line() {
    assert_eq!(
        stderr("backed=slub,purge=of,percpu=rsec,on_error=report"),
        "slabmalloc: SLABMALLOC_CONF: unknown key 'backed'; nearest valid: backend\n\
         slabmalloc: SLABMALLOC_CONF: purge: unknown value 'of'; nearest valid: off\n\
         slabmalloc: SLABMALLOC_CONF: percpu: unknown value 'rsec'; nearest valid: rseq\n"
    );
    assert_eq!(stderr("").lines().count(), 0);
}

#[test]
fn a_text_that_is_too_long_is_cut_at_a_comma() {
    let conf = format!("purge=9,stats=json:/{},verbose=1", "p".repeat(6000));
    let text = stderr(&conf);
    assert_eq!(text.lines().count(), 1, "{text}");
    assert!(text.contains("only the pairs in the first"), "{text}");
}

#[test]
fn verbose_says_where_each_setting_came_from() {
    let text = stderr("verbose=1,backend=slab,on_error=ignore,purge=off");
    for line in [
        "slabmalloc: backend=slab (from SLABMALLOC_CONF)",
        "slabmalloc: stats=none (default)",
        "slabmalloc: verbose=1 (from SLABMALLOC_CONF)",
        "slabmalloc: percpu=auto (default)",
        "slabmalloc: hugepage=auto (default)",
        "slabmalloc: purge=off (from SLABMALLOC_CONF)",
        "slabmalloc: arena_max=none (default)",
        "slabmalloc: on_error=ignore (from SLABMALLOC_CONF)",
        "slabmalloc: secure=0 (default)",
        "slabmalloc: debug=none (default)",
        "slabmalloc: leaks=none (default)",
    ] {
        assert!(text.lines().any(|l| l == line), "{line} is missing: {text}");
    }
}
