//! CPU slots: queues of objects that belong to a CPU, for `percpu=rseq`.
//!
//! ```text
//!   record: [ claimed, seen ... | cold[0..128] ] base: [ hot[0] | hot[1] | ... ] [ cold[128..] ]
//!                                 array, limit          null      {top, end}
//!   array:  [ null | oldest | ... | newest | room ]     of the metadata pool, above the slots
//!             ^ top of an empty queue   ^ end: the last place that the limit allows
//! ```
//! As in a thread's slot, `top` and `end` are byte distances from `base`, and an entry
//! {0, 0} finds the null word there (empty) and no room. Only the sections of
//! [`crate::rseq`] change `top` while the slot is open; everything else follows three
//! rules that keep them right whenever they run:
//!
//! - an array is never moved or resized. A queue grows by its `end`, up to the array's
//!   capacity, and shrinks by a lower `end` and pops;
//! - what changes limits and makes arrays holds the slot's `busy` flag ([`Slot::adjust`]);
//!   who finds it taken does without;
//! - who empties a slot from another CPU stops it first ([`Slot::stop`]): the sections
//!   then find no slot, and the kernel has restarted those that had found it.
//!
//! A CPU's slot is made when a thread that runs there first misses.

use core::ptr::NonNull;
use core::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering,
    Ordering::Relaxed,
};

use crate::meta;
use crate::os;
use crate::rseq::{self, CPUS, MAX_CPUS, TABLE};
use crate::sync::{FutexLock, Lock};

/// Queues of a slot: ids run from 1 to below this.
pub const MAX_QUEUES: usize = 1024;

/// One queue, for the sections: the layout is theirs.
#[repr(C)]
struct Hot {
    top: AtomicU32,
    end: AtomicU32,
}

/// One queue, for everything else.
#[repr(C)]
struct Cold {
    /// Index of the array's record plus one; 0 for none.
    array: AtomicU32,
    /// Objects that the array can hold, and that the queue may.
    capacity: AtomicU16,
    limit: AtomicU16,
    /// Bytes of an object.
    stride: AtomicU32,
    /// Misses since the limit last changed.
    misses: AtomicU32,
}

/// Queues whose cold entries lie beside their hot ones.
const NEAR: usize = 128;

#[repr(C, align(64))]
struct Record {
    cpu: u32,
    /// Somebody makes an array or changes a limit.
    busy: AtomicBool,
    /// The largest id that has an array.
    max_id: AtomicU32,
    /// Where the search for bytes goes on.
    hand: AtomicU32,
    /// Bytes that all limits together allow.
    claimed: AtomicUsize,
    /// Refills and flushes.
    activity: AtomicU64,
    /// What [`Slot::is_idle`] saw last.
    seen: AtomicU64,
    near: [Cold; NEAR],
    hot: [Hot; MAX_QUEUES],
    far: [Cold; MAX_QUEUES - NEAR],
}

const BASE: usize = core::mem::offset_of!(Record, hot);
// The sections step by 8, with `end` behind `top`.
const _: () = assert!(size_of::<Hot>() == 8 && core::mem::offset_of!(Hot, end) == 4);
const _: () = assert!(BASE + NEAR * size_of::<Hot>() <= crate::PAGE_SIZE);

/// The records' bases, by CPU; null where there is none. Unlike the sections' table
/// it keeps stopped ones.
static SLOTS: [AtomicPtr<u8>; MAX_CPUS] =
    [const { AtomicPtr::new(core::ptr::null_mut()) }; MAX_CPUS];
/// CPUs below this may have records.
static SEEN_CPUS: AtomicU32 = AtomicU32::new(0);
/// Held while a record is made.
static MAKE: Lock<()> = Lock::new(());

static ON: AtomicBool = AtomicBool::new(false);

/// Whether slots are CPUs.
#[inline(always)]
pub fn on() -> bool {
    ON.load(Relaxed)
}

