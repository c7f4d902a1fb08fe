//! The backend, chosen once: a table of function pointers behind the exported symbols.
//!
//! ```text
//!             before the first call            afterwards (backend=slub)
//!   TABLE     ┌────────────────────┐           ┌────────────────────┐
//!   malloc    │ first::malloc      │           │ entry::malloc::<Slub>
//!   free      │ first::free        │           │ entry::free::<Slub>
//!   …         └────────────────────┘           └────────────────────┘
//! ```
//!
//! While freed memory waits for its delay, `watch` puts entries that count calls in front.
//!
//! An exported symbol is one `jmp *TABLE.field(%rip)`: no test for initialisation, no second
//! dispatch below it. The table lives in writable memory; its words are written one by one, and
//! whatever function a reader finds there is a correct one, if not always the fastest.

#![allow(unsafe_code)]

use core::cell::UnsafeCell;
use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicU8, AtomicUsize, Ordering};

use page_alloc::{os, purge};
use slab_classic::Classic;
use slab_unified::Unified;
use slab_unified::v4::UnifiedV4;
use slub::Slub;

use crate::backend::{Debugged, Installed, Secured};
use crate::{entry, start, watch};

/// One function pointer for each operation; all fields are pointers, in C order.
#[repr(C)]
pub struct Table {
    pub malloc: unsafe extern "C" fn(usize) -> *mut c_void,
    pub free: unsafe extern "C" fn(*mut c_void),
    pub calloc: unsafe extern "C" fn(usize, usize) -> *mut c_void,
    pub realloc: unsafe extern "C" fn(*mut c_void, usize) -> *mut c_void,
    pub free_sized: unsafe extern "C" fn(*mut c_void, usize),
    pub free_aligned_sized: unsafe extern "C" fn(*mut c_void, usize, usize),
    pub reallocarray: unsafe extern "C" fn(*mut c_void, usize, usize) -> *mut c_void,
    pub memalign: unsafe extern "C" fn(usize, usize) -> *mut c_void,
    pub aligned_alloc: unsafe extern "C" fn(usize, usize) -> *mut c_void,
    pub posix_memalign: unsafe extern "C" fn(*mut *mut c_void, usize, usize) -> c_int,
    pub usable_size: unsafe extern "C" fn(*mut c_void) -> usize,
}

/// How many pointers a table holds.
const WORDS: usize = size_of::<Table>() / size_of::<usize>();
// The table is copied word by word, so it must consist of words alone.
const _: () = assert!(
    size_of::<Table>() == WORDS * size_of::<AtomicUsize>()
        && align_of::<Table>() == align_of::<AtomicUsize>()
);

impl Table {
    /// The functions of one backend.
    const fn of<B: Installed>() -> Table {
        Table {
            malloc: entry::malloc::<B>,
            free: entry::free::<B>,
            calloc: entry::calloc::<B>,
            realloc: entry::realloc::<B>,
            free_sized: entry::free_sized::<B>,
            free_aligned_sized: entry::free_aligned_sized::<B>,
            reallocarray: entry::reallocarray::<B>,
            memalign: entry::memalign::<B>,
            aligned_alloc: entry::aligned_alloc::<B>,
            posix_memalign: entry::posix_memalign::<B>,
            usable_size: entry::usable_size::<B>,
        }
    }
}

static CLASSIC: Table = Table::of::<Classic>();
static SLUB: Table = Table::of::<Slub>();
static UNIFIED: Table = Table::of::<Unified>();
static UNIFIED_V4: Table = Table::of::<UnifiedV4>();
static SECURE_CLASSIC: Table = Table::of::<Secured<Classic>>();
static SECURE_SLUB: Table = Table::of::<Secured<Slub>>();
static SECURE_UNIFIED: Table = Table::of::<Secured<Unified>>();
static SECURE_UNIFIED_V4: Table = Table::of::<Secured<UnifiedV4>>();
static DEBUG_CLASSIC: Table = Table::of::<Debugged<Classic>>();
static DEBUG_SLUB: Table = Table::of::<Debugged<Slub>>();
static DEBUG_UNIFIED: Table = Table::of::<Debugged<Unified>>();
static DEBUG_UNIFIED_V4: Table = Table::of::<Debugged<UnifiedV4>>();

