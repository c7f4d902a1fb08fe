//! The time stamp counter, read so that what lies between two readings lies between them in time.

/// Cycles of the time stamp counter; nanoseconds where there is none.
#[inline]
pub fn ticks() -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: both instructions exist on every x86-64 processor.
    unsafe {
        use std::arch::x86_64::{_mm_lfence, _rdtsc};
        // Earlier instructions are done before, later ones start after.
        _mm_lfence();
        let now = _rdtsc();
        _mm_lfence();
        now
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        use std::sync::OnceLock;
        use std::time::Instant;
        static START: OnceLock<Instant> = OnceLock::new();
        START.get_or_init(Instant::now).elapsed().as_nanos() as u64
    }
}
