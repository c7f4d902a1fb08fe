//! The memory of a debugged object: its record, its zones, and what they must hold.
//!
//! ```text
//!   base            base+64                 user        user+size            red_end   end
//!   | record 64 B   | left zone, 16 or more | object    | right zone, 16 or more | padding |
//!                     0xcc in use             user's      0xcc                     0x5a
//!                     0xbb free               6b 6b .. a5 0xbb
//! ```
//! The record sits at the start of the backend's object, so every object of a slab is
//! found by its stride. It is sealed with a hash of itself, its address and a secret:
//! whatever does not carry the seal is not believed. A free object is poisoned up to
//! the size of its class ([`Layout::poison`]), which takes the end of its right zone.
//!
//! State changes go through `Busy`, so that of two threads that free an object one
//! finds it free already, and a validation that reads meanwhile can tell.

#![allow(unsafe_code)]

use core::ops::Range;
use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use page_alloc::{PAGE_SIZE, PageKind, page_of, run_pages};

use super::track::Track;
use crate::class::{self, CLASSES};

/// Bytes of the record.
pub(super) const RECORD: usize = 64;
/// The smallest zone.
pub(super) const ZONE: usize = 16;
/// From the start of an ordinary object to the user's bytes.
pub(super) const FRONT: usize = RECORD + ZONE;
/// Bytes that an ordinary object takes beyond its class's size.
pub(super) const EXTRA: usize = FRONT + ZONE;
/// The most that is filled and checked of a zone.
const WIDEST: usize = 2 * PAGE_SIZE;

pub(super) const RED_FREE: u8 = 0xbb;
pub(super) const RED_USED: u8 = 0xcc;
pub(super) const POISON: u8 = 0x6b;
pub(super) const POISON_END: u8 = 0xa5;
pub(super) const PADDING: u8 = 0x5a;

/// What an object is at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// No record: memory that was never this cache's, or a run given back.
    Nothing,
    /// Never handed out: content unknown.
    New,
    /// The user's.
    Live,
    /// Freed: in the quarantine, or in the backend.
    Free,
    /// Between two of the above.
    Busy,
}

/// The head of a debugged object. All zero is no record.
#[repr(C)]
struct Record {
    seal: AtomicU64,
    size: AtomicUsize,
    /// From the record to the user's bytes.
    offset: AtomicUsize,
    /// A count of changes, and in the low three bits the state.
    state: AtomicU32,
    class: AtomicU32,
    alloc: Track,
    free: Track,
}

// The bytes before an ordinary object's left zone.
const _: () = assert!(size_of::<Record>() == RECORD && align_of::<Record>() <= 16);

/// A debugged object, by its base.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Object(NonNull<u8>);

// SAFETY: an address; what is behind it is accessed through atomics, or by whoever
// took the object's state to Busy.
unsafe impl Send for Object {}

/// Where an object's zones are, as its record tells them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    pub(super) left: (usize, usize),
    pub(super) object: (usize, usize),
    /// What is poisoned while the object is free; the right zone begins behind it then.
    pub(super) poison: (usize, usize),
    pub(super) red_end: usize,
    pub(super) end: usize,
}

static SECRET: AtomicU64 = AtomicU64::new(0);

/// A number that no user's data holds by accident.
fn secret() -> u64 {
    match SECRET.load(Ordering::Relaxed) {
        0 => {
            // SAFETY: AT_RANDOM points at 16 random bytes for the life of the process.
            let value = unsafe {
                let at = libc::getauxval(libc::AT_RANDOM) as *const u64;
                if at.is_null() {
                    0x9e37_79b9_7f4a_7c15
                } else {
                    at.read_unaligned().rotate_left(17)
                }
            };
            // Racing threads read the same bytes.
            SECRET.store(value | 1, Ordering::Relaxed);
            value | 1
        }
        value => value,
    }
}

/// The constructor of debugged caches: a record that says the object is new.
///
/// # Safety
/// `base` must be a fresh object of a debugged cache.
pub(super) unsafe fn construct(base: *mut u8) {
    if let Some(base) = NonNull::new(base) {
        // SAFETY: the caller's object, at least a record long.
        unsafe { base.write_bytes(0, RECORD) };
        Object(base).set(State::New);
    }
}

