//! Per-slot page lists (the kernel's pcp): small orders served without the zone
//! lock.
//!
//! ```text
//!   slot -> lists[order 0..5][type]:  hot head  <->  ...  <->  cold tail
//! ```
//! A list refills in batches that double while the slot only allocates, and gives
//! a batch back from its cold end when it is over its high mark; an idle thread
//! therefore keeps next to nothing. The lists belong to their thread; what another
//! thread wants drained it asks for by an epoch ([`request_drain`]), which the
//! owner meets on its next slow path.

use core::ptr;
use core::sync::atomic::{AtomicU64, Ordering};

use crate::page::{PageKind, PageList, PageRef};
use crate::purge;
use crate::slot::{self, Registry};
use crate::topology;
use crate::types::{MIGRATETYPES, Migratetype, Order};
use crate::zone;

/// Orders served from the lists: 0 to 5.
const PCP_ORDERS: usize = 6;
/// Pages that a refill moves at most.
const MAX_BATCH_PAGES: usize = 32;
/// Pages of one order and type above which a batch goes back.
const HIGH_PAGES: usize = 64;

// C layout: the registry's word must come first.
#[repr(C)]
struct Lists {
    /// The registry's.
    _index: usize,
    node: usize,
    epoch: u64,
    lists: [[PageList; MIGRATETYPES]; PCP_ORDERS],
    /// log2 of the chunks that the next refill asks for.
    refill: [[u8; MIGRATETYPES]; PCP_ORDERS],
}

static REGISTRY: Registry = Registry::new(size_of::<Lists>());
/// Moves on with each request to drain.
static EPOCH: AtomicU64 = AtomicU64::new(0);

/// Asks every slot to give its lists back on its next slow path.
pub fn request_drain() {
    post_drain(&EPOCH);
}

/// Posts a request to drain; with [`drain_asked`] and [`drain_due`] the protocol
/// that the models check.
#[inline]
pub fn post_drain<W: crate::sync::Word>(epoch: &W) {
    // Release: whoever meets the new epoch also sees why it was asked for.
    epoch.fetch_add(1, Ordering::Release);
}

/// Whether it looks as if there were a request: the fast paths' test, which orders
/// nothing and is followed by [`drain_due`].
#[inline]
pub fn drain_asked<W: crate::sync::Word>(epoch: &W, seen: u64) -> bool {
    epoch.load(Ordering::Relaxed) != seen
}

/// Whether a slot that last met `seen` has requests to meet: the epoch to remember
/// before draining, so that a request posted meanwhile is met next time.
#[inline]
pub fn drain_due<W: crate::sync::Word>(epoch: &W, seen: u64) -> Option<u64> {
    // Acquire: pairs with the release in `post_drain`.
    let now = epoch.load(Ordering::Acquire);
    (now != seen).then_some(now)
}

/// The calling thread's lists, made on first use; `None` after thread exit or
/// without memory.
#[inline]
fn lists() -> Option<&'static mut Lists> {
    let at = slot::page_lists().cast::<Lists>();
    if at.is_null() {
        return make_lists();
    }
    // SAFETY: the record is this thread's alone from `acquire` to `release`, zero
    // or what a former owner left, both valid; no reference outlives a call below,
    // and none of them re-enters.
    Some(unsafe { &mut *at })
}

#[cold]
fn make_lists() -> Option<&'static mut Lists> {
    if slot::has_exited() {
        return None;
    }
    let record = REGISTRY.acquire()?.cast::<Lists>();
    slot::set_page_lists(record.as_ptr().cast());
    slot::watch_thread_exit();
    // SAFETY: as in `lists`.
    let lists = unsafe { &mut *record.as_ptr() };
    lists.node = topology::current_node();
    Some(lists)
}

/// Takes a chunk from the slot's list, refilling it as needed.
#[inline]
pub(crate) fn get(order: Order, mt: Migratetype) -> Option<PageRef> {
    let (o, m) = (order.get() as usize, mt as usize);
    if o < PCP_ORDERS
        && let Some(lists) = lists()
    {
        if let Some(page) = lists.lists[o][m].pop_front() {
            page.set_kind(PageKind::Pages);
            return Some(page);
        }
        return refill(lists, order, mt);
    }
    zone::take(topology::current_node(), order, mt)
}

