//! hackbench: groups of senders and receivers that pass many small messages, the scheduler's and the socket layer's
//! classic, on which the unified allocator once lost 10 to 15 %.
//!
//! Each of a group's 20 senders sends `-l` messages of `-s` bytes to each of its 20 receivers. A receiver has one
//! socket pair (or pipe), into which all senders of its group write. With threads (`-T`, the default) a message is
//! made of two objects of the allocator under test and its *address* goes over the real file descriptor, so that the
//! scheduler works as in the original and every object is freed by another thread. With processes (`-P`, see
//! [`super::process`]) the bytes themselves are copied through it.

use super::backlog::{Backlog, Lane};
use super::message::{Caches, Head, Message, pattern};
use super::{Job, Options, Outcome, RowSpec, STACK, Workload, args, die, pin, process};
use crate::objects::{CacheRun, Objects, dispatch};
use crate::stats::Better;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::Barrier;
use std::thread::Builder;
use std::time::{Duration, Instant};

/// The workload.
pub struct Hackbench;

const USAGE: &str =
    "-g GROUPS,.. -f FDS -l LOOPS -s BYTES -p (pipes) -T (threads) | -P (processes)";

/// What the options say.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Group counts, one row each.
    pub groups: Vec<usize>,
    /// Senders, and receivers, of a group.
    pub fds: usize,
    /// Messages from each sender to each receiver.
    pub loops: usize,
    /// Bytes of a message.
    pub size: usize,
    /// The kinds of channel, one block of rows each.
    pub kinds: Vec<Kind>,
    /// Processes instead of threads.
    pub processes: bool,
}

/// What carries the messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Stream socket pairs.
    Sockets,
    /// Pipes.
    Pipes,
}

impl Kind {
    /// The first part of a row's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sockets => "sockets",
            Self::Pipes => "pipes",
        }
    }

    /// A channel: the reading end and the writing end.
    pub fn open(self) -> io::Result<(File, File)> {
        let mut fds = [0; 2];
        // SAFETY: both calls write two descriptors into `fds`.
        let failed = unsafe {
            match self {
                Self::Sockets => {
                    libc::socketpair(libc::AF_UNIX, libc::SOCK_STREAM, 0, fds.as_mut_ptr())
                }
                Self::Pipes => libc::pipe(fds.as_mut_ptr()),
            }
        } != 0;
        if failed {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has just opened both descriptors for us alone.
        let [reader, writer] = fds.map(|fd| File::from(unsafe { OwnedFd::from_raw_fd(fd) }));
        Ok((reader, writer))
    }
}

impl Settings {
    fn parse(options: &Options) -> Result<Self, String> {
        const NAME: &str = "hackbench";
        let mut settings = Self {
            groups: if options.quick {
                vec![1, 2, 4]
            } else {
                vec![1, 2, 4, 8]
            },
            fds: 20,
            loops: if options.quick { 150 } else { 300 },
            size: 100,
            kinds: vec![Kind::Sockets, Kind::Pipes],
            processes: false,
        };
        let parsed = args::parse(NAME, "g:f:l:s:pTP", USAGE, &options.args)?;
        if !parsed.is_empty() {
            // As the original: sockets unless -p asks for pipes.
            settings.kinds = vec![Kind::Sockets];
        }
        for (letter, value) in parsed {
            let value = value.unwrap_or_default();
            match letter {
                'g' => settings.groups = args::numbers(NAME, 'g', &value, 1..=1000)?,
                'f' => settings.fds = args::number(NAME, 'f', &value, 1..=1000)?,
                'l' => settings.loops = args::number(NAME, 'l', &value, 1..=10_000_000)?,
                's' => {
                    settings.size =
                        args::number(NAME, 's', &value, 1..=super::message::MAX_PAYLOAD)?
                }
                'p' => settings.kinds = vec![Kind::Pipes],
                'T' => settings.processes = false,
                _ => settings.processes = true,
            }
        }
        Ok(settings)
    }
}

