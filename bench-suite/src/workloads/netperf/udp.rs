//! UDP_STREAM and UDP_RR.
//!
//! UDP_STREAM's window is a ring of slots, one datagram each:
//! ```text
//! slot = sequence mod window:   [ empty ][ seq 65, message ][ seq 66, message ][ seq 3, lost ]
//! ```
//! The sender fills the slot of its next sequence number and sends; it sleeps while that slot is still taken. The
//! receiver empties the slot when the datagram has arrived. Loopback delivers at once or not at all: what was sent
//! before the receiver began to wait and has not arrived when its wait times out is lost; the receiver frees those
//! objects and the slot is free again. A datagram whose slot no longer holds its sequence number is ignored.

use super::{Meter, Sample, Traffic, set_buffer, window};
use crate::objects::Objects;
use crate::workloads::message::{Caches, Message, pattern, read_stamp};
use crate::workloads::{STACK, die, pin};
use std::io::{self, ErrorKind};
use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};
use std::thread::Builder;
use std::time::{Duration, Instant};

/// How long the receiver waits before it takes what is missing as lost.
const PATIENCE: Duration = Duration::from_millis(50);
/// How long a side of a request/response test waits for the other.
const RR_PATIENCE: Duration = Duration::from_secs(5);
/// A datagram shorter than a stamp: the sender has finished.
const END: [u8; 1] = [0];

fn pair() -> io::Result<(UdpSocket, UdpSocket)> {
    let local = UdpSocket::bind("127.0.0.1:0")?;
    let remote = UdpSocket::bind("127.0.0.1:0")?;
    local.connect(remote.local_addr()?)?;
    remote.connect(local.local_addr()?)?;
    Ok((local, remote))
}

fn timed_out(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}

/// One datagram in flight. The sender writes `sequence`, then `message`; a null message is an empty slot.
struct Slot {
    message: AtomicPtr<crate::workloads::message::Head>,
    sequence: AtomicU64,
}

struct Ring {
    slots: Vec<Slot>,
    /// Datagrams sent so far.
    sent: AtomicU64,
    /// The sender sleeps until this sequence number has been received; u64::MAX when it is awake.
    wake_at: AtomicU64,
    /// The sender has sent everything.
    done: AtomicBool,
}

impl Ring {
    fn slot(&self, sequence: u64) -> &Slot {
        &self.slots[sequence as usize % self.slots.len()]
    }

    fn is_empty(&self) -> bool {
        self.slots
            .iter()
            .all(|slot| slot.message.load(Ordering::Acquire).is_null())
    }
}

/// One direction, as fast as the window lets it.
pub fn stream<O: Objects>(caches: Caches<O>, sample: &Sample) -> io::Result<Traffic> {
    let (local, remote) = pair()?;
    let buffer = set_buffer(&remote, libc::SO_RCVBUF, 1 << 20)?;
    remote.set_read_timeout(Some(PATIENCE))?;
    let slots = (0..window(buffer, caches.size()))
        .map(|_| Slot {
            message: AtomicPtr::default(),
            sequence: AtomicU64::new(0),
        })
        .collect();
    let ring = Ring {
        slots,
        sent: AtomicU64::new(0),
        wake_at: AtomicU64::new(u64::MAX),
        done: AtomicBool::new(false),
    };
    std::thread::scope(|scope| {
        let sender = std::thread::current();
        let ring = &ring;
        let receiver = Builder::new()
            .stack_size(STACK)
            .spawn_scoped(scope, move || {
                pin(sample.remote());
                receive(caches, &remote, ring, &sender, Meter::new(sample))
            })?;
        pin(sample.local());
        let made = send(caches, &local, ring, sample.deadline());
        let (rate, lost) = receiver
            .join()
            .unwrap_or_else(|_| die("netperf: the receiver panicked"));
        Ok(Traffic { rate, made, lost })
    })
}

fn send<O: Objects>(caches: Caches<O>, socket: &UdpSocket, ring: &Ring, deadline: Instant) -> u64 {
    let payload = pattern(caches.size());
    let window = ring.slots.len() as u64;
    let mut sequence = 0;
    while Instant::now() < deadline {
        let slot = ring.slot(sequence);
        // Pairs with the receiver's Release: an empty slot means that its objects were freed.
        while !slot.message.load(Ordering::Acquire).is_null() {
            // Sleep until half the window has drained, so that not every datagram costs a wake-up.
            ring.wake_at
                .store(sequence - window.div_ceil(2), Ordering::SeqCst);
            if !slot.message.load(Ordering::SeqCst).is_null() {
                std::thread::park_timeout(Duration::from_millis(5));
            }
            ring.wake_at.store(u64::MAX, Ordering::SeqCst);
        }
        let message = caches.make(&payload, sequence);
        slot.sequence.store(sequence, Ordering::Relaxed);
        // Release: whoever sees the message sees its sequence number.
        slot.message.store(message.0, Ordering::Release);
        // SAFETY: the receiver frees the message only after it arrived, or after PATIENCE beyond `sent` below.
        match socket.send(unsafe { caches.payload(message) }) {
            Ok(_) => {}
            // The device's queue is full: the datagram counts as lost, the receiver frees it.
            Err(e) if e.raw_os_error() == Some(libc::ENOBUFS) => {}
            Err(e) => die(&format!("netperf: send: {e}")),
        }
        sequence += 1;
        ring.sent.store(sequence, Ordering::Release);
    }
    ring.done.store(true, Ordering::Release);
    if let Err(e) = socket.send(&END) {
        // The receiver's timeout does the same, later.
        eprintln!("netperf: send: {e}");
    }
    sequence
}

