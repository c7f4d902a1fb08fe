//! The OS edge: everything this workspace asks of the kernel for memory, in one
//! file.
//!
//! Calls go through `syscall(2)` and not through libc's wrappers, because a
//! program may define `mmap` or `read` itself and allocate in it; and they leave
//! `errno` as they found it, because `free` must. Whatever can fail in a sandbox
//! (advice, `mremap`) has a fall-back in its caller, and each refusal is counted
//! in [`refusals`]. Tests plant refusals with [`inject`].

use core::ptr;
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use libc::{c_int, c_long};

/// Kinds of request that can be refused, for counting and for fault injection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Call {
    /// Reserving address space.
    Reserve = 0,
    /// Making reserved pages usable.
    Commit = 1,
    /// Giving page contents back, or advice on huge pages.
    Advise = 2,
    /// Moving pages from one address to another.
    Remap = 3,
    /// Making every thread of the process pass a fence.
    Membarrier = 4,
    /// Moving pages by userfaultfd.
    Userfault = 5,
}

const CALLS: usize = 6;
static REFUSED: [AtomicU64; CALLS] = [const { AtomicU64::new(0) }; CALLS];
static INJECT: AtomicU32 = AtomicU32::new(0);
static ADVISED: AtomicU64 = AtomicU64::new(0);

/// How often the kernel (or a planted fault) refused a request of this kind.
pub fn refusals(call: Call) -> u64 {
    REFUSED[call as usize].load(Ordering::Relaxed)
}

/// How many `madvise` calls were made.
pub fn advise_calls() -> u64 {
    ADVISED.load(Ordering::Relaxed)
}

/// Makes requests of this kind fail until switched off: fault injection for
/// tests. Costs one relaxed load a system call.
pub fn inject(call: Call, on: bool) {
    let bit = 1 << call as u32;
    if on {
        INJECT.fetch_or(bit, Ordering::Relaxed);
    } else {
        INJECT.fetch_and(!bit, Ordering::Relaxed);
    }
}

/// Makes the `nth` request of this kind from now on fail, once; 0 takes the order
/// back. For tests, as [`inject`].
pub fn inject_nth(call: Call, nth: u32) {
    COUNTDOWN[call as usize].store(nth, Ordering::Relaxed);
}

static COUNTDOWN: [AtomicU32; CALLS] = [const { AtomicU32::new(0) }; CALLS];

fn planted(call: Call) -> bool {
    let countdown = &COUNTDOWN[call as usize];
    let nth = countdown.load(Ordering::Relaxed);
    if nth != 0 {
        // A lost race postpones the fault by a call.
        let left = countdown.compare_exchange(nth, nth - 1, Ordering::Relaxed, Ordering::Relaxed);
        if left == Ok(1) {
            return true;
        }
    }
    INJECT.load(Ordering::Relaxed) & (1 << call as u32) != 0
}

fn refuse(call: Call) {
    REFUSED[call as usize].fetch_add(1, Ordering::Relaxed);
}

/// A system call that leaves `errno` alone; negative results are `-1`.
fn sys(number: c_long, args: [usize; 6]) -> isize {
    // SAFETY: errno's address is valid for the calling thread; the callers below
    // pass arguments that only touch memory this allocator owns.
    unsafe {
        let errno = libc::__errno_location();
        let saved = *errno;
        let [a, b, c, d, e, f] = args;
        let result = libc::syscall(number, a, b, c, d, e, f) as isize;
        *errno = saved;
        result
    }
}

/// The kernel's page size in bytes, read once at run time (4 KiB on x86-64, up
/// to 64 KiB elsewhere). Protection and advice work in this unit.
pub fn page_size() -> usize {
    static SIZE: AtomicUsize = AtomicUsize::new(0);
    match SIZE.load(Ordering::Relaxed) {
        0 => {
            // SAFETY: getauxval has no preconditions and reads no files.
            let size = unsafe { libc::getauxval(libc::AT_PAGESZ) } as usize;
            let size = if size.is_power_of_two() { size } else { 4096 };
            SIZE.store(size, Ordering::Relaxed);
            size
        }
        size => size,
    }
}

