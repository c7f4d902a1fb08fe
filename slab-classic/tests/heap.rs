//! The heap over this backend: all size classes, four threads, objects that are freed
//! where they were not allocated.

use std::sync::Mutex;

use slab_api::Heap;
use slab_classic::Classic;

static HEAP: Heap<Classic> = Heap::new();

#[test]
fn all_sizes_in_four_threads() {
    let pool: Mutex<Vec<(usize, usize)>> = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        let worker = |thread: u64| {
            let pool = &pool;
            scope.spawn(move || {
                let mut seed = thread + 1;
                let mut next = |below: usize| {
                    seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1);
                    (seed >> 33) as usize % below
                };
                for _ in 0..20_000 {
                    let doubling = 4 + next(13);
                    let size = next(1 << doubling);
                    let p = HEAP.malloc(size);
                    assert!(!p.is_null() && (p as usize).is_multiple_of(16));
                    // SAFETY: ours, of `size` bytes.
                    unsafe { p.write_bytes(p as usize as u8 ^ 0x5a, size) };
                    let other = {
                        let mut pool = pool.lock().unwrap();
                        pool.push((p as usize, size));
                        let n = pool.len();
                        (n > 500).then(|| pool.swap_remove(next(n)))
                    };
                    if let Some((at, size)) = other {
                        release(at, size);
                    }
                }
            })
        };
        // The scope waits for the closures only; a join, for the slots' end too.
        let threads: Vec<_> = (0..4).map(worker).collect();
        threads.into_iter().for_each(|t| t.join().unwrap());
    });
    for (at, size) in pool.into_inner().unwrap() {
        release(at, size);
    }
    assert_eq!(HEAP.stats().small_in_use, 0);
    HEAP.trim();
    assert_eq!(HEAP.stats().queued, 0);
    assert_eq!(HEAP.stats().slab_bytes, 0);
}

fn release(at: usize, size: usize) {
    let p: *mut u8 = std::ptr::with_exposed_provenance_mut(at);
    // SAFETY: an object in use of `size` bytes, freed once.
    unsafe {
        for i in [0, size / 2, size.saturating_sub(1)] {
            assert!(size == 0 || p.add(i).read() == at as u8 ^ 0x5a);
        }
        HEAP.free(p);
    }
}
