//! What only this design does, and that nothing is lost.

use std::collections::HashSet;
use std::ptr::NonNull;
use std::sync::mpsc;

use slab_api::{CacheDesc, ObjectCache};
use slub::{Slub, Tunables, TuneError};

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

/// Tunes all numbers but those given.
fn tuned(cache: Slub, change: impl FnOnce(&mut Tunables)) {
    let mut tunables = cache.tunables();
    change(&mut tunables);
    cache.tune(tunables).expect("numbers in range");
}

fn counter(cache: Slub, name: &str) -> u64 {
    cache
        .info()
        .counter(name)
        .expect("a counter of this design")
}

#[test]
fn caches_of_one_shape_are_merged() {
    // A stride that no other test here has.
    let first = Slub::create(&CacheDesc::new("first", 1200)).expect("a cache");
    assert_eq!(counter(first, "merged"), 0);
    let second = Slub::create(&CacheDesc::new("second", 1190)).expect("a cache");
    assert_eq!(second.id(), first.id(), "1190 and 1200 bytes take 1200");
    assert_eq!(
        (counter(first, "merged"), counter(first, "aliases")),
        (1, 1)
    );
    let apart = |desc: CacheDesc<'_>| {
        let cache = Slub::create(&desc).expect("a cache");
        assert_ne!(cache.id(), first.id(), "{desc:?}");
        cache.destroy().expect("nothing in use");
    };
    unsafe fn construct(_: *mut u8) {}
    apart(CacheDesc::new("no merge", 1200).no_merge());
    apart(CacheDesc::new("constructed", 1200).constructor(construct));
    apart(CacheDesc::new("aligned", 1200).align(64));
    apart(CacheDesc::new("longer", 1201));
    apart(CacheDesc::new("type", 1200).migratetype(page_alloc::Migratetype::Movable));
    let shuffled = Slub::create_shuffled(&CacheDesc::new("shuffled", 1200)).expect("a cache");
    assert_ne!(shuffled.id(), first.id());
    shuffled.destroy().expect("nothing in use");
    // An object outlives the alias that it was taken by, and the first creator.
    let p = take(second);
    second.destroy().expect("the other stays");
    assert_eq!(counter(first, "aliases"), 0);
    assert_eq!(first.destroy(), Err(slab_api::DestroyError::Busy(1)));
    give(first, p);
    let id = first.id();
    first.destroy().expect("nothing in use");
    assert!(Slub::from_id(id).is_none());
}

#[test]
fn bulk_frees_take_one_exchange_a_run() {
    let cache = cache("bulk", 64);
    let mut objects = vec![std::ptr::null_mut(); 4096];
    assert_eq!(cache.alloc_bulk(&mut objects), 4096);
    cache.validate().expect("valid");
    let slabs = cache.info().slabs as u64;
    // SAFETY: taken above.
    unsafe { cache.free_bulk(&objects) };
    let runs = counter(cache, "bulk_free");
    assert!((1..=slabs).contains(&runs), "{runs} runs of {slabs} slabs");
    assert!(counter(cache, "free_slow") >= 1000);
    assert_eq!(cache.info().in_use, 0);
    cache.validate().expect("valid");
    // Alternating between two slabs, as two queues would be drained: still two runs.
    assert_eq!(cache.alloc_bulk(&mut objects), 4096);
    let (front, back) = (&objects[..64], &objects[2000..2064]);
    let mixed: Vec<*mut u8> = front.iter().zip(back).flat_map(|(a, b)| [*a, *b]).collect();
    let before = counter(cache, "bulk_free");
    // SAFETY: taken above.
    unsafe { cache.free_bulk(&mixed) };
    assert!(counter(cache, "bulk_free") - before <= 4);
    // SAFETY: the others of those taken.
    unsafe {
        cache.free_bulk(&objects[64..2000]);
        cache.free_bulk(&objects[2064..]);
    }
    cache.validate().expect("valid");
    cache.destroy().expect("nothing in use");
}