/// The table in force. A page of its own, so that it can be made read-only once it is final.
#[repr(C, align(4096))]
pub struct Live(UnsafeCell<Table>);

// SAFETY: after construction every access is an atomic, word-sized one: `install` stores through
// `AtomicUsize`, the exported symbols load one pointer with one instruction.
unsafe impl Sync for Live {}

/// The table that the exported symbols jump through.
pub static TABLE: Live = Live(UnsafeCell::new(first::TABLE));

/// The chosen backend's functions, for the entries that count calls ([`crate::watch`]). Nobody
/// comes here before it is filled.
pub static BACKEND: Live = Live(UnsafeCell::new(first::TABLE));

/// Which backend was chosen.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Choice {
    /// The default.
    Unified = 1,
    Slub = 2,
    Classic = 3,
    /// For comparisons.
    UnifiedV4 = 4,
}

/// Threads inside `install`'s loop.
static WRITERS: AtomicUsize = AtomicUsize::new(0);

/// The choice as a number; 0 while none was made.
static CHOSEN: AtomicU8 = AtomicU8::new(0);

/// The backend of this process, chosen now if no call came before.
pub fn chosen() -> Choice {
    // Acquire pairs with the exchange in `install`; the settings behind the choice are read once
    // and for all.
    match CHOSEN.load(Ordering::Acquire) {
        1 => Choice::Unified,
        2 => Choice::Slub,
        3 => Choice::Classic,
        4 => Choice::UnifiedV4,
        _ => install(),
    }
}

/// The functions of a backend's heap, of the kind that the settings want.
fn table_of(choice: Choice) -> &'static Table {
    let secure = start::configured_secure();
    match (choice, secure, start::debugging()) {
        (Choice::Unified, false, false) => &UNIFIED,
        (Choice::Slub, false, false) => &SLUB,
        (Choice::Classic, false, false) => &CLASSIC,
        (Choice::UnifiedV4, false, false) => &UNIFIED_V4,
        (Choice::Unified, _, true) => &DEBUG_UNIFIED,
        (Choice::Slub, _, true) => &DEBUG_SLUB,
        (Choice::Classic, _, true) => &DEBUG_CLASSIC,
        (Choice::UnifiedV4, _, true) => &DEBUG_UNIFIED_V4,
        (Choice::Unified, true, false) => &SECURE_UNIFIED,
        (Choice::Slub, true, false) => &SECURE_SLUB,
        (Choice::Classic, true, false) => &SECURE_CLASSIC,
        (Choice::UnifiedV4, true, false) => &SECURE_UNIFIED_V4,
    }
}

/// Chooses the backend and puts its functions into the table. Threads that race here agree on
/// one choice and write the same words.
#[cold]
#[inline(never)]
pub fn install() -> Choice {
    let wanted = start::configured_backend();
    let choice = match CHOSEN.compare_exchange(0, wanted as u8, Ordering::AcqRel, Ordering::Acquire)
    {
        Ok(_) => wanted,
        Err(2) => Choice::Slub,
        Err(3) => Choice::Classic,
        Err(4) => Choice::UnifiedV4,
        Err(_) => Choice::Unified,
    };
    let own = table_of(choice);
    BACKEND.store(own);
    TABLE.store(own);
    if start::configured_secure() {
        // The table is final, and is sealed: nobody puts counting entries in front.
        start::once_secured(choice);
    } else {
        purge::set_watcher(watch::follow);
        watch::follow();
    }
    start::once_installed();
    choice
}

/// Puts the counting entries into the table, or takes them out. Nothing happens until a backend is
/// chosen.
pub fn set_counting(on: bool) {
    if CHOSEN.load(Ordering::Acquire) == 0 {
        return;
    }
    let own = table_of(chosen());
    // Whoever chose may not have come to filling it yet.
    BACKEND.store(own);
    TABLE.store(if on { &watch::COUNTING } else { own });
}

