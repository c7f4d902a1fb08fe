//! The rows of classic about memory: what a malloc keeps while a program runs, rests, or has had a burst.

use super::block::{Buffer, trim};
use super::{Figures, Size, join, lanes, light_activity, log_size, start};
use crate::rng::Rng;
use crate::worker::resident_kib;
use std::collections::VecDeque;
use std::sync::Barrier;
use std::time::{Duration, Instant};

const MIB: usize = 1 << 20;

/// The resident set for each live byte, both in bytes.
pub fn per_live(rss_kib: u64, live: usize) -> f64 {
    (rss_kib * 1024) as f64 / live.max(1) as f64
}

fn filled(size: usize) -> Buffer {
    let mut buffer = Buffer::new(size);
    buffer.fill(0);
    buffer
}

/// A server: each request allocates 20 objects that end with it, adds one to a cache that forgets its oldest, and every eighth
/// replaces a random session of 8 objects. Also: RSS / live bytes at the end, with cache and sessions live.
pub fn server(size: Size) -> Figures {
    const SHORT: usize = 20;
    const SESSION: usize = 8;
    let requests = size.count(100_000);
    let sessions = size.live(5_000, 10_000).max(1);
    let cache = size.live(20_000, 40_000);
    let (done, measured) = (Barrier::new(lanes() + 1), Barrier::new(lanes() + 1));
    let began = Instant::now();
    let (mut time, mut rss) = (Duration::ZERO, 0);
    let live: usize = std::thread::scope(|scope| {
        let (done, measured) = (&done, &measured);
        let lane = |lane: usize| {
            move || {
                let mut rng = Rng::new(lane as u64);
                let mut cached: VecDeque<Buffer> = VecDeque::new();
                let mut held: Vec<Vec<Buffer>> = (0..sessions).map(|_| Vec::new()).collect();
                for request in 0..requests {
                    let short: Vec<Buffer> = (0..SHORT)
                        .map(|_| Buffer::new(log_size(&mut rng, 16, 7)))
                        .collect();
                    cached.push_back(filled(log_size(&mut rng, 64, 5)));
                    if cached.len() > cache {
                        cached.pop_front();
                    }
                    if request % 8 == 0 {
                        let at = rng.below(sessions);
                        held[at] = (0..SESSION)
                            .map(|_| filled(log_size(&mut rng, 16, 6)))
                            .collect();
                    }
                    drop(short);
                }
                done.wait();
                measured.wait();
                let all = cached.iter().chain(held.iter().flatten());
                all.map(Buffer::size).sum::<usize>()
            }
        };
        let threads: Vec<_> = (0..lanes()).map(|n| start(scope, lane(n))).collect();
        done.wait();
        time = began.elapsed();
        rss = resident_kib();
        measured.wait();
        threads.into_iter().map(join).sum()
    });
    Figures {
        time,
        objects: lanes() * requests * (SHORT + 2 + (SESSION + 1) / 8),
        more: vec![per_live(rss, live)],
    }
}

/// 256 threads that have each allocated 400 objects of 16 to 1,023 bytes and freed every second one, and now wait. Also:
/// what RSS grew by, in kB a thread, stacks included (the same for every malloc).
pub fn idle(size: Size) -> Figures {
    const OBJECTS: usize = 200;
    let threads = (256 * size.percent.min(100) / 100).max(4);
    let (ready, over) = (Barrier::new(threads + 1), Barrier::new(threads + 1));
    let before = resident_kib();
    let began = Instant::now();
    let (time, grown) = std::thread::scope(|scope| {
        let (ready, over) = (&ready, &over);
        let idler = |n: usize| {
            move || {
                let mut rng = Rng::new(n as u64);
                let mut objects: Vec<Option<Buffer>> = (0..2 * OBJECTS)
                    .map(|_| Some(filled(log_size(&mut rng, 16, 6))))
                    .collect();
                objects
                    .iter_mut()
                    .step_by(2)
                    .for_each(|object| *object = None);
                ready.wait();
                over.wait();
            }
        };
        let handles: Vec<_> = (0..threads).map(|n| start(scope, idler(n))).collect();
        ready.wait();
        let time = began.elapsed();
        light_activity(size.wait(Duration::from_millis(200)));
        let grown = resident_kib().saturating_sub(before);
        over.wait();
        handles.into_iter().for_each(join);
        (time, grown)
    });
    Figures {
        time,
        objects: threads * 2 * OBJECTS,
        more: vec![grown as f64 / threads as f64],
    }
}

