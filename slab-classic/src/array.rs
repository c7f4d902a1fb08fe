//! Arrays of free objects, and how objects move between them and the slabs.
//!
//! ```text
//!   entries: [ oldest | ... | newest |  room  ]     avail = held, len = limit
//!              ^ flushed first   ^ handed out first
//! ```
//! The functions here run under the node's lock and are generic over what an object
//! is and what lies behind the lock: the product has pointers and page lists, the
//! models have numbers and a mutex of loom's.

#![deny(unsafe_code)]

/// An array of free objects: the first `avail` entries are held, oldest first.
#[derive(Debug)]
pub struct View<'a, T> {
    entries: &'a mut [T],
    avail: &'a mut usize,
}

impl<'a, T: Copy> View<'a, T> {
    /// A view of `entries`, as many as the array's limit, of which `avail` are held.
    pub fn new(entries: &'a mut [T], avail: &'a mut usize) -> Self {
        *avail = (*avail).min(entries.len());
        Self { entries, avail }
    }

    /// Objects held.
    pub fn avail(&self) -> usize {
        *self.avail
    }

    /// Objects that still fit.
    pub fn room(&self) -> usize {
        self.entries.len() - *self.avail
    }

    /// The objects held, oldest first.
    pub fn held(&self) -> &[T] {
        &self.entries[..*self.avail]
    }

    /// Puts the newest object; false when there is no room.
    pub fn push(&mut self, object: T) -> bool {
        match self.entries.get_mut(*self.avail) {
            Some(place) => {
                *place = object;
                *self.avail += 1;
                true
            }
            None => false,
        }
    }

    /// Puts as many objects of `from` as there is room for; returns how many.
    pub fn put(&mut self, from: &[T]) -> usize {
        let n = from.len().min(self.room());
        self.entries[*self.avail..][..n].copy_from_slice(&from[..n]);
        *self.avail += n;
        n
    }

    /// Takes the newest objects, as many as `out` has places for; returns how many.
    /// The very newest comes first.
    pub fn take(&mut self, out: &mut [T]) -> usize {
        let n = out.len().min(*self.avail);
        *self.avail -= n;
        let from = &self.entries[*self.avail..][..n];
        for (to, object) in out.iter_mut().zip(from.iter().rev()) {
            *to = *object;
        }
        n
    }

    /// Takes the oldest objects, as many as `out` has places for; returns how many.
    pub fn take_oldest(&mut self, out: &mut [T]) -> usize {
        let n = out.len().min(*self.avail);
        out[..n].copy_from_slice(&self.entries[..n]);
        self.drop_oldest(n);
        n
    }

    /// Forgets the `n` oldest objects; the rest moves down.
    fn drop_oldest(&mut self, n: usize) {
        let n = n.min(*self.avail);
        self.entries.copy_within(n..*self.avail, 0);
        *self.avail -= n;
    }

    /// Moves the newest `max` objects of `from` here, keeping their order; returns
    /// how many.
    fn transfer(&mut self, from: &mut View<'_, T>, max: usize) -> usize {
        let n = max.min(*from.avail).min(self.room());
        let rest = *from.avail - n;
        self.put(&from.entries[rest..*from.avail]);
        *from.avail = rest;
        n
    }
}

/// What the node's lock guards: a shared array, and slabs.
pub trait Level<T> {
    /// The shared array, made when `make` says so; `None` when there is none.
    fn shared(&mut self, make: bool) -> Option<View<'_, T>>;
    /// Notes that the shared array was of use.
    fn touch_shared(&mut self);
    /// Takes up to `out.len()` objects from the slabs; returns how many.
    fn take(&mut self, out: &mut [T]) -> usize;
    /// Gives objects to their slabs.
    fn give(&mut self, objects: &[T]);
}

/// Where a refill came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// From the shared array.
    Shared,
    /// From slabs.
    Slabs,
    /// There was nothing.
    Nothing,
}

/// Puts up to `batch` objects into the array: the newest of the shared array, or,
/// when that is empty, objects of slabs.
pub fn refill<T: Copy, L: Level<T>>(
    level: &mut L,
    array: &mut View<'_, T>,
    batch: usize,
) -> Source {
    if let Some(mut shared) = level.shared(false)
        && array.transfer(&mut shared, batch) > 0
    {
        level.touch_shared();
        return Source::Shared;
    }
    let batch = batch.min(array.room());
    let fresh = &mut array.entries[*array.avail..][..batch];
    let n = level.take(fresh);
    // Taken from the top: what the slab gave first is handed out first.
    fresh[..n].reverse();
    *array.avail += n;
    if n > 0 {
        Source::Slabs
    } else {
        Source::Nothing
    }
}

