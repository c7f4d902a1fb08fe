//! `core::fmt` into a stdio stream. (Reports to a descriptor go through `page_alloc::text`.)

#![allow(unsafe_code)]

use core::fmt;

/// Text for a stdio stream of the program. stdio may allocate its buffer; no lock of ours is
/// held here.
pub struct Stream {
    stream: *mut libc::FILE,
    failed: bool,
}

impl Stream {
    /// A writer to `stream`.
    ///
    /// # Safety
    /// `stream` is open for as long as the writer lives.
    pub unsafe fn new(stream: *mut libc::FILE) -> Self {
        Stream {
            stream,
            failed: false,
        }
    }

    /// Did any write fail, or was the stream in error before?
    pub fn failed(&self) -> bool {
        // SAFETY: `new`'s caller promised the stream.
        self.failed || unsafe { libc::ferror(self.stream) } != 0
    }
}

impl fmt::Write for Stream {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        // SAFETY: `text` is valid for reads of its length, and `new`'s caller promised the stream.
        let done = unsafe { libc::fwrite(text.as_ptr().cast(), 1, text.len(), self.stream) };
        self.failed |= done != text.len();
        Ok(())
    }
}