impl Workload for Hackbench {
    fn name(&self) -> &'static str {
        "hackbench"
    }

    fn about(&self) -> &'static str {
        "groups of 20 senders and 20 receivers pass small messages over sockets and pipes"
    }

    fn usage(&self) -> &'static str {
        USAGE
    }

    fn plan(&self, options: &Options) -> Result<Vec<Job>, String> {
        let settings = Settings::parse(options)?;
        let mut jobs = Vec::new();
        for kind in &settings.kinds {
            for groups in &settings.groups {
                let name = format!("{}/{groups}", kind.name());
                let row = RowSpec {
                    row: name.clone(),
                    metric: "time",
                    unit: "s",
                    better: Better::Lower,
                };
                let messages = groups * settings.fds * settings.fds * settings.loops;
                jobs.push(Job {
                    name,
                    rows: vec![row],
                    time_limit: Duration::from_secs(60)
                        + Duration::from_micros(100) * messages as u32,
                    threads: 2 * groups * settings.fds,
                });
            }
        }
        Ok(jobs)
    }

    fn run(&self, backend: &str, job: &str, options: &Options) -> Result<Outcome, String> {
        dispatch::<Self>(backend, job, options)
    }
}

impl CacheRun for Hackbench {
    fn run<O: Objects>(job: &str, options: &Options) -> Result<Outcome, String> {
        let settings = Settings::parse(options)?;
        let (kind, groups) = job
            .split_once('/')
            .ok_or_else(|| format!("hackbench: no row '{job}'"))?;
        let kind = if kind == "pipes" {
            Kind::Pipes
        } else {
            Kind::Sockets
        };
        let groups = args::number("hackbench", 'g', groups, 1..=1000)?;
        raise_file_limit();
        let (elapsed, mut outcome) = if settings.processes {
            process::run::<O>(kind, groups, &settings, options)?
        } else {
            threads::<O>(kind, groups, &settings, options)?
        };
        outcome.measurements.push(super::Measurement {
            row: job.to_owned(),
            metric: "time".to_owned(),
            value: elapsed.as_secs_f64(),
        });
        Ok(outcome)
    }
}

/// A group's channels, one for each receiver.
pub fn open_group(kind: Kind, fds: usize) -> Result<Vec<(File, File)>, String> {
    (0..fds)
        .map(|_| kind.open())
        .collect::<io::Result<_>>()
        .map_err(|e| format!("hackbench: {}: {e}", kind.name()))
}

fn threads<O: Objects>(
    kind: Kind,
    groups: usize,
    settings: &Settings,
    options: &Options,
) -> Result<(Duration, Outcome), String> {
    let caches = Caches::<O>::create(settings.size)?;
    let channels: Vec<Vec<(File, File)>> = (0..groups)
        .map(|_| open_group(kind, settings.fds))
        .collect::<Result<_, _>>()?;
    let payload = pattern(settings.size);
    let (fds, loops) = (settings.fds, settings.loops);
    let start = Barrier::new(2 * groups * fds + 1);
    let backlog = Backlog::new(groups * fds);
    let mut objects = 0;
    let mut began = Instant::now();
    std::thread::scope(|scope| -> io::Result<()> {
        let mut senders = Vec::new();
        let mut receivers = Vec::new();
        let mut lanes = backlog.lanes().iter();
        for group in &channels {
            for ((reader, _), lane) in group.iter().zip(&mut lanes) {
                let start = &start;
                receivers.push(Builder::new().stack_size(STACK).spawn_scoped(
                    scope,
                    move || {
                        pin(options.cpus.map(|cpus| cpus.1));
                        start.wait();
                        receive(caches, reader, fds * loops, lane);
                    },
                )?);
                let payload = &payload;
                senders.push(
                    Builder::new()
                        .stack_size(STACK)
                        .spawn_scoped(scope, move || {
                            pin(options.cpus.map(|cpus| cpus.0));
                            start.wait();
                            send(caches, group, payload, loops, lane)
                        })?,
                );
            }
        }
        start.wait();
        began = Instant::now();
        Builder::new().spawn_scoped(scope, || backlog.watch())?;
        for sender in senders {
            objects += sender
                .join()
                .unwrap_or_else(|_| die("hackbench: a sender panicked"));
        }
        backlog.end();
        Ok(())
    })
    // The scope's threads wait at the barrier for one that could not be started: leave without them.
    .unwrap_or_else(|e| die(&format!("hackbench: cannot start a thread: {e}")));
    let elapsed = began.elapsed();
    Ok((
        elapsed,
        Outcome {
            objects,
            counters: [("messages_in_flight".to_owned(), backlog.most())].into(),
            ..Outcome::default()
        },
    ))
}

