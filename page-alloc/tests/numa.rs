//! A simulated machine with two nodes.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_macros,
    clippy::disallowed_types
)]
#![cfg(not(loom))]

mod common;

use common::{audited, in_child, limit_address_space, take};
use page_alloc::topology::{self, TopologyError, simulate};
use page_alloc::{
    Migratetype::{Large, Movable},
    Order, PAGE_SIZE, PAGEBLOCK_SIZE, PageRef, alloc_pages, alloc_run, committed_bytes, config,
    extend_run, free_pages, free_run, granule, page_of, pcp, run_pages,
};

/// Runs `f` in a thread on one CPU; `None` when there is no such CPU.
fn on_cpu<T: Send>(cpu: usize, f: impl FnOnce() -> T + Send) -> Option<T> {
    std::thread::scope(|s| {
        s.spawn(|| {
            // SAFETY: a zeroed set is valid; the calls only read it.
            let pinned = unsafe {
                let mut set: libc::cpu_set_t = std::mem::zeroed();
                libc::CPU_SET(cpu, &mut set);
                libc::sched_setaffinity(0, size_of_val(&set), &raw const set)
            };
            (pinned == 0).then(f)
        })
        .join()
        .unwrap()
    })
}

#[test]
fn each_cpu_takes_from_its_node() {
    in_child("each_cpu_takes_from_its_node", || {
        simulate(&[0, 1]).unwrap();
        assert_eq!(topology::nodes(), 2);
        let mut all: Vec<PageRef> = Vec::new();
        for cpu in 0..2 {
            let taken = on_cpu(cpu, || {
                assert_eq!(topology::current_node(), cpu);
                let mut pages: Vec<_> = (0..=10).map(|o| take(o, Movable)).collect();
                pages.extend((0..100).map(|_| take(0, Movable)));
                let run = alloc_run(5000, 1 << 21, Large).unwrap().page;
                assert!(extend_run(run, 6000));
                assert_eq!(run_pages(run), 6000);
                for page in pages.iter().chain([&run]) {
                    assert_eq!(page.node(), cpu);
                    let p = page.address();
                    // SAFETY: ours.
                    unsafe { p.write(cpu as u8) };
                    assert!(std::ptr::eq(page_of(p.wrapping_add(100)).unwrap(), *page));
                    let cell = granule::cell(p).unwrap();
                    cell.store(7, std::sync::atomic::Ordering::Relaxed);
                    // SAFETY: an address of ours.
                    assert!(std::ptr::eq(unsafe { granule::cell_of_object(p) }, cell));
                }
                free_run(run).unwrap();
                pages
            });
            all.extend(taken.into_iter().flatten());
        }
        let (a, b) = (audited(0), audited(1));
        assert!(a.used[Movable as usize] >= 2047 + 100);
        if all.len() > 111 {
            assert_eq!(b.used[Movable as usize], 2047 + 100);
        }
        // Freed by whichever thread: each page goes home.
        all.into_iter().for_each(|p| free_pages(p).unwrap());
        pcp::drain_current();
        for node in 0..2 {
            let s = audited(node);
            assert_eq!(s.used, [0; 5]);
            assert_eq!(s.free_blocks * 512, s.managed_pages);
        }
        // Between the regions nothing is ours.
        let first = take(0, Movable).address();
        let gap = first.wrapping_add(committed_bytes() + (1 << 30));
        assert!(page_of(gap).is_none() && granule::cell(gap).is_none());
    });
}

#[test]
fn a_full_node_falls_back_to_the_other() {
    in_child("a_full_node_falls_back_to_the_other", || {
        simulate(&[0, 1]).unwrap();
        config::set_arena_max(16 << 20);
        // Node 1 grows first, then node 0 as far as the limit goes.
        let Some(ones) = on_cpu(1, || (0..4).map(|_| take(9, Movable)).collect::<Vec<_>>()) else {
            return;
        };
        ones.into_iter().for_each(|p| free_pages(p).unwrap());
        let all = on_cpu(0, || {
            std::iter::from_fn(|| alloc_pages(Order::PAGEBLOCK, Movable)).collect::<Vec<_>>()
        })
        .unwrap();
        assert_eq!(all.len() * PAGEBLOCK_SIZE, committed_bytes());
        assert!(all.iter().any(|p| p.node() == 0) && all.iter().any(|p| p.node() == 1));
        assert_eq!(audited(0).free_pages + audited(1).free_pages, 0);
        all.into_iter().for_each(|p| free_pages(p).unwrap());
        pcp::drain_current();
        assert_eq!(
            audited(0)
                .used
                .iter()
                .chain(&audited(1).used)
                .sum::<usize>(),
            0
        );
    });
}

/// An arena that is reserved for a run has room for it in the node's own region.
#[test]
fn a_nodes_share_is_large_enough() {
    in_child("a_nodes_share_is_large_enough", || {
        simulate(&[0, 1]).unwrap();
        limit_address_space(2 << 30);
        let run = alloc_run((600 << 20) / PAGE_SIZE, PAGE_SIZE, Large).unwrap();
        assert!(page_of(run.page.address()).is_some());
        free_run(run.page).unwrap();
    });
}

/// Short address space, shared by two nodes.
#[test]
fn small_arenas_serve_every_node() {
    in_child("small_arenas_serve_every_node", || {
        simulate(&[0, 1]).unwrap();
        limit_address_space(3 << 30);
        for cpu in [1, 0, 1, 0] {
            let taken = on_cpu(cpu, || {
                let run = alloc_run((300 << 20) / PAGE_SIZE, PAGE_SIZE, Large).unwrap();
                assert!(page_of(run.page.address()).is_some());
                free_run(run.page).unwrap();
            });
            if taken.is_none() {
                return;
            }
        }
        pcp::drain_current();
        assert_eq!(audited(0).used, [0; 5]);
        assert_eq!(audited(1).used, [0; 5]);
    });
}

#[test]
fn wrong_or_late_topologies_are_refused() {
    in_child("wrong_or_late_topologies_are_refused", || {
        assert_eq!(simulate(&[]), Err(TopologyError::OutOfRange));
        assert_eq!(simulate(&[0; 65]), Err(TopologyError::OutOfRange));
        assert_eq!(simulate(&[0, 4]), Err(TopologyError::OutOfRange));
        assert_eq!(topology::nodes(), 1);
        let page = take(0, Movable);
        assert_eq!(simulate(&[0, 1]), Err(TopologyError::TooLate));
        assert!(
            TopologyError::TooLate
                .to_string()
                .contains("before the first")
        );
        assert_eq!(topology::nodes(), 1);
        free_pages(page).unwrap();
    });
}
