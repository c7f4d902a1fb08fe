//! The free objects that one cache of the secure heap holds back, so that neither the
//! order in which objects are handed out nor the time of their reuse can be foretold.
//!
//! ```text
//!   backend ─▶ pool ──a random one──▶ program
//!                                        │ free
//!   backend ◀── ring ◀──the one that ── random ◀┘  takes a random place
//!               (in order)  was there   places
//! ```
//! Every operation also looks at one object of the quarantine in turn (the *patrol*), so
//! that a write to freed memory shows after at most as many operations as the quarantine
//! has objects, and not only when the object is used again.

#![deny(unsafe_code)]

use super::random::Random;
use super::secret::Secret;

/// Most objects of each of the three parts.
const MOST: usize = 64;
/// Least objects of each part.
const LEAST: usize = 4;
/// Bytes of objects that the pool may hold, as far as that is at least [`LEAST`].
const POOL_BYTES: usize = 64 << 10;
/// The same for each half of the quarantine.
const QUARANTINE_BYTES: usize = 32 << 10;

/// An object's address; null where there is none.
type Object = *mut u8;
const NONE: Object = core::ptr::null_mut();

/// The free objects of one cache.
#[derive(Debug)]
pub(crate) struct Store {
    random: Random,
    pool: [Object; MOST],
    pooled: usize,
    pool_limit: usize,
    places: [Object; MOST],
    ring: [Object; MOST],
    limit: usize,
    next: usize,
    patrol: usize,
}

impl Store {
    /// An empty store for objects of so many bytes.
    pub(crate) fn new(stride: usize, stream: u32) -> Self {
        Self {
            random: Random::new(stream),
            pool: [NONE; MOST],
            pooled: 0,
            pool_limit: (POOL_BYTES / stride).clamp(LEAST, MOST),
            places: [NONE; MOST],
            ring: [NONE; MOST],
            limit: (QUARANTINE_BYTES / stride).clamp(LEAST, MOST),
            next: 0,
            patrol: 0,
        }
    }

    /// How many objects the pool wants: none while it is at least half full.
    pub(crate) fn wanted(&self) -> usize {
        if self.pooled * 2 > self.pool_limit {
            0
        } else {
            self.pool_limit - self.pooled
        }
    }

    /// Puts an object into the pool; false when it is full.
    pub(crate) fn put(&mut self, p: Object) -> bool {
        match self.pool.get_mut(self.pooled) {
            Some(cell) if self.pooled < self.pool_limit => {
                *cell = p;
                self.pooled += 1;
                true
            }
            _ => false,
        }
    }

    /// A random object of the pool; null when it is empty.
    pub(crate) fn take(&mut self, secret: &Secret) -> Object {
        let Some(last) = self.pooled.checked_sub(1) else {
            return NONE;
        };
        let at = self.random.below(self.pooled, secret);
        self.pool.swap(at, last);
        self.pooled = last;
        core::mem::replace(&mut self.pool[last], NONE)
    }

    /// Puts a freed object into quarantine; returns the one that leaves it, or null.
    pub(crate) fn quarantine(&mut self, p: Object, secret: &Secret) -> Object {
        let at = self.random.below(self.limit, secret);
        let out = core::mem::replace(&mut self.places[at], p);
        if out.is_null() {
            return out;
        }
        self.next = (self.next + 1) % self.limit;
        core::mem::replace(&mut self.ring[self.next], out)
    }

    /// The next object of the quarantine to look at; null at an empty place.
    pub(crate) fn patrol(&mut self) -> Object {
        self.patrol = (self.patrol + 1) % (2 * self.limit);
        match self.patrol.checked_sub(self.limit) {
            None => self.places[self.patrol],
            Some(at) => self.ring[at],
        }
    }

    /// Takes the object that [`Self::patrol`] just showed out of the quarantine.
    pub(crate) fn drop_patrolled(&mut self) {
        match self.patrol.checked_sub(self.limit) {
            None => self.places[self.patrol] = NONE,
            Some(at) => self.ring[at] = NONE,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    const SECRET: Secret = Secret {
        canary: [0; 2],
        cipher: [9; 8],
    };

    fn object(n: usize) -> Object {
        core::ptr::without_provenance_mut(n * 16)
    }

    #[test]
    fn the_pool_gives_each_object_once_and_in_no_order() {
        let mut store = Store::new(64, 1);
        assert_eq!(store.wanted(), MOST);
        (1..=MOST).for_each(|n| assert!(store.put(object(n))));
        assert!(!store.put(object(99)), "full");
        assert_eq!(store.wanted(), 0);
        let order: Vec<_> = (0..MOST).map(|_| store.take(&SECRET)).collect();
        assert!(store.take(&SECRET).is_null());
        let all: BTreeSet<_> = order.iter().copied().collect();
        assert_eq!(all, (1..=MOST).map(object).collect());
        let steps = order
            .windows(2)
            .filter(|w| w[1] as usize == w[0] as usize + 16);
        assert!(steps.count() < 8);
    }

    #[test]
    fn the_quarantine_delays_bounds_and_loses_nothing() {
        for stride in [16, 1000, 4096, 32784] {
            let mut store = Store::new(stride, 2);
            let mut inside = BTreeSet::new();
            for n in 1..=2000 {
                inside.insert(object(n));
                let out = store.quarantine(object(n), &SECRET);
                assert_ne!(out, object(n), "never the one that came");
                if !out.is_null() {
                    assert!(inside.remove(&out), "once");
                }
                assert!(inside.len() <= 2 * store.limit);
            }
            assert_eq!(inside.len(), 2 * store.limit, "{stride}");
            let seen: BTreeSet<_> = (0..2 * store.limit).map(|_| store.patrol()).collect();
            assert_eq!(seen, inside, "the patrol sees all of it");
        }
    }

    #[test]
    fn a_patrolled_object_can_be_left_out() {
        let mut store = Store::new(64, 3);
        let out: Vec<_> = (1..=40)
            .map(|n| store.quarantine(object(n), &SECRET))
            .collect();
        let gone = (0..2 * MOST).map(|_| store.patrol()).find(|p| !p.is_null());
        // The cursor went on to the end of `find`: it stands on the object.
        store.drop_patrolled();
        assert!(out.iter().all(|p| Some(*p) != gone));
        assert!((0..2 * MOST).all(|_| Some(store.patrol()) != gone));
    }
}
