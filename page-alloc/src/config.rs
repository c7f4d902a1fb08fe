//! The page allocator's settings: plain atomics, because they are read in slow
//! paths before anything else exists. `slab_api::config` fills them from
//! `SLABMALLOC_CONF`; a library user may set them before the first allocation.

use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};

/// What `hugepage=auto` leaves on small pages: a small program stays small.
pub const HUGE_AUTO_FROM: usize = 8 << 20;

static ARENA_MAX: AtomicUsize = AtomicUsize::new(usize::MAX);
static HUGE_FROM: AtomicUsize = AtomicUsize::new(HUGE_AUTO_FROM);
static PURGE_MS: AtomicU64 = AtomicU64::new(500);
static PLACEMENT: AtomicBool = AtomicBool::new(true);

/// Upper limit of heap bytes taken from the kernel; [`usize::MAX`] for none.
pub fn arena_max() -> usize {
    ARENA_MAX.load(Relaxed)
}

/// Sets the upper limit of heap bytes.
pub fn set_arena_max(bytes: usize) {
    ARENA_MAX.store(bytes, Relaxed);
}

/// From which byte of an arena on huge pages are asked for; `None` for never.
pub fn huge_from() -> Option<usize> {
    let from = HUGE_FROM.load(Relaxed);
    (from != usize::MAX).then_some(from)
}

/// Sets from where on huge pages are asked for; `None` switches them off.
pub fn set_huge_from(from: Option<usize>) {
    HUGE_FROM.store(from.unwrap_or(usize::MAX), Relaxed);
}

/// How long freed pages keep their memory, in milliseconds; `None` for ever.
pub fn purge_ms() -> Option<u64> {
    let ms = PURGE_MS.load(Relaxed);
    (ms != u64::MAX).then_some(ms)
}

/// Sets how long freed pages keep their memory.
pub fn set_purge_ms(ms: Option<u64>) {
    PURGE_MS.store(ms.unwrap_or(u64::MAX), Relaxed);
}

/// Whether pages are placed by migratetype; off is the plain buddy, for honest
/// comparison.
pub fn placement() -> bool {
    PLACEMENT.load(Relaxed)
}

/// Switches placement by migratetype. Before the first allocation only: pages
/// placed so far stay where they are.
pub fn set_placement(on: bool) {
    PLACEMENT.store(on, Relaxed);
}
