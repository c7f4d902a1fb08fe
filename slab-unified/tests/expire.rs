//! What lies idle in queues and depots goes back to the slabs by itself.

use std::ptr::NonNull;
use std::time::{Duration, Instant};

use slab_api::{CacheDesc, ObjectCache};
use slab_unified::Unified;

fn cache(name: &str) -> Unified {
    Unified::create(&CacheDesc::new(name, 64).no_merge()).expect("a cache")
}

/// Takes `count` objects and frees them.
fn use_cache(cache: Unified, count: usize) {
    let objects: Vec<NonNull<u8>> = (0..count).map(|_| cache.alloc().expect("memory")).collect();
    for p in objects {
        // SAFETY: an object of `cache` from above, freed once.
        unsafe { cache.free(p) };
    }
}

/// Goes through slow paths of `busy` until `done`, or for a long time.
fn pass_time(busy: Unified, done: impl Fn() -> bool) {
    let began = Instant::now();
    while !done() && began.elapsed() < Duration::from_secs(60) {
        use_cache(busy, 1000);
        std::thread::sleep(Duration::from_millis(1));
    }
}

// One test: the interval is the process's.
#[test]
fn idle_queues_and_depots_are_given_back_and_busy_ones_are_not() {
    slab_unified::set_expiry_interval(20);
    let (idle, busy) = (cache("idle"), cache("busy"));
    // Twice: a queue that misses grows, and only full-grown magazines go to the depot.
    use_cache(idle, 5000);
    use_cache(idle, 5000);
    let before = idle.info();
    assert!(before.queued > 122, "magazines and a depot: {before:?}");
    assert!(before.counter("depot_put") > Some(0), "{before:?}");

    pass_time(busy, || idle.info().queued == 0);
    let after = idle.info();
    assert_eq!(after.queued, 0, "{after:?}");
    assert_eq!(after.in_use, 0, "{after:?}");
    assert!(after.counter("expire") > Some(0), "{after:?}");
    assert!(after.counter("trim_depot") > Some(0), "{after:?}");
    assert!(
        busy.info().queued > 0,
        "a cache in use keeps its queue: {:?}",
        busy.info()
    );
    for cache in [idle, busy] {
        cache.validate().expect("valid");
        cache.destroy().expect("nothing in use");
    }
}
