//! All debugged objects: validation, and who holds what at exit.

#![deny(unsafe_code)]

use core::fmt::{self, Write};
use core::sync::atomic::Ordering::{self, Relaxed};
use core::sync::atomic::fence;

use page_alloc::sync::Lock;
use page_alloc::{GRANULE, PAGE_SIZE, PageKind, PageRef, for_each_head, granule};

use super::record::{Object, State};
use super::stack::{self, Stack};
use super::{DebugHeap, Flags, find, report};
use crate::cache::ObjectCache;
use crate::{misuse, registry};

/// Groups that a leak report lists; the rest is counted.
const LISTED: usize = 1000;

impl<B: ObjectCache> DebugHeap<B> {
    /// Checks every debugged object, free and in use, and every cache of the process;
    /// reports each fault, and returns how many there were. What `on_error=abort`
    /// means for a fault holds here too.
    ///
    /// Other threads must not allocate or free meanwhile: their caches' queues are
    /// looked into. [`Self::check_objects`] has no such condition.
    pub fn validate(&self) -> usize {
        let mut faults = self.check_all(true);
        registry::for_each(|head| {
            if let Err(found) = (head.backend.validate)(head) {
                report::backend(head.name(), &found);
                faults += 1;
            }
        });
        faults
    }

    /// The part of [`Self::validate`] that is sound at any time, whatever other threads
    /// do: checks every debugged object and returns the number of faults, which it
    /// reports but, as the objects are others', does not repair.
    pub fn check_objects(&self) -> usize {
        self.check_all(false)
    }

    fn check_all(&self, restore: bool) -> usize {
        let mut faults = 0;
        self.for_each_object(|object, flags, cache| {
            faults += check(object, flags, cache, restore);
        });
        faults
    }

    /// Calls `f` with every debugged object, its flags, and the cache whose slab it is
    /// in; none for large objects.
    fn for_each_object(&self, mut f: impl FnMut(Object, Flags, Option<u32>)) {
        for_each_head(|head| match head.kind() {
            PageKind::Slab => {
                if let Some(class) = self.class_of(head.cache()) {
                    let flags = self.flags(class);
                    let cache = Some(head.cache());
                    for_each_in_slab(head, |object| f(object, flags, cache));
                }
            }
            PageKind::Run => {
                let base = head.address() as usize;
                if find::mark_at(base) == granule::LARGE
                    && let Some(object) = find::object_at(base)
                    && object.is_sealed()
                {
                    f(object, self.flags(object.class()), None);
                }
            }
            _ => {}
        });
    }

    /// Writes who allocated what is in use, of the caches with the flag U: a line a
    /// stack, most objects first, in the form of the kernel's `alloc_calls`, and the
    /// stack below it.
    ///
    /// ```text
    ///      12 make+0x1d/0x60 age=1/5/9 pid=100-102 cpus=0-1 bytes=480
    /// ```
    /// Ages are milliseconds: the youngest, the average, the oldest.
    ///
    /// # Errors
    /// Those of the writer.
    pub fn write_leaks(&self, out: &mut dyn Write) -> fmt::Result {
        // The counts are in the stacks: one report at a time.
        static COUNTING: Lock<()> = Lock::new(());
        static UNKNOWN: Stack = Stack::unknown();
        let Some(_counting) = COUNTING.try_lock() else {
            return out.write_str("slabmalloc: another thread is writing a leak report\n");
        };
        stack::for_each(Stack::reset);
        UNKNOWN.reset();
        let (mut objects, mut bytes) = (0u64, 0u64);
        self.for_each_object(|object, flags, _| {
            if flags.has(Flags::TRACK) && object.state() == State::Live && object.is_sealed() {
                let track = object.alloc_track();
                track
                    .stack()
                    .unwrap_or(&UNKNOWN)
                    .count(track, object.size());
                objects += 1;
                bytes += object.size() as u64;
            }
        });
        writeln!(
            out,
            "slabmalloc: {objects} objects in use, {bytes} bytes, by stack:"
        )?;
        for n in 0.. {
            let mut most: Option<&'static Stack> =
                (UNKNOWN.count.load(Relaxed) > 0).then_some(&UNKNOWN);
            let mut groups = u64::from(most.is_some());
            stack::for_each(|stack| {
                let count = stack.count.load(Relaxed);
                groups += u64::from(count > 0);
                if count > most.map_or(0, |most| most.count.load(Relaxed)) {
                    most = Some(stack);
                }
            });
            let Some(most) = most else {
                break;
            };
            if n == LISTED {
                writeln!(out, "... and {groups} more stacks")?;
                break;
            }
            most.write_count(out)?;
            most.reset();
        }
        Ok(())
    }
}

/// Calls `f` with every object of a slab.
fn for_each_in_slab(head: PageRef, mut f: impl FnMut(Object)) {
    let Some(stride) = registry::get(head.cache()).map(|cache| cache.stride as usize) else {
        return;
    };
    let start = head.address() as usize;
    let end = start + (PAGE_SIZE << head.order());
    // Slabs may begin with a colour: an object in use shows where. (A record does not: an
    // earlier slab on these pages may have left it.) Where none is, nothing is checked.
    let byte = granule::byte_of(head.cache());
    let Some(used) = (start..end)
        .step_by(GRANULE)
        .find(|at| find::mark_at(*at) == byte)
    else {
        return;
    };
    let first = start + (used - start) % stride;
    for base in (first..end).step_by(stride) {
        if base + stride > end {
            break;
        }
        if let Some(object) = find::object_at(base) {
            f(object);
        }
    }
}

/// Checks an object that others may be using; returns the number of faults. `restore`
/// when nobody is.
///
/// A sequence lock without a lock: whatever was read counts only if the state's word is
/// the same before and after, because every change goes through another word.
fn check(object: Object, flags: Flags, cache: Option<u32>, restore: bool) -> usize {
    let word = object.word();
    let state = Object::state_of(word);
    let unchanged = || {
        // Acquire: the reads before it come before the second look at the word.
        fence(Ordering::Acquire);
        object.word() == word
    };
    if state == State::Busy {
        return 0;
    }
    if !object.is_sealed() {
        // Never initialised, the pages of somebody else by now, or overwritten: only
        // the last has the mark of its cache, and stays.
        let given_out = || {
            cache.is_some_and(|cache| {
                find::mark_at(object.base()) == granule::byte_of(cache)
                    && misuse::cache_at(object.base_ptr()) == Some(cache)
            })
        };
        if given_out() && !object.is_sealed() && unchanged() && given_out() {
            report::record_overwritten(super::name_of(object.class()), object, "Left as it is");
            return 1;
        }
        return 0;
    }
    if !matches!(state, State::Live | State::Free) {
        return 0;
    }
    // Until the record is known to have been whole, the layout must not be followed.
    let layout = object.layout();
    if !unchanged() || !object.is_sealed() {
        return 0;
    }
    let faults = report::each_fault(object, layout, flags, state, |_, _, _| {});
    if faults == 0 || !unchanged() || !object.is_sealed() {
        return 0;
    }
    report::each_fault(object, layout, flags, state, |zone, at, value| {
        report::overwritten(object, zone, at, value, restore);
    })
}
