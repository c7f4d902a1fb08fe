//! `Heap::trim` after a churn: slabs that few objects hold lose their free pages and their
//! part of the granule map, and nothing that is told from it.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use page_alloc::{PageKind, page_of, sparse};

use super::{Quiet, alone, at, join_all, random};
use crate::{Heap, MAX_OBJECT, ObjectCache, misuse, registry};

/// An object, its size, and the byte that it is full of.
type Filled = (usize, usize, u8);

fn make<C: ObjectCache>(heap: &Heap<C>, seed: &mut u64) -> Filled {
    let size = 16 + random(seed) % 4081;
    let (p, fill) = (heap.malloc(size), random(seed) as u8);
    assert!(!p.is_null());
    // SAFETY: ours, `size` bytes.
    unsafe { p.write_bytes(fill, size) };
    (p.expose_provenance(), size, fill)
}

fn is_whole((p, size, fill): Filled) -> bool {
    // SAFETY: ours, `size` bytes.
    (0..size).all(|i| unsafe { at(p).add(i).read() } == fill)
}

fn drop_one<C: ObjectCache>(heap: &Heap<C>, object: Filled) {
    assert!(is_whole(object), "an object was overwritten");
    // SAFETY: ours, given back once.
    unsafe { heap.free(at(object.0)) };
}

fn in_sparse_slab(p: usize) -> bool {
    page_of(at(p))
        .map(|page| page.head())
        .is_some_and(|head| head.kind() == PageKind::Slab && sparse::is_sparse(head))
}

fn validate_all() {
    registry::for_each(|cache| (cache.backend.validate)(cache).expect("valid"));
}

/// A heap after a churn of 24,000 objects, of which one in 32 stays, and a trim; those
/// that stay, and those that do not.
fn churned<C: ObjectCache>() -> (Heap<C>, Vec<Filled>, Vec<usize>) {
    let (heap, mut seed) = (Heap::<C>::new(), 7);
    let all: Vec<Filled> = (0..24_000).map(|_| make(&heap, &mut seed)).collect();
    let (mut stay, mut gone) = (Vec::new(), Vec::new());
    for object in all {
        if random(&mut seed).is_multiple_of(32) {
            stay.push(object);
        } else {
            drop_one(&heap, object);
            gone.push(object.0);
        }
    }
    heap.trim();
    validate_all();
    let sparse = stay
        .iter()
        .filter(|object| in_sparse_slab(object.0))
        .count();
    let expected = if C::GOES_QUIET { stay.len() / 2 } else { 0 };
    assert!(sparse >= expected, "{sparse} of {} sparse", stay.len());
    (heap, stay, gone)
}

/// What stays after a churn and a trim is whole, has its size, can be resized and given
/// back; what is given back is handed out again, and nothing twice.
pub fn heap_trimmed<C: ObjectCache>() {
    let _alone = alone();
    let (heap, mut stay, _) = churned::<C>();
    let in_use = heap.stats().small_in_use;
    let mut seed = 11;
    for (n, object) in stay.iter_mut().enumerate() {
        let (p, size, _) = *object;
        assert!(is_whole(*object));
        // SAFETY: ours.
        unsafe {
            match n % 3 {
                0 => assert!(heap.usable_size(at(p)) >= size),
                1 => {
                    object.0 = heap.realloc(at(p), size + 300).expose_provenance();
                    assert!(object.0 != 0 && is_whole(*object));
                }
                _ => {}
            }
        }
    }
    validate_all();
    assert!(heap.stats().small_in_use > in_use, "the resized are larger");
    for round in 0..3 {
        // All that is free is handed out before anything new.
        let more: Vec<Filled> = (0..20_000).map(|_| make(&heap, &mut seed)).collect();
        assert!(stay.iter().all(|object| is_whole(*object)), "round {round}");
        more.into_iter().for_each(|object| drop_one(&heap, object));
        heap.trim();
        validate_all();
        // Some go while their slabs are sparse.
        for object in stay.split_off(stay.len() * 2 / 3) {
            drop_one(&heap, object);
        }
        validate_all();
    }
    stay.into_iter().for_each(|object| drop_one(&heap, object));
    assert_eq!(heap.stats().small_in_use, 0);
    heap.trim();
    validate_all();
    assert_eq!(heap.stats().slab_bytes, 0, "every slab is given back");
}

