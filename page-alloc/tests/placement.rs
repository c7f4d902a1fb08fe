//! Placement by migratetype, and giving memory back.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_macros,
    clippy::disallowed_types
)]
#![cfg(not(loom))]

mod common;

use std::time::{Duration, Instant};

use common::{assert_all_merged, audited, drained, in_child, resident, take, used};
use page_alloc::{
    Migratetype::{self, Large, Movable, Reclaimable, Unmovable},
    PAGE_SIZE, PAGEBLOCK_PAGES, PAGEBLOCK_SIZE, PageRef, alloc_run, committed_bytes, config,
    free_pages, free_run, purge,
};

fn run(pages: usize, mt: Migratetype) -> PageRef {
    alloc_run(pages, PAGE_SIZE, mt).unwrap().page
}

fn block_of(page: PageRef) -> usize {
    page.address() as usize / PAGEBLOCK_SIZE
}

/// Two blocks, of which Movable has one and `pages` pages of the other.
fn two_blocks(pages: usize) -> [PageRef; 2] {
    config::set_arena_max(2 * PAGEBLOCK_SIZE);
    [run(PAGEBLOCK_PAGES, Movable), run(pages, Movable)]
}

#[test]
fn types_get_blocks_of_their_own() {
    in_child("types_get_blocks_of_their_own", || {
        let pages = Migratetype::ALL.map(|mt| [take(0, mt), take(3, mt), run(18, mt)]);
        for of_type in pages {
            assert!(of_type.iter().all(|p| block_of(p) == block_of(of_type[0])));
        }
        let mut blocks = pages.map(|p| block_of(p[0])).to_vec();
        blocks.dedup();
        assert_eq!(blocks.len(), 5, "no two types share a block");
        let s = drained();
        assert_eq!(s.used, [27; 5]);
        assert_eq!(s.blocks, [1; 5]);
        assert_eq!((s.mixed_blocks, s.counters.mixing_events), (0, 0));
        assert_eq!((s.counters.steals, s.counters.claims_partial), (0, 0));
        for [a, b, c] in pages {
            free_pages(a).unwrap();
            free_pages(b).unwrap();
            free_run(c).unwrap();
        }
        assert_all_merged();
    });
}

#[test]
fn a_mostly_free_block_is_claimed() {
    in_child("a_mostly_free_block_is_claimed", || {
        let [whole, part] = two_blocks(100);
        let guest = run(200, Reclaimable);
        assert_eq!(block_of(guest), block_of(part));
        let s = drained();
        let c = s.counters;
        assert_eq!((c.claims_partial, c.steals), (1, 0));
        assert_eq!(
            (s.blocks[Movable as usize], s.blocks[Reclaimable as usize]),
            (1, 1)
        );
        assert_eq!((s.mixed_blocks, c.mixing_events), (1, 200));
        // The block is Reclaimable's now, and serves it without a further claim.
        let more = run(50, Reclaimable);
        assert_eq!(block_of(more), block_of(part));
        assert_eq!(drained().counters.claims_partial, 1);
        assert_eq!(drained().used, [0, 612, 250, 0, 0]);
        [whole, part, guest, more]
            .into_iter()
            .for_each(|p| free_run(p).unwrap());
        assert_all_merged();
    });
}

#[test]
fn a_mostly_used_block_is_stolen_from() {
    in_child("a_mostly_used_block_is_stolen_from", || {
        let [whole, part] = two_blocks(300);
        let guest = run(50, Unmovable);
        assert_eq!(block_of(guest), block_of(part));
        let s = drained();
        let c = s.counters;
        assert_eq!((c.claims_partial, c.steals, c.mixing_events), (0, 1, 50));
        assert_eq!(s.blocks, [0, 2, 0, 0, 0], "the block keeps its type");
        assert_eq!(s.used, [50, 812, 0, 0, 0]);
        [whole, part, guest]
            .into_iter()
            .for_each(|p| free_run(p).unwrap());
        assert_all_merged();
    });
}

#[test]
fn the_census_counts_alike_pages() {
    in_child("the_census_counts_alike_pages", || {
        let [whole, part] = two_blocks(300);
        // 150 pages stolen: with the 62 left they are 212 of 512.
        let first = run(128, Unmovable);
        let second = run(22, Unmovable);
        assert_eq!(drained().counters.claims_partial, 0);
        // Half of the Movable pages go: 212 free now, 362 with the alike ones.
        page_alloc::shrink_run(part, 150);
        let third = run(16, Unmovable);
        assert_eq!(drained().counters.claims_partial, 1);
        assert_eq!(drained().blocks[Unmovable as usize], 1);
        [whole, part, first, second, third]
            .into_iter()
            .for_each(|p| free_run(p).unwrap());
        assert_all_merged();
    });
}

