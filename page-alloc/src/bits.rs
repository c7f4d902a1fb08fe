//! A pageblock's 512 pages as a bitmap, and the buddy system read off it.
//!
//! ```text
//!   word 0: pages 0..63    bit set = the page is in the set
//!   ...
//!   word 7: pages 448..511
//! ```
//! A chunk of order `o` is an aligned run of 2^o set bits: folding a word over
//! itself leaves a bit at the start of each (as a population count folds). So
//! freeing is setting bits, merging is implied, and no record of a free page is
//! touched. Best fit prefers the chunk whose buddy is not free.

#![deny(unsafe_code)]

use crate::types::{PAGEBLOCK_ORDER, PAGEBLOCK_PAGES};

/// Words of a map.
pub(crate) const WORDS: usize = PAGEBLOCK_PAGES / 64;

/// A set of the pages of one block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Bits(pub(crate) [u64; WORDS]);

/// Bit positions on which chunks of order 0 to 6 may start in a word.
const STARTS: [u64; 7] = [
    u64::MAX,
    0x5555_5555_5555_5555,
    0x1111_1111_1111_1111,
    0x0101_0101_0101_0101,
    0x0001_0001_0001_0001,
    0x0000_0001_0000_0001,
    1,
];
/// The order of a whole word.
const WORD_ORDER: u8 = 6;

impl Bits {
    /// The pages [from, to).
    pub(crate) fn range(from: usize, to: usize) -> Self {
        let below = |n: usize| if n >= 64 { u64::MAX } else { (1 << n) - 1 };
        let mut words = [0; WORDS];
        for (i, word) in words.iter_mut().enumerate() {
            let base = i * 64;
            *word = below(to.saturating_sub(base)) & !below(from.saturating_sub(base));
        }
        Self(words)
    }

    pub(crate) fn and(self, other: Self) -> Self {
        Self(core::array::from_fn(|i| self.0[i] & other.0[i]))
    }

    pub(crate) fn or(self, other: Self) -> Self {
        Self(core::array::from_fn(|i| self.0[i] | other.0[i]))
    }

    pub(crate) fn minus(self, other: Self) -> Self {
        Self(core::array::from_fn(|i| self.0[i] & !other.0[i]))
    }

    pub(crate) fn is_empty(self) -> bool {
        self.0 == [0; WORDS]
    }

    pub(crate) fn is_full(self) -> bool {
        self.0 == [u64::MAX; WORDS]
    }

    pub(crate) fn count(self) -> usize {
        self.0.iter().map(|w| w.count_ones() as usize).sum()
    }

    pub(crate) fn contains(self, page: usize) -> bool {
        self.0[page >> 6] >> (page & 63) & 1 != 0
    }

    /// The pages in the set, from the lowest.
    pub(crate) fn iter(self) -> impl Iterator<Item = usize> {
        self.0.into_iter().enumerate().flat_map(|(i, mut word)| {
            core::iter::from_fn(move || {
                let bit = word.trailing_zeros() as usize;
                word &= word.wrapping_sub(1);
                (bit < 64).then_some(i * 64 + bit)
            })
        })
    }

    /// The start of each chunk of `order` (at most 6) that lies in the set.
    fn fold(self, order: u8) -> [u64; WORDS] {
        let mut words = self.0;
        for o in 0..order {
            fold_once(&mut words, o);
        }
        words
    }

    /// The order of the largest chunk around a page that is in the set.
    pub(crate) fn order_at(self, page: usize) -> u8 {
        order_at(|i| self.0[i], page)
    }

    /// The largest order of which the set holds a chunk; `None` when it is empty.
    pub(crate) fn largest_order(self) -> Option<u8> {
        if self.is_empty() {
            return None;
        }
        if self.is_full() {
            return Some(PAGEBLOCK_ORDER);
        }
        let mut words = self.0;
        let mut order = 0;
        while order < WORD_ORDER {
            let mut next = words;
            fold_once(&mut next, order);
            if next == [0; WORDS] {
                return Some(order);
            }
            words = next;
            order += 1;
        }
        // A full word shows as bit 0.
        for wide in (7..=PAGEBLOCK_ORDER).rev() {
            let step = 1 << (wide - WORD_ORDER);
            if words.chunks(step).any(|c| c.iter().all(|w| *w != 0)) {
                return Some(wide);
            }
        }
        Some(WORD_ORDER)
    }