/// Reserves address space that cannot be touched yet; null when refused.
///
/// The mapping is inaccessible, so it is not charged against overcommit or
/// RLIMIT_DATA, and `mlockall` does not populate it. (memmap2 has no inaccessible
/// mappings; what it can map, the metadata pool takes from it.)
pub fn reserve(bytes: usize) -> *mut u8 {
    if planted(Call::Reserve) {
        refuse(Call::Reserve);
        return ptr::null_mut();
    }
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let at = sys(
        libc::SYS_mmap,
        [
            0,
            bytes,
            libc::PROT_NONE as usize,
            flags as usize,
            usize::MAX,
            0,
        ],
    );
    if at == -1 {
        refuse(Call::Reserve);
        return ptr::null_mut();
    }
    at as *mut u8
}

/// Gives address space back to the kernel.
///
/// # Safety
/// The range must be part of a mapping of [`reserve`] that nothing refers to.
pub unsafe fn unreserve(at: *mut u8, bytes: usize) {
    if bytes > 0 {
        sys(libc::SYS_munmap, [at as usize, bytes, 0, 0, 0, 0]);
    }
}

/// Makes reserved pages readable and writable. They read as zero.
///
/// # Safety
/// The range must lie within a mapping of [`reserve`], in whole kernel pages.
#[must_use]
pub unsafe fn commit(at: *mut u8, bytes: usize) -> bool {
    let prot = (libc::PROT_READ | libc::PROT_WRITE) as usize;
    if planted(Call::Commit) || sys(libc::SYS_mprotect, [at as usize, bytes, prot, 0, 0, 0]) != 0 {
        refuse(Call::Commit);
        return false;
    }
    true
}

/// Makes pages inaccessible: a guard.
///
/// # Safety
/// As [`commit`]; nothing may access the range afterwards.
#[must_use]
pub unsafe fn protect_none(at: *mut u8, bytes: usize) -> bool {
    sys(
        libc::SYS_mprotect,
        [at as usize, bytes, libc::PROT_NONE as usize, 0, 0, 0],
    ) == 0
}

/// Makes pages readable only: what is written once and must not change. False when
/// refused; the pages are then as they were.
///
/// # Safety
/// As [`commit`]; nothing may write to the range afterwards.
pub unsafe fn seal(at: *mut u8, bytes: usize) -> bool {
    let prot = libc::PROT_READ as usize;
    sys(libc::SYS_mprotect, [at as usize, bytes, prot, 0, 0, 0]) == 0
}

/// Fills `buf` with the kernel's random bytes. False when it gives none (an early boot,
/// a sandbox): the caller needs another source.
#[must_use]
pub fn random(buf: &mut [u8]) -> bool {
    let at = buf.as_mut_ptr() as usize;
    let flags = libc::GRND_NONBLOCK as usize;
    sys(libc::SYS_getrandom, [at, buf.len(), flags, 0, 0, 0]) == buf.len() as isize
}

/// The 16 random bytes that the kernel gave the program at its start; `None` without.
pub fn start_random() -> Option<[u8; 16]> {
    // SAFETY: getauxval has no preconditions; AT_RANDOM points at 16 bytes that stay.
    unsafe {
        let at = libc::getauxval(libc::AT_RANDOM) as *const [u8; 16];
        (!at.is_null()).then(|| at.read())
    }
}

fn advise(at: *mut u8, bytes: usize, advice: c_int) -> bool {
    ADVISED.fetch_add(1, Ordering::Relaxed);
    if planted(Call::Advise)
        || sys(
            libc::SYS_madvise,
            [at as usize, bytes, advice as usize, 0, 0, 0],
        ) != 0
    {
        refuse(Call::Advise);
        return false;
    }
    true
}

