//! bench-suite: hackbench, netperf and the other tables of the kernel lists, for user-space allocators.
//!
//! Everything runs in one interleaved run, so that the columns of a table can be compared. From the bottom up:
//!
//! - [`rng`], [`stats`]: seeded randomness, means, deltas, the exact Mann–Whitney test, bootstrap intervals.
//! - [`backend`], [`objects`], [`preload`], [`floor`]: the allocators that take part, by name, as types, and as mallocs.
//! - [`workloads`]: what is measured; [`worker`]: the process that measures once.
//! - [`environment`], [`report`], [`series`]: what is kept of a run.
//! - [`runner`], [`progress`]: the rounds. [`compare_from`]: two finished runs against each other. [`verdict`]: one
//!   backend against the better of its rivals. [`aa`]: a backend against itself.
//! - [`table`], [`export`]: how it is shown. [`cli`], [`compare`]: the command line. [`fastpath`]: instruction counts;
//!   [`footprint`]: memory of idle threads and small programs; [`pagemap`]: the arena, drawn;
//!   [`figures`]: a run's figures in documents.
//! - [`rivals`]: other mallocs, found and built. [`summary`]: geometric means, and ours against the best peer.

pub mod aa;
pub mod backend;
pub mod cli;
pub mod compare;
pub mod compare_from;
pub mod environment;
pub mod export;
pub mod fastpath;
pub mod figures;
pub mod floor;
pub mod footprint;
pub mod objects;
pub mod pagemap;
pub mod preload;
pub mod progress;
pub mod report;
pub mod rivals;
pub mod rng;
pub mod runner;
pub mod series;
pub mod stats;
pub mod summary;
pub mod table;
pub mod verdict;
pub mod worker;
pub mod workloads;
