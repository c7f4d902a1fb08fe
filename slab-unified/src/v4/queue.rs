//! Queues of free objects, and how objects move between them and the slabs.
//!
//! ```text
//!   entries: [ oldest | ... | newest |  room  ]     held; as many places as the maximum
//!              ^ moved on first  ^ handed out first
//! ```
//! Everything here is generic over what an object is, and over the locks: the product
//! has pointers, its own locks and page lists, the models have numbers and loom's
//! mutexes. Objects change places only while the lock of one of the two places is
//! held, and both counts are right before it is released: a fork, which takes all
//! locks, finds each object in one place.

#![deny(unsafe_code)]

use core::cell::Cell;

/// Where a queue's count is kept.
pub trait Held {
    /// Objects in the queue.
    fn get(&self) -> usize;
    /// Sets their number.
    fn set(&self, held: usize);
}

impl Held for Cell<usize> {
    fn get(&self) -> usize {
        Cell::get(self)
    }

    fn set(&self, held: usize) {
        Cell::set(self, held);
    }
}

/// A queue of free objects.
pub struct Queue<'a, T> {
    entries: &'a mut [T],
    held: &'a dyn Held,
}

impl<T> core::fmt::Debug for Queue<'_, T> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Queue")
            .field("held", &self.held())
            .field("max", &self.entries.len())
            .finish()
    }
}

impl<'a, T: Copy> Queue<'a, T> {
    /// A queue in `entries`, which are as many as it may hold.
    pub fn new(entries: &'a mut [T], held: &'a dyn Held) -> Self {
        Self { entries, held }
    }
}

impl<T> Queue<'_, T> {
    /// Objects held.
    pub fn held(&self) -> usize {
        self.held.get().min(self.entries.len())
    }

    /// Objects that still fit.
    pub fn room(&self) -> usize {
        self.entries.len() - self.held()
    }

    /// The objects, oldest first.
    pub fn objects(&self) -> &[T] {
        &self.entries[..self.held()]
    }
}

impl<T: Copy> Queue<'_, T> {
    /// Puts the newest object; false when there is no room.
    pub fn push(&mut self, object: T) -> bool {
        let held = self.held();
        match self.entries.get_mut(held) {
            Some(place) => {
                *place = object;
                self.held.set(held + 1);
                true
            }
            None => false,
        }
    }

    /// Takes the newest object.
    pub fn pop(&mut self) -> Option<T> {
        let held = self.held().checked_sub(1)?;
        self.held.set(held);
        self.entries.get(held).copied()
    }

    /// Moves the `most` newest objects of `from` here, as far as there is room; how many.
    fn take_newest(&mut self, from: &mut Queue<'_, T>, most: usize) -> usize {
        let n = most.min(from.held()).min(self.room());
        let (mine, rest) = (self.held(), from.held() - n);
        self.entries[mine..][..n].copy_from_slice(&from.entries[rest..][..n]);
        self.held.set(mine + n);
        from.held.set(rest);
        n
    }

    /// Moves the `most` oldest objects of `from` here, as far as there is room; how many.
    fn take_oldest(&mut self, from: &mut Queue<'_, T>, most: usize) -> usize {
        let n = most.min(from.held()).min(self.room());
        let mine = self.held();
        self.entries[mine..][..n].copy_from_slice(&from.entries[..n]);
        self.held.set(mine + n);
        from.forget_oldest(n);
        n
    }

    /// Forgets the `n` oldest objects; the others move down.
    fn forget_oldest(&mut self, n: usize) {
        let held = self.held();
        self.entries.copy_within(n..held, 0);
        self.held.set(held - n);
    }
}

/// The slabs of a node, whose lock is held.
pub trait Slabs<T> {
    /// Takes the first free object of the first slab that has one, and the run of free
    /// objects behind it, at most `out.len()`; how many, 0 when nothing is free.
    fn take_run(&mut self, out: &mut [T]) -> usize;
    /// Gives an object back to its slab.
    fn put(&mut self, object: T);
}

