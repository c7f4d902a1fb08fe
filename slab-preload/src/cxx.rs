//! C++ `operator new` and `operator delete`, all twenty forms.
//!
//! Success is a call through the table; `delete` is one jump. Failure is the C++ library's
//! business: it owns the new-handler loop and the exception. So a failed `new` restores its
//! arguments and *jumps* to the next definition of the same symbol, libstdc++'s or libc++'s,
//! which calls our malloc again, runs the handlers, and throws `std::bad_alloc` (or returns
//! null, for the nothrow forms) as if we had never been there. It has to be a jump from a naked
//! function: a foreign exception must not meet a Rust frame, which would abort the process.
//!
//! ```text
//!   caller ─▶ _Znwm ─▶ malloc ─▶ block        caller ─▶ _Znwm ─▶ malloc ─▶ null
//!          ◀──────────────────────┘                      └(jmp)▶ libstdc++'s _Znwm:
//!                                                                malloc, handlers, throw
//! ```

#![allow(unsafe_code)]

use core::ffi::{CStr, c_void};
use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering};

use crate::dispatch::export;
use crate::start;

/// The next definition of one operator.
struct Next {
    name: &'static CStr,
    found: AtomicPtr<c_void>,
    /// What stands in when there is no C++ library in the process. Its arguments do not matter.
    otherwise: extern "C" fn() -> *mut c_void,
}

impl Next {
    const fn new(name: &'static CStr, otherwise: extern "C" fn() -> *mut c_void) -> Self {
        Next {
            name,
            found: AtomicPtr::new(ptr::null_mut()),
            otherwise,
        }
    }
}

/// Where a failed operator continues; never null.
extern "C" fn resolve(next: &Next) -> *mut c_void {
    let found = next.found.load(Ordering::Relaxed);
    if !found.is_null() {
        return found;
    }
    // SAFETY: the name is a C string. dlsym may call malloc, which may fail; it copes with both.
    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, next.name.as_ptr()) };
    if found.is_null() {
        return next.otherwise as *mut c_void;
    }
    // Relaxed: the address itself is all there is, and every thread finds the same one.
    next.found.store(found, Ordering::Relaxed);
    found
}

/// A nothrow form without a C++ library.
extern "C" fn nothing() -> *mut c_void {
    ptr::null_mut()
}

/// A throwing form without a C++ library (one linked statically into the program, for instance).
extern "C" fn cannot_throw() -> *mut c_void {
    start::die(
        "slabmalloc: operator new is out of memory, and no C++ library is loaded that could throw std::bad_alloc\n",
    )
}

