//! Nothing in the page layer calls the program's allocator: it is what that is
//! built on.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_macros,
    clippy::disallowed_types
)]
#![cfg(not(loom))]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::fmt::Write;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use page_alloc::os::Call;
use page_alloc::sync::{FutexLock, Lock};
use page_alloc::text::FdWriter;
use page_alloc::{
    Migratetype, Order, PAGE_SIZE, PageError, PageKind, PageList, alloc_pages, alloc_run,
    chunk_is_zero, committed_bytes, config, extend_run, fork, free_cold_pages, free_pages,
    free_pages_at, free_run, granule, meta, os, page_of, pcp, purge, run_pages, shrink_run, slot,
    stale_ranges, stats, sync, topology,
};

/// The system's allocator, which counts what armed threads ask of it.
struct Counting;

thread_local! {
    static ARMED: Cell<bool> = const { Cell::new(false) };
}
static CALLS: AtomicUsize = AtomicUsize::new(0);

fn count() {
    if ARMED.with(Cell::get) {
        CALLS.fetch_add(1, Relaxed);
    }
}

// SAFETY: passes everything on to `System`.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: as promised by the caller.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, p: *mut u8, layout: Layout) {
        count();
        // SAFETY: as promised by the caller.
        unsafe { System.dealloc(p, layout) }
    }
}

#[global_allocator]
static GLOBAL: Counting = Counting;

/// Calls made while `f` ran in this thread.
fn calls(f: impl FnOnce()) -> usize {
    let before = CALLS.load(Relaxed);
    ARMED.with(|armed| armed.set(true));
    f();
    ARMED.with(|armed| armed.set(false));
    CALLS.load(Relaxed) - before
}

fn chunks() {
    for mt in Migratetype::ALL {
        for order in 0..=12 {
            let page = alloc_pages(Order::new(order).unwrap(), mt).unwrap();
            let _ = (
                chunk_is_zero(page),
                page.head(),
                page.node(),
                page.address(),
            );
            page.set_cache(3);
            match order % 3 {
                0 => free_pages(page).unwrap(),
                1 => free_cold_pages(page).unwrap(),
                _ => free_pages_at(page.address()).unwrap(),
            }
            assert_eq!(free_pages(page), Err(PageError::NotAllocated));
        }
    }
    // Refills, flushes, and a list of one's own.
    let mut list = PageList::new();
    for _ in 0..500 {
        list.push_front(alloc_pages(Order::ZERO, Migratetype::Movable).unwrap());
    }
    assert_eq!(list.iter().count() + list.iter_back().count(), 1000);
    while let Some(page) = list.pop_back() {
        page.set_kind(PageKind::Slab);
        free_pages(page).unwrap();
    }
}

fn runs() {
    for pages in [1, 18, 300, 512, 1000, 9000, 300_000] {
        for align in [1, PAGE_SIZE, 1 << 16, 1 << 22] {
            let run = alloc_run(pages, align, Migratetype::Large).unwrap();
            assert!(stale_ranges(run.page).count() <= pages);
            extend_run(run.page, pages + 700);
            shrink_run(run.page, 1);
            assert_eq!(run_pages(run.page), 1);
            free_run(run.page).unwrap();
            assert!(free_run(run.page).is_err());
        }
    }
    assert!(alloc_run(usize::MAX, PAGE_SIZE, Migratetype::Large).is_none());
}

fn edges() {
    assert!(page_of(std::ptr::null()).is_none());
    assert!(granule::cell(16 as *const u8).is_none());
    let page = alloc_pages(Order::ZERO, Migratetype::Unmovable).unwrap();
    granule::cell(page.address()).unwrap().store(1, Relaxed);
    granule::primary_cell(page.address());
    // SAFETY: an address in an arena.
    unsafe { granule::cell_of_object(page.address()) }.store(0, Relaxed);
    free_pages(page).unwrap();
    // Refusals, and what gives memory back.
    for call in [Call::Commit, Call::Advise, Call::Reserve] {
        os::inject(call, true);
        if let Some(page) = alloc_pages(Order::MAX, Migratetype::Movable) {
            free_pages(page).unwrap();
        }
        purge::trim();
        os::inject(call, false);
    }
    config::set_purge_ms(Some(1));
    let run = alloc_run(5000, PAGE_SIZE, Migratetype::Large).unwrap();
    free_run(run.page).unwrap();
    while purge::pending() {
        purge::tick();
    }
    pcp::drain_all();
    assert_eq!(pcp::cached_pages(), 0);
    let _ = (committed_bytes(), topology::current_node(), os::now_ms());
    let _ = (
        os::advise_calls(),
        os::refusals(Call::Remap),
        config::arena_max(),
    );
    assert!(topology::simulate(&[0, 1]).is_err());
}