/// Makes slots CPUs from now on. Threads that have used theirs already go on using what
/// they have; they find their way to the CPUs' with their slow paths.
///
/// # Errors
/// What is missing, as the end of a sentence; slots then stay threads.
pub fn start() -> Result<(), &'static str> {
    rseq::prepare()?;
    ON.store(true, Relaxed);
    Ok(())
}

/// Lets only the first `cpus` CPUs have slots, 1024 at most; on others each operation
/// takes the locked path. For tests, and experiments.
pub fn set_cpus(cpus: u32) {
    CPUS.store(cpus.min(MAX_CPUS as u32), Relaxed);
}

/// A CPU's slot.
#[derive(Clone, Copy, Debug)]
pub struct Slot(NonNull<u8>);

impl Slot {
    /// The slot of the CPU that the calling thread runs on, made on first use; another
    /// one by the time that the caller looks at it. `None` for a CPU that can have
    /// none, or without memory.
    pub fn current() -> Option<Self> {
        let cpu = rseq::cpu();
        if cpu >= CPUS.load(Relaxed) {
            return None;
        }
        match NonNull::new(SLOTS[cpu as usize % MAX_CPUS].load(Ordering::Acquire)) {
            Some(base) => Some(Self(base)),
            None => Self::make(cpu),
        }
    }

    #[cold]
    fn make(cpu: u32) -> Option<Self> {
        let _make = MAKE.lock();
        let cell = &SLOTS[cpu as usize % MAX_CPUS];
        if let Some(base) = NonNull::new(cell.load(Ordering::Acquire)) {
            return Some(Self(base));
        }
        let record = meta::alloc_slot(size_of::<Record>())?;
        // SAFETY: ours, zeroed, Record's size; published below.
        let base = unsafe {
            (*record.cast::<Record>().as_ptr()).cpu = cpu;
            record.add(BASE)
        };
        cell.store(base.as_ptr(), Ordering::Release);
        SEEN_CPUS.fetch_max(cpu + 1, Ordering::Release);
        let address = base.as_ptr().expose_provenance() as u64;
        rseq::resume(&TABLE[cpu as usize % MAX_CPUS], address);
        Some(Self(base))
    }

    fn record(&self) -> &Record {
        // SAFETY: a record begins BASE bytes before its base and is never unmapped;
        // what changes after `make` is atomic.
        unsafe { self.0.sub(BASE).cast::<Record>().as_ref() }
    }

    fn hot(&self, id: u32) -> &Hot {
        &self.record().hot[id as usize % MAX_QUEUES]
    }

    fn cold(&self, id: u32) -> &Cold {
        let (record, id) = (self.record(), id as usize % MAX_QUEUES);
        match record.near.get(id) {
            Some(near) => near,
            None => &record.far[id - NEAR],
        }
    }

    /// The CPU.
    pub fn cpu(&self) -> u32 {
        self.record().cpu
    }

    /// The largest id that has a queue here.
    pub fn max_id(&self) -> u32 {
        self.record().max_id.load(Relaxed)
    }

    /// Objects that the queue may hold; 0 when there is none.
    pub fn limit(&self, id: u32) -> usize {
        self.cold(id).limit.load(Relaxed).into()
    }

    /// Objects that the queue can hold at most; 0 when there is none.
    pub fn capacity(&self, id: u32) -> usize {
        self.cold(id).capacity.load(Relaxed).into()
    }

    /// Bytes that all limits together allow.
    pub fn claimed(&self) -> usize {
        self.record().claimed.load(Relaxed)
    }

    /// Objects in the queue; a snapshot.
    pub fn queued(&self, id: u32) -> usize {
        let Some(bottom) = self.bottom(id) else {
            return 0;
        };
        let top = self.hot(id).top.load(Relaxed);
        ((top.saturating_sub(bottom) / 8) as usize).min(self.capacity(id))
    }

    /// Bytes in all queues; a snapshot.
    pub fn queued_bytes(&self) -> usize {
        let bytes = |id| self.queued(id) * self.cold(id).stride.load(Relaxed) as usize;
        (1..=self.max_id()).map(bytes).sum()
    }

