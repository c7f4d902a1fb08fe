//! [`Heap`] over any backend: sizes, alignment, realloc, zeroing, misuse, and a random
//! mixture of them against a map by address.

use std::collections::BTreeMap;
use std::sync::mpsc;

use super::{Quiet, alone, at, join_all, random};
use crate::{Heap, MAX_OBJECT, ObjectCache, misuse};

/// The heap serves every size, with honest usable sizes.
pub fn heap_sizes<C: ObjectCache>() {
    let _alone = alone();
    let heap: Heap<C> = Heap::new();
    let mut held = Vec::new();
    for size in (0..200)
        .chain((200..40_000).step_by(331))
        .chain([65536, 100_000, 3 << 20])
    {
        let p = heap.malloc(size);
        assert!(!p.is_null() && (p as usize).is_multiple_of(16));
        // SAFETY: ours; all of the usable size is.
        unsafe {
            let usable = heap.usable_size(p);
            assert!(usable >= size);
            p.write_bytes(0xab, usable);
        }
        held.push((p, size));
    }
    for (p, size) in held {
        // SAFETY: taken above, freed once, with the size asked for.
        unsafe { heap.free_sized(p, size) };
    }
    assert!(heap.malloc(usize::MAX).is_null());
    assert!(heap.malloc(isize::MAX as usize).is_null());
    assert_eq!(heap.stats().small_in_use, 0);
}

/// Any alignment up to 64 MiB.
pub fn heap_alignment<C: ObjectCache>() {
    let _alone = alone();
    let heap: Heap<C> = Heap::new();
    for shift in 0..=26 {
        let align = 1usize << shift;
        for size in [1, 100, 5000, 50_000] {
            let p = heap.memalign(align, size);
            assert!(
                !p.is_null() && (p as usize).is_multiple_of(align),
                "{align}/{size}: {p:p}"
            );
            // SAFETY: ours.
            unsafe {
                p.write_bytes(1, size);
                heap.free(p);
            }
        }
    }
    assert!(heap.memalign(48, 10).is_null(), "no power of two");
}

/// realloc keeps the content, whatever the old and new sizes.
pub fn heap_realloc<C: ObjectCache>() {
    let _alone = alone();
    let heap: Heap<C> = Heap::new();
    let sizes = [
        1,
        16,
        100,
        1000,
        5000,
        33_000,
        40_000,
        300_000,
        1_500_000,
        4 << 20,
    ];
    for from in sizes {
        for to in sizes {
            let p = heap.malloc(from);
            // SAFETY: ours throughout.
            unsafe {
                p.write_bytes(0x77, from);
                let q = heap.realloc(p, to);
                assert!(!q.is_null());
                assert!(
                    (0..from.min(to))
                        .step_by(7)
                        .all(|i| q.add(i).read() == 0x77),
                    "{from} -> {to}"
                );
                heap.free(q);
            }
        }
    }
    // Growth step by step, with something in the way now and then.
    let mut p = heap.malloc(1);
    let mut others = Vec::new();
    // SAFETY: ours throughout.
    unsafe {
        p.write(9);
        let mut size = 1;
        while size < 8 << 20 {
            size += size / 3 + 4096;
            p = heap.realloc(p, size);
            assert!(!p.is_null() && p.read() == 9);
            p.add(size - 1).write(1);
            others.push(heap.malloc(40_000));
        }
        heap.free(p);
        for p in others {
            heap.free(p);
        }
    }
}

/// Zeroed memory is zero, reused or fresh.
pub fn heap_zeroing<C: ObjectCache>() {
    let _alone = alone();
    let heap: Heap<C> = Heap::new();
    for round in 0..3 {
        for size in [1, 100, 5000, 33_000, 70_000, 2 << 20, 5 << 20] {
            let p = heap.alloc_zeroed(size);
            // SAFETY: ours.
            unsafe {
                let zero = (0..size).all(|i| p.add(i).read() == 0);
                assert!(zero, "round {round}, {size} bytes");
                p.write_bytes(0xff, size);
                heap.free(p);
            }
        }
        if round == 1 {
            heap.trim();
        }
    }
}

/// What is no object in use is not freed, resized or measured, and what is freed with
/// the wrong size stays.
pub fn heap_misuse<C: ObjectCache>() {
    let _alone = alone();
    let _quiet = Quiet::new();
    let heap: Heap<C> = Heap::new();
    let mut expected = misuse::detected();
    let mut noticed = |what: &str| {
        expected += 1;
        assert_eq!(misuse::detected(), expected, "unnoticed: {what}");
    };
    for size in [24, 1000, 20_000, 100_000, 3 << 20] {
        let p = heap.malloc(size);
        let interior = p.wrapping_add(size / 2);
        // SAFETY: ours; the misuse is what is tested, and touches nothing.
        unsafe {
            p.write_bytes(0x5a, size);
            heap.free(interior);
            noticed("a free inside an object");
            heap.free(p.wrapping_add(1));
            noticed("a misaligned free");
            // Of large objects only sizes beyond their pages, or of small ones, are wrong.
            let smaller = if size > MAX_OBJECT { 100 } else { size / 2 };
            heap.free_sized(p, smaller);
            noticed("a free with a smaller size");
            heap.free_sized(p, size * 3);
            noticed("a free with three times the size");
            assert_eq!(heap.usable_size(p.wrapping_add(16)), 0);
            noticed("the size of a place inside an object");
            let whole = (0..size).all(|i| p.add(i).read() == 0x5a);
            assert!(whole, "misuse spoilt an object of {size} bytes");
            heap.free(p);
            heap.free(p);
            noticed("a double free");
            assert!(heap.realloc(p, 10).is_null());
            noticed("a realloc of a freed object");
            heap.free(std::ptr::null_mut());
        }
    }
    assert_eq!(heap.stats().small_in_use, 0);
}

