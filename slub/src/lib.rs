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
//!   exchange), a slab of the slot's partial list, one of the node's, one that another
//!   node can spare, a new one.
//! - Full slabs are on no list at all.
//! - A slot's first slab of a cache is small, and later ones grow with what the slot
//!   uses: a process has more threads than CPUs, and most use little.
//! - Caches of one shape are merged; [`Slub::tune`] sets a cache's numbers while it runs.
//!
//! Bottom-up: `shuffle` (orders of objects), `slab` (shapes, links), `word` (the slab's
//! state, generic so that the models check it), `slot` (the fast path), `tunables`,
//! `cache` (the record and refills; below it creation, frees, bulk, checks, the trait).
//!
//! Unsafe code is in slab, slot and cache.

mod cache;
mod shuffle;
mod slab;
mod slot;
mod tunables;
pub mod word;

pub use cache::{Slub, set_shuffled};
pub use tunables::{Tunables, TuneError};
