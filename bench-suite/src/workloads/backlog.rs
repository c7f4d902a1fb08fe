//! How many messages are in flight at most. A channel holds thousands of addresses, and how far senders run ahead of
//! receivers is the scheduler's choice: it decides the peak of the resident set, whatever the allocator.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// A count on cache lines of its own: no two threads write to one line.
#[derive(Default)]
#[repr(align(128))]
struct Count(AtomicU64);

/// Messages so far of one sender and one receiver, each written by its thread alone.
#[derive(Default)]
pub struct Lane {
    sent: Count,
    received: Count,
}

impl Lane {
    /// The sender has sent so many.
    pub fn sent(&self, messages: u64) {
        self.sent.0.store(messages, Ordering::Relaxed);
    }

    /// The receiver has freed so many.
    pub fn received(&self, messages: u64) {
        self.received.0.store(messages, Ordering::Relaxed);
    }
}

/// All lanes, and the largest backlog seen.
pub struct Backlog {
    lanes: Vec<Lane>,
    most: AtomicU64,
    over: AtomicBool,
}

impl Backlog {
    /// Of `lanes` senders and as many receivers.
    pub fn new(lanes: usize) -> Self {
        Self {
            lanes: (0..lanes).map(|_| Lane::default()).collect(),
            most: AtomicU64::new(0),
            over: AtomicBool::new(false),
        }
    }

    /// One for each pair of threads.
    pub fn lanes(&self) -> &[Lane] {
        &self.lanes
    }

    /// Looks twice a millisecond until [`Backlog::end`].
    pub fn watch(&self) {
        while !self.over.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_micros(500));
            self.look();
        }
    }

    fn look(&self) {
        // Received first: what is sent meanwhile counts as in flight, and never the other way round.
        let sum = |of: fn(&Lane) -> &AtomicU64| -> u64 {
            (self.lanes.iter())
                .map(|lane| of(lane).load(Ordering::Relaxed))
                .sum()
        };
        let received = sum(|lane| &lane.received.0);
        let sent = sum(|lane| &lane.sent.0);
        self.most
            .fetch_max(sent.saturating_sub(received), Ordering::Relaxed);
    }

    /// No more is sent.
    pub fn end(&self) {
        self.over.store(true, Ordering::Relaxed);
    }

    /// The largest backlog seen, in messages.
    pub fn most(&self) -> u64 {
        self.most.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_backlog_is_kept() {
        let backlog = Backlog::new(2);
        for (sent, received) in [(5, 0), (9, 2), (9, 9)] {
            backlog.lanes()[0].sent(sent);
            backlog.lanes()[1].sent(1);
            backlog.lanes()[1].received(received);
            backlog.look();
        }
        assert_eq!(backlog.most(), 8);
    }
}
