//! Where caches meet: many of them, threads that come and go while caches do, and a
//! kernel that refuses memory.

use std::ffi::c_void;
use std::sync::mpsc;

use page_alloc::PAGE_SIZE;
use page_alloc::os::{self, Call};

use super::{Quiet, alone, at, cache, end, give, random, take};
use crate::{CacheDesc, CacheError, ObjectCache, guard, misuse, registry};

/// Ids name caches, and id 0 none.
pub fn ids<C: ObjectCache>() {
    let _alone = alone();
    assert!(C::try_alloc(0).is_null());
    assert!(C::from_id(0).is_none());
    assert!(C::from_id(registry::MAX_CACHES as u32).is_none());
    let (a, b): (C, C) = (
        cache(CacheDesc::new("a", 32)),
        cache(CacheDesc::new("b", 32)),
    );
    assert_ne!(a.id(), b.id());
    assert_eq!(C::from_id(a.id()).map(C::id), Some(a.id()));
    let head = registry::get(a.id()).expect("a is registered");
    assert_eq!((head.name(), head.backend.name), ("a", C::BACKEND));
    end(a);
    end(b);
}

/// With `hwcache_align` no two objects of a line or more share one.
pub fn lines_are_kept_apart<C: ObjectCache>() {
    let _alone = alone();
    for (size, apart) in [(100, 64), (64, 64), (40, 64), (20, 32), (16, 16)] {
        let cache: C = cache(CacheDesc::new("lines", size).hwcache_align());
        let objects: Vec<usize> = (0..200).map(|_| take(cache)).collect();
        for p in objects {
            assert!(p.is_multiple_of(apart), "{size}: {p:#x}");
            give(cache, p);
        }
        end(cache);
    }
}

/// Every id can be taken; one more is refused; all can be had again.
pub fn many_caches<C: ObjectCache>() {
    let _alone = alone();
    for _ in 0..2 {
        let mut caches: Vec<(C, usize)> = Vec::new();
        let error = loop {
            let size = 16 + caches.len() % 50 * 8;
            match C::create(&CacheDesc::new("many", size).no_merge()) {
                Ok(cache) => {
                    let p = take(cache);
                    // SAFETY: ours, `size` bytes.
                    unsafe { at(p).write_bytes(cache.id() as u8, size) };
                    caches.push((cache, p));
                }
                Err(error) => break error,
            }
        };
        assert_eq!(error, CacheError::TooMany);
        assert!(caches.len() > 900, "{} caches", caches.len());
        for (n, (cache, p)) in caches.into_iter().enumerate() {
            let size = 16 + n % 50 * 8;
            // SAFETY: ours, `size` bytes.
            let whole = (0..size).all(|i| unsafe { at(p).add(i).read() } == cache.id() as u8);
            assert!(whole, "cache {}: objects overlap", cache.id());
            assert_eq!(cache.info().in_use, 1);
            give(cache, p);
            end(cache);
        }
    }
}

/// Caches whose ids do not fit the granule's byte are told apart all the same.
pub fn extended_misuse<C: ObjectCache>() {
    let _alone = alone();
    let _quiet = Quiet::new();
    let caches: Vec<C> = (0..300)
        .map(|_| cache(CacheDesc::new("extended", 64)))
        .collect();
    let (a, b) = (caches[298], caches[299]);
    assert!(a.id() > 255 && b.id() > 255, "{} and {}", a.id(), b.id());
    let objects: Vec<usize> = (0..50).map(|_| take(a)).collect();
    let stranger = take(b);
    let mut expected = misuse::detected();
    let mut bad = |p: usize, what: &str| {
        give(a, p);
        expected += 1;
        assert_eq!(misuse::detected(), expected, "{what} went unnoticed");
    };
    bad(stranger, "a free to the wrong cache");
    bad(objects[0] + 16, "an interior free");
    give(a, objects[0]);
    bad(objects[0], "a double free");
    assert_eq!((a.info().in_use, b.info().in_use), (49, 1));
    for p in &objects[1..] {
        give(a, *p);
    }
    give(b, stranger);
    for cache in caches {
        end(cache);
    }
}

/// What a thread hands back in its very last destructors.
struct Late<C: ObjectCache> {
    cache: C,
    key: libc::pthread_key_t,
    rounds: u32,
    objects: Vec<usize>,
}

