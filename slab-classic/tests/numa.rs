//! Two simulated nodes: remote frees go home by way of the alien arrays. A binary of
//! its own, as a topology can be given once only, before the first allocation.

use std::ptr::NonNull;

use page_alloc::{page_of, topology};
use slab_api::{CacheDesc, ObjectCache};
use slab_classic::Classic;

/// Runs `f` in a thread on a CPU; false when the process may not run there.
fn on_cpu(cpu: usize, f: impl FnOnce() + Send) -> bool {
    std::thread::scope(|scope| {
        scope
            .spawn(move || {
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
            })
            .join()
            .unwrap()
    })
}

#[test]
fn remote_frees_pass_alien_arrays() {
    topology::simulate(&[0, 1]).unwrap();
    let cache = Classic::create(&CacheDesc::new("numa", 128)).unwrap();
    let mut objects = Vec::new();
    let mut node = 0;
    let near = on_cpu(0, || {
        node = topology::current_node();
        for _ in 0..1000 {
            objects.push(cache.alloc().unwrap().as_ptr() as usize);
        }
    });
    assert!(near);
    for p in &objects {
        let page = page_of(std::ptr::with_exposed_provenance(*p)).unwrap();
        assert_eq!(page.node(), node, "objects of the thread's own node");
    }
    let aliens = |name| cache.info().counter(name).unwrap();
    assert_eq!((aliens("alien_free"), aliens("alien_drain")), (0, 0));
    let free = |list: Vec<usize>| {
        for p in list {
            let p = NonNull::new(std::ptr::with_exposed_provenance_mut(p)).unwrap();
            // SAFETY: an object in use, once.
            unsafe { cache.free(p) };
        }
    };
    let local = objects.split_off(900);
    if !on_cpu(1, || free(objects.clone())) {
        eprintln!("one CPU only: remote frees are not tested");
        free(objects);
        return;
    }
    assert_eq!(aliens("alien_free"), 900);
    // Twelve at a time; what is left waits for more, or for a reap.
    assert_eq!(aliens("alien_drain"), 899 / 12);
    let info = cache.info();
    assert_eq!(info.in_use, 100);
    assert!(
        info.queued >= 480,
        "what came home filled the shared array first"
    );
    cache.validate().unwrap();
    assert!(on_cpu(0, || {
        free(local);
        // Local frees go to the array: none is alien.
        assert_eq!(aliens("alien_free"), 900);
        // The shared array has what came home.
        let before = aliens("shared_refill");
        let again: Vec<_> = (0..400)
            .map(|_| cache.alloc().unwrap().as_ptr() as usize)
            .collect();
        assert!(aliens("shared_refill") > before);
        free(again);
    }));
    cache.validate().unwrap();
    assert_eq!(cache.info().in_use, 0);
    cache.destroy().unwrap();
}