#[test]
fn wholly_free_blocks_come_first() {
    in_child("wholly_free_blocks_come_first", || {
        config::set_arena_max(8 * PAGEBLOCK_SIZE);
        let held: Vec<_> = (0..8).map(|_| run(PAGEBLOCK_PAGES, Movable)).collect();
        free_run(held[5]).unwrap();
        let guest = run(10, Unmovable);
        assert_eq!(block_of(guest), block_of(held[5]));
        let s = drained();
        assert_eq!((s.counters.mixing_events, s.mixed_blocks), (0, 0));
        assert_eq!(s.counters.steals + s.counters.claims_partial, 0);
    });
}

#[test]
fn without_placement_one_list_serves_all() {
    in_child("without_placement_one_list_serves_all", || {
        config::set_placement(false);
        let pages = [Large, Movable, Reclaimable, Unmovable].map(|mt| run(18, mt));
        assert!(pages.iter().all(|p| block_of(p) == block_of(pages[0])));
        let chunk = take(5, Movable);
        assert_eq!(block_of(chunk), block_of(pages[0]));
        let s = drained();
        assert_eq!(s.counters.growths, 1, "what a run leaves is used");
        assert_eq!(s.blocks[Unmovable as usize] * 512, s.managed_pages);
        assert_eq!(s.mixed_blocks, 1);
        pages.into_iter().for_each(|p| free_run(p).unwrap());
        free_pages(chunk).unwrap();
        assert_all_merged();
    });
}

/// Fills `pages` pages with data, and frees them.
fn dirty(pages: usize) {
    let page = run(pages, Large);
    // SAFETY: the run is ours.
    unsafe { page.address().write_bytes(0x5a, pages * PAGE_SIZE) };
    free_run(page).unwrap();
}

#[test]
fn trim_gives_memory_back() {
    in_child("trim_gives_memory_back", || {
        let rest = resident();
        dirty(64 << 8);
        assert!(resident() - rest >= 60 << 20);
        assert!(drained().dirty_pages >= 64 << 8);
        let given = purge::trim();
        assert!(given >= 64 << 8);
        let s = audited(0);
        assert_eq!(
            (s.dirty_pages, s.counters.purged_pages as usize),
            (0, given)
        );
        assert!(resident() < rest + (8 << 20));
        assert_eq!(purge::trim(), 0, "once is enough");
    });
}

