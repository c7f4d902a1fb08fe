//! Cache misses of the calling thread, counted by the processor through `perf_event_open` where the machine allows it.
//! Virtual machines often have no such counter, and `kernel.perf_event_paranoid` may forbid it.

use std::fs::File;
use std::io::Read;
use std::os::fd::FromRawFd;

/// The head of the kernel's `perf_event_attr`, in its first published size; all later fields are 0.
#[repr(C)]
#[derive(Default)]
struct Attributes {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup_events: u32,
    bp_type: u32,
    config1: u64,
}

// PERF_ATTR_SIZE_VER0: what the kernel checks the size field against.
const _: () = assert!(size_of::<Attributes>() == 64);

/// PERF_TYPE_HW_CACHE.
const HW_CACHE: u32 = 3;
/// Level-1 data cache, reads, misses.
const L1D_READ_MISS: u64 = 1 << 16;
/// exclude_kernel and exclude_hv: what an ordinary user may count.
const USER_ONLY: u64 = 1 << 5 | 1 << 6;

/// PERF_FLAG_FD_CLOEXEC.
const FD_CLOEXEC: libc::c_ulong = 1 << 3;

/// A counter that runs from its opening on.
pub struct Misses(File);

impl Misses {
    /// Starts to count level-1 read misses of this thread; the error says why it cannot.
    pub fn open() -> Result<Self, String> {
        let attributes = Attributes {
            kind: HW_CACHE,
            size: size_of::<Attributes>() as u32,
            config: L1D_READ_MISS,
            flags: USER_ONLY,
            ..Attributes::default()
        };
        // SAFETY: the structure has the size that it names; this thread, any CPU, no group, no flags.
        let fd = unsafe {
            libc::syscall(
                libc::SYS_perf_event_open,
                &raw const attributes,
                0,
                -1,
                -1,
                FD_CLOEXEC,
            )
        };
        let fd = i32::try_from(fd).unwrap_or(-1);
        if fd < 0 {
            return Err(format!(
                "no cache misses: perf_event_open: {}",
                std::io::Error::last_os_error()
            ));
        }
        // SAFETY: the kernel has just opened the descriptor for us alone.
        let mut counter = Self(unsafe { File::from_raw_fd(fd) });
        // Some virtual machines open a counter that never counts.
        let words = vec![1u64; 1 << 18];
        let sum: u64 = words.iter().step_by(8).sum();
        std::hint::black_box(sum);
        match counter.count() {
            Some(0) | None => Err("no cache misses: the counter stands still".to_owned()),
            Some(_) => Ok(counter),
        }
    }

    /// Misses so far; `None` when it cannot be read.
    pub fn count(&mut self) -> Option<u64> {
        let mut word = [0; 8];
        self.0.read_exact(&mut word).ok()?;
        Some(u64::from_ne_bytes(word))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_or_says_why_not() {
        match Misses::open() {
            Ok(mut misses) => {
                let before = misses.count().unwrap();
                std::hint::black_box(
                    vec![3u8; 1 << 22]
                        .iter()
                        .step_by(64)
                        .map(|b| u64::from(*b))
                        .sum::<u64>(),
                );
                assert!(misses.count().unwrap() > before);
            }
            Err(error) => assert!(error.starts_with("no cache misses: "), "{error}"),
        }
    }
}
