//! jemalloc, from tikv-jemalloc-sys, with its defaults.

#[macro_use]
#[path = "../../exports.rs"]
mod exports;

use tikv_jemalloc_sys as je;

unsafe fn usable(block: *mut c_void) -> usize {
    // SAFETY: the caller's promise: a live block.
    unsafe { je::malloc_usable_size(block) }
}

unsafe fn aligned(alignment: usize, size: usize) -> *mut c_void {
    let mut block = null_mut();
    // SAFETY: `block` is valid for writing.
    let error = unsafe { je::posix_memalign(&mut block, alignment.max(size_of::<usize>()), size) };
    if error == 0 { block } else { fail(error) }
}

export! { malloc: je::malloc, calloc: je::calloc, realloc: je::realloc, free: je::free, usable: usable, aligned: aligned }
