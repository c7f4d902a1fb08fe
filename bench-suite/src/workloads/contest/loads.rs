//! The loads that run beside the foreground job.
//!
//! | load | in a kernel | here |
//! |---|---|---|
//! | process_load | processes pass data round in a ring of pipes | 4 threads a CPU pass buffers round in a ring; each is freed by the next thread |
//! | ctar_load | makes a tar of a source tree | small objects are copied into one that grows |
//! | xtar_load | extracts it | a large object is cut into small ones |
//! | io_load | writes a large file | a stream of 2 MiB buffers (order 9), two at a time |
//! | io_other | the same on another disk | the same in mappings of the kernel's own, outside the allocator |
//! | read_load | reads a large file | pages fill a cache, the oldest ends when it is full |
//! | list_load | lists the whole tree | 100,000 tiny objects live long, then end |
//! | mem_load | touches 110 % of memory | touches 110 % of the limit; a miss takes a page, and the oldest page is reclaimed where none is left |

use super::mapping::Mapping;
use crate::objects::Objects;
use crate::rng::Rng;
use crate::workloads::crew::{self, cpu_of, thread_cpu};
use crate::workloads::store::{self, Buf, Owned, taken};
use crate::workloads::{STACK, die, pin};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Barrier, Mutex, MutexGuard};
use std::thread::{Builder, Scope, ScopedJoinHandle};
use std::time::Duration;

/// The rows of contest, in its order. The first two have no load.
pub const LOADS: [&str; 10] = [
    "no_load",
    "cacherun",
    "process_load",
    "ctar_load",
    "xtar_load",
    "io_load",
    "io_other",
    "read_load",
    "list_load",
    "mem_load",
];

const PAGE: usize = 4096;
/// An order-9 buffer.
const LARGE: usize = PAGE << 9;

/// What one thread of a load did.
#[derive(Clone, Copy, Debug, Default)]
pub struct Done {
    /// Its steps: buffers passed on, files, 2 MiB buffers, pages, list entries or touches.
    pub steps: u64,
    /// Its CPU time.
    pub cpu: Duration,
    /// Objects it took.
    pub objects: u64,
}

/// What a load runs with.
pub struct Setting<'a> {
    /// Ends the load.
    pub stop: &'a AtomicBool,
    /// Where the load and the foreground begin together.
    pub start: &'a Barrier,
    /// Bytes that read_load and mem_load fill.
    pub limit: usize,
    /// The CPUs of a bound run; the load's threads take them in turn.
    pub cpus: Option<(usize, usize)>,
}

/// Threads of the load called `name`.
pub fn threads_of(name: &str) -> usize {
    match name {
        "no_load" | "cacherun" => 0,
        "process_load" => 4 * crew::cpus(),
        _ => 1,
    }
}

/// Starts the load called `name`: its threads wait at the barrier.
pub fn start<'scope, O: Objects>(
    name: &str,
    scope: &'scope Scope<'scope, '_>,
    setting: &'scope Setting<'scope>,
) -> Result<Vec<ScopedJoinHandle<'scope, Done>>, String> {
    let threads = threads_of(name);
    let spawn = |number: usize, body: Box<dyn FnOnce(&Setting<'_>) -> Steps + Send>| {
        let handle = Builder::new()
            .stack_size(STACK)
            .spawn_scoped(scope, move || {
                pin(cpu_of(setting.cpus, number));
                let steps = body(setting);
                Done {
                    steps: steps.count,
                    cpu: steps.cpu,
                    objects: taken(),
                }
            });
        // Those that wait at the barrier would wait for ever.
        handle.unwrap_or_else(|e| die(&format!("contest: cannot start a thread: {e}")))
    };
    let single: fn(&Setting<'_>) -> Steps = match name {
        "no_load" | "cacherun" => return Ok(Vec::new()),
        "process_load" => {
            return Ok(ring::<O>(threads)
                .into_iter()
                .enumerate()
                .map(|(number, member)| spawn(number, Box::new(move |s| member.run(s))))
                .collect());
        }
        "ctar_load" => create_archive::<O>,
        "xtar_load" => extract_archive::<O>,
        "io_load" => stream::<O>,
        "io_other" => stream_elsewhere,
        "read_load" => read::<O>,
        "list_load" => list::<O>,
        "mem_load" => memory::<O>,
        _ => {
            return Err(format!(
                "contest: no load '{name}'; valid: {}",
                LOADS.join(", ")
            ));
        }
    };
    Ok(vec![spawn(0, Box::new(single))])
}

/// What was done since the start line: what a load fills before does not count.
struct Steps {
    count: u64,
    cpu: Duration,
}