/// One sender: returns the objects it allocated.
fn send<O: Objects>(
    caches: Caches<O>,
    group: &[(File, File)],
    payload: &[u8],
    loops: usize,
    lane: &Lane,
) -> u64 {
    let mut sequence = 0;
    for _ in 0..loops {
        for (_, writer) in group {
            let message = caches.make(payload, sequence);
            sequence += 1;
            lane.sent(sequence);
            let address = (message.0 as usize).to_ne_bytes();
            let mut writer: &File = writer;
            if let Err(e) = writer.write_all(&address) {
                die(&format!("hackbench: write: {e}"));
            }
        }
    }
    2 * sequence
}

fn receive<O: Objects>(caches: Caches<O>, mut reader: &File, messages: usize, lane: &Lane) {
    let mut sink = vec![0; caches.size()];
    for received in 1..=messages {
        let mut address = [0; size_of::<usize>()];
        if let Err(e) = reader.read_exact(&mut address) {
            die(&format!("hackbench: read: {e}"));
        }
        let message = Message(usize::from_ne_bytes(address) as *mut Head);
        // SAFETY: writes of eight bytes are not split or mixed by the kernel, so this is the address of one message,
        // whose sender has let go of it.
        unsafe { caches.take(message, &mut sink) };
        lane.received(received as u64);
    }
}

/// Eight groups open 320 descriptors and more groups more: take what the hard limit allows.
fn raise_file_limit() {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: `limit` is valid for the kernel to write.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) } == 0 {
        limit.rlim_cur = limit.rlim_max;
        // SAFETY: `limit` is initialised; a refusal leaves the old limit, and opening reports it when it is too low.
        unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::SystemMalloc;

    fn options(text: &str) -> Options {
        Options {
            args: text.split_whitespace().map(str::to_owned).collect(),
            ..Options::default()
        }
    }

    #[test]
    fn options_as_the_original_has_them() {
        let settings = Settings::parse(&options("-g 3 -f 5 -l 7 -s 200 -p -P")).unwrap();
        assert_eq!(
            settings,
            Settings {
                groups: vec![3],
                fds: 5,
                loops: 7,
                size: 200,
                kinds: vec![Kind::Pipes],
                processes: true
            }
        );
        assert_eq!(
            Settings::parse(&options("-g 3")).unwrap().kinds,
            [Kind::Sockets]
        );
        assert!(
            Settings::parse(&options("-g 0"))
                .unwrap_err()
                .contains("-g '0'")
        );
    }

    #[test]
    fn every_message_arrives_over_both_kinds() {
        for job in ["sockets/2", "pipes/2"] {
            let outcome =
                <Hackbench as CacheRun>::run::<SystemMalloc>(job, &options("-g 2 -f 3 -l 4"))
                    .unwrap();
            // Two groups of three senders to three receivers, four messages each, two objects a message.
            assert_eq!(outcome.objects, 2 * (2 * 3 * 3 * 4), "{job}");
            assert!(outcome.measurements[0].value > 0.0);
        }
    }
}
