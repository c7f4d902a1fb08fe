//! The records of slots: made once, recycled, and never given back.

use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};

use crate::meta;
use crate::sync::{Links, TaggedStack};
use crate::types::PAGE_SIZE;

/// Largest number of slot records of one kind (threads alive at once).
const MAX_RECORDS: usize = 1 << 15;
const CHUNK: usize = 512;

/// The records of one kind: all that ever existed (for walks), and those that no
/// thread uses (for reuse, with whatever they still hold).
#[derive(Debug)]
pub struct Registry {
    bytes: usize,
    free: TaggedStack<AtomicU64>,
    /// Addresses and stack links of the records, in chunks from the pool.
    chunks: [AtomicPtr<[Entry; CHUNK]>; MAX_RECORDS / CHUNK],
    count: AtomicUsize,
    in_use: AtomicUsize,
}

#[derive(Debug)]
struct Entry {
    record: AtomicPtr<u8>,
    link: AtomicU64,
}

struct EntryLinks<'a>(&'a Registry);

impl Links for EntryLinks<'_> {
    type Word = AtomicU64;
    fn link(&self, index: u32) -> &AtomicU64 {
        // The stack holds only indices that were pushed, whose chunks exist.
        self.0
            .entry(index as usize)
            .map_or(&SPARE_LINK, |e| &e.link)
    }
}
static SPARE_LINK: AtomicU64 = AtomicU64::new(0);

impl Registry {
    /// A registry of records of `bytes` bytes each. The record's first word is
    /// the registry's (its index); the rest is the backend's, zeroed at first.
    pub const fn new(bytes: usize) -> Self {
        Self {
            bytes,
            free: TaggedStack::new(AtomicU64::new(0)),
            chunks: [const { AtomicPtr::new(ptr::null_mut()) }; MAX_RECORDS / CHUNK],
            count: AtomicUsize::new(0),
            in_use: AtomicUsize::new(0),
        }
    }

    /// Records in use.
    pub fn in_use(&self) -> usize {
        self.in_use.load(Ordering::Relaxed)
    }

    fn entry(&self, index: usize) -> Option<&Entry> {
        let chunk = self.chunks.get(index / CHUNK)?.load(Ordering::Acquire);
        // SAFETY: chunks come from the metadata pool, zeroed (a valid value), and
        // are never given back.
        unsafe { chunk.as_ref() }.map(|chunk| &chunk[index % CHUNK])
    }

    /// A record for the caller alone: a recycled one, which may still hold
    /// objects of its last user, or a zeroed fresh one. `None` without memory.
    pub fn acquire(&self) -> Option<NonNull<u8>> {
        let record = self.find()?;
        self.in_use.fetch_add(1, Ordering::Relaxed);
        Some(record)
    }

    fn find(&self) -> Option<NonNull<u8>> {
        if let Some(index) = self.free.pop(&EntryLinks(self)) {
            return NonNull::new(self.entry(index as usize)?.record.load(Ordering::Acquire));
        }
        // Room for its entry first: a record is never given back.
        let mut index = self.count.load(Ordering::Acquire);
        self.make_room(index)?;
        // Small ones would each have a page to themselves between large ones.
        let record = if self.bytes * 2 <= PAGE_SIZE {
            meta::alloc(self.bytes)?
        } else {
            meta::alloc_slot(self.bytes)?
        };
        while let Err(now) =
            self.count
                .compare_exchange_weak(index, index + 1, Ordering::AcqRel, Ordering::Acquire)
        {
            index = now;
            self.make_room(index)?;
        }
        // SAFETY: the record is ours and at least one word long.
        unsafe { record.cast::<usize>().write(index) };
        self.entry(index)?
            .record
            .store(record.as_ptr(), Ordering::Release);
        Some(record)
    }

    /// Makes sure that the entry `index` exists; `None` without memory, or when there
    /// are too many.
    fn make_room(&self, index: usize) -> Option<()> {
        let cell = self.chunks.get(index / CHUNK)?;
        if !cell.load(Ordering::Acquire).is_null() {
            return Some(());
        }
        let fresh = meta::alloc(size_of::<[Entry; CHUNK]>())?;
        let fresh = fresh.cast::<[Entry; CHUNK]>();
        let raced = cell.compare_exchange(
            ptr::null_mut(),
            fresh.as_ptr(),
            Ordering::AcqRel,
            Ordering::Acquire,
        );
        if raced.is_err() {
            // SAFETY: ours, and published to nobody.
            unsafe { meta::free(fresh.cast(), size_of::<[Entry; CHUNK]>()) };
        }
        Some(())
    }

    /// Gives a record back for reuse.
    ///
    /// # Safety
    /// The record must come from [`Self::acquire`] of this registry, and the
    /// caller must not use it any more.
    pub unsafe fn release(&self, record: NonNull<u8>) {
        // SAFETY: the first word holds the index since `acquire`.
        let index = unsafe { record.cast::<usize>().read() };
        self.in_use.fetch_sub(1, Ordering::Relaxed);
        self.free.push(&EntryLinks(self), index as u32);
    }

    /// Calls `f` on every record that exists, in use or not.
    pub fn for_each(&self, mut f: impl FnMut(NonNull<u8>)) {
        for index in 0..self.count.load(Ordering::Acquire).min(MAX_RECORDS) {
            if let Some(record) = self
                .entry(index)
                .and_then(|e| NonNull::new(e.record.load(Ordering::Acquire)))
            {
                f(record);
            }
        }
    }

    /// For the child after fork: every record but `mine` belongs to a thread that
    /// does not exist here; all become free for reuse, with what they hold.
    ///
    /// # Safety
    /// Only the forking thread may run, as in the child of `fork`.
    pub unsafe fn after_fork(&self, mine: *mut u8) {
        while self.free.pop(&EntryLinks(self)).is_some() {}
        self.in_use
            .store(self.count.load(Ordering::Relaxed), Ordering::Relaxed);
        self.for_each(|record| {
            if record.as_ptr() != mine {
                // SAFETY: its thread is gone; the stack was emptied above, so no
                // record is pushed twice.
                unsafe { self.release(record) };
            }
        });
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn records_are_recycled_and_walked() {
        static REGISTRY: Registry = Registry::new(128);
        let a = REGISTRY.acquire().unwrap();
        let b = REGISTRY.acquire().unwrap();
        assert_ne!(a, b);
        // SAFETY: from `acquire`, used no more.
        unsafe { REGISTRY.release(a) };
        assert_eq!(REGISTRY.in_use(), 1);
        assert_eq!(REGISTRY.acquire(), Some(a));
        assert_eq!(REGISTRY.in_use(), 2);
        let mut seen = 0;
        REGISTRY.for_each(|_| seen += 1);
        assert_eq!(seen, 2);
    }
}
