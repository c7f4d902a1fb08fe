//! The C functions of a malloc, in terms of five of its own. Every library here includes this file.

/// Exports the allocation functions. `aligned` takes the alignment, a power of two, then the size.
macro_rules! export {
    (malloc: $malloc:path, calloc: $calloc:path, realloc: $realloc:path, free: $free:path, usable: $usable:path,
     aligned: $aligned:path $(,)?) => {
        use core::ffi::{c_int, c_void};
        use core::ptr::null_mut;

        const EINVAL: c_int = 22;
        const ENOMEM: c_int = 12;
        const PAGE: usize = 4096;

        unsafe extern "C" {
            fn __errno_location() -> *mut c_int;
        }

        #[cold]
        fn fail(error: c_int) -> *mut c_void {
            // SAFETY: libc returns this thread's errno, valid for writing.
            unsafe { *__errno_location() = error };
            null_mut()
        }

        #[unsafe(no_mangle)]
        extern "C" fn malloc(size: usize) -> *mut c_void {
            // SAFETY: no precondition.
            unsafe { $malloc(size) }
        }

        #[unsafe(no_mangle)]
        extern "C" fn calloc(count: usize, size: usize) -> *mut c_void {
            // SAFETY: no precondition.
            unsafe { $calloc(count, size) }
        }

        #[unsafe(no_mangle)]
        unsafe extern "C" fn realloc(block: *mut c_void, size: usize) -> *mut c_void {
            // SAFETY: the caller's promise: null or a live block.
            unsafe { $realloc(block, size) }
        }

        #[unsafe(no_mangle)]
        unsafe extern "C" fn reallocarray(
            block: *mut c_void,
            count: usize,
            size: usize,
        ) -> *mut c_void {
            match count.checked_mul(size) {
                // SAFETY: the caller's promise: null or a live block.
                Some(bytes) => unsafe { $realloc(block, bytes) },
                None => fail(ENOMEM),
            }
        }

        #[unsafe(no_mangle)]
        unsafe extern "C" fn free(block: *mut c_void) {
            // SAFETY: the caller's promise: null or a live block.
            unsafe { $free(block) };
        }

        #[unsafe(no_mangle)]
        unsafe extern "C" fn malloc_usable_size(block: *mut c_void) -> usize {
            if block.is_null() {
                return 0;
            }
            // SAFETY: the caller's promise: a live block.
            unsafe { $usable(block) }
        }

        #[unsafe(no_mangle)]
        extern "C" fn memalign(alignment: usize, size: usize) -> *mut c_void {
            match alignment.checked_next_power_of_two() {
                // SAFETY: a power of two.
                Some(alignment) => unsafe { $aligned(alignment, size) },
                None => fail(EINVAL),
            }
        }

        #[unsafe(no_mangle)]
        extern "C" fn aligned_alloc(alignment: usize, size: usize) -> *mut c_void {
            if !alignment.is_power_of_two() {
                return fail(EINVAL);
            }
            // SAFETY: a power of two.
            unsafe { $aligned(alignment, size) }
        }

        #[unsafe(no_mangle)]
        unsafe extern "C" fn posix_memalign(
            out: *mut *mut c_void,
            alignment: usize,
            size: usize,
        ) -> c_int {
            if !alignment.is_power_of_two() || alignment < size_of::<usize>() {
                return EINVAL;
            }
            // SAFETY: a power of two.
            let block = unsafe { $aligned(alignment, size) };
            if block.is_null() && size != 0 {
                return ENOMEM;
            }
            // SAFETY: the caller's promise: valid for writing.
            unsafe { *out = block };
            0
        }

        #[unsafe(no_mangle)]
        extern "C" fn valloc(size: usize) -> *mut c_void {
            memalign(PAGE, size)
        }

        #[unsafe(no_mangle)]
        extern "C" fn pvalloc(size: usize) -> *mut c_void {
            match size.checked_next_multiple_of(PAGE) {
                Some(size) => memalign(PAGE, size),
                None => fail(ENOMEM),
            }
        }
    };
}
