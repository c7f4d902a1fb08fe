//! The exported C symbols.
//!
//! The hot ones are one jump each; the rest are small functions over the chosen heap. A symbol
//! that glibc has and this file lacks would hand out blocks of another malloc, so the list
//! follows glibc's (and C23's) in full.

#![allow(unsafe_code)]

use core::ffi::{c_int, c_void};

use page_alloc::os;

use slab_api::Malloc as _;

use crate::backend::{Debugged, Installed as _, Secured};
use crate::dispatch::{export, with_backend};
use crate::{entry, report, start};

export! {
    /// C `malloc`.
    ///
    /// # Safety
    /// As C defines it.
    fn malloc(size: usize) -> *mut c_void = malloc;

    /// C `free`.
    ///
    /// # Safety
    /// `block` is null or was returned by this library and not freed since.
    fn free(block: *mut c_void) = free;

    /// The pre-standard name of `free`.
    ///
    /// # Safety
    /// As for `free`.
    fn cfree(block: *mut c_void) = free;

    /// C `calloc`.
    ///
    /// # Safety
    /// As C defines it.
    fn calloc(count: usize, size: usize) -> *mut c_void = calloc;

    /// C `realloc`; a size of 0 frees and returns null, as in glibc.
    ///
    /// # Safety
    /// As for `free`.
    fn realloc(block: *mut c_void, size: usize) -> *mut c_void = realloc;

    /// `reallocarray`.
    ///
    /// # Safety
    /// As for `free`.
    fn reallocarray(block: *mut c_void, count: usize, size: usize) -> *mut c_void = reallocarray;

    /// C23 `free_sized`.
    ///
    /// # Safety
    /// As for `free`, and `size` is what was asked for.
    fn free_sized(block: *mut c_void, size: usize) = free_sized;

    /// C23 `free_aligned_sized`.
    ///
    /// # Safety
    /// As for `free`, and `align` and `size` are what was asked for.
    fn free_aligned_sized(block: *mut c_void, align: usize, size: usize) = free_aligned_sized;

    /// `memalign`.
    ///
    /// # Safety
    /// As glibc defines it.
    fn memalign(align: usize, size: usize) -> *mut c_void = memalign;

    /// C11 `aligned_alloc`.
    ///
    /// # Safety
    /// As C defines it.
    fn aligned_alloc(align: usize, size: usize) -> *mut c_void = aligned_alloc;

    /// POSIX `posix_memalign`.
    ///
    /// # Safety
    /// `out` is valid for a write of a pointer.
    fn posix_memalign(out: *mut *mut c_void, align: usize, size: usize) -> c_int = posix_memalign;

    /// `malloc_usable_size`.
    ///
    /// # Safety
    /// As for `free`.
    fn malloc_usable_size(block: *mut c_void) -> usize = usable_size;
}

/// `valloc`: a block that starts at a page.
///
/// # Safety
/// As glibc defines it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn valloc(size: usize) -> *mut c_void {
    // SAFETY: no preconditions beyond C's.
    unsafe { memalign(os::page_size(), size) }
}

/// `pvalloc`: whole pages, at least one; ENOMEM when rounding up overflows.
///
/// # Safety
/// As glibc defines it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pvalloc(size: usize) -> *mut c_void {
    let page = os::page_size();
    match size.max(1).checked_next_multiple_of(page) {
        // SAFETY: no preconditions beyond C's.
        Some(rounded) => unsafe { memalign(page, rounded) },
        None => entry::no_memory(),
    }
}

/// `malloc_trim`: gives free memory back to the system at once; 1 when there was some. glibc keeps
/// `_pad` bytes at the top of its heap; this heap has no top.
#[unsafe(no_mangle)]
pub extern "C" fn malloc_trim(_pad: usize) -> c_int {
    if start::configured_secure() {
        return with_backend!(B => c_int::from(Secured::<B>::heap().trim()));
    }
    with_backend!(B => c_int::from(if start::debugging() {
        Debugged::<B>::heap().trim()
    } else {
        B::heap().trim()
    }))
}

/// `slabmalloc_validate`: checks every object under `debug=`, and every cache; reports each fault
/// and returns how many there were. Other threads must not allocate meanwhile.
#[unsafe(no_mangle)]
pub extern "C" fn slabmalloc_validate() -> c_int {
    let faults = with_backend!(B => Debugged::<B>::heap().validate());
    c_int::try_from(faults).unwrap_or(c_int::MAX)
}

/// `slabmalloc_shrink`: gives back what caches keep: the calling thread's queues, the quarantine of
/// `debug=`, empty slabs, free pages; 1 when there was some. (`malloc_trim` by another name.)
#[unsafe(no_mangle)]
pub extern "C" fn slabmalloc_shrink() -> c_int {
    malloc_trim(0)
}

/// `mallopt`: every option is accepted, none has a meaning here. `SLABMALLOC_CONF` is the way to
/// configure.
#[unsafe(no_mangle)]
pub extern "C" fn mallopt(_param: c_int, _value: c_int) -> c_int {
    1
}

/// `mallinfo2`: the totals of the heap in glibc's fields.
#[unsafe(no_mangle)]
pub extern "C" fn mallinfo2() -> libc::mallinfo2 {
    report::mallinfo2()
}

/// `mallinfo`: as [`mallinfo2`], each field at most INT_MAX.
#[unsafe(no_mangle)]
pub extern "C" fn mallinfo() -> libc::mallinfo {
    let wide = report::mallinfo2();
    let narrow = |value: usize| c_int::try_from(value).unwrap_or(c_int::MAX);
    libc::mallinfo {
        arena: narrow(wide.arena),
        ordblks: narrow(wide.ordblks),
        smblks: narrow(wide.smblks),
        hblks: narrow(wide.hblks),
        hblkhd: narrow(wide.hblkhd),
        usmblks: narrow(wide.usmblks),
        fsmblks: narrow(wide.fsmblks),
        uordblks: narrow(wide.uordblks),
        fordblks: narrow(wide.fordblks),
        keepcost: narrow(wide.keepcost),
    }
}

/// `malloc_info`: the heap's figures as XML. `options` must be 0; the result is 0, EINVAL or -1.
///
/// # Safety
/// `stream` is an open stdio stream.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn malloc_info(options: c_int, stream: *mut libc::FILE) -> c_int {
    if options != 0 {
        return libc::EINVAL;
    }
    // SAFETY: the caller's promise.
    let mut out = unsafe { crate::out::Stream::new(stream) };
    report::xml(&mut out);
    if out.failed() { -1 } else { 0 }
}

/// `malloc_stats`: the heap's figures as text on standard error.
#[unsafe(no_mangle)]
pub extern "C" fn malloc_stats() {
    report::summary(libc::STDERR_FILENO);
}
