//! Models of the unified backend's concurrent kernels: the depot, on loom's
//! atomics, with magazines as indices; and the historical design's queues and bitmaps,
//! behind loom's mutexes, with objects as indices.

#[cfg(loom)]
#[path = "loom/v4.rs"]
mod v4;

fn main() -> std::process::ExitCode {
    page_alloc::model::run(MODELS)
}

#[cfg(not(loom))]
const MODELS: &[(&str, fn())] = &[];

#[cfg(loom)]
const MODELS: &[(&str, fn())] = &[
    (
        "depot_exchange_against_exchange",
        models::exchange_against_exchange,
    ),
    ("depot_bound_holds", models::bound_holds),
    (
        "thread_exit_against_remote_free",
        models::exit_against_remote_free,
    ),
    ("trim_against_take", models::trim_against_take),
    ("v4_refill_against_flush", v4::refill_against_flush),
    ("v4_both_refill_and_flush", v4::both_refill_and_flush),
    ("v4_expiry_against_refill", v4::expiry_against_refill),
    ("v4_exit_against_remote_free", v4::exit_against_remote_free),
    ("v4_aliens_against_expiry", v4::aliens_against_expiry),
    (
        "v4_fork_sees_each_object_once",
        v4::fork_sees_each_object_once,
    ),
];

#[cfg(loom)]
mod models {
    use loom::sync::Arc;
    use loom::sync::Mutex;
    use loom::sync::atomic::AtomicU64;
    use page_alloc::sync::Links;
    use slab_unified::Depot;

    struct World {
        depot: Depot<AtomicU64>,
        links: [AtomicU64; 3],
        /// Magazines whose objects went back to the slabs instead.
        flushed: Mutex<Vec<u32>>,
    }

    impl Links for World {
        type Word = AtomicU64;
        fn link(&self, index: u32) -> &AtomicU64 {
            &self.links[index as usize]
        }
    }

    impl World {
        fn new() -> Arc<Self> {
            let zero = || AtomicU64::new(0);
            Arc::new(Self {
                // As if one had been taken: both magazines find room.
                depot: Depot::new([0, 0, 0, 0, 1, 0].map(AtomicU64::new)),
                links: [zero(), zero(), zero()],
                flushed: Mutex::new(Vec::new()),
            })
        }

        /// What a thread does with a full magazine: the depot, or the slabs.
        fn unload(&self, magazine: u32, limit: u64) {
            if !self.depot.put_full(self, magazine, limit) {
                self.flushed.lock().unwrap().push(magazine);
            }
        }

        /// Every magazine is somewhere, once.
        fn settle(&self, mut held: Vec<u32>, all: &[u32]) {
            while let Some(magazine) = self.depot.take_full(self) {
                held.push(magazine);
            }
            held.extend(self.flushed.lock().unwrap().drain(..));
            held.sort_unstable();
            assert_eq!(held, all, "each magazine exactly once");
            assert_eq!(self.depot.full_count(), 0);
        }
    }

    /// Small models, exhaustively up to three forced switches.
    fn check(f: impl Fn() + Sync + Send + 'static) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(f);
    }

    pub fn exchange_against_exchange() {
        check(|| {
            let world = World::new();
            world.unload(0, 2);
            let other = {
                let world = world.clone();
                loom::thread::spawn(move || {
                    let got = world.depot.take_full(&*world);
                    if let Some(magazine) = got {
                        world.unload(magazine, 2);
                    }
                })
            };
            world.unload(1, 2);
            let held: Vec<u32> = world.depot.take_full(&*world).into_iter().collect();
            other.join().unwrap();
            world.settle(held, &[0, 1]);
        });
    }

    pub fn bound_holds() {
        check(|| {
            let world = World::new();
            let threads: Vec<_> = (0..2)
                .map(|magazine| {
                    let world = world.clone();
                    loom::thread::spawn(move || world.unload(magazine, 1))
                })
                .collect();
            for thread in threads {
                thread.join().unwrap();
            }
            assert!(world.depot.full_count() <= 1);
            world.settle(Vec::new(), &[0, 1]);
        });
    }

    pub fn exit_against_remote_free() {
        check(|| {
            let world = World::new();
            // One thread ends and gives its magazine back while another one fills
            // one with objects of the first, and a third allocates.
            let exiting = {
                let world = world.clone();
                loom::thread::spawn(move || world.flushed.lock().unwrap().push(0))
            };
            let freeing = {
                let world = world.clone();
                loom::thread::spawn(move || world.unload(1, 1))
            };
            let held: Vec<u32> = world.depot.take_full(&*world).into_iter().collect();
            exiting.join().unwrap();
            freeing.join().unwrap();
            world.settle(held, &[0, 1]);
        });
    }

    pub fn trim_against_take() {
        check(|| {
            let world = World::new();
            world.unload(0, 3);
            world.unload(1, 3);
            let trimming = {
                let world = world.clone();
                loom::thread::spawn(move || {
                    while let Some(magazine) = world.depot.take_full(&*world) {
                        world.flushed.lock().unwrap().push(magazine);
                    }
                })
            };
            let held: Vec<u32> = world.depot.take_full(&*world).into_iter().collect();
            trimming.join().unwrap();
            world.settle(held, &[0, 1]);
        });
    }
}