fn records() {
    static RECORDS: slot::Registry = slot::Registry::new(256);
    let a = RECORDS.acquire().unwrap();
    let b = RECORDS.acquire().unwrap();
    RECORDS.for_each(|_| {});
    // SAFETY: from `acquire`, used no more.
    unsafe {
        RECORDS.release(a);
        RECORDS.release(b);
    }
    let record = meta::alloc(100_000).unwrap();
    // SAFETY: from `alloc`, used no more.
    unsafe { meta::free(record, 100_000) };
    static LOCK: Lock<u64> = Lock::new(0);
    *LOCK.lock() += 1;
    assert!(LOCK.try_lock().is_some());
    slot::at_thread_exit(|| {});
    slot::watch_thread_exit();
    let _ = (sync::tid(), slot::has_exited());
    // The fork handlers, without a fork.
    let patience = sync::Patience::of_this_thread();
    assert!(sync::enter_fork(patience));
    fork::prepare(patience);
    runs();
    fork::parent();
    sync::leave_fork();
    let _ = size_of::<FutexLock>();
}

fn print(fd: i32) {
    let mut out = FdWriter::new(fd);
    stats::write_buddyinfo(&mut out).unwrap();
    stats::write_pagetypeinfo(&mut out).unwrap();
    let zone = stats::zone_stats(0).unwrap();
    writeln!(
        out,
        "{} {}",
        zone.fragmentation_index(9),
        zone.unusable_index(9)
    )
    .unwrap();
    writeln!(out, "{} {:?}", PageError::Foreign, PageError::NotAllocated).unwrap();
    out.flush();
}

#[test]
fn nothing_allocates() {
    assert!(
        calls(|| drop(std::hint::black_box(Box::new(1)))) == 2,
        "it counts"
    );
    let null = os::create_file(c"/dev/null").unwrap();
    let tests: [(&str, &dyn Fn()); 5] = [
        ("chunks", &chunks),
        ("runs", &runs),
        ("edges", &edges),
        ("records", &records),
        ("print", &|| print(null)),
    ];
    for (name, f) in tests {
        assert_eq!(calls(f), 0, "{name}");
    }
    os::close(null);
    // A thread's first use and its end: armed from the first exit hook until a key's
    // destructor that comes after the allocator's.
    extern "C" fn disarm(_: *mut libc::c_void) {
        ARMED.with(|armed| armed.set(false));
    }
    let mut key = 0;
    // SAFETY: valid arguments.
    let made = unsafe { libc::pthread_key_create(&raw mut key, Some(disarm)) };
    assert_eq!(made, 0);
    slot::at_thread_exit(|| ARMED.with(|armed| armed.set(true)));
    std::thread::spawn(move || {
        // SAFETY: the key exists.
        unsafe { libc::pthread_setspecific(key, std::ptr::without_provenance(1)) };
        assert_eq!(calls(chunks), 0, "first use");
    })
    .join()
    .unwrap();
    assert_eq!(CALLS.load(Relaxed), 2, "thread exit");
}

/// The kernel's tools must be able to read it.
#[test]
fn the_text_has_the_kernels_columns() {
    let mut text = String::new();
    stats::write_buddyinfo(&mut text).unwrap();
    let fields: Vec<_> = text.split_whitespace().collect();
    assert_eq!(&fields[..4], ["Node", "0,", "zone", "Normal"]);
    assert_eq!(fields.len(), 4 + page_alloc::ORDERS);
    text.clear();
    stats::write_pagetypeinfo(&mut text).unwrap();
    assert!(text.starts_with("Page block order: 9\nPages per block:  512\n"));
    for mt in Migratetype::ALL {
        assert!(text.contains(&format!("type {:>12} ", mt.name())));
    }
}
