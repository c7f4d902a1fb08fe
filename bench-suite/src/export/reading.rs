//! What each workload measures and how to read it: the paragraphs to which the report's tables link.

use crate::workloads;

/// The id of a workload's paragraph.
pub fn anchor(workload: &str) -> String {
    let name: String = workload
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() { c } else { '-' })
        .collect();
    format!("read-{name}")
}

/// The paragraph of a workload; one that is not known here is introduced by its own line in `list`.
pub fn paragraph(workload: &str) -> String {
    let known = match workload {
        "hackbench" => {
            "Groups of 20 senders and 20 receivers pass 100-byte messages through sockets or pipes; the number in a row \
             is that of groups, the figure the seconds until the last message has arrived. A message is a head and a \
             data object of the allocator under test, made by the sender and freed by the receiver, another thread: \
             this is where an allocator pays for objects that come home from elsewhere. With 40 threads a group the \
             scheduler takes part in every figure, so intervals are wide; trust a difference that several rows share."
        }
        "netperf" => {
            "One thread sends over a loopback socket and another receives: STREAM one way as fast as it goes (MB/s), RR \
             one request and one answer at a time (transactions a second). The number is the payload in bytes. Each \
             message is a head and a data object, freed on the other side. The kernel's network path dominates: look \
             at the alloc column before you believe a small delta, and at RR rows for the latency of a single pair."
        }
        "slab-micro" => {
            "The allocator and next to nothing else, by object size. alloc: 10,000 allocations in a row, so that refills \
             and new slabs count; free: their frees in the same order; pair: one object allocated and freed again, the \
             fast path alone; remote: frees of what other threads allocated; all: every CPU at once; bulk/N: N objects \
             in one call. Nanoseconds and time-stamp cycles an object. Differences here are true but magnified: a \
             program spends a few per cent of its time in them."
        }
        "sysbench" => {
            "Transactions of an OLTP-like session by number of threads: row buffers, index keys, log records and result \
             sets of mixed sizes and lifetimes. More is better; where the curve stops rising with the threads, CPUs or \
             locks have run out. memory moves blocks instead and shows how little of that is the allocator's."
        }
        "reaim" => {
            "A mix of sub-tests in random order, with more and more users until the jobs per minute fall. The figure is \
             the maximum, mean of three runs. An allocator that scales badly shows in the peak and in where it lies."
        }
        "aim9" => {
            "Single operations over a fixed time, a second: pages taken and given back, the break moved, small objects, \
             fork. Each row is one path; no row stands for a program."
        }
        "contest" => {
            "A fixed foreground job while a load runs beside it. Time and CPU% are the foreground's, Loads and LCPU% the \
             load's, Ratio is Time over the same backend's no_load. A good allocator has small ratios without starving \
             the load; times that rise from run to run point to a leak."
        }
        _ => "",
    };
    if !known.is_empty() {
        return known.to_owned();
    }
    let about = workloads::find(workload).map_or("", |workload| workload.about());
    let mut about = about.to_owned();
    if let Some(first) = about.get(..1) {
        about = first.to_uppercase() + &about[1..];
        about.push_str(". ");
    }
    about
        + "The title of each table gives the metric, its unit and which direction is better; compare columns within a \
           row, not rows with one another."
}

/// How to read what all workloads share: a heading and a text each.
pub const COMMON: [(&str, &str); 8] = [
    (
        "Tables",
        "A cell is the mean over the rounds (harmonic for rates) and, in brackets, the change from the first column, \
         signed so that + is always better. Stars in place of brackets, and colour, mean significant: the exact \
         Mann–Whitney test finds p < 0.05 for this row alone. Of twenty rows without any difference one has stars by \
         chance: believe a pattern, not a single star. The last column gives the widths of confidence intervals that are \
         wider than asked for.",
    ),
    (
        "alloc",
        "The allocator's share of the row's time: what the row takes longer than on the floor, an allocator that does \
         next to nothing and still works. It bounds what any allocator can win or lose there. Under 10 % (marked !) a \
         delta says little about allocators.",
    ),
    (
        "Bars",
        "Lengths are relative to the first column in the same row, so that rows of different size share a plot. Whiskers \
         are confidence intervals of the mean, dots the single rounds. Bars whose whiskers overlap widely are not \
         different. » marks a bar that is longer than there is room.",
    ),
    (
        "Lines",
        "Rows whose names differ in one number, over that number. Look for where curves cross and where they bend. The \
         axis is logarithmic where values span more than a factor of 20.",
    ),
    (
        "Latency distributions",
        "How many operations took at most so long. The axis stretches the slow tail: each step from 90 % to 99 % to \
         99.9 % is equally high. A curve further left is faster; one that runs to the right near the top has a long tail, \
         which means do not show.",
    ),
    (
        "Memory over time",
        "The resident memory of one worker in the first round, seen from outside; the row with the largest peak of each \
         workload. A curve that climbs without end under a steady load leaks; one that stays up after the load has ended \
         keeps its memory.",
    ),
    (
        "Pageblocks",
        "A cell is 2 MiB of the arena in the order of addresses. Its colour is the migratetype, its filling how many of \
         its pages are in use. Many half-filled cells are memory that cannot be given back whole; cells of mixed types \
         are what placement is there to avoid.",
    ),
    (
        "Doubt",
        "Warnings at the top say what may mislead. Figures of different runs of the machine are not comparable by eye; \
         compare --from does it with the statistics of this page.",
    ),
];
