//! Node-local slabs and frees to another node, on a simulated machine.

use std::ptr::NonNull;

use slab_api::{CacheDesc, ObjectCache};
use slub::Slub;

/// Runs on one CPU.
fn pin(cpu: usize) {
    // SAFETY: the set is a plain bit array, valid when zeroed.
    let done = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, size_of_val(&set), &raw const set)
    };
    assert_eq!(done, 0, "this test needs two CPUs");
}

#[test]
fn frees_of_another_nodes_objects_go_home() {
    page_alloc::topology::simulate(&[0, 1]).expect("before the first allocation");
    let cache = Slub::create(&CacheDesc::new("numa", 512)).expect("a cache");
    let on = |cpu: usize, work: Box<dyn FnOnce() -> Vec<usize> + Send>| {
        std::thread::spawn(move || {
            pin(cpu);
            work()
        })
        .join()
        .expect("the thread ends well")
    };
    let take = move || -> Vec<usize> {
        (0..1000)
            .map(|_| cache.alloc().expect("memory").as_ptr() as usize)
            .collect()
    };
    let node = |p: &usize| {
        page_alloc::page_of(std::ptr::with_exposed_provenance(*p))
            .expect("ours")
            .node()
    };
    let zero = on(0, Box::new(take));
    let one = on(1, Box::new(take));
    assert!(
        zero.iter().all(|p| node(p) == 0),
        "slabs are the allocating CPU's node's"
    );
    assert!(one.iter().all(|p| node(p) == 1));
    on(
        1,
        Box::new(move || {
            for p in zero.into_iter().chain(one) {
                let p = NonNull::new(std::ptr::with_exposed_provenance_mut(p)).expect("not null");
                // SAFETY: taken above, each freed once.
                unsafe { cache.free(p) };
            }
            Vec::new()
        }),
    );
    let info = cache.info();
    assert!(
        info.counter("free_slow").expect("a counter") > 0,
        "{info:?}"
    );
    assert_eq!(info.in_use, 0);
    cache.validate().expect("valid");
    cache.destroy().expect("nothing in use");
}
