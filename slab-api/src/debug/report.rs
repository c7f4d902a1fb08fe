//! What is said of a fault, in the form of the kernel's `slub_debug`:
//!
//! ```text
//! =============================================================================
//! BUG malloc-64 (Not tainted): Redzone overwritten
//! -----------------------------------------------------------------------------
//!
//! INFO: 0x7f..a8-0x7f..a8 @offset=424. First byte 0x41 instead of 0xcc
//! INFO: Allocated in main+0x1d/0x60 age=4 cpu=1 pid=77
//!         main+0x1d/0x60
//! INFO: Slab 0x7f..00 objects=51 used=3
//! INFO: Object 0x7f..90 @offset=400 size=24
//!
//! Bytes b4 7f..80: cc cc ...
//! Object   7f..90: 61 62 ...
//! Redzone  7f..a8: 41 cc ...
//!
//! FIX malloc-64: Restoring Redzone 0x7f..a8-0x7f..a8=0xcc
//! ```
//! Then the process stops or goes on, by `on_error`.

#![deny(unsafe_code)]

use core::fmt::{self, Write};
use core::ops::Range;

use page_alloc::text::FdWriter;
use page_alloc::{GRANULE, PAGE_SIZE, PageKind, granule, page_of};

use super::record::{Layout, Object, PADDING, POISON, POISON_END, RED_FREE, RED_USED, State};
use super::{Flags, name_of};
use crate::misuse::{self, OnError};
use crate::registry;

/// Bytes of an object that are shown.
const SHOWN: usize = 512;
const DOUBLE: &str =
    "=============================================================================\n";
const SINGLE: &str =
    "-----------------------------------------------------------------------------\n";

/// Reports a fault and stops the process if `on_error` says so. `body` writes what is
/// below the title, `fix` the last line.
fn fault(
    name: &str,
    what: fmt::Arguments<'_>,
    body: impl FnOnce(&mut FdWriter) -> fmt::Result,
    fix: impl FnOnce(&mut FdWriter) -> fmt::Result,
) {
    let on_error = misuse::note();
    if on_error == OnError::Ignore {
        return;
    }
    let mut out = FdWriter::new(2);
    let _ = write!(out, "{DOUBLE}BUG {name} (Not tainted): {what}\n{SINGLE}\n")
        .and_then(|()| body(&mut out))
        .and_then(|()| out.write_char('\n'))
        .and_then(|()| fix(&mut out));
    out.flush();
    misuse::obey(on_error);
}

/// A zone, the poison or the padding of an object holds other bytes than it should:
/// reports it and, for the object's owner, restores them.
#[cold]
#[inline(never)]
pub(super) fn overwritten(object: Object, zone: &str, at: Range<usize>, value: u8, restore: bool) {
    let name = name_of(object.class());
    fault(
        name,
        format_args!("{zone} overwritten"),
        |out| {
            writeln!(
                out,
                "INFO: {:#x}-{:#x} @offset={}. First byte {:#x} instead of {value:#x}",
                at.start,
                at.end - 1,
                offset_of(at.start),
                object.byte(at.start),
            )?;
            describe(out, object, at.start)
        },
        |out| {
            if !restore {
                return Ok(());
            }
            writeln!(
                out,
                "FIX {name}: Restoring {zone} {:#x}-{:#x}={value:#x}",
                at.start,
                at.end - 1
            )
        },
    );
    if restore {
        object.fill((at.start, at.end), value);
    }
}

/// The record of an object does not carry its seal.
#[cold]
#[inline(never)]
pub(super) fn record_overwritten(name: &str, object: Object, fix: &str) {
    fault(
        name,
        format_args!("Object record overwritten"),
        |out| {
            slab_line(out, object)?;
            writeln!(
                out,
                "INFO: Record {:#x} @offset={}",
                object.base(),
                offset_of(object.base())
            )?;
            dump(out, "Record  ", object, (object.base(), object.base() + 96))
        },
        |out| writeln!(out, "FIX {name}: {fix}"),
    );
}

