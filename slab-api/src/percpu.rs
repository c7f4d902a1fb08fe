//! Slots that are CPUs: what `percpu=rseq` does instead of a thread's slot.
//!
//! ```text
//!   alloc ─▶ section: pop ──miss──▶ refill: a batch from the backend, rest into the queue
//!   free  ─▶ section: push ─full──▶ flush:  a batch of the queue to the backend
//!                       └ no slot, or stopped ──▶ one object from or to the backend
//! ```
//! A thread's slot pointer then stays at the image on which every fast path misses, so
//! threads pay nothing for this mode, and the backends' slow paths come here first
//! ([`on`]). What is behind the queues is the backend's, by two of its functions:
//! `fill` and `give` of [`registry::Backend`].
//!
//! *Budget*: a queue starts small and doubles as it misses. The limits of all queues of
//! a CPU together allow no more than [`budget`] bytes; one that wants more takes it
//! from others, whose objects go back.
//!
//! *Trimming*: a slot in which nothing moved for a second is emptied by whoever next
//! takes a slow path on another CPU; `malloc_trim`, the quiet-program watch and memory
//! pressure empty all ([`trim`]).
//!
//! Lock order: the slots' lock ([`registry::slots_lock`]) before a cache's. Whoever
//! stops a slot, or takes objects of caches that are not its own, holds it.

#![deny(unsafe_code)]

use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use page_alloc::cpu::{self, Adjust, MAX_QUEUES, Slot};
use page_alloc::rseq::{self, Miss};
use page_alloc::{os, page_of, purge, topology};

use crate::registry::{self, CacheHead, MAX_CACHES};

pub use page_alloc::cpu::on;

// Ids name queues.
const _: () = assert!(MAX_CACHES <= MAX_QUEUES);

/// Objects that move at a time between a queue and the backend.
const BATCH: usize = 64;
/// Bytes of objects that a queue can be made to hold, and how many those are at most.
const QUEUE_BYTES: usize = 16 << 10;
const QUEUE_MOST: usize = 255;
/// Bytes of objects that a new queue may hold, and how many those are at most.
const FIRST_BYTES: usize = 1 << 10;
const FIRST_MOST: usize = 16;
/// Misses before a queue may hold twice as much.
const GROW_AFTER: u32 = 2;
/// Milliseconds between looks for idle slots.
const LOOK_EVERY: u64 = 1000;

static BUDGET: AtomicUsize = AtomicUsize::new(256 << 10);
static NEXT_LOOK: AtomicU64 = AtomicU64::new(0);

/// Events of CPU slots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// Attempts to use CPU slots where they are not to be had; threads serve then.
    pub unavailable: u64,
    /// Sections that were interrupted and began again.
    pub aborts: u64,
    /// Operations that went past the queues: on a CPU without a slot, or while it was
    /// stopped.
    pub bypasses: u64,
    /// Refills from the backends, each of one batch.
    pub refills: u64,
    /// Flushes to the backends, each of one batch.
    pub flushes: u64,
    /// Queues that gave bytes of the budget to another.
    pub steals: u64,
    /// Slots that were emptied from outside.
    pub trims: u64,
}

static UNAVAILABLE: AtomicU64 = AtomicU64::new(0);
static BYPASSES: AtomicU64 = AtomicU64::new(0);
static REFILLS: AtomicU64 = AtomicU64::new(0);
static FLUSHES: AtomicU64 = AtomicU64::new(0);
static STEALS: AtomicU64 = AtomicU64::new(0);
static TRIMS: AtomicU64 = AtomicU64::new(0);

fn bump(counter: &AtomicU64) {
    counter.fetch_add(1, Relaxed);
}

/// What happened so far in this process.
pub fn counts() -> Counts {
    Counts {
        unavailable: UNAVAILABLE.load(Relaxed),
        aborts: rseq::aborts(),
        bypasses: BYPASSES.load(Relaxed),
        refills: REFILLS.load(Relaxed),
        flushes: FLUSHES.load(Relaxed),
        steals: STEALS.load(Relaxed),
        trims: TRIMS.load(Relaxed),
    }
}

/// What slots are, as the settings name it.
pub fn mode() -> &'static str {
    if on() { "rseq" } else { "thread" }
}

/// Makes slots CPUs, for all heaps and caches of the process. Meant for the start;
/// later on, threads keep what their slots have until they end.
///
/// # Errors
/// What is missing, as the end of a sentence. Slots stay threads then, and
/// [`Counts::unavailable`] rises.
pub fn start() -> Result<(), &'static str> {
    cpu::start().inspect_err(|_| bump(&UNAVAILABLE))
}

