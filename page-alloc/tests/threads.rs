//! Many threads: nobody gets what another has, and nothing is lost when they end.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_macros,
    clippy::disallowed_types
)]
#![cfg(not(loom))]

mod common;

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use common::{assert_all_merged, drained, in_child, order};
use page_alloc::sync::{Patience, enter_fork, leave_fork};
use page_alloc::{
    Migratetype, PAGE_SIZE, PageKind, PageRef, alloc_pages, alloc_run, extend_run, fork,
    free_cold_pages, free_pages, free_run, meta, page_of, pcp, purge, run_pages, shrink_run,
};

const THREADS: usize = 4;

/// Runs threads to their very end: a scope alone does not wait for exit hooks.
fn run_threads(count: u64, f: impl Fn(u64) + Sync) {
    let f = &f;
    std::thread::scope(|s| {
        let threads: Vec<_> = (0..count).map(|t| s.spawn(move || f(t))).collect();
        threads.into_iter().for_each(|t| t.join().unwrap());
    });
}

/// xorshift64*: enough for choosing operations.
struct Rng(u64);

impl Rng {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % n
    }
}

fn length(page: PageRef) -> usize {
    match page.kind() {
        PageKind::Run => run_pages(page),
        _ => 1 << page.order(),
    }
}

/// Enters `owner` in the records of the pages [from, to) of an allocation, which
/// must have had `before`.
fn enter(page: PageRef, from: usize, to: usize, before: u64, owner: u64) {
    for i in from..to {
        let record = page_of(page.address().wrapping_add(i * PAGE_SIZE)).unwrap();
        let found = record.private[0].swap(owner, Relaxed);
        if found != before {
            // In a forked child a panic may not get out.
            eprintln!("page {i} of {to} belongs to {found}, not {before}");
            std::process::abort();
        }
    }
}

fn take(rng: &mut Rng, me: u64) -> Option<PageRef> {
    let mt = Migratetype::ALL[rng.below(5)];
    let page = match rng.below(20) {
        0 => alloc_run(1 + rng.below(700), PAGE_SIZE << rng.below(11), mt)?.page,
        1 => alloc_pages(order(6 + rng.below(4) as u8), mt)?,
        n => alloc_pages(order(if n < 12 { 0 } else { rng.below(6) as u8 }), mt)?,
    };
    enter(page, 0, length(page), 0, me);
    Some(page)
}

fn give(rng: &mut Rng, page: PageRef, me: u64) {
    enter(page, 0, length(page), me, 0);
    match (page.kind(), rng.below(4)) {
        (PageKind::Run, _) => free_run(page).unwrap(),
        (_, 0) => free_cold_pages(page).unwrap(),
        _ => free_pages(page).unwrap(),
    }
}

fn resize(rng: &mut Rng, page: PageRef, me: u64) {
    if page.kind() != PageKind::Run {
        return;
    }
    let have = run_pages(page);
    let want = 1 + rng.below(2 * have);
    if want > have {
        if extend_run(page, want) {
            enter(page, have, want, 0, me);
        }
    } else {
        enter(page, want, have, me, 0);
        shrink_run(page, want);
    }
}

