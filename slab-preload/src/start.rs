//! Start and end of the process, and fork.
//!
//! malloc runs before any constructor of ours, so the first call sets up everything that calls
//! need; the constructor only makes sure that this happened before `main`, for programs that
//! never allocate.

#![allow(unsafe_code)]

use core::ffi::{CStr, c_char, c_int};
use core::fmt::Write as _;
use core::sync::atomic::{AtomicBool, Ordering};
use std::sync::OnceLock;

use page_alloc::os;
use page_alloc::text::FdWriter;
use slab_api::{config, fork, registry};
use slab_classic::Classic;
use slab_unified::Unified;
use slab_unified::v4::UnifiedV4;
use slub::Slub;

use crate::backend::{Debugged, Installed as _, Secured};
use crate::dispatch::{self, Choice, with_backend};
use crate::report;

/// The backend that the settings name.
pub fn configured_backend() -> Choice {
    match config::settings().backend {
        config::Backend::Unified => Choice::Unified,
        config::Backend::Slub => Choice::Slub,
        config::Backend::Slab => Choice::Classic,
        config::Backend::UnifiedV4 => Choice::UnifiedV4,
    }
}

/// Is the hardened heap asked for?
pub fn configured_secure() -> bool {
    config::settings().secure
}

/// Called by whoever filled the table with a hardened heap, before [`once_installed`].
pub fn once_secured(choice: Choice) {
    registry::set_layer_locks(match choice {
        Choice::Unified => |f| Secured::<Unified>::heap().locks(f),
        Choice::Slub => |f| Secured::<Slub>::heap().locks(f),
        Choice::Classic => |f| Secured::<Classic>::heap().locks(f),
        Choice::UnifiedV4 => |f| Secured::<UnifiedV4>::heap().locks(f),
    });
}

/// Whether the debug heap serves.
pub fn debugging() -> bool {
    !config::settings().debug.is_empty()
}

/// Called by whoever filled the table; the body runs once in a process.
///
/// The fork handlers are registered here rather than in a constructor so that they come before
/// those of the program and its libraries: prepare handlers run in reverse order, so ours locks
/// last and unlocks first, and a handler that allocates does so while no lock is held.
/// (Libraries that do come earlier are served as well: the forking thread passes through its own
/// locks.)
pub fn once_installed() {
    static DONE: AtomicBool = AtomicBool::new(false);
    if DONE.swap(true, Ordering::AcqRel) {
        return;
    }
    if let config::Stats::Json(path) = config::settings().stats {
        let _ = JSON_PATH.set(Template::new(path));
    }
    // SAFETY: the three handlers are functions of this library, which is never unloaded (-z
    // nodelete). Registering may call malloc, which works by now. Its failure (ENOMEM) leaves
    // fork as unsafe as it is in any allocator without handlers; there is nothing better to do.
    unsafe {
        libc::pthread_atfork(
            Some(before_fork),
            Some(after_fork_parent),
            Some(after_fork_child),
        )
    };
}

unsafe extern "C" fn before_fork() {
    fork::prepare();
}

unsafe extern "C" fn after_fork_parent() {
    fork::parent();
}

unsafe extern "C" fn after_fork_child() {
    // SAFETY: the child of the fork that ran `before_fork`; no thread was started yet.
    unsafe { fork::child() };
}

extern "C" fn constructor(_argc: c_int, _argv: *const *const c_char, _envp: *const *const c_char) {
    dispatch::chosen();
    if configured_secure() {
        dispatch::TABLE.seal();
    }
}

extern "C" fn destructor() {
    let settings = config::settings();
    let reports = !matches!(settings.stats, config::Stats::None)
        || !matches!(settings.leaks, config::Leaks::None);
    if reports || debugging() {
        at_exit();
    }
}

/// Apart, as most processes end without.
#[cold]
#[inline(never)]
fn at_exit() {
    if debugging() {
        // What was overwritten and never looked at again.
        with_backend!(B => Debugged::<B>::heap().check_objects());
    }
    match config::settings().stats {
        config::Stats::None => {}
        config::Stats::Exit => report::text(libc::STDERR_FILENO, dispatch::chosen()),
        config::Stats::Json(_) => json_to(JSON_PATH.get().map_or(b"", |path| path.text())),
    }
    match config::settings().leaks {
        config::Leaks::None => {}
        config::Leaks::Exit => report::leaks(libc::STDERR_FILENO),
        config::Leaks::File(path) => to_file(path, "leaks=", report::leaks),
    }
}

#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn(c_int, *const *const c_char, *const *const c_char) = constructor;

#[used]
#[unsafe(link_section = ".fini_array")]
static DESTRUCTOR: extern "C" fn() = destructor;

/// The path of `stats=json:PATH`, kept from the start on: a program may overwrite its environment, as
/// those do that write their state over the command line for ps. (OnceLock does not allocate.)
static JSON_PATH: OnceLock<Template> = OnceLock::new();

struct Template {
    bytes: [u8; libc::PATH_MAX as usize],
    used: usize,
}

impl Template {
    fn new(path: &[u8]) -> Self {
        let mut bytes = [0; libc::PATH_MAX as usize];
        let used = path.len().min(bytes.len());
        bytes[..used].copy_from_slice(&path[..used]);
        Template { bytes, used }
    }

    fn text(&self) -> &[u8] {
        &self.bytes[..self.used]
    }
}

fn json_to(template: &[u8]) {
    to_file(template, "stats=json:", |fd| {
        report::json(fd, dispatch::chosen());
    });
}

/// Lets `write` write to the file `template` with each `%p` replaced by the process id.
fn to_file(template: &[u8], setting: &str, write: impl FnOnce(i32)) {
    let mut path = [0u8; libc::PATH_MAX as usize];
    let expanded = expand(template, std::process::id(), &mut path);
    let opened = expanded.and_then(os::create_file);
    match opened {
        Some(fd) => {
            write(fd);
            os::close(fd);
        }
        None => {
            let mut line = FdWriter::new(libc::STDERR_FILENO);
            let _ = line.write_str("slabmalloc: the report cannot be written to ");
            let _ = line.write_str(setting);
            for chunk in template.utf8_chunks() {
                let _ = line.write_str(chunk.valid());
            }
            let _ = line.write_str("\n");
        }
    }
}

/// `template` with `%p` replaced, as a C string in `buffer`; `None` when it does not fit or
/// holds a NUL.
fn expand<'a>(template: &[u8], pid: u32, buffer: &'a mut [u8]) -> Option<&'a CStr> {
    let mut used = 0;
    let mut push = |byte: u8| {
        *buffer.get_mut(used)? = byte;
        used += 1;
        Some(())
    };
    let mut rest = template;
    while let [first, after @ ..] = rest {
        if let [b'%', b'p', tail @ ..] = rest {
            let mut place = 1_000_000_000;
            while place > 1 && pid < place {
                place /= 10;
            }
            while place > 0 {
                push(b'0' + (pid / place % 10) as u8)?;
                place /= 10;
            }
            rest = tail;
        } else {
            push(*first)?;
            rest = after;
        }
    }
    push(0)?;
    CStr::from_bytes_until_nul(buffer).ok()
}

/// Writes `message` to standard error and aborts.
#[cold]
pub fn die(message: &str) -> ! {
    let mut line = FdWriter::new(libc::STDERR_FILENO);
    let _ = line.write_str(message);
    line.flush();
    // SAFETY: abort has no preconditions.
    unsafe { libc::abort() }
}
