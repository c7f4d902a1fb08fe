//! Moving page contents: by `UFFDIO_MOVE`, which hands the kernel's pages over in
//! about 80 ns each, or by copy (about 1 µs each when cold).
//!
//! `UFFDIO_MOVE` (Linux 6.8) wants the target registered with a userfaultfd and
//! empty. Both are done before the owner is stopped ([`Mover::prepare`]), and the
//! registration ends right after: a fault in a registered range would wait for a
//! handler, but nobody uses the target yet. One descriptor serves the process; where
//! the kernel has no such thing or a sandbox denies it, contents are copied.

use core::ptr;
use core::sync::atomic::{AtomicI32, Ordering::Relaxed};

use crate::os::{self, Userfault};
use crate::types::PAGE_SIZE;

/// How contents were moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum How {
    Copied,
    Remapped,
}

/// Pages from which remapping is worth its three system calls.
const WORTH: usize = 16 * PAGE_SIZE;

const UNTRIED: i32 = -1;
const NONE: i32 = -2;
/// The process's descriptor, or why there is none.
static FD: AtomicI32 = AtomicI32::new(UNTRIED);

fn descriptor() -> Option<Userfault> {
    match FD.load(Relaxed) {
        NONE => None,
        UNTRIED => {
            let fd = Userfault::open();
            FD.store(fd.map_or(NONE, |fd| fd.0), Relaxed);
            fd
        }
        fd => Some(Userfault(fd)),
    }
}

/// Forgets the descriptor: it belongs to the parent's memory. In the child of a fork.
pub(crate) fn after_fork() {
    if let Some(fd) = match FD.swap(UNTRIED, Relaxed) {
        fd if fd >= 0 => Some(fd),
        _ => None,
    } {
        os::close(fd);
    }
}

/// Moves contents to targets that nobody uses yet. One at a time: the caller is the
/// only thread that empties blocks.
pub(crate) struct Mover {
    registered: Option<(Userfault, *mut u8, usize)>,
}

impl Mover {
    pub(crate) fn new() -> Self {
        Self { registered: None }
    }

    /// Gets a target ready, before its owner is stopped. `dirty`: it may hold data.
    pub(crate) fn prepare(&mut self, target: *mut u8, bytes: usize, dirty: bool) {
        if bytes < WORTH {
            return;
        }
        let Some(fd) = descriptor() else { return };
        // SAFETY: the target is the caller's, whole pages, and holds nothing.
        let empty = !dirty || unsafe { os::discard(target, bytes) };
        // SAFETY: as above.
        let ready = empty && unsafe { fd.register(target, bytes) };
        if ready {
            self.registered = Some((fd, target, bytes));
        }
    }

    /// Moves the content; with the owner stopped.
    pub(crate) fn transfer(&mut self, source: *mut u8, target: *mut u8, bytes: usize) -> How {
        let mut done = 0;
        if let Some((fd, at, len)) = self.registered
            && at == target
            && len == bytes
        {
            // SAFETY: both ranges are the caller's, and nobody uses them meanwhile.
            done = unsafe { fd.transfer(source, target, bytes) };
            if done == bytes {
                return How::Remapped;
            }
            // A copy into the registered range would wait for a handler.
            self.finish();
        }
        // SAFETY: as above; the ranges are different pages.
        unsafe {
            ptr::copy_nonoverlapping(source.add(done), target.add(done), bytes - done);
        }
        How::Copied
    }

    /// Ends the preparation, whether it was used or not.
    pub(crate) fn finish(&mut self) {
        if let Some((fd, at, bytes)) = self.registered.take() {
            // SAFETY: registered by `prepare`.
            unsafe { fd.unregister(at, bytes) };
        }
    }
}

impl Drop for Mover {
    fn drop(&mut self) {
        self.finish();
    }
}