/// Misuse of objects whose granules were given back is noticed as ever.
pub fn heap_trimmed_misuse<C: ObjectCache>() {
    let _alone = alone();
    if !C::GOES_QUIET {
        return;
    }
    let _quiet = Quiet::new();
    let (heap, stay, gone) = churned::<C>();
    let mut expected = misuse::detected();
    let mut noticed = |what: &str| {
        expected += 1;
        assert_eq!(misuse::detected(), expected, "unnoticed: {what}");
    };
    let mut counts = [0; 6];
    for object in stay.iter().filter(|object| object.1 >= 64) {
        let p = object.0;
        // One of them marks the slab again: the next is for another slab.
        if !in_sparse_slab(p) {
            continue;
        }
        let kind = counts.iter().sum::<usize>() % counts.len();
        counts[kind] += 1;
        // SAFETY: the misuse is what is tested, and touches nothing.
        unsafe {
            match kind {
                0 => heap.free(at(p + 16)),
                1 => heap.free_sized(at(p), MAX_OBJECT),
                2 => heap.free_large(at(p + 32)),
                3 => assert_eq!(heap.usable_size(at(p + 16)), 0),
                4 => assert!(heap.realloc(at(p + 48), 10).is_null()),
                _ => heap.free_sized(at(p + 16), object.1),
            }
        }
        noticed(["interior", "sized", "large", "size", "realloc", "both"][kind]);
    }
    assert!(counts.iter().all(|n| *n > 10), "{counts:?}");
    // Again sparse, those of objects in use.
    heap.trim();
    let mut doubles = 0;
    for p in gone {
        if in_sparse_slab(p) {
            // SAFETY: as above.
            unsafe { heap.free(at(p)) };
            noticed("a double free");
            doubles += 1;
        }
    }
    assert!(doubles > 20, "{doubles} double frees");
    validate_all();
    for object in stay {
        drop_one(&heap, object);
        // SAFETY: as above.
        unsafe { heap.free(at(object.0)) };
        noticed("a double free of what was sparse");
    }
    assert_eq!(heap.stats().small_in_use, 0);
}

/// Threads churn and pass objects on while another one trims: nothing is lost, nothing
/// overwritten, no valid free refused.
pub fn heap_trimmed_under_load<C: ObjectCache>() {
    let _alone = alone();
    let heap: Heap<C> = Heap::new();
    let detected = misuse::detected();
    let done = AtomicBool::new(false);
    let passed = std::sync::Mutex::new(Vec::<Filled>::new());
    std::thread::scope(|scope| {
        let churn = |seed: u64| {
            let (heap, passed) = (&heap, &passed);
            move || {
                let (mut seed, mut mine) = (seed, Vec::new());
                for _ in 0..12 {
                    mine.extend((0..2_000).map(|_| make(heap, &mut seed)));
                    // Most go, in any order; some by way of another thread.
                    while mine.len() > 100 {
                        let object = mine.swap_remove(random(&mut seed) % mine.len());
                        if random(&mut seed).is_multiple_of(16) {
                            let mut passed = passed.lock().expect("no panic");
                            passed.push(object);
                            let other = random(&mut seed) % passed.len();
                            let other = passed.swap_remove(other);
                            drop(passed);
                            drop_one(heap, other);
                        } else {
                            drop_one(heap, object);
                        }
                    }
                }
                for object in mine {
                    drop_one(heap, object);
                }
            }
        };
        let threads: Vec<_> = (1..4).map(|seed| scope.spawn(churn(seed))).collect();
        let trimmer = scope.spawn(|| {
            while !done.load(Relaxed) {
                heap.trim();
            }
        });
        join_all(threads);
        done.store(true, Relaxed);
        join_all([trimmer]);
    });
    for object in passed.into_inner().expect("no panic") {
        drop_one(&heap, object);
    }
    assert_eq!(misuse::detected(), detected, "a valid free was refused");
    validate_all();
    assert_eq!(heap.stats().small_in_use, 0);
    heap.trim();
    validate_all();
}
