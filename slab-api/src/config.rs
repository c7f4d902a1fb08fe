//! `SLABMALLOC_CONF`: parsing, and the settings in force.
//!
//! The settings are read at the first use of a heap, before anything can allocate:
//! straight from `environ`, without libc's functions (a program may define its own),
//! and not at all when the process runs with raised privileges (AT_SECURE).
//!
//! A pair that makes no sense prints one line that names it and the nearest valid
//! word, and the default stays. Nothing here allocates.

use core::fmt::Write;
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use page_alloc::config as pages;
use page_alloc::os;
use page_alloc::sync::tid;
use page_alloc::text::FdWriter;

use crate::misuse::{self, OnError};

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

/// What a slot is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PerCpu {
    /// Threads, until measurement says otherwise.
    #[default]
    Auto,
    /// Real CPUs by restartable sequences: not built yet, threads serve.
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
    /// The debug letters asked for.
    pub debug: &'a [u8],
    /// Bit k set: key k of [`KEYS`] was given.
    given: u16,
}

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
        given: 0,
    };
}

/// The keys, in the order of the documentation.
pub const KEYS: [&str; 10] = [
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
];

/// What is wrong with a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Problem<'a> {
    /// No such key; the nearest one.
    Key(&'a [u8], &'static str),
    /// No such value for the key; the nearest one, or what is expected.
    Value(&'static str, &'a [u8], &'static str),
    /// Understood, but not built yet; what serves instead.
    NotBuilt(&'static str, &'static str),
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
    if settings.percpu == PerCpu::Rseq {
        problem(Problem::NotBuilt("percpu=rseq", "slots are threads"));
    }
    if settings.secure {
        problem(Problem::NotBuilt("secure=1", "the default checks are on"));
    }
    if !settings.debug.is_empty() {
        problem(Problem::NotBuilt("debug", "the default checks are on"));
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
    let flag = |value| word(value, &["0", "1"], &[false, true]);
    match key {
        0 => {
            let values = [Backend::Unified, Backend::Slub, Backend::Slab];
            settings.backend = word(value, &["unified", "slub", "slab"], &values)?;
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
            settings.percpu = word(value, &["auto", "rseq", "thread"], &values)?;
        }
        4 => {
            let values = [HugePage::Auto, HugePage::On, HugePage::Off];
            settings.hugepage = match word(value, &["auto", "on", "off"], &values) {
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
            settings.on_error = word(value, &["abort", "report", "ignore"], &values)?;
        }
        8 => settings.secure = flag(value)?,
        _ => {
            let letters = value.split(|b| *b == b':').next().unwrap_or_default();
            if letters.is_empty() || letters.iter().any(|b| !b"FZPUT".contains(b)) {
                return Err("letters of FZPUT, then :cache-glob");
            }
            settings.debug = value;
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

/// The settings of this process, read and put in force by the first call.
pub fn settings() -> &'static Settings<'static> {
    // Acquire: pairs with the release in `read`.
    let at = SETTINGS.load(Ordering::Acquire);
    if at.is_null() {
        return read();
    }
    // SAFETY: only `read` stores here, the address of a static that then stays as it
    // is.
    unsafe { &*at }
}

static SETTINGS: AtomicPtr<Settings<'static>> = AtomicPtr::new(core::ptr::null_mut());

struct Cell(core::cell::UnsafeCell<Settings<'static>>);
// SAFETY: written once, by the thread that `READER` names, before it is published.
unsafe impl Sync for Cell {}
static VALUE: Cell = Cell(core::cell::UnsafeCell::new(Settings::DEFAULT));
/// The thread that reads the environment.
static READER: AtomicU32 = AtomicU32::new(0);
static DEFAULT: Settings<'static> = Settings::DEFAULT;

#[cold]
fn read() -> &'static Settings<'static> {
    let me = tid();
    match READER.compare_exchange(0, me, Ordering::Acquire, Ordering::Acquire) {
        Ok(_) => {}
        // A signal handler on top of the reader: it makes do with the defaults.
        Err(reader) if reader == me => return &DEFAULT,
        Err(_) => loop {
            let at = SETTINGS.load(Ordering::Acquire);
            if !at.is_null() {
                // SAFETY: as in `settings`.
                return unsafe { &*at };
            }
            std::thread::yield_now();
        },
    }
    let text = environment();
    let settings = parse(text, complain);
    apply(&settings);
    // SAFETY: this thread alone writes, once.
    unsafe { *VALUE.0.get() = settings };
    SETTINGS.store(VALUE.0.get(), Ordering::Release);
    if settings.verbose {
        print(&settings);
    }
    settings_after_read()
}

fn settings_after_read() -> &'static Settings<'static> {
    // SAFETY: stored just before, by this thread.
    unsafe { &*SETTINGS.load(Ordering::Acquire) }
}

/// The value of `SLABMALLOC_CONF`; empty when there is none or it is not to be
/// trusted.
fn environment() -> &'static [u8] {
    unsafe extern "C" {
        static environ: *const *const core::ffi::c_char;
    }
    const NAME: &[u8] = b"SLABMALLOC_CONF=";
    // SAFETY: getauxval has no preconditions. `environ` is null or a null-ended array
    // of strings; at the first allocation no other thread changes it in a program
    // that may use the environment at all.
    unsafe {
        if libc::getauxval(libc::AT_SECURE) != 0 {
            return b"";
        }
        let mut at = environ;
        while !at.is_null() && !(*at).is_null() {
            let entry = core::ffi::CStr::from_ptr(*at).to_bytes();
            if let Some(value) = entry.strip_prefix(NAME) {
                return value;
            }
            at = at.add(1);
        }
    }
    b""
}

fn write_bytes(out: &mut FdWriter, bytes: &[u8]) {
    for chunk in bytes.utf8_chunks() {
        let _ = out.write_str(chunk.valid());
        if !chunk.invalid().is_empty() {
            let _ = out.write_char('?');
        }
    }
}

fn complain(problem: Problem<'_>) {
    let mut out = FdWriter::new(2);
    let _ = out.write_str("slabmalloc: SLABMALLOC_CONF: ");
    match problem {
        Problem::Key(key, nearest) => {
            let _ = out.write_str("unknown key '");
            write_bytes(&mut out, key);
            let _ = writeln!(out, "'; the nearest is '{nearest}'");
        }
        Problem::Value(key, value, nearest) => {
            let _ = write!(out, "{key}: unknown value '");
            write_bytes(&mut out, value);
            let _ = writeln!(out, "'; valid: {nearest}");
        }
        Problem::NotBuilt(what, instead) => {
            let _ = writeln!(out, "{what} is not built yet; {instead}");
        }
    }
}

fn apply(settings: &Settings<'_>) {
    // What was not given stays as the program set it.
    let given = |key: &str| {
        KEYS.iter()
            .position(|k| *k == key)
            .is_some_and(|k| settings.given & 1 << k != 0)
    };
    if given("hugepage") {
        pages::set_huge_from(match settings.hugepage {
            HugePage::Auto => Some(pages::HUGE_AUTO_FROM),
            HugePage::On => Some(0),
            HugePage::Off => None,
        });
    }
    if given("purge") {
        pages::set_purge_ms(settings.purge);
    }
    if let Some(bytes) = settings.arena_max {
        pages::set_arena_max(bytes);
    }
    if given("on_error") {
        misuse::set_on_error(settings.on_error);
    }
}

fn print(settings: &Settings<'_>) {
    let mut out = FdWriter::new(2);
    for (k, key) in KEYS.iter().enumerate() {
        let _ = write!(out, "slabmalloc: {key}=");
        let _ = match k {
            0 => write!(out, "{:?}", settings.backend),
            1 => match settings.stats {
                Stats::None => out.write_str("none"),
                Stats::Exit => out.write_str("exit"),
                Stats::Json(path) => {
                    let _ = out.write_str("json:");
                    write_bytes(&mut out, path);
                    Ok(())
                }
            },
            2 => write!(out, "{}", u8::from(settings.verbose)),
            3 => write!(out, "{:?}", settings.percpu),
            4 => write!(out, "{:?}", settings.hugepage),
            5 => match settings.purge {
                Some(ms) => write!(out, "{ms}"),
                None => out.write_str("off"),
            },
            6 => match settings.arena_max {
                Some(bytes) => write!(out, "{bytes}"),
                None => out.write_str("none"),
            },
            7 => write!(out, "{:?}", settings.on_error),
            8 => write!(out, "{}", u8::from(settings.secure)),
            _ => {
                write_bytes(&mut out, settings.debug);
                Ok(())
            }
        };
        let from = if settings.given & 1 << k != 0 {
            "SLABMALLOC_CONF"
        } else {
            "default"
        };
        let _ = writeln!(out, " ({from}; page size {})", os::page_size());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(text: &str) -> Vec<Problem<'_>> {
        let mut found = Vec::new();
        parse(text.as_bytes(), |p| found.push(p));
        found
    }

    #[test]
    fn every_key_is_understood() {
        let text = "backend=slub,stats=json:/tmp/a%p,verbose=1,percpu=thread,hugepage=off,\
                    purge=off,arena_max=3G,on_error=report";
        let settings = parse(text.as_bytes(), |p| panic!("{p:?}"));
        assert_eq!(settings.backend, Backend::Slub);
        assert_eq!(settings.stats, Stats::Json(b"/tmp/a%p"));
        assert!(settings.verbose);
        assert_eq!(settings.percpu, PerCpu::Thread);
        assert_eq!(settings.hugepage, HugePage::Off);
        assert_eq!(settings.purge, None);
        assert_eq!(settings.arena_max, Some(3 << 30));
        assert_eq!(settings.on_error, OnError::Report);
    }

    #[test]
    fn nonsense_is_named_with_the_nearest_word() {
        assert_eq!(
            problems("backed=slub"),
            [Problem::Key(b"backed", "backend")]
        );
        assert_eq!(
            problems("backend=slubb"),
            [Problem::Value("backend", b"slubb", "slub")]
        );
        assert_eq!(
            problems("stats=exitt"),
            [Problem::Value("stats", b"exitt", "exit")]
        );
        assert_eq!(
            problems("purge=of"),
            [Problem::Value("purge", b"of", "off")]
        );
        assert_eq!(problems("arena_max=12Q").len(), 1);
        assert_eq!(problems("arena_max=99999999999999999999G").len(), 1);
        assert_eq!(problems("stats=json:").len(), 1);
        assert_eq!(problems(",,backend=slab,,"), []);
        assert_eq!(parse(b"backend=nix", |_| {}).backend, Backend::Unified);
    }

    #[test]
    fn what_is_not_built_is_said() {
        assert_eq!(problems("secure=1").len(), 1);
        assert_eq!(problems("debug=FZ:malloc-*").len(), 1);
        assert_eq!(problems("debug=XY").len(), 1);
        assert_eq!(problems("percpu=rseq").len(), 1);
    }

    #[test]
    fn any_bytes_are_survived() {
        let mut seed = 1u64;
        for _ in 0..20_000 {
            let mut text = [0u8; 40];
            for byte in &mut text {
                seed = seed
                    .wrapping_mul(6364136223846793005)
                    .wrapping_add(1442695040888963407);
                let alphabet = b"backendstats=,:=,purge019GMK\xff\x00%p";
                *byte = alphabet[(seed >> 33) as usize % alphabet.len()];
            }
            parse(&text, |_| {});
        }
    }
}
