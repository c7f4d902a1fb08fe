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
use core::ptr;

use crate::purge;

mod registry;
mod thread;

pub use registry::Registry;
pub use thread::{at_thread_exit, forget_thread_id, has_exited, thread_id, watch_thread_exit};
pub(crate) use thread::{count_lock, holds_locks, page_lists, set_page_lists, uncount_lock};

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

// The thread-local image in `slot_pointer!` spells this size out.
const _: () = assert!(size_of::<SlotPtr>() == 32);
