//! The free objects of a slab: one bit each, set while the object is free.
//!
//! ```text
//!   bits:  0 0 1 1 1 0 1 0 ...     the run that is taken next: 3 objects from 2
//! ```
//! Whoever calls holds the lock of the slab's node.

#![deny(unsafe_code)]

/// A row of words that holds the bits.
pub trait Bits {
    /// Words in the row.
    fn words(&self) -> usize;
    /// The word at `place`, below [`Self::words`].
    fn get(&self, place: usize) -> u64;
    /// Replaces that word.
    fn set(&mut self, place: usize, word: u64);
}

/// Bits of the word at `place` that name one of `objects` objects.
pub fn mask(objects: usize, place: usize) -> u64 {
    match objects.saturating_sub(place * 64) {
        0 => 0,
        n @ 1..64 => (1 << n) - 1,
        _ => u64::MAX,
    }
}

/// Marks all of `objects` objects free, and nothing else.
pub fn fill(bits: &mut impl Bits, objects: usize) {
    for place in 0..bits.words() {
        bits.set(place, mask(objects, place));
    }
}

/// Takes the first free object and those right behind it, `most` at most. The index of
/// the first, and how many; `None` when none is free. Bits beyond `objects` are not
/// looked at.
pub fn take_run(bits: &mut impl Bits, objects: usize, most: usize) -> Option<(usize, usize)> {
    if most == 0 {
        return None;
    }
    let words = bits.words();
    let valid = |bits: &dyn Bits, place| bits.get(place) & mask(objects, place);
    let mut place = (0..words).find(|place| valid(bits, *place) != 0)?;
    let from = valid(bits, place).trailing_zeros() as usize;
    let first = place * 64 + from;
    let mut count = 0;
    let mut bit = from;
    // A run may go on in the next word.
    while place < words {
        let word = valid(bits, place);
        let run = ((!(word >> bit)).trailing_zeros() as usize).min(64 - bit);
        let n = run.min(most - count);
        if n > 0 {
            let taken = (u64::MAX >> (64 - n)) << bit;
            bits.set(place, bits.get(place) & !taken);
            count += n;
        }
        if bit + n < 64 || count == most {
            break;
        }
        (place, bit) = (place + 1, 0);
    }
    Some((first, count))
}

/// Marks an object free; false when it was already, or is none of `objects`.
pub fn put(bits: &mut impl Bits, objects: usize, index: usize) -> bool {
    let (place, bit) = (index / 64, 1 << (index % 64));
    if index >= objects || place >= bits.words() || bits.get(place) & bit != 0 {
        return false;
    }
    bits.set(place, bits.get(place) | bit);
    true
}

/// Whether an object is free.
pub fn is_free(bits: &impl Bits, index: usize) -> bool {
    index / 64 < bits.words() && bits.get(index / 64) >> (index % 64) & 1 != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Row<const N: usize>([u64; N]);
    impl<const N: usize> Bits for Row<N> {
        fn words(&self) -> usize {
            N
        }
        fn get(&self, place: usize) -> u64 {
            self.0[place]
        }
        fn set(&mut self, place: usize, word: u64) {
            self.0[place] = word;
        }
    }

    #[test]
    fn runs_end_at_objects_in_use() {
        let mut row = Row([0b0101_1100]);
        assert_eq!(take_run(&mut row, 64, 9), Some((2, 3)));
        assert_eq!(take_run(&mut row, 64, 9), Some((6, 1)));
        assert_eq!(take_run(&mut row, 64, 9), None);
        assert!(put(&mut row, 64, 3) && !put(&mut row, 64, 3));
        assert!(is_free(&row, 3) && !is_free(&row, 2));
        assert_eq!(take_run(&mut row, 64, 0), None);
    }

    #[test]
    fn runs_cross_words_and_stop_at_the_last_object() {
        let mut row = Row([0; 3]);
        fill(&mut row, 150);
        assert_eq!(row.0, [u64::MAX, u64::MAX, (1 << 22) - 1]);
        assert_eq!(take_run(&mut row, 150, 60), Some((0, 60)));
        assert_eq!(take_run(&mut row, 150, 70), Some((60, 70)));
        // Stray bits name no object.
        row.set(2, row.get(2) | 1 << 40);
        assert_eq!(take_run(&mut row, 150, 99), Some((130, 20)));
        assert_eq!(take_run(&mut row, 150, 99), None);
        assert!(!put(&mut row, 150, 150), "no such object");
    }

    /// Against a row of flags.
    #[test]
    fn follows_a_naive_model() {
        let mut seed = 12345u64;
        let mut random = |below: usize| {
            seed = seed
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            (seed >> 33) as usize % below
        };
        for objects in [1, 63, 64, 65, 127, 128, 250, 256] {
            let mut row = Row([0; 4]);
            fill(&mut row, objects);
            let mut model = vec![true; objects];
            for _ in 0..3000 {
                if random(3) == 0 {
                    let most = 1 + random(90);
                    let first = model.iter().position(|free| *free);
                    let expected = first.map(|first| {
                        let run = model[first..].iter().take_while(|free| **free);
                        (first, run.count().min(most))
                    });
                    assert_eq!(take_run(&mut row, objects, most), expected);
                    if let Some((first, count)) = expected {
                        model[first..first + count].fill(false);
                    }
                } else {
                    let index = random(objects);
                    assert_eq!(put(&mut row, objects, index), !model[index]);
                    model[index] = true;
                }
            }
        }
    }
}
