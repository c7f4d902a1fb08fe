//! Freed objects wait here before the backend gets them, so that a write through a
//! stale pointer finds poison, and a second free the tracks of the first.
//!
//! A FIFO of at most [`LIMIT`] bytes and [`PLACES`] objects for the process. Whoever
//! cannot have its lock at once passes it by: freeing never waits here, and a signal
//! handler that interrupted the holder does not hang.

#![allow(unsafe_code)]

use page_alloc::sync::{FutexLock, Lock};

use super::Flags;
use super::record::Object;

/// Bytes that wait at most.
const LIMIT: usize = 1 << 20;
/// Objects that wait at most.
const PLACES: usize = 4096;
/// Larger objects do not wait.
pub(super) const LARGEST: usize = LIMIT / 4;
/// How often the lock is tried.
const TRIES: usize = 100;

/// A waiting object, and what gives it to its backend.
#[derive(Clone, Copy)]
pub(super) struct Waiting {
    pub(super) object: Object,
    pub(super) flags: Flags,
    pub(super) release: fn(Object, Flags),
}

struct Fifo {
    places: [Option<Waiting>; PLACES],
    first: usize,
    count: usize,
    bytes: usize,
}

static FIFO: Lock<Fifo> = Lock::new(Fifo {
    places: [None; PLACES],
    first: 0,
    count: 0,
    bytes: 0,
});

impl Waiting {
    fn go(self) {
        (self.release)(self.object, self.flags);
    }
}

impl Fifo {
    fn push(&mut self, waiting: Waiting, bytes: usize) {
        self.places[(self.first + self.count) % PLACES] = Some(waiting);
        self.count += 1;
        self.bytes += bytes;
    }

    fn pop(&mut self) -> Option<Waiting> {
        let waiting = self.places[self.first].take()?;
        self.first = (self.first + 1) % PLACES;
        self.count -= 1;
        self.bytes -= waiting.object.inner_size().min(self.bytes);
        Some(waiting)
    }
}

/// Lets an object wait; gives the oldest ones to their backends to make room.
pub(super) fn push(waiting: Waiting) {
    let bytes = waiting.object.inner_size();
    if bytes > LARGEST {
        return waiting.go();
    }
    loop {
        let Some(mut fifo) = (0..TRIES).find_map(|_| FIFO.try_lock()) else {
            return waiting.go();
        };
        if fifo.count < PLACES && fifo.bytes + bytes <= LIMIT {
            return fifo.push(waiting, bytes);
        }
        let oldest = fifo.pop();
        // The backend takes locks of its own.
        drop(fifo);
        match oldest {
            Some(oldest) => oldest.go(),
            None => return waiting.go(),
        }
    }
}

/// Gives everything that waits to its backend.
pub(super) fn drain() {
    loop {
        let oldest = FIFO.lock().pop();
        match oldest {
            Some(oldest) => oldest.go(),
            None => return,
        }
    }
}

/// For the fork handlers.
pub(super) fn with_raw_lock(f: impl Fn(&FutexLock)) {
    // SAFETY: the fork handlers mark, take and release raw locks in pairs.
    f(unsafe { FIFO.raw() });
}
