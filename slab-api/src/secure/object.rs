//! What lies in an object of the secure heap: the canary, and zeros while it is free.
//!
//! ```text
//!   in use:  | asked for | pad | word |      pad: one byte of the hash, repeated
//!   free:    | 0 0 0 ...     0 | word |
//!   word:    | pad's byte | state, 2 bytes | its tag | 4 bytes of the hash |
//! ```
//! The hash is a keyed one of the word's address, and the state, encoded with it, is the
//! pad's length or [`FREE`]. The upper half of the word never changes while the slab lives, so whoever frees an object can check its
//! neighbour's word as well (that is how a write before an object shows), without
//! knowing what the neighbour's owner does at that moment.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::random;

/// Bytes of the word.
pub(crate) const WORD: usize = 8;
/// The state of an object that nobody has.
const FREE: u16 = u16::MAX;

/// An object's place: its address and the distance to the next one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) p: *mut u8,
    pub(crate) stride: usize,
}

/// What is wrong with an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Its canary was overwritten.
    After,
    /// The word before it was overwritten.
    Before,
}

impl Place {
    /// Bytes before the word.
    pub(crate) fn capacity(self) -> usize {
        self.stride - WORD
    }

    fn word(self) -> &'static AtomicU64 {
        word_at(self.p.wrapping_add(self.capacity()))
    }

    /// The word's value for a state, and the pad's byte.
    fn code(self, key: &[u64; 2], state: u16) -> (u64, u8) {
        let hash = hash_of(key, self.word());
        (encode(hash, state), pad_byte(hash))
    }

    /// Makes a free object of arbitrary memory.
    ///
    /// # Safety
    /// The object must be the caller's alone. (So for all of these.)
    pub(crate) unsafe fn wipe(self, key: &[u64; 2]) {
        // SAFETY: ours, `stride` bytes.
        unsafe { self.p.write_bytes(0, self.capacity()) };
        self.word().store(self.code(key, FREE).0, Relaxed);
    }

    /// Clears what a backend wrote behind the first `from` bytes of a free object.
    ///
    /// # Safety
    /// As [`Self::wipe`].
    pub(crate) unsafe fn wipe_from(self, from: usize) {
        // SAFETY: as above; `from` is at most the capacity.
        unsafe {
            self.p
                .add(from)
                .write_bytes(0, self.capacity().saturating_sub(from));
        }
    }

    /// Whether the first `bytes` bytes (a multiple of 8) of a free object are as they
    /// were left, and its word.
    ///
    /// # Safety
    /// As [`Self::wipe`].
    pub(crate) unsafe fn is_clean(self, key: &[u64; 2], bytes: usize) -> bool {
        // SAFETY: as above; objects are aligned to 16.
        let words =
            unsafe { core::slice::from_raw_parts(self.p.cast::<u64>(), bytes / size_of::<u64>()) };
        let mut dirt = self.word().load(Relaxed) ^ self.code(key, FREE).0;
        // In parts, so that the loop has no branch for each word.
        for part in words.chunks(32) {
            dirt |= part.iter().fold(0, |dirt, word| dirt | word);
            if dirt != 0 {
                return false;
            }
        }
        true
    }

    /// Puts the canary behind the first `size` bytes.
    ///
    /// # Safety
    /// As [`Self::wipe`]; `size` is at most the capacity.
    pub(crate) unsafe fn put_canary(self, key: &[u64; 2], size: usize) {
        let pad = self.capacity().saturating_sub(size);
        let (word, byte) = self.code(key, pad as u16);
        // SAFETY: as above.
        unsafe { self.p.add(size).write_bytes(byte, pad) };
        self.word().store(word, Relaxed);
    }

    /// The size that an object in use was asked with.
    ///
    /// # Errors
    /// [`Fault::After`] when the word makes no sense.
    pub(crate) fn size(self, key: &[u64; 2]) -> Result<usize, Fault> {
        let hash = hash_of(key, self.word());
        let word = self.word().load(Relaxed);
        let state = ((word ^ hash) >> 8) as u16;
        let pad = usize::from(state);
        if word == encode(hash, state) && pad <= self.capacity() {
            Ok(self.capacity() - pad)
        } else {
            Err(Fault::After)
        }
    }

    /// As [`Self::size`], and checks the whole canary.
    ///
    /// # Safety
    /// As [`Self::wipe`].
    ///
    /// # Errors
    /// [`Fault::After`] when it was overwritten.
    pub(crate) unsafe fn check_canary(self, key: &[u64; 2]) -> Result<usize, Fault> {
        let size = self.size(key)?;
        let (_, byte) = self.code(key, 0);
        // SAFETY: as above.
        let pad = unsafe { core::slice::from_raw_parts(self.p.add(size), self.capacity() - size) };
        if pad.iter().fold(0, |dirt, b| dirt | (b ^ byte)) == 0 {
            Ok(size)
        } else {
            Err(Fault::After)
        }
    }

    /// Checks the part that never changes of the word of the object before this one,
    /// which must be in the same slab.
    ///
    /// # Errors
    /// [`Fault::Before`] when it was overwritten.
    pub(crate) fn check_before(self, key: &[u64; 2]) -> Result<(), Fault> {
        let word = word_at(self.p.wrapping_sub(WORD));
        if (word.load(Relaxed) ^ hash_of(key, word)) >> 32 == 0 {
            Ok(())
        } else {
            Err(Fault::Before)
        }
    }
}

