//! Misuse: the error says what is wrong, and nothing is changed.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_macros,
    clippy::disallowed_types
)]
#![cfg(not(loom))]

mod common;

use std::sync::{Mutex, MutexGuard};

use common::{assert_all_merged, audited, drained, order, take};
use page_alloc::{
    MAX_ORDER,
    Migratetype::{Large, Movable, Unmovable},
    Order, PAGE_SIZE, PageError, PageKind, alloc_pages, alloc_run, extend_run, free_cold_pages,
    free_pages, free_pages_at, free_run, page_of, pcp, run_pages, shrink_run,
};

fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(|e| e.into_inner())
}

#[test]
fn double_free_of_a_chunk() {
    let _one = alone();
    for o in [0, 3, 5, 6, 9, 12] {
        // In the thread's lists, in the zone, and merged into a larger chunk.
        for drain in [false, true] {
            let page = take(o, Movable);
            free_pages(page).unwrap();
            if drain {
                pcp::drain_current();
            }
            let before = audited(0);
            assert_eq!(free_pages(page), Err(PageError::NotAllocated));
            assert_eq!(free_cold_pages(page), Err(PageError::NotAllocated));
            assert_eq!(free_run(page), Err(PageError::NotAllocated));
            assert_eq!(free_pages_at(page.address()), Err(PageError::NotAllocated));
            let after = audited(0);
            assert_eq!((before.used, before.chunks), (after.used, after.chunks));
        }
    }
    assert_all_merged();
}

#[test]
fn double_free_of_a_run() {
    let _one = alone();
    for pages in [1, 18, 512, 513, 4000] {
        let page = alloc_run(pages, PAGE_SIZE, Large).unwrap().page;
        assert_eq!(free_pages(page), Err(PageError::NotAllocated));
        free_run(page).unwrap();
        let before = audited(0);
        assert_eq!(free_run(page), Err(PageError::NotAllocated));
        assert_eq!(free_pages(page), Err(PageError::NotAllocated));
        shrink_run(page, 1);
        assert!(!extend_run(page, 10_000));
        let after = audited(0);
        assert_eq!((before.used, before.chunks), (after.used, after.chunks));
    }
    assert_all_merged();
}

#[test]
fn interior_pages() {
    let _one = alone();
    let chunk = take(4, Unmovable);
    let block = take(10, Unmovable);
    let run = alloc_run(700, PAGE_SIZE, Large).unwrap().page;
    for (head, pages) in [(chunk, 16), (block, 1024), (run, 700)] {
        for i in [1, 2, 5, pages / 2, pages - 1] {
            let p = head.address().wrapping_add(i * PAGE_SIZE);
            let page = page_of(p).unwrap();
            assert_eq!(free_pages(page), Err(PageError::NotAllocated));
            assert_eq!(free_run(page), Err(PageError::NotAllocated));
            assert_eq!(free_pages_at(p), Err(PageError::NotAllocated));
            shrink_run(page, 1);
            assert!(!extend_run(page, 1));
        }
        let p = head.address();
        assert_eq!(
            free_pages_at(p.wrapping_add(16)),
            Err(PageError::NotAllocated),
            "not a page's address"
        );
    }
    assert_eq!((chunk.kind(), run.kind()), (PageKind::Pages, PageKind::Run));
    assert_eq!(drained().used, [1040, 0, 0, 700, 0]);
    free_pages(chunk).unwrap();
    free_pages(block).unwrap();
    free_run(run).unwrap();
    assert_all_merged();
}

#[test]
fn foreign_addresses() {
    let _one = alone();
    let page = take(0, Unmovable);
    let boxed = Box::new([0u8; 8192]);
    let local = 0u64;
    for p in [
        std::ptr::null(),
        boxed.as_ptr(),
        (&raw const local).cast(),
        foreign_addresses as *const () as *const u8,
        // The record is memory of the allocator, but no memory of a user's.
        std::ptr::from_ref(page).cast(),
        usize::MAX as *const u8,
    ] {
        assert_eq!(free_pages_at(p), Err(PageError::Foreign), "{p:p}");
        assert!(page_of(p).is_none());
    }
    free_pages(page).unwrap();
    assert_all_merged();
}

#[test]
fn absurd_sizes() {
    let _one = alone();
    assert_eq!(Order::new(MAX_ORDER + 1), None);
    assert_eq!(Order::for_pages((1 << MAX_ORDER) + 1), None);
    let before = page_alloc::committed_bytes();
    for pages in [
        0,
        usize::MAX,
        usize::MAX >> 12,
        usize::MAX >> 14,
        1 << 50,
        1 << 40,
    ] {
        for align in [1, PAGE_SIZE, 1 << 40, 1 << 62] {
            assert!(alloc_run(pages, align, Large).is_none(), "{pages} {align}");
        }
    }
    let run = alloc_run(3, PAGE_SIZE, Large).unwrap().page;
    for pages in [
        usize::MAX,
        usize::MAX - 2,
        usize::MAX >> 12,
        1 << 50,
        1 << 40,
    ] {
        assert!(!extend_run(run, pages), "{pages}");
        assert_eq!(run_pages(run), 3);
    }
    shrink_run(run, 0);
    shrink_run(run, 4);
    assert!(extend_run(run, 2), "nothing to do");
    assert_eq!(run_pages(run), 3);
    free_run(run).unwrap();
    assert!(page_alloc::committed_bytes() <= before + (64 << 20));
    // The largest order there is.
    let page = alloc_pages(order(MAX_ORDER), Movable).unwrap();
    assert!((page.address() as usize).is_multiple_of(1 << 30));
    free_pages(page).unwrap();
    assert_all_merged();
}

#[test]
fn errors_say_what_is_wrong() {
    assert!(
        PageError::NotAllocated
            .to_string()
            .contains("freed already")
    );
    assert!(PageError::Foreign.to_string().contains("no arena"));
}
