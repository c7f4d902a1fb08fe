//! Slots: per-thread state, reached by one thread-local pointer, and what happens
//! when a thread ends.
//!
//! ```text
//!   thread-local image of a backend:  [ current | record | arming ]   32 bytes
//!        current -> EMPTY   (never used, armed, or after exit: every
//!                            operation takes the slow path)
//!        current == record  (fast path open)
//! ```
//! `current` starts at a static `EMPTY` slot whose queues are all empty and full
//! at once, so the fast path needs no initialisation check. On x86-64 the pair is
//! a `.tdata` symbol read through `@GOTTPOFF` (the initial-exec model, two
//! instructions; stable rustc would call `__tls_get_addr` in a cdylib);
//! elsewhere it is a const `thread_local!`.
//!
//! *Arming*: while freed memory waits for its purge delay, a thread that only
//! takes fast paths would never look at the clock. [`SlotPtr::settle`] leaves
//! `current` at `EMPTY` for such a thread; its operations then take the slow path
//! until the purge is done ([`crate::purge`]).
//!
//! Thread exit runs through one pthread key; backends register a hook. After
//! exit, late frees (destructors that run after ours) take the slow path with no
//! record, and serve themselves from a borrowed one.

use core::cell::UnsafeCell;
use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use crate::meta;
use crate::os;
use crate::purge;
use crate::sync::{Links, TaggedStack};
use crate::types::PAGE_SIZE;

/// A backend's thread-local pair.
#[derive(Debug)]
#[repr(C)]
pub struct SlotPtr {
    current: UnsafeCell<*mut u8>,
    record: UnsafeCell<*mut u8>,
    arming: UnsafeCell<Arming>,
}

/// Slow paths of an armed thread, since the last judgement.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct Arming {
    /// Would have happened anyway.
    natural: u32,
    /// Happened because the slot was armed.
    forced: u32,
    /// Natural slow paths to let pass before arming again.
    pause: u64,
}

// SAFETY: every instance is thread-local; the type is `Sync` only so that a
// static image of it can exist.
unsafe impl Sync for SlotPtr {}

impl SlotPtr {
    /// The initial image: fast path closed, no record.
    pub const fn new(empty: *const u8) -> Self {
        Self {
            current: UnsafeCell::new(empty.cast_mut()),
            record: UnsafeCell::new(ptr::null_mut()),
            arming: UnsafeCell::new(Arming {
                natural: 0,
                forced: 0,
                pause: 0,
            }),
        }
    }

    /// What the fast path works on: the thread's record, or the empty slot.
    #[inline(always)]
    pub fn current(&self) -> *mut u8 {
        // SAFETY: thread-local; written only by the methods below.
        unsafe { *self.current.get() }
    }

    /// The thread's record; null before first use and after exit.
    #[inline]
    pub fn record(&self) -> *mut u8 {
        // SAFETY: as `current`.
        unsafe { *self.record.get() }
    }

    /// Gives the thread its record and opens the fast path.
    pub fn install(&self, record: *mut u8) {
        // SAFETY: as `current`.
        unsafe {
            *self.record.get() = record;
            *self.current.get() = record;
        }
    }

    /// Takes the record away and closes the fast path.
    pub fn clear(&self, empty: *const u8) {
        // SAFETY: as `current`.
        unsafe {
            *self.record.get() = ptr::null_mut();
            *self.current.get() = empty.cast_mut();
        }
    }

    /// Ends a slow path: opens the fast path, or leaves it closed while a purge is
    /// pending and this thread would otherwise not come by often enough. `natural`
    /// tells whether the slow path would have been taken by an open slot too.
    pub fn settle(&self, empty: *const u8, natural: bool) {
        // SAFETY: thread-local, see the type; no reference is held elsewhere.
        let (current, record, arming) = unsafe {
            (
                &mut *self.current.get(),
                *self.record.get(),
                &mut *self.arming.get(),
            )
        };
        if record.is_null() {
            return;
        }
        *current = record;
        if !purge::pending() || purge::watched() {
            return;
        }
        if arming.pause > 0 {
            arming.pause -= u64::from(natural);
            return;
        }
        if natural {
            arming.natural += 1;
        } else {
            arming.forced += 1;
        }
        if arming.forced >= 256 {
            // A thread that comes by on its own at least every 64 operations needs
            // no arming for a while.
            arming.pause = if arming.natural >= 4 { 64 } else { 0 };
            (arming.natural, arming.forced) = (0, 0);
        }
        if arming.pause == 0 {
            *current = empty.cast_mut();
        }
    }
}

