//! A bounded-count Treiber stack of small indices whose head carries a tag.
//!
//! ```text
//!   head: [ tag:32 | index+1:32 ]  ->  next(index) -> next(...) -> 0
//! ```
//! The tag moves on by one with every successful exchange, so that a head which
//! was popped and pushed again between a reader's load and its exchange is not
//! taken for the one it saw (the ABA case). Nodes are never unmapped, so reading
//! the link of a node that another thread has just popped is harmless: the
//! exchange then fails.
//!
//! Used by the slot registries (free slot records) and the magazine depots.
//! Source of the algorithm: Treiber 1986, with the counted pointer of the IBM
//! System/370 Principles of Operation.

use core::sync::atomic::Ordering;

use super::{Word, spin_hint};

/// Where the links of a stack's nodes live.
pub trait Links {
    /// The atomic store of one link.
    type Word: Word;
    /// The link of the node `index`. Only the stack writes it while the node is
    /// on the stack.
    fn link(&self, index: u32) -> &Self::Word;
}

/// The head of a stack. Zero is the empty stack, so that zeroed memory is one.
#[repr(transparent)]
#[derive(Debug, Default)]
pub struct TaggedStack<W> {
    head: W,
}

impl<W: Word> TaggedStack<W> {
    /// An empty stack over the given word, which must hold zero.
    pub const fn new(head: W) -> Self {
        Self { head }
    }

    /// Pushes the node `index`, which the caller owns until then.
    pub fn push<L: Links>(&self, links: &L, index: u32) {
        // Acquire is not needed to push: nothing of another node is read.
        let mut head = self.head.load(Ordering::Relaxed);
        loop {
            links
                .link(index)
                .store(head & 0xffff_ffff, Ordering::Relaxed);
            let new = bump(head) | (u64::from(index) + 1);
            // Release: publishes the node's content to the popper's acquire.
            match self
                .head
                .compare_exchange_weak(head, new, Ordering::Release, Ordering::Relaxed)
            {
                Ok(_) => return,
                Err(found) => head = found,
            }
            spin_hint();
        }
    }

    /// Pops a node, which the caller then owns; `None` when the stack is empty.
    pub fn pop<L: Links>(&self, links: &L) -> Option<u32> {
        // Acquire: pairs with the release of the push that put the node there.
        let mut head = self.head.load(Ordering::Acquire);
        loop {
            let top = (head & 0xffff_ffff) as u32;
            if top == 0 {
                return None;
            }
            let next = links.link(top - 1).load(Ordering::Relaxed) & 0xffff_ffff;
            match self.head.compare_exchange_weak(
                head,
                bump(head) | next,
                Ordering::Acquire,
                Ordering::Acquire,
            ) {
                Ok(_) => return Some(top - 1),
                Err(found) => head = found,
            }
            spin_hint();
        }
    }

    /// Whether the stack was empty at the moment of the look.
    pub fn is_empty(&self) -> bool {
        self.head.load(Ordering::Relaxed) & 0xffff_ffff == 0
    }
}

/// The tag half of `head`, moved on by one, with an empty index half.
#[inline]
fn bump(head: u64) -> u64 {
    (head >> 32).wrapping_add(1) << 32
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use core::sync::atomic::AtomicU64;

    struct Nodes(Vec<AtomicU64>);
    impl Links for Nodes {
        type Word = AtomicU64;
        fn link(&self, index: u32) -> &AtomicU64 {
            &self.0[index as usize]
        }
    }

    #[test]
    fn last_in_first_out() {
        let nodes = Nodes((0..4).map(|_| AtomicU64::new(0)).collect());
        let stack = TaggedStack::new(AtomicU64::new(0));
        assert_eq!(stack.pop(&nodes), None);
        for i in 0..4 {
            stack.push(&nodes, i);
        }
        for i in (0..4).rev() {
            assert_eq!(stack.pop(&nodes), Some(i));
        }
        assert!(stack.is_empty());
    }

    #[test]
    fn nothing_lost_or_doubled_by_four_threads() {
        const N: u32 = 64;
        let nodes = Nodes((0..N).map(|_| AtomicU64::new(0)).collect());
        let owned: Vec<AtomicU64> = (0..N).map(|_| AtomicU64::new(0)).collect();
        let stack = TaggedStack::new(AtomicU64::new(0));
        for i in 0..N {
            stack.push(&nodes, i);
        }
        std::thread::scope(|s| {
            for _ in 0..4 {
                s.spawn(|| {
                    for _ in 0..20_000 {
                        if let Some(i) = stack.pop(&nodes) {
                            let before = owned[i as usize].fetch_add(1, Ordering::Relaxed);
                            assert_eq!(before, 0, "node {i} handed out twice");
                            owned[i as usize].store(0, Ordering::Relaxed);
                            stack.push(&nodes, i);
                        }
                    }
                });
            }
        });
        assert_eq!(std::iter::from_fn(|| stack.pop(&nodes)).count(), N as usize);
    }
}