    /// The chunk of `order` that breaks the smallest larger one: its first page.
    pub(crate) fn find(self, order: u8) -> Option<usize> {
        let mut words = self.fold(order.min(WORD_ORDER));
        for o in order..WORD_ORDER {
            let mut next = words;
            fold_once(&mut next, o);
            for (i, (word, parent)) in words.iter().zip(&next).enumerate() {
                // Chunks inside a free chunk of the next order are for later.
                let exact = word & !(parent | parent << (1 << o));
                if exact != 0 {
                    return Some(i * 64 + exact.trailing_zeros() as usize);
                }
            }
            words = next;
        }
        // Whole words, or several.
        let own = order.max(WORD_ORDER);
        let step = 1 << (own - WORD_ORDER);
        words
            .chunks(step)
            .zip((0..).step_by(step * 64))
            .filter(|(chunk, _)| chunk.iter().all(|w| *w != 0))
            .map(|(_, page)| page)
            .min_by_key(|page| self.order_at(*page))
    }

    /// Takes up to `most` single pages, those in broken words first.
    pub(crate) fn take_singles(self, most: usize) -> Self {
        let mut out = [0; WORDS];
        let mut left = most;
        for whole in [false, true] {
            for (word, taken) in self.0.iter().zip(&mut out) {
                if (*word == u64::MAX) != whole || left == 0 {
                    continue;
                }
                let mut rest = *word;
                for _ in 0..left.min(word.count_ones() as usize) {
                    rest &= rest.wrapping_sub(1);
                }
                *taken = word ^ rest;
                left -= taken.count_ones() as usize;
            }
        }
        Self(out)
    }

    /// The first run of `pages` pages (any alignment): its first page.
    pub(crate) fn find_run(self, pages: usize) -> Option<usize> {
        self.runs()
            .find(|&(from, to)| to - from >= pages)
            .map(|(from, _)| from)
    }

    /// The maximal runs [from, to), from the lowest.
    pub(crate) fn runs(self) -> impl Iterator<Item = (usize, usize)> {
        let mut at = 0;
        core::iter::from_fn(move || {
            let from = self.next_from(at, true)?;
            let to = self.next_from(from, false).unwrap_or(PAGEBLOCK_PAGES);
            at = to;
            Some((from, to))
        })
    }

    /// The first page from `at` on that is in the set (or is not).
    fn next_from(self, at: usize, set: bool) -> Option<usize> {
        let mut i = at >> 6;
        let mut mask = u64::MAX << (at & 63);
        while i < WORDS {
            let word = if set { self.0[i] } else { !self.0[i] } & mask;
            if word != 0 {
                return Some(i * 64 + word.trailing_zeros() as usize);
            }
            mask = u64::MAX;
            i += 1;
        }
        None
    }

    /// Pages of the set at the block's start, and at its end, in one piece.
    pub(crate) fn ends(self) -> (usize, usize) {
        let lead = self.next_from(0, false).unwrap_or(PAGEBLOCK_PAGES);
        let mut trail = 0;
        for word in self.0.iter().rev() {
            trail += word.leading_ones() as usize;
            if *word != u64::MAX {
                break;
            }
        }
        (lead, trail)
    }

    /// How many maximal chunks of each order the set makes: buddyinfo's numbers.
    pub(crate) fn chunks(self, mut f: impl FnMut(usize, u8)) {
        let mut page = 0;
        while page < PAGEBLOCK_PAGES {
            if self.contains(page) {
                let order = self.order_at(page);
                f(page, order);
                page += 1 << order;
            } else {
                page += 1;
            }
        }
    }
}

