//! The unified object allocator: queues in front, whole slabs behind.
//!
//! ```text
//!   thread's slot:   main magazine | spare magazine          (per cache)
//!                         |  whole magazines, O(1)
//!   depot:           full magazines, empty magazines         (lock-free)
//!                         |  whole runs of free objects, grouped by slab
//!   node:            partial slabs, empty slabs              (one lock a node)
//! ```
//! It joins SLAB's queues to SLUB's whole-slab transfers and leaves out what made
//! the historical design "the worst of both":
//! - The queues are small at first and grow only while they miss, so a cache that
//!   does not need them traps next to nothing.
//! - A thread that only allocates and one that only frees trade whole magazines
//!   through the depot, without the node's lock and without touching objects.
//! - A slab's free state is a bitmap of its granules in the page records, beside
//!   the pages and not in the objects: a refill takes runs of bits in address
//!   order, and a flush sets bits, neither of which touches a cold object.
//! - No thread owns a slab, so a remote free costs what a local one does.
//!
//! [`v4`] has the historical design, to be measured beside this one.
//!
//! Unsafe code is in slot, magazine and cache (and v4's slab, slot, pool, cache and
//! object_cache); the slab algorithms have none.

mod cache;
mod depot;
mod magazine;
mod slab;
mod slot;
pub mod v4;

pub use cache::Unified;
pub use cache::expire::set_expiry_interval;
pub use depot::Depot;
