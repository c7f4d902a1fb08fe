//! Owners of pages: reclaim, compaction, contiguous ranges, the urgent reserve; and
//! owners that refuse, give nothing back, or lie.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_macros,
    clippy::disallowed_types
)]
#![cfg(not(loom))]

mod common;

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

use common::{audited, drained, in_child, take};
use page_alloc::Migratetype::{HighAtomic, Large, Movable, Reclaimable, Unmovable};
use page_alloc::evacuate::{self, claim_blocks, compact};
use page_alloc::os::{self, Call};
use page_alloc::{
    BlockRange, Migratetype, Order, OwnerId, PAGE_SIZE, PAGEBLOCK_PAGES, PAGEBLOCK_SIZE, PageError,
    PageKind, PageOwner, PageRef, alloc_pages, alloc_run, config, free_pages, free_run, owner,
    page_of, reclaim, run_pages,
};

/// How an owner answers a request to move a chunk.
#[derive(Clone, Copy, PartialEq)]
enum Manner {
    Moves,
    MovesRuns,
    Refuses,
    FreesTheOld,
    FreesTheNew,
}

/// Chunks by handle; a chunk's handle is in its record, and its content is its handle
/// in every word of every page.
struct Handles {
    chunks: Mutex<Vec<Option<PageRef>>>,
    manner: Mutex<Manner>,
    id: Mutex<Option<OwnerId>>,
    shrinks: AtomicBool,
    asked: AtomicUsize,
}

static HANDLES: Handles = Handles {
    chunks: Mutex::new(Vec::new()),
    manner: Mutex::new(Manner::Moves),
    id: Mutex::new(None),
    shrinks: AtomicBool::new(true),
    asked: AtomicUsize::new(0),
};

fn words(page: PageRef) -> impl Iterator<Item = *mut u64> {
    let pages = 1usize << page.order();
    (0..pages * PAGE_SIZE / 8)
        .step_by(64)
        .map(move |i| page.address().cast::<u64>().wrapping_add(i))
}

fn fill(page: PageRef, handle: usize) {
    page.word.store(handle as u64, Relaxed);
    // SAFETY: the chunk is the test's.
    words(page).for_each(|w| unsafe { w.write(handle as u64 | 1 << 40) });
}

impl Handles {
    fn start(&'static self, manner: Manner) -> OwnerId {
        *self.manner.lock().unwrap() = manner;
        let id = owner::register(self).unwrap();
        *self.id.lock().unwrap() = Some(id);
        id
    }

    fn take(&self, o: u8, mt: Migratetype) -> Option<usize> {
        let id = (*self.id.lock().unwrap()).unwrap();
        let page = id.alloc_pages(Order::new(o).unwrap(), mt)?;
        let mut chunks = self.chunks.lock().unwrap();
        chunks.push(Some(page));
        fill(page, chunks.len() - 1);
        Some(chunks.len() - 1)
    }

    fn give(&self, handle: usize) {
        let page = self.chunks.lock().unwrap()[handle].take();
        free_pages(page.unwrap()).unwrap();
    }

    /// Every chunk is where its handle says, with its content.
    fn check(&self) {
        for (handle, page) in self.chunks.lock().unwrap().iter().enumerate() {
            let Some(page) = page else { continue };
            assert_eq!(page.kind(), PageKind::Owned);
            assert_eq!(page.word.load(Relaxed), handle as u64);
            // SAFETY: the chunk is the test's.
            assert!(words(page).all(|w| unsafe { w.read() } == handle as u64 | 1 << 40));
        }
    }

    fn held(&self) -> usize {
        let chunks = self.chunks.lock().unwrap();
        chunks.iter().flatten().map(|p| 1 << p.order()).sum()
    }
}

impl PageOwner for Handles {
    fn shrink_block(&self, block: BlockRange) -> usize {
        self.asked.fetch_add(1, Relaxed);
        let (Ok(mut chunks), true) = (self.chunks.try_lock(), self.shrinks.load(Relaxed)) else {
            return 0;
        };
        let id = (*self.id.lock().unwrap()).unwrap();
        let mut freed = 0;
        for page in block.pages_of(id) {
            let handle = page.word.load(Relaxed) as usize;
            if page.migratetype() == Reclaimable
                && chunks[handle].is_some_and(|held| std::ptr::eq(held, page))
            {
                chunks[handle] = None;
                freed += 1 << page.order();
                free_pages(page).unwrap();
            }
        }
        freed
    }