/// Something that must not be done was asked of `object`, by the pointer `p`.
#[cold]
#[inline(never)]
pub(super) fn wrong(object: Object, p: *const u8, what: fmt::Arguments<'_>, fix: &str) {
    let name = name_of(object.class());
    fault(
        name,
        what,
        |out| {
            writeln!(out, "INFO: Pointer {p:p} @offset={}", offset_of(p as usize))?;
            describe(out, object, p as usize)
        },
        |out| writeln!(out, "FIX {name}: {fix}"),
    );
}

/// A pointer that no debugged object has to do with.
#[cold]
#[inline(never)]
pub(super) fn stray(p: *const u8, what: &str) {
    let cache = misuse::cache_at(p).and_then(registry::get);
    let name = cache.map_or("malloc", |head| head.name());
    fault(
        name,
        format_args!("{what} {p:p}"),
        |out| match page_of(p) {
            None => out.write_str(
                "INFO: No arena of this allocator holds it: stack, static, or another malloc's\n",
            ),
            Some(_) => writeln!(out, "INFO: Pointer {p:p} @offset={}", offset_of(p as usize)),
        },
        |out| writeln!(out, "FIX {name}: Object at {p:p} not freed"),
    );
}

/// A backend found one of its own invariants broken.
#[cold]
#[inline(never)]
pub(super) fn backend(name: &str, found: &crate::Corruption) {
    fault(
        name,
        format_args!("{}", found.what),
        |out| writeln!(out, "INFO: {:#x}", found.address),
        |_| Ok(()),
    );
}

/// T: a line for an operation, and its stack if it is known.
#[cold]
#[inline(never)]
pub(super) fn trace(object: Object, flags: Flags, allocated: bool) {
    let (verb, track) = if allocated {
        ("alloc", object.alloc_track())
    } else {
        ("free", object.free_track())
    };
    let mut out = FdWriter::new(2);
    let _ = writeln!(
        out,
        "TRACE {} {verb} {:p} size={} pid={}",
        name_of(object.class()),
        object.user(),
        object.size(),
        page_alloc::sync::tid()
    );
    if flags.has(Flags::TRACK) {
        let frames = track.stack().map_or(&[][..], |stack| stack.frames());
        let _ = super::stack::write_frames(&mut out, frames);
    }
}

/// Distance of an address from the start of its slab or run.
fn offset_of(at: usize) -> usize {
    let p: *const u8 = core::ptr::with_exposed_provenance(at);
    let start = page_of(p).map(|page| page.head()).map_or(at, |head| {
        if head.kind() == PageKind::Slab {
            head.address() as usize
        } else {
            misuse::run_over(p).map_or(at, |run| run.address() as usize)
        }
    });
    at - start
}

/// Both tracks, the slab, the object, and its bytes around `fault`.
fn describe(out: &mut FdWriter, object: Object, fault: usize) -> fmt::Result {
    object.alloc_track().print(out, "Allocated")?;
    object.free_track().print(out, "Freed")?;
    slab_line(out, object)?;
    writeln!(
        out,
        "INFO: Object {:p} @offset={} size={}\n",
        object.user(),
        offset_of(object.user() as usize),
        object.size()
    )?;
    let layout = object.layout();
    let user = layout.object.0;
    dump(
        out,
        "Bytes b4",
        object,
        (user.saturating_sub(16).max(object.base()), user),
    )?;
    let (from, mut to) = if object.state() == State::Free {
        layout.poison
    } else {
        layout.object
    };
    let zone = to;
    let mut start = from;
    if to - from > SHOWN {
        // The bytes around the fault.
        let middle = fault.clamp(from + SHOWN / 2, to - SHOWN / 2);
        start = from + ((middle - SHOWN / 2 - from) & !15);
        to = start + SHOWN;
    }
    dump(out, "Object  ", object, (start, to))?;
    dump(
        out,
        "Redzone ",
        object,
        (zone, layout.red_end.min(zone + 64)),
    )?;
    dump(
        out,
        "Padding ",
        object,
        (layout.red_end, layout.end.min(layout.red_end + 64)),
    )
}

