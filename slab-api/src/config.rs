//! `SLABMALLOC_CONF`: parsing, and the settings in force.
//!
//! The settings are read at the first use of a heap, before anything can allocate:
//! straight from `environ`, without libc's functions (a program may define its own),
//! and not at all when the process runs with raised privileges (AT_SECURE).
//!
//! A pair that makes no sense prints one line that names it and the nearest valid
//! word, and the default stays. Nothing here allocates.
//!
//! ```text
//!   SLABMALLOC_CONF ──copied once──▶ TEXT ──parse──▶ Settings ──▶ pages, misuse
//!   (environ may be                    ▲                │ borrows paths and letters
//!    overwritten later)                └────────────────┘
//! ```
//! This file is pure; `config/process.rs` reads the environment.

#![deny(unsafe_code)]

use core::fmt::{self, Write};

use crate::debug;
use crate::misuse::OnError;

#[allow(unsafe_code)]
mod process;

pub use process::{readable, settings};

/// The object allocator of the preload library.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Backend {
    /// `slab-unified`.
    #[default]
    Unified,
    /// `slub`.
    Slub,
    /// `slab-classic`.
    Slab,
    /// `slab-unified` as it was in 2010: for comparisons.
    UnifiedV4,
}

/// What is reported at exit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stats<'a> {
    /// Nothing.
    #[default]
    None,
    /// Text, to standard error.
    Exit,
    /// JSON, to this path; `%p` in it stands for the process id.
    Json(&'a [u8]),
}

/// Where objects still in use are listed at exit, for caches debugged with `U`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Leaks<'a> {
    /// Nowhere.
    #[default]
    None,
    /// On standard error.
    Exit,
    /// In this file; `%p` in it stands for the process id.
    File(&'a [u8]),
}

/// What a slot is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PerCpu {
    /// Threads, until measurement says otherwise.
    #[default]
    Auto,
    /// CPUs, by restartable sequences; threads where those are not to be had.
    Rseq,
    /// Threads.
    Thread,
}

/// Where huge pages are asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HugePage {
    /// Beyond the first few MiB of an arena.
    #[default]
    Auto,
    /// Everywhere.
    On,
    /// Nowhere.
    Off,
}

/// All settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Settings<'a> {
    /// The preload library's backend.
    pub backend: Backend,
    /// The report at exit.
    pub stats: Stats<'a>,
    /// Whether the settings in force are printed.
    pub verbose: bool,
    /// What a slot is.
    pub percpu: PerCpu,
    /// Where huge pages are asked for.
    pub hugepage: HugePage,
    /// Milliseconds that freed pages keep their memory; `None` for ever.
    pub purge: Option<u64>,
    /// Upper limit of heap bytes.
    pub arena_max: Option<usize>,
    /// What follows a detected misuse.
    pub on_error: OnError,
    /// The hardened mode was asked for.
    pub secure: bool,
    /// What is debugged: letters, and globs of caches ([`crate::debug::Flags`]).
    pub debug: &'a [u8],
    /// The list of objects in use at exit.
    pub leaks: Leaks<'a>,
    /// Bit k set: key k of [`KEYS`] was given.
    given: u16,
}

/// The values of each setting that takes words, in the order of their types.
const BACKENDS: [&str; 4] = ["unified", "slub", "slab", "unified:v4"];
const FLAGS: [&str; 2] = ["0", "1"];
const PERCPU: [&str; 3] = ["auto", "rseq", "thread"];
const HUGE_PAGES: [&str; 3] = ["auto", "on", "off"];
const ON_ERRORS: [&str; 3] = ["abort", "report", "ignore"];

impl Settings<'_> {
    /// What holds without any setting.
    pub const DEFAULT: Settings<'static> = Settings {
        backend: Backend::Unified,
        stats: Stats::None,
        verbose: false,
        percpu: PerCpu::Auto,
        hugepage: HugePage::Auto,
        purge: Some(500),
        arena_max: None,
        on_error: OnError::Abort,
        secure: false,
        debug: b"",
        leaks: Leaks::None,
        given: 0,
    };
}

/// The keys, in the order of the documentation.
pub const KEYS: [&str; 11] = [
    "backend",
    "stats",
    "verbose",
    "percpu",
    "hugepage",
    "purge",
    "arena_max",
    "on_error",
    "secure",
    "debug",
    "leaks",
];

