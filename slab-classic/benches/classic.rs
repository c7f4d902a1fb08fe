//! The classic backend's paths: pairs, batches, remote frees, bulk.

use std::hint::black_box;
use std::ptr::NonNull;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use slab_api::{CacheDesc, ObjectCache};
use slab_classic::Classic;

const BATCH: usize = 1000;

fn cache(size: usize) -> Classic {
    Classic::create(&CacheDesc::new("bench", size).no_merge()).expect("a cache")
}

fn give(cache: Classic, p: NonNull<u8>) {
    // SAFETY: the benchmarks free each object once.
    unsafe { cache.free(p) };
}

fn pair(c: &mut Criterion) {
    let mut group = c.benchmark_group("pair");
    for size in [64, 512, 4096] {
        let cache = cache(size);
        group.bench_function(size.to_string(), |b| {
            b.iter(|| {
                if let Some(p) = cache.alloc() {
                    give(cache, black_box(p));
                }
            });
        });
    }
}

fn batch(c: &mut Criterion) {
    let mut group = c.benchmark_group("batch of 1000");
    group.throughput(Throughput::Elements(BATCH as u64));
    for size in [64, 512, 4096] {
        let cache = cache(size);
        let mut objects = Vec::with_capacity(BATCH);
        group.bench_function(size.to_string(), |b| {
            b.iter(|| {
                objects.extend((0..BATCH).filter_map(|_| cache.alloc()));
                objects.drain(..).for_each(|p| give(cache, p));
            });
        });
    }
}

fn bulk(c: &mut Criterion) {
    let mut group = c.benchmark_group("bulk");
    for n in [16, 64, BATCH] {
        let cache = cache(64);
        let mut objects = vec![std::ptr::null_mut(); n];
        group.throughput(Throughput::Elements(n as u64));
        group.bench_function(n.to_string(), |b| {
            b.iter(|| {
                let got = cache.alloc_bulk(&mut objects);
                // SAFETY: just taken.
                unsafe { cache.free_bulk(black_box(&objects[..got])) };
            });
        });
    }
}

/// One thread allocates, another one frees.
fn remote_free(c: &mut Criterion) {
    let mut group = c.benchmark_group("remote free");
    group.throughput(Throughput::Elements(BATCH as u64));
    for size in [64, 512] {
        let cache = cache(size);
        group.bench_function(size.to_string(), |b| {
            b.iter_custom(|iterations| {
                let (send, receive) = mpsc::sync_channel::<Vec<usize>>(4);
                let start = Instant::now();
                std::thread::scope(|scope| {
                    scope.spawn(move || {
                        for objects in receive {
                            for p in objects {
                                let p = std::ptr::with_exposed_provenance_mut(p);
                                NonNull::new(p).into_iter().for_each(|p| give(cache, p));
                            }
                        }
                    });
                    for _ in 0..iterations {
                        let objects = (0..BATCH)
                            .filter_map(|_| cache.alloc())
                            .map(|p| p.as_ptr().expose_provenance())
                            .collect();
                        if send.send(objects).is_err() {
                            break;
                        }
                    }
                    drop(send);
                });
                start.elapsed().max(Duration::from_nanos(1))
            });
        });
    }
}

criterion_group!(benches, pair, batch, bulk, remote_free);
criterion_main!(benches);
