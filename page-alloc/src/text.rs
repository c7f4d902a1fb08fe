//! Text to a file descriptor without allocation: a stack buffer and write(2).

#![deny(unsafe_code)]

use core::fmt;

use crate::os;

/// A buffered writer to a file descriptor. Flushes when full and when dropped.
#[derive(Debug)]
pub struct FdWriter {
    fd: i32,
    len: usize,
    buf: [u8; 512],
}

impl FdWriter {
    /// A writer to `fd`; 2 is standard error.
    pub const fn new(fd: i32) -> Self {
        Self {
            fd,
            len: 0,
            buf: [0; 512],
        }
    }

    /// Writes what is buffered.
    pub fn flush(&mut self) {
        os::write(self.fd, &self.buf[..self.len]);
        self.len = 0;
    }
}

impl fmt::Write for FdWriter {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let mut bytes = text.as_bytes();
        while !bytes.is_empty() {
            if self.len == self.buf.len() {
                self.flush();
            }
            let n = bytes.len().min(self.buf.len() - self.len);
            self.buf[self.len..self.len + n].copy_from_slice(&bytes[..n]);
            self.len += n;
            bytes = &bytes[n..];
        }
        Ok(())
    }
}

impl Drop for FdWriter {
    fn drop(&mut self) {
        self.flush();
    }
}
