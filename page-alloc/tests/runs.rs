//! Runs that were freed last: taken back whole or in part, joined again, and given up for what needs a block.
#![cfg(not(loom))]

use page_alloc::Migratetype::{Large, Unmovable};
use page_alloc::{
    Order, PAGE_SIZE, PAGEBLOCK_PAGES, PageKind, PageRef, alloc_pages, alloc_run, free_pages,
    free_run, run_pages,
};

fn run(pages: usize) -> PageRef {
    let page = alloc_run(pages, PAGE_SIZE, Large).expect("memory").page;
    assert_eq!((page.kind(), run_pages(page)), (PageKind::Run, pages));
    page
}

fn at(page: PageRef) -> usize {
    page.address() as usize
}

/// One test: what was freed last is the whole process's.
#[test]
fn parts_of_freed_runs_are_taken_and_join_again() {
    const LONG: usize = 8 * PAGEBLOCK_PAGES;
    let (short, long) = (run(40), run(LONG));
    let (short_at, start) = (at(short), at(long));
    free_run(short).unwrap();
    free_run(long).unwrap();

    // Parts follow each other, of the shortest piece that serves.
    let a = run(3 * PAGEBLOCK_PAGES + 5);
    let b = run(2 * PAGEBLOCK_PAGES);
    assert_eq!(at(a), start);
    assert_eq!(at(b), start + (3 * PAGEBLOCK_PAGES + 5) * PAGE_SIZE);
    let (c, d) = (run(15), run(25));
    assert_eq!((at(c), at(d)), (short_at, short_at + 15 * PAGE_SIZE));

    // In any order they become one again; a second free of any is an error.
    for page in [b, a, c, d] {
        free_run(page).unwrap();
    }
    for page in [a, b, c, d] {
        assert!(free_run(page).is_err());
    }
    let (long, short) = (run(LONG), run(40));
    assert_eq!((at(long), at(short)), (start, short_at));
    free_run(long).unwrap();

    // Who needs a block gets it there, and not from memory that nobody has touched.
    let block = alloc_pages(Order::PAGEBLOCK, Unmovable).expect("memory");
    assert!((start..start + LONG * PAGE_SIZE).contains(&at(block)));
    free_pages(block).unwrap();
}
