//! The unified allocator as it was first proposed: the fourth version, of 2010.
//!
//! ```text
//!   thread's slot:   queue [ oldest ... newest ]             (per cache)
//!                         |  batch objects at a time
//!   LLC:             shared queue, 10 batches      alien queues, one a remote node
//!                         |                             |
//!   node:            partial slabs: one bit an object    (one lock a node)
//! ```
//! SLAB's queues stand here in front of SLUB's slabs, as the proposal had it, so that
//! the shape of its results can be measured beside the default's ([`crate::Unified`]).
//! It is kept for that, and for nothing else:
//! - the free objects of a slab are a bitmap, in the head page's word for up to 64
//!   objects and behind the last object for more; nothing is written into objects;
//! - a refill takes the first free object of the first partial slab and the run of free
//!   ones behind it, until a batch is full;
//! - a free that finds its queue full moves the oldest batch on, to the shared queue
//!   while that has room and to the slabs one by one otherwise;
//! - one lock a node guards all of its slabs: there is no exchange on a slab's word;
//! - queues have their full size (8, 24, 54 or 120 objects) from the start;
//! - there is no timer: what lies idle expires when a slow path looks at the clock.
//!
//! A bitmap behind the objects is in reach of an overflow of the last one, as in the
//! original; bits that name no object are never read, but an object in use can be made
//! to look free. The default keeps its bits elsewhere.
//!
//! Bottom-up: [`mod@bitmap`] and [`mod@queue`] (the kernel, generic so that the models
//! check it), `llc` (which last-level cache a CPU has), `slab` (geometry), `node` (the
//! partial list), `pool` (queues that threads share), `slot` (the fast path), `cache`
//! (the record), `paths` (refill and flush), `expire`, `object_cache` (the trait),
//! `check`.

pub mod bitmap;
pub mod queue;

mod cache;
mod check;
mod expire;
mod llc;
mod node;
mod object_cache;
mod paths;
mod pool;
mod slab;
mod slot;

pub use cache::UnifiedV4;
pub use expire::set_expiry_interval;

/// Makes CPU `c` have the last-level cache `c % n` of its node (up to 4; 0: as the
/// processor says, the default). For tests and experiments; holds for threads that use a
/// cache for the first time afterwards.
pub fn simulate_llcs(n: u8) {
    llc::simulate(n);
}
