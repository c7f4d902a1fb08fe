//! TCP_STREAM and TCP_RR. TCP loses nothing and holds the sender back by itself: the socket buffers are fixed, which
//! bounds the messages in flight.

use super::{Meter, Sample, Traffic, set_buffer};
use crate::objects::Objects;
use crate::workloads::message::{Caches, pattern, read_stamp};
use crate::workloads::{STACK, die, pin};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::thread::Builder;
use std::time::Instant;

/// Socket buffers, each way; the kernel doubles it for its bookkeeping.
const BUFFER: libc::c_int = 128 * 1024;

fn pair() -> io::Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let local = TcpStream::connect(listener.local_addr()?)?;
    let (remote, _) = listener.accept()?;
    for socket in [&local, &remote] {
        set_buffer(socket, libc::SO_SNDBUF, BUFFER)?;
        set_buffer(socket, libc::SO_RCVBUF, BUFFER)?;
    }
    Ok((local, remote))
}

/// One direction, as fast as it goes.
pub fn stream<O: Objects>(caches: Caches<O>, sample: &Sample) -> io::Result<Traffic> {
    let (local, remote) = pair()?;
    std::thread::scope(|scope| {
        let receiver = Builder::new()
            .stack_size(STACK)
            .spawn_scoped(scope, move || {
                pin(sample.remote());
                let mut meter = Meter::new(sample);
                let mut buffers = (vec![0; caches.size()], vec![0; caches.size()]);
                while receive_one(caches, &remote, &mut buffers) {
                    meter.tick();
                }
                meter.rate()
            })?;
        pin(sample.local());
        let payload = pattern(caches.size());
        let deadline = sample.deadline();
        let mut sequence = 0;
        while Instant::now() < deadline {
            send_one(caches, &local, &payload, sequence);
            sequence += 1;
        }
        local.shutdown(Shutdown::Write)?;
        let rate = receiver
            .join()
            .unwrap_or_else(|_| die("netperf: the receiver panicked"));
        Ok(Traffic {
            rate,
            made: sequence,
            lost: 0,
        })
    })
}

/// One transaction after the other.
pub fn request_response<O: Objects>(caches: Caches<O>, sample: &Sample) -> io::Result<Traffic> {
    let (local, remote) = pair()?;
    local.set_nodelay(true)?;
    remote.set_nodelay(true)?;
    std::thread::scope(|scope| {
        let server = Builder::new()
            .stack_size(STACK)
            .spawn_scoped(scope, move || {
                pin(sample.remote());
                let payload = pattern(caches.size());
                let mut buffers = (vec![0; caches.size()], vec![0; caches.size()]);
                let mut sequence = 0;
                while receive_one(caches, &remote, &mut buffers) {
                    send_one(caches, &remote, &payload, sequence);
                    sequence += 1;
                }
                sequence
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
                die("netperf: TCP_RR: the server hung up");
            }
            meter.tick();
        }
        let rate = meter.rate();
        local.shutdown(Shutdown::Write)?;
        let served: u64 = server
            .join()
            .unwrap_or_else(|_| die("netperf: the server panicked"));
        Ok(Traffic {
            rate,
            made: sequence + served,
            lost: 0,
        })
    })
}

fn send_one<O: Objects>(caches: Caches<O>, mut socket: &TcpStream, payload: &[u8], sequence: u64) {
    let message = caches.make(payload, sequence);
    // The receiver takes the message once all its bytes have arrived, that is after the kernel has read them here.
    // SAFETY: as said.
    if let Err(e) = socket.write_all(unsafe { caches.payload(message) }) {
        die(&format!("netperf: write: {e}"));
    }
}

/// Receives and frees a message; false at the end of the stream.
fn receive_one<O: Objects>(
    caches: Caches<O>,
    mut socket: &TcpStream,
    (buffer, sink): &mut (Vec<u8>, Vec<u8>),
) -> bool {
    match socket.read_exact(buffer) {
        Ok(()) => {
            let (message, _) = read_stamp(buffer);
            // SAFETY: the other side sent the address of a message it made and let go of.
            unsafe { caches.take(message, sink) };
            true
        }
        Err(e) if e.kind() == ErrorKind::UnexpectedEof => false,
        Err(e) => die(&format!("netperf: read: {e}")),
    }
}