/// What is wrong with a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Problem<'a> {
    /// No such key; the nearest one.
    Key(&'a [u8], &'static str),
    /// No such value for the key; the nearest one, or what is expected.
    Value(&'static str, &'a [u8], &'static str),
    /// `leaks` without a cache that is debugged with `U`.
    NoTracks,
    /// Understood, but not built yet; what serves instead.
    NotBuilt(&'static str, &'static str),
}

impl fmt::Display for Problem<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Key(key, nearest) => {
                f.write_str("unknown key '")?;
                write_bytes(f, key)?;
                write!(f, "'; nearest valid: {nearest}")
            }
            Self::Value(key, value, nearest) => {
                write!(f, "{key}: unknown value '")?;
                write_bytes(f, value)?;
                write!(f, "'; nearest valid: {nearest}")
            }
            Self::NoTracks => {
                f.write_str("leaks needs debug=U (who allocated what): add it to SLABMALLOC_CONF")
            }
            Self::NotBuilt(what, instead) => {
                write!(f, "{what} is not available in this build: {instead}")
            }
        }
    }
}

/// Writes bytes of the environment so that they stay on one line and in bounds: what
/// is no printable ASCII is escaped, and a long text is cut.
fn write_bytes(out: &mut dyn Write, bytes: &[u8]) -> fmt::Result {
    const SHOWN: usize = 200;
    let (shown, cut) = match bytes.get(..SHOWN) {
        Some(shown) => (shown, "..."),
        None => (bytes, ""),
    };
    for byte in shown {
        match byte {
            b' '..=b'~' => out.write_char(char::from(*byte))?,
            _ => write!(out, "\\x{byte:02x}")?,
        }
    }
    out.write_str(cut)
}

impl Settings<'_> {
    /// Writes the value of the key at `index` of [`KEYS`] as it is given; `none`
    /// where there is none.
    fn write_value(&self, out: &mut dyn Write, index: usize) -> fmt::Result {
        match index {
            0 => out.write_str(BACKENDS[self.backend as usize]),
            1 => match self.stats {
                Stats::None => out.write_str("none"),
                Stats::Exit => out.write_str("exit"),
                Stats::Json(path) => {
                    out.write_str("json:")?;
                    write_bytes(out, path)
                }
            },
            2 => out.write_str(FLAGS[usize::from(self.verbose)]),
            3 => out.write_str(PERCPU[self.percpu as usize]),
            4 => out.write_str(HUGE_PAGES[self.hugepage as usize]),
            5 => match self.purge {
                Some(ms) => write!(out, "{ms}"),
                None => out.write_str("off"),
            },
            6 => match self.arena_max {
                Some(bytes) => write!(out, "{bytes}"),
                None => out.write_str("none"),
            },
            7 => out.write_str(ON_ERRORS[self.on_error as usize]),
            8 => out.write_str(FLAGS[usize::from(self.secure)]),
            9 if self.debug.is_empty() => out.write_str("none"),
            9 => write_bytes(out, self.debug),
            _ => match self.leaks {
                Leaks::None => out.write_str("none"),
                Leaks::Exit => out.write_str("exit"),
                Leaks::File(path) => write_bytes(out, path),
            },
        }
    }

    /// Whether the key at `index` of [`KEYS`] was given with a valid value.
    pub fn is_given(&self, index: usize) -> bool {
        index < KEYS.len() && self.given & 1 << index != 0
    }
}

/// The keys that were given, as `SLABMALLOC_CONF` takes them; only what is no printable
/// ASCII is escaped, and what is long is cut.
impl fmt::Display for Settings<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut comma = "";
        for (index, key) in KEYS.iter().enumerate() {
            if self.is_given(index) {
                write!(f, "{comma}{key}=")?;
                self.write_value(f, index)?;
                comma = ",";
            }
        }
        Ok(())
    }
}