/// Takes the `batch` oldest objects out of the array: into the shared array as far
/// as that has room, or, when it has none, to the slabs. True for the former.
pub fn flush<T: Copy, L: Level<T>>(level: &mut L, array: &mut View<'_, T>, batch: usize) -> bool {
    let batch = batch.min(array.avail());
    if let Some(mut shared) = level.shared(true) {
        let n = shared.put(&array.entries[..batch]);
        if n > 0 {
            array.drop_oldest(n);
            return true;
        }
    }
    level.give(&array.entries[..batch]);
    array.drop_oldest(batch);
    false
}

/// Gives the `n` oldest objects to the slabs; returns how many there were.
pub fn drain<T: Copy, L: Level<T>>(level: &mut L, array: &mut View<'_, T>, n: usize) -> usize {
    let n = n.min(array.avail());
    level.give(&array.entries[..n]);
    array.drop_oldest(n);
    n
}

/// What a reap takes from an untouched array with this limit: a fifth of the limit,
/// half of what there is when that is less.
pub fn reap_count(limit: usize, avail: usize) -> usize {
    let fifth = limit.div_ceil(5);
    if fifth > avail {
        avail.div_ceil(2)
    } else {
        fifth
    }
}

/// Gives objects that come home from a remote node: to the shared array as far as it
/// has room, then to the slabs.
pub fn homecoming<T: Copy, L: Level<T>>(level: &mut L, objects: &[T]) {
    let n = level
        .shared(true)
        .map_or(0, |mut shared| shared.put(objects));
    if n < objects.len() {
        level.give(&objects[n..]);
    }
}

/// Puts an object into an alien array. When that is full its content goes to `out`
/// first, for [`homecoming`] once the array's lock is released; returns how many
/// those are.
pub fn put_alien<T: Copy>(alien: &mut View<'_, T>, object: T, out: &mut [T]) -> usize {
    if alien.push(object) {
        return 0;
    }
    let n = alien.take(out);
    alien.push(object);
    n
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Shelf {
        shared: [u32; 4],
        avail: usize,
        slabs: Vec<u32>,
        touched: bool,
    }

    impl Level<u32> for Shelf {
        fn shared(&mut self, _: bool) -> Option<View<'_, u32>> {
            Some(View::new(&mut self.shared, &mut self.avail))
        }
        fn touch_shared(&mut self) {
            self.touched = true;
        }
        fn take(&mut self, out: &mut [u32]) -> usize {
            let n = out.len().min(self.slabs.len());
            out[..n].copy_from_slice(&self.slabs[..n]);
            self.slabs.drain(..n);
            n
        }
        fn give(&mut self, objects: &[u32]) {
            self.slabs.extend(objects);
        }
    }

    #[test]
    fn objects_move_as_the_design_has_it() {
        let mut shelf = Shelf {
            shared: [0; 4],
            avail: 0,
            slabs: vec![1, 2, 3, 4, 5, 6, 7, 8],
            touched: false,
        };
        let mut entries = [0; 6];
        let mut avail = 0;
        let mut array = View::new(&mut entries, &mut avail);
        assert_eq!(refill(&mut shelf, &mut array, 6), Source::Slabs);
        assert_eq!(array.held(), [6, 5, 4, 3, 2, 1], "lowest on top");
        // The three oldest leave, then one more fits, then none.
        assert!(flush(&mut shelf, &mut array, 3));
        assert_eq!(array.held(), [3, 2, 1]);
        assert!(flush(&mut shelf, &mut array, 3), "as far as there is room");
        assert_eq!(array.held(), [2, 1]);
        assert!(!flush(&mut shelf, &mut array, 1), "full: to the slabs");
        assert_eq!(shelf.slabs, [7, 8, 2]);
        // The newest of the shared array come first.
        assert_eq!(refill(&mut shelf, &mut array, 2), Source::Shared);
        assert_eq!(array.held(), [1, 4, 3]);
        assert!(shelf.touched);
        assert_eq!(drain(&mut shelf, &mut array, 2), 2);
        assert_eq!(array.held(), [3]);
        homecoming(&mut shelf, &[9, 10, 11]);
        assert_eq!(shelf.shared[..shelf.avail], [6, 5, 9, 10]);
        assert_eq!(shelf.slabs, [7, 8, 2, 1, 4, 11]);
    }

    #[test]
    fn aliens_leave_when_full() {
        let mut entries = [0; 2];
        let mut avail = 0;
        let mut out = [0; 2];
        let mut alien = View::new(&mut entries, &mut avail);
        assert_eq!(put_alien(&mut alien, 1, &mut out), 0);
        assert_eq!(put_alien(&mut alien, 2, &mut out), 0);
        assert_eq!(put_alien(&mut alien, 3, &mut out), 2);
        assert_eq!(alien.held(), [3]);
        out.sort_unstable();
        assert_eq!(out, [1, 2]);
    }

    #[test]
    fn reaps_are_small() {
        assert_eq!(reap_count(120, 120), 24);
        assert_eq!(reap_count(120, 10), 5);
        assert_eq!(reap_count(1, 1), 1);
        assert_eq!(reap_count(8, 0), 0);
    }
}
