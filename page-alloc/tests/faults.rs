//! What the kernel may refuse, and address space that is short.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_macros,
    clippy::disallowed_types
)]
#![cfg(not(loom))]

mod common;

use common::{
    assert_all_merged, audited, drained, in_child, limit_address_space, take, used, word,
};
use page_alloc::os::{self, Call, inject, refusals};
use page_alloc::{
    Migratetype::{self, Large, Movable, Unmovable},
    Order, PAGE_SIZE, PAGEBLOCK_PAGES, PAGEBLOCK_SIZE, PageError, PageRef, alloc_pages, alloc_run,
    committed_bytes, config, extend_run, free_pages, free_pages_at, free_run, granule, meta,
    page_of, purge, slot,
};

/// Takes pageblocks until memory is out.
fn take_all() -> Vec<PageRef> {
    std::iter::from_fn(|| alloc_pages(Order::PAGEBLOCK, Movable)).collect()
}

/// Takes and frees one of everything.
fn exercise() {
    for order in 0..=12 {
        let page = take(order, Movable);
        // SAFETY: just taken.
        unsafe { word(page, 0).write(1) };
        free_pages(page).unwrap();
    }
    let run = alloc_run(1000, 1 << 22, Large).unwrap();
    free_run(run.page).unwrap();
}

#[test]
fn refused_reservation_means_none_and_recovers() {
    in_child("refused_reservation_means_none_and_recovers", || {
        inject(Call::Reserve, true);
        for _ in 0..100 {
            assert!(alloc_pages(Order::ZERO, Movable).is_none());
            assert!(alloc_run(100, PAGE_SIZE, Large).is_none());
        }
        assert!(meta::alloc(64).is_none());
        assert!(refusals(Call::Reserve) >= 200);
        assert_eq!(committed_bytes(), 0);
        assert!(page_of(c"x".as_ptr().cast()).is_none());
        inject(Call::Reserve, false);
        exercise();
        assert_all_merged();
    });
}

#[test]
fn refused_commit_means_none_and_recovers() {
    in_child("refused_commit_means_none_and_recovers", || {
        // At first use, and again with an arena that has free pages.
        for round in 0..2 {
            let refused = refusals(Call::Commit);
            inject(Call::Commit, true);
            let taken = take_all();
            assert!(taken.len() * PAGEBLOCK_SIZE <= committed_bytes());
            for _ in 0..100 {
                assert!(alloc_pages(Order::PAGEBLOCK, Movable).is_none());
                assert!(alloc_run(PAGEBLOCK_PAGES, PAGE_SIZE, Large).is_none());
            }
            assert!(refusals(Call::Commit) > refused);
            if round > 0 {
                assert!(!taken.is_empty(), "what is committed stays usable");
                let s = drained();
                assert_eq!(s.free_pages, 0);
                assert!(s.counters.failures >= 200);
                let last = taken[taken.len() - 1];
                assert!(!extend_run(last, 2 * PAGEBLOCK_PAGES));
            }
            // A refusal reserves nothing: no further arenas pile up.
            let mapped = mapped_bytes();
            assert!(alloc_pages(Order::PAGEBLOCK, Movable).is_none());
            assert!(mapped_bytes().abs_diff(mapped) < 1 << 20);
            inject(Call::Commit, false);
            taken.into_iter().for_each(|page| free_pages(page).unwrap());
            exercise();
            assert_all_merged();
        }
    });
}

fn mapped_bytes() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    text.split(' ').next().unwrap().parse::<usize>().unwrap() * PAGE_SIZE
}

