//! Giving back the granule map of slabs that hold few objects.
//!
//! ```text
//!   unit of memory:  | slab | slab | free | slab     |      16 pages
//!   its map:         [ one page of the kernel        ]
//!
//!   in use --set_quiet--> quiet --discard_maps--> sparse
//!      ^                    ^                       |
//!      '------- wake -------+------- restore -------'
//! ```
//! After a churn one object keeps the map's page for 64 KiB. A backend makes such a slab
//! *quiet*: it hands out none of its objects. When a unit holds nothing but quiet slabs,
//! with few objects in use, and free pages, its map can go: the slabs are *sparse*, and which of their objects
//! are in use follows from the backends' own records. The map then says 0, "no object in
//! use starts here", for all of them, which sends every free and look-up to its slow
//! path; there the slab's part of the map is written again and the byte read under the
//! locks ([`read_mark`], [`restore`]). The fast paths know nothing of it, and everything
//! that is told from the map is as exact as before.
//!
//! Who may change what: a slab becomes quiet and wakes under its cache's lock; it becomes
//! sparse, and ceases to be, under its zone's, which also keeps the unit's free pages
//! free meanwhile. A sparse slab is quiet. Lock order: the cache's, then the zone's.
//!
//! A free that is on its fast path meanwhile may have read its object's byte and not
//! yet cleared it. The object then counts as in use until it comes back to its slab
//! ([`was_sparse`]: the backend clears its byte), and a second free of it goes
//! unnoticed until then. The units' bytes are counted just before they go, which leaves
//! a window of a few instructions.

use core::sync::atomic::AtomicU8;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::arena::{self, Frame};
use crate::bits::Bits;
use crate::os;
use crate::page::{PageKind, PageRef, QUIET, SPARSE, WAS_SPARSE};
use crate::sync::Word;
use crate::types::{GRANULE_SHIFT, PAGE_SHIFT, PAGE_SIZE, PAGEBLOCK_PAGES};
use crate::zone::{self, Zone, ZoneInner};

/// log2 of the granule map's bytes for a page.
const MAP_SHIFT: usize = PAGE_SHIFT - GRANULE_SHIFT;

/// Objects in use beyond which a unit's map is worth its memory: the first of them to be
/// freed, or looked at, pays for writing it again.
const MOST_LIVE: usize = 8;

/// Pages of a unit: those whose map is one page of the kernel's.
fn unit_pages() -> usize {
    (os::page_size() >> MAP_SHIFT).min(PAGEBLOCK_PAGES)
}

/// Whether slabs of an order lie within one unit each: others cannot be made quiet.
pub fn fits(order: u8) -> bool {
    1 << order <= unit_pages()
}

/// The cache hands out no objects of a slab until [`wake`]. For the cache, under its lock;
/// the slab's order must be one that [`fits`], and each of its objects that is not free
/// in the slab should be in use, not in a queue.
pub fn set_quiet(head: PageRef) {
    quieten(&head.flags);
}

/// Whether a slab is quiet.
#[inline]
pub fn is_quiet(head: PageRef) -> bool {
    may_close(&head.flags)
}

/// Whether the granules of a slab's objects in use say 0. Exact for the cache, under its
/// lock, until the next [`discard_maps`].
#[inline]
pub fn is_sparse(head: PageRef) -> bool {
    head.flags.load(Relaxed) & SPARSE != 0
}

/// Whether the slab was sparse since it was made: an object that comes back to it may
/// still be marked.
#[inline]
pub fn was_sparse(head: PageRef) -> bool {
    head.flags.load(Relaxed) & WAS_SPARSE != 0
}

/// [`is_quiet`] or [`was_sparse`], in one look: what an object that comes back asks.
#[inline]
pub fn is_quiet_or_was_sparse(head: PageRef) -> bool {
    head.flags.load(Relaxed) & (QUIET | WAS_SPARSE) != 0
}

/// The byte of an object of a slab, as it is or would be. The granules of a sparse slab are
/// written again first: `write` does it, for each object that is in use by the slab's own
/// records. For the cache, under its lock; `write` must take no lock and no memory.
pub fn restore(head: PageRef, mark: &AtomicU8, write: impl FnOnce()) -> u8 {
    let _zone = zone::zone_of(arena::frame_of(head)).lock();
    reopen(&head.flags, write);
    mark.load(Relaxed)
}

/// As [`restore`], and the slab is quiet no more: its objects may be handed out.
pub fn wake(head: PageRef, write: impl FnOnce()) {
    let _zone = zone::zone_of(arena::frame_of(head)).lock();
    reopen(&head.flags, write);
    ready(&head.flags);
}

/// Gives back the map of all units that hold nothing but quiet slabs and free pages.
/// `live` tells how many objects of a quiet slab are in use by its own records; it must
/// take no lock. Returns the pages given back.
pub fn discard_maps(live: impl Fn(PageRef) -> usize) -> usize {
    let mut pages = 0;
    for (node, zone) in zone::zones().iter().enumerate() {
        arena::for_each_block_of(node, |frame| {
            // Wholly free blocks lose their map with their memory.
            if frame.arena.block(frame.index).used_total() > 0 {
                pages += discard_block(zone, frame, &live);
            }
            true
        });
    }
    pages
}

