//! Restartable sequences: the few instructions in which a thread works on the queues
//! of the CPU it runs on, without a lock and without an atomic read-modify-write.
//!
//! ```text
//!   arm:      thread's rseq area . rseq_cs = descriptor      fs:[AREA + 8]
//!   section:  slot = TABLE[cpu]         0: none, or stopped -> leave
//!             read top, end; move objects between the queue and the caller
//!   commit:   slot.hot[id].top = new top         the one store that counts
//!   abort:    preempted, migrated or interrupted in between: the kernel goes on
//!             here, which starts again
//! ```
//! What a section writes before its commit lies above the queue's top or is the
//! caller's own, so an aborted one has done nothing. A section that moves no object
//! stores nothing at all: a queue may be made while others look at it ([`crate::cpu`]).
//! A batch is one section, whatever its length.
//!
//! The registration of threads is glibc's (2.35 and newer). Single-stepping through
//! a section in a debugger starts it again for ever; continuing is fine. A child of
//! `vfork` that allocates, which POSIX forbids, has no registration and is not safe.

use core::ptr::NonNull;
use core::sync::atomic::{AtomicIsize, AtomicU32, AtomicU64, Ordering};

use crate::os;
use crate::sync::Word;

/// CPUs that can have slots; those with higher numbers take the locked paths.
pub const MAX_CPUS: usize = 1024;

/// Why a section moved nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Miss {
    /// The queue is empty (for a pop) or full (for a push).
    Queue,
    /// The CPU has no slot, or it is stopped.
    NoSlot,
    /// The CPU's number is beyond those that can have slots, or the thread is not
    /// registered.
    NoCpu,
}

/// Addresses of the CPUs' slots; 0 where there is none, and while one is stopped.
pub(crate) static TABLE: [AtomicU64; MAX_CPUS] = [const { AtomicU64::new(0) }; MAX_CPUS];
/// CPUs from this number on are taken to have no slot.
pub(crate) static CPUS: AtomicU32 = AtomicU32::new(MAX_CPUS as u32);
/// The rseq area's distance from the thread pointer.
static AREA: AtomicIsize = AtomicIsize::new(0);
static ABORTS: AtomicU64 = AtomicU64::new(0);

/// How many sections were begun again.
pub fn aborts() -> u64 {
    ABORTS.load(Ordering::Relaxed)
}

/// Stops a slot: once `restart` has made every section that might have seen it begin
/// again, the slot is the caller's until [`resume`]. The slot's address; `None` when
/// there was none to stop, or the sections could not be restarted.
pub fn stop<W: Word>(entry: &W, restart: impl FnOnce() -> bool) -> Option<u64> {
    // Only what was open is written to: of two that stop, the second changes nothing.
    let mut slot = entry.load(Ordering::Relaxed);
    loop {
        if slot == 0 {
            return None;
        }
        match entry.compare_exchange_weak(slot, 0, Ordering::AcqRel, Ordering::Relaxed) {
            Ok(_) => break,
            Err(now) => slot = now,
        }
    }
    if !restart() {
        resume(entry, slot);
        return None;
    }
    Some(slot)
}

/// Opens a stopped (or fresh) slot. Release: the sections see what was done to it.
pub fn resume<W: Word>(entry: &W, slot: u64) {
    entry.store(slot, Ordering::Release);
}

/// Finds out whether threads of this process can run sections, and learns where their
/// areas are.
///
/// # Errors
/// What is missing, as the end of a sentence.
pub fn prepare() -> Result<(), &'static str> {
    let (offset, size) = asm::registration()?;
    if size == 0 {
        return Err(
            "the C library has not registered restartable sequences (valgrind, \
             glibc.pthread.rseq=0, a sandbox, or Linux before 4.18)",
        );
    }
    AREA.store(offset, Ordering::Relaxed);
    if !os::restart_sections(asm::cpu()) {
        return Err(
            "the kernel's membarrier cannot restart sequences (before Linux 5.10, or a sandbox)",
        );
    }
    Ok(())
}

/// The CPU that the calling thread runs on at this moment. Only after [`prepare`].
pub fn cpu() -> u32 {
    asm::cpu()
}

const NO_SLOT: usize = usize::MAX;
const NO_CPU: usize = usize::MAX - 1;

fn miss(code: usize) -> Option<Miss> {
    match code {
        NO_SLOT => Some(Miss::NoSlot),
        NO_CPU => Some(Miss::NoCpu),
        _ => None,
    }
}

/// Takes the newest object of this CPU's queue.
///
/// # Errors
/// Why there is none.
///
/// # Safety
/// `id` is below [`crate::cpu::MAX_QUEUES`]; [`prepare`] succeeded. So for the others.
#[inline]
pub unsafe fn pop(id: u32) -> Result<NonNull<u8>, Miss> {
    // SAFETY: promised by the caller.
    let found = unsafe { asm::pop(id as usize) };
    match miss(found) {
        Some(why) => Err(why),
        None => NonNull::new(core::ptr::with_exposed_provenance_mut(found)).ok_or(Miss::Queue),
    }
}

