//! The page allocator's own thread-local: the thread's page lists, its id, the locks that it
//! holds, and its end.
//!
//! ```text
//!   current   the thread's page lists (crate::pcp)
//!   record    [ locks held : 24 | .. KEYED EXITED : 8 | kernel's thread id : 32 ]
//! ```

use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use super::SlotPtr;
use crate::os;
use crate::slot_pointer;

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
    id_of(thread())
}

#[inline]
fn id_of(thread: &SlotPtr) -> u32 {
    match thread.record() as usize as u32 {
        0 => learn_thread_id(),
        id => id,
    }
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
    id_of(thread)
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
    fn thread_ids_differ_between_threads() {
        let mine = thread_id();
        assert_eq!(mine, os::gettid());
        let other = std::thread::spawn(thread_id).join().unwrap();
        assert_ne!(mine, other);
    }
}
