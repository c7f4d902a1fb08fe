//! The process's secret: drawn once, kept between guards in a page that is read-only.
//!
//! ```text
//!   none | secret (read-only) | none
//! ```

use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use page_alloc::os;

/// What canaries and random choices derive from.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Secret {
    /// The canaries' key.
    pub(crate) canary: [u64; 2],
    /// The random numbers' key.
    pub(crate) cipher: [u32; 8],
}

static SECRET: AtomicPtr<Secret> = AtomicPtr::new(ptr::null_mut());
/// What tells a forked process's random numbers from its parent's.
static GENERATION: AtomicU32 = AtomicU32::new(0);

/// The secret, drawn by the first call; `None` without memory for it.
#[inline]
pub(crate) fn get() -> Option<&'static Secret> {
    // Acquire: pairs with the exchange in `draw`.
    // SAFETY: once set, the pointer leads to a page that stays and never changes.
    match unsafe { SECRET.load(Ordering::Acquire).as_ref() } {
        Some(secret) => Some(secret),
        None => draw(),
    }
}

#[cold]
fn draw() -> Option<&'static Secret> {
    let page = os::page_size();
    let base = os::reserve(3 * page);
    if base.is_null() {
        return None;
    }
    let at = base.wrapping_add(page).cast::<Secret>();
    // SAFETY: the middle page of the reservation is ours until it is published, and
    // aligned; afterwards it is only read.
    unsafe {
        if !os::commit(at.cast(), page) {
            os::unreserve(base, 3 * page);
            return None;
        }
        at.write(random(base));
        // A kernel that refuses leaves a page that can be written to: still correct.
        os::seal(at.cast(), page);
        // Release: publishes the page.
        match SECRET.compare_exchange(ptr::null_mut(), at, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => at.as_ref(),
            Err(first) => {
                os::unreserve(base, 3 * page);
                first.as_ref()
            }
        }
    }
}

fn random(somewhere: *const u8) -> Secret {
    let mut bytes = [0u8; 48];
    if !os::random(&mut bytes) {
        // A sandbox denies it: what the kernel gave at the start, stretched by the
        // cipher, with an address that differs in each process.
        let start = os::start_random().unwrap_or_default();
        let mut key = [0; 32];
        key[..16].copy_from_slice(&start);
        key[16..].copy_from_slice(&start);
        for (byte, more) in key.iter_mut().zip((somewhere as usize).to_le_bytes()) {
            *byte ^= more;
        }
        let block = super::random::block(&words(&key), [1, 0, os::gettid(), 0]);
        for (to, from) in bytes.chunks_exact_mut(4).zip(block) {
            to.copy_from_slice(&from.to_le_bytes());
        }
    }
    let mut cipher = [0; 32];
    cipher.copy_from_slice(&bytes[..32]);
    let half = |at: usize| {
        bytes[at..at + 8]
            .iter()
            .fold(0, |n, b| n << 8 | u64::from(*b))
    };
    Secret {
        canary: [half(32), half(40)],
        cipher: words(&cipher),
    }
}

fn words(bytes: &[u8; 32]) -> [u32; 8] {
    let mut words = [0; 8];
    for (word, four) in words.iter_mut().zip(bytes.chunks_exact(4)) {
        *word = four.iter().fold(0, |n, b| n << 8 | u32::from(*b));
    }
    words
}

/// Which process of a family of forked ones this is, for the random numbers.
pub(crate) fn generation() -> u32 {
    GENERATION.load(Ordering::Relaxed)
}

/// In the child of a fork: its random numbers part from its parent's.
pub(crate) fn forked() {
    GENERATION.store(os::gettid(), Ordering::Relaxed);
}