/// Does `step`, which counts as `each`, until the load is stopped.
fn repeat(setting: &Setting<'_>, each: usize, mut step: impl FnMut()) -> Steps {
    setting.start.wait();
    let began = thread_cpu();
    let mut count = 0;
    while !setting.stop.load(Ordering::Relaxed) {
        step();
        count += each as u64;
    }
    Steps {
        count,
        cpu: thread_cpu() - began,
    }
}

struct Member<O: Objects> {
    from: Receiver<Buf<O>>,
    to: SyncSender<Buf<O>>,
    first: bool,
}

/// Buffers under way in the ring; the channels hold all of them, so that no thread ever waits to send.
const IN_FLIGHT: usize = 16;

fn ring<O: Objects>(threads: usize) -> Vec<Member<O>> {
    let (mut senders, receivers): (VecDeque<_>, Vec<_>) =
        (0..threads).map(|_| sync_channel(IN_FLIGHT)).unzip();
    // Each sends into the channel of the next.
    senders.rotate_left(1);
    let pairs = senders.into_iter().zip(receivers).enumerate();
    pairs
        .map(|(number, (to, from))| Member {
            from,
            to,
            first: number == 0,
        })
        .collect()
}

impl<O: Objects> Member<O> {
    /// Passes buffers on until the load ends. A step is one buffer passed on.
    fn run(self, setting: &Setting<'_>) -> Steps {
        setting.start.wait();
        let began = thread_cpu();
        if self.first {
            for size in 0..IN_FLIGHT {
                let _ = self.to.send(Buf::filled(64 << (size % 6), 1));
            }
        }
        let mut count = 0;
        // A neighbour that has stopped closes the channel.
        while let Ok(buffer) = self.from.recv() {
            if setting.stop.load(Ordering::Relaxed) {
                break;
            }
            let copy = Buf::copy_of(&buffer);
            drop(buffer);
            if self.to.send(copy).is_err() {
                break;
            }
            count += 1;
        }
        Steps {
            count,
            cpu: thread_cpu() - began,
        }
    }
}

/// Small files of an archive.
const FILES: usize = 512;

fn file_size(number: usize) -> usize {
    64 + number * 37 % 960
}

fn create_archive<O: Objects>(setting: &Setting<'_>) -> Steps {
    repeat(setting, FILES, || {
        let mut archive = Buf::<O>::filled(PAGE, 0);
        let mut used = 0;
        for number in 0..FILES {
            let file = Buf::<O>::filled(file_size(number), number as u8);
            if used + file.len() > archive.len() {
                let double = 2 * archive.len();
                archive = archive.grown(double);
            }
            archive[used..used + file.len()].copy_from_slice(&file);
            used += file.len();
        }
        std::hint::black_box(&*archive);
    })
}

fn extract_archive<O: Objects>(setting: &Setting<'_>) -> Steps {
    let total: usize = (0..FILES).map(file_size).sum();
    repeat(setting, FILES, || {
        let archive = Buf::<O>::filled(total, 7);
        let mut at = 0;
        let files: Vec<Buf<O>> = (0..FILES)
            .map(|number| {
                let file = Buf::copy_of(&archive[at..at + file_size(number)]);
                at += file.len();
                file
            })
            .collect();
        std::hint::black_box(files.len());
    })
}

fn stream<O: Objects>(setting: &Setting<'_>) -> Steps {
    let mut before = None;
    repeat(setting, 1, || before = Some(Buf::<O>::filled(LARGE, 3)))
}

fn stream_elsewhere(setting: &Setting<'_>) -> Steps {
    let mut before = None;
    repeat(setting, 1, || before = Some(Mapping::filled(LARGE, 3)))
}

fn read<O: Objects>(setting: &Setting<'_>) -> Steps {
    let room = setting.limit / 2 / PAGE;
    let mut cache: VecDeque<Buf<O>> = VecDeque::with_capacity(room);
    repeat(setting, 1, || {
        if cache.len() >= room {
            cache.pop_front();
        }
        cache.push_back(Buf::filled(PAGE, cache.len() as u8));
    })
}

struct Entry<O: Objects> {
    next: Option<Owned<O, Entry<O>>>,
    number: u64,
}

/// Objects that list_load keeps.
const ENTRIES: usize = 100_000;

fn list<O: Objects>(setting: &Setting<'_>) -> Steps {
    let (mut first, mut count) = (None, 0);
    let clear = |mut first: Option<Owned<O, Entry<O>>>| {
        let mut sum = 0;
        // One by one: a list that ends recursively ends the stack.
        while let Some(entry) = first {
            let entry = entry.into_inner();
            sum += entry.number;
            first = entry.next;
        }
        std::hint::black_box(sum);
    };
    let steps = repeat(setting, 100, || {
        if count >= ENTRIES {
            clear(first.take());
            count = 0;
        }
        for number in 0..100 {
            first = Some(Owned::new(Entry {
                next: first.take(),
                number,
            }));
        }
        count += 100;
    });
    clear(first);
    steps
}

