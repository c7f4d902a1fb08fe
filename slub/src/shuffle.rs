//! Randomised freelists: the order in which the objects of a fresh slab are handed out.
//!
//! ```text
//!   sequence:  [ 3 | 0 | 5 | 1 | 4 | 2 ]      one a cache, shuffled when it is made
//!                        ^ start              another one for each page of objects
//! ```
//! As the kernel does it: one shuffled sequence a cache, entered at a random place.

#![deny(unsafe_code)]

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Objects that a page can have.
const MOST: usize = 256;

/// A cache's sequence.
#[derive(Debug)]
pub(crate) struct Shuffle {
    sequence: [u8; MOST],
    len: usize,
    state: AtomicU64,
}

/// The sequence from one place on.
pub(crate) struct Pick<'a> {
    shuffle: &'a Shuffle,
    start: usize,
}

impl Shuffle {
    /// A sequence of the numbers below `len`, at most 256, that follows from `seed`.
    pub(crate) fn new(len: usize, seed: u64) -> Self {
        let len = len.clamp(1, MOST);
        let mut shuffle = Self {
            sequence: core::array::from_fn(|n| n as u8),
            len,
            state: AtomicU64::new(seed),
        };
        for n in (1..len).rev() {
            let other = shuffle.random() as usize % (n + 1);
            shuffle.sequence.swap(n, other);
        }
        shuffle
    }

    /// Numbers in the sequence.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The next random number (splitmix64).
    fn random(&self) -> u64 {
        let mut z = self
            .state
            .fetch_add(0x9e37_79b9_7f4a_7c15, Relaxed)
            .wrapping_add(0x9e37_79b9_7f4a_7c15);
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// The sequence from a random place on.
    pub(crate) fn pick(&self) -> Pick<'_> {
        Pick {
            shuffle: self,
            start: self.random() as usize % self.len,
        }
    }
}

impl Pick<'_> {
    /// The `n`th number.
    pub(crate) fn get(&self, n: usize) -> usize {
        self.shuffle.sequence[(self.start + n) % self.shuffle.len].into()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn every_number_once_in_orders_that_differ() {
        for len in [1, 2, 7, 64, 255, 256] {
            let shuffle = Shuffle::new(len, 42);
            let mut orders = Vec::new();
            for _ in 0..20 {
                let pick = shuffle.pick();
                let order: Vec<_> = (0..len).map(|n| pick.get(n)).collect();
                let mut sorted = order.clone();
                sorted.sort_unstable();
                assert!(sorted.into_iter().eq(0..len), "{order:?}");
                orders.push(order);
            }
            orders.sort();
            orders.dedup();
            assert!(len < 7 || orders.len() > 4, "{} orders", orders.len());
        }
        let (a, b) = (Shuffle::new(64, 1), Shuffle::new(64, 2));
        assert_ne!(a.sequence[..64], b.sequence[..64]);
        assert!(
            a.sequence[..64]
                .iter()
                .enumerate()
                .any(|(n, v)| n != usize::from(*v))
        );
    }
}