#[test]
fn refused_advice_is_counted_and_loses_nothing() {
    in_child("refused_advice_is_counted_and_loses_nothing", || {
        let run = alloc_run(3 * PAGEBLOCK_PAGES + 7, PAGE_SIZE, Large).unwrap();
        // SAFETY: ours.
        unsafe { run.page.address().write_bytes(7, 3 * PAGEBLOCK_SIZE) };
        free_run(run.page).unwrap();
        inject(Call::Advise, true);
        let (refused, dirty) = (refusals(Call::Advise), drained().dirty_pages);
        assert!(dirty >= 3 * PAGEBLOCK_PAGES);
        assert_eq!(purge::trim(), 0, "nothing was given back");
        assert!(refusals(Call::Advise) > refused);
        let s = audited(0);
        assert_eq!((s.dirty_pages, s.counters.purged_pages), (dirty, 0));
        let run = alloc_run(3 * PAGEBLOCK_PAGES, PAGE_SIZE, Large).unwrap();
        assert!(!run.zeroed, "not taken for zero");
        free_run(run.page).unwrap();
        // Metadata is cleared by hand then.
        let record = meta::alloc(64 << 10).unwrap();
        // SAFETY: ours, so long.
        unsafe {
            record.write_bytes(9, 64 << 10);
            meta::free(record, 64 << 10);
            let again = meta::alloc(64 << 10).unwrap();
            assert_eq!(again, record);
            assert!((0..64 << 10).all(|i| again.add(i).read() == 0));
        }
        inject(Call::Advise, false);
        assert!(purge::trim() >= dirty);
        assert_eq!(audited(0).dirty_pages, 0);
        let run = alloc_run(3 * PAGEBLOCK_PAGES, PAGE_SIZE, Large).unwrap();
        assert!(run.zeroed);
        free_run(run.page).unwrap();
        assert_all_merged();
    });
}

#[test]
fn refused_move_leaves_the_content() {
    let from = alloc_run(4, PAGE_SIZE, Large).unwrap().page;
    let to = alloc_run(4, PAGE_SIZE, Large).unwrap().page;
    // SAFETY: both are ours, whole pages.
    unsafe {
        from.address().write_bytes(5, 4 * PAGE_SIZE);
        inject(Call::Remap, true);
        let refused = refusals(Call::Remap);
        assert!(!os::move_pages(from.address(), to.address(), 4 * PAGE_SIZE));
        assert_eq!(refusals(Call::Remap), refused + 1);
        inject(Call::Remap, false);
        assert_eq!(from.address().read(), 5);
        if os::move_pages(from.address(), to.address(), 4 * PAGE_SIZE) {
            assert_eq!(to.address().read(), 5);
            assert_eq!(from.address().read(), 0);
        }
    }
    free_run(from).unwrap();
    free_run(to).unwrap();
}

#[test]
fn records_survive_a_shortage() {
    in_child("records_survive_a_shortage", || {
        static RECORDS: slot::Registry = slot::Registry::new(4096);
        let first = RECORDS.acquire().unwrap();
        inject(Call::Commit, true);
        let mut held = Vec::new();
        for _ in 0..2000 {
            held.extend(RECORDS.acquire());
        }
        inject(Call::Commit, false);
        let mut seen = 0;
        RECORDS.for_each(|_| seen += 1);
        assert_eq!(seen, held.len() + 1, "no index was used up by a failure");
        assert!(RECORDS.acquire().is_some());
        // SAFETY: from `acquire`, used no more.
        held.into_iter().for_each(|r| unsafe { RECORDS.release(r) });
        // SAFETY: as above.
        unsafe { RECORDS.release(first) };
    });
}

#[test]
fn the_limit_is_kept_and_no_more_is_reserved() {
    in_child("the_limit_is_kept_and_no_more_is_reserved", || {
        const LIMIT: usize = 64 << 20;
        config::set_arena_max(LIMIT);
        let taken = take_all();
        assert_eq!(committed_bytes(), LIMIT);
        assert_eq!(taken.len() * PAGEBLOCK_SIZE, LIMIT);
        // The metadata pool is reserved on the first use of the page lists.
        assert!(alloc_pages(Order::ZERO, Unmovable).is_none());
        let mapped = mapped_bytes();
        for _ in 0..200 {
            assert!(alloc_pages(Order::ZERO, Unmovable).is_none());
            assert!(alloc_run(1, PAGE_SIZE, Large).is_none());
            assert!(alloc_run(1 << 20, 1 << 28, Large).is_none());
        }
        assert_eq!(mapped_bytes(), mapped);
        // Freed by another thread into its lists, the last page is found again
        // when that thread meets the request.
        let victim = taken[0];
        free_pages(victim).unwrap();
        let small: Vec<_> = std::iter::from_fn(|| alloc_pages(Order::ZERO, Unmovable)).collect();
        assert_eq!(small.len(), PAGEBLOCK_PAGES);
        small.into_iter().for_each(|p| free_pages(p).unwrap());
        taken[1..].iter().for_each(|p| free_pages(p).unwrap());
        config::set_arena_max(usize::MAX);
        exercise();
        assert_eq!(used(), 0);
    });
}

