//! Models of the page layer's concurrent kernels: the functions that the product
//! runs, over loom's atomics. Run them with `cargo loom`.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_macros,
    clippy::disallowed_types
)]

#[cfg(loom)]
mod models {
    use loom::cell::UnsafeCell;
    use loom::sync::atomic::{AtomicU64, Ordering::Relaxed};
    use loom::sync::{Arc, Mutex};
    use loom::thread;
    use page_alloc::pcp::{drain_asked, drain_due, post_drain};
    use page_alloc::sync::{Links, TaggedStack, change_flags};

    pub const ALL: &[(&str, fn())] = &[
        ("stack: two threads pop and push back", pop_and_push_back),
        ("stack: pop against pop-pop-push (ABA)", aba),
        ("stack: three threads push and pop", push_against_pop),
        (
            "registry: a released record's content reaches its next owner",
            exchange,
        ),
        (
            "page lists: a request is met by the next slow path",
            request_is_met,
        ),
        (
            "page lists: requests while draining are not lost",
            requests_while_draining,
        ),
        (
            "page lists: allocation against a request",
            allocation_against_request,
        ),
        (
            "block: one of two excludes it, the zone's change is kept",
            block_is_claimed_once,
        ),
        (
            "block: readmitted while the zone marks it",
            block_is_readmitted,
        ),
    ];

    /// The stack with nodes that have content, as slot records have.
    struct Records {
        stack: TaggedStack<AtomicU64>,
        links: Vec<AtomicU64>,
        content: Vec<UnsafeCell<u64>>,
    }

    impl Links for Records {
        type Word = AtomicU64;
        fn link(&self, index: u32) -> &AtomicU64 {
            &self.links[index as usize]
        }
    }

    impl Records {
        /// With so many nodes, the first `pushed` of which are on the stack.
        fn new(nodes: u32, pushed: u32) -> Arc<Self> {
            let this = Self {
                stack: TaggedStack::new(AtomicU64::new(0)),
                links: (0..nodes).map(|_| AtomicU64::new(0)).collect(),
                content: (0..nodes).map(|_| UnsafeCell::new(0)).collect(),
            };
            (0..pushed).for_each(|i| this.release(i));
            Arc::new(this)
        }

        fn acquire(&self) -> Option<u32> {
            self.stack.pop(self)
        }

        fn release(&self, index: u32) {
            self.stack.push(self, index);
        }

        /// Changes the content, which loom allows to one thread at a time, after it
        /// has synchronised with the last one.
        fn work(&self, index: u32) -> u64 {
            self.content[index as usize].with_mut(|p| {
                // SAFETY: the caller holds the node; loom checks just that.
                unsafe {
                    *p += 1;
                    *p
                }
            })
        }

        fn drain(&self) -> Vec<u32> {
            let mut all: Vec<_> = std::iter::from_fn(|| self.acquire()).collect();
            all.sort_unstable();
            all
        }
    }

    fn pop_and_push_back() {
        loom::model(|| {
            let records = Records::new(2, 2);
            let threads: Vec<_> = (0..2)
                .map(|_| {
                    let records = records.clone();
                    thread::spawn(move || {
                        let mine = records.acquire().expect("there is one for each");
                        records.work(mine);
                        records.release(mine);
                    })
                })
                .collect();
            threads.into_iter().for_each(|t| t.join().unwrap());
            assert_eq!(records.drain(), [0, 1]);
        });
    }

    fn aba() {
        loom::model(|| {
            let records = Records::new(3, 3);
            let other = {
                let records = records.clone();
                thread::spawn(move || {
                    // The top comes back, but what was under it does not.
                    let top = records.acquire().unwrap();
                    let under = records.acquire().unwrap();
                    records.work(top);
                    records.release(top);
                    records.work(under);
                    under
                })
            };
            let mine = records.acquire().unwrap();
            records.work(mine);
            let theirs = other.join().unwrap();
            assert_ne!(mine, theirs, "handed out twice");
            let mut all = records.drain();
            all.extend([mine, theirs]);
            all.sort_unstable();
            assert_eq!(all, [0, 1, 2], "lost or doubled");
        });
    }

    fn push_against_pop() {
        let mut bounded = loom::model::Builder::new();
        bounded.preemption_bound = Some(3);
        bounded.check(|| {
            let records = Records::new(3, 1);
            let threads: Vec<_> = (1..3)
                .map(|i| {
                    let records = records.clone();
                    thread::spawn(move || {
                        records.work(i);
                        records.release(i);
                        records.acquire().inspect(|got| {
                            records.work(*got);
                        })
                    })
                })
                .collect();
            let mut all = Vec::from_iter(records.acquire());
            all.iter().for_each(|got| {
                records.work(*got);
            });
            for t in threads {
                all.extend(t.join().unwrap());
            }
            all.extend(records.drain());
            all.sort_unstable();
            assert_eq!(all, [0, 1, 2], "lost or doubled");
        });
    }

    fn exchange() {
        loom::model(|| {
            let records = Records::new(1, 1);
            let rounds = |records: &Records| {
                let mut worked = 0;
                for _ in 0..2 {
                    if let Some(mine) = records.acquire() {
                        records.work(mine);
                        worked += 1;
                        records.release(mine);
                    }
                }
                worked
            };
            let other = {
                let records = records.clone();
                thread::spawn(move || rounds(&records))
            };
            let worked = rounds(&records) + other.join().unwrap();
            let mine = records.acquire().unwrap();
            assert_eq!(records.work(mine), worked + 1, "what an owner did was lost");
        });
    }

    /// A slot's list, its zone, and the epoch between them: `pcp`'s put and get with
    /// the list and the zone as mere collections.
    struct Lists {
        seen: u64,
        list: Vec<u32>,
    }

