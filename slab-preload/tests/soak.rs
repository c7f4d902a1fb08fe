//! Everything at once, against an oracle of addresses: threads, forks, signals, trims.
//!
//! 5 seconds a backend, or as many as `SLAB_SOAK_SECONDS` says:
//!
//! ```text
//! SLAB_SOAK_SECONDS=600 cargo test -p slab-preload --test soak -- --nocapture
//! ```

mod common;

use common::{BACKENDS, Run, compile};

/// `c/soak.c` under a backend, with settings that make rare things common.
fn soak(backend: &str, conf: &str, share: u64) {
    let seconds: u64 = std::env::var("SLAB_SOAK_SECONDS").ok().map_or(5, |text| {
        text.parse()
            .expect("SLAB_SOAK_SECONDS is a number of seconds")
    });
    let seconds = (seconds / share).max(1);
    let outcome = Run::preloaded(
        compile("c/soak.c", &[]),
        &format!("backend={backend},{conf}"),
    )
    .arg(seconds.to_string())
    .args(conf.contains("arena_max").then_some("short"))
    .limit(seconds * 2 + 120)
    .run()
    .expect_success(&format!("{backend} {conf}"));
    assert_eq!(outcome.stderr, "", "{backend} {conf}");
    print!("{backend} {conf} {seconds} s: {}", outcome.stdout_text());
}

#[test]
fn threads_forks_and_signals() {
    for backend in BACKENDS {
        soak(backend, "", 1);
    }
}

/// Memory goes back at every opportunity, with and without huge pages.
#[test]
fn while_memory_is_given_back() {
    for backend in BACKENDS {
        soak(backend, "purge=1,hugepage=on", 4);
        soak(backend, "purge=1,hugepage=off", 4);
    }
}

/// Memory runs out every now and then.
#[test]
fn while_memory_is_short() {
    for backend in BACKENDS {
        soak(backend, "arena_max=16M", 4);
    }
}
