//! Models of SLUB's word: who makes which transition, and that no object is lost or
//! handed out twice. One slab of two or three objects, named 1, 2, 3; the links are
//! atomics, as the objects' memory is shared.

fn main() -> std::process::ExitCode {
    page_alloc::model::run(MODELS)
}

#[cfg(not(loom))]
const MODELS: &[(&str, fn())] = &[];

#[cfg(loom)]
const MODELS: &[(&str, fn())] = &[
    (
        "remote_free_against_take_all",
        models::remote_free_against_take_all,
    ),
    (
        "remote_free_against_deactivate",
        models::remote_free_against_deactivate,
    ),
    (
        "full_to_partial_happens_once",
        models::full_to_partial_happens_once,
    ),
    (
        "discard_never_races_a_freeze",
        models::discard_never_races_a_freeze,
    ),
    (
        "thread_exit_against_remote_free",
        models::thread_exit_against_remote_free,
    ),
    ("quiet_slab_has_one_owner", models::quiet_slab_has_one_owner),
];

#[cfg(loom)]
mod models {
    use loom::sync::atomic::{AtomicU64, Ordering::Relaxed};
    use loom::sync::{Arc, Mutex};
    use slub::word::{self, Pushed, State};

    struct Slab {
        word: AtomicU64,
        links: [AtomicU64; 4],
        /// The node's lock and its list: whether the slab is on it.
        node: Mutex<bool>,
    }

    impl Slab {
        fn new(state: State) -> Arc<Self> {
            Arc::new(Self {
                word: AtomicU64::new(state.pack()),
                links: std::array::from_fn(|_| AtomicU64::new(0)),
                node: Mutex::new(false),
            })
        }

        fn free(&self, object: u16, locked: bool) -> Pushed {
            word::push(&self.word, object, 1, locked, |old| {
                self.links[object as usize].store(u64::from(old), Relaxed);
            })
        }

        fn list(&self, mut head: u16) -> Vec<u16> {
            let mut objects = Vec::new();
            while head != 0 {
                assert!(!objects.contains(&head), "a circle");
                objects.push(head);
                head = self.links[head as usize].load(Relaxed) as u16;
            }
            objects
        }

        /// What `release` in cache.rs does.
        fn release(&self, objects: &[u16]) {
            let mut listed = self.node.lock().unwrap();
            for pair in objects.windows(2) {
                self.links[pair[0] as usize].store(u64::from(pair[1]), Relaxed);
            }
            let head = objects.first().copied().unwrap_or(0);
            let last = objects.last().copied().unwrap_or(0);
            let state = word::deactivate(&self.word, head, objects.len() as u16, |old| {
                self.links[last as usize].store(u64::from(old), Relaxed);
            });
            if state.head != 0 {
                assert!(!*listed, "listed twice");
                *listed = true;
            }
        }
    }

    fn check(f: impl Fn() + Sync + Send + 'static) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(f);
    }

    /// A quiet slab of three objects, of which the third is free: two threads free the
    /// others, each as `freed_to_quiet` does when its free made the slab its own, and the
    /// main thread would hand the free one out, as `wake_one` does.
    pub fn quiet_slab_has_one_owner() {
        check(|| {
            let slab = Slab::new(State {
                head: 0,
                inuse: 3,
                frozen: false,
            });
            // The set of free objects, which the node's lock guards.
            let free = Arc::new(Mutex::new(vec![3u16]));
            let note = |slab: &Slab, free: &mut Vec<u16>| {
                free.extend(slab.list(word::freeze_and_take(&slab.word, 3)));
                while free.len() < 3 {
                    match word::take_or_unfreeze(&slab.word, 3) {
                        Some(head) => free.extend(slab.list(head)),
                        None => return false,
                    }
                }
                true
            };
            let threads = [1, 2].map(|object| {
                let (slab, free) = (slab.clone(), free.clone());
                loom::thread::spawn(move || {
                    slab.free(object, false) == Pushed::Froze
                        && note(&slab, &mut free.lock().unwrap())
                })
            });
            let mut woken = None;
            {
                let mut free = free.lock().unwrap();
                if free.len() < 3 && word::claim_full(&slab.word) {
                    free.extend(slab.list(word::freeze_and_take(&slab.word, 3)));
                    woken = Some(std::mem::take(&mut *free));
                }
            }
            let discarded = threads.map(|t| t.join().unwrap());
            let state = word::load(&slab.word);
            assert!(state.frozen || woken.is_none(), "it is the main thread's");
            let mut all = slab.list(state.head);
            all.extend(woken.iter().flatten());
            all.extend(free.lock().unwrap().iter());
            all.sort_unstable();
            assert_eq!(all, [1, 2, 3], "each object exactly once");
            // The last free discards it unless it is in use again.
            let owners = discarded.iter().filter(|d| **d).count() + usize::from(woken.is_some());
            assert_eq!(owners, 1);
        });
    }

