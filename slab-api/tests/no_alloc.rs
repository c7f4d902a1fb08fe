//! Nothing here calls the program's allocator: it is what that is built on.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::fmt::{self, Write};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use slab_api::{CacheDesc, Heap, ObjectCache, config, fork, registry, report};
use slab_unified::Unified;

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

/// Counts bytes.
struct Sink(usize);

impl Write for Sink {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0 += text.len();
        Ok(())
    }
}

fn typed() {
    let cache = slab_api::Cache::<[u32; 9], Unified>::constructed("typed").expect("a cache");
    for _ in 0..1000 {
        let a = cache.take().expect("memory");
        let b = cache.alloc([1; 9]).expect("memory");
        assert_eq!(a.len(), b.len());
    }
}

fn heap() {
    let heap: Heap<Unified> = Heap::new();
    for size in (0..50_000).step_by(97) {
        let p = heap.malloc(size);
        let q = heap.memalign(64, size);
        // SAFETY: taken here; realloc hands the object on.
        unsafe {
            let p = heap.realloc(p, size * 2 + 1);
            heap.free(p);
            heap.free(q);
        }
    }
    heap.trim();
}

fn reports() {
    let mut sink = Sink(0);
    report::write_text(&mut sink, "unified").expect("a sink");
    report::write_json(&mut sink, "unified", 1).expect("a sink");
    assert!(sink.0 > 2000);
    report::totals();
    report::backend_in_use();
}

#[test]
fn the_programs_allocator_is_not_called() {
    let cache = Unified::create(&CacheDesc::new("kept", 72).no_merge()).expect("a cache");
    let kept = cache.alloc().expect("memory");
    ARMED.with(|armed| armed.set(true));
    config::settings();
    let settings = config::parse(
        b"backend=slub,stats=json:/x,bad=1,purge=x,debug=F",
        |problem| {
            let _ = write!(Sink(0), "{problem}");
        },
    );
    let _ = write!(Sink(0), "{settings}");
    typed();
    heap();
    reports();
    fork::prepare();
    fork::parent();
    registry::for_each(|head| {
        let _ = (head.backend.validate)(head);
        (head.backend.shrink)(head);
    });
    ARMED.with(|armed| armed.set(false));
    assert_eq!(CALLS.load(Relaxed), 0, "calls of the program's allocator");
    // SAFETY: taken above.
    unsafe { cache.free(kept) };
    cache.destroy().expect("nothing in use");
}