    struct Shared {
        epoch: AtomicU64,
        zone: Mutex<Vec<u32>>,
        /// What a requester did before it asked.
        reason: AtomicU64,
    }

    impl Shared {
        fn new(zone: Vec<u32>) -> Arc<Self> {
            Arc::new(Self {
                epoch: AtomicU64::new(0),
                zone: Mutex::new(zone),
                reason: AtomicU64::new(0),
            })
        }

        fn request(&self) {
            self.reason.fetch_add(1, Relaxed);
            post_drain(&self.epoch);
        }
    }

    impl Lists {
        fn meet_drain(&mut self, shared: &Shared) {
            if let Some(now) = drain_due(&shared.epoch, self.seen) {
                self.seen = now;
                // As many reasons as requests, at least, are seen.
                assert!(shared.reason.load(Relaxed) >= now, "asked, but not why");
                shared.zone.lock().unwrap().append(&mut self.list);
            }
        }

        fn put(&mut self, shared: &Shared, page: u32) {
            self.list.push(page);
            if drain_asked(&shared.epoch, self.seen) {
                self.meet_drain(shared);
            }
        }

        fn get(&mut self, shared: &Shared) -> Option<u32> {
            if let Some(page) = self.list.pop() {
                return Some(page);
            }
            self.meet_drain(shared);
            shared.zone.lock().unwrap().pop()
        }
    }

    fn request_is_met() {
        loom::model(|| {
            let shared = Shared::new(Vec::new());
            let owner = {
                let shared = shared.clone();
                thread::spawn(move || {
                    let mut lists = Lists {
                        seen: 0,
                        list: vec![],
                    };
                    lists.put(&shared, 1);
                    lists.put(&shared, 2);
                    lists
                })
            };
            shared.request();
            let taken = shared.zone.lock().unwrap().pop();
            let mut lists = owner.join().unwrap();
            // The request is over by now: the next put has to meet it, if none did.
            lists.put(&shared, 3);
            assert_eq!(lists.seen, 1);
            let mut all = Vec::from_iter(taken);
            all.append(&mut shared.zone.lock().unwrap());
            all.append(&mut lists.list);
            all.sort_unstable();
            assert_eq!(all, [1, 2, 3]);
        });
    }

    fn requests_while_draining() {
        loom::model(|| {
            let shared = Shared::new(Vec::new());
            let threads: Vec<_> = (0..2)
                .map(|_| {
                    let shared = shared.clone();
                    thread::spawn(move || shared.request())
                })
                .collect();
            let mut lists = Lists {
                seen: 0,
                list: vec![],
            };
            lists.put(&shared, 1);
            lists.put(&shared, 2);
            threads.into_iter().for_each(|t| t.join().unwrap());
            lists.put(&shared, 3);
            assert_eq!(lists.seen, 2, "a request was lost");
            let left = lists.list.len();
            assert_eq!(shared.zone.lock().unwrap().len() + left, 3);
        });
    }

    fn allocation_against_request() {
        loom::model(|| {
            let shared = Shared::new(vec![1, 2]);
            let other = {
                let shared = shared.clone();
                thread::spawn(move || {
                    // Out of memory: ask, and look again.
                    let mut lists = Lists {
                        seen: 0,
                        list: vec![],
                    };
                    lists.get(&shared).or_else(|| {
                        shared.request();
                        lists.get(&shared)
                    })
                })
            };
            let mut lists = Lists {
                seen: 0,
                list: vec![],
            };
            let mut all: Vec<_> = (0..2).filter_map(|_| lists.get(&shared)).collect();
            if let Some(page) = all.pop() {
                lists.put(&shared, page);
            }
            all.extend(other.join().unwrap());
            all.append(&mut lists.list);
            all.append(&mut shared.zone.lock().unwrap());
            all.sort_unstable();
            assert_eq!(all, [1, 2], "lost or doubled");
        });
    }

    const DIRTY: u64 = 1;
    const NO_HUGE: u64 = 2;
    const HUGE: u64 = 4;

    fn block_is_claimed_once() {
        loom::model(|| {
            let flags = Arc::new(AtomicU64::new(HUGE | DIRTY));
            let threads: Vec<_> = (0..2)
                .map(|_| {
                    let flags = flags.clone();
                    thread::spawn(move || change_flags(&*flags, HUGE, NO_HUGE) & HUGE != 0)
                })
                .collect();
            // Meanwhile the zone takes a chunk of the block, under its lock.
            assert!(change_flags(&*flags, DIRTY, 0) & DIRTY != 0);
            let claims = threads.into_iter().map(|t| t.join().unwrap());
            assert_eq!(claims.filter(|won| *won).count(), 1);
            assert_eq!(flags.load(Relaxed), NO_HUGE);
        });
    }

    fn block_is_readmitted() {
        loom::model(|| {
            let flags = Arc::new(AtomicU64::new(NO_HUGE | DIRTY));
            let purger = {
                let flags = flags.clone();
                thread::spawn(move || {
                    let was = change_flags(&*flags, DIRTY | NO_HUGE, 0);
                    assert!(was & NO_HUGE != 0);
                    change_flags(&*flags, 0, HUGE);
                })
            };
            change_flags(&*flags, 0, DIRTY);
            let seen = change_flags(&*flags, 0, 0);
            purger.join().unwrap();
            let now = flags.load(Relaxed);
            assert_eq!(now & !DIRTY, HUGE);
            // Dirty is lost only if the purger came after the mark.
            assert!(now & DIRTY != 0 || seen & DIRTY == 0 || seen & NO_HUGE != 0);
        });
    }
}

fn main() -> std::process::ExitCode {
    #[cfg(loom)]
    let models = models::ALL;
    #[cfg(not(loom))]
    let models = &[];
    page_alloc::model::run(models)
}