/// Puts an object into this CPU's queue.
///
/// # Errors
/// Why there is no room.
///
/// # Safety
/// As [`pop`]; the object is the caller's to give.
#[inline]
pub unsafe fn push(id: u32, p: *mut u8) -> Result<(), Miss> {
    // SAFETY: promised by the caller.
    match unsafe { asm::push(id as usize, p.expose_provenance()) } {
        0 => Err(Miss::Queue),
        code => miss(code).map_or(Ok(()), Err),
    }
}

/// Takes the newest objects of this CPU's queue, as many as `out` has places for, in
/// one section; returns how many. The very newest comes first.
///
/// # Errors
/// [`Miss::NoSlot`] or [`Miss::NoCpu`].
///
/// # Safety
/// As [`pop`].
#[inline]
pub unsafe fn pop_many(id: u32, out: &mut [*mut u8]) -> Result<usize, Miss> {
    // SAFETY: promised by the caller; `out` has as many places as is said.
    let n = unsafe { asm::pop_many(id as usize, out.as_mut_ptr(), out.len()) };
    miss(n).map_or(Ok(n), Err)
}

/// Puts the first objects of `from` into this CPU's queue, as many as there is room
/// for, in one section; returns how many. The last one becomes the newest.
///
/// # Errors
/// [`Miss::NoSlot`] or [`Miss::NoCpu`].
///
/// # Safety
/// As [`push`], for each.
#[inline]
pub unsafe fn push_many(id: u32, from: &[*mut u8]) -> Result<usize, Miss> {
    // SAFETY: promised by the caller; `from` has as many objects as is said.
    let n = unsafe { asm::push_many(id as usize, from.as_ptr(), from.len()) };
    miss(n).map_or(Ok(n), Err)
}

#[cfg(all(target_arch = "x86_64", target_os = "linux", not(miri), not(loom)))]
mod asm {
    use core::arch::{asm, naked_asm};
    use core::sync::atomic::Ordering;

    use super::{ABORTS, AREA, CPUS, NO_CPU, NO_SLOT, TABLE};

