//! The slab allocators as a malloc: `LD_PRELOAD=libslab_preload.so any-program`.
//!
//! ```text
//!   program ── malloc ─▶ symbols: jmp *TABLE.malloc ─▶ entry::malloc::<Slub> ─▶ slab_api::Heap<Slub>
//!           ── new ────▶ cxx: the same call; a failure goes on in libstdc++, which throws
//! ```
//!
//! * `backend` — the three heaps and the three debug heaps, one static each.
//! * `dispatch` — the table of function pointers behind every hot symbol. Its first entries
//!   choose a backend by `SLABMALLOC_CONF`, fill the table with that backend's functions and go on
//!   there.
//! * `early` — the same before the loader has set up thread-local storage.
//! * `entry` — malloc, free and their kin, written once over a heap and monomorphised for each
//!   backend: what C demands of sizes, alignments and errno.
//! * `symbols`, `cxx` — the exported names, and nothing else is exported.
//! * `start` — what happens before `main`, around `fork`, and at exit.
//! * `watch` — entries that count calls, while freed memory waits for its delay.
//! * `report`, `out` — statistics as text, JSON and XML, written without allocating.
//!
//! Unsafe code is in `cxx`, `dispatch`, `early`, `entry`, `errno`, `out`, `start`,
//! `symbols` and `watch`. Nothing here allocates, panics, or uses std's I/O: this *is* malloc.

#![deny(unsafe_code)]

#[cfg(not(target_arch = "x86_64"))]
compile_error!("port the jumps in dispatch.rs (`export!`) and cxx.rs to this architecture");

mod backend;
mod cxx;
mod dispatch;
mod early;
mod entry;
mod errno;
mod out;
mod report;
mod start;
mod symbols;
mod watch;
