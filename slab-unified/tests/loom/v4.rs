//! The historical design: the product's refill, flush, drain and bitmap functions, on a
//! slab of one word, a shared queue and an alien queue, each behind a mutex of loom's.
//! The slab's word is a cell that loom watches: access without the lock is an error.

use std::cell::Cell;

use loom::cell::UnsafeCell;
use loom::sync::{Arc, Mutex};
use slab_unified::v4::bitmap::{self, Bits};
use slab_unified::v4::queue::{self, Behind, Queue, Slabs, Source};

/// A queue of two objects, and how many it holds.
#[derive(Default)]
struct Pair {
    entries: [u32; 2],
    held: Cell<usize>,
}

impl Pair {
    fn of(objects: &[u32]) -> Self {
        let mut pair = Self::default();
        for object in objects {
            assert!(pair.queue().push(*object));
        }
        pair
    }

    fn queue(&mut self) -> Queue<'_, u32> {
        Queue::new(&mut self.entries, &self.held)
    }

    fn objects(&self) -> &[u32] {
        &self.entries[..self.held.get()]
    }
}

/// The bits of a slab.
struct Word(UnsafeCell<u64>);

impl Bits for &Word {
    fn words(&self) -> usize {
        1
    }
    fn get(&self, _: usize) -> u64 {
        // SAFETY: the node's lock is held; loom checks that nobody writes meanwhile.
        self.0.with(|word| unsafe { *word })
    }
    fn set(&mut self, _: usize, word: u64) {
        // SAFETY: as in `get`.
        self.0.with_mut(|at| unsafe { *at = word });
    }
}

/// The slab under the node's lock.
struct Level<'a>(&'a Word, usize);

impl Slabs<u32> for Level<'_> {
    fn take_run(&mut self, out: &mut [u32]) -> usize {
        let Some((first, n)) = bitmap::take_run(&mut self.0, self.1, out.len()) else {
            return 0;
        };
        for (i, cell) in out[..n].iter_mut().enumerate() {
            *cell = (first + i) as u32;
        }
        n
    }
    fn put(&mut self, object: u32) {
        assert!(
            bitmap::put(&mut self.0, self.1, object as usize),
            "{object} was free already"
        );
    }
}

struct World {
    objects: usize,
    /// Guarded by `node`.
    word: Word,
    node: Mutex<()>,
    shared: Mutex<Pair>,
    alien: Mutex<Pair>,
}

// SAFETY: the cell is guarded by `node`, which loom checks.
unsafe impl Sync for World {}

impl Behind<u32> for World {
    fn with_shared<R>(&self, _: bool, f: impl FnOnce(&mut Queue<'_, u32>) -> R) -> Option<R> {
        let mut shared = self.shared.lock().unwrap();
        Some(f(&mut shared.queue()))
    }
    fn with_slabs<R>(&self, f: impl FnOnce(&mut dyn Slabs<u32>) -> R) -> R {
        let _node = self.node.lock().unwrap();
        f(&mut Level(&self.word, self.objects))
    }
}

impl World {
    /// A slab of so many objects, of which these are free; and a shared queue.
    fn new(objects: usize, free: &[u32], shared: &[u32]) -> Arc<Self> {
        let word = free.iter().fold(0, |word, object| word | 1 << object);
        Arc::new(Self {
            objects,
            word: Word(UnsafeCell::new(word)),
            node: Mutex::new(()),
            shared: Mutex::new(Pair::of(shared)),
            alien: Mutex::new(Pair::default()),
        })
    }

    fn alloc(&self, slot: &mut Pair) -> Option<u32> {
        let mut queue = slot.queue();
        if let Some(object) = queue.pop() {
            return Some(object);
        }
        if queue::refill(self, &mut queue, 2) == Source::Nothing {
            return None;
        }
        queue.pop()
    }

    fn free(&self, slot: &mut Pair, object: u32) {
        let mut queue = slot.queue();
        if !queue.push(object) {
            queue::flush(self, &mut queue, 1);
            assert!(queue.push(object), "a flush makes room");
        }
    }

    fn free_alien(&self, object: u32) {
        let mut alien = self.alien.lock().unwrap();
        queue::put_alien(self, &mut alien.queue(), object);
    }

    fn drain_alien(&self) {
        let mut alien = self.alien.lock().unwrap();
        queue::drain(self, &mut alien.queue(), usize::MAX);
    }

    fn exit(&self, slot: &mut Pair) {
        queue::drain(self, &mut slot.queue(), usize::MAX);
        assert!(slot.objects().is_empty());
    }

