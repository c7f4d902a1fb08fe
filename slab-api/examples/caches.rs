//! Typed caches, collections on a heap of their own, and what both used.
//!
//! `cargo run -p slab-api --example caches`, and with `SLABMALLOC_CONF=verbose=1` the
//! settings in force.

use allocator_api2::vec::Vec;
use slab_api::{Cache, Heap, report};
use slab_unified::Unified;

/// What the cache holds; dropped when it goes back.
struct Session {
    id: u64,
    name: String,
}

/// A buffer that is cleared once, when its slab is made: whoever gives one back leaves
/// it clear.
type Buffer = [u8; 256];

fn main() -> Result<(), slab_api::CacheError> {
    let sessions = Cache::<Session, Unified>::new("session")?;
    let open: std::vec::Vec<_> = (0..1000)
        .filter_map(|id| {
            let name = format!("user-{id}");
            sessions.alloc(Session { id, name }).ok()
        })
        .collect();
    println!(
        "{} sessions, the last is {} of {}",
        open.len(),
        open.last().map_or(0, |s| s.id),
        open.last().map_or("", |s| &s.name),
    );

    let buffers = Cache::<Buffer, Unified>::with_constructor("buffer", || [0; 256])?;
    for _ in 0..3 {
        if let Some(mut buffer) = buffers.take() {
            buffer[..5].copy_from_slice(b"hello");
            buffer[..5].fill(0);
        }
    }

    let heap: Heap<Unified> = Heap::new();
    let mut numbers = Vec::new_in(&heap);
    numbers.extend(0..10_000u32);
    println!(
        "{} numbers on a heap of their own: {:?}",
        numbers.len(),
        heap.stats()
    );

    report::write_all(1);
    Ok(())
}