/// The destructor of a thread's key: puts itself off until the last round, when the
/// allocator's own exit hook has long run.
unsafe extern "C" fn late<C: ObjectCache>(value: *mut c_void) {
    // SAFETY: `late_frees` set a boxed `Late<C>` as the value.
    let mut late = unsafe { Box::from_raw(value.cast::<Late<C>>()) };
    if late.rounds < 3 {
        late.rounds += 1;
        let key = late.key;
        // SAFETY: the key exists; the box is handed on.
        unsafe { libc::pthread_setspecific(key, Box::into_raw(late).cast()) };
        return;
    }
    for p in std::mem::take(&mut late.objects) {
        give(late.cache, p);
    }
    for _ in 0..10 {
        give(late.cache, take(late.cache));
    }
}

/// Threads that free and take in their last destructors lose nothing.
pub fn late_frees<C: ObjectCache>() {
    let _alone = alone();
    let cache: C = cache(CacheDesc::new("late", 144));
    let mut key = 0;
    // SAFETY: `key` is valid, and the destructor fits the values set below.
    let made = unsafe { libc::pthread_key_create(&raw mut key, Some(late::<C>)) };
    assert_eq!(made, 0);
    for n in 0..50 {
        std::thread::spawn(move || {
            let late = Box::new(Late {
                cache,
                key,
                rounds: 0,
                objects: (0..n * 5).map(|_| take(cache)).collect(),
            });
            // SAFETY: the key exists; its destructor takes the box.
            unsafe { libc::pthread_setspecific(key, Box::into_raw(late).cast()) };
        })
        .join()
        .expect("the thread ends well");
        assert_eq!(cache.info().in_use, 0, "thread {n}");
    }
    // SAFETY: no thread has a value any more.
    unsafe { libc::pthread_key_delete(key) };
    assert!(cache.info().slabs < 20, "{:?}", cache.info());
    end(cache);
}

/// A cache ends while other threads' slots hold objects of it, and its id serves the
/// next cache: nothing of the old one turns up there.
pub fn destroy_takes_from_threads<C: ObjectCache>() {
    let _alone = alone();
    let (work, orders) = mpsc::channel::<(C, usize)>();
    let (report, done) = mpsc::channel::<()>();
    std::thread::scope(|s| {
        s.spawn(move || {
            for (cache, size) in orders {
                let mut objects: Vec<usize> = (0..200).map(|_| take(cache)).collect();
                objects.sort_unstable();
                let apart = objects.windows(2).all(|w| w[1] - w[0] >= size);
                assert!(apart, "objects of a cache that is gone");
                for p in objects {
                    // SAFETY: ours, `size` bytes.
                    unsafe { at(p).write_bytes(0xd7, size) };
                    give(cache, p);
                }
                report.send(()).expect("the main thread lives");
            }
        });
        let mut seed = 3;
        let mut ids = Vec::new();
        for _ in 0..60 {
            let size = 16 + random(&mut seed) % 3000;
            let cache: C = cache(CacheDesc::new("short-lived", size));
            ids.push(cache.id());
            give(cache, take(cache));
            work.send((cache, size)).expect("the thread lives");
            done.recv().expect("the thread lives");
            give(cache, take(cache));
            end(cache);
        }
        ids.sort_unstable();
        ids.dedup();
        assert!(ids.len() < 60, "ids are used again");
        drop(work);
    });
}

/// Plants refusals of the kernel while it lives.
struct Refusing(Call);

impl Refusing {
    fn new(call: Call) -> Self {
        os::inject(call, true);
        Self(call)
    }
}

impl Drop for Refusing {
    fn drop(&mut self) {
        os::inject(self.0, false);
    }
}

