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
    use loom::sync::atomic::{
        AtomicU64,
        Ordering::{Acquire, Relaxed, Release, SeqCst},
        fence,
    };
    use loom::sync::{Arc, Mutex};
    use loom::thread;
    use page_alloc::pcp::{bar, enter, is_out, leave, unbar};
    use page_alloc::rseq::{resume, stop};
    use page_alloc::sparse;
    use page_alloc::sync::{Links, TaggedStack, change_flags};

    pub const ALL: &[(&str, fn())] = &[
        ("stack: two threads pop and push back", pop_and_push_back),
        ("stack: pop against pop-pop-push (ABA)", aba),
        ("stack: three threads push and pop", push_against_pop),
        (
            "registry: a released record's content reaches its next owner",
            exchange,
        ),
        ("page lists: drained by another thread", drained_by_another),
        ("page lists: drained, or the owner asked", drained_or_asked),
        ("cpu slot: emptied while others use it", cpu_slot_is_emptied),
        (
            "cpu slot: two stop it, or nobody can",
            cpu_slot_has_one_stopper,
        ),
        (
            "block: one of two excludes it, the zone's change is kept",
            block_is_claimed_once,
        ),
        (
            "block: readmitted while the zone marks it",
            block_is_readmitted,
        ),
        ("sparse: trims against a free", trims_against_a_free),
        (
            "sparse: a trim against a slab that wakes",
            trim_against_waking,
        ),
    ];

    /// A CPU's slot. The kernel's part is a mutex: a section runs to its commit or not
    /// at all, one at a time on a CPU, and the restart waits for the one that runs.
    struct Cpu {
        entry: AtomicU64,
        running: Mutex<()>,
        queue: UnsafeCell<Vec<u64>>,
        /// What came and went past the queue.
        slabs: Mutex<Vec<u64>>,
    }

    impl Cpu {
        fn new(objects: &[u64]) -> Arc<Self> {
            Arc::new(Self {
                entry: AtomicU64::new(1),
                running: Mutex::new(()),
                queue: UnsafeCell::new(objects.to_vec()),
                slabs: Mutex::new(Vec::new()),
            })
        }

        /// A section; `None` when the slot is stopped.
        fn section<R>(&self, work: impl FnOnce(&mut Vec<u64>) -> R) -> Option<R> {
            let _running = self.running.lock().unwrap();
            // x86-64's plain load.
            (self.entry.load(Acquire) != 0).then(|| self.own(work))
        }

        /// Uses the queue, which loom allows to one thread at a time.
        fn own<R>(&self, work: impl FnOnce(&mut Vec<u64>) -> R) -> R {
            // SAFETY: the caller is in a section or has stopped the slot; loom checks
            // that this is enough.
            self.queue.with_mut(|queue| work(unsafe { &mut *queue }))
        }

        fn restart(&self) -> bool {
            drop(self.running.lock().unwrap());
            true
        }

        fn empty(&self) -> bool {
            let Some(slot) = stop(&self.entry, || self.restart()) else {
                return false;
            };
            let taken = self.own(std::mem::take);
            self.slabs.lock().unwrap().extend(taken);
            resume(&self.entry, slot);
            true
        }

        /// Takes a batch and puts one object back.
        fn use_it(&self) -> Vec<u64> {
            let mut mine = self
                .section(|queue| queue.split_off(queue.len().saturating_sub(2)))
                .unwrap_or_default();
            if let Some(object) = mine.pop()
                && self.section(|queue| queue.push(object)).is_none()
            {
                self.slabs.lock().unwrap().push(object);
            }
            mine
        }

        fn account(&self, mut held: Vec<u64>, all: &[u64]) {
            held.append(&mut self.slabs.lock().unwrap());
            held.extend(self.section(std::mem::take).expect("open at the end"));
            held.sort_unstable();
            assert_eq!(held, all, "each object exactly once");
        }
    }

    fn cpu_slot_is_emptied() {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(|| {
            let cpu = Cpu::new(&[1, 2, 3]);
            let threads: Vec<_> = (0..2)
                .map(|_| {
                    let cpu = cpu.clone();
                    thread::spawn(move || cpu.use_it())
                })
                .collect();
            cpu.empty();
            let held = threads
                .into_iter()
                .flat_map(|t| t.join().unwrap())
                .collect();
            cpu.account(held, &[1, 2, 3]);
        });
    }

    fn cpu_slot_has_one_stopper() {
        loom::model(|| {
            let cpu = Cpu::new(&[1, 2]);
            let other = {
                let cpu = cpu.clone();
                thread::spawn(move || cpu.empty())
            };
            // One whose restart the kernel refuses must leave everything as it was.
            assert_eq!(stop(&cpu.entry, || false), None);
            cpu.empty();
            other.join().unwrap();
            cpu.account(Vec::new(), &[1, 2]);
        });
    }

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

    /// A slot's lists as a mere collection, which no lock guards: the owner uses it
    /// inside, others while it is barred and the owner is out.
    struct Lists {
        busy: AtomicU64,
        bar: AtomicU64,
        list: UnsafeCell<Vec<u32>>,
    }

    // SAFETY: the protocol under test is what makes it so; loom's cell checks it.
    unsafe impl Sync for Lists {}

    impl Lists {
        fn new(list: Vec<u32>) -> Arc<Self> {
            Arc::new(Self {
                busy: AtomicU64::new(0),
                bar: AtomicU64::new(0),
                list: UnsafeCell::new(list),
            })
        }

        /// What the owner does; `None` when the lists are not open.
        fn inside<R>(&self, f: impl FnOnce(&mut Vec<u32>) -> R) -> Option<R> {
            // The product's fence is the compiler's here and the kernel's there: as
            // strong as one at each end.
            enter(&self.busy, &self.bar, || fence(SeqCst)).then(|| {
                // SAFETY: the protocol under test.
                let result = self.list.with_mut(|list| f(unsafe { &mut *list }));
                leave(&self.busy);
                result
            })
        }

        /// What another thread does: drains, or asks the owner to.
        fn drain(&self) -> Vec<u32> {
            bar(&self.bar);
            fence(SeqCst);
            let out = is_out(&self.busy);
            let mut taken = Vec::new();
            if out {
                // SAFETY: the protocol under test.
                self.list
                    .with_mut(|list| taken.append(unsafe { &mut *list }));
            }
            unbar(&self.bar, !out);
            taken
        }
    }

    fn drained_by_another() {
        loom::model(|| {
            let lists = Lists::new(vec![1]);
            let drainer = {
                let lists = lists.clone();
                thread::spawn(move || lists.drain())
            };
            let mut mine = Vec::new();
            // Two operations: the second may find the lists as the drainer left them.
            for page in [2, 3] {
                mine.extend(lists.inside(|list| list.pop()).flatten());
                if lists.inside(|list| list.push(page)).is_none() {
                    mine.push(page);
                }
            }
            let mut all = drainer.join().unwrap();
            // SAFETY: no other thread is left.
            lists
                .list
                .with_mut(|list| all.append(unsafe { &mut *list }));
            all.append(&mut mine);
            all.sort_unstable();
            assert_eq!(all, [1, 2, 3], "lost or doubled");
        });
    }

    fn drained_or_asked() {
        loom::model(|| {
            let lists = Lists::new(vec![1]);
            let drainer = {
                let lists = lists.clone();
                thread::spawn(move || lists.drain().len())
            };
            let entered = lists.inside(|list| list.len());
            let drained = drainer.join().unwrap();
            // Who could not be waited for was asked: nobody enters unaware of that.
            let asked = lists.inside(|_| ()).is_none();
            assert_eq!(drained == 0, asked);
            assert!(entered.is_none_or(|seen| seen == 1 || drained == 1));
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

    /// A quiet slab of two objects, of which the first is in use.
    struct Slab {
        flags: AtomicU64,
        bytes: [AtomicU64; 2],
        /// The cache's lock; which objects are in use by the slab's own records.
        taken: Mutex<[bool; 2]>,
        zone: Mutex<()>,
    }

    const MARK: u64 = 7;

    impl Slab {
        fn new() -> Arc<Self> {
            let slab = Self {
                flags: AtomicU64::new(0),
                bytes: [AtomicU64::new(MARK), AtomicU64::new(0)],
                taken: Mutex::new([true, false]),
                zone: Mutex::new(()),
            };
            sparse::quieten(&slab.flags);
            Arc::new(slab)
        }

        /// What `discard_maps` does with the slab.
        fn trim(&self) {
            let _zone = self.zone.lock().unwrap();
            if sparse::may_close(&self.flags) {
                sparse::close(&self.flags);
                // The kernel's loss of a page is a barrier.
                self.bytes.iter().for_each(|byte| byte.store(0, Release));
            }
        }

        fn write(&self, taken: [bool; 2]) {
            for (byte, taken) in self.bytes.iter().zip(taken) {
                if taken {
                    byte.store(MARK, Relaxed);
                }
            }
        }

        /// What a slow path reads.
        fn read(&self, object: usize) -> u64 {
            let byte = &self.bytes[object];
            let found = sparse::read(byte, &self.flags, || {
                let taken = self.taken.lock().unwrap();
                if sparse::may_close(&self.flags) {
                    let _zone = self.zone.lock().unwrap();
                    sparse::reopen(&self.flags, || self.write(*taken));
                    byte.load(Relaxed) as u8
                } else {
                    byte.load(Relaxed) as u8
                }
            });
            u64::from(found)
        }

        fn wake(&self, taken: [bool; 2]) {
            let _zone = self.zone.lock().unwrap();
            sparse::reopen(&self.flags, || self.write(taken));
            sparse::ready(&self.flags);
        }
    }

    fn trims_against_a_free() {
        let mut bounded = loom::model::Builder::new();
        bounded.preemption_bound = Some(3);
        bounded.check(|| {
            let slab = Slab::new();
            let trimmer = {
                let slab = slab.clone();
                thread::spawn(move || (0..2).for_each(|_| slab.trim()))
            };
            assert_eq!(slab.read(0), MARK, "a valid free is refused");
            slab.bytes[0].store(0, Relaxed);
            // It comes back to its slab.
            let mut taken = slab.taken.lock().unwrap();
            taken[0] = false;
            slab.bytes[0].store(0, Relaxed);
            slab.wake(*taken);
            drop(taken);
            assert_eq!(slab.read(0), 0, "a double free is taken");
            trimmer.join().unwrap();
            assert!(!sparse::may_close(&slab.flags));
            assert_eq!([slab.read(0), slab.read(1)], [0, 0]);
        });
    }

    fn trim_against_waking() {
        let mut bounded = loom::model::Builder::new();
        bounded.preemption_bound = Some(3);
        bounded.check(|| {
            let slab = Slab::new();
            let trimmer = {
                let slab = slab.clone();
                thread::spawn(move || slab.trim())
            };
            let looker = {
                let slab = slab.clone();
                thread::spawn(move || slab.read(0))
            };
            // Nothing else is left: the second object is handed out.
            {
                let mut taken = slab.taken.lock().unwrap();
                slab.wake(*taken);
                taken[1] = true;
            }
            slab.bytes[1].store(MARK, Relaxed);
            trimmer.join().unwrap();
            assert_eq!(looker.join().unwrap(), MARK);
            assert_eq!([slab.read(0), slab.read(1)], [MARK, MARK]);
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