/// Parses `key=value` pairs separated by commas; tells `problem` of each that makes
/// no sense, and leaves its default.
pub fn parse<'a>(text: &'a [u8], mut problem: impl FnMut(Problem<'a>)) -> Settings<'a> {
    let mut settings = Settings {
        debug: b"",
        ..Settings::DEFAULT
    };
    for pair in text.split(|b| *b == b',') {
        if pair.is_empty() {
            continue;
        }
        let (key, value) = match pair.iter().position(|b| *b == b'=') {
            Some(at) => (&pair[..at], &pair[at + 1..]),
            None => (pair, &b""[..]),
        };
        match KEYS.iter().position(|k| k.as_bytes() == key) {
            Some(k) => match set(&mut settings, k, value) {
                Ok(()) => settings.given |= 1 << k,
                Err(expected) => problem(Problem::Value(KEYS[k], value, expected)),
            },
            None => problem(Problem::Key(key, nearest(key, &KEYS))),
        }
    }
    if settings.secure && !settings.debug.is_empty() {
        problem(Problem::NotBuilt(
            "secure=1 beside debug=",
            "debug= is in force",
        ));
        settings.secure = false;
    }
    if settings.leaks != Leaks::None && !debug::tracks_any(settings.debug) {
        problem(Problem::NoTracks);
    }
    settings
}

fn set<'a>(settings: &mut Settings<'a>, key: usize, value: &'a [u8]) -> Result<(), &'static str> {
    fn word<T: Copy>(
        value: &[u8],
        words: &[&'static str],
        values: &[T],
    ) -> Result<T, &'static str> {
        match words.iter().position(|w| w.as_bytes() == value) {
            Some(i) => Ok(values[i]),
            None => Err(nearest(value, words)),
        }
    }
    let flag = |value| word(value, &FLAGS, &[false, true]);
    match key {
        0 => {
            let values = [
                Backend::Unified,
                Backend::Slub,
                Backend::Slab,
                Backend::UnifiedV4,
            ];
            settings.backend = word(value, &BACKENDS, &values)?;
        }
        1 => {
            settings.stats = match value.strip_prefix(b"json:") {
                Some(b"") => return Err("json:PATH"),
                Some(path) => Stats::Json(path),
                None => word(value, &["exit", "json:PATH"], &[Stats::Exit, Stats::None])?,
            };
            if settings.stats == Stats::None {
                return Err("json:PATH");
            }
        }
        2 => settings.verbose = flag(value)?,
        3 => {
            let values = [PerCpu::Auto, PerCpu::Rseq, PerCpu::Thread];
            settings.percpu = word(value, &PERCPU, &values)?;
        }
        4 => {
            let values = [HugePage::Auto, HugePage::On, HugePage::Off];
            settings.hugepage = match word(value, &HUGE_PAGES, &values) {
                Err(_) if value == b"yes" || value == b"1" || value == b"always" => {
                    return Err("on");
                }
                other => other?,
            };
        }
        5 => {
            settings.purge = match number(value) {
                Some(ms) => Some(ms as u64),
                None if value == b"off" => None,
                None if value.iter().any(u8::is_ascii_digit) => return Err("milliseconds, or off"),
                None => return Err("off"),
            };
        }
        6 => match bytes(value) {
            Some(bytes) if bytes > 0 => settings.arena_max = Some(bytes),
            _ => return Err("bytes, with K, M or G"),
        },
        7 => {
            let values = [OnError::Abort, OnError::Report, OnError::Ignore];
            settings.on_error = word(value, &ON_ERRORS, &values)?;
        }
        8 => settings.secure = flag(value)?,
        9 if debug::is_valid(value) => settings.debug = value,
        9 => return Err("letters of FZPUT, then :cache-glob"),
        _ => {
            settings.leaks = match value {
                b"" => return Err("exit, or a path"),
                b"exit" => Leaks::Exit,
                path => Leaks::File(path),
            }
        }
    }
    Ok(())
}

fn number(text: &[u8]) -> Option<usize> {
    if text.is_empty() {
        return None;
    }
    text.iter().try_fold(0usize, |n, b| {
        let digit = b
            .is_ascii_digit()
            .then_some(usize::from(b.wrapping_sub(b'0')))?;
        n.checked_mul(10)?.checked_add(digit)
    })
}

fn bytes(text: &[u8]) -> Option<usize> {
    let (digits, shift) = match text.split_last()? {
        (b'K' | b'k', rest) => (rest, 10),
        (b'M' | b'm', rest) => (rest, 20),
        (b'G' | b'g', rest) => (rest, 30),
        _ => (text, 0),
    };
    number(digits)?.checked_mul(1 << shift)
}

/// The word with the smallest edit distance; the first of equals.
fn nearest(text: &[u8], words: &[&'static str]) -> &'static str {
    words
        .iter()
        .min_by_key(|w| distance(text, w.as_bytes()))
        .copied()
        .unwrap_or("")
}

/// Levenshtein's distance, of the first 32 bytes.
fn distance(a: &[u8], b: &[u8]) -> usize {
    let (a, b) = (&a[..a.len().min(32)], &b[..b.len().min(32)]);
    let mut row = [0; 33];
    for (j, cell) in row.iter_mut().enumerate() {
        *cell = j;
    }
    for (i, x) in a.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let change = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = change.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}
