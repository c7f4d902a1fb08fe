//! What the three object allocators have in common, and what is built on them.
//!
//! Bottom-up:
//! - [`cache`]: the trait [`ObjectCache`], descriptions, errors, snapshots;
//! - [`registry`]: all caches by id, whatever their backend;
//! - [`misuse`], [`fork`], [`config`]: reports, fork handlers, settings;
//! - [`budget`], [`percpu`]: bytes that a thread's slot may hold; slots that are CPUs;
//! - [`report`]: statistics as text and JSON;
//! - [`guard`], [`gaps`], [`sparse`]: guard pages behind slabs; giving back pages inside
//!   them, and the map of those that hold few objects;
//! - [`class`], [`large`], [`heap`]: size classes, runs of pages, [`Heap`];
//! - [`malloc`], [`secure`], [`debug`]: what a malloc offers; the hardened heap; the heap
//!   with red zones, poison and tracks;
//! - [`typed`]: caches of Rust types; `allocator`: collections on a heap (feature
//!   `allocator-api2`); `conformance`: the suite every backend runs (feature).
//!
//! Unsafe code is in typed, allocator, config, cache, registry, fork, guard, checks,
//! large, heap, misuse, malloc, percpu, debug, secure, secure/object, secure/large and
//! secure/secret.

#[cfg(feature = "allocator-api2")]
mod allocator;
pub mod budget;
pub mod cache;
pub mod checks;
pub mod class;
pub mod config;
#[cfg(all(feature = "conformance", not(loom)))]
pub mod conformance;
pub mod debug;
pub mod fork;
pub mod gaps;
pub mod growth;
pub mod guard;
pub mod heap;
pub mod interval;
pub mod large;
pub mod malloc;
pub mod misuse;
pub mod percpu;
pub mod registry;
pub mod report;
pub mod secure;
pub mod sparse;
pub mod typed;

pub use cache::{
    CacheDesc, CacheError, CacheInfo, Constructor, Corruption, Counter, DestroyError, MAX_COUNTERS,
    MAX_OBJECT, ObjectCache,
};
pub use heap::{Heap, HeapStats};
pub use malloc::Malloc;
pub use secure::Secure;
pub use typed::{Cache, Object};
