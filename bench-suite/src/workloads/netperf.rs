//! netperf: UDP_STREAM, UDP_RR, TCP_STREAM and TCP_RR over the loopback device.
//!
//! Every message is a head and a data object of the allocator under test. The sender fills them and sends the payload
//! straight out of the data object; all its bytes cross the socket, and the first 16 say which objects they came
//! from. The receiver reads the payload from the socket, then the objects themselves, and frees them.
//!
//! - STREAM: 10^6 bytes a second that arrived. RR: transactions a second with one outstanding; both ways carry a
//!   message of the row's size.
//! - UDP may drop datagrams. [`udp`] keeps a bounded window of them in flight, so that the receive buffer does not
//!   overflow, and frees the objects of any that was lost all the same. TCP's socket buffers are fixed at 128 KiB,
//!   which bounds the objects in flight.
//! - The first fifth of each sample is warm-up and not counted.

pub mod tcp;
pub mod udp;

use super::message::{Caches, data_size};
use super::{Job, Measurement, Options, Outcome, RowSpec, Workload, args};
use crate::objects::{CacheRun, Objects, dispatch};
use crate::stats::Better;
use std::io;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

/// The workload.
pub struct Netperf;

const USAGE: &str = "-t UDP_STREAM|UDP_RR|TCP_STREAM|TCP_RR,.. -m BYTES,.. -l SECONDS";

/// The tests.
pub const TESTS: [&str; 4] = ["UDP_STREAM", "UDP_RR", "TCP_STREAM", "TCP_RR"];

/// The message sizes of the tables on the kernel list.
pub const SIZES: [usize; 9] = [64, 128, 256, 1024, 2048, 3312, 4096, 8192, 16384];

struct Settings {
    tests: Vec<&'static str>,
    sizes: Vec<usize>,
    length: Duration,
}

impl Settings {
    fn parse(options: &Options) -> Result<Self, String> {
        const NAME: &str = "netperf";
        let mut settings = Self {
            tests: TESTS.to_vec(),
            sizes: SIZES.to_vec(),
            length: Duration::from_millis(if options.quick { 80 } else { 500 }),
        };
        for (letter, value) in args::parse(NAME, "t:m:l:", USAGE, &options.args)? {
            let value = value.unwrap_or_default();
            match letter {
                't' => {
                    settings.tests.clear();
                    for name in value.split(',') {
                        let test = TESTS.iter().find(|test| **test == name).ok_or_else(|| {
                            format!("netperf: no test '{name}'; valid: {}", TESTS.join(", "))
                        })?;
                        if settings.tests.contains(test) {
                            return Err(format!("netperf: -t '{value}': {name} is listed twice"));
                        }
                        settings.tests.push(test);
                    }
                }
                'm' => {
                    settings.sizes = args::numbers(
                        NAME,
                        'm',
                        &value,
                        super::message::STAMP..=super::message::MAX_PAYLOAD,
                    )?
                }
                _ => {
                    let seconds: f64 = value.parse().unwrap_or(f64::NAN);
                    if !(0.001..=3600.0).contains(&seconds) {
                        return Err(format!(
                            "netperf: -l '{value}': not a number of seconds from 0.001 to 3600"
                        ));
                    }
                    settings.length = Duration::from_secs_f64(seconds);
                }
            }
        }
        Ok(settings)
    }
}

impl Workload for Netperf {
    fn name(&self) -> &'static str {
        "netperf"
    }

    fn about(&self) -> &'static str {
        "streams and request/response over loopback UDP and TCP, by message size"
    }

    fn usage(&self) -> &'static str {
        USAGE
    }

    fn plan(&self, options: &Options) -> Result<Vec<Job>, String> {
        let settings = Settings::parse(options)?;
        let mut jobs = Vec::new();
        for test in &settings.tests {
            for size in &settings.sizes {
                let name = format!("{test}/{size}");
                let (metric, unit) = metric_of(test);
                jobs.push(Job {
                    rows: vec![RowSpec {
                        row: name.clone(),
                        metric,
                        unit,
                        better: Better::Higher,
                    }],
                    name,
                    time_limit: Duration::from_secs(30) + settings.length * 4,
                    threads: 2,
                });
            }
        }
        Ok(jobs)
    }

    fn run(&self, backend: &str, job: &str, options: &Options) -> Result<Outcome, String> {
        dispatch::<Self>(backend, job, options)
    }
}

fn metric_of(test: &str) -> (&'static str, &'static str) {
    if test.ends_with("_RR") {
        ("transactions", "trans/s")
    } else {
        ("throughput", "MB/s")
    }
}

/// One sample: its phases and where its two sides run.
#[derive(Clone, Copy)]
pub struct Sample {
    /// How long it is measured, after a quarter of that as warm-up.
    length: Duration,
    /// The CPUs of the sending and the receiving side.
    cpus: Option<(usize, usize)>,
}

impl Sample {
    fn warm_up(&self) -> Duration {
        self.length / 4
    }

    /// The CPU of the sending side.
    pub fn local(&self) -> Option<usize> {
        self.cpus.map(|cpus| cpus.0)
    }

    /// The CPU of the receiving side.
    pub fn remote(&self) -> Option<usize> {
        self.cpus.map(|cpus| cpus.1)
    }