/// Defines a backend's thread-local [`SlotPtr`]: `slot_pointer!(name, "symbol",
/// EMPTY)` makes `fn name() -> &'static SlotPtr` (of the calling thread). `EMPTY`
/// is a static; `symbol` must be unique in the program.
#[macro_export]
macro_rules! slot_pointer {
    ($(#[$meta:meta])* $name:ident, $symbol:literal, $empty:path) => {
        #[cfg(all(target_arch = "x86_64", target_os = "linux", not(miri)))]
        ::core::arch::global_asm!(
            ".pushsection .tdata,\"awT\",@progbits",
            ".balign 16",
            concat!(".globl ", $symbol),
            concat!(".hidden ", $symbol),
            concat!(".type ", $symbol, ", @object"),
            concat!(".size ", $symbol, ", 32"),
            concat!($symbol, ":"),
            ".quad {empty}",
            ".quad 0, 0, 0",
            ".popsection",
            empty = sym $empty,
        );

        $(#[$meta])*
        #[cfg(all(target_arch = "x86_64", target_os = "linux", not(miri)))]
        #[inline(always)]
        pub fn $name() -> &'static $crate::slot::SlotPtr {
            let at: *const $crate::slot::SlotPtr;
            // SAFETY: the symbol is a 32-byte thread-local that lives as long as
            // the thread and is initialised from its image; the address is the
            // same for the whole life of the thread.
            unsafe {
                ::core::arch::asm!(
                    "mov {at}, qword ptr fs:[0]",
                    concat!("add {at}, qword ptr [rip + ", $symbol, "@GOTTPOFF]"),
                    at = out(reg) at,
                    options(pure, readonly, nostack),
                );
                &*at
            }
        }

        /// The `current` pointer of the calling thread in two instructions.
        #[cfg(all(target_arch = "x86_64", target_os = "linux", not(miri)))]
        #[allow(dead_code)]
        #[inline(always)]
        pub fn current() -> *mut u8 {
            let current: *mut u8;
            // SAFETY: reads the first word of the thread-local above.
            unsafe {
                ::core::arch::asm!(
                    concat!("mov {t}, qword ptr [rip + ", $symbol, "@GOTTPOFF]"),
                    "mov {t}, qword ptr fs:[{t}]",
                    t = out(reg) current,
                    options(pure, readonly, nostack, preserves_flags),
                );
            }
            current
        }

        $(#[$meta])*
        #[cfg(not(all(target_arch = "x86_64", target_os = "linux", not(miri))))]
        #[inline]
        pub fn $name() -> &'static $crate::slot::SlotPtr {
            ::std::thread_local! {
                static SLOT: $crate::slot::SlotPtr =
                    const { $crate::slot::SlotPtr::new((&raw const $empty).cast()) };
            }
            // SAFETY: const-initialised without a destructor: the storage lives
            // as long as the thread.
            SLOT.with(|slot| unsafe { &*::core::ptr::from_ref(slot) })
        }

        /// The `current` pointer of the calling thread.
        #[cfg(not(all(target_arch = "x86_64", target_os = "linux", not(miri))))]
        #[allow(dead_code)]
        #[inline]
        pub fn current() -> *mut u8 {
            $name().current()
        }
    };
}

/// The page allocator's own thread-local: `current` is the thread's page lists
/// ([`crate::pcp`]), `record` holds the thread's id and exit state.
static NO_LISTS: u64 = 0;
slot_pointer!(
    /// The calling thread's page-list pointer and id.
    thread, "page_alloc_thread", NO_LISTS
);

const EXITED: usize = 1 << 32;
const KEYED: usize = 1 << 33;
/// The unit in which held locks are counted, in the word's upper half.
const LOCK: u32 = 1 << 8;

fn state() -> usize {
    thread().record() as usize
}

fn set_state(state: usize) {
    // SAFETY: thread-local, see `SlotPtr`; the word is used as an integer here.
    unsafe { *thread().record.get() = ptr::without_provenance_mut(state) };
}

/// The kernel's id of the calling thread, cached after the first call.
#[inline]
pub fn thread_id() -> u32 {
    let id = state() as u32;
    if id == 0 { learn_thread_id() } else { id }
}

#[cold]
fn learn_thread_id() -> u32 {
    let id = os::gettid();
    set_state(state() & !0xffff_ffff | id as usize);
    id
}

/// Forgets the cached thread id: for the child after fork.
pub fn forget_thread_id() {
    set_state(state() & !0xffff_ffff);
}

/// The upper half of a state: one instruction adds to it, which a constant beyond 32
/// bits would not allow.
#[inline]
fn upper_half(thread: &SlotPtr) -> *mut u32 {
    let half = usize::from(cfg!(target_endian = "little"));
    thread.record.get().cast::<u32>().wrapping_add(half)
}

/// Counts a lock that the calling thread is about to hold. Returns [`thread_id`].
#[inline]
pub(crate) fn count_lock() -> u32 {
    let thread = thread();
    let at = upper_half(thread);
    // SAFETY: thread-local, see `SlotPtr`; half of a word that is used as an integer.
    unsafe { *at = (*at).wrapping_add(LOCK) };
    match thread.record() as usize as u32 {
        0 => learn_thread_id(),
        id => id,
    }
}

/// Counts one less.
#[inline]
pub(crate) fn uncount_lock() {
    let at = upper_half(thread());
    // SAFETY: as in `count_lock`.
    unsafe { *at = (*at).wrapping_sub(LOCK) };
}

/// Whether the calling thread holds a lock, or did when a signal handler interrupted it.
pub(crate) fn holds_locks() -> bool {
    // SAFETY: as in `count_lock`.
    unsafe { *upper_half(thread()) >= LOCK }
}

/// Whether the calling thread has run its exit hooks: it gets no records any more.
pub fn has_exited() -> bool {
    state() & EXITED != 0
}

/// The calling thread's page lists; null when it has none yet.
#[inline]
pub(crate) fn page_lists() -> *mut u8 {
    let current = thread().current();
    if ptr::eq(current, (&raw const NO_LISTS).cast()) {
        ptr::null_mut()
    } else {
        current
    }
}

/// Sets the calling thread's page lists (null: none).
pub(crate) fn set_page_lists(lists: *mut u8) {
    let current = if lists.is_null() {
        (&raw const NO_LISTS).cast_mut().cast()
    } else {
        lists
    };
    // SAFETY: thread-local, see `SlotPtr`.
    unsafe { *thread().current.get() = current };
}

const MAX_HOOKS: usize = 8;
static HOOKS: [AtomicPtr<()>; MAX_HOOKS] = [const { AtomicPtr::new(ptr::null_mut()) }; MAX_HOOKS];
static KEY: AtomicU32 = AtomicU32::new(u32::MAX);

/// Registers a function that runs in each thread that used a slot, when it ends,
/// after the program's own destructors of earlier keys. Idempotent.
pub fn at_thread_exit(hook: fn()) {
    let hook = hook as *mut ();
    for cell in &HOOKS {
        let found =
            cell.compare_exchange(ptr::null_mut(), hook, Ordering::Release, Ordering::Acquire);
        match found {
            Ok(_) => return,
            Err(present) if present == hook => return,
            Err(_) => {}
        }
    }
    debug_assert!(false, "more exit hooks than layers");
}

unsafe extern "C" fn on_thread_exit(_: *mut libc::c_void) {
    set_state(state() | EXITED);
    for cell in &HOOKS {
        let hook = cell.load(Ordering::Acquire);
        if hook.is_null() {
            break;
        }
        // SAFETY: only `at_thread_exit` stores here, and it stores `fn()`.
        let hook = unsafe { core::mem::transmute::<*mut (), fn()>(hook) };
        hook();
    }
    crate::pcp::thread_exit();
}

/// Makes sure that the exit hooks run when the calling thread ends. Called when a
/// thread gets its first record.
pub fn watch_thread_exit() {
    if state() & KEYED != 0 {
        return;
    }
    set_state(state() | KEYED);
    let key = KEY.load(Ordering::Acquire);
    let key = if key != u32::MAX { key } else { create_key() };
    if key != u32::MAX {
        // SAFETY: the key exists; any non-null value makes the destructor run.
        // (For keys of 32 and up glibc callocs here; the thread is marked KEYED
        // and its record is installed, so that call is served normally.)
        unsafe { libc::pthread_setspecific(key, ptr::without_provenance(1)) };
    }
}

#[cold]
fn create_key() -> u32 {
    let mut key: libc::pthread_key_t = 0;
    // SAFETY: `key` is valid; the destructor is a function of this library, which
    // is never unloaded (linked with -z nodelete).
    if unsafe { libc::pthread_key_create(&raw mut key, Some(on_thread_exit)) } != 0 {
        // No key is left: threads then leave their records behind at exit.
        return u32::MAX;
    }
    match KEY.compare_exchange(u32::MAX, key, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => key,
        Err(other) => {
            // SAFETY: created above and given to nobody.
            unsafe { libc::pthread_key_delete(key) };
            other
        }
    }
}

/// Largest number of slot records of one kind (threads alive at once).
const MAX_RECORDS: usize = 1 << 15;
const CHUNK: usize = 512;

/// The records of one kind: all that ever existed (for walks), and those that no
/// thread uses (for reuse, with whatever they still hold).
#[derive(Debug)]
pub struct Registry {
    bytes: usize,
    free: TaggedStack<AtomicU64>,
    /// Addresses and stack links of the records, in chunks from the pool.
    chunks: [AtomicPtr<[Entry; CHUNK]>; MAX_RECORDS / CHUNK],
    count: AtomicUsize,
    in_use: AtomicUsize,
}

#[derive(Debug)]
struct Entry {
    record: AtomicPtr<u8>,
    link: AtomicU64,
}

struct EntryLinks<'a>(&'a Registry);