    fn shrink(&self, pages: usize) -> usize {
        self.asked.fetch_add(1, Relaxed);
        let (Ok(mut chunks), true) = (self.chunks.try_lock(), self.shrinks.load(Relaxed)) else {
            return 0;
        };
        let mut freed = 0;
        for cell in chunks.iter_mut() {
            if freed < pages
                && let Some(page) = *cell
                && page.migratetype() == Reclaimable
            {
                *cell = None;
                freed += 1 << page.order();
                free_pages(page).unwrap();
            }
        }
        freed
    }

    fn relocate(&self, old: PageRef, new: PageRef) -> bool {
        let Ok(mut chunks) = self.chunks.try_lock() else {
            return false;
        };
        assert_eq!(old.order(), new.order());
        let handle = old.word.load(Relaxed) as usize;
        match *self.manner.lock().unwrap() {
            Manner::Refuses => return false,
            Manner::FreesTheOld => free_pages(old).unwrap(),
            Manner::FreesTheNew => {
                free_pages(new).unwrap();
                return true;
            }
            Manner::Moves | Manner::MovesRuns => {
                assert!(std::ptr::eq(chunks[handle].unwrap(), old));
            }
        }
        fill(new, handle);
        chunks[handle] = Some(new);
        true
    }

    fn relocate_run(
        &self,
        old: PageRef,
        new: PageRef,
        pages: usize,
        transfer: &mut dyn FnMut(),
    ) -> bool {
        if *self.manner.lock().unwrap() != Manner::MovesRuns {
            return false;
        }
        let Ok(mut chunks) = self.chunks.try_lock() else {
            return false;
        };
        transfer();
        let mut at = 0;
        while at < pages {
            let page =
                |base: PageRef| page_of(base.address().wrapping_add(at * PAGE_SIZE)).unwrap();
            let (from, to) = (page(old), page(new));
            assert_eq!(from.order(), to.order());
            let handle = from.word.load(Relaxed);
            to.word.store(handle, Relaxed);
            chunks[handle as usize] = Some(to);
            at += 1 << from.order();
        }
        true
    }
}

/// Fills an arena of `blocks` blocks with movable chunks of `o` and frees all but
/// every `keep`th.
fn sparse(blocks: usize, o: u8, keep: usize) {
    config::set_arena_max(blocks * PAGEBLOCK_SIZE);
    let mut all = Vec::new();
    while let Some(handle) = HANDLES.take(o, Movable) {
        all.push(handle);
    }
    assert_eq!(all.len() << o, blocks * PAGEBLOCK_PAGES);
    for (i, handle) in all.into_iter().enumerate() {
        if i % keep != 0 {
            HANDLES.give(handle);
        }
    }
}

#[test]
fn compaction_packs_what_is_movable() {
    in_child("compaction_packs_what_is_movable", || {
        HANDLES.start(Manner::Moves);
        sparse(16, 0, 4);
        assert_eq!(drained().free_blocks, 0);
        assert_eq!(compact(), Ok(12));
        let s = drained();
        assert_eq!((s.free_blocks, s.counters.mixing_events), (12, 0));
        assert_eq!(HANDLES.held(), 4 * PAGEBLOCK_PAGES);
        HANDLES.check();
        let c = evacuate::counters();
        assert_eq!((c.emptied, c.copied_pages), (12, 12 * 128));
        assert_eq!(evacuate::pauses().count(), 12 * 128);
    });
}

fn runs_move(remapped: bool) {
    HANDLES.start(Manner::MovesRuns);
    os::inject(Call::Userfault, !remapped);
    sparse(8, 4, 1);
    // Runs of 64 pages live, 64 free, alternating.
    let held = HANDLES.chunks.lock().unwrap().len();
    for handle in 0..held {
        let page = HANDLES.chunks.lock().unwrap()[handle].unwrap();
        if (page.address() as usize / PAGE_SIZE / 64).is_multiple_of(2) {
            HANDLES.give(handle);
        }
    }
    assert_eq!(compact(), Ok(4));
    assert_eq!(drained().free_blocks, 4);
    HANDLES.check();
    let c = evacuate::counters();
    let moved = (c.copied_pages, c.remapped_pages);
    if remapped && os::refusals(Call::Userfault) == 0 {
        assert_eq!(moved, (0, 4 * 256));
    } else {
        assert_eq!(moved, (4 * 256, 0));
        assert!(
            os::refusals(Call::Userfault) > 0,
            "the fall-back was counted"
        );
    }
    // The whole of it again, in pages that were moved before.
    HANDLES.check();
}