    /// The moment at which a sample that starts now ends.
    pub fn deadline(&self) -> Instant {
        Instant::now() + self.warm_up() + self.length
    }
}

/// Counts messages after the warm-up.
pub struct Meter {
    warm_until: Instant,
    began: Option<Instant>,
    messages: u64,
}

impl Meter {
    /// A meter of a sample that starts now.
    pub fn new(sample: &Sample) -> Self {
        Self {
            warm_until: Instant::now() + sample.warm_up(),
            began: None,
            messages: 0,
        }
    }

    /// One more message arrived.
    #[inline]
    pub fn tick(&mut self) {
        if self.began.is_some() {
            self.messages += 1;
        } else {
            let now = Instant::now();
            if now >= self.warm_until {
                self.began = Some(now);
            }
        }
    }

    /// Messages a second since the warm-up.
    pub fn rate(&self) -> f64 {
        match self.began {
            Some(began) => self.messages as f64 / began.elapsed().as_secs_f64().max(1e-9),
            None => 0.0,
        }
    }
}

/// What both sides of a test found.
#[derive(Clone, Copy, Debug, Default)]
pub struct Traffic {
    /// Messages a second.
    pub rate: f64,
    /// Messages made, the warm-up's included.
    pub made: u64,
    /// Datagrams lost.
    pub lost: u64,
}

impl CacheRun for Netperf {
    fn run<O: Objects>(job: &str, options: &Options) -> Result<Outcome, String> {
        let settings = Settings::parse(options)?;
        let (test, size) = job
            .split_once('/')
            .ok_or_else(|| format!("netperf: no row '{job}'"))?;
        let size = args::number(
            "netperf",
            'm',
            size,
            super::message::STAMP..=super::message::MAX_PAYLOAD,
        )?;
        let sample = Sample {
            length: settings.length,
            cpus: options.cpus,
        };
        let caches = Caches::<O>::create(size)?;
        let traffic = match test {
            "UDP_STREAM" => udp::stream(caches, &sample),
            "UDP_RR" => udp::request_response(caches, &sample),
            "TCP_STREAM" => tcp::stream(caches, &sample),
            "TCP_RR" => tcp::request_response(caches, &sample),
            _ => {
                return Err(format!(
                    "netperf: no test '{test}'; valid: {}",
                    TESTS.join(", ")
                ));
            }
        }
        .map_err(|e| format!("netperf: {job}: {e}"))?;
        if traffic.rate <= 0.0 {
            return Err(format!(
                "netperf: {job}: no message arrived after the warm-up; try a longer -l"
            ));
        }
        let (metric, _) = metric_of(test);
        let value = if test.ends_with("_RR") {
            traffic.rate
        } else {
            traffic.rate * size as f64 / 1e6
        };
        let mut outcome = Outcome {
            objects: 2 * traffic.made,
            ..Outcome::default()
        };
        outcome.measurements.push(Measurement {
            row: job.to_owned(),
            metric: metric.to_owned(),
            value,
        });
        if test.starts_with("UDP") {
            outcome
                .counters
                .insert("datagrams_lost".to_owned(), traffic.lost);
        }
        Ok(outcome)
    }
}

/// Sets a socket buffer; the kernel doubles the value for its own needs and caps it. Returns the size in force.
fn set_buffer(socket: &impl AsRawFd, option: libc::c_int, bytes: libc::c_int) -> io::Result<usize> {
    let fd = socket.as_raw_fd();
    let mut size = bytes;
    let mut len = size_of::<libc::c_int>() as libc::socklen_t;
    let value: *mut libc::c_int = &mut size;
    // SAFETY: `value` points to an int and `len` holds its size, for both calls.
    let failed = unsafe {
        libc::setsockopt(fd, libc::SOL_SOCKET, option, value.cast(), len) != 0
            || libc::getsockopt(fd, libc::SOL_SOCKET, option, value.cast(), &mut len) != 0
    };
    if failed {
        Err(io::Error::last_os_error())
    } else {
        Ok(usize::try_from(size).unwrap_or(0))
    }
}

/// How many datagrams of `size` bytes surely fit into a receive buffer of `buffer` bytes, by the kernel's accounting
/// (payload and bookkeeping rounded up, twice that for safety).
fn window(buffer: usize, size: usize) -> usize {
    (buffer / (2 * (data_size(size) + 768))).clamp(1, 64)
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
    fn every_test_moves_messages() {
        for test in TESTS {
            for size in [64, 16384] {
                let job = format!("{test}/{size}");
                let outcome =
                    <Netperf as CacheRun>::run::<SystemMalloc>(&job, &options("-l 0.02")).unwrap();
                assert!(
                    outcome.objects > 0 && outcome.measurements[0].value > 0.0,
                    "{job}"
                );
            }
        }
    }

    #[test]
    fn wrong_options_are_named() {
        let error = |text| Settings::parse(&options(text)).map(|_| ()).unwrap_err();
        assert!(error("-t SCTP_RR").contains("'SCTP_RR'; valid: UDP_STREAM"));
        assert!(error("-m 3").contains("-m '3'"));
        assert!(error("-l no").contains("-l 'no'"));
        assert!(error("-t TCP_RR,TCP_RR").contains("twice"));
    }

    #[test]
    fn the_window_is_never_empty() {
        assert_eq!(window(1, 16384), 1);
        assert_eq!(window(1 << 30, 64), 64);
    }
}