/// Random operations of all kinds against a map of what is in use.
pub fn heap_oracle<C: ObjectCache>() {
    let _alone = alone();
    for seed in [11u64, 12, 13] {
        let mut seed = seed;
        let heap: Heap<C> = Heap::new();
        let mut live: BTreeMap<usize, (usize, u8)> = BTreeMap::new();
        let large_before = heap.stats().large_in_use;
        let check = |p: usize, size: usize, fill: u8| {
            // SAFETY: in use and ours, `size` bytes.
            let whole = (0..size).all(|i| unsafe { at(p).add(i).read() } == fill);
            assert!(whole, "{p:#x}: somebody wrote to an object in use");
        };
        for step in 0..12_000u32 {
            let fill = step as u8;
            let size = random(&mut seed) % [64, 600, 9000, 80_000][random(&mut seed) % 4];
            let pick = live.range(random(&mut seed) << 12..).next();
            let pick = pick.or_else(|| live.iter().next()).map(|(p, _)| *p);
            let p = match (random(&mut seed) % 10, pick) {
                (0..4, Some(p)) => {
                    let (old, fill) = live.remove(&p).unwrap_or_default();
                    check(p, old, fill);
                    // SAFETY: in use, taken with this size.
                    unsafe { heap.free(at(p)) };
                    continue;
                }
                (4..6, Some(p)) => {
                    let (old, fill) = live.remove(&p).unwrap_or_default();
                    // SAFETY: in use; the new object takes its place.
                    let q = unsafe { heap.realloc(at(p), size) };
                    check(q as usize, old.min(size), fill);
                    q
                }
                (6, _) => {
                    let align = 16 << (random(&mut seed) % 10);
                    let p = heap.memalign(align, size);
                    assert!((p as usize).is_multiple_of(align));
                    p
                }
                (7, _) => {
                    let p = heap.alloc_zeroed(size);
                    check(p as usize, size, 0);
                    p
                }
                _ => heap.malloc(size),
            };
            assert!(!p.is_null(), "memory");
            let p = p.expose_provenance();
            let below = live.range(..=p).next_back();
            assert!(
                below.is_none_or(|(q, (size, _))| q + (*size).max(1) <= p),
                "overlap below"
            );
            let above = live.range(p..).next();
            assert!(
                above.is_none_or(|(q, _)| p + size.max(1) <= *q),
                "overlap above"
            );
            // SAFETY: ours, `size` bytes.
            unsafe { at(p).write_bytes(fill, size) };
            live.insert(p, (size, fill));
        }
        for (p, (size, fill)) in live {
            check(p, size, fill);
            // SAFETY: in use, freed once.
            unsafe { heap.free(at(p)) };
        }
        let stats = heap.stats();
        assert_eq!((stats.small_in_use, stats.large_in_use), (0, large_before));
    }
}

/// Objects of all sizes are freed by other threads than those that took them.
pub fn heap_threads<C: ObjectCache>() {
    let _alone = alone();
    let heap: Heap<C> = Heap::new();
    let heap = &heap;
    let (senders, receivers): (Vec<_>, Vec<_>) =
        (0..3).map(|_| mpsc::channel::<(usize, usize)>()).unzip();
    std::thread::scope(|s| {
        let mut handles = Vec::new();
        for (me, receiver) in receivers.into_iter().enumerate() {
            let senders = senders.clone();
            handles.push(s.spawn(move || {
                let mut seed = me as u64 + 5;
                let take_back = |(p, size): (usize, usize)| {
                    // SAFETY: handed over by its owner, `size` bytes.
                    unsafe {
                        let ends = [at(p).read(), at(p).add(size - 1).read()];
                        assert_eq!(ends, [size as u8; 2], "two owners wrote to one object");
                        heap.free_sized(at(p), size);
                    }
                };
                for _ in 0..8000 {
                    let limit = [100, 2000, 50_000][random(&mut seed) % 3];
                    let size = 1 + random(&mut seed) % limit;
                    let p = heap.malloc(size);
                    assert!(!p.is_null(), "memory");
                    // SAFETY: ours, `size` bytes.
                    unsafe {
                        p.write(size as u8);
                        p.add(size - 1).write(size as u8);
                    }
                    let to = random(&mut seed) % senders.len();
                    let _ = senders[to].send((p.expose_provenance(), size));
                    receiver.try_iter().for_each(take_back);
                }
                drop(senders);
                receiver.into_iter().for_each(take_back);
            }));
        }
        drop(senders);
        join_all(handles);
    });
    assert_eq!(heap.stats().small_in_use, 0);
}
