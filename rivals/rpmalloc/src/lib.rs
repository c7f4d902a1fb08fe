//! rpmalloc, from rpmalloc-sys, with its defaults. Each thread is announced at its first call and given up by a
//! thread-specific key's destructor.

#[macro_use]
#[path = "../../exports.rs"]
mod exports;

use rpmalloc_sys as rp;
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

static START: Once = Once::new();
/// The key whose destructor gives a thread's heap up.
static KEY: AtomicU32 = AtomicU32::new(0);

unsafe extern "C" fn leave(_: *mut c_void) {
    // SAFETY: this thread was announced when it set the key.
    unsafe { rp::rpmalloc_thread_finalize() };
}

#[inline(always)]
fn announce() {
    // SAFETY: reads a thread-local.
    if unsafe { rp::rpmalloc_is_thread_initialized() } == 0 {
        enter();
    }
}

#[cold]
fn enter() {
    START.call_once(|| {
        let mut key = 0;
        // SAFETY: `key` is valid for writing; initialising is done once.
        unsafe {
            rp::rpmalloc_initialize();
            libc::pthread_key_create(&mut key, Some(leave));
        }
        // Relaxed: call_once orders it.
        KEY.store(key, Ordering::Relaxed);
    });
    // SAFETY: rpmalloc is initialised, the key exists. A value other than null makes the destructor run.
    unsafe {
        rp::rpmalloc_thread_initialize();
        libc::pthread_setspecific(KEY.load(Ordering::Relaxed), core::ptr::dangling());
    }
}

unsafe fn allocate(size: usize) -> *mut c_void {
    announce();
    // SAFETY: the thread is announced.
    unsafe { rp::rpmalloc(size) }
}

unsafe fn zeroed(count: usize, size: usize) -> *mut c_void {
    announce();
    // SAFETY: the thread is announced.
    unsafe { rp::rpcalloc(count, size) }
}

unsafe fn resize(block: *mut c_void, size: usize) -> *mut c_void {
    announce();
    // SAFETY: the thread is announced; the caller promises null or a live block.
    unsafe { rp::rprealloc(block, size) }
}

unsafe fn release(block: *mut c_void) {
    announce();
    // SAFETY: the thread is announced; the caller promises null or a live block.
    unsafe { rp::rpfree(block) }
}

unsafe fn aligned(alignment: usize, size: usize) -> *mut c_void {
    announce();
    // SAFETY: the thread is announced.
    unsafe { rp::rpaligned_alloc(alignment, size) }
}

export! {
    malloc: allocate, calloc: zeroed, realloc: resize, free: release, usable: rp::rpmalloc_usable_size,
    aligned: aligned,
}
