//! Everything at once, against an oracle of addresses: threads, forks, signals, trims.
//!
//! 7 seconds a backend with 64 threads, or as many seconds as `SLAB_SOAK_SECONDS` says:
//!
//! ```text
//! SLAB_SOAK_SECONDS=600 cargo test -p slab-preload --test soak -- --nocapture
//! ```

mod common;

use common::{BACKENDS, Run, compile};

/// `c/soak.c` under a backend, with settings that make rare things common.
fn soak(backend: &str, conf: &str, threads: usize, share: u64) {
    let seconds: u64 = std::env::var("SLAB_SOAK_SECONDS").ok().map_or(7, |text| {
        text.parse()
            .expect("SLAB_SOAK_SECONDS is a number of seconds")
    });
    let seconds = (seconds / share).max(1);
    let outcome = Run::preloaded(
        compile("c/soak.c", &[]),
        &format!("backend={backend},{conf}"),
    )
    .args([seconds.to_string(), threads.to_string()])
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
        soak(backend, "", 64, 1);
    }
}

/// Memory goes back at every opportunity, with and without huge pages.
#[test]
fn while_memory_is_given_back() {
    for backend in BACKENDS {
        soak(backend, "purge=1,hugepage=on", 3, 4);
        soak(backend, "purge=1,hugepage=off", 3, 4);
    }
}

/// Memory runs out every now and then.
#[test]
fn while_memory_is_short() {
    for backend in BACKENDS {
        soak(backend, "arena_max=16M", 3, 4);
    }
}
