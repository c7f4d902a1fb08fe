//! The unified backend's fast and slow paths.

use std::hint::black_box;
use std::ptr::NonNull;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use slab_api::{CacheDesc, Heap, ObjectCache};
use slab_unified::Unified;

fn paths(c: &mut Criterion) {
    let cache = Unified::create(&CacheDesc::new("bench", 64).no_merge()).expect("a cache");
    let give = |p: NonNull<u8>| {
        // SAFETY: objects of `cache` that were just taken and are given back once.
        unsafe { cache.free(p) }
    };

    c.bench_function("pair/64", |b| {
        b.iter(|| give(black_box(cache.alloc().expect("memory"))))
    });

    let mut group = c.benchmark_group("batch");
    for n in [100usize, 1000, 10_000] {
        let mut held = Vec::with_capacity(n);
        group.throughput(Throughput::Elements(n as u64));
        group.bench_function(format!("fifo/{n}"), |b| {
            b.iter(|| {
                held.extend((0..n).map(|_| cache.alloc().expect("memory")));
                held.drain(..).for_each(give);
            });
        });
    }
    group.finish();

    let heap: Heap<Unified> = Heap::new();
    c.bench_function("heap/pair of 100", |b| {
        b.iter(|| {
            let p = black_box(heap.malloc(100));
            // SAFETY: just taken.
            unsafe { heap.free_sized(p, 100) };
        });
    });
    for (name, bytes) in [
        ("70 KiB", 70 << 10),
        ("1.1 MiB", 1153434),
        ("33 MiB", 33 << 20),
    ] {
        c.bench_function(&format!("heap/large pair of {name}"), |b| {
            b.iter(|| {
                let p = black_box(heap.malloc(bytes));
                // SAFETY: just taken.
                unsafe { heap.free(p) };
            });
        });
    }
}

criterion_group!(benches, paths);
criterion_main!(benches);
