//! What the three object allocators have in common, and what is built on them.
//!
//! Bottom-up:
//! - [`cache`]: the trait [`ObjectCache`], descriptions, errors, snapshots;
//! - [`registry`]: all caches by id, whatever their backend;
//! - [`misuse`], [`fork`], [`config`]: reports, fork handlers, settings;
//! - [`report`]: statistics as text and JSON;
//! - [`class`], [`large`], [`heap`]: size classes, runs of pages, [`Heap`];
//! - [`debug`]: a heap with red zones, poison and tracks, in Heap's place;
//! - [`typed`]: caches of Rust types; `allocator`: collections on a heap (feature
//!   `allocator-api2`); `conformance`: the suite every backend runs (feature).
//!
//! Unsafe code is in typed, allocator, config, cache, registry, fork, large,
//! heap, misuse and debug.

#[cfg(feature = "allocator-api2")]
mod allocator;
pub mod cache;
pub mod class;
pub mod config;
#[cfg(all(feature = "conformance", not(loom)))]
pub mod conformance;
pub mod debug;
pub mod fork;
pub mod heap;
pub mod large;
pub mod misuse;
pub mod registry;
pub mod report;
pub mod typed;

pub use cache::{
    CacheDesc, CacheError, CacheInfo, Constructor, Corruption, Counter, DestroyError, MAX_COUNTERS,
    MAX_OBJECT, ObjectCache,
};
pub use heap::{Heap, HeapStats};
pub use typed::{Cache, Object};
