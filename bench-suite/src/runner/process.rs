//! One worker process: started, watched, held back while others are timed, read to its end.

use super::interrupted;
use crate::series::RssSeries;
use crate::worker::{Order, RESTING};
use std::ffi::OsString;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A worker that runs, rests or has ended.
pub struct Process {
    child: Child,
    /// Of workers that can be held back; one byte lets it go on.
    stdin: Option<ChildStdin>,
    stdout: ChildStdout,
    stderr: JoinHandle<String>,
    /// What it printed and nobody has looked at.
    text: Vec<u8>,
    last_line: Option<String>,
    limit: Duration,
    deadline: Instant,
    /// When it stopped for others' sake: the time since then is not the worker's.
    held: Option<Instant>,
    killed: bool,
    watch: Option<Watch>,
}

/// What is left of a worker that ended well.
pub struct Ended {
    /// The last line it printed.
    pub last_line: Option<String>,
    /// All that it printed on standard error.
    pub stderr: String,
    /// How it ended, in one line.
    pub how: String,
    /// Its memory over time, if it was watched.
    pub series: RssSeries,
}

impl Process {
    /// Starts a worker and reads what it prints up to its first rest or its end; `limit` is its time in all.
    pub fn start(
        order: &Order,
        variables: &[(&'static str, OsString)],
        limit: Duration,
        watch: bool,
    ) -> Result<Self, String> {
        let text = serde_json::to_string(order).map_err(|e| e.to_string())?;
        // The link and not its target: it names this very binary even after a rebuild.
        let mut command = Command::new("/proc/self/exe");
        command.arg0("bench-suite").arg("worker").arg(text);
        // Ctrl-C on a terminal reaches this process only, which then decides what becomes of the worker.
        command.process_group(0);
        command
            .envs(variables.iter().map(|(name, value)| (name, value)))
            .stdin(if order.hold {
                Stdio::piped()
            } else {
                Stdio::null()
            })
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command
            .spawn()
            .map_err(|e| format!("cannot start a worker: {e}"))?;
        let (Some(stdout), Some(mut stderr)) = (child.stdout.take(), child.stderr.take()) else {
            return Err("cannot start a worker: it has no output".to_owned());
        };
        let errors = std::thread::spawn(move || {
            let mut text = Vec::new();
            // What was read up to an error is still worth showing.
            let _ = stderr.read_to_end(&mut text);
            String::from_utf8_lossy(&text).into_owned()
        });
        let mut process = Self {
            stdin: child.stdin.take(),
            child,
            stdout,
            stderr: errors,
            text: Vec::new(),
            last_line: None,
            limit,
            deadline: Instant::now() + limit,
            held: None,
            killed: false,
            watch: watch.then(Watch::default),
        };
        process.read();
        Ok(process)
    }

    /// Is its memory over time kept?
    pub fn is_watched(&self) -> bool {
        self.watch.is_some()
    }

    /// Has it measured what it times, and waits for [`Process::rest`]?
    pub fn is_resting(&self) -> bool {
        self.last_line.as_deref() == Some(RESTING)
    }

    /// Lets a worker that was held back rest, and go on to its end.
    pub fn rest(&mut self) {
        while self.is_resting() {
            self.last_line = None;
            if let Some(held) = self.held.take().map(|since| since.elapsed()) {
                self.deadline += held;
                if let Some(watch) = &mut self.watch {
                    watch.began += held;
                }
            }
            if let Some(stdin) = &mut self.stdin {
                // One that was killed meanwhile says so by its status.
                let _ = stdin.write_all(b"\n");
            }
            self.read();
        }
    }

    /// Waits for it to end; the error says why it did not end well.
    pub fn end(mut self) -> Result<Ended, String> {
        self.rest();
        let stderr = self.stderr.join().unwrap_or_default();
        let status = self
            .child
            .wait()
            .map_err(|e| format!("cannot wait for the worker: {e}"))?;
        if self.killed && !interrupted() {
            return Err(format!("no result within {} s", self.limit.as_secs()));
        }
        let how = describe(status, &stderr);
        if !status.success() {
            return Err(how);
        }
        Ok(Ended {
            last_line: self.last_line,
            stderr,
            how,
            series: self.watch.map(|watch| watch.series).unwrap_or_default(),
        })
    }

    /// Reads its output up to its next rest or its end. Kills it on Ctrl-C and when its time is up.
    fn read(&mut self) {
        let mut buffer = [0; 4096];
        loop {
            if !self.killed && (interrupted() || Instant::now() > self.deadline) {
                self.killed = true;
                // With its own children. It may have ended by itself: there is nothing to kill then.
                // SAFETY: the worker leads a group of its own and is not yet reaped, so its number is still its group's.
                unsafe { libc::kill(-(self.child.id() as libc::pid_t), libc::SIGKILL) };
            }
            if let Some(watch) = &mut self.watch {
                watch.look(self.child.id());
            }
            let wait = self
                .watch
                .as_ref()
                .map_or(100, |watch| watch.distance.as_millis().min(100) as i32);
            let mut poll = libc::pollfd {
                fd: self.stdout.as_raw_fd(),
                events: libc::POLLIN,
                revents: 0,
            };
            // SAFETY: one valid pollfd.
            if unsafe { libc::poll(&mut poll, 1, wait) } <= 0 {
                continue;
            }
            match self.stdout.read(&mut buffer) {
                Ok(0) => break,
                Ok(n) => self.text.extend_from_slice(&buffer[..n]),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(_) => break,
            }
            while let Some(end) = self.text.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.text.drain(..=end).collect();
                self.last_line = Some(String::from_utf8_lossy(&line[..end]).into_owned());
            }
            if self.is_resting() {
                self.held = Some(Instant::now());
                return;
            }
        }
    }
}

/// Points kept of a worker's memory over time; when there are more, every second one goes.
const POINTS: usize = 64;
/// The first distance of two points. A look costs the idle runner some microseconds.
const DISTANCE: Duration = Duration::from_millis(10);

/// Memory of a worker over time, seen from outside.
struct Watch {
    began: Instant,
    distance: Duration,
    next: Duration,
    series: RssSeries,
}

impl Default for Watch {
    fn default() -> Self {
        Self {
            began: Instant::now(),
            distance: DISTANCE,
            next: Duration::ZERO,
            series: Vec::new(),
        }
    }
}

impl Watch {
    /// Looks when it is time to.
    fn look(&mut self, pid: u32) {
        let now = self.began.elapsed();
        if now < self.next {
            return;
        }
        if let Some(kib) = resident_kib(pid) {
            self.series.push((now.as_millis() as u64, kib));
        }
        if self.series.len() > POINTS {
            let mut keep = false;
            self.series.retain(|_| {
                keep = !keep;
                keep
            });
            self.distance *= 2;
        }
        self.next = now + self.distance;
    }
}

/// The second figure of statm: resident pages.
fn resident_kib(pid: u32) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/statm")).ok()?;
    let pages: u64 = text.split_whitespace().nth(1)?.parse().ok()?;
    // SAFETY: plain query.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    // A worker that has ended has no memory, which says nothing about its life.
    (pages > 0).then(|| pages * u64::try_from(page).unwrap_or(4096) / 1024)
}

/// Why a worker ended, in one line.
fn describe(status: ExitStatus, stderr: &str) -> String {
    let cause = match (status.signal(), status.code()) {
        (Some(signal), _) => format!("killed by signal {signal}{}", signal_name(signal)),
        (None, Some(code)) => format!("exit status {code}"),
        (None, None) => "ended".to_owned(),
    };
    match stderr.lines().rev().find(|line| !line.trim().is_empty()) {
        Some(line) => format!("{cause}: {}", line.trim()),
        None => cause,
    }
}

fn signal_name(signal: i32) -> &'static str {
    match signal {
        libc::SIGABRT => " (SIGABRT)",
        libc::SIGBUS => " (SIGBUS)",
        libc::SIGFPE => " (SIGFPE)",
        libc::SIGILL => " (SIGILL)",
        libc::SIGKILL => " (SIGKILL, often for want of memory)",
        libc::SIGSEGV => " (SIGSEGV)",
        libc::SIGTRAP => " (SIGTRAP)",
        _ => "",
    }
}
