//! The page workloads: what they ask of a page allocator, and the allocators that answer.
//!
//! ```text
//!   page_test   order5   highalloc   pagemap
//!        │         └──┬─────┴───────────┘
//!        │        ageing: jobs, cache, pinned pages      books: the exact census
//!        └────────────┴── Held: a chunk in somebody's hand ──┘
//!                           │
//!              PageBackend: placement, plain │ frame-allocator, buddy-heap (feature `rivals`)
//! ```
//! `placement` and `plain` are page-alloc with placement on and off: the setting is one a process, so each has its own
//! workers, as every backend has. All of them work on one arena of the same size and are called without dynamic
//! dispatch. Giving memory back by time is switched off: the rivals have none, and it would make runs differ.

pub mod ageing;
pub mod books;
pub mod cache;
pub mod compaction;
pub mod ground;
pub mod held;
pub mod highalloc;
pub mod jobs;
#[cfg(test)]
mod naive;
pub mod order5;
pub mod own;
pub mod owner;
pub mod page_test;
pub mod passes;
pub mod ranges;
#[cfg(feature = "rivals")]
pub mod rivals;
pub mod ticks;

use super::{Options, Outcome};
pub use held::{Held, PageBackend};
pub use page_alloc::{Migratetype, Order};

/// The page backends of this build, in the order of a table's columns.
pub const NAMES: &[&str] = &[
    "plain",
    "placement",
    #[cfg(feature = "rivals")]
    "frame-allocator",
    #[cfg(feature = "rivals")]
    "buddy-heap",
];

/// The backends that a run compares when it names none.
pub const DEFAULT: [&str; 2] = ["plain", "placement"];

/// Pages in a pageblock.
pub const BLOCK_PAGES: usize = page_alloc::PAGEBLOCK_PAGES;

/// Megabytes of the arena, unless an option says otherwise.
pub const ARENA_MIB: usize = 1024;

/// Is `name` a page backend of this build?
pub fn is_page_backend(name: &str) -> bool {
    NAMES.contains(&name)
}

/// Why a page backend that exists somewhere is not in this build; `None` for other names.
pub fn why_missing(name: &str) -> Option<&'static str> {
    match name {
        "frame-allocator" | "buddy-heap" if !is_page_backend(name) => Some(
            "this build has no rivals; build with: cargo run --release -p bench-suite --features rivals",
        ),
        "llfree" => Some("the crate llfree is not on crates.io, so no build of bench-suite has it"),
        _ => None,
    }
}

/// A page workload's job, for any backend.
pub trait PageRun {
    /// Measures `job` on `backend`, which was made for this call alone.
    fn run<B: PageBackend>(
        backend: &'static B,
        job: &str,
        options: &Options,
    ) -> Result<Outcome, String>;
    /// Bytes of the arena.
    fn arena_bytes(options: &Options) -> Result<usize, String>;
}

/// Runs `W` on the backend called `name`, monomorphised.
pub fn dispatch<W: PageRun>(name: &str, job: &str, options: &Options) -> Result<Outcome, String> {
    fn on<W: PageRun, B: PageBackend>(job: &str, options: &Options) -> Result<Outcome, String> {
        let backend = B::create(W::arena_bytes(options)?)?;
        // Page owners are registered for the life of the process.
        W::run(Box::leak(Box::new(backend)), job, options)
    }
    match name {
        "placement" => on::<W, own::Placement>(job, options),
        "plain" => on::<W, own::Plain>(job, options),
        #[cfg(feature = "rivals")]
        "frame-allocator" => on::<W, rivals::Frames>(job, options),
        #[cfg(feature = "rivals")]
        "buddy-heap" => on::<W, rivals::BuddyHeap>(job, options),
        _ => Err(format!(
            "backend '{name}' has no pages to hand out; valid: {}",
            NAMES.join(", ")
        )),
    }
}