/// Threads take, resize, free, and give to one another, for so long.
fn stress(length: Duration) -> u64 {
    static MAIL: [Mutex<Vec<PageRef>>; THREADS] = [const { Mutex::new(Vec::new()) }; THREADS];
    static OPS: AtomicUsize = AtomicUsize::new(0);
    let start = Instant::now();
    run_threads(THREADS as u64, |t| {
        let me = t + 1;
        let mut rng = Rng(me * 0x9e37_79b9);
        let mut held = Vec::new();
        let mut ops = 0;
        while start.elapsed() < length {
            for _ in 0..256 {
                match rng.below(16) {
                    0..=6 if held.len() < 800 => held.extend(take(&mut rng, me)),
                    7 if !held.is_empty() => {
                        let page = held[rng.below(held.len())];
                        resize(&mut rng, page, me);
                    }
                    8..=10 if !held.is_empty() => {
                        // To be freed by another thread.
                        let page = held.swap_remove(rng.below(held.len()));
                        let to = rng.below(THREADS);
                        enter(page, 0, self::length(page), me, to as u64 + 1);
                        MAIL[to].lock().unwrap().push(page);
                    }
                    _ if !held.is_empty() => {
                        let page = held.swap_remove(rng.below(held.len()));
                        give(&mut rng, page, me);
                    }
                    _ => {}
                }
                ops += 1;
            }
            let mail = std::mem::take(&mut *MAIL[t as usize].lock().unwrap());
            mail.into_iter().for_each(|page| give(&mut rng, page, me));
            match rng.below(200) {
                0 => drop(purge::trim()),
                1 => pcp::drain_current(),
                2 => pcp::drain_all(),
                _ => purge::tick(),
            }
        }
        held.into_iter().for_each(|page| give(&mut rng, page, me));
        OPS.fetch_add(ops, Relaxed);
    });
    let mut rng = Rng(1);
    for (t, mail) in MAIL.iter().enumerate() {
        for page in mail.lock().unwrap().drain(..) {
            give(&mut rng, page, t as u64 + 1);
        }
    }
    OPS.load(Relaxed) as u64
}

/// `PAGE_ALLOC_SOAK` is the length in seconds.
#[test]
fn soak_accounts_for_every_page() {
    in_child("soak_accounts_for_every_page", || {
        let seconds = std::env::var("PAGE_ALLOC_SOAK")
            .ok()
            .and_then(|s| s.parse().ok())
            .unwrap_or(2);
        // Often enough to meet everything else.
        page_alloc::config::set_purge_ms(Some(20));
        let ops = stress(Duration::from_secs(seconds));
        println!("{ops} operations");
        assert!(ops > 10_000);
        assert_eq!(
            {
                pcp::drain_current();
                pcp::cached_pages()
            },
            0,
            "ended threads hold none"
        );
        purge::trim();
        assert_all_merged();
    });
}

/// Thread after thread: their records are used again, and hold no pages.
#[test]
fn two_thousand_threads_leave_nothing() {
    in_child("two_thousand_threads_leave_nothing", || {
        static LEFT: Mutex<Vec<PageRef>> = Mutex::new(Vec::new());
        let mut records = 0;
        for round in 0..500u64 {
            run_threads(4, |t| {
                let mut rng = Rng(round * 4 + t + 1);
                let me = t + 1;
                let pages: Vec<_> = (0..30).filter_map(|_| take(&mut rng, me)).collect();
                for (i, page) in pages.into_iter().enumerate() {
                    if i % 5 == 0 {
                        enter(page, 0, length(page), me, 9);
                        LEFT.lock().unwrap().push(page);
                    } else {
                        give(&mut rng, page, me);
                    }
                }
            });
            let mut rng = Rng(round + 1);
            let left = std::mem::take(&mut *LEFT.lock().unwrap());
            left.into_iter().for_each(|page| give(&mut rng, page, 9));
            if round == 20 {
                records = meta::in_use();
            }
        }
        // Scheduling decides how many live at once: four and the main thread.
        assert!(meta::in_use() <= records + 5 * 4096, "records are recycled");
        pcp::drain_current();
        assert_eq!(pcp::cached_pages(), 0);
        purge::trim();
        assert_all_merged();
    });
}

