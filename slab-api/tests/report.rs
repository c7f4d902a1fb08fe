//! The reports: the kernel's columns, and JSON that holds the same figures.

use std::fs::File;
use std::io::{Read, Seek};
use std::os::fd::AsRawFd;
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde_json::Value;
use slab_api::{CacheDesc, Heap, ObjectCache, report};
use slab_unified::Unified;

/// The caches are the process's: one test at a time counts them.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn json() -> Value {
    let mut text = String::new();
    report::write_json(&mut text, "uni\"fied", 7).expect("a String takes everything");
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"))
}

fn text() -> String {
    let mut text = String::new();
    report::write_text(&mut text, "unified").expect("a String takes everything");
    text
}

fn cache_of<'a>(json: &'a Value, name: &str) -> &'a Value {
    let caches = json["caches"].as_array().expect("an array");
    caches
        .iter()
        .find(|cache| cache["name"] == name)
        .unwrap_or_else(|| panic!("{name} is missing: {json}"))
}

#[test]
fn slabinfo_has_the_kernels_columns() {
    let _alone = alone();
    // A name that would break the columns.
    let cache = Unified::create(&CacheDesc::new("two words\n", 200).no_merge()).expect("a cache");
    let objects: Vec<NonNull<u8>> = (0..100).map(|_| cache.alloc().expect("memory")).collect();
    let text = text();
    let mut lines = text.lines();
    assert_eq!(lines.next(), Some("slabinfo - version: 2.1"));
    assert_eq!(
        lines.next(),
        Some(
            "# name            <active_objs> <num_objs> <objsize> <objperslab> <pagesperslab> \
             : tunables <limit> <batchcount> <sharedfactor> \
             : slabdata <active_slabs> <num_slabs> <sharedavail>"
        )
    );
    let info = cache.info();
    let line = lines
        .find(|line| line.starts_with("two_words_"))
        .unwrap_or_else(|| panic!("{text}"));
    let columns: Vec<&str> = line.split_whitespace().collect();
    let numbers: Vec<usize> = columns.iter().filter_map(|c| c.parse().ok()).collect();
    let (limit, batch, shared) = info.tunables;
    assert_eq!(
        numbers,
        [
            100,
            info.slabs * info.objects_per_slab,
            208,
            info.objects_per_slab,
            1 << info.slab_order,
            limit,
            batch,
            shared,
            info.active_slabs,
            info.slabs,
            0
        ],
        "{line}"
    );
    assert_eq!(columns.len(), 1 + 11 + 4, "{line}");
    let counters = lines
        .find(|line| line.starts_with("two_words_"))
        .expect("the section of counters");
    assert!(
        counters.contains(&format!("queued {}", info.queued)) && counters.contains("new_slab "),
        "{counters}"
    );
    for needed in [
        "Node 0, zone   Normal ",
        "Page block order: 9",
        "Free pages count per migrate type at order",
        "Number of blocks type",
    ] {
        assert!(text.contains(needed), "{needed:?} is missing: {text}");
    }
    let summary = text.lines().last().expect("a summary");
    assert!(
        summary.starts_with("slabmalloc: backend unified: "),
        "{summary}"
    );
    for p in objects {
        // SAFETY: taken above.
        unsafe { cache.free(p) };
    }
    cache.destroy().expect("nothing in use");
}

