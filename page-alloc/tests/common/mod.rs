//! What the test binaries share: a process of its own for a scenario, and the
//! accounts of the page allocator.
#![allow(dead_code)]

use std::process::Command;

use page_alloc::stats::{ZoneStats, zone_stats};
use page_alloc::{
    MAX_ORDER, MIGRATETYPES, Migratetype, Order, PAGE_SIZE, PageRef, alloc_pages, pcp,
};

/// Runs `scenario` in a fresh process: the allocator's state and settings are the
/// process's. `name` is the full name of the calling test.
pub fn in_child(name: &str, scenario: fn()) {
    const MARK: &str = "PAGE_ALLOC_SCENARIO";
    if std::env::var(MARK).is_ok_and(|running| running == name) {
        return scenario();
    }
    let output = Command::new(std::env::current_exe().unwrap())
        .args([name, "--exact", "--nocapture", "--test-threads=1"])
        .env(MARK, name)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && text.contains("1 passed"),
        "scenario {name}: {}\n{text}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
}

pub fn order(order: u8) -> Order {
    Order::new(order).unwrap()
}

pub fn take(o: u8, mt: Migratetype) -> PageRef {
    alloc_pages(order(o), mt).unwrap()
}

/// A node's statistics, after the accounts that always hold were checked.
pub fn audited(node: usize) -> ZoneStats {
    let s = zone_stats(node).unwrap();
    let used: usize = s.used.iter().sum();
    assert_eq!(s.free_pages + used, s.managed_pages, "free + used = all");
    let listed: usize = (0..=MAX_ORDER as usize)
        .map(|o| s.chunks_of_order(o) << o)
        .sum();
    assert_eq!(listed, s.free_pages, "chunks on the lists = free");
    assert!(s.dirty_pages <= s.free_pages);
    assert_eq!(s.blocks.iter().sum::<usize>() * 512, s.managed_pages);
    s
}

/// Node 0's statistics with nothing in this thread's lists.
pub fn drained() -> ZoneStats {
    pcp::drain_current();
    audited(0)
}

/// Pages in use, all types.
pub fn used() -> usize {
    drained().used.iter().sum()
}

/// Checks that all memory of a single-arena process is free and merged as far as it
/// can be: chunk by chunk what buddyinfo must show.
pub fn assert_all_merged() {
    let s = drained();
    assert_eq!(s.used, [0; MIGRATETYPES], "nothing is in use");
    assert_eq!(s.mixed_blocks, 0);
    assert_eq!(s.free_blocks * 512, s.managed_pages);
    let mut expected = [0usize; MAX_ORDER as usize + 1];
    let mut index = 0usize;
    while index < s.managed_pages {
        let order = index
            .trailing_zeros()
            .min((s.managed_pages - index).ilog2())
            .min(u32::from(MAX_ORDER));
        expected[order as usize] += 1;
        index += 1 << order;
    }
    for (order, expected) in expected.iter().enumerate() {
        assert_eq!(
            s.chunks_of_order(order),
            *expected,
            "chunks of order {order}"
        );
    }
}

/// Resident bytes of this process.
pub fn resident() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = text.split(' ').nth(1).unwrap().parse().unwrap();
    pages * PAGE_SIZE
}

/// Limits the process's address space.
pub fn limit_address_space(bytes: u64) {
    let limit = libc::rlimit {
        rlim_cur: bytes,
        rlim_max: bytes,
    };
    // SAFETY: a valid limit, of this process.
    let result = unsafe { libc::setrlimit(libc::RLIMIT_AS, &raw const limit) };
    assert_eq!(result, 0);
}

/// The word at `offset` bytes into pages that the test owns.
pub fn word(page: PageRef, offset: usize) -> *mut u64 {
    page.address().wrapping_add(offset).cast()
}