/// Destructors that run after the allocator's own exit hook are still served, and
/// leave no record behind.
#[test]
fn operations_after_thread_exit() {
    in_child("operations_after_thread_exit", || {
        static LATE: AtomicUsize = AtomicUsize::new(0);
        extern "C" fn late(page: *mut libc::c_void) {
            assert!(page_alloc::slot::has_exited());
            free_pages(page_of(page.cast()).unwrap()).unwrap();
            let mut rng = Rng(7);
            for _ in 0..50 {
                let page = take(&mut rng, 3).unwrap();
                give(&mut rng, page, 3);
            }
            pcp::drain_current();
            assert_eq!(pcp::cached_pages(), 0);
            LATE.fetch_add(1, Relaxed);
        }
        // The allocator's key first: destructors run in the order of the keys.
        free_pages(common::take(0, Migratetype::Movable)).unwrap();
        pcp::drain_current();
        let mut key = 0;
        // SAFETY: valid arguments.
        let made = unsafe { libc::pthread_key_create(&raw mut key, Some(late)) };
        assert_eq!(made, 0);
        let mut records = 0;
        for round in 0..200 {
            std::thread::spawn(move || {
                let page = common::take(2, Migratetype::Movable);
                // SAFETY: the key exists.
                unsafe { libc::pthread_setspecific(key, page.address().cast()) };
            })
            .join()
            .unwrap();
            if round == 0 {
                records = meta::in_use();
            }
        }
        assert_eq!(LATE.load(Relaxed), 200);
        assert_eq!(meta::in_use(), records);
        purge::trim();
        assert_all_merged();
    });
}

/// A fork in the middle of other threads' operations: the child has a whole
/// allocator, whatever those threads were doing.
#[test]
fn forked_children_work_on() {
    in_child("forked_children_work_on", || {
        static STOP: AtomicUsize = AtomicUsize::new(0);
        page_alloc::config::set_purge_ms(Some(1));
        std::thread::scope(|s| {
            let threads = [1, 2].map(|me| {
                s.spawn(move || {
                    let mut rng = Rng(me);
                    let mut held = Vec::new();
                    while STOP.load(Relaxed) == 0 {
                        if held.len() < 200 && rng.below(2) == 0 {
                            held.extend(take(&mut rng, me));
                        } else if !held.is_empty() {
                            let page = held.swap_remove(rng.below(held.len()));
                            give(&mut rng, page, me);
                        }
                        if rng.below(1000) == 0 {
                            purge::trim();
                        }
                    }
                    held.into_iter().for_each(|page| give(&mut rng, page, me));
                })
            });
            for round in 0..150 {
                let patience = Patience::of_this_thread();
                assert!(enter_fork(patience));
                fork::prepare(patience);
                // SAFETY: the child runs on below, with the allocator's handlers.
                let pid = unsafe { libc::fork() };
                leave_fork();
                if pid == 0 {
                    // SAFETY: the child, before it starts threads.
                    unsafe { fork::child() };
                    in_forked_child(round);
                    // SAFETY: ends the child without the harness's exit.
                    unsafe { libc::_exit(0) };
                }
                fork::parent();
                assert!(pid > 0);
                let mut status = 0;
                // SAFETY: our child.
                unsafe { libc::waitpid(pid, &raw mut status, 0) };
                assert_eq!(status, 0, "round {round}");
            }
            STOP.store(1, Relaxed);
            threads.into_iter().for_each(|t| t.join().unwrap());
        });
        purge::trim();
        assert_all_merged();
    });
}

/// Uses the records that the vanished threads had, one after the other. (A panic
/// of a thread here ends in the exit status.)
fn in_forked_child(round: u64) {
    let ok = std::thread::scope(|s| {
        let threads: Vec<_> = (0..4)
            .map(|t| {
                s.spawn(move || {
                    let mut rng = Rng(round * 8 + t + 1);
                    for _ in 0..3 {
                        let held: Vec<_> =
                            (0..150).filter_map(|_| take(&mut rng, 50 + t)).collect();
                        held.into_iter()
                            .for_each(|page| give(&mut rng, page, 50 + t));
                    }
                    purge::trim();
                })
            })
            .collect();
        threads.into_iter().all(|t| t.join().is_ok())
    });
    let s = drained();
    let used: usize = s.used.iter().sum();
    if !ok || s.free_pages + used != s.managed_pages || pcp::cached_pages() > 64 * 24 {
        eprintln!("child of round {round}: {s:?}");
        // SAFETY: ends the child.
        unsafe { libc::_exit(1) };
    }
}
