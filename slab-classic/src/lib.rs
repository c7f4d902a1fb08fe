//! The classic object allocator: an array cache in front, lists of slabs behind.
//!
//! ```text
//!   thread's slot:   array cache [ oldest ... newest ]        (per cache)
//!                         |  batchcount objects at a time
//!   node:            shared array        alien arrays, one a remote node
//!                         |                    |
//!                    slabs_partial | slabs_full | slabs_free  (one lock a node)
//! ```
//! This is SLAB as Bonwick described it in 1994 and Linux had it until 6.7: free
//! objects are handed out newest first and are never written to; batches move
//! between the levels under the node's lock; slabs are coloured; what lies idle is
//! reaped little by little. Where this one differs, and why:
//! - An array is made when its thread first uses the cache, small, and grows to the
//!   cache's limit while it misses: a process has more threads than CPUs, and idle
//!   ones should cost little.
//! - "Touched" is not stored by each allocation but inferred from the array's top,
//!   which saves a store on the fast path.
//! - The index stack of a slab lies outside it by default ([`Placement::Outside`]):
//!   inside, a user's overflow would turn it into wild pointers.
//! - The maximum order is 5, as there are size classes that waste more than 1/8 of
//!   smaller slabs.
//! - With several nodes every free takes the slow path, which looks up the object's
//!   node; with one node no free does.
//!
//! Bottom-up: [`mod@array`] (what moves objects between the levels, generic so that the
//! models check it), `slab` (geometry, index stacks, colours), `node` (lists and
//! shared array), `slot` (the fast path), `tunables`, `cache` (the record), `paths`
//! (refill and flush), `object_cache` (the trait), `reap`, `quiet` (after a trim), `check`.
//!
//! Unsafe code is in slab, node, slot, cache, paths, object_cache and tunables.

pub mod array;

mod cache;
mod check;
mod node;
mod object_cache;
mod paths;
mod quiet;
mod reap;
mod slab;
mod slot;
mod tunables;

pub use cache::Classic;
pub use reap::set_reap_interval;
pub use slab::{Placement, set_colouring};
pub use tunables::TuneError;