/// Runs `$body` with the type `$B` bound to the chosen backend: for everything that is not hot.
macro_rules! with_backend {
    ($B:ident => $body:expr) => {
        match $crate::dispatch::chosen() {
            $crate::dispatch::Choice::Unified => {
                type $B = slab_unified::Unified;
                $body
            }
            $crate::dispatch::Choice::Slub => {
                type $B = slub::Slub;
                $body
            }
            $crate::dispatch::Choice::Classic => {
                type $B = slab_classic::Classic;
                $body
            }
            $crate::dispatch::Choice::UnifiedV4 => {
                type $B = slab_unified::v4::UnifiedV4;
                $body
            }
        }
    };
}
pub(crate) use with_backend;

/// Defines an exported function that is one jump through a field of the table.
macro_rules! export {
    ($($(#[$doc:meta])* fn $name:ident($($arg:ident: $ty:ty),*) $(-> $ret:ty)? = $field:ident;)*) => {$(
        $(#[$doc])*
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name($($arg: $ty),*) $(-> $ret)? {
            core::arch::naked_asm!(
                "jmp qword ptr [rip + {table} + {field}]",
                table = sym $crate::dispatch::TABLE,
                field = const core::mem::offset_of!($crate::dispatch::Table, $field),
            )
        }
    )*};
}

pub(crate) use export;

impl Live {
    /// Fills the table, word by word: readers see each function's old value or its new one.
    fn store(&self, source: &'static Table) {
        let from: *const usize = core::ptr::from_ref(source).cast();
        let to: *mut usize = self.0.get().cast();
        // SeqCst pairs with the one in `seal`: see there.
        WRITERS.fetch_add(1, Ordering::SeqCst);
        for word in 0..WORDS {
            // SAFETY: both tables are WORDS words long (asserted above); the destination is only
            // accessed atomically, and the source is immutable.
            unsafe {
                let (from, to) = (from.add(word).read(), AtomicUsize::from_ptr(to.add(word)));
                // A table that is final may be read-only.
                if to.load(Ordering::SeqCst) != from {
                    to.store(from, Ordering::SeqCst);
                }
            };
        }
        WRITERS.fetch_sub(1, Ordering::SeqCst);
    }

    /// Makes the table read-only, once it is final. It stays as it is where the kernel refuses or
    /// has larger pages, or while another thread is writing (the same words).
    pub fn seal(&self) {
        // Whoever comes to `install` after this look finds every word final, and stores none.
        if os::page_size() == align_of::<Live>() && WRITERS.load(Ordering::SeqCst) == 0 {
            // SAFETY: the page is this table's alone, and nobody writes to it any more.
            unsafe { os::seal(self.0.get().cast(), size_of::<Live>()) };
        }
    }

    /// A copy of the table as it is now.
    pub fn load(&self) -> Table {
        let from: *mut usize = self.0.get().cast();
        let mut words = [0usize; WORDS];
        for (index, word) in words.iter_mut().enumerate() {
            // SAFETY: the table is WORDS words long and accessed atomically. Acquire pairs with
            // `install`'s Release.
            *word = unsafe { AtomicUsize::from_ptr(from.add(index)).load(Ordering::Acquire) };
        }
        // SAFETY: each word was a valid pointer of its field's type, in both states that the
        // table can be in.
        unsafe { core::mem::transmute::<[usize; WORDS], Table>(words) }
    }
}

/// The functions that are in the table until the first call.
mod first {
    use super::{Table, c_int, c_void, install};
    use crate::early;

    macro_rules! first {
        ($(fn $name:ident($($arg:ident: $ty:ty),*) $(-> $ret:ty)?;)*) => {
            $(
                unsafe extern "C" fn $name($($arg: $ty),*) $(-> $ret)? {
                    if !early::ready() {
                        // SAFETY: the arguments are the caller's.
                        return unsafe { early::$name($($arg),*) };
                    }
                    install();
                    // SAFETY: the arguments are the caller's; the table now holds the chosen
                    // backend's function, which has the same contract.
                    unsafe { (super::TABLE.load().$name)($($arg),*) }
                }
            )*
            pub const TABLE: Table = Table { $($name),* };
        };
    }

    first! {
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
}
