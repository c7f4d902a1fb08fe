//! The granule map: one byte for each 16 bytes of an arena, which names the
//! object that *starts* there.
//!
//! ```text
//!   arena:  |16 B|16 B|16 B|16 B|16 B|16 B| ...
//!   map:    | 7  | 0  | 0  | 7  | 0  | 254| ...   0 = no live object starts here
//! ```
//! The byte is the id of the object's cache while the object is allocated,
//! [`LARGE`] for a run of pages, [`EXTENDED`] for caches whose id does not fit a
//! byte, and 0 otherwise. `free` needs the cache anyway, so one load finds the
//! class *and* catches double, interior, misaligned and foreign frees; writing
//! the byte on `malloc` and clearing it on `free` costs one store each. Each byte
//! belongs to the holder of its object, so no locked operation is needed.
//!
//! The first arena's map is reached through the static `PRIMARY` without a
//! search; other arenas through [`cell`].

use core::ptr::NonNull;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicPtr, AtomicU8, AtomicUsize};

use crate::arena;
use crate::types::{GRANULE, GRANULE_SHIFT};

/// The byte of a run of pages.
pub const LARGE: u8 = 254;
/// The byte of an object whose cache's id is 254 or more.
pub const EXTENDED: u8 = 255;

/// What the fast paths need of the first arena. All zero until it exists, which
/// sends every look-up to the slow path.
#[derive(Debug)]
#[repr(C)]
pub struct Primary {
    base: AtomicUsize,
    granules: AtomicUsize,
    map: AtomicPtr<AtomicU8>,
}

/// The first arena's map.
static PRIMARY: Primary = Primary {
    base: AtomicUsize::new(0),
    granules: AtomicUsize::new(0),
    map: AtomicPtr::new(core::ptr::null_mut()),
};

/// Publishes the first arena: `granules` is the number of map bytes that are
/// committed so far. Called again whenever the arena grows.
pub(crate) fn publish_primary(base: usize, granules: usize, map: *mut AtomicU8) {
    PRIMARY.base.store(base, Relaxed);
    PRIMARY.map.store(map, Relaxed);
    PRIMARY.granules.store(granules, Release);
}

/// `p` minus the first arena's base, wrapping.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline(always)]
fn offset_in_primary(p: usize) -> usize {
    let mut offset = p;
    // SAFETY: reads one aligned word of a static, as a relaxed atomic load would.
    // (rustc does not fold an atomic load into the subtraction: one instruction
    // more on both fast paths.)
    unsafe {
        core::arch::asm!(
            "sub {offset}, qword ptr [rip + {primary}]",
            offset = inout(reg) offset,
            primary = sym PRIMARY,
            options(pure, readonly, nostack),
        );
    }
    offset
}

/// `p` minus the first arena's base, wrapping.
#[cfg(not(all(target_arch = "x86_64", not(miri))))]
#[inline(always)]
fn offset_in_primary(p: usize) -> usize {
    p.wrapping_sub(PRIMARY.base.load(Relaxed))
}

// The assembly reads the first word of `PRIMARY`.
const _: () = assert!(core::mem::offset_of!(Primary, base) == 0);

/// The map byte for an address of the first arena; `None` for any other address
/// and for one that is not 16-byte aligned.
#[inline(always)]
pub fn primary_cell(p: *const u8) -> Option<&'static AtomicU8> {
    // Acquire: pairs with the release above, so that a number of granules is never
    // seen without its base and map.
    let granules = PRIMARY.granules.load(Acquire);
    // The rotation carries misalignment into the top bits, so that one unsigned
    // comparison refuses misaligned, null, low, high and foreign addresses.
    let index = offset_in_primary(p as usize).rotate_right(GRANULE_SHIFT as u32);
    if index >= granules {
        return None;
    }
    // SAFETY: index is within the committed part of the first arena's map, which
    // is published before `granules` covers it and is never unmapped, so the sum is
    // not null either.
    Some(unsafe { NonNull::new_unchecked(PRIMARY.map.load(Relaxed).add(index)).as_ref() })
}

/// The map byte for any address of any arena; `None` for foreign and misaligned
/// ones.
pub fn cell(p: *const u8) -> Option<&'static AtomicU8> {
    if !(p as usize).is_multiple_of(GRANULE) {
        return None;
    }
    arena::granule_cell(p)
}

/// Marks the object at `p` with `byte` and returns `p`.
///
/// # Safety
/// `p` must be the address of an object that this process's arenas hold and the
/// caller owns.
#[inline(always)]
pub unsafe fn mark(p: *mut u8, byte: u8) -> *mut u8 {
    match primary_cell(p) {
        Some(cell) => {
            cell.store(byte, Relaxed);
            p
        }
        None => mark_elsewhere(p, byte),
    }
}

// Returns `p` so that the fast path can end in a jump to it.
#[cold]
#[inline(never)]
extern "C" fn mark_elsewhere(p: *mut u8, byte: u8) -> *mut u8 {
    if let Some(cell) = cell(p) {
        cell.store(byte, Relaxed);
    }
    p
}

/// The byte that stands for a cache's id.
#[inline(always)]
pub const fn byte_of(id: u32) -> u8 {
    if id < LARGE as u32 {
        id as u8
    } else {
        EXTENDED
    }
}

/// The map byte for an object inside an arena.
///
/// # Safety
/// As [`mark`].
#[inline(always)]
pub unsafe fn cell_of_object(p: *const u8) -> &'static AtomicU8 {
    match primary_cell(p) {
        Some(cell) => cell,
        None => cell_elsewhere(p),
    }
}

#[cold]
#[inline(never)]
fn cell_elsewhere(p: *const u8) -> &'static AtomicU8 {
    // Objects start on granules of an arena, so this look-up finds one; were the
    // promise broken, a private byte takes the write and nothing is corrupted.
    static STRAY: AtomicU8 = AtomicU8::new(0);
    cell(p).unwrap_or(&STRAY)
}