/// Gives the contents of pages back; they read as zero afterwards. False when
/// refused (locked memory, sandbox): the contents are then unchanged.
///
/// # Safety
/// The range must be committed, in whole kernel pages, and hold nothing.
#[must_use]
pub unsafe fn discard(at: *mut u8, bytes: usize) -> bool {
    advise(at, bytes, libc::MADV_DONTNEED)
}

/// Asks for huge pages on a range (`true`) or forbids them. A refusal costs
/// speed only.
///
/// # Safety
/// The range must be committed, in whole kernel pages.
pub unsafe fn huge(at: *mut u8, bytes: usize, on: bool) -> bool {
    advise(
        at,
        bytes,
        if on {
            libc::MADV_HUGEPAGE
        } else {
            libc::MADV_NOHUGEPAGE
        },
    )
}

/// Moves the pages behind `from` to `to` without copying; `from` stays mapped
/// and reads as zero. False when the kernel cannot: the caller copies.
///
/// # Safety
/// Both ranges must be committed whole kernel pages owned by the caller; what
/// `to` held is lost.
#[must_use]
pub unsafe fn move_pages(from: *mut u8, to: *mut u8, bytes: usize) -> bool {
    let flags = (libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP) as usize;
    if planted(Call::Remap)
        || sys(
            libc::SYS_mremap,
            [from as usize, bytes, bytes, flags, to as usize, 0],
        ) == -1
    {
        refuse(Call::Remap);
        return false;
    }
    true
}

/// Milliseconds of the coarse monotonic clock: cheap enough for slow paths
/// (about 5 ns by the vDSO), good to 4 ms.
pub fn now_ms() -> u64 {
    let mut t = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `t` is a valid timespec; the clock exists on every Linux.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC_COARSE, &raw mut t) };
    t.tv_sec as u64 * 1000 + t.tv_nsec as u64 / 1_000_000
}

/// Sleeps while the word holds `expected`, for at most the milliseconds given. May
/// return early.
pub fn futex_wait(word: &AtomicU32, expected: u32, at_most_ms: Option<u64>) {
    let op = (libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG) as usize;
    let time = at_most_ms.map(|ms| libc::timespec {
        tv_sec: (ms / 1000) as libc::time_t,
        tv_nsec: (ms % 1000 * 1_000_000) as c_long,
    });
    let time = time.as_ref().map_or(ptr::null(), ptr::from_ref) as usize;
    sys(
        libc::SYS_futex,
        [word.as_ptr() as usize, op, expected as usize, time, 0, 0],
    );
}

/// Wakes up to `count` sleepers of [`futex_wait`].
pub fn futex_wake(word: &AtomicU32, count: u32) {
    let op = (libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG) as usize;
    sys(
        libc::SYS_futex,
        [word.as_ptr() as usize, op, count as usize, 0, 0, 0],
    );
}

/// No signal handler runs on the calling thread while this lives.
#[derive(Debug)]
pub struct SignalsBlocked {
    before: u64,
}

impl SignalsBlocked {
    /// Blocks every signal that can be blocked.
    #[allow(clippy::new_without_default)]
    pub fn new() -> Self {
        let all = u64::MAX;
        let mut before = 0u64;
        Self::set_mask(&all, &mut before);
        Self { before }
    }

    fn set_mask(mask: &u64, before: *mut u64) {
        sys(
            libc::SYS_rt_sigprocmask,
            [
                libc::SIG_SETMASK as usize,
                ptr::from_ref(mask) as usize,
                before as usize,
                size_of::<u64>(),
                0,
                0,
            ],
        );
    }
}

impl Drop for SignalsBlocked {
    fn drop(&mut self) {
        Self::set_mask(&self.before, ptr::null_mut());
    }
}

/// The kernel's id of the calling thread.
pub fn gettid() -> u32 {
    sys(libc::SYS_gettid, [0; 6]) as u32
}

