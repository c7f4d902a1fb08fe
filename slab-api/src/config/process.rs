//! The settings of this process: read from the environment once, and put in force.
//!
//! ```text
//!   STATE:  0 ──this thread claims──▶ its id ──▶ READ
//!            no one has asked           │
//!                                       └ meanwhile a signal handler on top of it makes
//!                                         do with the defaults, other threads wait
//! ```
//! The text is copied before it is parsed: programs that change their title (redis,
//! postgres, nginx) overwrite the memory of their environment, and a path is needed
//! at exit.

use core::cell::UnsafeCell;
use core::ffi::{CStr, c_char};
use core::fmt::Write;
use core::sync::atomic::{AtomicU32, Ordering};

use page_alloc::config as pages;
use page_alloc::sync::tid;
use page_alloc::text::FdWriter;

use super::{HugePage, KEYS, PerCpu, Settings, parse};
use crate::{misuse, percpu};

/// Bytes of a text that is kept: a path of the largest length, and the other keys.
const TEXT: usize = libc::PATH_MAX as usize + 1024;
/// How often a waiting thread gives way before it goes on with the defaults: the
/// reader may not exist in this process (a fork while it read).
const PATIENCE: usize = 100_000;
/// No thread's id: the settings are read.
const READ: u32 = u32::MAX;

/// 0, the id of the reading thread, or [`READ`].
static STATE: AtomicU32 = AtomicU32::new(0);

struct Shared {
    text: UnsafeCell<[u8; TEXT]>,
    settings: UnsafeCell<Settings<'static>>,
}

// SAFETY: written by the one thread whose id is in STATE, and only read once STATE is
// READ, after which nobody writes.
unsafe impl Sync for Shared {}

static SHARED: Shared = Shared {
    text: UnsafeCell::new([0; TEXT]),
    settings: UnsafeCell::new(Settings::DEFAULT),
};
static DEFAULT: Settings<'static> = Settings::DEFAULT;

/// The settings of this process, read and put in force by the first call.
pub fn settings() -> &'static Settings<'static> {
    // Acquire: pairs with the release in `read`.
    if STATE.load(Ordering::Acquire) == READ {
        // SAFETY: nobody writes any more.
        return unsafe { &*SHARED.settings.get() };
    }
    read()
}

/// Whether [`settings`] can be read by now: libc knows the environment. Until then it returns
/// the defaults, and will return others later.
pub fn readable() -> bool {
    // SAFETY: reads a pointer that libc sets before any constructor of a library that
    // depends on it runs.
    STATE.load(Ordering::Acquire) == READ || unsafe { !environ.is_null() }
}

unsafe extern "C" {
    static mut environ: *const *const c_char;
}

#[cold]
fn read() -> &'static Settings<'static> {
    let me = tid();
    match STATE.compare_exchange(0, me, Ordering::Acquire, Ordering::Acquire) {
        Ok(_) => {}
        Err(READ) => return settings(),
        // A signal handler on top of the reader.
        Err(reader) if reader == me => return &DEFAULT,
        Err(_) => {
            for _ in 0..PATIENCE {
                if STATE.load(Ordering::Acquire) == READ {
                    return settings();
                }
                std::thread::yield_now();
            }
            return &DEFAULT;
        }
    }
    // SAFETY: STATE holds this thread's id, so nobody else uses the text.
    let text = unsafe { copy_environment(&mut *SHARED.text.get()) };
    let Some(text) = text else {
        // libc is not up yet: ask again at the next call.
        STATE.store(0, Ordering::Release);
        return &DEFAULT;
    };
    let settings = parse(text, |_| {});
    let without_rseq = apply(&settings).err();
    // SAFETY: as above; the text is never written again.
    unsafe { *SHARED.settings.get() = settings };
    // Release: publishes the settings to `settings`.
    STATE.store(READ, Ordering::Release);
    // Only now is said what is wrong, as standard error may block.
    parse(text, |problem| {
        let mut out = FdWriter::new(2);
        let _ = writeln!(out, "slabmalloc: SLABMALLOC_CONF: {problem}");
    });
    if let Some(why) = without_rseq {
        let mut out = FdWriter::new(2);
        let _ = writeln!(
            out,
            "slabmalloc: SLABMALLOC_CONF: percpu=rseq is not available: {why}; slots are threads"
        );
    }
    if settings.verbose {
        print(&settings);
    }
    self::settings()
}

/// Copies the value of `SLABMALLOC_CONF`, as far as whole pairs fit; empty when there
/// is none or it is not to be trusted. `None` before libc knows the environment.
fn copy_environment(to: &'static mut [u8; TEXT]) -> Option<&'static [u8]> {
    const NAME: &[u8] = b"SLABMALLOC_CONF=";
    // SAFETY: getauxval has no preconditions. `environ` is null or a null-ended array
    // of strings; no other thread may change it while one reads it, which is libc's
    // own rule.
    unsafe {
        if libc::getauxval(libc::AT_SECURE) != 0 {
            return Some(b"");
        }
        let mut at = environ;
        if at.is_null() {
            return None;
        }
        while !(*at).is_null() {
            if let Some(value) = CStr::from_ptr(*at).to_bytes().strip_prefix(NAME) {
                return Some(keep(value, to));
            }
            at = at.add(1);
        }
    }
    Some(b"")
}

fn keep(value: &[u8], to: &'static mut [u8; TEXT]) -> &'static [u8] {
    let fits = match value.get(..TEXT) {
        None => value,
        // Cut at a comma, so that no pair is understood by halves.
        Some(start) => {
            let mut out = FdWriter::new(2);
            let _ = writeln!(
                out,
                "slabmalloc: SLABMALLOC_CONF: only the pairs in the first {TEXT} bytes count"
            );
            let end = start.iter().rposition(|b| *b == b',').unwrap_or(0);
            &start[..end]
        }
    };
    let to = &mut to[..fits.len()];
    to.copy_from_slice(fits);
    to
}

/// Puts settings in force. The error is why slots cannot be CPUs, which was asked for.
fn apply(settings: &Settings<'_>) -> Result<(), &'static str> {
    // What was not given stays as the program set it.
    let given = |key: &str| {
        KEYS.iter()
            .position(|k| *k == key)
            .is_some_and(|k| settings.is_given(k))
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
    match settings.percpu {
        PerCpu::Rseq => percpu::start(),
        PerCpu::Auto | PerCpu::Thread => Ok(()),
    }
}

fn print(settings: &Settings<'_>) {
    let mut out = FdWriter::new(2);
    for (index, key) in KEYS.iter().enumerate() {
        let from = if settings.is_given(index) {
            "from SLABMALLOC_CONF"
        } else {
            "default"
        };
        let _ = write!(out, "slabmalloc: {key}=");
        let _ = settings.write_value(&mut out, index);
        let _ = writeln!(out, " ({from})");
    }
    let _ = writeln!(out, "slabmalloc: slots in force: {}", percpu::mode());
}
