//! The ground of an ageing load: a backend, the books over it, and pages whose content is checked.

#![deny(unsafe_code)]

use super::books::{BlockId, Census};
use super::held::{Held, PageBackend};
use super::{BLOCK_PAGES, Migratetype, Order};
use crate::workloads::die;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A backend and its books.
pub struct Ground<B: PageBackend> {
    backend: &'static B,
    census: Mutex<Census>,
    marks: AtomicU64,
    blocks: usize,
}

/// A chunk in use: its type, and the mark that its first word must still hold when it goes back.
pub struct Kept<B: PageBackend> {
    /// The chunk.
    pub held: Held<B>,
    migratetype: Migratetype,
    mark: u64,
}

/// The data behind a lock, whatever became of its last holder.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<B: PageBackend> Ground<B> {
    /// Books for an arena of `bytes` bytes that nobody uses yet.
    pub fn new(backend: &'static B, bytes: usize) -> Self {
        Self {
            backend,
            census: Mutex::new(Census::default()),
            marks: AtomicU64::new(1),
            blocks: bytes / (BLOCK_PAGES << page_alloc::PAGE_SHIFT),
        }
    }

    /// The backend.
    pub fn backend(&self) -> &'static B {
        self.backend
    }

    /// Pageblocks of the arena.
    pub fn blocks(&self) -> usize {
        self.blocks
    }

    /// Pages of the arena.
    pub fn pages(&self) -> usize {
        self.blocks * BLOCK_PAGES
    }

    /// The census as it stands.
    pub fn census(&self) -> MutexGuard<'_, Census> {
        lock(&self.census)
    }

    /// The address of a chunk.
    pub fn address(&self, kept: &Kept<B>) -> NonNull<u8> {
        self.backend.address(kept.held.page())
    }

    /// Takes a chunk, writes its mark and counts it in.
    pub fn take(
        &self,
        order: Order,
        migratetype: Migratetype,
        owner: Option<B::Owner>,
    ) -> Option<Kept<B>> {
        // No lock is held: the backend may ask owners from inside.
        let held = match owner {
            Some(owner) => Held::take_owned(self.backend, owner, order, migratetype),
            None => Held::take(self.backend, order, migratetype),
        }?;
        let mark = self.marks.fetch_add(1, Relaxed);
        let mut kept = Kept {
            held,
            migratetype,
            mark,
        };
        kept.held.stamp(self.backend, mark);
        let address = self.address(&kept);
        self.census().add(address, kept.held.pages(), migratetype);
        Some(kept)
    }

    /// Checks the chunk's mark, counts it out and gives it back.
    pub fn give(&self, kept: Kept<B>) {
        let found = kept.held.stamped(self.backend);
        if found != kept.mark {
            // Two holders of one page, or a move that lost the content.
            die(&format!(
                "{}: the {} chunk at {:p} holds {found} instead of its mark {}: it was given to somebody else or moved \
                 without its content",
                B::NAME,
                kept.migratetype.name(),
                self.address(&kept),
                kept.mark
            ));
        }
        let (address, pages) = (self.address(&kept), kept.held.pages());
        self.census().remove(address, pages, kept.migratetype);
        kept.held.give_back(self.backend);
    }

    /// Books the move of a chunk from `old` to `new`.
    pub fn moved(&self, old: NonNull<u8>, new: NonNull<u8>, kept: &Kept<B>) {
        let mut census = self.census();
        census.remove(old, kept.held.pages(), kept.migratetype);
        census.add(new, kept.held.pages(), kept.migratetype);
    }

    /// The block of a chunk.
    pub fn block_of(&self, kept: &Kept<B>) -> BlockId {
        BlockId::of(self.address(kept))
    }
}