#[test]
fn runs_move_in_one_piece() {
    in_child("runs_move_in_one_piece", || runs_move(true));
}

#[test]
fn runs_are_copied_where_remapping_is_denied() {
    in_child("runs_are_copied_where_remapping_is_denied", || {
        runs_move(false);
    });
}

#[test]
fn an_owner_that_refuses_loses_nothing() {
    in_child("an_owner_that_refuses_loses_nothing", || {
        HANDLES.start(Manner::Refuses);
        sparse(8, 0, 4);
        let before = drained();
        assert_eq!(compact(), Ok(0));
        let s = drained();
        assert_eq!((s.used, s.free_pages), (before.used, before.free_pages));
        assert!(evacuate::counters().refused_moves > 0);
        HANDLES.check();
        // It changes its mind; blocks that failed are left alone for a while only.
        *HANDLES.manner.lock().unwrap() = Manner::Moves;
        let emptied: usize = (0..20).map(|_| compact().unwrap()).sum();
        assert_eq!(emptied, 6);
        HANDLES.check();
    });
}

fn lies(manner: Manner) {
    HANDLES.start(manner);
    sparse(8, 0, 4);
    let before: usize = drained().used.iter().sum();
    assert_eq!(compact(), Err(PageError::BadRelocate));
    assert_eq!(evacuate::counters().bad_relocates, 1);
    assert_eq!(HANDLES.held(), before, "nothing was freed twice");
    let used: usize = drained().used.iter().sum();
    // The one chunk in question stays out of use, or is where it was.
    assert!(used == before || used == before + 1, "{used} {before}");
    // It is not asked again; other requests go on.
    let asked = evacuate::pauses().count();
    assert_eq!(compact(), Ok(0));
    assert_eq!(evacuate::pauses().count(), asked);
    let error = PageError::BadRelocate.to_string();
    assert!(error.contains("relocate()"), "{error}");
    HANDLES.take(0, Movable).unwrap();
    drained();
}

#[test]
fn an_owner_that_frees_the_old_chunk_is_found_out() {
    in_child("an_owner_that_frees_the_old_chunk_is_found_out", || {
        lies(Manner::FreesTheOld);
    });
}

#[test]
fn an_owner_that_frees_the_new_chunk_is_found_out() {
    in_child("an_owner_that_frees_the_new_chunk_is_found_out", || {
        lies(Manner::FreesTheNew);
    });
}

#[test]
fn reclaim_comes_before_mixing() {
    in_child("reclaim_comes_before_mixing", || {
        HANDLES.start(Manner::Moves);
        config::set_arena_max(16 * PAGEBLOCK_SIZE);
        while HANDLES.held() < 15 * PAGEBLOCK_PAGES {
            HANDLES.take(0, Reclaimable).unwrap();
        }
        // Other types take what the cache gives up, a block at a time.
        let pinned: Vec<_> = (0..4 * PAGEBLOCK_PAGES)
            .map(|_| take(0, Unmovable))
            .collect();
        let run = alloc_run(2 * PAGEBLOCK_PAGES, PAGE_SIZE, Large).unwrap();
        let huge = take(9, Movable);
        let s = drained();
        let c = s.counters;
        assert_eq!((c.mixing_events, c.steals, s.mixed_blocks), (0, 0, 0));
        assert_eq!(c.claims_partial, 0);
        let reclaimed = evacuate::counters().reclaimed_pages as usize;
        assert!(reclaimed >= 5 * PAGEBLOCK_PAGES, "{reclaimed}");
        // A few more are emptied once, for the reserve that the types leave each other.
        assert!(reclaimed <= 11 * PAGEBLOCK_PAGES, "{reclaimed}");
        assert!(reclaim::direct_reclaims() > 0 && reclaim::latency().count() > 0);
        HANDLES.check();
        pinned.into_iter().for_each(|p| free_pages(p).unwrap());
        free_run(run.page).unwrap();
        free_pages(huge).unwrap();
        drained();
    });
}