impl Object {
    /// The object at `base`.
    ///
    /// # Safety
    /// `base` must be aligned to 16, and the 64 bytes there be memory of an arena.
    pub(super) unsafe fn at(base: *mut u8) -> Option<Object> {
        NonNull::new(base).map(Object)
    }

    fn record(&self) -> &Record {
        // SAFETY: `at`'s caller: mapped and aligned; every field is an atomic, so that
        // whatever else happens to the memory, this is no data race.
        unsafe { self.0.cast::<Record>().as_ref() }
    }

    pub(super) fn base(self) -> usize {
        self.0.as_ptr() as usize
    }

    pub(super) fn base_ptr(self) -> *mut u8 {
        self.0.as_ptr()
    }

    /// The user's bytes.
    pub(super) fn user(self) -> *mut u8 {
        self.0.as_ptr().wrapping_add(self.offset())
    }

    pub(super) fn size(self) -> usize {
        self.record().size.load(Ordering::Relaxed)
    }

    pub(super) fn offset(self) -> usize {
        self.record().offset.load(Ordering::Relaxed)
    }

    /// The class, [`CLASSES`] for large requests.
    pub(super) fn class(self) -> usize {
        (self.record().class.load(Ordering::Relaxed) as usize).min(CLASSES)
    }

    pub(super) fn alloc_track(&self) -> &Track {
        &self.record().alloc
    }

    pub(super) fn free_track(&self) -> &Track {
        &self.record().free
    }

    /// The state with its count: equal words mean that nothing changed in between.
    pub(super) fn word(self) -> u32 {
        // Acquire: pairs with the release in `set`; what was filled is seen.
        self.record().state.load(Ordering::Acquire)
    }

    pub(super) fn state_of(word: u32) -> State {
        match word & 7 {
            1 => State::New,
            2 => State::Live,
            3 => State::Free,
            4 => State::Busy,
            _ => State::Nothing,
        }
    }

    pub(super) fn state(self) -> State {
        Self::state_of(self.word())
    }

    /// Takes the object from `from` to Busy: true for one thread.
    pub(super) fn begin(self, from: State) -> bool {
        let word = self.word();
        Self::state_of(word) == from
            && self
                .record()
                .state
                // Acquire and release: the winner sees what the last owner wrote.
                .compare_exchange(
                    word,
                    Self::next(word, State::Busy),
                    Ordering::AcqRel,
                    Ordering::Relaxed,
                )
                .is_ok()
    }

    fn next(word: u32, state: State) -> u32 {
        (word & !7).wrapping_add(8)
            | match state {
                State::Nothing => 0,
                State::New => 1,
                State::Live => 2,
                State::Free => 3,
                State::Busy => 4,
            }
    }

    /// Enters a state and seals the record. For whoever owns the object.
    pub(super) fn set(self, state: State) {
        let record = self.record();
        let word = Self::next(record.state.load(Ordering::Relaxed), state);
        record.seal.store(self.hash(word), Ordering::Relaxed);
        record.state.store(word, Ordering::Release);
    }

    /// Whether the record carries its seal.
    pub(super) fn is_sealed(self) -> bool {
        let word = self.word();
        Self::state_of(word) != State::Nothing
            && self.record().seal.load(Ordering::Relaxed) == self.hash(word)
    }

