//! Node-local slabs, frees to another node, and slabs taken from one, on a simulated
//! machine.

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
    let counter = |name| cache.info().counter(name).expect("a counter");
    assert!(counter("free_slow") > 0, "{info:?}");
    assert!(counter("remote_node_free") > 0, "{info:?}");
    assert_eq!(counter("remote_node_get"), 0, "{info:?}");
    assert_eq!(info.in_use, 0);

    // Node 0 has many partly used slabs; node 1 takes of them as the ratio says.
    let give = move |objects: Vec<usize>| {
        for p in objects {
            let p = NonNull::new(std::ptr::with_exposed_provenance_mut(p)).expect("not null");
            // SAFETY: taken below, each freed once.
            unsafe { cache.free(p) };
        }
        Vec::new()
    };
    let zero = on(0, Box::new(take));
    let (kept, spare): (Vec<_>, Vec<_>) = zero.iter().enumerate().partition(|(n, _)| n % 2 == 0);
    let kept: Vec<usize> = kept.into_iter().map(|(_, p)| *p).collect();
    let spare: Vec<usize> = spare.into_iter().map(|(_, p)| *p).collect();
    on(1, Box::new(move || give(spare)));
    let tune = |ratio| {
        let tunables = slub::Tunables {
            remote_node_defrag_ratio: ratio,
            ..cache.tunables()
        };
        cache.tune(tunables).expect("a percentage");
    };
    tune(0);
    let one = on(1, Box::new(take));
    assert_eq!(counter("remote_node_get"), 0);
    assert!(one.iter().all(|p| node(p) == 1));
    tune(100);
    let more = on(1, Box::new(take));
    assert!(counter("remote_node_get") > 0, "{:?}", cache.info());
    assert!(more.iter().any(|p| node(p) == 0));
    cache.validate().expect("valid");
    on(1, Box::new(move || give([kept, one, more].concat())));
    assert_eq!(cache.info().in_use, 0);
    cache.validate().expect("valid");
    cache.destroy().expect("nothing in use");
}
