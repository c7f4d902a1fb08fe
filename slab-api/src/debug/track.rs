//! Who did it: thread, CPU, time and stack of an allocation or a free.

#![deny(unsafe_code)]

use core::fmt::{self, Write};
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

use page_alloc::os;
use page_alloc::sync::tid;

use super::stack::{self, Stack};

/// A track, in the record of an object. All zero: nothing is known.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Track {
    stack: AtomicU32,
    tid: AtomicU32,
    /// Milliseconds of the monotonic clock, the low 32 bits.
    when: AtomicU32,
    cpu: AtomicU32,
}

impl Track {
    /// Notes the calling thread; `stack` is the caller's.
    pub(super) fn note(&self, stack: u32) {
        self.stack.store(stack, Relaxed);
        self.tid.store(tid(), Relaxed);
        self.when.store(os::now_ms() as u32, Relaxed);
        self.cpu.store(os::current_cpu(), Relaxed);
    }

    /// The track as two words, for the record's seal.
    pub(super) fn words(&self) -> [u64; 2] {
        let pair = |a: &AtomicU32, b: &AtomicU32| {
            u64::from(a.load(Relaxed)) << 32 | u64::from(b.load(Relaxed))
        };
        [pair(&self.stack, &self.tid), pair(&self.when, &self.cpu)]
    }

    /// Forgets what was noted.
    pub(super) fn clear(&self) {
        for word in [&self.stack, &self.tid, &self.when, &self.cpu] {
            word.store(0, Relaxed);
        }
    }

    /// Whether anything was noted.
    pub(super) fn is_known(&self) -> bool {
        self.tid() != 0
    }

    pub(super) fn tid(&self) -> u32 {
        self.tid.load(Relaxed)
    }

    pub(super) fn cpu(&self) -> u32 {
        self.cpu.load(Relaxed)
    }

    /// Milliseconds since then.
    pub(super) fn age(&self) -> u32 {
        (os::now_ms() as u32).wrapping_sub(self.when.load(Relaxed))
    }

    pub(super) fn stack(&self) -> Option<&'static Stack> {
        stack::get(self.stack.load(Relaxed))
    }

    /// The kernel's lines: `INFO: Allocated in f+0x1/0x2 age=3 cpu=0 pid=1`, and the
    /// stack below. `pid` is the thread's id, as in the kernel.
    pub(super) fn print(&self, out: &mut dyn Write, what: &str) -> fmt::Result {
        if !self.is_known() {
            return Ok(());
        }
        write!(out, "INFO: {what} in ")?;
        let frames = self.stack().map_or(&[][..], Stack::frames);
        stack::write_symbol(out, frames.first().copied())?;
        writeln!(
            out,
            " age={} cpu={} pid={}",
            self.age(),
            self.cpu(),
            self.tid()
        )?;
        stack::write_frames(out, frames)
    }
}
