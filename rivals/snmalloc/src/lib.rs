//! snmalloc, from snmalloc-sys, with its defaults.

#[macro_use]
#[path = "../../exports.rs"]
mod exports;

use snmalloc_sys as sn;

unsafe fn usable(block: *mut c_void) -> usize {
    // SAFETY: the caller's promise: a live block.
    unsafe { sn::sn_malloc_usable_size(block) }
}

unsafe fn aligned(alignment: usize, size: usize) -> *mut c_void {
    // SAFETY: the caller's promise: a power of two.
    unsafe { sn::sn_rust_alloc(alignment, size) }
}

export! {
    malloc: sn::sn_malloc, calloc: sn::sn_calloc, realloc: sn::sn_realloc, free: sn::sn_free, usable: usable,
    aligned: aligned,
}
