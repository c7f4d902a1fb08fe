//! Magazines: arrays of free objects that change hands whole.
//!
//! ```text
//!   [ link | capacity, count | null | object | object | ... ]    64 B to 512 B
//!     depot   when not in use   ^ the sentinel: top rests here when empty
//! ```
//! Memory comes from the metadata pool, out of reach of users' overflows. In use,
//! the slot's entry holds the top; `count` is written when a magazine leaves it.

use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use page_alloc::meta;
use page_alloc::sync::Links;

/// Words before the first object.
const HEADER: usize = 3;
/// log2 of the largest record over 64 bytes.
pub(crate) const MAX_LEVEL: u8 = 3;
/// The largest capacity: a record of 512 bytes.
pub(crate) const MAX_CAPACITY: usize = (64 << MAX_LEVEL) / 8 - HEADER;

#[repr(C)]
struct Header {
    link: AtomicU64,
    capacity: AtomicU32,
    count: AtomicU32,
    sentinel: AtomicU64,
}

/// A magazine that the caller owns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Magazine(NonNull<u8>);

impl Magazine {
    /// Record sizes are 64 << level bytes.
    pub(crate) fn capacity_of_level(level: u8) -> usize {
        (64 << level) / 8 - HEADER
    }

    /// An empty magazine; `None` without memory.
    pub(crate) fn new(level: u8) -> Option<Self> {
        let magazine = Self(meta::alloc(64 << level)?);
        magazine
            .header()
            .capacity
            .store(Self::capacity_of_level(level) as u32, Relaxed);
        Some(magazine)
    }

    fn header(&self) -> &Header {
        // SAFETY: the record is at least 64 bytes long, aligned to 64, zeroed when
        // made, and in use as a magazine until `delete`.
        unsafe { self.0.cast::<Header>().as_ref() }
    }

    /// Gives an empty magazine's memory back.
    pub(crate) fn delete(self) {
        let bytes = (self.capacity() + HEADER) * 8;
        // SAFETY: made by `new` with this size; the caller owned it.
        unsafe { meta::free(self.0, bytes) };
    }

    pub(crate) fn capacity(&self) -> usize {
        self.header().capacity.load(Relaxed) as usize
    }

    /// Objects held, while not in a slot.
    pub(crate) fn count(&self) -> usize {
        self.header().count.load(Relaxed) as usize
    }

    pub(crate) fn set_count(&self, count: usize) {
        debug_assert!(count <= self.capacity());
        self.header().count.store(count as u32, Relaxed);
    }

    /// The address of the sentinel: where the top of an empty magazine is.
    pub(crate) fn bottom(&self) -> usize {
        self.0.as_ptr() as usize + (HEADER - 1) * 8
    }

    /// The objects' places, from the bottom.
    pub(crate) fn entries(&mut self) -> &mut [*mut u8] {
        let capacity = self.capacity();
        // SAFETY: `capacity` words follow the header; the caller owns them.
        unsafe {
            core::slice::from_raw_parts_mut(self.0.as_ptr().cast::<*mut u8>().add(HEADER), capacity)
        }
    }

    /// The magazine's name in the depot's stacks.
    pub(crate) fn index(self) -> u32 {
        // A link in the sentinel's place would end searches late: it stays null.
        debug_assert_eq!(self.header().sentinel.load(Relaxed), 0);
        meta::index_of(self.0.as_ptr())
    }

    /// The magazine of that name, which the caller must have popped.
    pub(crate) fn from_index(index: u32) -> Option<Self> {
        NonNull::new(meta::at(index)).map(Self)
    }
}

/// The magazines' link words.
pub(crate) struct MagazineLinks;

impl Links for MagazineLinks {
    type Word = AtomicU64;
    fn link(&self, index: u32) -> &AtomicU64 {
        // SAFETY: the stacks hold only magazines' indices. Magazine records are
        // recycled but never unmapped, so the word is valid even if the magazine
        // was popped by another thread meanwhile.
        unsafe { &*meta::at(index).cast::<AtomicU64>() }
    }
}
