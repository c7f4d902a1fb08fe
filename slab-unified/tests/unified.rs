//! What only this design does, and that nothing is lost.

use std::collections::HashSet;
use std::ptr::NonNull;
use std::sync::mpsc;

use slab_api::{CacheDesc, ObjectCache};
use slab_unified::Unified;

fn cache(name: &str, size: usize) -> Unified {
    Unified::create(&CacheDesc::new(name, size).no_merge()).expect("a cache")
}

fn take(cache: Unified) -> usize {
    cache.alloc().expect("memory").as_ptr() as usize
}

fn give(cache: Unified, p: usize) {
    let p = NonNull::new(std::ptr::with_exposed_provenance_mut(p)).expect("not null");
    // SAFETY: callers pass objects of `cache` that they own.
    unsafe { cache.free(p) };
}

#[test]
fn one_way_traffic_trades_magazines_through_the_depot() {
    let cache = cache("one-way", 64);
    let (send, receive) = mpsc::sync_channel::<Vec<usize>>(4);
    std::thread::scope(|s| {
        let freeing = s.spawn(move || {
            for batch in receive {
                for p in batch {
                    give(cache, p);
                }
            }
        });
        for _ in 0..2000 {
            send.send((0..64).map(|_| take(cache)).collect())
                .expect("the receiver lives");
        }
        drop(send);
        // The scope's own end does not wait for the thread's exit hooks.
        freeing.join().expect("no thread fails");
    });
    let info = cache.info();
    let counter = |name| info.counter(name).expect("a counter of this design");
    assert!(
        counter("depot_put") > 100,
        "full magazines left by the freeing thread: {info:?}"
    );
    assert!(
        counter("depot_get") > 100,
        "and taken by the allocating one: {info:?}"
    );
    assert!(
        counter("grow_queue") > 0,
        "queues grew because they missed: {info:?}"
    );
    assert_eq!(info.in_use, 0);
    cache.validate().expect("valid");
    cache.destroy().expect("nothing in use");
}

#[test]
fn a_lone_pair_needs_one_small_magazine() {
    let cache = cache("pair", 256);
    for _ in 0..100_000 {
        give(cache, take(cache));
    }
    let info = cache.info();
    assert_eq!(info.counter("refill"), Some(1));
    assert_eq!(
        info.counter("grow_queue"),
        Some(0),
        "queues stay small without misses"
    );
    assert!(info.queued <= 5, "{} objects trapped", info.queued);
    cache.destroy().expect("nothing in use");
}

#[test]
fn a_refill_takes_neighbours_in_address_order() {
    let cache = cache("order", 128);
    let mut objects: Vec<usize> = (0..32).map(|_| take(cache)).collect();
    // A page of 32 objects, which each thread begins at a quarter of its own.
    let first = objects.iter().min().copied().expect("32 objects");
    assert_eq!((objects[0] - first) % 1024, 0, "{objects:x?}");
    let begun = (objects[0] - first) / 128;
    objects.rotate_right(begun);
    let neighbours: Vec<usize> = (0..32).map(|i| first + i * 128).collect();
    assert_eq!(objects, neighbours, "begun at {begun}");
    for p in objects {
        give(cache, p);
    }
    cache.destroy().expect("nothing in use");
}

#[test]
fn a_refill_is_not_content_with_the_rest_of_a_slab() {
    // Of 64 objects of a slab, a magazine of 61 leaves three.
    let cache = cache("rests", 64);
    let objects: Vec<usize> = (0..64_000).map(|_| take(cache)).collect();
    let refills = cache.info().counter("refill").expect("a counter");
    assert!(refills < 64_000 / 50, "{refills} refills of 64,000 objects");
    objects.into_iter().for_each(|p| give(cache, p));
    cache.validate().expect("valid");
    cache.destroy().expect("nothing in use");
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
    let (magazine, _, depot) = info.tunables;
    assert!(
        info.queued <= magazine * depot,
        "only the depot's: {info:?}"
    );
    assert!(info.slabs <= 16, "{} slabs kept", info.slabs);
    cache.shrink();
    let info = cache.info();
    assert_eq!(info.queued, 0, "and trimming gives all to the slabs");
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
    let cache = Unified::create(&desc).expect("a cache");
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
