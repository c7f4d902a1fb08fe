//! mimalloc 3, from libmimalloc-sys, with its defaults.

#[macro_use]
#[path = "../../exports.rs"]
mod exports;

use libmimalloc_sys as mi;

unsafe fn usable(block: *mut c_void) -> usize {
    // SAFETY: the caller's promise: a live block.
    unsafe { mi::mi_usable_size(block) }
}

unsafe fn aligned(alignment: usize, size: usize) -> *mut c_void {
    // SAFETY: the caller's promise: a power of two.
    unsafe { mi::mi_malloc_aligned(size, alignment) }
}

export! {
    malloc: mi::mi_malloc, calloc: mi::mi_calloc, realloc: mi::mi_realloc, free: mi::mi_free, usable: usable,
    aligned: aligned,
}
