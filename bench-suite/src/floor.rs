//! The floor: an allocator that does nothing but hand out and take back memory, at the least cost that is still
//! correct with any number of threads. What a row takes on it is the workload's own time; what it takes more on
//! another backend is that allocator's share.
//!
//! ```text
//!  thread:  loaded  o─o─o─o          at most BATCH objects, linked through their first word
//!           spare   o─o─o─…─o        as many, or none
//!                 │ ▲ whole batches
//!  depot:   [batch] [batch] [batch]  a lock, taken once in BATCH operations at most
//!                   ▲
//!  source:  ──────▶ never used yet   cut from the front of 4 MiB mappings
//! ```
//! It checks nothing, counts nothing, gives nothing back and knows no slabs: no allocator to be used in earnest.

use crate::objects::Objects;
use std::cell::Cell;
use std::ptr::null_mut;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The name under which the floor runs.
pub const NAME: &str = "floor";

/// Objects of a batch, unless they are so large that fewer fill [`BATCH_BYTES`].
const BATCH: usize = 128;
/// Bytes of a batch of large objects.
const BATCH_BYTES: usize = 512 * 1024;
/// Caches a worker can make.
const CACHES: usize = 256;
/// Bytes taken from the kernel at once.
const CHUNK: usize = 4 << 20;
/// Size classes of the heap: four to a power of two from 16 bytes, up to [`LARGEST`].
const CLASSES: usize = 4 * 23 + 1;
/// The largest object of the heap.
const LARGEST: usize = 128 << 20;
/// Before an object of the heap stands its cache.
const HEADER: usize = ALIGN;
/// Every object starts on a multiple of this many bytes.
const ALIGN: usize = 16;

/// One thread's objects of one cache.
struct Local {
    loaded: Cell<*mut u8>,
    /// Objects that may still be added to what is loaded.
    room: Cell<usize>,
    spare: Cell<*mut u8>,
}

/// What all threads share of one cache.
struct Shared {
    batches: Vec<usize>,
    next: usize,
    end: usize,
}

static SIZES: [AtomicUsize; CACHES] = [const { AtomicUsize::new(0) }; CACHES];
static MADE: AtomicUsize = AtomicUsize::new(0);
static SHARED: [Mutex<Shared>; CACHES] = [const {
    Mutex::new(Shared {
        batches: Vec::new(),
        next: 0,
        end: 0,
    })
}; CACHES];

thread_local! {
    static LOCAL: [Local; CACHES] = const {
        [const {
            Local { loaded: Cell::new(null_mut()), room: Cell::new(0), spare: Cell::new(null_mut()) }
        }; CACHES]
    };
    /// Gives a thread's objects to the depot when it ends; the slow paths make sure that it exists.
    static GUARD: Guard = const { Guard };
}

struct Guard;

impl Drop for Guard {
    fn drop(&mut self) {
        for cache in 0..MADE.load(Ordering::Relaxed).min(CACHES) {
            LOCAL.with(|local| {
                let local = &local[cache];
                let chains = [
                    local.loaded.replace(null_mut()),
                    local.spare.replace(null_mut()),
                ];
                local.room.set(0);
                let mut shared = shared(cache);
                let full = chains.into_iter().filter(|chain| !chain.is_null());
                shared.batches.extend(full.map(|chain| chain as usize));
            });
        }
    }
}

fn shared(cache: usize) -> std::sync::MutexGuard<'static, Shared> {
    // A batch is whole at every moment, so a panic elsewhere leaves nothing half done.
    SHARED[cache]
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// The next object of a chain.
///
/// # Safety
/// `object` is a free object of this allocator, in nobody else's hands.
unsafe fn next_of(object: *mut u8) -> *mut u8 {
    // SAFETY: free objects hold the next one's address in their first word, which is aligned; see `ALIGN`.
    unsafe { object.cast::<*mut u8>().read() }
}

/// The floor as a backend of the cache workloads.
pub struct Floor;

impl Objects for Floor {
    const NAME: &'static str = NAME;
    type Cache = usize;

    fn create(_name: &'static str, size: usize) -> Result<usize, String> {
        let cache = MADE.fetch_add(1, Ordering::Relaxed);
        if cache >= CACHES || size == 0 || size > LARGEST {
            return Err(format!("floor: no cache of {size} bytes (number {cache})"));
        }
        SIZES[cache].store(size.next_multiple_of(ALIGN), Ordering::Relaxed);
        Ok(cache)
    }

    #[inline(always)]
    fn alloc(cache: usize) -> *mut u8 {
        LOCAL.with(|local| {
            let local = &local[cache];
            let object = local.loaded.get();
            if object.is_null() {
                return refill(cache, local);
            }
            // SAFETY: the thread's own chain holds free objects only.
            local.loaded.set(unsafe { next_of(object) });
            local.room.set(local.room.get() + 1);
            object
        })
    }

