//! Threads that do the same for a while: a warm-up that is not counted, then a measured window.

use super::{STACK, die, pin, store};
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::thread::Builder;
use std::time::{Duration, Instant};

const WARM: u8 = 0;
const MEASURED: u8 = 1;
const OVER: u8 = 2;

/// One thread's count of what it did in the measured window.
pub struct Meter<'a> {
    phase: &'a AtomicU8,
    counts: &'a AtomicBool,
    /// By this thread's own clock: another may be late to say so.
    began: Option<Instant>,
    elapsed: Duration,
    operations: u64,
}

impl Meter<'_> {
    /// One more operation is done. False when the time is up.
    #[inline]
    pub fn tick(&mut self) -> bool {
        match self.phase.load(Ordering::Relaxed) {
            MEASURED => match self.began {
                Some(_) => {
                    if self.operations == 0 {
                        self.counts.store(true, Ordering::Relaxed);
                    }
                    self.operations += 1;
                }
                None => self.began = Some(Instant::now()),
            },
            OVER => {
                self.elapsed = self.began.map_or(Duration::ZERO, |began| began.elapsed());
                return false;
            }
            _ => {}
        }
        true
    }
}

/// What a crew did.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pace {
    /// Operations in the measured window.
    pub operations: u64,
    /// Operations a second: the sum of the threads' own rates.
    pub rate: f64,
    /// Objects taken, the warm-up's included.
    pub objects: u64,
}

/// The CPU of thread number `index` when the run is bound: the two of `--cpus` in turn.
pub fn cpu_of(cpus: Option<(usize, usize)>, index: usize) -> Option<usize> {
    cpus.map(|(even, odd)| if index.is_multiple_of(2) { even } else { odd })
}

/// How long a first operation may take on a machine that is busy with other things.
const PATIENCE: Duration = Duration::from_secs(20);

/// Runs `body` on so many threads for `length`, after a quarter of that as warm-up. The window is longer where no
/// operation ended in it. A body goes on until its meter's
/// tick says that the time is up.
pub fn run(
    threads: usize,
    length: Duration,
    cpus: Option<(usize, usize)>,
    body: impl Fn(usize, &mut Meter<'_>) + Sync,
) -> Pace {
    let phase = AtomicU8::new(WARM);
    let counts = AtomicBool::new(false);
    let mut pace = Pace::default();
    std::thread::scope(|scope| {
        let members: Vec<_> = (0..threads)
            .map(|index| {
                let (phase, counts, body) = (&phase, &counts, &body);
                let member = Builder::new()
                    .stack_size(STACK)
                    .spawn_scoped(scope, move || {
                        pin(cpu_of(cpus, index));
                        let mut meter = Meter {
                            phase,
                            counts,
                            began: None,
                            elapsed: Duration::ZERO,
                            operations: 0,
                        };
                        body(index, &mut meter);
                        (meter.operations, meter.elapsed, store::taken())
                    });
                // The others would go on without end.
                member.unwrap_or_else(|e| die(&format!("cannot start a thread: {e}")))
            })
            .collect();
        std::thread::sleep(length / 4);
        let began = Instant::now();
        phase.store(MEASURED, Ordering::Relaxed);
        std::thread::sleep(length);
        while !counts.load(Ordering::Relaxed) && began.elapsed() < length + PATIENCE {
            std::thread::sleep(Duration::from_millis(1));
        }
        phase.store(OVER, Ordering::Relaxed);
        for member in members {
            let (operations, elapsed, objects) = member
                .join()
                .unwrap_or_else(|_| die("a thread of the workload panicked"));
            pace.operations += operations;
            if operations > 0 {
                pace.rate += operations as f64 / elapsed.as_secs_f64().max(1e-9);
            }
            pace.objects += objects;
        }
    });
    pace
}

/// CPU time that the calling thread has used.
pub fn thread_cpu() -> Duration {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` is valid for writing, and the clock exists on Linux.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    Duration::new(
        u64::try_from(time.tv_sec).unwrap_or(0),
        u32::try_from(time.tv_nsec).unwrap_or(0),
    )
}

/// What the children that have been waited for used.
#[derive(Clone, Copy, Debug, Default)]
pub struct Usage {
    /// Seconds in user mode.
    pub user: f64,
    /// Seconds in the kernel.
    pub system: f64,
    /// The largest resident set of one of them.
    pub peak_kib: u64,
}

/// What this process's children and theirs used so far.
pub fn children_usage() -> Usage {
    // SAFETY: an all-zero rusage is valid, and the kernel overwrites it.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: `usage` is valid for writing; a refusal leaves it zero.
    unsafe { libc::getrusage(libc::RUSAGE_CHILDREN, &mut usage) };
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    Usage {
        user: seconds(usage.ru_utime),
        system: seconds(usage.ru_stime),
        peak_kib: u64::try_from(usage.ru_maxrss).unwrap_or(0),
    }
}

/// CPUs that this process may use.
pub fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_thread_counts_until_the_time_is_up() {
        let pace = run(3, Duration::from_millis(20), None, |index, meter| {
            assert!(index < 3);
            while meter.tick() {
                std::thread::yield_now();
            }
        });
        assert!(pace.operations > 0 && pace.rate > 0.0);
    }

    #[test]
    fn bound_threads_take_the_two_cpus_in_turn() {
        assert_eq!(cpu_of(None, 1), None);
        assert_eq!(cpu_of(Some((4, 6)), 0), Some(4));
        assert_eq!(cpu_of(Some((4, 6)), 3), Some(6));
    }

    #[test]
    fn work_uses_cpu_time() {
        let before = thread_cpu();
        while thread_cpu() <= before {
            std::hint::spin_loop();
        }
    }
}