#[test]
fn json_holds_the_same_figures() {
    let _alone = alone();
    let name = "js\"on\\\u{1}\u{e9}";
    let cache = Unified::create(&CacheDesc::new(name, 512).no_merge()).expect("a cache");
    let objects: Vec<NonNull<u8>> = (0..300).map(|_| cache.alloc().expect("memory")).collect();
    for p in &objects[..20] {
        // SAFETY: taken above.
        unsafe { cache.free(*p) };
    }
    let heap: Heap<Unified> = Heap::new();
    let large = heap.malloc(3 << 20);
    let json = json();
    assert_eq!(json["backend"], "uni\"fied");
    assert_eq!(json["pid"], 7);
    let info = cache.info();
    let ours = cache_of(&json, name);
    for (key, value) in [
        ("id", cache.id() as usize),
        ("size", 512),
        ("stride", 512),
        ("in_use", 280),
        ("queued", info.queued),
        ("slabs", info.slabs),
        ("active_slabs", info.active_slabs),
        ("objects_per_slab", info.objects_per_slab),
        ("slab_order", info.slab_order.into()),
        ("limit", info.tunables.0),
        ("batchcount", info.tunables.1),
        ("shared", info.tunables.2),
    ] {
        assert_eq!(ours[key], value, "{key}: {ours}");
    }
    for (name, value) in info.counters.iter().filter(|(name, _)| !name.is_empty()) {
        assert_eq!(ours["counters"][name], *value, "{name}: {ours}");
    }
    let number = |value: &Value| value.as_u64().unwrap_or_else(|| panic!("{value}"));
    assert!(number(&json["large_bytes"]) >= 3 << 20);
    assert!(number(&json["in_use_bytes"]) >= number(&json["large_bytes"]) + 280 * 512);
    assert!(number(&json["mapped_bytes"]) >= number(&json["in_use_bytes"]));
    let sum = |key: &str| -> u64 {
        let caches = json["caches"].as_array().expect("an array");
        caches
            .iter()
            .map(|cache| number(&cache[key]) * number(&cache["stride"]))
            .sum()
    };
    assert_eq!(number(&json["queued_bytes"]), sum("queued"));
    for zone in json["zones"].as_array().expect("an array") {
        let free = |list: &Value| -> u64 {
            let orders = list.as_array().expect("an array");
            orders
                .iter()
                .enumerate()
                .map(|(order, chunks)| number(chunks) << order)
                .sum()
        };
        let types = zone["types"].as_array().expect("an array");
        assert_eq!(free(&zone["free_chunks"]), number(&zone["free_pages"]));
        assert_eq!(
            types.iter().map(|t| free(&t["free_chunks"])).sum::<u64>(),
            number(&zone["free_pages"])
        );
        let blocks: u64 = types.iter().map(|t| number(&t["blocks"])).sum();
        assert_eq!(blocks * 512, number(&zone["managed_pages"]));
    }
    // SAFETY: taken above.
    unsafe {
        heap.free(large);
        for p in &objects[20..] {
            cache.free(*p);
        }
    }
    drop(heap);
    cache.destroy().expect("nothing in use");
}

#[test]
fn reports_go_to_descriptors() {
    let _alone = alone();
    assert_eq!(report::backend_in_use(), "none");
    let cache = Unified::create(&CacheDesc::new("fd", 64).no_merge()).expect("a cache");
    assert_eq!(report::backend_in_use(), "unified");
    let written = |write: fn(i32)| {
        let mut file: File = tempfile();
        write(file.as_raw_fd());
        let mut text = String::new();
        file.rewind().expect("a file");
        file.read_to_string(&mut text).expect("UTF-8");
        text
    };
    let text = written(report::write_all);
    assert!(text.starts_with("slabinfo - version: 2.1\n") && text.ends_with('\n'));
    let json: Value = serde_json::from_str(&written(report::write_all_json)).expect("JSON");
    assert_eq!(json["backend"], "unified");
    assert_eq!(json["pid"], std::process::id());
    cache.destroy().expect("nothing in use");
}

/// A file without a name.
fn tempfile() -> File {
    // SAFETY: a NUL-ended name; the descriptor is ours alone.
    unsafe {
        let fd = libc::memfd_create(c"report".as_ptr(), libc::MFD_CLOEXEC);
        assert!(fd >= 0, "memfd_create");
        <File as std::os::fd::FromRawFd>::from_raw_fd(fd)
    }
}