#[test]
fn slabs_grow_with_what_a_thread_uses() {
    let cache = cache("growth", 64);
    let order = |p: usize| {
        page_alloc::page_of(std::ptr::with_exposed_provenance(p))
            .expect("ours")
            .order()
    };
    let objects: Vec<usize> = (0..4000).map(|_| take(cache)).collect();
    assert_eq!(order(objects[0]), 0, "one page at first");
    let most = cache.tunables().order;
    assert_eq!(order(objects[3999]), most);
    let orders: Vec<u8> = objects.iter().map(|p| order(*p)).collect();
    assert!(orders.is_sorted(), "in between they double");
    // A thread that needs few has few pages.
    let few = std::thread::spawn(move || order(take(cache))).join();
    assert_eq!(few.expect("no thread fails"), 0);
    // Small slabs that a slot has outgrown go as soon as they are empty.
    for p in objects {
        give(cache, p);
    }
    let again: Vec<usize> = (0..4000).map(|_| take(cache)).collect();
    assert!(counter(cache, "outgrown") > 0, "{:?}", cache.info());
    for p in again {
        give(cache, p);
    }
    cache.validate().expect("valid");
}

#[test]
fn numbers_can_be_set_while_the_cache_runs() {
    let cache = cache("tuned", 512);
    let fill = |n| (0..n).map(|_| take(cache)).collect::<Vec<usize>>();
    let drop_all = |objects: Vec<usize>| objects.into_iter().for_each(|p| give(cache, p));
    tuned(cache, |t| t.order = 0);
    let objects = fill(400);
    assert_eq!(cache.info().slabs, 50, "pages of eight objects");
    // No partial list: each slab that a free finds full goes to the node.
    tuned(cache, |t| (t.cpu_partial, t.min_partial) = (0, 0));
    let before = counter(cache, "cpu_partial_drain");
    drop_all(objects);
    assert!(counter(cache, "cpu_partial_drain") - before >= 49);
    assert!(
        cache.info().slabs <= 2,
        "min_partial of 0 keeps no empty slab"
    );
    tuned(cache, |t| {
        (t.order, t.cpu_partial, t.min_partial) = (3, 800, 1000)
    });
    let objects = fill(400);
    let orders: std::collections::BTreeSet<u8> = objects
        .iter()
        .map(|p| {
            page_alloc::page_of(std::ptr::with_exposed_provenance(*p))
                .expect("ours")
                .order()
        })
        .collect();
    assert_eq!(orders.last(), Some(&3));
    let before = counter(cache, "cpu_partial_drain");
    drop_all(objects);
    assert_eq!(counter(cache, "cpu_partial_drain"), before, "all fit");
    let refused = cache.tune(Tunables {
        order: 6,
        ..cache.tunables()
    });
    assert_eq!(refused, Err(TuneError::Order));
    cache.validate().expect("valid");
    cache.destroy().expect("nothing in use");
}

#[test]
fn shuffled_slabs_hand_out_every_object_in_no_order() {
    let cache = Slub::create_shuffled(&CacheDesc::new("shuffled", 64).no_merge()).expect("a cache");
    let objects: Vec<usize> = (0..1000).map(|_| take(cache)).collect();
    let steps = objects.windows(2).filter(|w| w[1] == w[0] + 64).count();
    assert!(steps < 100, "{steps} of 999 objects follow their neighbour");
    let distinct: HashSet<usize> = objects.iter().copied().collect();
    assert_eq!(distinct.len(), 1000);
    for p in objects {
        give(cache, p);
    }
    cache.validate().expect("valid");
    cache.destroy().expect("nothing in use");
}

#[test]
fn validation_looks_at_cpu_slabs_too() {
    let cache = cache("checked", 64);
    let objects: Vec<usize> = (0..8).map(|_| take(cache)).collect();
    for p in &objects[..4] {
        give(cache, *p);
    }
    cache.validate().expect("valid");
    let spoilt: *mut u8 = std::ptr::with_exposed_provenance_mut(objects[1]);
    // SAFETY: mapped; writing to a free object is the misuse under test. Its content is
    // put back below.
    let kept: [u8; 64] = unsafe { spoilt.cast::<[u8; 64]>().read() };
    // SAFETY: as above.
    unsafe { spoilt.write_bytes(0, 64) };
    let found = cache
        .validate()
        .expect_err("a link of the CPU slab's list is gone");
    assert!(found.what.contains("freelist"), "{found}");
    // SAFETY: as above.
    unsafe { spoilt.cast::<[u8; 64]>().write(kept) };
    cache.validate().expect("valid again");
}
