//! The backend under the whole test program, as `#[global_allocator]`.

use std::collections::BTreeMap;

#[global_allocator]
static HEAP: slab_api::Heap<slub::Slub> = slab_api::Heap::new();

#[test]
fn a_program_runs_on_the_heap() {
    let before = HEAP.stats();
    assert!(
        before.small_in_use > 0,
        "the test harness allocated from it"
    );
    let threads: Vec<_> = (0..4u64)
        .map(|n| {
            std::thread::spawn(move || {
                let mut map: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
                for i in 0..20_000u64 {
                    let key = i.wrapping_mul(0x9e37_79b9_7f4a_7c15) % 1000;
                    map.entry(key).or_default().push(n);
                    if i % 3 == 0 {
                        map.remove(&(key / 2));
                    }
                }
                map
            })
        })
        .collect();
    for (n, thread) in threads.into_iter().enumerate() {
        let map = thread.join().expect("no thread fails");
        assert!(
            map.values().flatten().all(|v| *v == n as u64),
            "a value was overwritten"
        );
    }
    let large = vec![7u8; 3 << 20];
    assert!(HEAP.stats().large_in_use >= large.len());
    assert!(large.iter().all(|b| *b == 7));
}