/// The pad's byte, also the word's first one: never 0 nor a letter, so that a string
/// which is a byte too long always shows.
fn pad_byte(hash: u64) -> u8 {
    hash as u8 | 0x80
}

/// The word for a state: with a tag, which one who does not know the hash cannot make.
fn encode(hash: u64, state: u16) -> u64 {
    let tag = (u32::from(state) + 1).wrapping_mul(hash as u32 | 1) >> 24;
    let state = u64::from(state) << 8 | u64::from(tag) << 24;
    ((hash ^ state) & !0xff) | u64::from(pad_byte(hash))
}

fn word_at(p: *mut u8) -> &'static AtomicU64 {
    // SAFETY: callers pass the last 8 bytes of an object's stride: mapped for as long as
    // the slab lives, aligned, and only ever accessed atomically by this module.
    unsafe { AtomicU64::from_ptr(p.cast()) }
}

fn hash_of(key: &[u64; 2], word: &AtomicU64) -> u64 {
    random::hash(key, word.as_ptr() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: [u64; 2] = [3, 5];

    #[repr(align(16))]
    struct Slab([u8; 256]);

    fn places(slab: &mut Slab) -> [Place; 2] {
        let p = slab.0.as_mut_ptr();
        [0, 128].map(|at| Place {
            p: p.wrapping_add(at),
            stride: 128,
        })
    }

    #[test]
    fn every_overwritten_byte_of_a_canary_shows() {
        let mut slab = Slab([0xee; 256]);
        let [first, second] = places(&mut slab);
        for size in [0, 1, 24, 119, 120] {
            // SAFETY: both are in `slab`, which is ours.
            unsafe {
                first.wipe(&KEY);
                second.wipe(&KEY);
                first.put_canary(&KEY, size);
                assert_eq!(first.check_canary(&KEY), Ok(size));
                assert_eq!(second.check_before(&KEY), Ok(()));
                for at in size..128 {
                    for change in [1, 0x41, 0x80, 0xff] {
                        *first.p.add(at) ^= change;
                        assert_eq!(first.check_canary(&KEY), Err(Fault::After), "{size} {at}");
                        let before = if at >= 124 {
                            Err(Fault::Before)
                        } else {
                            Ok(())
                        };
                        assert_eq!(second.check_before(&KEY), before);
                        *first.p.add(at) ^= change;
                    }
                }
                assert_eq!(first.check_canary(&KEY), Ok(size));
            }
        }
    }

    #[test]
    fn every_byte_written_to_a_free_object_shows() {
        let mut slab = Slab([0xee; 256]);
        let [first, second] = places(&mut slab);
        // SAFETY: as above.
        unsafe {
            first.wipe(&KEY);
            second.wipe(&KEY);
            assert!(first.is_clean(&KEY, 120));
            for at in 0..128 {
                *first.p.add(at) ^= 0x10;
                assert!(!first.is_clean(&KEY, 120), "{at}");
                *first.p.add(at) ^= 0x10;
            }
            assert!(first.size(&KEY).is_err(), "a free object has no size");
            first.p.add(112).write_bytes(1, 8);
            assert!(first.is_clean(&KEY, 112));
            first.wipe_from(112);
            assert!(first.is_clean(&KEY, 120));
        }
    }
}
