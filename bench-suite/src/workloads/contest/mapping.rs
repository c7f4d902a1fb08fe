//! A mapping of the kernel's own: memory that no allocator under test knows.

use crate::workloads::die;
use std::ops::Deref;
use std::ptr::NonNull;

/// Anonymous memory, unmapped when dropped.
pub struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

impl Mapping {
    /// `len` bytes of `fill`; ends the worker when there is no memory.
    pub fn filled(len: usize, fill: u8) -> Self {
        // SAFETY: a fresh anonymous mapping, no address asked for.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        let start = NonNull::new(start.cast::<u8>()).filter(|_| start != libc::MAP_FAILED);
        let Some(start) = start else {
            die(&format!("mmap: {}", std::io::Error::last_os_error()));
        };
        // SAFETY: the mapping has `len` writable bytes.
        unsafe { start.write_bytes(fill, len) };
        Self { start, len }
    }
}

impl Deref for Mapping {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: the mapping is readable, all of it is written, and it lives as long as this value.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own and ends here.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holds_what_was_filled_in() {
        let mapping = Mapping::filled(10_000, 5);
        assert!(mapping.len() == 10_000 && mapping.iter().all(|byte| *byte == 5));
    }
}
