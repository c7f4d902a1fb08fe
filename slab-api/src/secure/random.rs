//! Random numbers that do not give one another away: ChaCha with 8 rounds, and the
//! keyed hash of the canaries, SipHash-1-3 of one word.

#![deny(unsafe_code)]

use super::secret::{self, Secret};

/// One block of the cipher: 16 words for a key and a place (counter and nonce).
pub(crate) fn block(key: &[u32; 8], place: [u32; 4]) -> [u32; 16] {
    const SIGMA: [u32; 4] = [0x6170_7865, 0x3320_646e, 0x7962_2d32, 0x6b20_6574];
    let mut start = [0; 16];
    start[..4].copy_from_slice(&SIGMA);
    start[4..12].copy_from_slice(key);
    start[12..].copy_from_slice(&place);
    let mut x = start;
    let mut quarter = |a: usize, b: usize, c: usize, d: usize| {
        for (left, right) in [(16, 12), (8, 7)] {
            x[a] = x[a].wrapping_add(x[b]);
            x[d] = (x[d] ^ x[a]).rotate_left(left);
            x[c] = x[c].wrapping_add(x[d]);
            x[b] = (x[b] ^ x[c]).rotate_left(right);
        }
    };
    for _ in 0..4 {
        for i in 0..4 {
            quarter(i, 4 + i, 8 + i, 12 + i);
        }
        for i in 0..4 {
            quarter(i, 4 + (i + 1) % 4, 8 + (i + 2) % 4, 12 + (i + 3) % 4);
        }
    }
    for (word, first) in x.iter_mut().zip(start) {
        *word = word.wrapping_add(first);
    }
    x
}

/// A stream of random numbers.
#[derive(Debug)]
pub(crate) struct Random {
    words: [u32; 16],
    left: usize,
    count: u64,
    stream: u32,
    generation: u32,
}

impl Random {
    /// Stream number `stream` of the process.
    pub(crate) const fn new(stream: u32) -> Self {
        Self {
            words: [0; 16],
            left: 0,
            count: 0,
            stream,
            generation: 0,
        }
    }

    /// A number below `bound` (at least 1), all as likely up to a bias of
    /// `bound` / 2^32.
    pub(crate) fn below(&mut self, bound: usize, secret: &Secret) -> usize {
        let generation = secret::generation();
        if self.left == 0 || generation != self.generation {
            self.generation = generation;
            let place = [
                self.count as u32,
                (self.count >> 32) as u32,
                self.stream,
                generation,
            ];
            self.words = block(&secret.cipher, place);
            self.count += 1;
            self.left = self.words.len();
        }
        self.left -= 1;
        // Used numbers do not stay in memory.
        let word = core::mem::take(&mut self.words[self.left]);
        ((u64::from(word) * bound as u64) >> 32) as usize
    }
}

/// SipHash-1-3 of one 8-byte word.
#[inline]
pub(crate) fn hash(key: &[u64; 2], word: u64) -> u64 {
    let mut v = [
        key[0] ^ 0x736f_6d65_7073_6575,
        key[1] ^ 0x646f_7261_6e64_6f6d,
        key[0] ^ 0x6c79_6765_6e65_7261,
        key[1] ^ 0x7465_6462_7974_6573,
    ];
    for m in [word, 8 << 56] {
        v[3] ^= m;
        round(&mut v);
        v[0] ^= m;
    }
    v[2] ^= 0xff;
    for _ in 0..3 {
        round(&mut v);
    }
    v[0] ^ v[1] ^ v[2] ^ v[3]
}

#[inline(always)]
fn round(v: &mut [u64; 4]) {
    v[0] = v[0].wrapping_add(v[1]);
    v[1] = v[1].rotate_left(13) ^ v[0];
    v[0] = v[0].rotate_left(32);
    v[2] = v[2].wrapping_add(v[3]);
    v[3] = v[3].rotate_left(16) ^ v[2];
    v[0] = v[0].wrapping_add(v[3]);
    v[3] = v[3].rotate_left(21) ^ v[0];
    v[2] = v[2].wrapping_add(v[1]);
    v[1] = v[1].rotate_left(17) ^ v[2];
    v[2] = v[2].rotate_left(32);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The published first block of ChaCha8 for an all-zero key and nonce.
    #[test]
    fn the_cipher_is_chacha8() {
        let words = block(&[0; 8], [0; 4]);
        let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
        assert_eq!(
            bytes[..16],
            [
                0x3e, 0x00, 0xef, 0x2f, 0x89, 0x5f, 0x40, 0xd6, 0x7f, 0x5b, 0xb8, 0xe8, 0x1f, 0x09,
                0xa5, 0xa1
            ]
        );
    }

    /// The same hash as the standard library's (SipHash-1-3 with key 0).
    #[test]
    #[allow(deprecated)]
    fn the_hash_is_siphash() {
        use std::hash::{DefaultHasher, Hasher};
        for word in [0, 1, 0x1234_5678_9abc_def0, u64::MAX] {
            let mut std = DefaultHasher::new();
            std.write(&word.to_le_bytes());
            assert_eq!(hash(&[0, 0], word), std.finish());
        }
    }

    #[test]
    fn streams_and_generations_differ() {
        let secret = Secret {
            canary: [0; 2],
            cipher: [7; 8],
        };
        let draw = |stream| {
            let mut random = Random::new(stream);
            (0..100)
                .map(|_| random.below(1 << 30, &secret))
                .collect::<Vec<_>>()
        };
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
        let mut random = Random::new(3);
        let mut seen = [0; 5];
        (0..5000).for_each(|_| seen[random.below(5, &secret)] += 1);
        assert!(seen.iter().all(|n| (800..1200).contains(n)), "{seen:?}");
    }
}
