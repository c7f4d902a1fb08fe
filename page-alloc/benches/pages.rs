//! Pages and runs: pairs, and bulks that are taken first and given back then.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_macros,
    clippy::disallowed_types
)]
#![allow(missing_docs)]

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use page_alloc::{
    Migratetype::{Large, Movable},
    Order, PAGE_SIZE, PageRef, alloc_pages, alloc_run, free_pages, free_run,
};

const BULK: usize = 1000;

fn take(order: Order) -> PageRef {
    alloc_pages(order, Movable).expect("memory")
}

fn chunks(c: &mut Criterion) {
    for (o, bulk) in [(0, BULK), (5, BULK), (9, 100)] {
        let order = Order::new(o).expect("an order");
        let mut group = c.benchmark_group(format!("order{o}"));
        group.bench_function("pair", |b| {
            b.iter(|| free_pages(black_box(take(order))));
        });
        let mut pages = Vec::with_capacity(bulk);
        group.bench_function(format!("bulk of {bulk}"), |b| {
            b.iter(|| {
                pages.extend((0..bulk).map(|_| take(order)));
                for page in pages.drain(..) {
                    free_pages(page).expect("in use");
                }
            });
        });
        group.finish();
    }
}

fn runs(c: &mut Criterion) {
    let mut group = c.benchmark_group("run");
    for (name, bytes) in [
        ("70 KiB", 70 << 10),
        ("1.1 MiB", 1100 << 10),
        ("33 MiB", 33 << 20),
    ] {
        let pages = usize::div_ceil(bytes, PAGE_SIZE);
        group.bench_function(format!("{name} pair"), |b| {
            b.iter(|| {
                let run = alloc_run(black_box(pages), PAGE_SIZE, Large).expect("memory");
                free_run(run.page)
            });
        });
    }
    group.finish();
}

criterion_group!(benches, chunks, runs);
criterion_main!(benches);