struct Pages<O: Objects> {
    by_key: Vec<Option<Buf<O>>>,
    /// The keys of those that are there, the oldest first.
    present: VecDeque<usize>,
}

/// The pages of mem_load. The foreground reclaims from it, too, when it finds no memory.
struct PageCache<O: Objects> {
    pages: Mutex<Pages<O>>,
    reclaimed: AtomicU64,
}

impl<O: Objects> PageCache<O> {
    fn new(keys: usize) -> Self {
        Self {
            pages: Mutex::new(Pages {
                by_key: (0..keys).map(|_| None).collect(),
                present: VecDeque::with_capacity(keys),
            }),
            reclaimed: AtomicU64::new(0),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Pages<O>> {
        self.pages
            .lock()
            .unwrap_or_else(|_| die("contest: mem_load panicked"))
    }

    /// Ends the oldest `count` pages; false when there are none.
    fn reclaim(&self, count: usize) -> bool {
        let mut pages = self.lock();
        for done in 0..count {
            let Some(key) = pages.present.pop_front() else {
                return done > 0;
            };
            pages.by_key[key] = None;
            self.reclaimed.fetch_add(1, Ordering::Relaxed);
        }
        true
    }

    fn touch(&self, key: usize, room: usize) {
        {
            let mut pages = self.lock();
            if let Some(page) = &mut pages.by_key[key] {
                page[0] = page[0].wrapping_add(1);
                return;
            }
        }
        while self.lock().present.len() >= room {
            self.reclaim(1);
        }
        // Not under the lock: this may have to reclaim.
        let page = Buf::filled(PAGE, key as u8);
        let mut pages = self.lock();
        pages.by_key[key] = Some(page);
        pages.present.push_back(key);
    }
}

/// Pages that one shortage gives back: a slab's worth and more, so that whole slabs become free.
const RECLAIM_BATCH: usize = 64;

fn memory<O: Objects>(setting: &Setting<'_>) -> Steps {
    let room = setting.limit / PAGE;
    let keys = room * 11 / 10;
    let cache = Arc::new(PageCache::<O>::new(keys));
    let reclaimer = cache.clone();
    store::on_shortage(Some(Box::new(move || reclaimer.reclaim(RECLAIM_BATCH))));
    for key in 0..room {
        cache.touch(key, room);
    }
    let mut rng = Rng::new(9);
    let steps = repeat(setting, 16, || {
        for _ in 0..16 {
            cache.touch(rng.below(keys), room);
        }
    });
    store::on_shortage(None);
    steps
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::{Cached, SystemMalloc};

    fn run<O: Objects>(name: &str) -> Vec<Done> {
        let stop = AtomicBool::new(false);
        let start_line = Barrier::new(threads_of(name) + 1);
        let setting = Setting {
            stop: &stop,
            start: &start_line,
            limit: 1 << 20,
            cpus: None,
        };
        std::thread::scope(|scope| {
            let members = start::<O>(name, scope, &setting).unwrap();
            assert_eq!(members.len(), threads_of(name));
            start_line.wait();
            std::thread::sleep(Duration::from_millis(20));
            stop.store(true, Ordering::Relaxed);
            members.into_iter().map(|m| m.join().unwrap()).collect()
        })
    }

    #[test]
    fn every_load_works_and_stops() {
        for name in LOADS {
            let done = run::<Cached<slub::Slub>>(name);
            let steps: u64 = done.iter().map(|done| done.steps).sum();
            assert_eq!(steps > 0, threads_of(name) > 0, "{name}");
        }
    }

    #[test]
    fn the_ring_passes_buffers_from_thread_to_thread() {
        let done = run::<SystemMalloc>("process_load");
        assert!(done.iter().all(|done| done.steps > 0), "{done:?}");
    }

    #[test]
    fn the_page_cache_keeps_to_its_room_and_reclaims_the_oldest() {
        let cache = PageCache::<SystemMalloc>::new(11);
        for key in 0..11 {
            cache.touch(key, 10);
        }
        cache.touch(5, 10);
        assert_eq!(cache.reclaimed.load(Ordering::Relaxed), 1);
        assert!(cache.lock().by_key[0].is_none() && cache.lock().by_key[10].is_some());
        assert!(cache.reclaim(100) && !cache.reclaim(1));
    }
}
