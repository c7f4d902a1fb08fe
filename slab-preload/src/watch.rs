//! Looking at the clock while freed memory waits for its delay.
//!
//! A program that has freed much and goes on lightly may never leave the fast paths again, and
//! nothing below would notice that the delay is over. So while memory waits, the table holds
//! entries that count calls, and every so many calls of a thread give the purger its turn. The
//! rest of the time there is nothing to count, and nothing in the way.
//!
//! ```text
//!   nothing waits:   malloc ─▶ TABLE ─▶ entry::malloc::<Slub>
//!   memory waits:    malloc ─▶ TABLE ─▶ counting::malloc ─▶ BACKEND ─▶ entry::malloc::<Slub>
//!                                       └ budget spent: purge::tick
//! ```

#![allow(unsafe_code)]

use core::arch::{asm, global_asm};
use core::cell::Cell;
use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use page_alloc::{config, os, purge};

use crate::backend::Installed as _;
use crate::dispatch::{self, Table, with_backend};
use crate::errno;

/// Calls between two looks of a busy thread. A look costs about as much as a call.
const MOST: u32 = 32;
/// Looks that are further apart than this, in milliseconds, are made by a light thread: it looks
/// more often.
const LIGHT: u64 = 8;

/// A thread's count, in thread-local storage. All zero at first.
#[repr(C)]
struct Count {
    /// Calls until the next look; the entries below subtract from this word.
    budget: Cell<i32>,
    /// Calls from one look to the next.
    period: Cell<u32>,
    /// When the last look was.
    last: Cell<u64>,
}

// The image below and the entries know the layout.
const _: () = assert!(size_of::<Count>() == 16 && core::mem::offset_of!(Count, budget) == 0);

global_asm!(
    ".pushsection .tbss,\"awT\",@nobits",
    ".balign 8",
    ".globl slab_preload_count",
    ".hidden slab_preload_count",
    ".type slab_preload_count, @object",
    ".size slab_preload_count, 16",
    "slab_preload_count:",
    ".zero 16",
    ".popsection",
);

/// Runs `body` on the calling thread's count.
fn with_count<T>(body: impl FnOnce(&Count) -> T) -> T {
    let at: *const Count;
    // SAFETY: reads the thread pointer and an offset that the loader filled in.
    unsafe {
        asm!(
            "mov {at}, qword ptr fs:[0]",
            "add {at}, qword ptr [rip + slab_preload_count@GOTTPOFF]",
            at = out(reg) at,
            options(pure, readonly, nostack),
        );
    }
    // SAFETY: 16 zeroed bytes of this thread's, a valid Count, which live as long as it does; the
    // reference stays on this thread.
    body(unsafe { &*at })
}

/// The calling thread's budget is spent: gives the purger its turn and sets a new budget.
extern "C" fn look() {
    errno::kept(|| {
        let now = os::now_ms();
        with_count(|count| {
            // The first look of a thread has no look before it.
            let light = count.last.get() != 0 && now.saturating_sub(count.last.get()) >= LIGHT;
            let period = if light {
                count.period.get() / 8
            } else {
                (count.period.get() * 2).min(MOST)
            };
            count.period.set(period.max(1));
            count.budget.set(period.max(1) as i32 - 1);
            count.last.set(now);
            // A thread that works in short bursts is light as well, however long its period
            // is by the end of one.
            if light {
                reap(now);
            }
        });
        purge::tick();
    });
}

/// Lets the calling thread, which is a light one, give back what lies in queues and empty slabs:
/// half a delay after the first light look since memory began to wait. Slabs that hold nothing but
/// queued objects keep their neighbours from merging, so that little more than themselves would be
/// given back. What that frees has waited its delay when the next time comes, and mostly nothing
/// waits any more then; if something does, the thread may have been a busy one that was kept from
/// its processor, and have freed much since.
#[cold]
fn reap(now: u64) {
    let due = REAP.load(Relaxed);
    let Some(delay) = config::purge_ms() else {
        return;
    };
    if due != 0 && now < due {
        return;
    }
    let wait = if due == 0 {
        delay / 2
    } else {
        delay + delay / 4
    };
    let next = now + wait;
    if REAP.compare_exchange(due, next, Relaxed, Relaxed).is_ok() && due != 0 {
        with_backend!(B => B::heap().shrink_caches());
    }
}

/// When a light thread reaps, in milliseconds; 0 from when memory begins to wait until the first
/// light look.
static REAP: AtomicU64 = AtomicU64::new(0);

/// Puts counting entries into the table, or the backend's own, as the purger needs it. Called
/// whenever memory begins or ceases to wait, by any thread.
pub fn follow() {
    loop {
        let waits = purge::pending();
        if waits {
            REAP.store(0, Relaxed);
        }
        dispatch::set_counting(waits);
        // Two threads may be here for opposite reasons: whoever writes last looks again.
        if purge::pending() == waits {
            return;
        }
    }
}

/// Defines the counting entries: one naked jump each, which keeps the arguments.
macro_rules! counting {
    ($(fn $name:ident($($arg:ident: $ty:ty),*) $(-> $ret:ty)?;)*) => {
        $(
            #[unsafe(naked)]
            unsafe extern "C" fn $name($($arg: $ty),*) $(-> $ret)? {
                core::arch::naked_asm!(
                    ".cfi_startproc",
                    "mov r11, qword ptr [rip + slab_preload_count@GOTTPOFF]",
                    "sub dword ptr fs:[r11], 1",
                    "js 2f",
                    "jmp qword ptr [rip + {table} + {field}]",
                    "2:",
                    "push rdi",
                    "push rsi",
                    "push rdx",
                    ".cfi_adjust_cfa_offset 24",
                    "call {look}",
                    "pop rdx",
                    "pop rsi",
                    "pop rdi",
                    ".cfi_adjust_cfa_offset -24",
                    "jmp qword ptr [rip + {table} + {field}]",
                    ".cfi_endproc",
                    table = sym dispatch::BACKEND,
                    field = const core::mem::offset_of!(Table, $name),
                    look = sym look,
                )
            }
        )*
        /// What the table holds while memory waits.
        pub static COUNTING: Table = Table { $($name),* };
    };
}

counting! {
    fn malloc(size: usize) -> *mut c_void;
    fn free(block: *mut c_void);
    fn calloc(count: usize, size: usize) -> *mut c_void;
    fn realloc(block: *mut c_void, size: usize) -> *mut c_void;
    fn free_sized(block: *mut c_void, size: usize);
    fn free_aligned_sized(block: *mut c_void, align: usize, size: usize);
    fn reallocarray(block: *mut c_void, count: usize, size: usize) -> *mut c_void;
    fn memalign(align: usize, size: usize) -> *mut c_void;
    fn aligned_alloc(align: usize, size: usize) -> *mut c_void;
    fn posix_memalign(out: *mut *mut c_void, align: usize, size: usize) -> c_int;
    fn usable_size(block: *mut c_void) -> usize;
}