/// Bytes that the queues of a CPU may hold together.
pub fn budget() -> usize {
    BUDGET.load(Relaxed)
}

/// Sets the bytes that the queues of a CPU may hold together. Limits that were given
/// out stay until others want them.
pub fn set_budget(bytes: usize) {
    BUDGET.store(bytes, Relaxed);
}

fn capacity(head: &CacheHead) -> usize {
    (QUEUE_BYTES / head.stride as usize).clamp(2, QUEUE_MOST)
}

fn first_limit(head: &CacheHead) -> usize {
    (FIRST_BYTES / head.stride as usize).clamp(1, FIRST_MOST)
}

/// Takes an object of a cache and marks it; null without memory.
#[inline]
pub fn alloc(head: &CacheHead) -> *mut u8 {
    look_at_clock();
    match pop(head.id) {
        Ok(p) => mark(head, p),
        Err(why) => mark(head, refill(head, why)),
    }
}

/// Gives an object back, whose mark is cleared.
#[inline]
pub fn free(head: &CacheHead, p: *mut u8) {
    look_at_clock();
    if topology::nodes() > 1 && is_remote(p) {
        // Home: a queue would hand it out on the wrong node.
        return (head.backend.give)(head, &[p], topology::current_node());
    }
    if let Err(why) = push(head.id, p) {
        flush(head, p, why);
    }
}

/// Takes objects and marks them; returns how many. Fewer only without memory.
pub fn alloc_bulk(head: &CacheHead, out: &mut [*mut u8]) -> usize {
    purge::tick();
    let mut got = 0;
    while got < out.len() {
        let rest = &mut out[got..];
        let mut n = pop_many(head.id, rest).unwrap_or(0);
        if n == 0 && rest.len() >= BATCH {
            // A whole batch of more goes past the queue.
            n = fill(head, rest);
        } else if n == 0 {
            rest[0] = refill(head, Miss::Queue);
            n = usize::from(!rest[0].is_null());
        }
        if n == 0 {
            break;
        }
        rest[..n].iter().for_each(|p| _ = mark(head, *p));
        got += n;
    }
    got
}

/// Gives a batch back, whose marks are cleared: in one section as far as there is room.
fn free_batch(head: &CacheHead, batch: &[*mut u8]) {
    let kept = if topology::nodes() == 1 {
        push_many(head.id, batch).unwrap_or(0)
    } else {
        0
    };
    if kept < batch.len() {
        bump(&FLUSHES);
        (head.backend.give)(head, &batch[kept..], topology::current_node());
    }
}

/// Objects of a cache in all CPUs' queues; a snapshot.
pub fn queued(id: u32) -> usize {
    let mut n = 0;
    cpu::for_each(|slot| n += slot.queued(id));
    n
}

/// The unsafe edge: marks, and sections by ids of caches once [`start`] has succeeded.
#[allow(unsafe_code)]
mod edge {
    use core::ptr::NonNull;

    use page_alloc::granule;

    use super::*;
    use crate::{ObjectCache, checks};

    pub(super) fn mark(head: &CacheHead, p: *mut u8) -> *mut u8 {
        if p.is_null() {
            return p;
        }
        // SAFETY: an object of a slab, in an arena, that is now ours.
        unsafe { checks::taken(p, head.id) }
    }

    /// Gives objects back. What is no object in use is reported.
    ///
    /// # Safety
    /// As [`ObjectCache::free_bulk`].
    pub unsafe fn free_bulk<C: ObjectCache>(cache: C, head: &CacheHead, objects: &[*mut u8]) {
        let byte = granule::byte_of(head.id);
        for objects in objects.chunks(BATCH) {
            let mut batch = [core::ptr::null_mut(); BATCH];
            let mut n = 0;
            for p in objects {
                let mark = granule::cell(*p).filter(|mark| mark.load(Relaxed) == byte);
                if byte != granule::EXTENDED
                    && let Some(mark) = mark
                {
                    // Twice in one call is caught too.
                    checks::freed(mark);
                    (batch[n], n) = (*p, n + 1);
                } else if let Some(p) = NonNull::new(*p) {
                    // SAFETY: promised by the caller. Reports what is no object in use.
                    unsafe { cache.free(p) };
                }
            }
            free_batch(head, &batch[..n]);
        }
        purge::tick();
    }