impl Links for EntryLinks<'_> {
    type Word = AtomicU64;
    fn link(&self, index: u32) -> &AtomicU64 {
        // The stack holds only indices that were pushed, whose chunks exist.
        self.0
            .entry(index as usize)
            .map_or(&SPARE_LINK, |e| &e.link)
    }
}
static SPARE_LINK: AtomicU64 = AtomicU64::new(0);

impl Registry {
    /// A registry of records of `bytes` bytes each. The record's first word is
    /// the registry's (its index); the rest is the backend's, zeroed at first.
    pub const fn new(bytes: usize) -> Self {
        Self {
            bytes,
            free: TaggedStack::new(AtomicU64::new(0)),
            chunks: [const { AtomicPtr::new(ptr::null_mut()) }; MAX_RECORDS / CHUNK],
            count: AtomicUsize::new(0),
            in_use: AtomicUsize::new(0),
        }
    }

    /// Records in use.
    pub fn in_use(&self) -> usize {
        self.in_use.load(Ordering::Relaxed)
    }

    fn entry(&self, index: usize) -> Option<&Entry> {
        let chunk = self.chunks.get(index / CHUNK)?.load(Ordering::Acquire);
        // SAFETY: chunks come from the metadata pool, zeroed (a valid value), and
        // are never given back.
        unsafe { chunk.as_ref() }.map(|chunk| &chunk[index % CHUNK])
    }

