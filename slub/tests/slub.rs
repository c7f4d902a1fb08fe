//! What only this design does, and that nothing is lost.

use std::collections::HashSet;
use std::ptr::NonNull;
use std::sync::mpsc;

use slab_api::{CacheDesc, ObjectCache};
use slub::Slub;

fn cache(name: &str, size: usize) -> Slub {
    Slub::create(&CacheDesc::new(name, size).no_merge()).expect("a cache")
}

fn take(cache: Slub) -> usize {
    cache.alloc().expect("memory").as_ptr() as usize
}

fn give(cache: Slub, p: usize) {
    let p = NonNull::new(std::ptr::with_exposed_provenance_mut(p)).expect("not null");
    // SAFETY: callers pass objects of `cache` that they own.
    unsafe { cache.free(p) };
}

#[test]
fn frees_by_another_thread_go_through_the_slabs_word() {
    let cache = cache("one-way", 64);
    let (send, receive) = mpsc::sync_channel::<Vec<usize>>(64);
    std::thread::scope(|s| {
        let freeing = s.spawn(move || {
            for batch in receive {
                for p in batch {
                    give(cache, p);
                }
            }
        });
        for _ in 0..4000 {
            send.send((0..64).map(|_| take(cache)).collect())
                .expect("the receiver lives");
        }
        drop(send);
        // The scope's own end does not wait for the thread's exit hooks.
        freeing.join().expect("no thread fails");
    });
    let info = cache.info();
    let counter = |name| info.counter(name).expect("a counter of this design");
    assert!(counter("free_slow") > 100_000, "{info:?}");
    assert!(
        counter("deactivate_cpu_slab") > 0,
        "CPU slabs filled up: {info:?}"
    );
    assert!(
        counter("cpu_partial_free") > 0,
        "full slabs froze for the freeing thread: {info:?}"
    );
    assert_eq!(info.in_use, 0);
    cache.validate().expect("valid");
    cache.destroy().expect("nothing in use");
}

#[test]
fn a_lone_pair_stays_on_the_cpu_slab() {
    let cache = cache("pair", 256);
    for _ in 0..100_000 {
        give(cache, take(cache));
    }
    let info = cache.info();
    assert_eq!(
        (info.slabs, info.counter("free_slow")),
        (1, Some(0)),
        "{info:?}"
    );
    cache.destroy().expect("nothing in use");
}

#[test]
fn an_overwritten_free_object_is_noticed() {
    let cache = cache("spoilt", 64);
    let objects: Vec<usize> = (0..8).map(|_| take(cache)).collect();
    for p in &objects {
        give(cache, *p);
    }
    let last: *mut u8 = std::ptr::with_exposed_provenance_mut(objects[7]);
    // SAFETY: the memory is mapped; writing to it is the misuse under test.
    unsafe { last.write_bytes(0x41, 64) };
    slab_api::misuse::set_on_error(slab_api::misuse::OnError::Ignore);
    let before = slab_api::misuse::detected();
    let again: HashSet<usize> = (0..200).map(|_| take(cache)).collect();
    slab_api::misuse::set_on_error(slab_api::misuse::OnError::Abort);
    assert!(
        slab_api::misuse::detected() > before,
        "an overwritten link goes unnoticed"
    );
    assert_eq!(again.len(), 200, "and nothing is handed out twice");
}

#[test]
fn objects_of_threads_that_ended_are_not_lost() {
    let cache = cache("churn", 96);
    for round in 0..200 {
        std::thread::spawn(move || {
            let objects: Vec<usize> = (0..round).map(|_| take(cache)).collect();
            for p in objects {
                give(cache, p);
            }
        })
        .join()
        .expect("the thread ends well");
    }
    let info = cache.info();
    assert_eq!(info.in_use, 0);
    assert_eq!(info.queued, 0, "thread exit gives its slabs to the node");
    assert!(info.slabs <= 16, "{} slabs kept", info.slabs);
    cache.destroy().expect("nothing in use");
}

#[test]
fn every_object_is_accounted_for_after_cross_thread_traffic() {
    const THREADS: usize = 4;
    let cache = cache("traffic", 48);
    let (senders, receivers): (Vec<_>, Vec<_>) =
        (0..THREADS).map(|_| mpsc::channel::<Vec<usize>>()).unzip();
    let kept: Vec<usize> = std::thread::scope(|s| {
        let threads: Vec<_> = receivers
            .into_iter()
            .enumerate()
            .map(|(me, receiver)| {
                let senders = senders.clone();
                s.spawn(move || {
                    let mut seed = me as u64 + 1;
                    let mut mine = Vec::new();
                    for _ in 0..3000 {
                        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1);
                        mine.extend((0..seed >> 33 & 31).map(|_| take(cache)));
                        let at = (seed >> 40) as usize % (mine.len() + 1);
                        let batch = mine.split_off(at);
                        let _ = senders[(seed >> 50) as usize % THREADS].send(batch);
                        for p in receiver.try_iter().flatten() {
                            give(cache, p);
                        }
                    }
                    drop(senders);
                    (mine, receiver)
                })
            })
            .collect();
        drop(senders);
        threads
            .into_iter()
            .flat_map(|t| {
                let (mut mine, receiver) = t.join().expect("no thread fails");
                mine.extend(receiver.iter().flatten());
                mine
            })
            .collect()
    });
    let distinct: HashSet<usize> = kept.iter().copied().collect();
    assert_eq!(distinct.len(), kept.len(), "an object was handed out twice");
    assert_eq!(cache.info().in_use, kept.len());
    assert_eq!(
        cache.destroy(),
        Err(slab_api::DestroyError::Busy(kept.len()))
    );
    for p in kept {
        give(cache, p);
    }
    cache.validate().expect("valid");
    assert_eq!(cache.info().in_use, 0);
    assert!(cache.shrink() > 0);
    assert_eq!(cache.info().slabs, 0, "shrink gives every empty slab back");
    cache.destroy().expect("nothing in use");
}

#[test]
fn constructed_objects_stay_constructed() {
    unsafe fn construct(p: *mut u8) {
        // SAFETY: `p` is a fresh object of 80 bytes.
        unsafe { p.write_bytes(0x5c, 80) };
    }
    let desc = CacheDesc::new("constructed", 80).constructor(construct);
    let cache = Slub::create(&desc).expect("a cache");
    for _ in 0..3 {
        let objects: Vec<usize> = (0..500).map(|_| take(cache)).collect();
        for p in &objects {
            let p: *const u8 = std::ptr::with_exposed_provenance(*p);
            // SAFETY: an object of 80 bytes that we hold.
            assert!((0..80).all(|i| unsafe { p.add(i).read() } == 0x5c));
        }
        for p in objects {
            give(cache, p);
        }
    }
    cache.destroy().expect("nothing in use");
}