    pub(super) fn pop(id: u32) -> Result<*mut u8, Miss> {
        // SAFETY: ids of caches are below MAX_CACHES, and callers come here only where
        // slots are CPUs, which `start` has seen to. So for the others.
        unsafe { rseq::pop(id) }.map(NonNull::as_ptr)
    }

    pub(super) fn push(id: u32, p: *mut u8) -> Result<(), Miss> {
        // SAFETY: as above; the object is the caller's.
        unsafe { rseq::push(id, p) }
    }

    pub(super) fn pop_many(id: u32, out: &mut [*mut u8]) -> Result<usize, Miss> {
        // SAFETY: as above.
        unsafe { rseq::pop_many(id, out) }
    }

    pub(super) fn push_many(id: u32, from: &[*mut u8]) -> Result<usize, Miss> {
        // SAFETY: as above; the objects are the caller's.
        unsafe { rseq::push_many(id, from) }
    }
}
pub use edge::free_bulk;
use edge::{mark, pop, pop_many, push, push_many};

fn is_remote(p: *mut u8) -> bool {
    page_of(p).is_some_and(|page| page.node() != topology::current_node())
}

/// Every operation comes by here, so nothing needs to be armed.
#[inline(always)]
fn look_at_clock() {
    if purge::pending() && !purge::watched() {
        purge::tick();
    }
}

fn fill(head: &CacheHead, out: &mut [*mut u8]) -> usize {
    (head.backend.fill)(head, topology::current_node(), out)
}

/// The queue had no object: takes a batch from the backend, one for the caller.
#[cold]
#[inline(never)]
fn refill(head: &CacheHead, why: Miss) -> *mut u8 {
    purge::tick();
    let slot = if why == Miss::NoCpu {
        None
    } else {
        Slot::current()
    };
    let limit = slot.map_or(0, |slot| ready(slot, head));
    let mut batch = [core::ptr::null_mut(); BATCH];
    let want = (limit / 2 + 1).min(BATCH);
    let n = fill(head, &mut batch[..want]);
    let Some((first, rest)) = batch[..n].split_first_mut() else {
        return core::ptr::null_mut();
    };
    if limit == 0 {
        bump(&BYPASSES);
    } else {
        bump(&REFILLS);
    }
    if !rest.is_empty() {
        // What was given first, the lowest address, is handed out first.
        rest.reverse();
        let kept = push_many(head.id, rest).unwrap_or(0);
        if kept < rest.len() {
            (head.backend.give)(head, &rest[kept..], topology::current_node());
        }
    }
    look_for_idle();
    *first
}

/// The queue had no room: gives a batch of it to the backend, and takes `p`.
#[cold]
#[inline(never)]
fn flush(head: &CacheHead, p: *mut u8, why: Miss) {
    let node = topology::current_node();
    let slot = if why == Miss::NoCpu {
        None
    } else {
        Slot::current()
    };
    let limit = slot.map_or(0, |slot| ready(slot, head));
    // The queue may just have been made, or made larger.
    if limit == 0 || push(head.id, p).is_err() {
        let mut batch = [core::ptr::null_mut(); BATCH];
        let want = limit.div_ceil(2).min(BATCH);
        let n = pop_many(head.id, &mut batch[..want]).unwrap_or(0);
        if n > 0 {
            bump(&FLUSHES);
            (head.backend.give)(head, &batch[..n], node);
        }
        if push(head.id, p).is_err() {
            bump(&BYPASSES);
            (head.backend.give)(head, &[p], node);
        }
    }
    look_for_idle();
    purge::tick();
}

/// Makes sure that the slot has a queue for the cache, and a larger one when it misses
/// often. What it may hold; 0 when there is none.
fn ready(slot: Slot, head: &CacheHead) -> usize {
    let (id, stride) = (head.id, head.stride as usize);
    let misses = slot.note_miss(id);
    let limit = slot.limit(id);
    let wanted = if slot.capacity(id) == 0 {
        first_limit(head)
    } else if misses >= GROW_AFTER || limit == 0 {
        (limit * 2).clamp(1, slot.capacity(id))
    } else {
        limit
    };
    if wanted > limit {
        if slot.claimed() + (wanted - limit) * stride > budget() {
            make_room(slot, id, (wanted - limit) * stride);
        }
        if let Some(adjust) = slot.adjust()
            && slot.claimed() + wanted.saturating_sub(slot.limit(id)) * stride <= budget()
            && adjust.open(id, stride, capacity(head), wanted)
        {
            adjust.set_limit(id, wanted);
        }
    }
    slot.limit(id)
}