    fn hash(self, word: u32) -> u64 {
        let record = self.record();
        let mut hash = secret() ^ self.base() as u64;
        let mut mix = |value: u64| {
            hash = (hash ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            hash ^= hash >> 29;
        };
        mix(record.size.load(Ordering::Relaxed) as u64);
        mix(record.offset.load(Ordering::Relaxed) as u64);
        mix(u64::from(word) << 32 | u64::from(record.class.load(Ordering::Relaxed)));
        for track in [&record.alloc, &record.free] {
            for value in track.words() {
                mix(value);
            }
        }
        hash
    }

    /// Describes a request in the record. For whoever owns the object.
    pub(super) fn describe(self, class: usize, offset: usize, size: usize) {
        let record = self.record();
        record.class.store(class as u32, Ordering::Relaxed);
        record.offset.store(offset, Ordering::Relaxed);
        record.size.store(size, Ordering::Relaxed);
    }

    /// Starts a record anew: Busy, and nothing is known. For whoever owns the object.
    pub(super) fn restart(self) {
        let record = self.record();
        // Not sealed and Busy: nobody believes it, and nobody complains.
        record
            .state
            .store(Self::next(0, State::Busy), Ordering::Relaxed);
        record.alloc.clear();
        record.free.clear();
    }

    /// Forgets a large object's record before its pages go: the next user of the
    /// pages must not find a record that looks alive.
    pub(super) fn forget(self) {
        let record = self.record();
        record.state.store(0, Ordering::Relaxed);
        record.seal.store(0, Ordering::Relaxed);
    }

    /// Whether the object is a run of pages.
    pub(super) fn is_run(self) -> bool {
        page_of(self.0.as_ptr()).is_some_and(|page| page.kind() == PageKind::Run)
    }

    /// Bytes of the backend's object.
    pub(super) fn inner_size(self) -> usize {
        match page_of(self.0.as_ptr()) {
            Some(page) if page.kind() == PageKind::Run => run_pages(page) * PAGE_SIZE,
            _ => class::size(self.class().min(CLASSES - 1)) + EXTRA,
        }
    }

    /// Where the zones are. Sealed records only.
    pub(super) fn layout(self) -> Layout {
        let (base, inner) = (self.base(), self.inner_size());
        let user = base + self.offset();
        let object_end = user + self.size();
        let end = base + inner;
        // An ordinary object owns its class's bytes; an aligned or large one what was
        // asked for.
        let owned = if self.offset() == FRONT && self.class() < CLASSES && !self.is_run() {
            class::size(self.class())
        } else {
            self.size().next_multiple_of(ZONE)
        };
        let red_end = if self.is_run() {
            end.min(object_end + WIDEST)
        } else {
            (user + owned + ZONE).min(end)
        };
        Layout {
            left: ((base + RECORD).max(user.saturating_sub(WIDEST)), user),
            object: (user, object_end),
            poison: (user, user + owned),
            red_end,
            end: if self.is_run() { red_end } else { end },
        }
    }

    fn bytes(self, at: usize) -> *mut u8 {
        self.0.as_ptr().wrapping_add(at - self.base())
    }

    /// Fills bytes of the object. For whoever owns it.
    pub(super) fn fill(self, range: (usize, usize), value: u8) {
        if range.0 < range.1 {
            // SAFETY: `layout` keeps ranges inside the backend's object, which the
            // caller owns.
            unsafe { self.bytes(range.0).write_bytes(value, range.1 - range.0) };
        }
    }

    /// One byte, by address.
    pub(super) fn byte(self, at: usize) -> u8 {
        // SAFETY: inside the backend's object. Volatile: a stray writer may be at it.
        unsafe { ptr::read_volatile(self.bytes(at)) }
    }

    /// From the first to behind the last byte of a range that is not `value`.
    pub(super) fn differs(self, range: (usize, usize), value: u8) -> Option<Range<usize>> {
        let first = self.first_other(range, value)?;
        let last = (first..range.1)
            .rev()
            .find(|at| self.byte(*at) != value)
            .unwrap_or(first);
        Some(first..last + 1)
    }

    fn first_other(self, (from, to): (usize, usize), value: u8) -> Option<usize> {
        let word = u64::from_ne_bytes([value; 8]);
        let mut at = from;
        while at < to {
            if at.is_multiple_of(8) && to - at >= 8 {
                // SAFETY: eight aligned bytes inside the backend's object.
                if unsafe { ptr::read_volatile(self.bytes(at).cast::<u64>()) } == word {
                    at += 8;
                    continue;
                }
            }
            if self.byte(at) != value {
                return Some(at);
            }
            at += 1;
        }
        None
    }
}
