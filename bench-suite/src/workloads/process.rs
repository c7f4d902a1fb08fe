//! hackbench with processes (`-P`): each sender and receiver is a process with an allocator of its own.
//!
//! A sender makes a message, copies its bytes into the socket or pipe and frees it; a receiver makes a message of its
//! own, reads the bytes and frees it. The objects therefore stay inside a process, and both sides allocate. Objects are
//! counted over all the processes and the peak of resident memory is that of the largest; a backend's own counters are
//! the parent's only.

use super::hackbench::{Kind, Settings, open_group};
use super::message::{Caches, pattern};
use super::{Options, Outcome, die, pin};
use crate::objects::Objects;
use std::fs::File;
use std::io::{Read, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Counts of the objects of each child, in memory that parent and children share.
struct Counts {
    start: *mut AtomicU64,
    len: usize,
}

impl Counts {
    fn new(len: usize) -> Result<Self, String> {
        // SAFETY: a fresh anonymous mapping, no address asked for.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len * size_of::<AtomicU64>(),
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(format!(
                "hackbench: mmap: {}",
                std::io::Error::last_os_error()
            ));
        }
        Ok(Self {
            start: start.cast(),
            len,
        })
    }

    fn all(&self) -> &[AtomicU64] {
        // SAFETY: the mapping holds `len` zeroed counters and lives as long as the process.
        unsafe { std::slice::from_raw_parts(self.start, self.len) }
    }
}

#[derive(Clone, Copy)]
enum Role {
    Sender,
    Receiver,
}

/// Runs one row in processes.
pub fn run<O: Objects>(
    kind: Kind,
    groups: usize,
    settings: &Settings,
    options: &Options,
) -> Result<(Duration, Outcome), String> {
    let processes = 2 * groups * settings.fds;
    let counts = Counts::new(processes)?;
    let pipe_error = |e| format!("hackbench: pipe: {e}");
    let (mut ready, ready_writer) = Kind::Pipes.open().map_err(pipe_error)?;
    let (go, mut go_writer) = Kind::Pipes.open().map_err(pipe_error)?;
    let mut children = Vec::with_capacity(processes);
    for _ in 0..groups {
        let group = open_group(kind, settings.fds)?;
        for channel in &group {
            for role in [Role::Receiver, Role::Sender] {
                let count = &counts.all()[children.len()];
                // SAFETY: no other thread of this process holds a lock: workers start this row single-threaded.
                let pid = unsafe { libc::fork() };
                if pid < 0 {
                    let error = std::io::Error::last_os_error();
                    kill_all(&children);
                    return Err(format!("hackbench: fork: {error}"));
                }
                if pid == 0 {
                    child::<O>(
                        role,
                        channel,
                        &group,
                        settings,
                        options,
                        (&ready_writer, &go),
                        count,
                    );
                }
                children.push(pid);
            }
        }
        // The group's descriptors now belong to its children.
    }
    drop(ready_writer);
    if let Err(e) = ready.read_exact(&mut vec![0; processes]) {
        kill_all(&children);
        return Err(format!("hackbench: a process ended before the start: {e}"));
    }
    let began = Instant::now();
    go_writer
        .write_all(&vec![0; processes])
        .map_err(pipe_error)?;
    let child_peak_kib = reap(&mut children)?;
    let elapsed = began.elapsed();
    let objects = counts
        .all()
        .iter()
        .map(|count| count.load(Ordering::Relaxed))
        .sum();
    Ok((
        elapsed,
        Outcome {
            objects,
            child_peak_kib,
            ..Outcome::default()
        },
    ))
}

/// The life of one child; never returns.
fn child<O: Objects>(
    role: Role,
    channel: &(File, File),
    group: &[(File, File)],
    settings: &Settings,
    options: &Options,
    (mut ready, mut go): (&File, &File),
    count: &AtomicU64,
) -> ! {
    // SAFETY: plain system call; a worker that is killed takes its children with it.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    pin(options.cpus.map(|cpus| match role {
        Role::Sender => cpus.0,
        Role::Receiver => cpus.1,
    }));
    let caches = Caches::<O>::create(settings.size).unwrap_or_else(|e| die(&e));
    let payload = pattern(settings.size);
    let mut buffer = vec![0; settings.size];
    let handshake = ready.write_all(&[0]).and_then(|()| go.read_exact(&mut [0]));
    if let Err(e) = handshake {
        die(&format!("hackbench: start: {e}"));
    }
    let messages = settings.loops * settings.fds;
    for sequence in 0..messages {
        let step = match role {
            Role::Sender => {
                let message = caches.make(&payload, sequence as u64);
                let mut writer = &group[sequence % group.len()].1;
                // SAFETY: the message is live until taken below.
                let sent = writer.write_all(unsafe { caches.payload(message) });
                // SAFETY: this process made the message and takes it once.
                unsafe { caches.take(message, &mut buffer) };
                sent
            }
            Role::Receiver => {
                let mut reader = &channel.0;
                let received = reader.read_exact(&mut buffer);
                let message = caches.make(&buffer, sequence as u64);
                // SAFETY: this process made the message and takes it once.
                unsafe { caches.take(message, &mut buffer) };
                received
            }
        };
        if let Err(e) = step {
            die(&format!("hackbench: message {sequence}: {e}"));
        }
    }
    count.store(2 * messages as u64, Ordering::Relaxed);
    // SAFETY: leaves at once: the parent's buffers and exit handlers are not this process's to run.
    unsafe { libc::_exit(0) }
}

/// Waits for every child. Returns the largest peak of resident memory, in KiB.
fn reap(children: &mut Vec<libc::pid_t>) -> Result<u64, String> {
    let mut peak = 0;
    while !children.is_empty() {
        let mut status = 0;
        // SAFETY: an all-zero rusage is valid, and the kernel overwrites it.
        let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
        // SAFETY: both pointers are valid for writing.
        let pid = unsafe { libc::wait4(-1, &mut status, 0, &mut usage) };
        if pid < 0 {
            let error = std::io::Error::last_os_error();
            kill_all(children);
            return Err(format!("hackbench: wait: {error}"));
        }
        children.retain(|child| *child != pid);
        if status != 0 {
            kill_all(children);
            return Err(format!(
                "hackbench: a process ended with wait status {status:#x}"
            ));
        }
        peak = peak.max(u64::try_from(usage.ru_maxrss).unwrap_or(0));
    }
    Ok(peak)
}

fn kill_all(children: &[libc::pid_t]) {
    for child in children {
        // SAFETY: the process is our own child and not yet reaped, so its number still names it.
        unsafe { libc::kill(*child, libc::SIGKILL) };
    }
}
