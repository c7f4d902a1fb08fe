//! The metadata pool: memory for the allocator's own records (slots, magazines,
//! cache descriptors), in a reservation of its own so that no overflow of a
//! user's object reaches it: the first and the last page are never made accessible.
//!
//! Power-of-two sizes from 64 bytes, carved upwards and recycled through one free
//! list a size. All memory comes zeroed. The pool spans less than 2 GiB, so that
//! a record can name another one by a 32-bit distance: the backends' queue heads
//! rely on that.

use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicUsize, Ordering};

use crate::os;
use crate::sync::{FutexLock, Lock};

const SMALLEST_SHIFT: usize = 6;
const SIZES: usize = 20;
const SPAN: usize = 1 << 30;
const STEP: usize = 64 << 10;

struct Pool {
    /// The lower quarter, for slots' records.
    slots: Part,
    /// The rest.
    records: Part,
    /// Heads of the free lists; the link is the record's first word.
    free: [usize; SIZES],
}

/// A part of the reservation, carved upwards.
struct Part {
    next: usize,
    committed: usize,
    end: usize,
}

impl Part {
    const fn new() -> Self {
        Self {
            next: 0,
            committed: 0,
            end: 0,
        }
    }

    fn carve(&mut self, size: usize) -> Option<usize> {
        let align = size.next_power_of_two().min(os::page_size());
        let at = self.next.next_multiple_of(align);
        let end = at.checked_add(size)?;
        if end > self.end {
            return None;
        }
        if end > self.committed {
            let to = end.next_multiple_of(STEP).min(self.end);
            let at: *mut u8 = ptr::with_exposed_provenance_mut(self.committed);
            // SAFETY: inside the reservation, whole kernel pages.
            if !unsafe { os::commit(at, to - self.committed) } {
                return None;
            }
            self.committed = to;
        }
        self.next = end;
        Some(at)
    }
}

static POOL: Lock<Pool> = Lock::new(Pool {
    slots: Part::new(),
    records: Part::new(),
    free: [0; SIZES],
});
static IN_USE: AtomicUsize = AtomicUsize::new(0);
/// The pool's base, for [`index_of`] and [`at`]; set before the first record.
static BASE: AtomicUsize = AtomicUsize::new(0);

/// Bytes of records in use.
pub fn in_use() -> usize {
    IN_USE.load(Ordering::Relaxed)
}

fn class(bytes: usize) -> usize {
    (bytes.next_power_of_two().trailing_zeros() as usize).saturating_sub(SMALLEST_SHIFT)
}

/// A zeroed record of at least `bytes` bytes, aligned to 64 (to the page from
/// 4 KiB up). `None` when the kernel refuses or the pool is full.
pub fn alloc(bytes: usize) -> Option<NonNull<u8>> {
    let class = class(bytes);
    if class >= SIZES {
        return None;
    }
    let size = 1usize << (class + SMALLEST_SHIFT);
    let mut pool = POOL.lock();
    let at = pool.free[class];
    let at = if at != 0 {
        let record: *mut usize = ptr::with_exposed_provenance_mut(at);
        // SAFETY: `at` is a free record of this class: ours, committed, and its
        // first word is the link. Clearing it makes the record all zero but for
        // what its last user left, which `free` cleared.
        unsafe {
            pool.free[class] = record.read();
            record.write(0);
        }
        at
    } else {
        pool.carve(size)?
    };
    drop(pool);
    IN_USE.fetch_add(size, Ordering::Relaxed);
    NonNull::new(ptr::with_exposed_provenance_mut(at))
}

/// A zeroed record for a slot, which is never given back. It lies below every
/// record of [`alloc`], by less than 1 GiB: a slot can name those by an unsigned
/// 32-bit distance.
pub fn alloc_slot(bytes: usize) -> Option<NonNull<u8>> {
    let bytes = bytes.next_multiple_of(1 << SMALLEST_SHIFT);
    let mut pool = POOL.lock();
    pool.reserve()?;
    let at = pool.slots.carve(bytes)?;
    drop(pool);
    IN_USE.fetch_add(bytes, Ordering::Relaxed);
    NonNull::new(ptr::with_exposed_provenance_mut(at))
}

/// Takes a record back.
///
/// # Safety
/// `record` must come from [`alloc`] with the same `bytes` and be in use no more.
pub unsafe fn free(record: NonNull<u8>, bytes: usize) {
    let class = class(bytes);
    let size = 1usize << (class + SMALLEST_SHIFT);
    // Large records go back page by page rather than being written all over.
    // SAFETY: the record is the caller's to give; sizes from the kernel's page
    // up are whole, aligned pages of the pool.
    unsafe {
        if size < os::page_size() * 2 || !os::discard(record.as_ptr(), size) {
            record.write_bytes(0, size);
        }
    }
    let mut pool = POOL.lock();
    // SAFETY: as above; the link's word is inside the record.
    unsafe { record.cast::<usize>().write(pool.free[class]) };
    pool.free[class] = record.as_ptr().expose_provenance();
    IN_USE.fetch_sub(size, Ordering::Relaxed);
}

impl Pool {
    fn carve(&mut self, size: usize) -> Option<usize> {
        self.reserve()?;
        self.records.carve(size)
    }

    fn reserve(&mut self) -> Option<()> {
        if self.records.end != 0 {
            return Some(());
        }
        let mut span = SPAN;
        loop {
            let at = os::reserve(span);
            if !at.is_null() {
                // A guard at each end.
                let guard = os::page_size();
                let (base, span) = (at.expose_provenance() + guard, span - 2 * guard);
                BASE.store(base, Ordering::Relaxed);
                let middle = base + (span / 4).next_multiple_of(guard);
                self.slots = Part {
                    next: base,
                    committed: base,
                    end: middle,
                };
                self.records = Part {
                    next: middle,
                    committed: middle,
                    end: base + span,
                };
                return Some(());
            }
            // Address space is short: leave most of what there is to the arenas.
            span /= 16;
            if span < STEP * 16 {
                return None;
            }
        }
    }
}

/// A record's place in the pool, in units of 64 bytes: a name of 32 bits that never
/// is `u32::MAX`.
#[inline]
pub fn index_of(record: *const u8) -> u32 {
    ((record as usize).wrapping_sub(BASE.load(Ordering::Relaxed)) >> SMALLEST_SHIFT) as u32
}

/// The record at a place.
#[inline]
pub fn at(index: u32) -> *mut u8 {
    let base = BASE.load(Ordering::Relaxed);
    ptr::with_exposed_provenance_mut(base + ((index as usize) << SMALLEST_SHIFT))
}

/// Runs `f` on the pool's lock: for the fork handlers.
pub(crate) fn with_raw_lock(f: impl FnOnce(&FutexLock)) {
    // SAFETY: the raw lock is only marked, taken and released by the fork
    // handlers, in pairs.
    f(unsafe { POOL.raw() });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_come_zeroed_and_apart() {
        let a = alloc(100).unwrap();
        let b = alloc(100).unwrap();
        assert!((a.as_ptr() as usize).is_multiple_of(64));
        assert!((a.as_ptr() as usize).abs_diff(b.as_ptr() as usize) >= 128);
        // SAFETY: both are ours, 100 bytes long.
        unsafe {
            a.write_bytes(0xff, 100);
            free(a, 100);
            let c = alloc(128).unwrap();
            assert_eq!(c, a, "recycled");
            assert!((0..128).all(|i| c.add(i).read() == 0));
            free(c, 128);
            free(b, 100);
        }
        assert!(alloc(1 << 40).is_none());
    }
}