    pub fn remote_free_against_take_all() {
        check(|| {
            // The owner's list is empty; another thread frees objects 1 and 2.
            let slab = Slab::new(State {
                head: 0,
                inuse: 2,
                frozen: true,
            });
            let remote = {
                let slab = slab.clone();
                loom::thread::spawn(move || {
                    [slab.free(1, false), slab.free(2, false)].map(|p| p == Pushed::Froze)
                })
            };
            let mut got = word::take_or_unfreeze(&slab.word, 2).map_or(vec![], |h| slab.list(h));
            let froze = remote.join().unwrap();
            let state = word::load(&slab.word);
            got.extend(slab.list(state.head));
            got.sort_unstable();
            assert_eq!(got, [1, 2], "each object exactly once");
            assert!(froze.iter().filter(|f| **f).count() <= 1);
        });
    }

    pub fn remote_free_against_deactivate() {
        check(|| {
            // The owner holds object 1 on its list and gives the slab up.
            let slab = Slab::new(State {
                head: 0,
                inuse: 3,
                frozen: true,
            });
            let remote = {
                let slab = slab.clone();
                loom::thread::spawn(move || slab.free(2, false))
            };
            slab.release(&[1]);
            assert_ne!(remote.join().unwrap(), Pushed::Froze, "it never was full");
            let state = word::load(&slab.word);
            let mut objects = slab.list(state.head);
            objects.sort_unstable();
            assert_eq!(objects, [1, 2]);
            assert_eq!(
                state,
                State {
                    inuse: 1,
                    frozen: false,
                    ..state
                }
            );
            assert!(*slab.node.lock().unwrap(), "partial, so on the node's list");
        });
    }

    pub fn full_to_partial_happens_once() {
        check(|| {
            let slab = Slab::new(State {
                head: 0,
                inuse: 3,
                frozen: false,
            });
            let threads: Vec<_> = [1, 2]
                .map(|object| {
                    let slab = slab.clone();
                    loom::thread::spawn(move || slab.free(object, false))
                })
                .into_iter()
                .collect();
            let froze = threads
                .into_iter()
                .map(|t| t.join().unwrap())
                .filter(|p| *p == Pushed::Froze)
                .count();
            assert_eq!(froze, 1, "exactly one freer owns the slab");
            let state = word::load(&slab.word);
            assert!(state.frozen && state.inuse == 1);
            assert_eq!(slab.list(state.head).len(), 2);
        });
    }

    pub fn discard_never_races_a_freeze() {
        check(|| {
            // On the node's list, object 1 free, object 2 in use: one thread frees it
            // and would discard, the other takes the slab.
            let slab = Slab::new(State {
                head: 1,
                inuse: 1,
                frozen: false,
            });
            *slab.node.lock().unwrap() = true;
            let remote = {
                let slab = slab.clone();
                loom::thread::spawn(move || {
                    let mut discarded = false;
                    if slab.free(2, false) == Pushed::Empty {
                        // What `free_last` in cache.rs does.
                        let mut listed = slab.node.lock().unwrap();
                        if slab.free(2, true) == Pushed::Empty {
                            assert!(*listed, "not frozen and not full, so listed");
                            *listed = false;
                            discarded = true;
                        }
                    }
                    discarded
                })
            };
            let taken = {
                let mut listed = slab.node.lock().unwrap();
                if *listed {
                    *listed = false;
                    Some(word::freeze_and_take(&slab.word, 2))
                } else {
                    None
                }
            };
            let discarded = remote.join().unwrap();
            assert!(discarded != taken.is_some(), "one of the two, never both");
            if let Some(head) = taken {
                let mut objects = slab.list(head);
                objects.extend(slab.list(word::load(&slab.word).head));
                objects.sort_unstable();
                assert_eq!(objects, [1, 2]);
            }
        });
    }

    pub fn thread_exit_against_remote_free() {
        check(|| {
            // The owner ends with nothing on its list: the slab becomes full, or
            // partial with what was freed meanwhile.
            let slab = Slab::new(State {
                head: 0,
                inuse: 2,
                frozen: true,
            });
            let remote = {
                let slab = slab.clone();
                loom::thread::spawn(move || {
                    if slab.free(1, false) == Pushed::Froze {
                        slab.release(&[]);
                    }
                })
            };
            slab.release(&[]);
            remote.join().unwrap();
            let state = word::load(&slab.word);
            assert_eq!(
                state,
                State {
                    head: 1,
                    inuse: 1,
                    frozen: false
                }
            );
            assert!(*slab.node.lock().unwrap(), "whoever came last listed it");
        });
    }
}