#[test]
fn a_shrinker_that_gives_nothing_back_ends_in_mixing() {
    in_child("a_shrinker_that_gives_nothing_back_ends_in_mixing", || {
        HANDLES.start(Manner::Moves);
        HANDLES.shrinks.store(false, Relaxed);
        config::set_arena_max(8 * PAGEBLOCK_SIZE);
        let mut all = Vec::new();
        while let Some(handle) = HANDLES.take(0, Reclaimable) {
            all.push(handle);
        }
        assert_eq!(HANDLES.held(), 8 * PAGEBLOCK_PAGES, "every page is had");
        assert!(HANDLES.asked.load(Relaxed) > 0);
        all.iter().step_by(2).for_each(|h| HANDLES.give(*h));
        let pinned = alloc_pages(Order::ZERO, Unmovable).unwrap();
        assert!(drained().counters.mixing_events > 0, "stolen, and counted");
        HANDLES.check();
        free_pages(pinned).unwrap();
    });
}

#[test]
fn a_chosen_range_is_emptied_and_taken() {
    in_child("a_chosen_range_is_emptied_and_taken", || {
        HANDLES.start(Manner::Moves);
        sparse(16, 0, 4);
        let first = HANDLES
            .chunks
            .lock()
            .unwrap()
            .iter()
            .flatten()
            .next()
            .copied()
            .unwrap();
        let start = (first.address() as usize / PAGEBLOCK_SIZE + 3) * PAGEBLOCK_SIZE;
        let at = std::ptr::with_exposed_provenance::<u8>(start);
        let run = claim_blocks(at, 5, Large).unwrap();
        assert_eq!(
            (run.address().cast_const(), run_pages(run)),
            (at, 5 * PAGEBLOCK_PAGES)
        );
        HANDLES.check();
        assert_eq!(drained().used[Large as usize], 5 * PAGEBLOCK_PAGES);
        assert_eq!(drained().counters.mixing_events, 0);
        free_run(run).unwrap();
        // What is pinned stays, and nothing is isolated afterwards.
        let pin = take(0, Unmovable);
        let block = pin.address() as usize / PAGEBLOCK_SIZE * PAGEBLOCK_SIZE;
        let at = std::ptr::with_exposed_provenance::<u8>(block);
        assert_eq!(claim_blocks(at, 1, Large).err(), Some(PageError::Pinned));
        free_pages(pin).unwrap();
        let free = drained().free_pages;
        assert!(claim_blocks(at, 1, Large).is_ok());
        assert_eq!(drained().free_pages, free - PAGEBLOCK_PAGES);
        // Not blocks, or not ours.
        let odd = at.wrapping_add(PAGE_SIZE);
        assert_eq!(claim_blocks(odd, 1, Large).err(), Some(PageError::Foreign));
        assert_eq!(claim_blocks(at, 100, Large).err(), Some(PageError::Foreign));
        let local = 0u8;
        assert_eq!(
            claim_blocks(&raw const local, 1, Large).err(),
            Some(PageError::Foreign)
        );
    });
}

#[test]
fn a_run_is_made_of_blocks_that_were_in_use() {
    in_child("a_run_is_made_of_blocks_that_were_in_use", || {
        HANDLES.start(Manner::MovesRuns);
        sparse(32, 2, 3);
        let run = alloc_run(10 * PAGEBLOCK_PAGES + 17, PAGE_SIZE, Large).unwrap();
        assert_eq!(run_pages(run.page), 10 * PAGEBLOCK_PAGES + 17);
        HANDLES.check();
        assert_eq!(drained().counters.mixing_events, 0);
        // SAFETY: the run is the test's.
        unsafe {
            run.page
                .address()
                .write_bytes(7, run_pages(run.page) * PAGE_SIZE)
        };
        HANDLES.check();
        free_run(run.page).unwrap();
        drained();
    });
}