/// Takes bytes of the budget from other queues of the slot, and what those then hold
/// beyond their limits to their backends.
#[cold]
fn make_room(slot: Slot, id: u32, bytes: usize) {
    /// Queues looked at in one go.
    const LOOKS: u32 = 32;
    // Caches are destroyed under this lock: the victims are alive.
    let Some(_slots) = registry::try_slots_lock() else {
        return;
    };
    for _ in 0..LOOKS {
        if slot.claimed() + bytes <= budget() {
            return;
        }
        let victim = slot.next_victim();
        let limit = slot.limit(victim);
        if victim == id || limit == 0 {
            continue;
        }
        let Some(head) = registry::get(victim) else {
            continue;
        };
        let Some(adjust) = slot.adjust() else {
            return;
        };
        let floor = first_limit(head);
        adjust.set_limit(
            victim,
            if limit > floor {
                (limit / 2).max(floor)
            } else {
                0
            },
        );
        drop(adjust);
        bump(&STEALS);
        let mut batch = [core::ptr::null_mut(); BATCH];
        loop {
            let excess = slot.queued(victim).saturating_sub(slot.limit(victim));
            // Of the CPU that the thread runs on by now; mostly still the same.
            let n = pop_many(victim, &mut batch[..excess.min(BATCH)]).unwrap_or(0);
            if n == 0 {
                break;
            }
            (head.backend.give)(head, &batch[..n], topology::current_node());
        }
    }
}

/// Empties slots in which nothing has moved for a while, and lets the backends reap.
fn look_for_idle() {
    let (now, next) = (os::now_ms(), NEXT_LOOK.load(Relaxed));
    if now >= next
        && NEXT_LOOK
            .compare_exchange(next, now + LOOK_EVERY, Relaxed, Relaxed)
            .is_ok()
        && next > 0
        && let Some(_slots) = registry::try_slots_lock()
    {
        cpu::for_each(|slot| {
            if slot.is_idle() {
                empty(slot);
            }
        });
        registry::for_each(|head| (head.backend.reap)(head));
    }
}

/// Gives what all CPUs' queues hold to the backends. Returns the slots that were
/// emptied.
pub fn trim() -> usize {
    if !on() {
        return 0;
    }
    let _slots = registry::slots_lock();
    let mut emptied = 0;
    cpu::for_each(|slot| emptied += usize::from(empty(slot)));
    emptied
}

/// Empties a slot, if it holds anything, and lets its queues start small again. The
/// slots' lock is held.
fn empty(slot: Slot) -> bool {
    if slot.queued_bytes() == 0 && slot.claimed() == 0 {
        return false;
    }
    let Some(mut stopped) = slot.stop() else {
        return false;
    };
    bump(&TRIMS);
    let adjust: Option<Adjust<'_>> = slot.adjust();
    for id in 1..=slot.max_id() {
        if slot.capacity(id) == 0 {
            continue;
        }
        if let Some(adjust) = &adjust {
            adjust.set_limit(id, 0);
        }
        if slot.queued(id) > 0
            && let Some(head) = registry::get(id)
        {
            give_queue(&mut stopped, head);
        }
    }
    true
}

fn give_queue(stopped: &mut cpu::Stopped, head: &CacheHead) {
    let mut batch = [core::ptr::null_mut(); BATCH];
    loop {
        let n = stopped.take(head.id, &mut batch);
        if n == 0 {
            return;
        }
        (head.backend.give)(head, &batch[..n], topology::current_node());
    }
}

/// Gives what all CPUs' queues hold of one cache to its slabs. For a cache's `shrink`.
pub fn shrink(head: &CacheHead) {
    if on() && queued(head.id) > 0 {
        let _slots = registry::slots_lock();
        drain(head, false);
    }
}

/// As [`shrink`], for a cache that is about to end: nobody uses it, and the caller
/// holds the slots' lock.
pub fn end(head: &CacheHead) {
    if on() {
        drain(head, true);
    }
}

fn drain(head: &CacheHead, close: bool) {
    cpu::for_each(|slot| {
        if slot.capacity(head.id) == 0 || (slot.queued(head.id) == 0 && !close) {
            return;
        }
        if let Some(mut stopped) = slot.stop() {
            give_queue(&mut stopped, head);
            if close {
                stopped.close(head.id);
            }
        }
    });
}
