//! Typed caches: values are dropped once, constructed objects keep their state, and the
//! slabs go back with the cache.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use slab_api::{Cache, CacheError, registry};
use slab_unified::Unified;

/// Counts its drops.
#[derive(Debug)]
struct Counted<'a>(&'a AtomicUsize, u64);

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_add(1, Relaxed);
    }
}

fn exists(name: &str) -> bool {
    let mut found = false;
    registry::for_each(|head| found |= head.name() == name);
    found
}

#[test]
fn values_are_dropped_once() {
    let drops = AtomicUsize::new(0);
    let cache = Cache::<Counted<'_>, Unified>::new("typed-drop").expect("a cache");
    let mut held: Vec<_> = (0..1000)
        .map(|n| cache.alloc(Counted(&drops, n)).expect("memory"))
        .collect();
    assert_eq!(cache.info().in_use, 1000);
    assert!(held.iter().map(|object| object.1).eq(0..1000));
    held[3].1 = 77;
    assert_eq!(held[3].1, 77);
    held.truncate(400);
    assert_eq!((drops.load(Relaxed), cache.info().in_use), (600, 400));
    assert!(cache.take().is_none(), "nothing is constructed here");
    drop(held);
    assert_eq!((drops.load(Relaxed), cache.info().in_use), (1000, 0));
}

#[test]
fn constructed_objects_keep_their_state() {
    static MADE: AtomicUsize = AtomicUsize::new(0);
    let cache = Cache::<[u64; 6], Unified>::with_constructor("typed-constructed", || {
        MADE.fetch_add(1, Relaxed);
        [42; 6]
    })
    .expect("a cache");
    for round in 0..50 {
        let mut held: Vec<_> = (0..100).map(|_| cache.take().expect("memory")).collect();
        for object in &mut held {
            assert_eq!(**object, [42; 6], "round {round}");
            object[0] = 1;
            object[0] = 42;
        }
    }
    let made = MADE.load(Relaxed);
    let info = cache.info();
    assert!(made >= 100 && made <= info.slabs.max(1) * info.objects_per_slab * 2);
    assert_eq!(info.in_use, 0);
    // A value moved in is what the next user finds.
    let mut ours = cache.alloc([9; 6]).expect("memory");
    ours[5] = 8;
    let at = &raw const *ours;
    drop(ours);
    let again = cache.take().expect("memory");
    assert_eq!(&raw const *again, at, "the last one freed comes first");
    assert_eq!(*again, [9, 9, 9, 9, 9, 8]);
}

#[test]
fn a_default_is_a_constructor() {
    let cache = Cache::<Option<u32>, Unified>::constructed("typed-default").expect("a cache");
    assert_eq!(*cache.take().expect("memory"), None);
}

#[test]
fn objects_travel_between_threads() {
    let cache = Cache::<Vec<u8>, Unified>::new("typed-threads").expect("a cache");
    std::thread::scope(|s| {
        let (send, receive) = std::sync::mpsc::channel();
        let cache = &cache;
        let sender = s.spawn(move || {
            for n in 0..5000usize {
                let object = cache.alloc(vec![n as u8; n % 50]).expect("memory");
                send.send(object).expect("the receiver lives");
            }
        });
        for (n, object) in receive.iter().enumerate() {
            assert_eq!(*object, vec![n as u8; n % 50]);
        }
        // The end of a scope would not wait for the thread's exit hooks.
        sender.join().expect("the thread ends well");
    });
    assert_eq!(cache.info().in_use, 0);
}

#[test]
fn a_dropped_cache_is_gone_unless_an_object_was_forgotten() {
    let cache = Cache::<u64, Unified>::new("typed-gone").expect("a cache");
    drop(cache.alloc(1).expect("memory"));
    assert!(exists("typed-gone"));
    drop(cache);
    assert!(!exists("typed-gone"));

    let cache = Cache::<u64, Unified>::new("typed-forgotten").expect("a cache");
    let forgotten: &u64 = {
        let object = cache.alloc(5).expect("memory");
        let at = &raw const *object;
        std::mem::forget(object);
        // SAFETY: the object was forgotten, so nobody takes it back.
        unsafe { &*at }
    };
    drop(cache);
    assert!(exists("typed-forgotten"), "an object of it is in use");
    assert_eq!(*forgotten, 5);
}

#[test]
fn odd_types_are_served_or_refused() {
    let cache = Cache::<(), Unified>::new("typed-empty").expect("a cache");
    drop(cache.alloc(()).expect("memory"));
    #[repr(align(1024))]
    struct Wide([u8; 1024]);
    let cache = Cache::<Wide, Unified>::new("typed-wide").expect("a cache");
    let wide = cache
        .alloc(Wide([3; 1024]))
        .map_err(|_| ())
        .expect("memory");
    assert!((&raw const *wide).is_aligned() && wide.0 == [3; 1024]);
    #[repr(align(8192))]
    struct TooWide(#[allow(dead_code)] u8);
    assert_eq!(
        Cache::<TooWide, Unified>::new("typed-too-wide").err(),
        Some(CacheError::Align)
    );
    assert_eq!(
        Cache::<[u8; 40_000], Unified>::new("typed-too-large").err(),
        Some(CacheError::Size)
    );
}
