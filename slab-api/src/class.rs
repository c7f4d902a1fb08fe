//! Size classes of the heap.
//!
//! Steps of 16 bytes up to 128, then eight classes a doubling up to 32 KiB: a
//! request above 128 bytes wastes at most 1/8 of its object (15 bytes below, where
//! the alignment of 16 forces it). 72 classes; a cache is made only for those in
//! use.

#![deny(unsafe_code)]

use crate::cache::MAX_OBJECT;

/// Number of size classes.
pub const CLASSES: usize = 72;
/// log2 of the unit in which sizes are looked up.
pub const UNIT_SHIFT: usize = 4;
/// Entries of a table by size: one for each 16 bytes, 0 to [`MAX_OBJECT`].
pub const TABLE: usize = (MAX_OBJECT >> UNIT_SHIFT) + 1;

/// The object size of a class, in bytes.
pub const fn size(class: usize) -> usize {
    if class < 8 {
        return (class + 1) << UNIT_SHIFT;
    }
    let (doubling, step) = ((class - 8) / 8, (class - 8) % 8);
    (9 + step) << (UNIT_SHIFT + doubling)
}

/// The class for a request of so many bytes, at most [`MAX_OBJECT`].
pub const fn of(bytes: usize) -> usize {
    if bytes <= 128 {
        return if bytes == 0 {
            0
        } else {
            (bytes - 1) >> UNIT_SHIFT
        };
    }
    let log = (bytes - 1).ilog2() as usize;
    let step = ((bytes - 1) >> (log - 3)) & 7;
    8 + (log - 7) * 8 + step
}

/// The alignment that all objects of a class have: the largest power of two that
/// divides its size, at most a page.
pub const fn align(class: usize) -> usize {
    let natural = 1 << size(class).trailing_zeros();
    if natural > page_alloc::PAGE_SIZE {
        page_alloc::PAGE_SIZE
    } else {
        natural
    }
}

/// The class for a request with an alignment above 16; `None` when it takes pages.
pub fn aligned(bytes: usize, align: usize) -> Option<usize> {
    let bytes = bytes.max(1).checked_next_multiple_of(align)?;
    if align > page_alloc::PAGE_SIZE || bytes > MAX_OBJECT {
        return None;
    }
    (of(bytes)..CLASSES).find(|class| self::align(*class) >= align)
}

/// The names of the classes' caches.
pub const NAMES: [&str; CLASSES] = [
    "malloc-16",
    "malloc-32",
    "malloc-48",
    "malloc-64",
    "malloc-80",
    "malloc-96",
    "malloc-112",
    "malloc-128",
    "malloc-144",
    "malloc-160",
    "malloc-176",
    "malloc-192",
    "malloc-208",
    "malloc-224",
    "malloc-240",
    "malloc-256",
    "malloc-288",
    "malloc-320",
    "malloc-352",
    "malloc-384",
    "malloc-416",
    "malloc-448",
    "malloc-480",
    "malloc-512",
    "malloc-576",
    "malloc-640",
    "malloc-704",
    "malloc-768",
    "malloc-832",
    "malloc-896",
    "malloc-960",
    "malloc-1k",
    "malloc-1152",
    "malloc-1280",
    "malloc-1408",
    "malloc-1536",
    "malloc-1664",
    "malloc-1792",
    "malloc-1920",
    "malloc-2k",
    "malloc-2304",
    "malloc-2560",
    "malloc-2816",
    "malloc-3k",
    "malloc-3328",
    "malloc-3584",
    "malloc-3840",
    "malloc-4k",
    "malloc-4608",
    "malloc-5k",
    "malloc-5632",
    "malloc-6k",
    "malloc-6656",
    "malloc-7k",
    "malloc-7680",
    "malloc-8k",
    "malloc-9k",
    "malloc-10k",
    "malloc-11k",
    "malloc-12k",
    "malloc-13k",
    "malloc-14k",
    "malloc-15k",
    "malloc-16k",
    "malloc-18k",
    "malloc-20k",
    "malloc-22k",
    "malloc-24k",
    "malloc-26k",
    "malloc-28k",
    "malloc-30k",
    "malloc-32k",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_size_gets_the_smallest_class_that_holds_it() {
        for bytes in 1..=MAX_OBJECT {
            let class = of(bytes);
            assert!(size(class) >= bytes);
            assert!(class == 0 || size(class - 1) < bytes, "{bytes}");
            let waste = size(class) - bytes;
            assert!(
                waste <= 15 || waste * 8 <= size(class),
                "{bytes} in {}",
                size(class)
            );
        }
        assert_eq!(size(CLASSES - 1), MAX_OBJECT);
    }

    #[test]
    fn names_tell_sizes() {
        for (class, name) in NAMES.iter().enumerate() {
            let number = name.strip_prefix("malloc-").unwrap();
            let bytes = match number.strip_suffix('k') {
                Some(k) => k.parse::<usize>().unwrap() << 10,
                None => number.parse().unwrap(),
            };
            assert_eq!(bytes, size(class));
        }
    }

    #[test]
    fn aligned_requests_get_aligned_classes() {
        for align in (5..=12).map(|s| 1usize << s) {
            for bytes in [1, 17, 63, 64, 100, 1000, 3000, 4096, 9000] {
                let class = aligned(bytes, align).unwrap();
                assert!(size(class) >= bytes && size(class).is_multiple_of(align));
            }
        }
        assert_eq!(aligned(1, 8192), None);
        assert_eq!(aligned(MAX_OBJECT + 1, 64), None);
        assert_eq!(aligned(usize::MAX, 64), None);
    }
}
