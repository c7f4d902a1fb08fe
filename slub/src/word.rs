//! The slab's word: freelist and counters, changed by one compare-exchange.
//!
//! ```text
//!   [ frozen : 1 | inuse : 16 | head : 16 ]
//!     a slot owns    objects not on    first object of the slab's own
//!     the slab       this freelist     freelist: its distance / 8, plus one
//! ```
//! A slab is in one of four places: the CPU slab of a slot and a slot's partial list
//! (both *frozen*), a node's partial list, or nowhere (*full*: no free object of its
//! own, not frozen). The word says which transition a free makes, and exactly one
//! thread makes it. Objects are only ever pushed one by one or taken all at once, so
//! a compare-exchange that succeeds on an equal word is right even if the word
//! changed and came back in between.
//!
//! The functions are generic over the atomic store: the models run them on loom's.

use core::sync::atomic::Ordering;

use page_alloc::sync::{Word, spin_hint};

const FROZEN: u64 = 1 << 32;
/// The bits of the freelist's head.
const HEAD: u64 = 0xffff;
/// Where the number of objects in use starts.
const INUSE: u32 = 16;

/// A slab's word, unpacked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State {
    /// First object of the slab's own freelist: its distance from the slab's start in
    /// units of 8 bytes, plus one; 0 for none.
    pub head: u16,
    /// Objects in use or on a slot's freelist.
    pub inuse: u16,
    /// Whether a slot owns the slab.
    pub frozen: bool,
}

impl State {
    /// The word.
    pub const fn pack(self) -> u64 {
        let frozen = if self.frozen { FROZEN } else { 0 };
        frozen | (self.inuse as u64) << 16 | self.head as u64
    }

    /// From the word.
    pub const fn unpack(word: u64) -> Self {
        Self {
            head: word as u16,
            inuse: (word >> 16) as u16,
            frozen: word & FROZEN != 0,
        }
    }
}

/// Reads a slab's word.
pub fn load<W: Word>(word: &W) -> State {
    State::unpack(word.load(Ordering::Acquire))
}

/// Changes the word by `f` until it holds; returns the states before and after.
/// `f` may return `None` to leave it.
fn update<W: Word>(word: &W, mut f: impl FnMut(State) -> Option<State>) -> (State, Option<State>) {
    // Acquire and release: whoever takes the list sees the links that were written
    // by those who pushed.
    let mut found = word.load(Ordering::Acquire);
    loop {
        let before = State::unpack(found);
        let Some(after) = f(before) else {
            return (before, None);
        };
        match word.compare_exchange_weak(found, after.pack(), Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => return (before, Some(after)),
            Err(now) => found = now,
        }
        spin_hint();
    }
}

/// What a push found, and so what the freeing thread has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pushed {
    /// Nothing more.
    Done,
    /// The slab was full and belongs to this thread now: it goes on its slot's
    /// partial list (or, without a slot, is unfrozen onto the node's).
    Froze,
    /// The last object in use of a slab on the node's list. Without the node's lock
    /// nothing was done: the push is to be repeated under it. With the lock, the
    /// object was pushed and the slab may be discarded.
    Empty,
}

/// Puts `count` objects, linked from `head`, on the slab's freelist. `link` is given
/// the old head, to be written behind the last of them, before each attempt.
/// `locked` tells whether the caller holds the node's lock: only then may a listed
/// slab lose its last object in use.
///
/// Works on the packed word: this is what a free to another slab than the CPU slab
/// costs.
#[inline(always)]
pub fn push<W: Word>(
    word: &W,
    head: u16,
    count: u16,
    locked: bool,
    mut link: impl FnMut(u16),
) -> Pushed {
    // Acquire and release: as in `update`.
    let mut found = word.load(Ordering::Acquire);
    loop {
        let full = found & (FROZEN | HEAD) == 0;
        // Not frozen, and as many in use as there are to free.
        let last = found >> INUSE == u64::from(count);
        if last && !full && !locked {
            return Pushed::Empty;
        }
        link(found as u16);
        let frozen = if full { FROZEN } else { 0 };
        let after = (found & !HEAD).wrapping_sub(u64::from(count) << INUSE) | u64::from(head);
        let done =
            word.compare_exchange_weak(found, after | frozen, Ordering::AcqRel, Ordering::Acquire);
        match done {
            Ok(_) if full => return Pushed::Froze,
            Ok(_) if last => return Pushed::Empty,
            Ok(_) => return Pushed::Done,
            Err(now) => found = now,
        }
        spin_hint();
    }
}