    /// Byte distance from the base to the array's null word.
    fn bottom(&self, id: u32) -> Option<u32> {
        let index = self.cold(id).array.load(Ordering::Acquire).checked_sub(1)?;
        let array = meta::at(index) as usize;
        Some(array.wrapping_sub(self.0.as_ptr() as usize) as u32)
    }

    /// Counts a miss of the queue; returns how many those are since the limit changed.
    pub fn note_miss(&self, id: u32) -> u32 {
        let count = |n: &AtomicU32| {
            let next = n.load(Relaxed).wrapping_add(1);
            n.store(next, Relaxed);
            next
        };
        let activity = &self.record().activity;
        activity.store(activity.load(Relaxed).wrapping_add(1), Relaxed);
        count(&self.cold(id).misses)
    }

    /// Whether nothing has moved here since this was asked last.
    pub fn is_idle(&self) -> bool {
        let record = self.record();
        let mut sum = record.activity.load(Relaxed);
        for id in 1..=self.max_id() {
            let top = u64::from(self.hot(id).top.load(Relaxed));
            sum = sum.rotate_left(5).wrapping_add(top);
        }
        record.seen.swap(sum, Relaxed) == sum
    }

    /// The id that the next search for bytes begins with.
    pub fn next_victim(&self) -> u32 {
        let next = self.record().hand.load(Relaxed) % self.max_id().max(1) + 1;
        self.record().hand.store(next, Relaxed);
        next
    }

    /// Permission to make queues and to change limits; `None` while somebody else has
    /// it.
    pub fn adjust(&self) -> Option<Adjust<'_>> {
        let busy = &self.record().busy;
        // Acquire and release: limits and arrays as the last one left them.
        (!busy.swap(true, Ordering::Acquire)).then_some(Adjust(self))
    }

    /// Stops the slot, for emptying it; `None` when somebody else has, or the kernel
    /// cannot restart sections. Operations on its CPU take the locked paths meanwhile.
    pub fn stop(&self) -> Option<Stopped> {
        let entry = &TABLE[self.cpu() as usize % MAX_CPUS];
        rseq::stop(entry, || os::restart_sections(self.cpu()))?;
        STOPS.fetch_add(1, Relaxed);
        Some(Stopped(*self))
    }
}

static STOPS: AtomicU64 = AtomicU64::new(0);

/// How often a slot was stopped.
pub fn stops() -> u64 {
    STOPS.load(Relaxed)
}

/// Calls `f` with each CPU's slot.
pub fn for_each(mut f: impl FnMut(Slot)) {
    let cpus = SEEN_CPUS.load(Ordering::Acquire) as usize;
    for cell in &SLOTS[..cpus.min(MAX_CPUS)] {
        if let Some(base) = NonNull::new(cell.load(Ordering::Acquire)) {
            f(Slot(base));
        }
    }
}

/// The right to make queues of a slot and to change their limits.
#[derive(Debug)]
pub struct Adjust<'a>(&'a Slot);

