//! When what lies idle in a slot is looked for: every so many milliseconds of the coarse
//! clock, which slow paths read; there is no timer.

#![deny(unsafe_code)]

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Milliseconds from one look of a slot to the next.
#[derive(Debug)]
pub struct Interval(AtomicU64);

impl Interval {
    /// One of `ms` milliseconds.
    pub const fn new(ms: u64) -> Self {
        Self(AtomicU64::new(ms))
    }

    /// Changes it, to at least 1 ms; as each slot's present interval ends.
    pub fn set(&self, ms: u64) {
        self.0.store(ms.max(1), Relaxed);
    }

    /// Milliseconds.
    pub fn ms(&self) -> u64 {
        self.0.load(Relaxed)
    }

    /// Whether the slot with this number, whose `next` look is to come (in milliseconds; 0:
    /// it has had none), looks `now`. The first is somewhere in the second interval, apart
    /// from other slots'. `next` is to be set by who looks.
    #[inline]
    pub fn is_due(&self, next: &AtomicU64, now: u64, number: usize) -> bool {
        now >= next.load(Relaxed) && !self.begins(next, now, number)
    }

    #[cold]
    fn begins(&self, next: &AtomicU64, now: u64, number: usize) -> bool {
        let first = next.load(Relaxed) == 0;
        if first {
            let apart = number as u64 * 37 % self.ms();
            next.store(now + self.ms() + apart, Relaxed);
        }
        first
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_look_is_in_the_second_interval() {
        let interval = Interval::new(100);
        let next = AtomicU64::new(0);
        assert!(!interval.is_due(&next, 1000, 3));
        assert_eq!(next.load(Relaxed), 1000 + 100 + 3 * 37 % 100);
        assert!(!interval.is_due(&next, 1110, 3));
        assert!(interval.is_due(&next, 1111, 3));
        // Whoever does not look comes back.
        assert!(interval.is_due(&next, 1112, 3));
        interval.set(0);
        assert_eq!(interval.ms(), 1);
    }
}
