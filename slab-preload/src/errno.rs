//! `errno`: read, set, and kept over a call.

#![allow(unsafe_code)]

use core::ffi::c_int;

/// The calling thread's errno.
#[inline]
pub fn get() -> c_int {
    // SAFETY: glibc returns a valid pointer to this thread's errno for as long as the thread runs.
    unsafe { *libc::__errno_location() }
}

/// Sets the calling thread's errno.
#[inline]
pub fn set(code: c_int) {
    // SAFETY: as in `get`; the location is this thread's own.
    unsafe { *libc::__errno_location() = code }
}

/// Runs `body` and puts errno back to what it was before.
#[inline]
pub fn kept<T>(body: impl FnOnce() -> T) -> T {
    let before = get();
    let result = body();
    set(before);
    result
}