    #[inline(always)]
    unsafe fn free(cache: usize, object: *mut u8) {
        LOCAL.with(|local| {
            let local = &local[cache];
            if local.room.get() == 0 {
                flush(cache, local);
            }
            // SAFETY: the caller gives the object up; it is aligned and holds at least `ALIGN` bytes.
            unsafe { object.cast::<*mut u8>().write(local.loaded.get()) };
            local.loaded.set(object);
            local.room.set(local.room.get() - 1);
        });
    }

    #[inline(always)]
    fn alloc_bulk(cache: usize, out: &mut [*mut u8]) -> usize {
        for (count, slot) in out.iter_mut().enumerate() {
            *slot = Self::alloc(cache);
            if slot.is_null() {
                return count;
            }
        }
        out.len()
    }

    #[inline(always)]
    unsafe fn free_bulk(cache: usize, objects: &[*mut u8]) {
        for &object in objects {
            // SAFETY: the caller promises it for each object.
            unsafe { Self::free(cache, object) }
        }
    }

    #[inline(always)]
    fn take(size: usize) -> *mut u8 {
        let class = class_of(size);
        if class >= CLASSES {
            return null_mut();
        }
        let cache = HEAP[class].load(Ordering::Relaxed);
        let cache = if cache == 0 { make(class) } else { cache };
        let start = Self::alloc(cache - 1);
        if start.is_null() {
            return start;
        }
        // SAFETY: every object of the heap's caches holds the header and its class's bytes.
        unsafe {
            start.cast::<usize>().write(cache);
            start.add(HEADER)
        }
    }

    #[inline(always)]
    unsafe fn give(object: *mut u8) {
        // SAFETY: `take` left a header before the object, which the caller gives up.
        unsafe {
            let start = object.sub(HEADER);
            let cache = start.cast::<usize>().read();
            Self::free(cache - 1, start);
        }
    }

    fn trim() {}

    fn held() -> Option<u64> {
        None
    }

    fn limit(_bytes: usize) -> bool {
        false
    }

    fn counters() -> Vec<(String, u64)> {
        Vec::new()
    }
}

/// One more than the cache of each class of the heap; 0 until the class is used.
static HEAP: [AtomicUsize; CLASSES] = [const { AtomicUsize::new(0) }; CLASSES];

/// The class of objects of `size` bytes: the least one whose [`class_size`] is not less.
#[inline(always)]
fn class_of(size: usize) -> usize {
    if size <= 16 {
        return 0;
    }
    let power = (size - 1).ilog2() as usize;
    (power - 4) * 4 + ((size - 1) >> (power - 2)) - 3
}

/// The size of a class's objects.
fn class_size(class: usize) -> usize {
    (4 + class % 4) << (class / 4 + 2)
}

/// Makes the cache of a class, and returns one more than its number.
#[cold]
#[inline(never)]
fn make(class: usize) -> usize {
    let Ok(cache) = Floor::create("heap", class_size(class) + HEADER) else {
        crate::workloads::die("floor: too many caches");
    };
    // Another thread may have made it at the same time: the first stays, the other is never used.
    match HEAP[class].compare_exchange(0, cache + 1, Ordering::Relaxed, Ordering::Relaxed) {
        Ok(_) => cache + 1,
        Err(first) => first,
    }
}

/// Objects of a cache's batch.
fn batch(cache: usize) -> usize {
    (BATCH_BYTES / SIZES[cache].load(Ordering::Relaxed).max(1)).clamp(1, BATCH)
}

/// Takes a batch from the spare, the depot or the source, and an object from it. Null when memory has run out.
#[cold]
#[inline(never)]
fn refill(cache: usize, local: &Local) -> *mut u8 {
    // A thread that is ending has no guard any more; what it frees from now on is lost.
    let _ = GUARD.try_with(|_| ());
    let mut chain = local.spare.replace(null_mut());
    if chain.is_null() {
        let mut shared = shared(cache);
        chain = match shared.batches.pop() {
            Some(batch) => batch as *mut u8,
            None => cut(
                &mut shared,
                SIZES[cache].load(Ordering::Relaxed),
                batch(cache),
            ),
        };
    }
    if chain.is_null() {
        return chain;
    }
    // The batch may be shorter (an ending thread left it, or a mapping ended): then the next flush comes early.
    // SAFETY: the chain was just taken, so it is this thread's alone.
    local.loaded.set(unsafe { next_of(chain) });
    local.room.set(1);
    chain
}