/// What lies behind a slot's queue.
///
/// Lock order: a queue's lock, then the slabs'.
pub trait Behind<T> {
    /// Runs `f` on the shared queue under its lock; `None` when there is none, and none
    /// can be made (tried when `make` says so).
    fn with_shared<R>(&self, make: bool, f: impl FnOnce(&mut Queue<'_, T>) -> R) -> Option<R>;
    /// Runs `f` on the node's slabs under their lock.
    fn with_slabs<R>(&self, f: impl FnOnce(&mut dyn Slabs<T>) -> R) -> R;
}

/// Where a refill came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The shared queue.
    Shared,
    /// Slabs.
    Slabs,
    /// There was nothing.
    Nothing,
}

/// Puts up to `batch` objects into the queue: of the shared queue, or, when that has
/// none, runs of slabs.
pub fn refill<T: Copy>(behind: &impl Behind<T>, queue: &mut Queue<'_, T>, batch: usize) -> Source {
    let shared = behind.with_shared(false, |shared| queue.take_newest(shared, batch));
    if shared.is_some_and(|n| n > 0) {
        return Source::Shared;
    }
    if behind.with_slabs(|slabs| take(slabs, queue, batch)) > 0 {
        Source::Slabs
    } else {
        Source::Nothing
    }
}

/// Puts runs of slabs into the queue until it has `batch` more objects; how many.
pub fn take<T: Copy>(
    slabs: &mut (impl Slabs<T> + ?Sized),
    queue: &mut Queue<'_, T>,
    batch: usize,
) -> usize {
    let batch = batch.min(queue.room());
    let from = queue.held();
    let mut got = 0;
    while got < batch {
        let n = slabs.take_run(&mut queue.entries[from + got..][..batch - got]);
        if n == 0 {
            break;
        }
        got += n;
    }
    queue.held.set(from + got);
    got
}

/// Moves the `batch` oldest objects on: to the shared queue as far as that has room, or,
/// when it has none, to the slabs. True for the former.
pub fn flush<T: Copy>(behind: &impl Behind<T>, queue: &mut Queue<'_, T>, batch: usize) -> bool {
    let moved = behind.with_shared(true, |shared| shared.take_oldest(queue, batch));
    if moved.is_some_and(|n| n > 0) {
        return true;
    }
    drain(behind, queue, batch);
    false
}

/// Gives the `most` oldest objects to the slabs, one by one; how many there were.
pub fn drain<T: Copy>(behind: &impl Behind<T>, queue: &mut Queue<'_, T>, most: usize) -> usize {
    let n = most.min(queue.held());
    if n == 0 {
        return 0;
    }
    behind.with_slabs(|slabs| {
        for object in &queue.entries[..n] {
            slabs.put(*object);
        }
        queue.forget_oldest(n);
    });
    n
}

/// Gives the `most` oldest objects of the shared queue to the slabs; how many.
pub fn drain_shared<T: Copy>(behind: &impl Behind<T>, most: usize) -> usize {
    let drained = behind.with_shared(false, |shared| drain(behind, shared, most));
    drained.unwrap_or(0)
}

/// Puts an object of another node into the alien queue, whose lock is held. A full one
/// goes home first, all of it, to the slabs of `home`; true then.
pub fn put_alien<T: Copy>(home: &impl Behind<T>, alien: &mut Queue<'_, T>, object: T) -> bool {
    if alien.push(object) {
        return false;
    }
    drain(home, alien, usize::MAX);
    let fits = alien.push(object);
    debug_assert!(fits, "an alien queue without places");
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::cell::RefCell;

    /// Slabs of eight objects, as flags; a shared queue of six.
    struct World {
        slabs: RefCell<Vec<bool>>,
        shared: RefCell<[usize; 6]>,
        held: Cell<usize>,
    }

    impl Slabs<usize> for Vec<bool> {
        fn take_run(&mut self, out: &mut [usize]) -> usize {
            let Some(first) = self.iter().position(|free| *free) else {
                return 0;
            };
            let end = (first / 8 + 1) * 8;
            let mut n = 0;
            while n < out.len() && first + n < end && self[first + n] {
                self[first + n] = false;
                out[n] = first + n;
                n += 1;
            }
            n
        }
        fn put(&mut self, object: usize) {
            assert!(!core::mem::replace(&mut self[object], true));
        }
    }

    impl Behind<usize> for World {
        fn with_shared<R>(&self, _: bool, f: impl FnOnce(&mut Queue<'_, usize>) -> R) -> Option<R> {
            Some(f(&mut Queue::new(
                &mut *self.shared.borrow_mut(),
                &self.held,
            )))
        }
        fn with_slabs<R>(&self, f: impl FnOnce(&mut dyn Slabs<usize>) -> R) -> R {
            f(&mut *self.slabs.borrow_mut())
        }
    }

    #[test]
    fn objects_move_as_the_design_has_it() {
        let world = World {
            slabs: RefCell::new(vec![true; 24]),
            shared: RefCell::new([0; 6]),
            held: Cell::new(0),
        };
        world.slabs.borrow_mut()[2] = false;
        let (mut entries, held) = ([0; 8], Cell::new(0));
        let mut queue = Queue::new(&mut entries, &held);
        assert_eq!(refill(&world, &mut queue, 4), Source::Slabs);
        assert_eq!(queue.objects(), [0, 1, 3, 4], "two runs, in address order");
        assert_eq!(queue.pop(), Some(4), "the newest first");
        assert!(queue.push(4));
        assert!(flush(&world, &mut queue, 2));
        assert_eq!(queue.objects(), [3, 4]);
        assert_eq!(refill(&world, &mut queue, 4), Source::Shared);
        assert_eq!(queue.objects(), [3, 4, 0, 1]);
        assert_eq!(refill(&world, &mut queue, 4), Source::Slabs);
        assert_eq!(queue.objects(), [3, 4, 0, 1, 5, 6, 7, 8]);
        assert!(!queue.push(9));
        assert!(flush(&world, &mut queue, 4));
        assert!(flush(&world, &mut queue, 4), "as far as there is room");
        assert_eq!(queue.objects(), [7, 8]);
        assert!(!flush(&world, &mut queue, 1), "full: to the slabs");
        assert_eq!(queue.objects(), [8]);
        assert!(world.slabs.borrow()[7]);
        assert_eq!(drain_shared(&world, 4), 4);
        assert_eq!(world.held.get(), 2);
        assert_eq!(drain(&world, &mut queue, usize::MAX), 1);
        assert_eq!(drain_shared(&world, usize::MAX), 2);
        let slabs = world.slabs.borrow();
        assert!(slabs.iter().enumerate().all(|(i, free)| *free == (i != 2)));
    }

    #[test]
    fn aliens_go_home_when_full() {
        let world = World {
            slabs: RefCell::new(vec![false; 8]),
            shared: RefCell::new([0; 6]),
            held: Cell::new(0),
        };
        let (mut entries, held) = ([0; 2], Cell::new(0));
        let mut alien = Queue::new(&mut entries, &held);
        assert!(!put_alien(&world, &mut alien, 5));
        assert!(!put_alien(&world, &mut alien, 6));
        assert!(put_alien(&world, &mut alien, 7));
        assert_eq!(alien.objects(), [7]);
        assert!(world.slabs.borrow()[5] && world.slabs.borrow()[6]);
    }
}