    /// A record for the caller alone: a recycled one, which may still hold
    /// objects of its last user, or a zeroed fresh one. `None` without memory.
    pub fn acquire(&self) -> Option<NonNull<u8>> {
        let record = self.find()?;
        self.in_use.fetch_add(1, Ordering::Relaxed);
        Some(record)
    }

    fn find(&self) -> Option<NonNull<u8>> {
        if let Some(index) = self.free.pop(&EntryLinks(self)) {
            return NonNull::new(self.entry(index as usize)?.record.load(Ordering::Acquire));
        }
        // Room for its entry first: a record is never given back.
        let mut index = self.count.load(Ordering::Acquire);
        self.make_room(index)?;
        // Small ones would each have a page to themselves between large ones.
        let record = if self.bytes * 2 <= PAGE_SIZE {
            meta::alloc(self.bytes)?
        } else {
            meta::alloc_slot(self.bytes)?
        };
        while let Err(now) =
            self.count
                .compare_exchange_weak(index, index + 1, Ordering::AcqRel, Ordering::Acquire)
        {
            index = now;
            self.make_room(index)?;
        }
        // SAFETY: the record is ours and at least one word long.
        unsafe { record.cast::<usize>().write(index) };
        self.entry(index)?
            .record
            .store(record.as_ptr(), Ordering::Release);
        Some(record)
    }