/// All threads together fill 256 MB with objects of 64 bytes to 16 KiB and free them in random order. Also: how much larger
/// than at first the resident set is after a rest, while the main thread does little.
pub fn burst(size: Size) -> Figures {
    let each = 256 * MIB * size.percent.min(100) / 100 / lanes();
    let (freed, over) = (Barrier::new(lanes() + 1), Barrier::new(lanes() + 1));
    let before = resident_kib();
    let began = Instant::now();
    let (time, kept, objects) = std::thread::scope(|scope| {
        let (freed, over) = (&freed, &over);
        let lane = |lane: usize| {
            move || {
                let mut rng = Rng::new(lane as u64);
                let (mut objects, mut live) = (Vec::new(), 0);
                while live < each {
                    let object = filled(log_size(&mut rng, 64, 8));
                    live += object.size();
                    objects.push(object);
                }
                rng.shuffle(&mut objects);
                let count = objects.len();
                drop(objects);
                freed.wait();
                // The thread lives on: its caches are not emptied by its end.
                over.wait();
                count
            }
        };
        let threads: Vec<_> = (0..lanes()).map(|n| start(scope, lane(n))).collect();
        freed.wait();
        let time = began.elapsed();
        light_activity(size.rest());
        let kept = resident_kib().saturating_sub(before);
        over.wait();
        let objects: usize = threads.into_iter().map(join).sum();
        (time, kept, objects)
    });
    Figures {
        time,
        objects,
        more: vec![(kept * 1024) as f64 / 1e6],
    }
}

/// Six phases, each with objects twice as large as the phase before (16 to 31 bytes, …, 512 to 1,023 bytes), at a
/// constant number of live bytes: new objects push random old ones out. Also: RSS / live bytes at the end of each phase.
pub fn shift(size: Size) -> Figures {
    let target = size.live(12 * MIB, 128 * MIB).max(MIB / 4);
    let mut rng = Rng::new(1);
    let (mut objects, mut live, mut made) = (Vec::new(), 0, 0);
    let mut more = Vec::new();
    let mut time = Duration::ZERO;
    for phase in 0..6 {
        let began = Instant::now();
        let mut added = 0;
        while added < target * 3 / 2 {
            let object = filled(log_size(&mut rng, 16 << phase, 1));
            added += object.size();
            live += object.size();
            objects.push(object);
            made += 1;
            while live > target {
                let old: Buffer = objects.swap_remove(rng.below(objects.len()));
                live -= old.size();
            }
        }
        time += began.elapsed();
        // The list of objects is memory in use as well.
        let list = objects.capacity() * size_of::<Buffer>();
        more.push(per_live(resident_kib(), live + list));
    }
    Figures {
        time,
        objects: made,
        more,
    }
}

/// Pages that hold a byte of any of the objects.
fn pages_of(objects: &[Buffer]) -> usize {
    let mut pages: Vec<usize> = objects.iter().flat_map(Buffer::pages).collect();
    pages.sort_unstable();
    pages.dedup();
    pages.len()
}

/// 972 MiB (--quick: 97) of objects of 16 bytes to 4 KiB; random 3 % stay, the others are freed, malloc_trim, a rest.
/// Also: RSS / live bytes when all were live, and after the rest; and the least that it can be after the rest, as no object
/// moves: the pages that hold a byte of one that stayed.
pub fn pinned(size: Size) -> Figures {
    let target = size.live(97 * MIB, 972 * MIB).max(MIB);
    let mut rng = Rng::new(1);
    let began = Instant::now();
    let (mut objects, mut live) = (Vec::new(), 0);
    while live < target {
        let object = filled(16 + rng.below(4081));
        live += object.size();
        objects.push(object);
    }
    let mut time = began.elapsed();
    let made = objects.len();
    let list = objects.capacity() * size_of::<Buffer>();
    let full = per_live(resident_kib(), live + list);
    let began = Instant::now();
    rng.shuffle(&mut objects);
    objects.truncate((made * 3 / 100).max(1));
    // A short list of its own: the long one must not count as kept.
    objects.shrink_to_fit();
    trim();
    time += began.elapsed();
    light_activity(size.wait(Duration::from_millis(700)));
    let live =
        objects.iter().map(Buffer::size).sum::<usize>() + objects.len() * size_of::<Buffer>();
    let rest = per_live(resident_kib(), live);
    let floor = per_live((pages_of(&objects) * 4) as u64, live);
    Figures {
        time,
        objects: made,
        more: vec![full, rest, floor],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_bytes_by_bytes() {
        assert_eq!(per_live(2048, 1 << 20), 2.0);
        assert_eq!(per_live(1, 0), 1024.0);
    }

    #[test]
    fn pages_count_once() {
        let objects: Vec<Buffer> = (0..500).map(|_| Buffer::new(1000)).collect();
        let pages = pages_of(&objects);
        // 500 kB; at most two pages each.
        assert!((122..=1000).contains(&pages), "{pages}");
        let twice: Vec<usize> = objects.iter().flat_map(Buffer::pages).collect();
        assert!(twice.len() > pages, "neighbours share pages");
    }
}
