//! Which caches are debugged, and how: `FZPUT:glob;glob`, as the kernel's `slub_debug`.
//!
//! Letters, then (after a colon, as the comma separates settings) the caches' names
//! with `*` and `?`; without names, all caches. Several groups are separated by `/`:
//! `debug=ZP:malloc-64*;malloc-1k/U`. The first group that names a cache counts, as
//! in the kernel.

#![deny(unsafe_code)]

/// A set of debug options.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags(u8);

impl Flags {
    /// None: the cache is served as without a debug setting.
    pub const NONE: Flags = Flags(0);
    /// F: sized frees are checked to the byte. (Pointers, states and records are, with
    /// any flag.)
    pub const CHECKS: Flags = Flags(1);
    /// Z: red zones on both sides of an object.
    pub const RED_ZONE: Flags = Flags(2);
    /// P: free objects are poisoned.
    pub const POISON: Flags = Flags(4);
    /// U: who allocated and freed each object, and when.
    pub const TRACK: Flags = Flags(8);
    /// T: a line for each operation.
    pub const TRACE: Flags = Flags(16);

    /// Whether all of `other` is in the set.
    pub const fn has(self, other: Flags) -> bool {
        self.0 & other.0 == other.0
    }

    /// Whether the set is empty.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub(super) const fn bits(self) -> u8 {
        self.0
    }

    pub(super) const fn from_bits(bits: u8) -> Flags {
        Flags(bits & 31)
    }

    const fn letter(letter: u8) -> Option<Flags> {
        Some(match letter.to_ascii_uppercase() {
            b'F' => Self::CHECKS,
            b'Z' => Self::RED_ZONE,
            b'P' => Self::POISON,
            b'U' => Self::TRACK,
            b'T' => Self::TRACE,
            _ => return None,
        })
    }

    /// The set that letters stand for; `None` for an empty text or another letter.
    pub fn parse(letters: &[u8]) -> Option<Flags> {
        if letters.is_empty() {
            return None;
        }
        letters.iter().try_fold(Self::NONE, |set, letter| {
            Some(Flags(set.0 | Self::letter(*letter)?.0))
        })
    }

    /// What `spec` says of the cache `name`; nothing where it makes no sense.
    pub fn of_cache(spec: &[u8], name: &str) -> Flags {
        for group in spec.split(|b| *b == b'/') {
            let (letters, globs) = split(group);
            let Some(flags) = Self::parse(letters) else {
                continue;
            };
            let named = match globs {
                None => true,
                Some(globs) => globs
                    .split(|b| *b == b';')
                    .any(|glob| matches(glob, name.as_bytes())),
            };
            if named {
                return flags;
            }
        }
        Self::NONE
    }
}

/// Letters and, if there is a colon, the globs behind it.
fn split(group: &[u8]) -> (&[u8], Option<&[u8]>) {
    match group.iter().position(|b| *b == b':') {
        Some(at) => (&group[..at], Some(&group[at + 1..])),
        None => (group, None),
    }
}

/// Whether a text is a debug setting.
pub fn is_valid(spec: &[u8]) -> bool {
    spec.split(|b| *b == b'/').all(|group| {
        let (letters, globs) = split(group);
        Flags::parse(letters).is_some()
            && globs.is_none_or(|globs| globs.split(|b| *b == b';').all(|glob| !glob.is_empty()))
    })
}

/// Whether a setting tracks users (U) of any cache.
pub(crate) fn tracks_any(spec: &[u8]) -> bool {
    spec.split(|b| *b == b'/')
        .filter_map(|group| Flags::parse(split(group).0))
        .any(|flags| flags.has(Flags::TRACK))
}

/// Whether `text` is what `glob` describes: `*` stands for any bytes, `?` for one.
pub fn matches(glob: &[u8], text: &[u8]) -> bool {
    let (mut g, mut t) = (0, 0);
    // Where to go on when the text after the last star was read too short.
    let mut retry: Option<(usize, usize)> = None;
    while t < text.len() {
        match glob.get(g) {
            Some(b'*') => {
                retry = Some((g + 1, t));
                g += 1;
            }
            Some(b) if *b == b'?' || *b == text[t] => (g, t) = (g + 1, t + 1),
            _ => match retry {
                Some((after, from)) => {
                    retry = Some((after, from + 1));
                    (g, t) = (after, from + 1);
                }
                None => return false,
            },
        }
    }
    glob[g..].iter().all(|b| *b == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn letters() {
        let all = Flags::parse(b"FZPUT").unwrap();
        assert_eq!(all.bits(), 31);
        assert_eq!(Flags::parse(b"zp").unwrap().bits(), 6, "small letters too");
        assert_eq!(Flags::parse(b""), None);
        assert_eq!(Flags::parse(b"FX"), None);
    }

    #[test]
    fn the_first_group_that_names_a_cache_counts() {
        let spec = b"ZP:malloc-64*;malloc-1k/U";
        assert!(is_valid(spec));
        for (name, letters) in [
            ("malloc-64", "ZP"),
            ("malloc-640", "ZP"),
            ("malloc-1k", "ZP"),
            ("malloc-16", "U"),
            ("malloc-large", "U"),
        ] {
            assert_eq!(
                Some(Flags::of_cache(spec, name)),
                Flags::parse(letters.as_bytes()),
                "{name}"
            );
        }
        assert_eq!(Flags::of_cache(b"F:malloc-16", "malloc-32"), Flags::NONE);
    }

    #[test]
    fn what_is_no_setting() {
        for spec in ["", "X", "F:", "F:a;;b", "F/", ":a", "FZ-"] {
            assert!(!is_valid(spec.as_bytes()), "{spec}");
        }
    }

    /// The obvious definition, exponential in the number of stars.
    fn naive(glob: &[u8], text: &[u8]) -> bool {
        match (glob.split_first(), text.split_first()) {
            (None, None) => true,
            (Some((b'*', glob_rest)), _) => {
                naive(glob_rest, text)
                    || text
                        .split_first()
                        .is_some_and(|(_, rest)| naive(glob, rest))
            }
            (Some((g, glob_rest)), Some((t, rest))) => {
                (*g == b'?' || g == t) && naive(glob_rest, rest)
            }
            _ => false,
        }
    }

    proptest! {
        #[test]
        fn globs_mean_what_they_say(glob in "[ab*?]{0,8}", text in "[ab]{0,10}") {
            prop_assert_eq!(
                matches(glob.as_bytes(), text.as_bytes()),
                naive(glob.as_bytes(), text.as_bytes())
            );
        }
    }
}