    /// glibc's `__rseq_offset` and `__rseq_size`.
    pub(super) fn registration() -> Result<(isize, u32), &'static str> {
        let (offset, size): (*const isize, *const u32);
        // SAFETY: loads two addresses from the global offset table; they are null when
        // no library of the process defines the (weak) symbols.
        unsafe {
            asm!(
                ".weak __rseq_offset",
                ".weak __rseq_size",
                "mov {offset}, qword ptr [rip + __rseq_offset@GOTPCREL]",
                "mov {size}, qword ptr [rip + __rseq_size@GOTPCREL]",
                offset = out(reg) offset,
                size = out(reg) size,
                options(pure, readonly, nostack, preserves_flags),
            );
        }
        if offset.is_null() || size.is_null() {
            return Err("the C library has no restartable sequences (glibc 2.35 or newer has)");
        }
        // SAFETY: glibc's constants of these types, set before any library's code runs.
        Ok(unsafe { (offset.read(), size.read()) })
    }

    /// The area's `cpu_id`; one that is negative, as for a thread without registration,
    /// is beyond all CPUs.
    pub(super) fn cpu() -> u32 {
        let cpu: u32;
        // SAFETY: the area of a thread is in its control block; its second word is
        // `cpu_id`, which the kernel changes at any time.
        unsafe {
            asm!(
                "mov {cpu:e}, dword ptr fs:[{area} + 4]",
                area = in(reg) AREA.load(Ordering::Relaxed),
                cpu = out(reg) cpu,
                options(readonly, nostack, preserves_flags),
            );
        }
        cpu
    }

    /// Defines a section. Its work finds the slot in r9 and ends with what the one
    /// store that commits needs; a jump to 4 leaves without it. rdi, rsi, rdx and r8
    /// must stay as they are until the commit, for another attempt.
    macro_rules! section {
        ($(#[$doc:meta])* fn $name:ident($($arg:ident: $ty:ty),*),
         work $($work:literal)*, commit $commit:literal) => {
            $(#[$doc])*
            ///
            /// # Safety
            /// `id` is below the number of queues that a slot has, and the calling
            /// thread is registered at `AREA`, or its `cpu_id` there is negative.
            #[unsafe(naked)]
            pub(super) unsafe extern "sysv64" fn $name($($arg: $ty),*) -> usize {
                naked_asm!(
                    ".cfi_startproc",
                    "mov r8, qword ptr [rip + {area}]",
                    "2:",
                    "lea rax, [rip + 5f]",
                    "mov qword ptr fs:[r8 + 8], rax",
                    // Armed: from here to 4 an interruption leads to 6.
                    "3:",
                    "mov ecx, dword ptr fs:[r8 + 4]",
                    "cmp ecx, dword ptr [rip + {cpus}]",
                    "jae 7f",
                    "lea r9, [rip + {table}]",
                    "mov r9, qword ptr [r9 + rcx*8]",
                    "test r9, r9",
                    "jz 8f",
                    $($work,)*
                    $commit,
                    "4:",
                    "ret",
                    "7:",
                    "mov rax, {no_cpu}",
                    "ret",
                    "8:",
                    "mov rax, {no_slot}",
                    "ret",
                    // The kernel goes on nowhere but behind this signature (glibc's).
                    ".byte 0x0f, 0xb9, 0x3d",
                    ".long 0x53053053",
                    "6:",
                    "lock inc qword ptr [rip + {aborts}]",
                    "jmp 2b",
                    ".cfi_endproc",
                    // struct rseq_cs: version, flags, start, length, abort.
                    ".pushsection __rseq_cs, \"aw\", @progbits",
                    ".balign 32",
                    "5:",
                    ".long 0, 0",
                    ".quad 3b, 4b - 3b, 6b",
                    ".popsection",
                    area = sym AREA,
                    cpus = sym CPUS,
                    table = sym TABLE,
                    aborts = sym ABORTS,
                    no_cpu = const NO_CPU as isize,
                    no_slot = const NO_SLOT as isize,
                )
            }
        };
    }

    section! {
        /// The newest object; 0 when there is none.
        fn pop(id: usize),
        work
            "mov ecx, dword ptr [r9 + rdi*8]"
            "mov rax, qword ptr [r9 + rcx]"
            "test rax, rax"
            "jz 4f"
            "sub ecx, 8",
        commit "mov dword ptr [r9 + rdi*8], ecx"
    }

    section! {
        /// 1 when there was room for `p`, 0 otherwise.
        fn push(id: usize, p: usize),
        work
            "mov ecx, dword ptr [r9 + rdi*8]"
            "xor eax, eax"
            "cmp ecx, dword ptr [r9 + rdi*8 + 4]"
            "jae 4f"
            "add ecx, 8"
            "mov qword ptr [r9 + rcx], rsi"
            "inc eax",
        commit "mov dword ptr [r9 + rdi*8], ecx"
    }

    section! {
        /// Takes up to `most` objects; how many.
        fn pop_many(id: usize, out: *mut *mut u8, most: usize),
        work
            "mov ecx, dword ptr [r9 + rdi*8]"
            "xor eax, eax"
            "20:"
            "cmp rax, rdx"
            "jae 21f"
            "mov r10, qword ptr [r9 + rcx]"
            "test r10, r10"
            "jz 21f"
            "mov qword ptr [rsi + rax*8], r10"
            "sub ecx, 8"
            "inc rax"
            "jmp 20b"
            "21:"
            "test rax, rax"
            "jz 4f",
        commit "mov dword ptr [r9 + rdi*8], ecx"
    }

    section! {
        /// Puts up to `most` objects; how many.
        fn push_many(id: usize, from: *const *mut u8, most: usize),
        work
            "mov ecx, dword ptr [r9 + rdi*8]"
            "xor eax, eax"
            "20:"
            "cmp rax, rdx"
            "jae 21f"
            "cmp ecx, dword ptr [r9 + rdi*8 + 4]"
            "jae 21f"
            "mov r10, qword ptr [rsi + rax*8]"
            "add ecx, 8"
            "mov qword ptr [r9 + rcx], r10"
            "inc rax"
            "jmp 20b"
            "21:"
            "test rax, rax"
            "jz 4f",
        commit "mov dword ptr [r9 + rdi*8], ecx"
    }
}

/// Other processors, and interpreters: nobody has a CPU.
#[cfg(not(all(target_arch = "x86_64", target_os = "linux", not(miri), not(loom))))]
mod asm {
    use super::NO_CPU;

    pub(super) fn registration() -> Result<(isize, u32), &'static str> {
        Err("this build has no restartable sequences for this processor")
    }

    pub(super) fn cpu() -> u32 {
        u32::MAX
    }

    pub(super) unsafe fn pop(_: usize) -> usize {
        NO_CPU
    }

    pub(super) unsafe fn push(_: usize, _: usize) -> usize {
        NO_CPU
    }

    pub(super) unsafe fn pop_many(_: usize, _: *mut *mut u8, _: usize) -> usize {
        NO_CPU
    }

    pub(super) unsafe fn push_many(_: usize, _: *const *mut u8, _: usize) -> usize {
        NO_CPU
    }
}
