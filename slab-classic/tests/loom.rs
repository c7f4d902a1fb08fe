//! Models of what moves objects between arrays, the shared array and the slabs: the
//! product's functions, on numbers in place of objects and behind loom's mutex.

fn main() -> std::process::ExitCode {
    page_alloc::model::run(MODELS)
}

#[cfg(not(loom))]
const MODELS: &[(&str, fn())] = &[];

#[cfg(loom)]
const MODELS: &[(&str, fn())] = &[
    (
        "refill_against_flush_through_shared",
        models::refill_against_flush,
    ),
    (
        "both_slots_refill_and_flush",
        models::both_slots_refill_and_flush,
    ),
    (
        "thread_exit_against_remote_free_and_refill",
        models::exit_against_remote_free,
    ),
    ("reap_against_refill", models::reap_against_refill),
    ("alien_drain_against_refill", models::alien_against_refill),
    (
        "two_frees_fill_one_alien_array",
        models::two_frees_fill_one_alien_array,
    ),
    ("grow_outside_the_lock", models::grow_outside_the_lock),
];

#[cfg(loom)]
mod models {
    use loom::sync::{Arc, Mutex};
    use slab_classic::array::{self, Level, Source, View};

    /// What a node's lock guards: a shared array of two, and slabs as a set.
    struct Shelf {
        shared: [u32; 2],
        avail: usize,
        touched: bool,
        slabs: Vec<u32>,
    }

