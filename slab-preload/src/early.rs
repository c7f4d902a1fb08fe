//! malloc while the program is still being relocated.
//!
//! The loader runs the resolvers of ifuncs before it copies the images of thread-local storage,
//! and the functions of `.preinit_array` before libc knows the environment: a resolver that
//! allocates finds slots that are all zero, and neither finds settings. They are served from runs
//! of pages, which need no slot; such a block is a large object like any other and may be freed at
//! any time. The table stays as it is, so that the backend is chosen once its settings can be
//! read; our constructor chooses in any case.
//!
//! ```text
//!   loader:       relocate, resolvers │ .preinit_array │ libc, then our constructor │ main
//!   slots:              zero          │     images ...
//!   environment:        null          │      null      │  set ...
//! ```

#![allow(unsafe_code)]

use core::arch::{asm, global_asm};
use core::ffi::{c_int, c_void};
use core::ptr;

use slab_api::{Heap, MAX_OBJECT, config};
use slab_unified::Unified;

use crate::backend::Installed as _;
use crate::entry;

// One word of thread-local storage whose image is not zero.
global_asm!(
    ".pushsection .tdata,\"awT\",@progbits",
    ".balign 8",
    ".globl slab_preload_ready",
    ".hidden slab_preload_ready",
    ".type slab_preload_ready, @object",
    ".size slab_preload_ready, 8",
    "slab_preload_ready:",
    ".quad 1",
    ".popsection",
);

/// Whether a backend can be chosen: there are slots, and settings to choose by.
pub fn ready() -> bool {
    has_slots() && config::readable()
}

/// Whether the calling thread's thread-local storage holds its image.
fn has_slots() -> bool {
    let word: usize;
    // SAFETY: reads the thread-local above, for which the loader has set memory aside before any
    // code of this library runs.
    unsafe {
        asm!(
            "mov {word}, qword ptr [rip + slab_preload_ready@GOTTPOFF]",
            "mov {word}, qword ptr fs:[{word}]",
            word = out(reg) word,
            options(readonly, nostack, preserves_flags),
        );
    }
    word != 0
}

/// Any backend's heap: large objects are the same in all.
fn heap() -> &'static Heap<Unified> {
    Unified::heap()
}

/// A size that only a run of pages can serve.
fn large(size: usize) -> usize {
    size.max(MAX_OBJECT + 1)
}

pub unsafe extern "C" fn malloc(size: usize) -> *mut c_void {
    // SAFETY: any size is allowed.
    unsafe { entry::malloc::<Unified>(large(size)) }
}

pub unsafe extern "C" fn calloc(count: usize, size: usize) -> *mut c_void {
    match count.checked_mul(size) {
        // SAFETY: any size is allowed.
        Some(total) => unsafe { entry::calloc::<Unified>(1, large(total)) },
        None => entry::no_memory(),
    }
}

pub unsafe extern "C" fn free(block: *mut c_void) {
    // SAFETY: whatever was handed out so far is a large object; the rest is the caller's promise.
    unsafe { heap().free_large(block.cast()) }
}

pub unsafe extern "C" fn free_sized(block: *mut c_void, _size: usize) {
    // SAFETY: the caller's promise.
    unsafe { free(block) }
}

pub unsafe extern "C" fn free_aligned_sized(block: *mut c_void, _align: usize, _size: usize) {
    // SAFETY: the caller's promise.
    unsafe { free(block) }
}

pub unsafe extern "C" fn realloc(block: *mut c_void, size: usize) -> *mut c_void {
    if block.is_null() {
        // SAFETY: any size is allowed.
        return unsafe { malloc(size) };
    }
    if size == 0 {
        // SAFETY: the caller's promise; the block is not used afterwards.
        unsafe { free(block) };
        return ptr::null_mut();
    }
    // SAFETY: the caller's promise; both the old and the new object are large, so that no slot is
    // touched.
    unsafe { entry::realloc::<Unified>(block, large(size)) }
}

pub unsafe extern "C" fn reallocarray(
    block: *mut c_void,
    count: usize,
    size: usize,
) -> *mut c_void {
    match count.checked_mul(size) {
        // SAFETY: the caller's promise.
        Some(total) => unsafe { realloc(block, total) },
        None => entry::no_memory(),
    }
}

pub unsafe extern "C" fn memalign(align: usize, size: usize) -> *mut c_void {
    // SAFETY: any alignment and size are allowed.
    unsafe { entry::memalign::<Unified>(align, large(size)) }
}

pub unsafe extern "C" fn aligned_alloc(align: usize, size: usize) -> *mut c_void {
    // SAFETY: any alignment and size are allowed.
    unsafe { entry::aligned_alloc::<Unified>(align, large(size)) }
}

pub unsafe extern "C" fn posix_memalign(out: *mut *mut c_void, align: usize, size: usize) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { entry::posix_memalign::<Unified>(out, align, large(size)) }
}

pub unsafe extern "C" fn usable_size(block: *mut c_void) -> usize {
    // SAFETY: the caller's promise.
    unsafe { entry::usable_size::<Unified>(block) }
}
