//! Two simulated nodes: remote frees of the historical design go home by way of the alien
//! queues. A binary of its own, as a topology can be given once only.

use std::ptr::NonNull;

use page_alloc::{page_of, topology};
use slab_api::{CacheDesc, ObjectCache};
use slab_unified::v4::UnifiedV4;

/// Runs `f` in a thread on a CPU; false when the process may not run there.
fn on_cpu(cpu: usize, f: impl FnOnce() + Send) -> bool {
    std::thread::scope(|scope| {
        let thread = scope.spawn(move || {
            // SAFETY: a plain set of CPUs on the stack.
            let moved = unsafe {
                let mut set: libc::cpu_set_t = std::mem::zeroed();
                libc::CPU_SET(cpu, &mut set);
                libc::sched_setaffinity(0, size_of_val(&set), &raw const set) == 0
            };
            if moved {
                f();
            }
            moved
        });
        thread.join().expect("the thread ends well")
    })
}

#[test]
fn remote_frees_pass_alien_queues() {
    topology::simulate(&[0, 1]).expect("before the first allocation");
    let cache = UnifiedV4::create(&CacheDesc::new("v4-numa", 128)).expect("a cache");
    let mut objects = Vec::new();
    let mut node = 0;
    assert!(on_cpu(0, || {
        node = topology::current_node();
        objects.extend((0..1000).map(|_| {
            let p = cache.alloc().expect("memory");
            p.as_ptr().expose_provenance()
        }));
    }));
    for p in &objects {
        let page = page_of(std::ptr::with_exposed_provenance(*p)).expect("an arena's");
        assert_eq!(page.node(), node, "objects of the thread's own node");
    }
    let count = |name| cache.info().counter(name).expect("a counter");
    assert_eq!((count("alien_free"), count("alien_drain")), (0, 0));
    let free = |list: Vec<usize>| {
        for p in list {
            let p = NonNull::new(std::ptr::with_exposed_provenance_mut(p)).expect("not null");
            // SAFETY: an object in use, once.
            unsafe { cache.free(p) };
        }
    };
    let local = objects.split_off(900);
    let shared = count("shared_flush");
    if !on_cpu(1, || free(objects.clone())) {
        eprintln!("one CPU only: remote frees are not tested");
        free(objects);
        free(local);
        return;
    }
    assert_eq!(count("alien_free"), 900);
    // A batch of sixty at a time; what is left waits for more, or for expiry.
    assert_eq!(count("alien_drain"), 899 / 60);
    assert_eq!(count("shared_flush"), shared, "aliens bypass shared queues");
    let info = cache.info();
    assert_eq!(info.in_use, 100);
    assert!(info.queued >= 60, "{info:?}");
    cache.validate().expect("valid");
    assert!(on_cpu(0, || {
        free(local);
        // Local frees go to the queue: none is alien.
        assert_eq!(count("alien_free"), 900);
    }));
    cache.shrink();
    assert_eq!(cache.info().queued, 0, "trim empties the alien queues");
    cache.validate().expect("valid");
    assert_eq!(cache.info().in_use, 0);
    cache.destroy().expect("nothing in use");
}
