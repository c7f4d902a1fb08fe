//! A whole program on a SLUB heap: `cargo run -p slub --example global_allocator`.

use std::collections::HashMap;

#[global_allocator]
static HEAP: slab_api::Heap<slub::Slub> = slab_api::Heap::new();

fn main() {
    let words = "the slab allocator caches objects the page allocator caches pages";
    let mut count: HashMap<String, Vec<usize>> = HashMap::new();
    for round in 0..1000 {
        for (at, word) in words.split(' ').enumerate() {
            count
                .entry(format!("{word}-{}", round % 7))
                .or_default()
                .push(at);
        }
    }
    let threads: Vec<_> = (0..4)
        .map(|n| {
            std::thread::spawn(move || (0..10_000).map(|i| vec![n; i % 300].len()).sum::<usize>())
        })
        .collect();
    let sum: usize = threads
        .into_iter()
        .map(|t| t.join().expect("a worker panicked"))
        .sum();
    println!("{} keys, {sum} elements", count.len());
    drop(count);
    let stats = HEAP.stats();
    assert!(stats.small_in_use > 0, "the program runs on the heap");
    println!(
        "in use {} B, queued {} B, slabs {} B, committed {} B",
        stats.small_in_use, stats.queued, stats.slab_bytes, stats.committed
    );
}