/// Short address space: smaller arenas, several of them, until nothing is left.
#[test]
fn several_arenas_under_a_small_limit() {
    in_child("several_arenas_under_a_small_limit", || {
        limit_address_space(3 << 30);
        let first = take(0, Unmovable);
        let base = first.address() as usize;
        // One arena so far: what is ours is known exactly.
        let end = base + committed_bytes();
        for (p, ours) in [
            (base, true),
            (base - 1, false),
            (base - PAGE_SIZE, false),
            (end - 1, true),
            (end, false),
            (end + (1 << 30), false),
            (0, false),
            (16, false),
            (usize::MAX, false),
            (&raw const base as usize, false),
            (Box::as_ref(&Box::new(1u64)) as *const u64 as usize, false),
            (in_child as *const () as usize, false),
        ] {
            let p = p as *const u8;
            assert_eq!(page_of(p).is_some(), ours, "{p:p}");
            assert_eq!(
                granule::cell((p as usize & !15) as *const u8).is_some(),
                page_of((p as usize & !15) as *const u8).is_some()
            );
            if !ours {
                assert_eq!(free_pages_at(p), Err(PageError::Foreign));
            }
        }
        let taken = take_all();
        let bytes = committed_bytes();
        // The metadata pool has 1 GiB; of the rest, most is put to use.
        assert!(bytes > 17 << 26, "too little of 2 GiB: {bytes}");
        // Several arenas: gaps between the blocks.
        let mut addresses: Vec<_> = taken.iter().map(|p| p.address() as usize).collect();
        addresses.sort_unstable();
        let gaps = addresses
            .windows(2)
            .filter(|w| w[1] - w[0] > PAGEBLOCK_SIZE);
        assert!(gaps.count() >= 2, "at least three arenas");
        for (i, page) in taken.iter().enumerate() {
            let p = page.address();
            for offset in [0, PAGE_SIZE + 8, PAGEBLOCK_SIZE - 16] {
                let found = page_of(p.wrapping_add(offset)).unwrap();
                assert!(std::ptr::eq(found.head(), *page));
                let at = p.wrapping_add(offset & !15);
                let cell = granule::cell(at).unwrap();
                cell.store(i as u8, std::sync::atomic::Ordering::Relaxed);
                // SAFETY: an address of ours.
                assert!(std::ptr::eq(unsafe { granule::cell_of_object(at) }, cell));
                assert!(granule::cell(at.wrapping_add(8)).is_none(), "misaligned");
            }
        }
        let s = drained();
        assert!(s.free_pages < PAGEBLOCK_PAGES);
        // Everything comes back, in whole blocks, and can be had again.
        taken.iter().for_each(|p| free_pages(p).unwrap());
        free_pages(first).unwrap();
        let s = drained();
        assert_eq!((s.used, s.free_blocks * 512), ([0; 5], s.managed_pages));
        let again = take_all();
        assert!(again.len() > taken.len());
        again.into_iter().for_each(|p| free_pages(p).unwrap());
        // Larger than any arena that could be had.
        assert!(alloc_run(1 << 20, PAGE_SIZE, Migratetype::Large).is_none());
        // As large as one that exists: the pages of several chunks.
        let run = alloc_run((700 << 20) / PAGE_SIZE, 1 << 20, Large).unwrap();
        free_run(run.page).unwrap();
        assert_eq!(used(), 0);
    });
}

/// The kernel's own refusal to commit, not a planted one.
#[test]
fn data_limit() {
    in_child("data_limit", || {
        let limit = libc::rlimit {
            rlim_cur: 256 << 20,
            rlim_max: 256 << 20,
        };
        // SAFETY: a valid limit, of this process.
        unsafe { libc::setrlimit(libc::RLIMIT_DATA, &raw const limit) };
        let taken = take_all();
        assert!((32 << 20..=256 << 20).contains(&committed_bytes()));
        assert!(refusals(Call::Commit) > 0);
        taken.into_iter().for_each(|p| free_pages(p).unwrap());
        assert_eq!(used(), 0);
    });
}