impl Adjust<'_> {
    /// Makes a queue, of objects of `stride` bytes, that may hold `limit` objects and
    /// can be made to hold `capacity`. False without memory; true also when there is
    /// one.
    pub fn open(&self, id: u32, stride: usize, capacity: usize, limit: usize) -> bool {
        let cold = self.0.cold(id);
        if cold.array.load(Relaxed) != 0 {
            return true;
        }
        let Some(array) = meta::alloc(array_bytes(capacity)) else {
            return false;
        };
        cold.capacity.store(capacity as u16, Relaxed);
        cold.stride.store(stride as u32, Relaxed);
        cold.limit.store(0, Relaxed);
        cold.array
            .store(meta::index_of(array.as_ptr()) + 1, Ordering::Release);
        let record = self.0.record();
        record.max_id.fetch_max(id, Relaxed);
        if let Some(bottom) = self.0.bottom(id) {
            // Both at once: by an end without its top a section would put an object
            // where the base is.
            let both = u64::from(bottom) | u64::from(bottom) << 32;
            let hot: *const Hot = self.0.hot(id);
            // SAFETY: an entry is eight bytes, aligned to that (the base is aligned to
            // 64), and all accesses to it are atomic.
            unsafe { AtomicU64::from_ptr(hot.cast_mut().cast()) }.store(both, Ordering::Release);
        }
        self.set_limit(id, limit);
        true
    }

    /// Sets what the queue may hold, within its capacity. Objects beyond it stay until
    /// they are popped.
    pub fn set_limit(&self, id: u32, limit: usize) {
        let (cold, claimed) = (self.0.cold(id), &self.0.record().claimed);
        let Some(bottom) = self.0.bottom(id) else {
            return;
        };
        let (old, limit) = (self.0.limit(id), limit.min(self.0.capacity(id)));
        let stride = cold.stride.load(Relaxed) as usize;
        let rest = claimed.load(Relaxed).saturating_sub(old * stride);
        claimed.store(rest + limit * stride, Relaxed);
        cold.limit.store(limit as u16, Relaxed);
        cold.misses.store(0, Relaxed);
        self.0
            .hot(id)
            .end
            .store(bottom + limit as u32 * 8, Ordering::Release);
    }
}

impl Drop for Adjust<'_> {
    fn drop(&mut self) {
        self.0.record().busy.store(false, Ordering::Release);
    }
}

fn array_bytes(capacity: usize) -> usize {
    (capacity + 1) * size_of::<*mut u8>()
}

/// A stopped slot; dropping it opens it again.
#[derive(Debug)]
pub struct Stopped(Slot);

impl Stopped {
    /// Takes the newest objects of a queue; returns how many.
    pub fn take(&mut self, id: u32, out: &mut [*mut u8]) -> usize {
        let n = out.len().min(self.0.queued(id));
        let top = &self.0.hot(id).top;
        let at = top.load(Relaxed);
        for (i, cell) in out[..n].iter_mut().enumerate() {
            // SAFETY: the slot is stopped, so the queue does not change; its `n` newest
            // places hold objects.
            *cell = unsafe { self.0.0.add(at as usize).cast::<*mut u8>().sub(i).read() };
        }
        // They are out of the queue before anything is done with them: a fork in
        // between loses them to the child rather than giving them twice.
        top.store(at - n as u32 * 8, Ordering::Release);
        n
    }

    /// Ends a queue, which must be empty, and gives its array back. Nobody may be using
    /// the id.
    pub fn close(&mut self, id: u32) {
        // Who adjusts this slot has been stopped in the middle, or is about to finish;
        // without permission the array stays for the id's next user.
        let Some(adjust) = self.0.adjust() else {
            return;
        };
        let (hot, cold) = (self.0.hot(id), self.0.cold(id));
        if self.0.queued(id) > 0 {
            return;
        }
        let Some(index) = cold.array.load(Relaxed).checked_sub(1) else {
            return;
        };
        adjust.set_limit(id, 0);
        hot.end.store(0, Relaxed);
        hot.top.store(0, Relaxed);
        let bytes = array_bytes(self.0.capacity(id));
        cold.array.store(0, Relaxed);
        cold.capacity.store(0, Relaxed);
        if let Some(array) = NonNull::new(meta::at(index)) {
            // SAFETY: made by `open` with this size; the slot is stopped, so no section
            // refers to it, and nobody uses the id.
            unsafe { meta::free(array, bytes) };
        }
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        let address = self.0.0.as_ptr().expose_provenance() as u64;
        rseq::resume(&TABLE[self.0.cpu() as usize % MAX_CPUS], address);
    }
}

/// Runs `f` on the lock of who makes slots: for the fork handlers.
pub(crate) fn with_raw_lock(f: impl FnOnce(&FutexLock)) {
    f(crate::fork::raw(&MAKE));
}

/// The child after fork: threads that adjusted slots do not exist here.
pub(crate) fn after_fork() {
    for_each(|slot| slot.record().busy.store(false, Relaxed));
}
