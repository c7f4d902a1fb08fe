//! SLUB: a slab per thread and cache, freelists inside the free objects.
//!
//! ```text
//!   thread's slot:  CPU slab + its freelist | CPU partial slabs      (per cache)
//!   slab:           word = own freelist + counters, one compare-exchange
//!   node:           partial slabs                                   (one lock a node)
//! ```
//! - The fast path pops from and pushes to the CPU slab's freelist; nobody else
//!   touches that list.
//! - A free to any other slab pushes the object on the slab's own freelist by one
//!   compare-exchange ([`word`]). If the slab was full it becomes the freeing
//!   slot's and goes on its partial list; no lock is taken.
//! - A miss takes, in this order: what was freed to the CPU slab meanwhile (in one
//!   exchange), a slab of the slot's partial list, one of the node's, a new one.
//! - Full slabs are on no list at all.
//!
//! Unsafe code is in slab (free pointers), slot and cache; word has none.

mod cache;
mod slab;
mod slot;
pub mod word;

pub use cache::Slub;
