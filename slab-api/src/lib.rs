//! What the three object allocators have in common, and what is built on them.
//!
//! Bottom-up:
//! - [`cache`]: the trait [`ObjectCache`], descriptions, errors, snapshots;
//! - [`registry`]: all caches by id, whatever their backend;
//! - [`misuse`], [`fork`], [`config`]: reports, fork handlers, settings;
//! - [`report`]: statistics as text and JSON;
//! - [`class`], [`large`], [`heap`]: size classes, runs of pages, [`Heap`].
//!
//! Unsafe code is in cache, registry, fork, large, heap and misuse.

pub mod cache;
pub mod class;
pub mod config;
pub mod fork;
pub mod heap;
pub mod large;
pub mod misuse;
pub mod registry;
pub mod report;

pub use cache::{
    CacheDesc, CacheError, CacheInfo, Constructor, Corruption, Counter, DestroyError, MAX_COUNTERS,
    MAX_OBJECT, ObjectCache,
};
pub use heap::{Heap, HeapStats};