/// When the kernel refuses memory the answer is `None`; advice it may refuse freely.
pub fn refusals<C: ObjectCache>() {
    let _alone = alone();
    let cache: C = cache(CacheDesc::new("refusals", 8192));
    let mut objects = Vec::new();
    {
        let _refusing = (Refusing::new(Call::Commit), Refusing::new(Call::Reserve));
        while let Some(p) = cache.alloc() {
            objects.push(p.as_ptr().expose_provenance());
            assert!(
                objects.len() < 1 << 20,
                "the refusals do not reach the cache"
            );
        }
        cache.validate().expect("valid");
        assert_eq!(cache.info().in_use, objects.len());
        // A free needs no memory.
        for p in objects.split_off(objects.len() / 2) {
            give(cache, p);
        }
    }
    objects.extend((0..2000).map(|_| take(cache)));
    let _refusing = Refusing::new(Call::Advise);
    for p in objects {
        give(cache, p);
    }
    cache.shrink();
    page_alloc::purge::trim();
    end(cache);
}

/// shrink leaves slabs with objects in use, and their content, alone.
pub fn shrink_keeps_what_is_in_use<C: ObjectCache>() {
    let _alone = alone();
    let cache: C = cache(CacheDesc::new("sparse", 256));
    let objects: Vec<usize> = (0..4000).map(|_| take(cache)).collect();
    let (kept, freed): (Vec<_>, Vec<_>) = objects.into_iter().enumerate().partition(|(n, _)| {
        // Some slabs keep an object, others none.
        n % 97 == 0 && *n < 2000
    });
    for (n, p) in &kept {
        // SAFETY: ours, 256 bytes.
        unsafe { at(*p).write_bytes(*n as u8, 256) };
    }
    for (_, p) in freed {
        give(cache, p);
    }
    let before = cache.info().slabs;
    let pages = cache.shrink();
    let info = cache.info();
    // The return value need not count slabs that went while the queues were emptied.
    assert!(
        pages <= (before - info.slabs) << info.slab_order,
        "{pages} pages, {before} slabs before: {info:?}"
    );
    assert!(info.slabs <= kept.len(), "{info:?}");
    assert_eq!((info.in_use, info.queued), (kept.len(), 0), "{info:?}");
    for (n, p) in kept {
        // SAFETY: as above.
        assert!((0..256).all(|i| unsafe { at(p).add(i).read() } == n as u8));
        give(cache, p);
    }
    end(cache);
}

/// With `guarded` every slab ends in a page that nobody can read, objects do not reach
/// it, and the pages come back whole.
pub fn slabs_end_in_guards<C: ObjectCache>() {
    let _alone = alone();
    for size in [16, 112, 1000, 4096, 32000] {
        let desc = CacheDesc::new("guarded", size).guarded();
        if guard::bytes(&desc) == 0 {
            return; // the kernel's pages are larger than ours
        }
        let cache: C = cache(desc);
        let before = guard::counts();
        let objects: Vec<usize> = (0..700).map(|_| take(cache)).collect();
        let slab = PAGE_SIZE << cache.info().slab_order;
        for p in &objects {
            // SAFETY: ours, `size` bytes.
            unsafe { at(*p).write_bytes(0xaa, size) };
            let end = (p / slab + 1) * slab;
            assert!(
                p + size <= end - PAGE_SIZE,
                "{size}: an object in the guard"
            );
            assert!(is_readable(end - PAGE_SIZE - 1), "{size}");
            assert!(!is_readable(end - PAGE_SIZE), "{size}: no guard");
        }
        let armed = guard::counts().0 - before.0;
        assert!(armed as usize >= 700 * size / slab, "{size}: {armed}");
        objects.into_iter().for_each(|p| give(cache, p));
        end(cache);
        assert_eq!(guard::counts().2, 0, "no guard stays");
        // Whoever gets the pages next can use them to the end.
        let plain: C = self::cache(CacheDesc::new("plain", 4096));
        let objects: Vec<usize> = (0..300).map(|_| take(plain)).collect();
        for p in &objects {
            // SAFETY: ours, 4096 bytes.
            unsafe { at(*p).write_bytes(0x55, 4096) };
        }
        objects.into_iter().for_each(|p| give(plain, p));
        end(plain);
    }
}

/// Whether the byte can be read: the kernel tells, by a pipe.
fn is_readable(p: usize) -> bool {
    let mut ends = [0; 2];
    // SAFETY: `ends` takes two descriptors, which are closed; write refuses what it
    // cannot read.
    unsafe {
        assert_eq!(libc::pipe(ends.as_mut_ptr()), 0);
        let written = libc::write(ends[1], at(p).cast(), 1);
        libc::close(ends[0]);
        libc::close(ends[1]);
        written == 1
    }
}