/// Makes every thread of the process pass a full fence. False when the kernel cannot
/// (before 4.14, or in a sandbox).
pub fn membarrier() -> bool {
    const PRIVATE_EXPEDITED: usize = 1 << 3;
    const REGISTER: usize = 1 << 4;
    let call = |command| sys(libc::SYS_membarrier, [command, 0, 0, 0, 0, 0]) == 0;
    // The first call in a process is refused until the process has registered.
    let done = !planted(Call::Membarrier)
        && (call(PRIVATE_EXPEDITED) || (call(REGISTER) && call(PRIVATE_EXPEDITED)));
    if !done {
        refuse(Call::Membarrier);
    }
    done
}

/// Gives pages memory before they are used, as far as the kernel will (Linux 5.14).
///
/// # Safety
/// The range must be whole committed pages of this allocator.
pub(crate) unsafe fn populate(at: *mut u8, bytes: usize) {
    // Refused by older kernels: the copy then takes the faults.
    let _ = advise(at, bytes, libc::MADV_POPULATE_WRITE);
}

/// Makes every restartable sequence that runs on `cpu` in this process begin again, and
/// its thread pass a full fence. False when the kernel cannot (before 5.10, or in a
/// sandbox).
pub fn restart_sections(cpu: u32) -> bool {
    const PRIVATE_EXPEDITED_RSEQ: usize = 1 << 7;
    const REGISTER: usize = 1 << 8;
    const FLAG_CPU: usize = 1;
    let call = |command, flags, cpu| sys(libc::SYS_membarrier, [command, flags, cpu, 0, 0, 0]) == 0;
    let restart = || call(PRIVATE_EXPEDITED_RSEQ, FLAG_CPU, cpu as usize);
    // The first call in a process is refused until the process has registered.
    let done = !planted(Call::Membarrier) && (restart() || (call(REGISTER, 0, 0) && restart()));
    if !done {
        refuse(Call::Membarrier);
    }
    done
}

/// A userfaultfd, for moving pages: see [`crate::remap`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Userfault(pub(crate) i32);

/// The kernel's `struct uffdio_api`.
#[repr(C)]
struct UffdApi {
    api: u64,
    features: u64,
    ioctls: u64,
}

/// The kernel's `struct uffdio_register`.
#[repr(C)]
struct UffdRegister {
    start: u64,
    len: u64,
    mode: u64,
    ioctls: u64,
}

/// The kernel's `struct uffdio_move`.
#[repr(C)]
struct UffdMove {
    dst: u64,
    src: u64,
    len: u64,
    mode: u64,
    moved: i64,
}

impl Userfault {
    const FEATURE_MOVE: u64 = 1 << 16;
    const MODE_WP: u64 = 2;
    /// `_IOWR(0xaa, number, size)`.
    const fn request(number: usize, size: usize) -> usize {
        3 << 30 | size << 16 | 0xaa << 8 | number
    }

    /// Opens one that can move pages; `None` when the kernel has none, or a sandbox
    /// denies it.
    pub(crate) fn open() -> Option<Self> {
        const USER_MODE_ONLY: usize = 1;
        let flags = libc::O_CLOEXEC as usize | libc::O_NONBLOCK as usize | USER_MODE_ONLY;
        let fd = if planted(Call::Userfault) {
            -1
        } else {
            sys(libc::SYS_userfaultfd, [flags, 0, 0, 0, 0, 0])
        };
        if fd < 0 {
            refuse(Call::Userfault);
            return None;
        }
        let fd = Self(fd as i32);
        let mut api = UffdApi {
            api: 0xaa,
            features: Self::FEATURE_MOVE,
            ioctls: 0,
        };
        if !fd.ioctl(0x3f, &mut api) {
            close(fd.0);
            return None;
        }
        Some(fd)
    }

    fn ioctl<T>(self, number: usize, arg: &mut T) -> bool {
        let request = Self::request(number, size_of::<T>());
        let at = core::ptr::from_mut(arg) as usize;
        let done = sys(libc::SYS_ioctl, [self.0 as usize, request, at, 0, 0, 0]) == 0;
        if !done {
            refuse(Call::Userfault);
        }
        done
    }