/// Defines one form of `operator new`. `push` saves the arguments (an odd number of words, which
/// aligns the stack), `drop` forgets and `pop` restores them; `prepare` turns them into those of
/// the table's `field`.
macro_rules! operator_new {
    ($(#[$doc:meta])* fn $name:ident($($arg:ident: $ty:ty),*) = $field:ident, $symbol:literal, else $otherwise:ident,
     push $($push:literal)*, drop $drop:literal, pop $($pop:literal)* $(, prepare $prepare:literal)?) => {
        $(#[$doc])*
        ///
        /// # Safety
        /// As C++ defines it.
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        #[allow(non_snake_case)]
        pub unsafe extern "C" fn $name($($arg: $ty),*) -> *mut c_void {
            static NEXT: Next = Next::new($symbol, $otherwise);
            core::arch::naked_asm!(
                ".cfi_startproc",
                $($push,)*
                ".cfi_adjust_cfa_offset {frame}",
                $($prepare,)?
                "call qword ptr [rip + {table} + {field}]",
                "test rax, rax",
                "je 2f",
                $drop,
                ".cfi_adjust_cfa_offset -{frame}",
                "ret",
                ".cfi_adjust_cfa_offset {frame}",
                "2:",
                "lea rdi, [rip + {next}]",
                "call {resolve}",
                $($pop,)*
                ".cfi_adjust_cfa_offset -{frame}",
                // A size above PTRDIFF_MAX stays impossible as PTRDIFF_MAX; but libstdc++'s aligned
                // forms round it up first, and would wrap it to a small one.
                "mov rcx, 0x7fffffffffffffff",
                "cmp rdi, rcx",
                "cmova rdi, rcx",
                "jmp rax",
                ".cfi_endproc",
                table = sym crate::dispatch::TABLE,
                field = const core::mem::offset_of!(crate::dispatch::Table, $field),
                frame = const 8 * [$($push),*].len(),
                next = sym NEXT,
                resolve = sym resolve,
            )
        }
    };
}

/// The forms with one argument, or with three words worth keeping (an alignment, the nothrow tag; a
/// form that lacks one keeps what happens to be in its register).
macro_rules! operators_new {
    ($($(#[$doc:meta])* fn $name:ident(size) = $symbol:literal, else $otherwise:ident;)*) => {$(
        operator_new! {
            $(#[$doc])*
            fn $name(size: usize) = malloc, $symbol, else $otherwise,
            push "push rdi", drop "pop rdi", pop "pop rdi"
        }
    )*};
    ($($(#[$doc:meta])* fn $name:ident(size, nothrow) = $symbol:literal, else $otherwise:ident;)*) => {$(
        operator_new! {
            $(#[$doc])*
            fn $name(size: usize, nothrow: *const c_void) = malloc, $symbol, else $otherwise,
            push "push rdi" "push rsi" "push rdx", drop "add rsp, 24", pop "pop rdx" "pop rsi" "pop rdi"
        }
    )*};
    ($($(#[$doc:meta])* fn $name:ident(size, align, nothrow) = $symbol:literal, else $otherwise:ident;)*) => {$(
        operator_new! {
            $(#[$doc])*
            fn $name(size: usize, align: usize, nothrow: *const c_void) = aligned_alloc, $symbol, else $otherwise,
            push "push rdi" "push rsi" "push rdx", drop "add rsp, 24", pop "pop rdx" "pop rsi" "pop rdi",
            prepare "xchg rdi, rsi"
        }
    )*};
}

operators_new! {
    /// `operator new(size_t)`
    fn _Znwm(size) = c"_Znwm", else cannot_throw;
    /// `operator new[](size_t)`
    fn _Znam(size) = c"_Znam", else cannot_throw;
}

operators_new! {
    /// `operator new(size_t, std::nothrow_t const&)`
    fn _ZnwmRKSt9nothrow_t(size, nothrow) = c"_ZnwmRKSt9nothrow_t", else nothing;
    /// `operator new[](size_t, std::nothrow_t const&)`
    fn _ZnamRKSt9nothrow_t(size, nothrow) = c"_ZnamRKSt9nothrow_t", else nothing;
}

operators_new! {
    /// `operator new(size_t, std::align_val_t)`
    fn _ZnwmSt11align_val_t(size, align, nothrow) = c"_ZnwmSt11align_val_t", else cannot_throw;
    /// `operator new[](size_t, std::align_val_t)`
    fn _ZnamSt11align_val_t(size, align, nothrow) = c"_ZnamSt11align_val_t", else cannot_throw;
    /// `operator new(size_t, std::align_val_t, std::nothrow_t const&)`
    fn _ZnwmSt11align_val_tRKSt9nothrow_t(size, align, nothrow) = c"_ZnwmSt11align_val_tRKSt9nothrow_t", else nothing;
    /// `operator new[](size_t, std::align_val_t, std::nothrow_t const&)`
    fn _ZnamSt11align_val_tRKSt9nothrow_t(size, align, nothrow) = c"_ZnamSt11align_val_tRKSt9nothrow_t", else nothing;
}

// An extra argument that C does not look at (the nothrow tag, an alignment) rides along in its
// register.
export! {
    /// `operator delete(void*)`
    ///
    /// # Safety
    /// As C++ defines it.
    fn _ZdlPv(block: *mut c_void) = free;
    /// `operator delete[](void*)`
    ///
    /// # Safety
    /// As C++ defines it.
    fn _ZdaPv(block: *mut c_void) = free;
    /// `operator delete(void*, std::nothrow_t const&)`
    ///
    /// # Safety
    /// As C++ defines it.
    fn _ZdlPvRKSt9nothrow_t(block: *mut c_void) = free;
    /// `operator delete[](void*, std::nothrow_t const&)`
    ///
    /// # Safety
    /// As C++ defines it.
    fn _ZdaPvRKSt9nothrow_t(block: *mut c_void) = free;
    /// `operator delete(void*, std::align_val_t)`
    ///
    /// # Safety
    /// As C++ defines it.
    fn _ZdlPvSt11align_val_t(block: *mut c_void) = free;
    /// `operator delete[](void*, std::align_val_t)`
    ///
    /// # Safety
    /// As C++ defines it.
    fn _ZdaPvSt11align_val_t(block: *mut c_void) = free;
    /// `operator delete(void*, std::align_val_t, std::nothrow_t const&)`
    ///
    /// # Safety
    /// As C++ defines it.
    fn _ZdlPvSt11align_val_tRKSt9nothrow_t(block: *mut c_void) = free;
    /// `operator delete[](void*, std::align_val_t, std::nothrow_t const&)`
    ///
    /// # Safety
    /// As C++ defines it.
    fn _ZdaPvSt11align_val_tRKSt9nothrow_t(block: *mut c_void) = free;
    /// `operator delete(void*, size_t)`
    ///
    /// # Safety
    /// As C++ defines it.
    fn _ZdlPvm(block: *mut c_void, size: usize) = free_sized;
    /// `operator delete[](void*, size_t)`
    ///
    /// # Safety
    /// As C++ defines it.
    fn _ZdaPvm(block: *mut c_void, size: usize) = free_sized;
}

/// Defines one form of aligned, sized `operator delete`: C has the two numbers the other way round.
macro_rules! operator_delete_aligned_sized {
    ($($(#[$doc:meta])* fn $name:ident;)*) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        /// As C++ defines it.
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        #[allow(non_snake_case)]
        pub unsafe extern "C" fn $name(block: *mut c_void, size: usize, align: usize) {
            core::arch::naked_asm!(
                "xchg rsi, rdx",
                "jmp qword ptr [rip + {table} + {field}]",
                table = sym crate::dispatch::TABLE,
                field = const core::mem::offset_of!(crate::dispatch::Table, free_aligned_sized),
            )
        }
    )*};
}

operator_delete_aligned_sized! {
    /// `operator delete(void*, size_t, std::align_val_t)`
    fn _ZdlPvmSt11align_val_t;
    /// `operator delete[](void*, size_t, std::align_val_t)`
    fn _ZdaPvmSt11align_val_t;
}