    impl Level<u32> for Shelf {
        fn shared(&mut self, _make: bool) -> Option<View<'_, u32>> {
            Some(View::new(&mut self.shared, &mut self.avail))
        }
        fn touch_shared(&mut self) {
            self.touched = true;
        }
        fn take(&mut self, out: &mut [u32]) -> usize {
            let n = out.len().min(self.slabs.len());
            for cell in &mut out[..n] {
                *cell = self.slabs.remove(0);
            }
            n
        }
        fn give(&mut self, objects: &[u32]) {
            for object in objects {
                assert!(!self.slabs.contains(object), "freed twice");
                self.slabs.push(*object);
            }
        }
    }

    /// A slot's array: its thread's alone.
    #[derive(Default)]
    struct Slot {
        entries: [u32; 2],
        avail: usize,
    }

    impl Slot {
        fn of(objects: &[u32]) -> Self {
            let mut slot = Self::default();
            slot.view().put(objects);
            slot
        }
        fn view(&mut self) -> View<'_, u32> {
            View::new(&mut self.entries, &mut self.avail)
        }
    }

    struct World {
        node: Mutex<Shelf>,
        alien: Mutex<Slot>,
    }

    impl World {
        fn new(slabs: &[u32], shared: &[u32]) -> Arc<Self> {
            let mut shelf = Shelf {
                shared: [0; 2],
                avail: 0,
                touched: false,
                slabs: slabs.to_vec(),
            };
            View::new(&mut shelf.shared, &mut shelf.avail).put(shared);
            Arc::new(Self {
                node: Mutex::new(shelf),
                alien: Mutex::new(Slot::default()),
            })
        }

        /// An allocation: from the slot's array, refilled when it is empty.
        fn alloc(&self, slot: &mut Slot) -> Option<u32> {
            let mut out = [0];
            if slot.view().take(&mut out) == 0 {
                let source = array::refill(&mut *self.node.lock().unwrap(), &mut slot.view(), 2);
                if source == Source::Nothing {
                    return None;
                }
                slot.view().take(&mut out);
            }
            Some(out[0])
        }

        /// A free: into the slot's array, flushed by one when it is full.
        fn free(&self, slot: &mut Slot, object: u32) {
            if !slot.view().push(object) {
                array::flush(&mut *self.node.lock().unwrap(), &mut slot.view(), 1);
                assert!(slot.view().push(object), "a flush makes room");
            }
        }

        /// A free of an object of another node.
        fn free_alien(&self, object: u32) {
            let mut leaving = [0; 2];
            let n = array::put_alien(&mut self.alien.lock().unwrap().view(), object, &mut leaving);
            if n > 0 {
                array::homecoming(&mut *self.node.lock().unwrap(), &leaving[..n]);
            }
        }

        fn drain_alien(&self) {
            let mut leaving = [0; 2];
            let n = self.alien.lock().unwrap().view().take(&mut leaving);
            array::homecoming(&mut *self.node.lock().unwrap(), &leaving[..n]);
        }

        /// The end of a thread.
        fn exit(&self, slot: &mut Slot) {
            array::drain(
                &mut *self.node.lock().unwrap(),
                &mut slot.view(),
                usize::MAX,
            );
        }

        /// Every object is somewhere, once.
        fn settle(&self, slots: &mut [Slot], mut held: Vec<u32>, all: &[u32]) {
            for slot in slots {
                held.extend(slot.view().held());
            }
            held.extend(self.alien.lock().unwrap().view().held());
            let mut node = self.node.lock().unwrap();
            held.extend(node.shared(false).unwrap().held());
            held.append(&mut node.slabs);
            held.sort_unstable();
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
            let world = World::new(&[3, 4], &[]);
            let flushing = {
                let world = world.clone();
                loom::thread::spawn(move || {
                    let mut slot = Slot::of(&[0, 1]);
                    world.free(&mut slot, 2);
                    slot
                })
            };
            let mut mine = Slot::default();
            let held = world.alloc(&mut mine).into_iter().collect();
            let other = flushing.join().unwrap();
            world.settle(&mut [mine, other], held, &[0, 1, 2, 3, 4]);
        });
    }

    pub fn both_slots_refill_and_flush() {
        check(|| {
            let world = World::new(&[0, 1, 2, 3, 4], &[5]);
            let work = |world: &World| {
                let mut slot = Slot::default();
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
            world.settle(&mut [mine, other], Vec::new(), &[0, 1, 2, 3, 4, 5]);
        });
    }

    pub fn exit_against_remote_free() {
        check(|| {
            let world = World::new(&[4], &[]);
            let exiting = {
                let world = world.clone();
                loom::thread::spawn(move || {
                    let mut slot = Slot::of(&[0, 1]);
                    world.exit(&mut slot);
                    assert_eq!(slot.view().avail(), 0);
                })
            };
            // A thread that frees an object which the exiting one allocated.
            let freeing = {
                let world = world.clone();
                loom::thread::spawn(move || {
                    let mut slot = Slot::of(&[2]);
                    world.free(&mut slot, 3);
                    world.free(&mut slot, 5);
                    slot
                })
            };
            let mut mine = Slot::default();
            let held = world.alloc(&mut mine).into_iter().collect();
            exiting.join().unwrap();
            let other = freeing.join().unwrap();
            world.settle(&mut [mine, other], held, &[0, 1, 2, 3, 4, 5]);
        });
    }

    pub fn reap_against_refill() {
        check(|| {
            let world = World::new(&[4], &[2, 3]);
            let reaping = {
                let world = world.clone();
                loom::thread::spawn(move || {
                    let mut slot = Slot::of(&[0, 1]);
                    let n = array::reap_count(2, 2);
                    array::drain(&mut *world.node.lock().unwrap(), &mut slot.view(), n);
                    // The shared array's turn, unless a refill touched it.
                    let mut node = world.node.lock().unwrap();
                    if !std::mem::take(&mut node.touched) {
                        let mut oldest = [0];
                        let n = node.shared(false).unwrap().take_oldest(&mut oldest);
                        node.give(&oldest[..n]);
                    }
                    drop(node);
                    slot
                })
            };
            let mut mine = Slot::default();
            let held: Vec<u32> = (0..2).filter_map(|_| world.alloc(&mut mine)).collect();
            assert_eq!(held.len(), 2);
            let other = reaping.join().unwrap();
            world.settle(&mut [mine, other], held, &[0, 1, 2, 3, 4]);
        });
    }

    pub fn alien_against_refill() {
        check(|| {
            let world = World::new(&[3], &[]);
            for object in 0..2 {
                world.free_alien(object);
            }
            let freeing = {
                let world = world.clone();
                loom::thread::spawn(move || world.free_alien(2))
            };
            let reaping = {
                let world = world.clone();
                loom::thread::spawn(move || world.drain_alien())
            };
            let mut mine = Slot::default();
            let held = world.alloc(&mut mine).into_iter().collect();
            freeing.join().unwrap();
            reaping.join().unwrap();
            world.settle(&mut [mine], held, &[0, 1, 2, 3]);
        });
    }

    pub fn two_frees_fill_one_alien_array() {
        check(|| {
            let world = World::new(&[], &[]);
            world.free_alien(0);
            let other = {
                let world = world.clone();
                loom::thread::spawn(move || {
                    world.free_alien(1);
                    world.free_alien(2);
                })
            };
            world.free_alien(3);
            other.join().unwrap();
            assert!(world.alien.lock().unwrap().view().avail() <= 2);
            world.settle(&mut [], Vec::new(), &[0, 1, 2, 3]);
        });
    }

    pub fn grow_outside_the_lock() {
        check(|| {
            // Two threads find nothing and each makes a slab of one object; neither
            // may go without.
            let world = World::new(&[], &[]);
            let grow = |world: &World, object: u32| {
                let mut slot = Slot::default();
                if let Some(held) = world.alloc(&mut slot) {
                    return (slot, held, Some(object));
                }
                let mut node = world.node.lock().unwrap();
                node.slabs.push(object);
                let source = array::refill(&mut *node, &mut slot.view(), 1);
                assert_ne!(source, Source::Nothing);
                drop(node);
                let mut out = [0];
                assert_eq!(slot.view().take(&mut out), 1);
                (slot, out[0], None)
            };
            let other = {
                let world = world.clone();
                loom::thread::spawn(move || grow(&world, 1))
            };
            let (mine, held, unused) = grow(&world, 0);
            let (theirs, theirs_held, theirs_unused) = other.join().unwrap();
            let held = [Some(held), Some(theirs_held), unused, theirs_unused];
            let held = held.into_iter().flatten().collect();
            world.settle(&mut [mine, theirs], held, &[0, 1]);
        });
    }
}
