//! The numbers of a cache that can be set while it runs.

#![deny(unsafe_code)]

use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

use crate::slab::{MAX_ORDER, Shape};

/// What can be set for each cache, at any time ([`crate::Slub::tune`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tunables {
    /// Free objects that the partial list of a slot may hold, about: it is counted in
    /// slabs that are taken to be half free. 0 to 65535; 0 sends every slab that a free
    /// finds full to the node.
    pub cpu_partial: usize,
    /// Slabs that a node keeps on its list before it gives empty ones back. 0 to 65535.
    pub min_partial: usize,
    /// log2 of the pages of a slab, once a thread has used enough of the cache: 0 to 5,
    /// and large enough for an object. Slabs that exist stay as they are.
    pub order: u8,
    /// Of 100 slots that find no slab of their own node, how many look at the others
    /// before they make one. 0 to 100.
    pub remote_node_defrag_ratio: usize,
}

/// Why tunables were refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TuneError {
    /// `cpu_partial` is above 65535.
    CpuPartial,
    /// `min_partial` is above 65535.
    MinPartial,
    /// `order` is above 5, or a slab of that order would hold no object.
    Order,
    /// `remote_node_defrag_ratio` is above 100.
    Ratio,
}

impl core::fmt::Display for TuneError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::CpuPartial => "cpu_partial must be 0 to 65535 objects",
            Self::MinPartial => "min_partial must be 0 to 65535 slabs",
            Self::Order => "order must be 0 to 5, and a slab must hold an object",
            Self::Ratio => "remote_node_defrag_ratio must be 0 to 100",
        })
    }
}

impl core::error::Error for TuneError {}

/// The numbers as the slow paths read them. Each stands alone, so they are words of
/// their own.
#[derive(Debug)]
pub(crate) struct Tuned {
    cpu_partial: AtomicU32,
    /// The same in slabs.
    cpu_slabs: AtomicU32,
    min_partial: AtomicU32,
    ratio: AtomicU32,
    /// Attempts to look at other nodes.
    attempts: AtomicU32,
}

impl Tuned {
    /// The kernel's numbers for a size.
    pub(crate) fn new(shape: &Shape) -> Self {
        let tuned = Self {
            cpu_partial: AtomicU32::new(0),
            cpu_slabs: AtomicU32::new(0),
            min_partial: AtomicU32::new((shape.stride.ilog2() / 2).clamp(5, 10)),
            ratio: AtomicU32::new(100),
            attempts: AtomicU32::new(0),
        };
        let objects: u32 = match shape.stride {
            4096.. => 6,
            1024.. => 24,
            256.. => 52,
            _ => 120,
        };
        tuned.cpu_partial.store(objects, Relaxed);
        // A minimum of slabs on top of the kernel's rule: the slabs here are larger.
        let slabs = slabs_for(shape, objects).clamp(8, 30);
        tuned.cpu_slabs.store(slabs, Relaxed);
        tuned
    }

    pub(crate) fn get(&self, shape: &Shape) -> Tunables {
        Tunables {
            cpu_partial: self.cpu_partial.load(Relaxed) as usize,
            min_partial: self.min_partial(),
            order: shape.most(),
            remote_node_defrag_ratio: self.ratio.load(Relaxed) as usize,
        }
    }

    pub(crate) fn set(&self, shape: &Shape, new: Tunables) -> Result<(), TuneError> {
        const MOST: usize = u16::MAX as usize;
        if new.cpu_partial > MOST {
            return Err(TuneError::CpuPartial);
        }
        if new.min_partial > MOST {
            return Err(TuneError::MinPartial);
        }
        if new.remote_node_defrag_ratio > 100 {
            return Err(TuneError::Ratio);
        }
        if new.order > MAX_ORDER || !shape.set_most(new.order) {
            return Err(TuneError::Order);
        }
        let objects = new.cpu_partial as u32;
        // Only what is set by hand follows the rule to the letter.
        if objects != self.cpu_partial.load(Relaxed) {
            self.cpu_partial.store(objects, Relaxed);
            self.cpu_slabs.store(slabs_for(shape, objects), Relaxed);
        }
        self.min_partial.store(new.min_partial as u32, Relaxed);
        self.ratio
            .store(new.remote_node_defrag_ratio as u32, Relaxed);
        Ok(())
    }

    /// Slabs that a slot's partial list may hold.
    #[inline(always)]
    pub(crate) fn cpu_slabs(&self) -> usize {
        self.cpu_slabs.load(Relaxed) as usize
    }

    /// Slabs that a node keeps.
    pub(crate) fn min_partial(&self) -> usize {
        self.min_partial.load(Relaxed) as usize
    }

    /// Whether this miss looks at other nodes before it makes a slab: spread evenly over
    /// the attempts.
    pub(crate) fn try_remote(&self) -> bool {
        let ratio = u64::from(self.ratio.load(Relaxed));
        let n = u64::from(self.attempts.fetch_add(1, Relaxed));
        (n + 1) * ratio / 100 > n * ratio / 100
    }
}

/// Slabs with so many free objects, when they are half free.
fn slabs_for(shape: &Shape, objects: u32) -> u32 {
    (2 * objects).div_ceil(u32::from(shape.most_objects()).max(1))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn bad_numbers_are_refused_and_change_nothing() {
        let shape = Shape::new(8192, 4096, 0);
        let tuned = Tuned::new(&shape);
        let good = tuned.get(&shape);
        for (bad, error) in [
            (
                Tunables {
                    cpu_partial: 65536,
                    ..good
                },
                TuneError::CpuPartial,
            ),
            (
                Tunables {
                    min_partial: 65536,
                    ..good
                },
                TuneError::MinPartial,
            ),
            (Tunables { order: 6, ..good }, TuneError::Order),
            (Tunables { order: 0, ..good }, TuneError::Order),
            (
                Tunables {
                    remote_node_defrag_ratio: 101,
                    ..good
                },
                TuneError::Ratio,
            ),
        ] {
            assert_eq!(tuned.set(&shape, bad), Err(error));
            assert_eq!(tuned.get(&shape), good);
        }
        let other = Tunables {
            cpu_partial: 0,
            min_partial: 0,
            order: 1,
            remote_node_defrag_ratio: 0,
        };
        tuned.set(&shape, other).unwrap();
        assert_eq!(tuned.get(&shape), other);
        assert_eq!(tuned.cpu_slabs(), 0);
    }

    #[test]
    fn the_table_is_the_kernels() {
        for (size, objects, slabs) in [(64, 120, 5), (256, 52, 5), (1024, 24, 5), (4096, 6, 6)] {
            let shape = Shape::new(size, 0, 0);
            let t = Tuned::new(&shape).get(&shape);
            assert_eq!((t.cpu_partial, t.min_partial), (objects, slabs), "{size}");
        }
    }

    #[test]
    fn the_ratio_is_a_percentage_of_attempts() {
        let shape = Shape::new(64, 32, 0);
        let tuned = Tuned::new(&shape);
        for ratio in [0, 1, 30, 100] {
            let all = Tunables {
                remote_node_defrag_ratio: ratio,
                ..tuned.get(&shape)
            };
            tuned.set(&shape, all).unwrap();
            tuned.attempts.store(0, Relaxed);
            assert_eq!((0..1000).filter(|_| tuned.try_remote()).count(), ratio * 10);
        }
    }
}
