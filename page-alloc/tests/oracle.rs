//! Random operations against a naive oracle: a map of pages, checked after every
//! operation.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_macros,
    clippy::disallowed_types
)]
#![cfg(not(loom))]

mod common;

use std::collections::BTreeMap;
use std::sync::Mutex;

use common::{assert_all_merged, audited, drained, word};
use page_alloc::{
    MIGRATETYPES, Migratetype, Order, PAGE_SIZE, PAGEBLOCK_PAGES, PageKind, PageRef, alloc_pages,
    alloc_run, chunk_is_zero, extend_run, free_cold_pages, free_pages, free_run, page_of, pcp,
    purge, run_pages, shrink_run, stale_ranges,
};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngSeed};

/// Pages in use at once, at most: 384 MiB.
const MOST: usize = 96 << 10;

#[derive(Clone, Debug)]
enum Op {
    Alloc(u8, Migratetype),
    Run(usize, usize, Migratetype),
    /// The victim, and whether its pages are called cold.
    Free(usize, bool),
    /// The victim, and its new length in thousandths of the present one.
    Resize(usize, usize),
    Trim,
    Drain,
}

fn op() -> impl Strategy<Value = Op> {
    let mt = proptest::sample::select(&Migratetype::ALL[..]);
    let pages = prop_oneof![
        4 => 1usize..40,
        3 => 40usize..700,
        1 => 700usize..9000,
        1 => Just(PAGEBLOCK_PAGES),
        1 => (1usize..6).prop_map(|n| n * PAGEBLOCK_PAGES),
    ];
    // 4 KiB to 256 MiB, the usual ones more often.
    let align = prop_oneof![6 => Just(0u32), 4 => 1u32..=9, 1 => 10u32..=16];
    prop_oneof![
        6 => (prop_oneof![3 => 0u8..=5, 1 => 6u8..=12], mt.clone()).prop_map(|(o, m)| Op::Alloc(o, m)),
        4 => (pages, align, mt).prop_map(|(p, a, m)| Op::Run(p, PAGE_SIZE << a, m)),
        8 => (any::<usize>(), any::<bool>()).prop_map(|(v, c)| Op::Free(v, c)),
        3 => (any::<usize>(), 1usize..3000).prop_map(|(v, n)| Op::Resize(v, n)),
        1 => Just(Op::Trim),
        1 => Just(Op::Drain),
    ]
}

#[derive(Clone, Copy)]
struct Live {
    page: PageRef,
    pages: usize,
    mt: Migratetype,
    run: bool,
    id: u64,
}

/// What must be so.
#[derive(Default)]
struct Oracle {
    live: Vec<Live>,
    /// First page number -> one past the last.
    spans: BTreeMap<usize, usize>,
    used: [usize; MIGRATETYPES],
    ids: u64,
}

fn number(page: PageRef) -> usize {
    page.address() as usize / PAGE_SIZE
}

/// Marks each page at both ends.
fn fill(live: &Live, from: usize) {
    for i in from..live.pages {
        for offset in [i * PAGE_SIZE, (i + 1) * PAGE_SIZE - 8] {
            // SAFETY: inside an allocation that the test holds.
            unsafe { word(live.page, offset).write(live.id + i as u64) };
        }
    }
}

fn assert_filled(live: &Live) {
    for i in 0..live.pages {
        for offset in [i * PAGE_SIZE, (i + 1) * PAGE_SIZE - 8] {
            // SAFETY: inside an allocation that the test holds.
            let found = unsafe { word(live.page, offset).read() };
            assert_eq!(found, live.id + i as u64, "page {i} of {}", live.pages);
        }
    }
}

fn assert_zero(page: PageRef, from: usize, to: usize) {
    // `fill` is the only writer, so the words that it writes tell.
    for at in (from..to).step_by(PAGE_SIZE) {
        for offset in [at, at + PAGE_SIZE - 8] {
            // SAFETY: inside an allocation that the test holds.
            let found = unsafe { word(page, offset).read() };
            assert_eq!(found, 0, "byte {offset} said zero");
        }
    }
}

impl Oracle {
    fn claim(&mut self, start: usize, pages: usize, mt: Migratetype) {
        let before = self.spans.range(..=start).next_back();
        assert!(before.is_none_or(|(_, end)| *end <= start), "overlap below");
        let after = self.spans.range(start..).next();
        assert!(
            after.is_none_or(|(s, _)| *s >= start + pages),
            "overlap above"
        );
        self.spans.insert(start, start + pages);
        self.used[mt as usize] += pages;
    }

    fn add(&mut self, page: PageRef, pages: usize, mt: Migratetype, run: bool) {
        self.claim(number(page), pages, mt);
        self.ids += 1;
        let live = Live {
            page,
            pages,
            mt,
            run,
            id: self.ids << 32,
        };
        fill(&live, 0);
        self.live.push(live);
    }

    fn remove(&mut self, index: usize) -> Live {
        let live = self.live.swap_remove(index);
        self.spans.remove(&number(live.page));
        self.used[live.mt as usize] -= live.pages;
        assert_filled(&live);
        live
    }

