//! What emptying a block asks of its zone: isolation, and where its pages move to.

use super::{ZoneInner, tag};
use crate::arena::{self, Frame};
use crate::block::BLOCK_ISOLATED;
use crate::page::PageRef;
use crate::purge;
use crate::types::Migratetype;

impl ZoneInner {
    /// Takes a chunk into which a page that is in the way can be moved: no block is
    /// claimed for it unless `claim`.
    pub(crate) fn take_target(
        &mut self,
        order: u8,
        mt: Migratetype,
        claim: bool,
    ) -> Option<PageRef> {
        let found = self.buddy.take_typed(order, tag(mt)).or_else(|| {
            let claimed = if claim {
                self.buddy.claim_whole(1 << order, tag(mt))
            } else {
                None
            };
            self.counters.claims_whole += u64::from(claimed.is_some());
            claimed
        });
        let (frame, dirty) = found?;
        Some(self.hand_out(frame, order, mt, dirty))
    }

    /// Takes `pages` pages in one piece for chunks that move together; the flag is whether
    /// they may hold data.
    pub(crate) fn take_targets(&mut self, pages: usize, mt: Migratetype) -> Option<(Frame, bool)> {
        let (frame, dirty) = self
            .buddy
            .take_typed(pages.next_power_of_two().trailing_zeros() as u8, tag(mt))?;
        let span = pages.next_power_of_two();
        if span > pages {
            self.buddy
                .put(frame.arena, frame.index + pages, frame.index + span, None);
        }
        self.account(frame, pages, mt);
        Some((frame, dirty))
    }

    /// Gives a chunk back whose owner gave it up: past the slots' lists.
    pub(crate) fn put_page(&mut self, page: PageRef) {
        self.put_chunk(page, arena::frame_of(page));
        purge::note_idle(self);
    }

    /// Takes a block's free pages out of everyone's reach; false when it is so
    /// already.
    pub(crate) fn isolate(&mut self, frame: Frame) -> bool {
        let block = frame.arena.block(frame.index);
        if block.change_flags(0, BLOCK_ISOLATED) & BLOCK_ISOLATED != 0 {
            return false;
        }
        self.buddy.relist(frame);
        true
    }

    /// Ends [`Self::isolate`].
    pub(crate) fn include(&mut self, frame: Frame) {
        let block = frame.arena.block(frame.index);
        block.change_flags(BLOCK_ISOLATED, 0);
        self.buddy.relist(frame);
    }
}