fn receive<O: Objects>(
    caches: Caches<O>,
    socket: &UdpSocket,
    ring: &Ring,
    sender: &std::thread::Thread,
    mut meter: Meter,
) -> (f64, u64) {
    let mut buffer = vec![0; caches.size()];
    let mut sink = vec![0; caches.size()];
    let mut lost = 0;
    let mut rate = None;
    loop {
        let sent_before = ring.sent.load(Ordering::Acquire);
        match socket.recv(&mut buffer) {
            Ok(n) if n == caches.size() => {
                let (message, sequence) = read_stamp(&buffer);
                let slot = ring.slot(sequence);
                let here = slot.message.load(Ordering::Acquire) == message.0
                    && slot.sequence.load(Ordering::Relaxed) == sequence;
                if here {
                    // SAFETY: the slot says that this message is live; only this thread frees what is in the ring.
                    unsafe { caches.take(message, &mut sink) };
                    slot.message.store(std::ptr::null_mut(), Ordering::SeqCst);
                    meter.tick();
                    if sequence >= ring.wake_at.load(Ordering::SeqCst) {
                        ring.wake_at.store(u64::MAX, Ordering::SeqCst);
                        sender.unpark();
                    }
                }
            }
            Ok(_) => rate = Some(meter.rate()),
            Err(e) if timed_out(&e) => {
                lost += free_lost(caches, ring, sent_before, &mut sink);
                sender.unpark();
            }
            Err(e) => die(&format!("netperf: recv: {e}")),
        }
        if ring.done.load(Ordering::Acquire) && ring.is_empty() {
            return (rate.unwrap_or_else(|| meter.rate()), lost);
        }
    }
}

/// Frees the messages of datagrams below `sent_before` that never arrived; returns how many.
fn free_lost<O: Objects>(caches: Caches<O>, ring: &Ring, sent_before: u64, sink: &mut [u8]) -> u64 {
    let mut lost = 0;
    for slot in &ring.slots {
        let message = slot.message.load(Ordering::Acquire);
        if !message.is_null() && slot.sequence.load(Ordering::Relaxed) < sent_before {
            // SAFETY: the sender let go of it when it raised `sent`; only this thread frees what is in the ring.
            unsafe { caches.take(Message(message), sink) };
            slot.message.store(std::ptr::null_mut(), Ordering::SeqCst);
            lost += 1;
        }
    }
    lost
}

/// One transaction after the other.
pub fn request_response<O: Objects>(caches: Caches<O>, sample: &Sample) -> io::Result<Traffic> {
    let (local, remote) = pair()?;
    local.set_read_timeout(Some(RR_PATIENCE))?;
    remote.set_read_timeout(Some(RR_PATIENCE))?;
    std::thread::scope(|scope| {
        let server = Builder::new()
            .stack_size(STACK)
            .spawn_scoped(scope, move || {
                pin(sample.remote());
                serve(caches, &remote)
            })?;
        pin(sample.local());
        let payload = pattern(caches.size());
        let mut buffers = (vec![0; caches.size()], vec![0; caches.size()]);
        let deadline = sample.deadline();
        let mut meter = Meter::new(sample);
        let mut sequence = 0;
        while Instant::now() < deadline {
            send_one(caches, &local, &payload, sequence);
            sequence += 1;
            if !receive_one(caches, &local, &mut buffers) {
                die("netperf: UDP_RR: a response of the wrong size");
            }
            meter.tick();
        }
        let rate = meter.rate();
        local.send(&END)?;
        let served = server
            .join()
            .unwrap_or_else(|_| die("netperf: the server panicked"));
        Ok(Traffic {
            rate,
            made: sequence + served,
            lost: 0,
        })
    })
}

fn serve<O: Objects>(caches: Caches<O>, socket: &UdpSocket) -> u64 {
    let payload = pattern(caches.size());
    let mut buffers = (vec![0; caches.size()], vec![0; caches.size()]);
    let mut sequence = 0;
    while receive_one(caches, socket, &mut buffers) {
        send_one(caches, socket, &payload, sequence);
        sequence += 1;
    }
    sequence
}

fn send_one<O: Objects>(caches: Caches<O>, socket: &UdpSocket, payload: &[u8], sequence: u64) {
    let message = caches.make(payload, sequence);
    // SAFETY: the other side takes the message only after the datagram has arrived.
    if let Err(e) = socket.send(unsafe { caches.payload(message) }) {
        die(&format!("netperf: send: {e}"));
    }
}

/// Receives and frees a message; false at the end.
fn receive_one<O: Objects>(
    caches: Caches<O>,
    socket: &UdpSocket,
    (buffer, sink): &mut (Vec<u8>, Vec<u8>),
) -> bool {
    match socket.recv(buffer) {
        Ok(n) if n == caches.size() => {
            let (message, _) = read_stamp(buffer);
            // SAFETY: the other side sent the address of a message it made and let go of.
            unsafe { caches.take(message, sink) };
            true
        }
        Ok(_) => false,
        Err(e) if timed_out(&e) => {
            die("netperf: UDP_RR: a datagram was lost: no answer within 5 s")
        }
        Err(e) => die(&format!("netperf: recv: {e}")),
    }
}