    fn resize(&mut self, index: usize, pages: usize) {
        let live = &mut self.live[index];
        let have = std::mem::replace(&mut live.pages, pages);
        let live = *live;
        self.spans.remove(&number(live.page));
        self.used[live.mt as usize] -= have;
        self.claim(number(live.page), pages, live.mt);
        fill(&live, have.min(pages));
        assert_filled(&live);
    }

    fn total(&self) -> usize {
        self.used.iter().sum()
    }

    fn apply(&mut self, op: &Op) {
        match *op {
            Op::Alloc(o, mt) => {
                let order = Order::new(o).unwrap();
                if self.total() + order.pages() > MOST {
                    return;
                }
                let page = alloc_pages(order, mt).unwrap();
                assert!((page.address() as usize).is_multiple_of(order.bytes()));
                assert_eq!((page.kind(), page.order()), (PageKind::Pages, o));
                assert_eq!(page.migratetype(), mt);
                let last = page.address().wrapping_add(order.bytes() - 1);
                assert!(std::ptr::eq(page_of(last).unwrap().head(), page));
                if chunk_is_zero(page) {
                    assert_zero(page, 0, order.bytes());
                }
                self.add(page, order.pages(), mt, false);
            }
            Op::Run(pages, align, mt) => {
                if self.total() + pages > MOST {
                    return;
                }
                let run = alloc_run(pages, align, mt).unwrap();
                let page = run.page;
                assert!((page.address() as usize).is_multiple_of(align));
                assert_eq!((page.kind(), run_pages(page)), (PageKind::Run, pages));
                if run.zeroed {
                    assert_zero(page, 0, pages * PAGE_SIZE);
                }
                let mut clean = 0;
                for (from, to) in stale_ranges(page) {
                    assert!(from < to && from >= clean);
                    assert_zero(page, clean, from);
                    clean = to;
                }
                assert!(clean <= pages * PAGE_SIZE);
                assert_zero(page, clean, pages * PAGE_SIZE);
                self.add(page, pages, mt, true);
            }
            Op::Free(victim, cold) if !self.live.is_empty() => {
                let live = self.remove(victim % self.live.len());
                match (live.run, cold) {
                    (true, _) => free_run(live.page).unwrap(),
                    (_, true) => free_cold_pages(live.page).unwrap(),
                    _ => free_pages(live.page).unwrap(),
                }
            }
            Op::Resize(victim, thousandths) if !self.live.is_empty() => {
                let index = victim % self.live.len();
                let live = self.live[index];
                let want = (live.pages * thousandths).div_ceil(1000);
                if self.total() + want > MOST {
                    return;
                }
                if want > live.pages {
                    // Only a run grows; anything else is refused.
                    if extend_run(live.page, want) {
                        assert!(live.run);
                        self.resize(index, want);
                    }
                } else {
                    shrink_run(live.page, want);
                    if live.run {
                        self.resize(index, want);
                    }
                }
                if self.live[index].run {
                    assert_eq!(run_pages(live.page), self.live[index].pages);
                }
            }
            Op::Trim => {
                purge::trim();
                assert_eq!(audited(0).dirty_pages, 0, "all free memory was given back");
            }
            Op::Drain => {
                assert_eq!(drained().used, self.used, "the census is exact");
                assert_eq!(pcp::cached_pages(), 0);
            }
            _ => {}
        }
        let s = audited(0);
        let used: usize = s.used.iter().sum();
        assert_eq!(used, self.total() + pcp::cached_pages());
    }
}

/// The allocator is the process's: one case at a time.
static ONE: Mutex<()> = Mutex::new(());

fn run(ops: &[Op]) {
    let _one = ONE.lock().unwrap();
    let mut oracle = Oracle::default();
    for op in ops {
        oracle.apply(op);
    }
    assert_eq!(drained().used, oracle.used);
    while !oracle.live.is_empty() {
        oracle.apply(&Op::Free(0, false));
    }
    // The urgent reserve is not merged until it is released.
    purge::trim();
    assert_all_merged();
}

proptest! {
    #![proptest_config(Config {
        cases: 400,
        rng_seed: RngSeed::Fixed(2005),
        max_shrink_iters: 200,
        failure_persistence: None,
        ..Config::default()
    })]

    /// Any sequence of operations keeps the accounts, and leaves nothing behind.
    #[test]
    fn agrees_with_the_oracle(ops in proptest::collection::vec(op(), 1..220)) {
        run(&ops);
    }
}

/// Runs above the maximum order, and such that no single chunk holds, come again
/// from the memory that they left.
#[test]
fn large_runs_are_reused() {
    for pages in [33 << 8, (1 << 18) + 300, 3 << 18] {
        let before = {
            let _one = ONE.lock().unwrap();
            free_run(
                alloc_run(pages, PAGE_SIZE, Migratetype::Large)
                    .unwrap()
                    .page,
            )
            .unwrap();
            page_alloc::committed_bytes()
        };
        for _ in 0..20 {
            let _one = ONE.lock().unwrap();
            free_run(
                alloc_run(pages, PAGE_SIZE, Migratetype::Large)
                    .unwrap()
                    .page,
            )
            .unwrap();
        }
        assert!(
            page_alloc::committed_bytes() - before <= 64 << 20,
            "{pages} pages"
        );
    }
}