/// The order of the largest chunk around a page of a set whose words `word` reads.
pub(crate) fn order_at(word: impl Fn(usize) -> u64, page: usize) -> u8 {
    let own = word(page >> 6);
    let mut order = 0;
    while order < WORD_ORDER {
        let (mask, _) = chunk_mask(page & !((2 << order) - 1), order + 1);
        if own & mask != mask {
            return order;
        }
        order += 1;
    }
    while order < PAGEBLOCK_ORDER {
        let words = 2 << (order - WORD_ORDER);
        let first = (page >> 6) & !(words - 1);
        if (first..first + words).any(|i| word(i) != u64::MAX) {
            break;
        }
        order += 1;
    }
    order
}

/// The bits of a chunk of at most a word, and the word they are in.
pub(crate) fn chunk_mask(page: usize, order: u8) -> (u64, usize) {
    let bits = u64::MAX >> (64 - (1 << order));
    (bits << (page & 63), page >> 6)
}

/// From the starts of order `o` (at most 5) to those of the next one.
fn fold_once(words: &mut [u64; WORDS], o: u8) {
    for word in words {
        *word &= *word >> (1 << o) & STARTS[o as usize + 1];
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bits() -> impl Strategy<Value = Bits> {
        // Sparse, dense, and made of aligned chunks: each shape has its own edge.
        prop_oneof![
            any::<[u64; WORDS]>().prop_map(Bits),
            (any::<[u64; WORDS]>(), any::<[u64; WORDS]>()).prop_map(|(a, b)| Bits(a)
                .or(Bits(b))
                .or(Bits([0, u64::MAX, 0, 0, 1, 0, 0, 0]))),
            proptest::collection::vec((0usize..512, 0u8..10), 0..12).prop_map(|chunks| {
                let mut all = Bits::default();
                for (page, order) in chunks {
                    let start = page & !((1 << order) - 1);
                    all = all.or(Bits::range(start, start + (1 << order)));
                }
                all
            }),
        ]
    }

    fn naive_chunk(b: Bits, start: usize, order: u8) -> bool {
        start.is_multiple_of(1 << order) && (start..start + (1 << order)).all(|p| b.contains(p))
    }

    proptest! {
        #[test]
        fn agrees_with_the_naive_bitmap(b in bits(), order in 0u8..10, pages in 1usize..513, most in 0usize..80) {
            let starts: Vec<usize> =
                (0..512).step_by(1 << order).filter(|s| naive_chunk(b, *s, order)).collect();
            let found = b.find(order);
            prop_assert_eq!(found.is_some(), !starts.is_empty());
            if let Some(start) = found {
                prop_assert!(starts.contains(&start));
                let best = starts.iter().map(|s| b.order_at(*s)).min().unwrap();
                prop_assert_eq!(b.order_at(start), best, "not the best fit");
            }
            let largest = (0..10u8).rev().find(|o| (0..512).any(|s| naive_chunk(b, s, *o)));
            prop_assert_eq!(b.largest_order(), largest);
            prop_assert_eq!(b.count(), b.iter().count());
            prop_assert!(b.iter().all(|p| b.contains(p)));

            let run = (0..=512 - pages).find(|s| (*s..s + pages).all(|p| b.contains(p)));
            prop_assert_eq!(b.find_run(pages), run);
            let total: usize = b.runs().map(|(from, to)| to - from).sum();
            prop_assert_eq!(total, b.count());
            let (lead, trail) = b.ends();
            prop_assert_eq!(lead, (0..512).take_while(|p| b.contains(*p)).count());
            prop_assert_eq!(trail, (0..512).rev().take_while(|p| b.contains(*p)).count());

            let singles = b.take_singles(most);
            prop_assert_eq!(singles.count(), most.min(b.count()));
            prop_assert!(singles.minus(b).is_empty());
            let mut sum = 0;
            b.chunks(|page, o| {
                assert!(naive_chunk(b, page, o));
                sum += 1usize << o;
            });
            prop_assert_eq!(sum, b.count());
        }

        #[test]
        fn a_range_holds_its_pages(from in 0usize..513, len in 0usize..513) {
            let to = (from + len).min(512);
            let range = Bits::range(from, to);
            prop_assert!((0..512).all(|p| range.contains(p) == (from <= p && p < to)));
        }
    }
}
