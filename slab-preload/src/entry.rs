//! The C functions over one heap, monomorphised for each backend.
//!
//! What is decided here, and nowhere below: which sizes and alignments C accepts, and errno. A
//! function that fails leaves ENOMEM or EINVAL where glibc documents it; `free` and its kin
//! never change errno (the OS edge below keeps it over its system calls); `posix_memalign`
//! reports by its result alone.

#![allow(unsafe_code)]

use core::ffi::{c_int, c_void};
use core::ptr;

use crate::backend::{Front, Serve as _};
use crate::errno;

/// The result of a request that cannot be served.
#[cold]
#[inline(never)]
pub extern "C" fn no_memory() -> *mut c_void {
    errno::set(libc::ENOMEM);
    ptr::null_mut()
}

/// The result of a request that makes no sense.
#[cold]
#[inline(never)]
extern "C" fn invalid() -> *mut c_void {
    errno::set(libc::EINVAL);
    ptr::null_mut()
}

#[inline(always)]
fn or_no_memory(block: *mut u8) -> *mut c_void {
    if block.is_null() {
        no_memory()
    } else {
        block.cast()
    }
}

/// `malloc`: a block of `size` bytes; a unique one when `size` is 0.
///
/// # Safety
/// None beyond the C contract; unsafe because it is called through the table.
pub unsafe extern "C" fn malloc<B: Front>(size: usize) -> *mut c_void {
    let block = B::heap().try_malloc(size);
    if block.is_null() {
        // Nothing is left to do here, so that this is a jump and the fast path needs no frame.
        return malloc_slow::<B>(size);
    }
    block.cast()
}

#[cold]
#[inline(never)]
extern "C" fn malloc_slow<B: Front>(size: usize) -> *mut c_void {
    or_no_memory(B::heap().malloc(size))
}

/// `calloc`: `count * size` zeroed bytes, ENOMEM when the product overflows.
///
/// # Safety
/// As for [`malloc`].
pub unsafe extern "C" fn calloc<B: Front>(count: usize, size: usize) -> *mut c_void {
    let Some(total) = count.checked_mul(size) else {
        return no_memory();
    };
    or_no_memory(B::heap().alloc_zeroed(total))
}

/// `free`.
///
/// # Safety
/// `block` is null or came from this library and was not freed since.
pub unsafe extern "C" fn free<B: Front>(block: *mut c_void) {
    // SAFETY: the caller's promise is the heap's.
    unsafe { B::heap().free(block.cast()) }
}

/// C23 `free_sized`.
///
/// # Safety
/// As for [`free`], and `size` is what was asked for when `block` was allocated.
pub unsafe extern "C" fn free_sized<B: Front>(block: *mut c_void, size: usize) {
    // SAFETY: the caller's promise is the heap's.
    unsafe { B::heap().free_sized(block.cast(), size) }
}

/// C23 `free_aligned_sized`.
///
/// # Safety
/// As for [`free`], and `align` and `size` are what was asked for when `block` was allocated.
pub unsafe extern "C" fn free_aligned_sized<B: Front>(
    block: *mut c_void,
    align: usize,
    size: usize,
) {
    // SAFETY: the caller's promise is the heap's.
    unsafe { B::heap().free_aligned_sized(block.cast(), align, size) }
}

/// `realloc`, with glibc's meaning of 0: the block is freed and the result is null.
///
/// # Safety
/// As for [`free`].
pub unsafe extern "C" fn realloc<B: Front>(block: *mut c_void, size: usize) -> *mut c_void {
    if block.is_null() {
        // SAFETY: any size is allowed.
        return unsafe { malloc::<B>(size) };
    }
    if size == 0 {
        // SAFETY: the caller's promise; the block is not used afterwards.
        unsafe { free::<B>(block) };
        return ptr::null_mut();
    }
    // SAFETY: `block` is not null, `size` not 0, the rest is the caller's promise.
    let new = unsafe { B::heap().realloc(block.cast(), size) };
    // Shrinking does not fail: without memory the block serves as it is.
    // SAFETY: the block is still the caller's when the result is null.
    if new.is_null() && size <= unsafe { B::heap().usable_size(block.cast()) } {
        return block;
    }
    or_no_memory(new)
}

/// `reallocarray`: [`realloc`] to `count * size` bytes; ENOMEM, and the block untouched, when
/// that overflows.
///
/// # Safety
/// As for [`free`].
pub unsafe extern "C" fn reallocarray<B: Front>(
    block: *mut c_void,
    count: usize,
    size: usize,
) -> *mut c_void {
    let Some(total) = count.checked_mul(size) else {
        return no_memory();
    };
    // SAFETY: the caller's promise.
    unsafe { realloc::<B>(block, total) }
}

/// `memalign`. As in glibc an alignment between two powers of two means the next one, and one
/// beyond the largest power of two is EINVAL.
///
/// # Safety
/// As for [`malloc`].
pub unsafe extern "C" fn memalign<B: Front>(align: usize, size: usize) -> *mut c_void {
    match align.checked_next_power_of_two() {
        Some(align) => or_no_memory(B::heap().memalign(align, size)),
        None => invalid(),
    }
}

/// `aligned_alloc`: EINVAL unless `align` is a power of two; `size` need not be a multiple of it.
///
/// # Safety
/// As for [`malloc`].
pub unsafe extern "C" fn aligned_alloc<B: Front>(align: usize, size: usize) -> *mut c_void {
    if !align.is_power_of_two() {
        return invalid();
    }
    or_no_memory(B::heap().memalign(align, size))
}

/// `posix_memalign`: 0, EINVAL or ENOMEM; `*out` is written on success only, errno never.
///
/// # Safety
/// `out` is valid for a write.
pub unsafe extern "C" fn posix_memalign<B: Front>(
    out: *mut *mut c_void,
    align: usize,
    size: usize,
) -> c_int {
    if !align.is_power_of_two() || align < size_of::<*mut c_void>() {
        return libc::EINVAL;
    }
    let block = errno::kept(|| B::heap().memalign(align, size));
    if block.is_null() {
        return libc::ENOMEM;
    }
    // SAFETY: the caller's promise.
    unsafe { out.write(block.cast()) };
    0
}

/// `malloc_usable_size`: how many bytes of `block` may be used; 0 for null.
///
/// # Safety
/// As for [`free`].
pub unsafe extern "C" fn usable_size<B: Front>(block: *mut c_void) -> usize {
    if block.is_null() {
        return 0;
    }
    // SAFETY: the caller's promise.
    unsafe { B::heap().usable_size(block.cast()) }
}