/// The owner of a frozen slab takes all that was freed to it, or gives the slab up
/// when there is nothing: it is full then. Returns the head of the list taken.
pub fn take_or_unfreeze<W: Word>(word: &W, objects: u16) -> Option<u16> {
    let (before, _) = update(word, |s| {
        Some(if s.head == 0 {
            State { frozen: false, ..s }
        } else {
            State {
                head: 0,
                inuse: objects,
                frozen: true,
            }
        })
    });
    (before.head != 0).then_some(before.head)
}

/// Freezes a slab of the node's list (whose lock is held) and takes its freelist.
pub fn freeze_and_take<W: Word>(word: &W, objects: u16) -> u16 {
    update(word, |_| {
        Some(State {
            head: 0,
            inuse: objects,
            frozen: true,
        })
    })
    .0
    .head
}

/// Freezes a slab of the node's list (whose lock is held) with its freelist.
pub fn freeze<W: Word>(word: &W) -> State {
    update(word, |s| Some(State { frozen: true, ..s })).0
}

/// Makes a slab that has no free object of its own and no owner this thread's. False when
/// a free was first: the slab is then the freeing thread's.
pub fn claim_full<W: Word>(word: &W) -> bool {
    let claim = |s: State| {
        let full = s.head == 0 && !s.frozen;
        full.then_some(State { frozen: true, ..s })
    };
    update(word, claim).1.is_some()
}

/// The owner gives up a slab with `count` objects of its own list, linked from
/// `head` (0 and 0 for none); `link` as in [`push`]. Returns the state after it.
pub fn deactivate<W: Word>(word: &W, head: u16, count: u16, mut link: impl FnMut(u16)) -> State {
    let (before, after) = update(word, |s| {
        if count == 0 {
            return Some(State { frozen: false, ..s });
        }
        link(s.head);
        Some(State {
            head,
            inuse: s.inuse - count,
            frozen: false,
        })
    });
    after.unwrap_or(before)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use core::sync::atomic::AtomicU64;

    #[test]
    fn the_word_packs_and_unpacks() {
        for head in [0, 1, 77, u16::MAX] {
            for inuse in [0, 1, 2048] {
                for frozen in [false, true] {
                    let state = State {
                        head,
                        inuse,
                        frozen,
                    };
                    assert_eq!(State::unpack(state.pack()), state);
                }
            }
        }
    }

    #[test]
    fn transitions_are_told_once() {
        let word = AtomicU64::new(
            State {
                head: 0,
                inuse: 3,
                frozen: false,
            }
            .pack(),
        );
        assert_eq!(
            push(&word, 1, 1, false, |old| assert_eq!(old, 0)),
            Pushed::Froze
        );
        assert_eq!(
            push(&word, 2, 1, false, |old| assert_eq!(old, 1)),
            Pushed::Done
        );
        assert_eq!(take_or_unfreeze(&word, 3), Some(2));
        assert_eq!(take_or_unfreeze(&word, 3), None);
        assert!(!load(&word).frozen);
        assert!(claim_full(&word) && load(&word).frozen);
        assert!(!claim_full(&word));
        let word = AtomicU64::new(
            State {
                head: 5,
                inuse: 1,
                frozen: false,
            }
            .pack(),
        );
        assert_eq!(
            push(&word, 9, 1, false, |_| panic!("not without the lock")),
            Pushed::Empty
        );
        assert_eq!(load(&word).inuse, 1);
        assert_eq!(
            push(&word, 9, 1, true, |old| assert_eq!(old, 5)),
            Pushed::Empty
        );
        assert_eq!(load(&word).inuse, 0);
    }
}
