//! The jobs of an ageing load: movable pages behind handles.
//!
//! ```text
//!   job: [handle, handle, …]     handles: [page, page, –, page, …]     frames: address ──► handle
//! ```
//! A job keeps numbers; only the table knows addresses, so a page can be moved by rewriting one entry.

use super::books::FrameTable;
use super::ground::{Ground, Kept, lock};
use super::held::PageBackend;
use super::owner::Owner;
use std::sync::Mutex;

struct Table<B: PageBackend> {
    pages: Vec<Option<Kept<B>>>,
    vacant: Vec<u32>,
    frames: FrameTable,
    moved: u64,
}

/// The handle table of all jobs.
pub struct Handles<B: PageBackend> {
    ground: &'static Ground<B>,
    table: Mutex<Table<B>>,
}

impl<B: PageBackend> Handles<B> {
    /// A table without handles.
    pub fn new(ground: &'static Ground<B>) -> Self {
        Self {
            ground,
            table: Mutex::new(Table {
                pages: Vec::new(),
                vacant: Vec::new(),
                frames: FrameTable::default(),
                moved: 0,
            }),
        }
    }

    /// A handle on a page.
    pub fn insert(&self, kept: Kept<B>) -> u32 {
        let address = self.ground.address(&kept);
        let table = &mut *lock(&self.table);
        let handle = table.vacant.pop().unwrap_or_else(|| {
            table.pages.push(None);
            (table.pages.len() - 1) as u32
        });
        table.pages[handle as usize] = Some(kept);
        table.frames.set(address, handle);
        handle
    }

    /// Gives the page of a handle back; the handle is void afterwards.
    pub fn remove(&self, handle: u32) {
        let kept = {
            let table = &mut *lock(&self.table);
            let kept = table.pages[handle as usize].take();
            if let Some(kept) = &kept {
                table.frames.clear(self.ground.address(kept));
                table.vacant.push(handle);
            }
            kept
        };
        if let Some(kept) = kept {
            self.ground.give(kept);
        }
    }

    /// Pages moved so far.
    pub fn moved(&self) -> u64 {
        lock(&self.table).moved
    }
}

impl<B: PageBackend> Owner<B::Page> for Handles<B> {
    unsafe fn relocate(&self, old: B::Page, new: B::Page) -> bool {
        let backend = self.ground.backend();
        let (from, to) = (backend.address(old), backend.address(new));
        let table = &mut *lock(&self.table);
        // A page that was taken a moment ago may not have its handle yet: it stays.
        let Some(handle) = table.frames.get(from) else {
            return false;
        };
        let Some(kept) = &mut table.pages[handle as usize] else {
            return false;
        };
        // SAFETY: `new` is fresh and of the same order, as the caller promises.
        unsafe { kept.held.move_to(backend, new) };
        self.ground.moved(from, to, kept);
        table.frames.clear(from);
        table.frames.set(to, handle);
        table.moved += 1;
        true
    }
}