/// Gives a chunk to the slot's list: at the hot end, or at the cold end when its
/// content is unlikely to be in the cache.
#[inline]
pub(crate) fn put(page: PageRef, cold: bool) {
    let (o, m) = (page.order() as usize, page.migratetype() as usize);
    if o < PCP_ORDERS
        && let Some(lists) = lists()
    {
        page.set_kind(PageKind::Cached);
        page.set_dirty(true);
        let list = &mut lists.lists[o][m];
        if cold {
            list.push_back(page)
        } else {
            list.push_front(page)
        }
        if list.len() << o > HIGH_PAGES >> 1 || drain_asked(&EPOCH, lists.epoch) {
            flush(lists, o, m);
        }
        return;
    }
    zone::put_bulk(core::iter::once(page));
    purge::tick();
}

#[cold]
fn refill(lists: &mut Lists, order: Order, mt: Migratetype) -> Option<PageRef> {
    let (o, m) = (order.get() as usize, mt as usize);
    meet_drain(lists);
    purge::tick();
    let most = (MAX_BATCH_PAGES >> o).max(1);
    let shift = &mut lists.refill[o][m];
    let want = (1usize << *shift).min(most);
    *shift = (*shift + 1).min(5);
    let mut chunks = [None; MAX_BATCH_PAGES];
    let got = zone::take_bulk(lists.node, order, mt, &mut chunks[..want]);
    let mut chunks = chunks.into_iter().take(got).flatten();
    let first = chunks.next()?;
    for page in chunks {
        page.set_kind(PageKind::Cached);
        lists.lists[o][m].push_back(page);
    }
    Some(first)
}

#[cold]
fn flush(lists: &mut Lists, o: usize, m: usize) {
    meet_drain(lists);
    purge::tick();
    // Frees outrun allocations: ask for less next time.
    lists.refill[o][m] = lists.refill[o][m].saturating_sub(1);
    let keep = HIGH_PAGES >> o >> 2;
    let list = &mut lists.lists[o][m];
    if list.len() > keep {
        let excess = list.len() - keep;
        zone::put_bulk((0..excess).map_while(|_| list.pop_back()));
    }
}

fn meet_drain(lists: &mut Lists) {
    if let Some(now) = drain_due(&EPOCH, lists.epoch) {
        lists.epoch = now;
        drain(lists);
    }
}

fn drain(lists: &mut Lists) {
    for list in lists.lists.iter_mut().flatten() {
        zone::put_bulk(core::iter::from_fn(|| list.pop_back()));
    }
}

/// Gives all pages of the calling thread's lists back to the zone, and the runs
/// that the zones keep unmerged.
pub fn drain_current() {
    zone::merge_recent();
    if !slot::page_lists().is_null()
        && let Some(lists) = lists()
    {
        drain(lists);
    }
}

/// Thread exit: the lists go back, and the record with them.
pub(crate) fn thread_exit() {
    let at = slot::page_lists();
    if let Some(record) = ptr::NonNull::new(at) {
        drain_current();
        slot::set_page_lists(ptr::null_mut());
        // SAFETY: the thread's own record, cleared from its slot.
        unsafe { REGISTRY.release(record) };
    }
}

/// Pages in all slots' lists and in runs kept unmerged; exact when no other thread
/// runs.
pub fn cached_pages() -> usize {
    let mut pages = zone::recent_pages();
    REGISTRY.for_each(|record| {
        // SAFETY: records are never unmapped; the lengths are atomics.
        let lists = unsafe { &*record.as_ptr().cast::<Lists>() };
        for (o, lists) in lists.lists.iter().enumerate() {
            pages += lists.iter().map(|l| l.len() << o).sum::<usize>();
        }
    });
    pages
}

/// The child after fork: other threads' lists become free for reuse.
///
/// # Safety
/// Only the forking thread may run.
pub(crate) unsafe fn after_fork() {
    let mine = slot::page_lists();
    // A thread that is gone may have been in the middle of a list operation.
    REGISTRY.for_each(|record| {
        if record.as_ptr() != mine {
            // SAFETY: as promised, nobody else uses the record.
            let lists = unsafe { &mut *record.as_ptr().cast::<Lists>() };
            lists.lists.iter_mut().flatten().for_each(PageList::repair);
        }
    });
    // SAFETY: as promised.
    unsafe { REGISTRY.after_fork(mine) };
}
