//! Progress on standard error: a bar with the time left on a terminal, a plain line for each finished job elsewhere.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

const WIDTH: usize = 24;

/// The state of a run that shows itself.
pub struct Progress {
    terminal: bool,
    began: Instant,
    done: usize,
    total: usize,
}

impl Progress {
    /// A run of `total` worker processes that starts now.
    pub fn new(total: usize) -> Self {
        Self {
            terminal: std::io::stderr().is_terminal(),
            began: Instant::now(),
            done: 0,
            total,
        }
    }

    /// One worker has ended (or was left out); `label` says what comes next.
    pub fn step(&mut self, label: &str) {
        self.done += 1;
        if self.terminal {
            let filled = WIDTH * self.done.min(self.total) / self.total.max(1);
            let bar = format!("{}{}", "#".repeat(filled), ".".repeat(WIDTH - filled));
            self.write(&format!(
                "\r\x1b[K[{bar}] {:>3}% {}{label}",
                self.percent(),
                self.left()
            ));
        }
    }

    /// `count` more workers are to run than was planned.
    pub fn extend(&mut self, count: usize) {
        self.total += count;
    }

    /// A job is complete.
    pub fn finished(&mut self, label: &str) {
        if !self.terminal {
            self.write(&format!("{:>3}% {}{label}\n", self.percent(), self.left()));
        }
    }

    /// Something the reader should know at once.
    pub fn note(&mut self, text: &str) {
        let clear = if self.terminal { "\r\x1b[K" } else { "" };
        self.write(&format!("{clear}{text}\n"));
    }

    /// Removes the bar.
    pub fn clear(&mut self) {
        if self.terminal {
            self.write("\r\x1b[K");
        }
    }

    fn percent(&self) -> usize {
        100 * self.done.min(self.total) / self.total.max(1)
    }

    fn left(&self) -> String {
        left(self.began.elapsed(), self.done, self.total)
    }

    fn write(&self, text: &str) {
        // Nowhere to show progress is no reason to stop a run.
        let _ = std::io::stderr().write_all(text.as_bytes());
    }
}

fn left(elapsed: Duration, done: usize, total: usize) -> String {
    if done == 0 || done >= total {
        return String::new();
    }
    let seconds = (elapsed.as_secs_f64() / done as f64 * (total - done) as f64).round() as u64;
    format!("{}:{:02} left  ", seconds / 60, seconds % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_left_is_proportional() {
        assert_eq!(left(Duration::from_secs(10), 1, 10), "1:30 left  ");
        assert_eq!(left(Duration::from_secs(10), 0, 10), "");
        assert_eq!(left(Duration::from_secs(10), 10, 10), "");
    }

    #[test]
    fn rounds_beyond_the_plan_move_the_end() {
        let mut progress = Progress::new(2);
        progress.step("");
        progress.step("");
        assert_eq!(progress.percent(), 100);
        progress.extend(2);
        assert_eq!(progress.percent(), 50);
    }
}
