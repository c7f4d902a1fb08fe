//! The three numbers of a cache that can be set while it runs.
//!
//! ```text
//!   [ epoch : 16 | shared : 16 | batchcount : 16 | limit : 16 ]     one word
//! ```
//! One word, so that a slow path sees numbers that belong together. The epoch moves
//! on with each change; a slot whose array was made in another epoch replaces it.

use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use page_alloc::PAGE_SIZE;

/// The largest limit of an array.
pub(crate) const MAX_LIMIT: usize = 4095;
/// The most objects of a shared array.
const MAX_SHARED: usize = 1 << 16;

/// Why tunables were refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TuneError {
    /// The limit is 0 or above 4095.
    Limit,
    /// The batchcount is 0 or above the limit.
    Batchcount,
    /// The shared array would hold more than 65536 objects.
    Shared,
}

impl core::fmt::Display for TuneError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::Limit => "the limit must be 1 to 4095",
            Self::Batchcount => "the batchcount must be 1 to the limit",
            Self::Shared => "shared times batchcount must be at most 65536",
        })
    }
}

impl core::error::Error for TuneError {}

/// A cache's tunables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tunables {
    /// Objects that an array holds.
    pub(crate) limit: usize,
    /// Objects that move at a time.
    pub(crate) batchcount: usize,
    /// Batches that the shared array holds.
    pub(crate) shared: usize,
    pub(crate) epoch: u16,
}

impl Tunables {
    /// The table, by object size.
    pub(crate) fn for_size(stride: usize) -> Self {
        let limit = match stride {
            131_073.. => 1,
            4097.. => 8,
            1025.. => 24,
            257.. => 54,
            _ => 120,
        };
        Self {
            limit,
            batchcount: limit.div_ceil(2),
            shared: if stride > PAGE_SIZE { 0 } else { 8 },
            epoch: 0,
        }
    }

    pub(crate) fn check(limit: usize, batchcount: usize, shared: usize) -> Result<Self, TuneError> {
        if limit == 0 || limit > MAX_LIMIT {
            Err(TuneError::Limit)
        } else if batchcount == 0 || batchcount > limit {
            Err(TuneError::Batchcount)
        } else if shared > MAX_SHARED / batchcount || shared > usize::from(u16::MAX) {
            Err(TuneError::Shared)
        } else {
            Ok(Self {
                limit,
                batchcount,
                shared,
                epoch: 0,
            })
        }
    }

    pub(crate) fn load(word: &AtomicU64) -> Self {
        let word = word.load(Relaxed);
        let part = |n: u32| (word >> (16 * n)) as u16;
        Self {
            limit: part(0).into(),
            batchcount: part(1).into(),
            shared: part(2).into(),
            epoch: part(3),
        }
    }

    pub(crate) fn word(self) -> u64 {
        self.limit as u64
            | (self.batchcount as u64) << 16
            | (self.shared as u64) << 32
            | u64::from(self.epoch) << 48
    }

    /// Objects of the shared array.
    pub(crate) fn shared_limit(self) -> usize {
        self.shared * self.batchcount
    }

    /// Free objects beyond which a node gives empty slabs back.
    pub(crate) fn free_limit(self, objects: usize) -> usize {
        (1 + cpus()) * self.batchcount + objects
    }
}

/// CPUs that the process may run on, as it was when first asked.
fn cpus() -> usize {
    static CPUS: AtomicUsize = AtomicUsize::new(0);
    match CPUS.load(Relaxed) {
        0 => {
            // SAFETY: the set is a plain array of words, of which all-zero is a value;
            // the call writes no more than its size, and counting only reads it.
            let count = unsafe {
                let mut set: libc::cpu_set_t = core::mem::zeroed();
                if libc::sched_getaffinity(0, size_of_val(&set), &raw mut set) == 0 {
                    libc::CPU_COUNT(&set) as usize
                } else {
                    1
                }
            };
            CPUS.store(count.max(1), Relaxed);
            count.max(1)
        }
        count => count,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_is_the_kernels() {
        for (size, limit, batchcount, shared) in [
            (16, 120, 60, 480),
            (256, 120, 60, 480),
            (272, 54, 27, 216),
            (1024, 54, 27, 216),
            (1040, 24, 12, 96),
            (4096, 24, 12, 96),
            (4112, 8, 4, 0),
            (32768, 8, 4, 0),
            (200_000, 1, 1, 0),
        ] {
            let t = Tunables::for_size(size);
            assert_eq!(
                (t.limit, t.batchcount, t.shared_limit()),
                (limit, batchcount, shared),
                "{size}"
            );
        }
    }

    #[test]
    fn words_keep_all_parts() {
        let t = Tunables {
            epoch: 3,
            ..Tunables::check(4095, 17, 3855).unwrap()
        };
        assert_eq!(Tunables::load(&AtomicU64::new(t.word())), t);
        assert_eq!(Tunables::check(0, 1, 1), Err(TuneError::Limit));
        assert_eq!(Tunables::check(4096, 1, 1), Err(TuneError::Limit));
        assert_eq!(Tunables::check(8, 9, 1), Err(TuneError::Batchcount));
        assert_eq!(Tunables::check(8, 0, 1), Err(TuneError::Batchcount));
        assert_eq!(Tunables::check(8, 8, 8193), Err(TuneError::Shared));
    }
}