    /// Registers a range for write-protection faults, of which there are none unless
    /// somebody write-protects pages by this descriptor: others may use it meanwhile.
    ///
    /// # Safety
    /// Whole pages of one mapping of the caller's or several.
    pub(crate) unsafe fn register(self, at: *mut u8, bytes: usize) -> bool {
        self.ioctl(
            0x00,
            &mut UffdRegister {
                start: at as u64,
                len: bytes as u64,
                mode: Self::MODE_WP,
                ioctls: 0,
            },
        )
    }

    /// Moves pages into a registered, empty range; returns the bytes moved from its
    /// start. Holes move as holes.
    ///
    /// # Safety
    /// Nobody uses either range meanwhile; both are the caller's.
    pub(crate) unsafe fn transfer(self, from: *mut u8, to: *mut u8, bytes: usize) -> usize {
        const ALLOW_SRC_HOLES: u64 = 2;
        let mut arg = UffdMove {
            dst: to as u64,
            src: from as u64,
            len: bytes as u64,
            mode: ALLOW_SRC_HOLES,
            moved: 0,
        };
        if self.ioctl(0x05, &mut arg) {
            return bytes;
        }
        arg.moved.max(0) as usize
    }
}

/// Lets another thread run.
pub fn yield_cpu() {
    sys(libc::SYS_sched_yield, [0; 6]);
}

/// Nanoseconds of the monotonic clock: about 20 ns by the vDSO.
pub fn now_ns() -> u64 {
    let mut t = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `t` is a valid timespec; the clock exists on every Linux.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut t) };
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

/// The CPU that the calling thread runs on at this moment.
pub fn current_cpu() -> u32 {
    // SAFETY: sched_getcpu has no preconditions; it is answered by the vDSO.
    let cpu = unsafe { libc::sched_getcpu() };
    cpu.max(0) as u32
}

/// Writes bytes to a file descriptor, retrying short writes; errors are dropped,
/// as nothing can be done about them inside an allocator.
pub fn write(fd: i32, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        let n = sys(
            libc::SYS_write,
            [fd as usize, bytes.as_ptr() as usize, bytes.len(), 0, 0, 0],
        );
        if n <= 0 {
            return;
        }
        bytes = &bytes[n as usize..];
    }
}

/// Reads the start of a file into `buf` and returns the bytes read; 0 when it
/// cannot be read. Allocates nothing and calls no libc wrapper that a program
/// could have replaced.
pub fn read_file(path: &core::ffi::CStr, buf: &mut [u8]) -> usize {
    let flags = (libc::O_RDONLY | libc::O_CLOEXEC) as usize;
    let at = libc::AT_FDCWD as isize as usize;
    let fd = sys(
        libc::SYS_openat,
        [at, path.as_ptr() as usize, flags, 0, 0, 0],
    );
    if fd < 0 {
        return 0;
    }
    let n = sys(
        libc::SYS_read,
        [fd as usize, buf.as_mut_ptr() as usize, buf.len(), 0, 0, 0],
    );
    sys(libc::SYS_close, [fd as usize, 0, 0, 0, 0, 0]);
    n.max(0) as usize
}

/// Opens (creating, truncating) a file for writing; `None` when refused.
pub fn create_file(path: &core::ffi::CStr) -> Option<i32> {
    let flags = (libc::O_WRONLY | libc::O_CREAT | libc::O_TRUNC | libc::O_CLOEXEC) as usize;
    let at = libc::AT_FDCWD as isize as usize;
    let fd = sys(
        libc::SYS_openat,
        [at, path.as_ptr() as usize, flags, 0o644, 0, 0],
    );
    (fd >= 0).then_some(fd as i32)
}

/// Closes a file descriptor.
pub fn close(fd: i32) {
    sys(libc::SYS_close, [fd as usize, 0, 0, 0, 0, 0]);
}