#[test]
fn the_delay_is_kept() {
    in_child("the_delay_is_kept", || {
        config::set_purge_ms(Some(300));
        let rest = resident();
        let start = Instant::now();
        dirty(64 << 8);
        assert!(purge::pending());
        while start.elapsed() < Duration::from_millis(200) {
            purge::tick();
            std::thread::sleep(Duration::from_millis(10));
        }
        if start.elapsed() < Duration::from_millis(280) {
            assert!(resident() > rest + (50 << 20), "given back too early");
        }
        while purge::pending() && start.elapsed() < Duration::from_secs(10) {
            purge::tick();
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(resident() < rest + (8 << 20));
        assert!(!purge::pending(), "nothing waits any more");
    });
}

/// Memory that was needed in the first interval and freed before its end is not
/// forgotten: nobody may ever free anything again.
#[test]
fn what_was_freed_late_is_given_back_too() {
    in_child("what_was_freed_late_is_given_back_too", || {
        config::set_purge_ms(Some(600));
        dirty(16 << 8);
        let held = run(16 << 8, Large);
        let more = run(32 << 8, Large);
        free_run(held).unwrap();
        free_run(more).unwrap();
        let start = Instant::now();
        while purge::pending() && start.elapsed() < Duration::from_secs(10) {
            purge::tick();
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(drained().dirty_pages < 1000);
    });
}

/// Only what nobody needed goes: of a large chunk, not all of it.
#[test]
fn a_working_set_is_left_alone() {
    in_child("a_working_set_is_left_alone", || {
        config::set_purge_ms(Some(200));
        dirty(64 << 8);
        let start = Instant::now();
        // 48 MiB are in use again and again, 16 MiB never.
        let mut last = None;
        while start.elapsed() < Duration::from_millis(350) {
            let page = run(48 << 8, Large);
            last = Some(page);
            // SAFETY: the run is ours.
            unsafe { page.address().write_bytes(1, 4096) };
            free_run(page).unwrap();
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(last.is_some());
        let purged = drained().counters.purged_pages as usize;
        assert!((8 << 8..=20 << 8).contains(&purged), "{purged} pages");
    });
}

/// When nothing can be given back the slots are not kept armed for ever.
#[test]
fn small_chunks_do_not_keep_the_purger_waiting() {
    in_child("small_chunks_do_not_keep_the_purger_waiting", || {
        config::set_purge_ms(Some(50));
        let pages: Vec<_> = (0..4096).map(|_| take(0, Unmovable)).collect();
        pages.iter().step_by(2).for_each(|p| free_pages(p).unwrap());
        let start = Instant::now();
        while purge::pending() && start.elapsed() < Duration::from_secs(5) {
            purge::tick();
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(!purge::pending());
        assert!(drained().dirty_pages > 1000);
        pages
            .iter()
            .skip(1)
            .step_by(2)
            .for_each(|p| free_pages(p).unwrap());
        assert_all_merged();
    });
}

#[test]
fn purge_off_keeps_memory() {
    in_child("purge_off_keeps_memory", || {
        config::set_purge_ms(None);
        dirty(16 << 8);
        assert!(!purge::pending());
        purge::tick();
        assert!(drained().dirty_pages >= 16 << 8);
        assert!(purge::trim() >= 16 << 8);
    });
}

/// The kernel's flags of the mapping that holds an address.
fn vm_flags(p: *const u8) -> Vec<String> {
    let text = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let mut inside = false;
    for line in text.lines() {
        let first = line.split(' ').next().unwrap();
        if let Some((from, to)) = first.split_once('-')
            && let (Ok(from), Ok(to)) = (
                usize::from_str_radix(from, 16),
                usize::from_str_radix(to, 16),
            )
        {
            inside = (from..to).contains(&(p as usize));
        } else if inside && let Some(flags) = line.strip_prefix("VmFlags: ") {
            return flags.split_whitespace().map(str::to_owned).collect();
        }
    }
    Vec::new()
}

fn has(p: *const u8, flag: &str) -> bool {
    vm_flags(p).iter().any(|f| f == flag)
}

#[test]
fn a_partly_purged_block_is_excluded_from_huge_pages() {
    in_child("a_partly_purged_block_is_excluded_from_huge_pages", || {
        config::set_huge_from(Some(0));
        let page = run(PAGEBLOCK_PAGES, Large);
        let p = page.address();
        if !has(p, "hg") {
            eprintln!("no huge pages here: nothing to exclude");
            return;
        }
        // SAFETY: the run is ours.
        unsafe { p.write_bytes(1, PAGEBLOCK_SIZE) };
        page_alloc::shrink_run(page, PAGEBLOCK_PAGES / 2);
        assert!(purge::trim() >= PAGEBLOCK_PAGES / 2);
        assert!(has(p, "nh") && !has(p, "hg"), "{:?}", vm_flags(p));
        // SAFETY: the first half is ours still.
        assert_eq!(unsafe { p.read() }, 1);
        // Wholly free and given back, it may have them again once it is claimed.
        free_run(page).unwrap();
        purge::trim();
        let page = run(PAGEBLOCK_PAGES, Large);
        assert_eq!(page.address(), p);
        assert!(has(p, "hg") && !has(p, "nh"), "{:?}", vm_flags(p));
        free_run(page).unwrap();
    });
}

/// A block has huge pages where what claims it is going to write all of it, beyond what
/// stays on small pages.
#[test]
fn huge_pages_follow_what_a_block_is_used_for() {
    in_child("huge_pages_follow_what_a_block_is_used_for", || {
        let small = run(PAGEBLOCK_PAGES, Unmovable);
        config::set_huge_from(Some(PAGEBLOCK_SIZE));
        let dense = run(PAGEBLOCK_PAGES / 2, Unmovable);
        let sparse = run(PAGEBLOCK_PAGES / 2, Large);
        let filled = run(PAGEBLOCK_PAGES, Large);
        // One block and the beginning of another.
        let long = run(PAGEBLOCK_PAGES + PAGEBLOCK_PAGES / 2, Large);
        if !has(filled.address(), "hg") {
            eprintln!("no huge pages here");
            return;
        }
        let end = long.address().wrapping_add(PAGEBLOCK_SIZE);
        assert!(
            !has(small.address(), "hg"),
            "the start stays on small pages"
        );
        assert!(has(dense.address(), "hg"), "slabs");
        assert!(!has(sparse.address(), "hg"), "less than a block");
        assert!(has(long.address(), "hg"), "the block it fills");
        assert!(!has(end, "hg"), "the block it begins");

        // Freed blocks are advised anew for whom they serve next.
        let p = filled.address();
        free_run(filled).unwrap();
        purge::trim();
        let sparse = run(PAGEBLOCK_PAGES - 1, Large);
        assert_eq!(sparse.address(), p);
        assert!(has(p, "nh"), "{:?}", vm_flags(p));
    });
}

/// A first growth that is larger than what stays on small pages has huge pages from
/// there on.
#[test]
fn a_large_first_run_gets_huge_pages() {
    in_child("a_large_first_run_gets_huge_pages", || {
        let page = run(256 << 8, Large);
        let p = page.address();
        assert!(!has(p, "hg"), "the start stays on small pages");
        let behind = p.wrapping_add(config::HUGE_AUTO_FROM);
        let refused = page_alloc::os::refusals(page_alloc::os::Call::Advise);
        assert!(refused > 0 || has(behind, "hg"));
        assert!(committed_bytes() >= 256 << 20);
        free_run(page).unwrap();
        assert_eq!(used(), 0);
    });
}
