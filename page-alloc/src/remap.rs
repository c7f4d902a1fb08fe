//! Moving page contents: by `UFFDIO_MOVE`, which hands the kernel's pages over in
//! about 0.2 µs each, or by copy (0.3 µs each when cold, and 2 µs more where the
//! target has no memory yet).
//!
//! `UFFDIO_MOVE` (Linux 6.8) wants an empty target in memory that is registered with
//! a userfaultfd. A registration costs 5 µs each time it is made or ended, as much as
//! moving 20 pages, so a region is registered once, up to its frontier, and stays so:
//! in the write-protect mode, in which nobody is ever notified unless pages are
//! write-protected, which none is. One descriptor serves the process; where the kernel
//! has no such thing or a sandbox denies it, contents are copied.

use core::ptr;
use core::sync::atomic::{AtomicI32, Ordering::Relaxed};

use crate::arena::{self, Frame};
use crate::os::{self, Userfault};
use crate::types::PAGE_SIZE;

/// How contents were moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum How {
    Copied,
    Remapped,
}

/// Bytes from which it is worth emptying a target to remap into it.
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

/// Whether this process can move contents without a copy.
pub(crate) fn is_there() -> bool {
    descriptor().is_some()
}

/// Forgets the descriptor and what is registered with it: they belong to the parent's
/// memory. In the child of a fork.
pub(crate) fn after_fork() {
    let fd = FD.swap(UNTRIED, Relaxed);
    if fd >= 0 {
        arena::forget_registered();
        os::close(fd);
    }
}

/// Gets a target ready, before the owner of what moves there is stopped: empty to be
/// remapped into, or with the memory that a copy needs. `dirty`: it may hold data.
pub(crate) fn prepare(to: Frame, bytes: usize, dirty: bool) -> Option<Userfault> {
    let target = to.arena.address(to.index);
    if !dirty || bytes >= WORTH {
        let fd = descriptor().filter(|fd| to.arena.register(to.index, *fd));
        // SAFETY: the target is the caller's, whole pages, and holds nothing.
        if fd.is_some() && (!dirty || unsafe { os::discard(target, bytes) }) {
            return fd;
        }
    }
    if !dirty {
        // SAFETY: as above.
        unsafe { os::populate(target, bytes) };
    }
    None
}

/// Moves the content of whole pages to a target that [`prepare`] got ready for so many
/// bytes, with the owner stopped.
pub(crate) fn transfer(
    ready: Option<Userfault>,
    source: *mut u8,
    target: *mut u8,
    bytes: usize,
) -> How {
    let mut done = 0;
    if let Some(fd) = ready {
        // SAFETY: both ranges are the caller's, and nobody uses them meanwhile.
        done = unsafe { fd.transfer(source, target, bytes) };
        if done == bytes {
            return How::Remapped;
        }
    }
    // SAFETY: as above; the ranges are different pages.
    unsafe {
        ptr::copy_nonoverlapping(source.add(done), target.add(done), bytes - done);
    }
    How::Copied
}
