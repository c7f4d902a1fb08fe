//! Stacks: taken by the table unwinder, kept once each, printed with symbols.
//!
//! ```text
//!   HEADS: [ h0 | h1 | ... ]  by hash          a track holds the name of a stack: 32 bits
//!            └▶ stack ─▶ stack ─▶ 0            (its place in the metadata pool)
//! ```
//! The unwinder is libgcc's `_Unwind_Backtrace`, which this library needs anyway.
//! Distributions build without frame pointers, so a walk along them ends at the first
//! library; a table unwinder of our own would repeat what libgcc gets from the loader:
//! with glibc 2.35 and later it finds tables by `_dl_find_object`, without a lock and
//! without memory. Where a program registers tables of its own (some JITs), libgcc
//! sorts them on the heap: a thread that is unwinding already takes no second stack.
//!
//! Stacks live for ever, and so do the counts in them that the leak report needs.

#![allow(unsafe_code)]

use core::ffi::{CStr, c_char, c_int, c_void};
use core::fmt::{self, Write};
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use page_alloc::meta;
use page_alloc::sync::tid;

use super::track::Track;

/// Frames that are kept of a stack.
const DEPTH: usize = 24;
const HEADS: usize = 4096;
/// Stacks that are kept: 32 MiB of them.
const MOST: u32 = 1 << 17;

static TABLE: [AtomicU32; HEADS] = [const { AtomicU32::new(0) }; HEADS];
static KEPT: AtomicU32 = AtomicU32::new(0);

/// A stack, innermost frame first, and what a leak report counts of it.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Stack {
    next: AtomicU32,
    hash: u32,
    len: u32,
    pid_min: AtomicU32,
    pub(super) count: AtomicU64,
    bytes: AtomicU64,
    age_sum: AtomicU64,
    age_min: AtomicU32,
    age_max: AtomicU32,
    cpus: AtomicU64,
    pid_max: AtomicU32,
    frames: [usize; DEPTH],
}

const BYTES: usize = size_of::<Stack>();
// A power of two, so that the pool wastes nothing.
const _: () = assert!(BYTES == 256);

impl Stack {
    const fn new(next: u32, hash: u32, len: u32, frames: [usize; DEPTH]) -> Stack {
        Stack {
            next: AtomicU32::new(next),
            hash,
            len,
            pid_min: AtomicU32::new(0),
            count: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            age_sum: AtomicU64::new(0),
            age_min: AtomicU32::new(0),
            age_max: AtomicU32::new(0),
            cpus: AtomicU64::new(0),
            pid_max: AtomicU32::new(0),
            frames,
        }
    }

    /// Stands for stacks that could not be had.
    pub(super) const fn unknown() -> Stack {
        Stack::new(0, 0, 0, [0; DEPTH])
    }

    pub(super) fn frames(&self) -> &[usize] {
        &self.frames[..(self.len as usize).min(DEPTH)]
    }
}

impl Stack {
    /// Nothing is counted.
    pub(super) fn reset(&self) {
        for word in [&self.count, &self.bytes, &self.age_sum, &self.cpus] {
            word.store(0, Ordering::Relaxed);
        }
    }

    /// Counts an object that was allocated from here.
    pub(super) fn count(&self, track: &Track, size: usize) {
        let (age, pid) = (track.age(), track.tid());
        let extend = |min: &AtomicU32, max: &AtomicU32, value: u32, first: bool| {
            if first || value < min.load(Ordering::Relaxed) {
                min.store(value, Ordering::Relaxed);
            }
            if first || value > max.load(Ordering::Relaxed) {
                max.store(value, Ordering::Relaxed);
            }
        };
        let first = self.count.fetch_add(1, Ordering::Relaxed) == 0;
        extend(&self.age_min, &self.age_max, age, first);
        extend(&self.pid_min, &self.pid_max, pid, first);
        self.bytes.fetch_add(size as u64, Ordering::Relaxed);
        self.age_sum.fetch_add(u64::from(age), Ordering::Relaxed);
        self.cpus
            .fetch_or(1 << track.cpu().min(63), Ordering::Relaxed);
    }

    /// Writes what was counted, and the stack.
    pub(super) fn write_count(&self, out: &mut dyn Write) -> fmt::Result {
        let count = self.count.load(Ordering::Relaxed);
        write!(out, "{count:7} ")?;
        write_symbol(out, self.frames().first().copied())?;
        let (min, max) = (
            self.age_min.load(Ordering::Relaxed),
            self.age_max.load(Ordering::Relaxed),
        );
        let average = self.age_sum.load(Ordering::Relaxed) / count.max(1);
        write!(out, " age={min}/{average}/{max}")?;
        let (min, max) = (
            self.pid_min.load(Ordering::Relaxed),
            self.pid_max.load(Ordering::Relaxed),
        );
        write!(out, " pid={min}")?;
        if max > min {
            write!(out, "-{max}")?;
        }
        out.write_str(" cpus=")?;
        write_set(out, self.cpus.load(Ordering::Relaxed))?;
        writeln!(out, " bytes={}", self.bytes.load(Ordering::Relaxed))?;
        write_frames(out, self.frames())
    }
}