    /// Makes sure that the entry `index` exists; `None` without memory, or when there
    /// are too many.
    fn make_room(&self, index: usize) -> Option<()> {
        let cell = self.chunks.get(index / CHUNK)?;
        if !cell.load(Ordering::Acquire).is_null() {
            return Some(());
        }
        let fresh = meta::alloc(size_of::<[Entry; CHUNK]>())?;
        let fresh = fresh.cast::<[Entry; CHUNK]>();
        let raced = cell.compare_exchange(
            ptr::null_mut(),
            fresh.as_ptr(),
            Ordering::AcqRel,
            Ordering::Acquire,
        );
        if raced.is_err() {
            // SAFETY: ours, and published to nobody.
            unsafe { meta::free(fresh.cast(), size_of::<[Entry; CHUNK]>()) };
        }
        Some(())
    }

    /// Gives a record back for reuse.
    ///
    /// # Safety
    /// The record must come from [`Self::acquire`] of this registry, and the
    /// caller must not use it any more.
    pub unsafe fn release(&self, record: NonNull<u8>) {
        // SAFETY: the first word holds the index since `acquire`.
        let index = unsafe { record.cast::<usize>().read() };
        self.in_use.fetch_sub(1, Ordering::Relaxed);
        self.free.push(&EntryLinks(self), index as u32);
    }

    /// Calls `f` on every record that exists, in use or not.
    pub fn for_each(&self, mut f: impl FnMut(NonNull<u8>)) {
        for index in 0..self.count.load(Ordering::Acquire).min(MAX_RECORDS) {
            if let Some(record) = self
                .entry(index)
                .and_then(|e| NonNull::new(e.record.load(Ordering::Acquire)))
            {
                f(record);
            }
        }
    }

    /// For the child after fork: every record but `mine` belongs to a thread that
    /// does not exist here; all become free for reuse, with what they hold.
    ///
    /// # Safety
    /// Only the forking thread may run, as in the child of `fork`.
    pub unsafe fn after_fork(&self, mine: *mut u8) {
        while self.free.pop(&EntryLinks(self)).is_some() {}
        self.in_use
            .store(self.count.load(Ordering::Relaxed), Ordering::Relaxed);
        self.for_each(|record| {
            if record.as_ptr() != mine {
                // SAFETY: its thread is gone; the stack was emptied above, so no
                // record is pushed twice.
                unsafe { self.release(record) };
            }
        });
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use core::sync::atomic::AtomicUsize;

    static EXITS: AtomicUsize = AtomicUsize::new(0);
    fn count_exit() {
        EXITS.fetch_add(1, Ordering::Relaxed);
    }

    #[test]
    fn exit_hooks_run_once_a_thread() {
        at_thread_exit(count_exit);
        at_thread_exit(count_exit);
        let before = EXITS.load(Ordering::Relaxed);
        for _ in 0..3 {
            std::thread::spawn(|| {
                watch_thread_exit();
                watch_thread_exit();
                assert!(!has_exited());
            })
            .join()
            .unwrap();
        }
        assert_eq!(EXITS.load(Ordering::Relaxed) - before, 3);
    }

    #[test]
    fn records_are_recycled_and_walked() {
        static REGISTRY: Registry = Registry::new(128);
        let a = REGISTRY.acquire().unwrap();
        let b = REGISTRY.acquire().unwrap();
        assert_ne!(a, b);
        // SAFETY: from `acquire`, used no more.
        unsafe { REGISTRY.release(a) };
        assert_eq!(REGISTRY.in_use(), 1);
        assert_eq!(REGISTRY.acquire(), Some(a));
        assert_eq!(REGISTRY.in_use(), 2);
        let mut seen = 0;
        REGISTRY.for_each(|_| seen += 1);
        assert_eq!(seen, 2);
    }

    #[test]
    fn thread_ids_differ_between_threads() {
        let mine = thread_id();
        assert_eq!(mine, os::gettid());
        let other = std::thread::spawn(thread_id).join().unwrap();
        assert_ne!(mine, other);
    }
}

// The thread-local image in `slot_pointer!` spells this size out.
const _: () = assert!(size_of::<SlotPtr>() == 32);