/// Puts the loaded batch aside.
#[cold]
#[inline(never)]
fn flush(cache: usize, local: &Local) {
    let _ = GUARD.try_with(|_| ());
    let spare = local.spare.replace(local.loaded.replace(null_mut()));
    local.room.set(batch(cache));
    if !spare.is_null() {
        shared(cache).batches.push(spare as usize);
    }
}

/// Cuts a batch (or as many objects as are left of a mapping) from never used memory; null when there is none.
fn cut(shared: &mut Shared, size: usize, most: usize) -> *mut u8 {
    let chunk = size.max(CHUNK);
    if shared.end - shared.next < size {
        // SAFETY: a fresh anonymous mapping, no address asked for.
        let start = unsafe {
            libc::mmap(
                null_mut(),
                chunk,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return null_mut();
        }
        (shared.next, shared.end) = (start as usize, start as usize + chunk);
    }
    let count = ((shared.end - shared.next) / size).min(most);
    let mut chain: *mut u8 = null_mut();
    for i in (0..count).rev() {
        let object = (shared.next + i * size) as *mut u8;
        // SAFETY: the object lies inside the mapping and belongs to nobody yet.
        unsafe { object.cast::<*mut u8>().write(chain) };
        chain = object;
    }
    shared.next += count * size;
    chain
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn objects_are_distinct_and_come_back() {
        let cache = Floor::create("t", 24).unwrap();
        let objects: Vec<usize> = (0..5 * BATCH)
            .map(|i| {
                let object = Floor::alloc(cache);
                // SAFETY: a fresh object of 24 bytes.
                unsafe { object.cast::<usize>().write(i) };
                object as usize
            })
            .collect();
        for (i, object) in objects.iter().enumerate() {
            assert_eq!(object % ALIGN, 0);
            // SAFETY: written above and still live.
            assert_eq!(unsafe { (*object as *const usize).read() }, i);
        }
        let first: HashSet<usize> = objects.iter().copied().collect();
        assert_eq!(first.len(), objects.len());
        for object in &objects {
            // SAFETY: allocated above, freed once.
            unsafe { Floor::free(cache, *object as *mut u8) };
        }
        let again: HashSet<usize> = (0..5 * BATCH)
            .map(|_| Floor::alloc(cache) as usize)
            .collect();
        assert_eq!(again, first);
    }

    #[test]
    fn classes_hold_what_they_are_asked_for_and_waste_a_quarter_at_most() {
        assert_eq!(class_size(CLASSES - 1), LARGEST);
        for size in (1..70_000).chain([LARGEST - 1, LARGEST]) {
            let class = class_of(size);
            assert!(class_size(class) >= size, "{size}");
            assert!(class == 0 || class_size(class - 1) < size, "{size}");
        }
        assert!(class_of(LARGEST + 1) >= CLASSES && Floor::take(LARGEST + 1).is_null());
    }

    #[test]
    fn the_heap_keeps_sizes_apart() {
        let sizes = [1, 16, 17, 100, 5000, 70_000, 5 << 20];
        let mut seen = Vec::new();
        for round in 0..400 {
            let objects = sizes.map(|size| {
                let object = Floor::take(size);
                assert_eq!(object as usize % ALIGN, 0);
                // SAFETY: a fresh object of `size` bytes.
                unsafe { object.write_bytes(size as u8, size.min(6000)) };
                object
            });
            for (object, size) in objects.iter().zip(sizes) {
                // SAFETY: written above and still live.
                let bytes = unsafe { std::slice::from_raw_parts(*object, size.min(6000)) };
                assert!(bytes.iter().all(|byte| *byte == size as u8), "{size}");
                // SAFETY: taken above, given back once.
                unsafe { Floor::give(*object) };
            }
            let mut objects = objects.to_vec();
            objects.sort_unstable();
            if round == 0 {
                seen = objects.clone();
            }
            assert_eq!(objects, seen, "freed objects come back first");
        }
    }

    #[test]
    fn what_one_thread_frees_another_gets_and_an_ended_thread_leaves_nothing_behind() {
        let cache = Floor::create("t", 64).unwrap();
        let mut seen = HashSet::new();
        for _ in 0..50 {
            let objects: Vec<usize> = std::thread::spawn(move || {
                (0..3 * BATCH)
                    .map(|_| Floor::alloc(cache) as usize)
                    .collect()
            })
            .join()
            .unwrap_or_default();
            seen.extend(objects.iter().copied());
            let freed = std::thread::spawn(move || {
                for object in objects {
                    // SAFETY: the other thread allocated it and has ended.
                    unsafe { Floor::free(cache, object as *mut u8) };
                }
            });
            freed.join().unwrap();
        }
        // Some batches wait at the wrong place for a while; fifty times as many objects would be a leak.
        assert!(seen.len() < 3 * 3 * BATCH, "{} objects", seen.len());
    }
}