#[test]
fn urgent_requests_have_a_reserve() {
    in_child("urgent_requests_have_a_reserve", || {
        config::set_arena_max(256 * PAGEBLOCK_SIZE);
        // Somebody asks for such pages, with memory to spare.
        let grown = alloc_run(250 * PAGEBLOCK_PAGES, PAGE_SIZE, Large).unwrap();
        free_run(grown.page).unwrap();
        page_alloc::pcp::drain_all();
        let urgent = take(3, HighAtomic);
        free_pages(urgent).unwrap();
        assert!(audited(0).counters.reserved > 0);
        // Whole blocks go to others, not the reserve.
        let mut taken = Vec::new();
        while drained().free_blocks > 0 {
            taken.push(take(9, Movable));
        }
        assert_eq!(drained().counters.released, 0);
        let urgent = alloc_pages(Order::new(3).unwrap(), HighAtomic).unwrap();
        assert_eq!(drained().counters.mixing_events, 0);
        free_pages(urgent).unwrap();
        // Under pressure it is released.
        let small: Vec<_> = std::iter::from_fn(|| alloc_pages(Order::ZERO, Unmovable)).collect();
        assert!(small.len() >= PAGEBLOCK_PAGES);
        assert!(drained().counters.released > 0);
        small
            .into_iter()
            .chain(taken)
            .for_each(|p| free_pages(p).unwrap());
    });
}

#[test]
fn the_worker_keeps_whole_blocks_between_the_marks() {
    in_child("the_worker_keeps_whole_blocks_between_the_marks", || {
        HANDLES.start(Manner::Moves);
        config::set_arena_max(64 * PAGEBLOCK_SIZE);
        let marks = reclaim::watermarks();
        assert!(marks.min < marks.low && marks.low < marks.high);
        while HANDLES.held() < 63 * PAGEBLOCK_PAGES {
            HANDLES.take(0, Reclaimable).unwrap();
        }
        let worker = reclaim::start_worker().unwrap();
        assert!(reclaim::start_worker().is_err(), "one is enough");
        // Claims wake it; how soon it comes is the scheduler's business.
        let mut pinned = Vec::new();
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
        loop {
            pinned.push(take(0, Unmovable));
            let whole = audited(0).free_blocks * PAGEBLOCK_PAGES;
            if whole >= reclaim::watermarks().low {
                break;
            }
            assert!(
                std::time::Instant::now() < deadline,
                "{whole} pages in whole blocks"
            );
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        drop(worker);
        drop(reclaim::start_worker().unwrap());
        HANDLES.check();
    });
}

#[test]
fn idle_threads_lists_are_drained() {
    in_child("idle_threads_lists_are_drained", || {
        let (filled, idle) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        std::thread::scope(|s| {
            s.spawn(move || {
                let pages: Vec<_> = (0..50).map(|_| take(0, Movable)).collect();
                pages.into_iter().for_each(|p| free_pages(p).unwrap());
                filled.send(()).unwrap();
                ended.recv().unwrap();
                // It goes on as before.
                free_pages(take(0, Movable)).unwrap();
            });
            idle.recv().unwrap();
            assert!(page_alloc::pcp::cached_pages() > 0);
            page_alloc::pcp::drain_all();
            assert_eq!(page_alloc::pcp::cached_pages(), 0);
            // Where the kernel cannot do that, the owner is asked.
            end.send(()).unwrap();
        });
        assert_eq!(os::refusals(Call::Membarrier), 0);
    });
}

#[test]
fn owners_drain_themselves_where_they_cannot_be_stopped() {
    in_child(
        "owners_drain_themselves_where_they_cannot_be_stopped",
        || {
            os::inject(Call::Membarrier, true);
            let (filled, idle) = std::sync::mpsc::channel();
            let (end, ended) = std::sync::mpsc::channel::<()>();
            std::thread::scope(|s| {
                s.spawn(move || {
                    let pages: Vec<_> = (0..50).map(|_| take(0, Movable)).collect();
                    pages.into_iter().for_each(|p| free_pages(p).unwrap());
                    filled.send(()).unwrap();
                    ended.recv().unwrap();
                    free_pages(take(0, Movable)).unwrap();
                    filled.send(()).unwrap();
                    ended.recv().unwrap();
                });
                idle.recv().unwrap();
                page_alloc::pcp::drain_all();
                let before = page_alloc::pcp::cached_pages();
                assert!(before > 40, "{before}");
                assert!(os::refusals(Call::Membarrier) > 0);
                end.send(()).unwrap();
                idle.recv().unwrap();
                assert!(page_alloc::pcp::cached_pages() < before, "it was asked");
                end.send(()).unwrap();
            });
        },
    );
}