fn slab_line(out: &mut FdWriter, object: Object) -> fmt::Result {
    let Some(head) = page_of(object.base_ptr()).map(|page| page.head()) else {
        return Ok(());
    };
    if head.kind() != PageKind::Slab {
        return writeln!(
            out,
            "INFO: Slab {:p} objects=1 used=1 bytes={}",
            head.address(),
            object.inner_size()
        );
    }
    let bytes = PAGE_SIZE << head.order();
    let stride = registry::get(head.cache()).map_or(bytes, |cache| cache.stride as usize);
    let used = (0..bytes / GRANULE)
        .filter(|n| {
            granule::cell(head.address().wrapping_add(n * GRANULE))
                .is_some_and(|mark| mark.load(core::sync::atomic::Ordering::Relaxed) != 0)
        })
        .count();
    writeln!(
        out,
        "INFO: Slab {:p} objects={} used={used}",
        head.address(),
        bytes / stride.max(1)
    )
}

/// Bytes as the kernel dumps them: sixteen a line, in hexadecimal and as text.
fn dump(out: &mut FdWriter, title: &str, object: Object, range: (usize, usize)) -> fmt::Result {
    for line in (range.0..range.1).step_by(16) {
        let end = (line + 16).min(range.1);
        write!(out, "{title} {line:012x}: ")?;
        for at in line..line + 16 {
            if at < end {
                write!(out, "{:02x} ", object.byte(at))?;
            } else {
                out.write_str("   ")?;
            }
        }
        out.write_char(' ')?;
        for at in line..end {
            let byte = object.byte(at);
            let shown = matches!(byte, b' '..=b'~');
            out.write_char(if shown { char::from(byte) } else { '.' })?;
        }
        out.write_char('\n')?;
    }
    Ok(())
}

/// Checks the zones of an object that is in use or free; reports and restores what is
/// wrong. For whoever owns the object.
pub(super) fn check(object: Object, flags: Flags, state: State) {
    each_fault(object, object.layout(), flags, state, |zone, at, value| {
        overwritten(object, zone, at, value, true);
    });
}

/// Calls `f` with each zone of an object that does not hold its bytes: its name, where,
/// and what it should hold. Returns how many.
pub(super) fn each_fault(
    object: Object,
    layout: Layout,
    flags: Flags,
    state: State,
    mut f: impl FnMut(&str, Range<usize>, u8),
) -> usize {
    let mut faults = 0;
    let mut test = |zone: &str, range: (usize, usize), value: u8| {
        if let Some(at) = object.differs(range, value) {
            faults += 1;
            f(zone, at, value);
        }
    };
    let free = state == State::Free;
    if flags.has(Flags::RED_ZONE) {
        let red = if free { RED_FREE } else { RED_USED };
        let right = if free {
            layout.poison.1
        } else {
            layout.object.1
        };
        test("Redzone", layout.left, red);
        test("Redzone", (right, layout.red_end), red);
        test("Padding", (layout.red_end, layout.end), PADDING);
    }
    if free && is_poisoned(object, flags) {
        let (from, to) = layout.poison;
        if from < to {
            test("Poison", (from, to - 1), POISON);
            test("Poison", (to - 1, to), POISON_END);
        }
    }
    faults
}

/// Whether a free object is poisoned: large ones only if they wait in the quarantine.
pub(super) fn is_poisoned(object: Object, flags: Flags) -> bool {
    flags.has(Flags::POISON)
        && (!object.is_run() || object.inner_size() <= super::quarantine::LARGEST)
}

/// Fills the zones of an object for a state. For whoever owns it.
pub(super) fn fill(object: Object, flags: Flags, state: State) {
    let layout = object.layout();
    let free = state == State::Free;
    if flags.has(Flags::RED_ZONE) {
        let red = if free { RED_FREE } else { RED_USED };
        let right = if free {
            layout.poison.1
        } else {
            layout.object.1
        };
        object.fill(layout.left, red);
        object.fill((right, layout.red_end), red);
        object.fill((layout.red_end, layout.end), PADDING);
    }
    if free && is_poisoned(object, flags) {
        let (from, to) = layout.poison;
        if from < to {
            object.fill((from, to - 1), POISON);
            object.fill((to - 1, to), POISON_END);
        }
    }
}