/// The numbers of the bits that are set, as the kernel writes sets: `0-2,5`.
fn write_set(out: &mut dyn Write, set: u64) -> fmt::Result {
    let has = |bit: u32| bit < 64 && set >> bit & 1 != 0;
    let mut comma = "";
    for bit in (0..64).filter(|bit| has(*bit) && (*bit == 0 || !has(*bit - 1))) {
        let mut last = bit;
        while has(last + 1) {
            last += 1;
        }
        write!(out, "{comma}{bit}")?;
        if last > bit {
            write!(out, "-{last}")?;
        }
        comma = ",";
    }
    Ok(())
}

/// The stack of that name.
pub(super) fn get(name: u32) -> Option<&'static Stack> {
    if name == 0 {
        return None;
    }
    // SAFETY: names other than 0 come from `keep`, through sealed records; stacks are
    // complete before they have a name and never go.
    Some(unsafe { &*meta::at(name).cast::<Stack>() })
}

/// Calls `f` with every stack.
pub(super) fn for_each(mut f: impl FnMut(&'static Stack)) {
    for head in &TABLE {
        let mut at = get(head.load(Ordering::Acquire));
        while let Some(stack) = at {
            f(stack);
            at = get(stack.next.load(Ordering::Relaxed));
        }
    }
}

/// The stack pointer here: frames below it are the allocator's own.
#[inline(always)]
pub(super) fn here() -> usize {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        let sp: usize;
        // SAFETY: reads a register.
        unsafe {
            core::arch::asm!("mov {}, rsp", out(reg) sp, options(nomem, nostack, preserves_flags));
        }
        sp
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    0
}

#[repr(C)]
struct Context {
    _opaque: [u8; 0],
}

unsafe extern "C" {
    fn _Unwind_Backtrace(
        f: extern "C" fn(*mut Context, *mut c_void) -> c_int,
        data: *mut c_void,
    ) -> c_int;
    fn _Unwind_GetIP(context: *mut Context) -> usize;
    fn _Unwind_GetCFA(context: *mut Context) -> usize;
}

struct Walk {
    above: usize,
    len: usize,
    frames: [usize; DEPTH],
}

extern "C" fn frame(context: *mut Context, data: *mut c_void) -> c_int {
    const GO_ON: c_int = 0;
    const STOP: c_int = 4;
    // SAFETY: `data` is the Walk that `capture` passed, `context` the unwinder's.
    unsafe {
        let walk = &mut *data.cast::<Walk>();
        let ip = _Unwind_GetIP(context);
        if ip == 0 || walk.len == DEPTH {
            return STOP;
        }
        // The context's CFA is the stack pointer in that frame.
        if _Unwind_GetCFA(context) > walk.above {
            walk.frames[walk.len] = ip;
            walk.len += 1;
        }
    }
    GO_ON
}

/// Threads that are unwinding: few at a time, so a short table will do.
static UNWINDING: [AtomicU32; 32] = [const { AtomicU32::new(0) }; 32];

struct Guard(&'static AtomicU32);

impl Guard {
    /// `None` when this thread unwinds already, or too many do.
    fn enter() -> Option<Guard> {
        let me = tid();
        let mut place = None;
        for cell in &UNWINDING {
            match cell.load(Ordering::Relaxed) {
                0 if place.is_none() => {
                    place = cell
                        .compare_exchange(0, me, Ordering::Relaxed, Ordering::Relaxed)
                        .ok()
                        .map(|_| Guard(cell));
                }
                owner if owner == me => return None,
                _ => {}
            }
        }
        place
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.store(0, Ordering::Relaxed);
    }
}

/// In the child of a fork: the threads that were unwinding are gone.
pub(super) fn after_fork() {
    for cell in &UNWINDING {
        cell.store(0, Ordering::Relaxed);
    }
}

/// Keeps the calling thread's stack above the address `above`; its name, 0 when it
/// cannot be had.
#[cold]
#[inline(never)]
pub(super) fn capture(above: usize) -> u32 {
    let Some(_guard) = Guard::enter() else {
        return 0;
    };
    let mut walk = Walk {
        above,
        len: 0,
        frames: [0; DEPTH],
    };
    // SAFETY: the callback gets the Walk, which outlives the call.
    unsafe { _Unwind_Backtrace(frame, (&raw mut walk).cast()) };
    match walk.len {
        0 => 0,
        len => keep(&walk.frames, len),
    }
}

fn keep(frames: &[usize; DEPTH], len: usize) -> u32 {
    let mut hash = len as u64;
    for frame in &frames[..len] {
        hash = (hash ^ *frame as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        hash ^= hash >> 32;
    }
    let hash = hash as u32;
    let head = &TABLE[hash as usize % HEADS];
    let mut fresh: Option<NonNull<Stack>> = None;
    loop {
        // Acquire: pairs with the release below, for all stacks behind the head.
        let first = head.load(Ordering::Acquire);
        let mut name = first;
        while let Some(stack) = get(name) {
            if stack.hash == hash && stack.frames() == &frames[..len] {
                if let Some(fresh) = fresh {
                    // SAFETY: ours, and nobody knows its name.
                    unsafe { meta::free(fresh.cast(), BYTES) };
                    KEPT.fetch_sub(1, Ordering::Relaxed);
                }
                return name;
            }
            name = stack.next.load(Ordering::Relaxed);
        }
        if fresh.is_none() {
            if KEPT.load(Ordering::Relaxed) >= MOST {
                return 0;
            }
            let Some(memory) = meta::alloc(BYTES) else {
                return 0;
            };
            KEPT.fetch_add(1, Ordering::Relaxed);
            fresh = Some(memory.cast());
        }
        let Some(stack) = fresh else {
            return 0;
        };
        let mut copy = [0; DEPTH];
        copy[..len].copy_from_slice(&frames[..len]);
        // SAFETY: fresh memory of the pool, large and aligned enough, ours alone.
        unsafe {
            stack.write(Stack::new(first, hash, len as u32, copy));
        }
        let name = meta::index_of(stack.as_ptr().cast());
        if head
            .compare_exchange(first, name, Ordering::Release, Ordering::Relaxed)
            .is_ok()
        {
            return name;
        }
    }
}

/// Calls the unwinder once, early, so that what it sets up at its first call is there.
pub(super) fn warm_up() {
    static DONE: AtomicUsize = AtomicUsize::new(0);
    if DONE.swap(1, Ordering::Relaxed) == 0 {
        let _ = capture(usize::MAX);
    }
}

/// Writes a code address as `symbol+0xoffset/0xsize`, else `file+0xoffset`.
pub(super) fn write_symbol(out: &mut dyn Write, address: Option<usize>) -> fmt::Result {
    let Some(address) = address else {
        return out.write_str("<not-available>");
    };
    // A return address may lie behind the last byte of a function that does not return.
    let call = address - 1;
    let mut info = libc::Dl_info {
        dli_fname: core::ptr::null(),
        dli_fbase: core::ptr::null_mut(),
        dli_sname: core::ptr::null(),
        dli_saddr: core::ptr::null_mut(),
    };
    let mut symbol: *const libc::Elf64_Sym = core::ptr::null();
    // SAFETY: both places are valid for writes; 1 (RTLD_DL_SYMENT) asks for the
    // symbol's entry.
    let found = unsafe { look_up(call, &mut info, &mut symbol) };
    if !found {
        return write!(out, "{address:#x}");
    }
    if !info.dli_sname.is_null() {
        // SAFETY: dladdr's strings and entries live while the object is mapped.
        let size = unsafe { symbol.as_ref() }.map_or(0, |symbol| symbol.st_size);
        // SAFETY: as above.
        unsafe { write_c(out, info.dli_sname)? };
        return write!(out, "+{:#x}/{size:#x}", address - info.dli_saddr as usize);
    }
    if info.dli_fname.is_null() {
        return write!(out, "{address:#x}");
    }
    // SAFETY: as above.
    let name = unsafe { CStr::from_ptr(info.dli_fname) }.to_bytes();
    let name = name.rsplit(|b| *b == b'/').next().unwrap_or(name);
    write_bytes(out, name)?;
    write!(out, "+{:#x}", address - info.dli_fbase as usize)
}

#[cfg(target_env = "gnu")]
unsafe fn look_up(
    address: usize,
    info: &mut libc::Dl_info,
    symbol: &mut *const libc::Elf64_Sym,
) -> bool {
    unsafe extern "C" {
        fn dladdr1(
            address: *const c_void,
            info: *mut libc::Dl_info,
            extra: *mut *const libc::Elf64_Sym,
            flags: c_int,
        ) -> c_int;
    }
    const RTLD_DL_SYMENT: c_int = 1;
    // SAFETY: both places are valid for writes.
    unsafe { dladdr1(address as *const c_void, info, symbol, RTLD_DL_SYMENT) != 0 }
}

#[cfg(not(target_env = "gnu"))]
unsafe fn look_up(
    address: usize,
    info: &mut libc::Dl_info,
    _symbol: &mut *const libc::Elf64_Sym,
) -> bool {
    // SAFETY: the place is valid for a write.
    unsafe { libc::dladdr(address as *const c_void, info) != 0 }
}

/// # Safety
/// `text` must be a C string.
unsafe fn write_c(out: &mut dyn Write, text: *const c_char) -> fmt::Result {
    // SAFETY: the caller's promise.
    write_bytes(out, unsafe { CStr::from_ptr(text) }.to_bytes())
}

fn write_bytes(out: &mut dyn Write, bytes: &[u8]) -> fmt::Result {
    bytes
        .utf8_chunks()
        .try_for_each(|chunk| out.write_str(chunk.valid()))
}

/// Writes frames, a line each.
pub(super) fn write_frames(out: &mut dyn Write, frames: &[usize]) -> fmt::Result {
    for frame in frames {
        out.write_char('\t')?;
        write_symbol(out, Some(*frame))?;
        out.write_char('\n')?;
    }
    Ok(())
}