/// As [`discard_maps`], for one block.
fn discard_block(zone: &Zone, frame: Frame, live: &impl Fn(PageRef) -> usize) -> usize {
    let unit = unit_pages();
    let zone = zone.lock();
    let (mut units, mut fresh) = (Bits::default(), Bits::default());
    for from in (0..PAGEBLOCK_PAGES).step_by(unit) {
        if let Some(slabs) = quiet_slabs(&zone, frame, from, unit, live) {
            units = units.or(Bits::range(from, from + unit));
            fresh = fresh.or(slabs);
        }
    }
    let slabs_in = |from, to| fresh.and(Bits::range(from, to)).iter();
    let flags = |at: usize| &frame.arena.page(frame.index + at).flags;
    let mut pages = 0;
    for (from, to) in units.runs() {
        slabs_in(from, to).for_each(|at| close(flags(at)));
        let map = frame.arena.granules(frame.index + from);
        let bytes = (to - from) << MAP_SHIFT;
        // SAFETY: whole kernel pages of the map. Free pages have no marks, and the quiet
        // slabs' can be written again: they are sparse.
        if unsafe { os::discard(map, bytes) } {
            pages += bytes.div_ceil(PAGE_SIZE);
        } else {
            // Nothing was lost.
            slabs_in(from, to).for_each(|at| reopen(flags(at), || {}));
        }
    }
    pages
}

/// The slabs of a unit that are not sparse yet, if it holds nothing but quiet slabs and
/// free pages, and few objects in use, all of them marked where the slab is not sparse.
fn quiet_slabs(
    _zone: &ZoneInner,
    frame: Frame,
    from: usize,
    unit: usize,
    live: &impl Fn(PageRef) -> usize,
) -> Option<Bits> {
    let free = frame.arena.block(frame.index).free_map();
    let mut slabs = Bits::default();
    let (mut at, mut objects, mut unmarked) = (from, 0, 0);
    while at < from + unit {
        if free.contains(at) {
            at += 1;
            continue;
        }
        let head = frame.arena.page(frame.index + at);
        if head.kind() != PageKind::Slab || !is_quiet(head) {
            return None;
        }
        objects += live(head);
        if is_sparse(head) {
            unmarked += live(head);
        } else {
            slabs = slabs.or(Bits::range(at, at + 1));
        }
        at += 1 << head.order();
    }
    let marked = || {
        let map = frame.arena.granules(frame.index + from).cast::<AtomicU8>();
        // SAFETY: the map of committed pages, which is never unmapped.
        let map = unsafe { core::slice::from_raw_parts(map, unit << MAP_SHIFT) };
        map.iter().filter(|mark| mark.load(Relaxed) != 0).count()
    };
    let is_exact = || slabs.is_empty() || marked() + unmarked == objects;
    (objects <= MOST_LIVE && is_exact()).then_some(slabs)
}

fn change<W: Word>(flags: &W, clear: u8, set: u8, order: core::sync::atomic::Ordering) {
    let mut before = flags.load(Relaxed);
    while let Err(found) = flags.compare_exchange_weak(
        before,
        before & !u64::from(clear) | u64::from(set),
        order,
        Relaxed,
    ) {
        before = found;
    }
}

/// The bytes of a quiet slab are about to be lost. For the holder of the zone's lock.
///
/// The loss itself is a barrier for every processor of the process (the kernel flushes
/// their translations), so whoever finds a byte lost finds the flags set.
pub fn close<W: Word>(flags: &W) {
    change(flags, 0, SPARSE | WAS_SPARSE, Release);
}

/// Undoes [`close`]: writes the bytes by `write`. For the holder of the zone's lock.
pub fn reopen<W: Word>(flags: &W, write: impl FnOnce()) {
    if flags.load(Relaxed) & u64::from(SPARSE) != 0 {
        write();
        change(flags, SPARSE, 0, Relaxed);
    }
}

/// The slab is quiet no more. For the holder of both locks, after [`reopen`].
pub fn ready<W: Word>(flags: &W) {
    change(flags, QUIET, 0, Relaxed);
}

/// Whether a slab with these flags may lose its bytes. For the holder of the zone's lock.
pub fn may_close<W: Word>(flags: &W) -> bool {
    flags.load(Relaxed) & u64::from(QUIET) != 0
}

/// Makes a slab with these flags quiet. For the holder of the cache's lock.
pub fn quieten<W: Word>(flags: &W) {
    // Release: what the cache noted about the slab comes first.
    change(flags, 0, QUIET, Release);
}

/// Reads the byte of an object, as slow paths do. A byte of 0 may have been lost if others
/// of the slab's were, at any time: it may come and go while trims follow each other,
/// so only `locked`, which calls [`restore`], can tell.
#[inline]
pub fn read<B: Word, F: Word>(byte: &B, flags: &F, locked: impl FnOnce() -> u8) -> u8 {
    // Acquire: who finds a byte lost finds the flag that was set before.
    let found = byte.load(Acquire) as u8;
    if found != 0 || flags.load(Acquire) & u64::from(WAS_SPARSE) == 0 {
        found
    } else {
        locked()
    }
}

/// [`read`] for the granule of a slab's object.
#[inline]
pub fn read_mark(mark: &AtomicU8, head: PageRef, locked: impl FnOnce() -> u8) -> u8 {
    read(mark, &head.flags, locked)
}