    /// What shared and alien queue and slab have, while all locks are held.
    fn behind(&self) -> Vec<u32> {
        let shared = self.shared.lock().unwrap();
        let alien = self.alien.lock().unwrap();
        let _node = self.node.lock().unwrap();
        let free = (0..self.objects as u32)
            .filter(|object| bitmap::is_free(&&self.word, *object as usize));
        let queued = shared.objects().iter().chain(alien.objects()).copied();
        queued.chain(free).collect()
    }

    /// Every object is somewhere, once.
    fn settle(&self, slots: &[&Pair], mut held: Vec<u32>) {
        held.extend(slots.iter().flat_map(|slot| slot.objects()));
        held.extend(self.behind());
        held.sort_unstable();
        let all: Vec<u32> = (0..self.objects as u32).collect();
        assert_eq!(held, all, "each object exactly once");
    }
}

/// Small models, exhaustively up to three forced switches.
fn check(f: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(f);
}

pub fn refill_against_flush() {
    check(|| {
        let world = World::new(5, &[3, 4], &[]);
        let flushing = {
            let world = world.clone();
            loom::thread::spawn(move || {
                let mut slot = Pair::of(&[0, 1]);
                world.free(&mut slot, 2);
                slot
            })
        };
        let mut mine = Pair::default();
        let held = world.alloc(&mut mine).into_iter().collect();
        let other = flushing.join().unwrap();
        world.settle(&[&mine, &other], held);
    });
}

pub fn both_refill_and_flush() {
    check(|| {
        // The shared queue is full: flushes pass through to the slab at first.
        let world = World::new(7, &[0, 1, 2, 4, 5], &[3, 6]);
        let work = |world: &World| {
            let mut slot = Pair::default();
            let held: Vec<u32> = (0..3).filter_map(|_| world.alloc(&mut slot)).collect();
            for object in held {
                world.free(&mut slot, object);
            }
            slot
        };
        let other = {
            let world = world.clone();
            loom::thread::spawn(move || work(&world))
        };
        let mine = work(&world);
        let other = other.join().unwrap();
        world.settle(&[&mine, &other], Vec::new());
    });
}

pub fn expiry_against_refill() {
    check(|| {
        let world = World::new(5, &[4], &[2, 3]);
        let expiring = {
            let world = world.clone();
            loom::thread::spawn(move || {
                let mut slot = Pair::of(&[0, 1]);
                queue::drain(&*world, &mut slot.queue(), 1);
                queue::drain_shared(&*world, 1);
                slot
            })
        };
        let mut mine = Pair::default();
        let held: Vec<u32> = (0..2).filter_map(|_| world.alloc(&mut mine)).collect();
        assert_eq!(held.len(), 2, "no order of events hides what is free");
        let other = expiring.join().unwrap();
        world.settle(&[&mine, &other], held);
    });
}

pub fn exit_against_remote_free() {
    check(|| {
        let world = World::new(6, &[4], &[]);
        let exiting = {
            let world = world.clone();
            loom::thread::spawn(move || world.exit(&mut Pair::of(&[0, 1])))
        };
        // A thread that frees objects which the exiting one allocated.
        let freeing = {
            let world = world.clone();
            loom::thread::spawn(move || {
                let mut slot = Pair::of(&[2]);
                world.free(&mut slot, 3);
                world.free(&mut slot, 5);
                slot
            })
        };
        let mut mine = Pair::default();
        let held = world.alloc(&mut mine).into_iter().collect();
        exiting.join().unwrap();
        let other = freeing.join().unwrap();
        world.settle(&[&mine, &other], held);
    });
}

pub fn aliens_against_expiry() {
    check(|| {
        let world = World::new(4, &[3], &[]);
        world.free_alien(0);
        world.free_alien(1);
        let freeing = {
            let world = world.clone();
            loom::thread::spawn(move || world.free_alien(2))
        };
        let expiring = {
            let world = world.clone();
            loom::thread::spawn(move || world.drain_alien())
        };
        let mut mine = Pair::default();
        let held = world.alloc(&mut mine).into_iter().collect();
        freeing.join().unwrap();
        expiring.join().unwrap();
        world.settle(&[&mine], held);
    });
}

/// Fork takes every lock: no object may then be in two places behind the slots, whatever
/// drains from one to the other.
pub fn fork_sees_each_object_once() {
    check(|| {
        let world = World::new(4, &[], &[0, 1]);
        world.free_alien(2);
        world.free_alien(3);
        let draining = {
            let world = world.clone();
            loom::thread::spawn(move || {
                queue::drain_shared(&*world, usize::MAX);
                world.drain_alien();
            })
        };
        let mut seen = world.behind();
        seen.sort_unstable();
        assert_eq!(seen, [0, 1, 2, 3], "none lost on the way, none twice");
        draining.join().unwrap();
        world.settle(&[], Vec::new());
    });
}
