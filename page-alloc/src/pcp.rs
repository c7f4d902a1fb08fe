//! Per-slot page lists (the kernel's pcp): small orders and the pageblock's order
//! served without the zone lock.
//!
//! ```text
//!   slot -> pages[order 0..5, 9][type]:  cold bottom | ... | hot top   (arrays)
//! ```
//! A list refills in batches that double while the slot only allocates, and gives
//! its colder half back when it is full, more of it when that happens again.
//!
//! The lists belong to their thread, which enters and leaves them by plain stores
//! ([`enter`]). Another thread drains them all the same ([`drain_all`]: under
//! pressure, for a purge, for a contiguous range): it bars the lists, makes every
//! thread of the process pass a fence (`membarrier`), and waits until the owner is
//! out; so the price of a lock is paid by the one who rarely takes it. Where the
//! kernel refuses that, the owner is asked, and drains when it comes by.

use core::ptr;
use core::sync::atomic::{
    AtomicPtr, AtomicU8, AtomicU64, Ordering, Ordering::Relaxed, compiler_fence, fence,
};

use crate::config;
use crate::cpu;
use crate::os;
use crate::page::{Page, PageKind, PageRef};
use crate::purge;
use crate::slot::{self, Registry};
use crate::sync::{FutexLock, Lock, Word};
use crate::topology;
use crate::types::{Migratetype, Order, PAGE_SHIFT, PAGEBLOCK_ORDER};
use crate::zone;

/// Lists a type has: orders 0 to 5, and the pageblock's.
const ROWS: usize = 7;
/// Types that have lists: urgent requests go to the zone.
const TYPES: usize = 4;
/// Chunks that a list holds.
const CAPACITY: [usize; ROWS] = [64, 32, 16, 8, 4, 4, 2];
/// Where the list of a row starts among a type's entries.
const START: [usize; ROWS] = [0, 64, 96, 112, 120, 124, 128];
const ENTRIES: usize = 130;
/// Pages in a thread's lists with which it begins no block before they are drained.
const HOARD: usize = 64;
/// Pages that a refill moves at most.
const MAX_BATCH: usize = 32;

// C layout: the registry's word must come first.
#[repr(C)]
struct Lists {
    /// The registry's.
    _index: usize,
    node: usize,
    /// The owner is inside.
    busy: AtomicU64,
    /// [`OPEN`], or why the owner may not just enter.
    bar: AtomicU64,
    count: [[AtomicU8; TYPES]; ROWS],
    /// log2 of the chunks that the next refill asks for.
    refill: [[AtomicU8; TYPES]; ROWS],
    /// Flushes since the last refill.
    flushes: [[AtomicU8; TYPES]; ROWS],
    /// The chunk freed last, when it was not taken again: a put whose get follows
    /// shortens the chain of dependent loads from seven to four by it.
    hot: [[AtomicPtr<Page>; ROWS]; TYPES],
    pages: [[AtomicPtr<Page>; ENTRIES]; TYPES],
}

static REGISTRY: Registry = Registry::new(size_of::<Lists>());
/// Held while lists of other threads are barred.
static DRAIN: Lock<()> = Lock::new(());

const OPEN: u64 = 0;
/// Another thread works on the lists: wait for it.
const BARRED: u64 = 1;
/// Another thread asks the owner to drain them.
const ASKED: u64 = 2;

/// The owner enters its lists: true, or false when they are not open (and nothing was
/// entered). `fence` orders the store before the load for [`bar`]'s fence: the
/// compiler's order is enough when that one makes every thread pass a real fence.
#[inline(always)]
pub fn enter<W: Word>(busy: &W, bar: &W, fence: impl Fn()) -> bool {
    busy.store(1, Relaxed);
    fence();
    // Acquire: pairs with `unbar`, so what was done to the lists is seen.
    if bar.load(Ordering::Acquire) == OPEN {
        return true;
    }
    busy.store(0, Ordering::Release);
    false
}

/// The owner leaves its lists.
#[inline(always)]
pub fn leave<W: Word>(busy: &W) {
    // Release: pairs with `is_out`, so what was done to the lists is seen.
    busy.store(0, Ordering::Release);
}

/// Bars the lists of another thread. They may be used once [`is_out`] after a fence
/// that every thread passed.
pub fn bar<W: Word>(bar: &W) {
    bar.store(BARRED, Relaxed);
}

/// Whether the owner of barred lists is outside.
pub fn is_out<W: Word>(busy: &W) -> bool {
    busy.load(Ordering::Acquire) == 0
}

/// Opens the lists again, or (`ask`) leaves them to their owner to drain.
pub fn unbar<W: Word>(bar: &W, ask: bool) {
    bar.store(if ask { ASKED } else { OPEN }, Ordering::Release);
}

/// The row of an order that has lists.
#[inline(always)]
fn row_of(order: u8) -> Option<usize> {
    match order {
        0..=5 => Some(order as usize),
        PAGEBLOCK_ORDER => Some(ROWS - 1),
        _ => None,
    }
}

/// The calling thread's lists, made on first use; `None` after thread exit or
/// without memory.
#[inline]
fn lists() -> Option<&'static Lists> {
    let at = slot::page_lists().cast::<Lists>();
    if at.is_null() {
        return make_lists();
    }
    // SAFETY: the record is this thread's from `acquire` to `release`, zero or what a
    // former owner left, both valid; everything in it is atomic.
    Some(unsafe { &*at })
}

#[cold]
fn make_lists() -> Option<&'static Lists> {
    // Where slots are CPUs, no thread keeps pages.
    if slot::has_exited() || cpu::on() {
        return None;
    }
    let record = REGISTRY.acquire()?.cast::<Lists>();
    // SAFETY: just acquired, and in nobody's hands; the node is a plain word that only
    // the owner reads.
    unsafe { (*record.as_ptr()).node = topology::current_node() };
    slot::set_page_lists(record.as_ptr().cast());
    slot::watch_thread_exit();
    // SAFETY: as in `lists`.
    Some(unsafe { &*record.as_ptr() })
}

impl Lists {
    #[inline(always)]
    fn enter(&self) -> bool {
        enter(&self.busy, &self.bar, || {
            compiler_fence(Ordering::SeqCst);
        })
    }

    #[inline(always)]
    fn leave(&self) {
        leave(&self.busy);
    }

    /// Enters when others may have barred the lists: waits for them, and drains the
    /// lists where that was asked for.
    #[cold]
    fn enter_slow(&self) {
        let mut asked = false;
        while !self.enter() {
            // Whoever bars lists holds this.
            let _drain = DRAIN.lock();
            if self.bar.load(Ordering::Acquire) == ASKED {
                self.bar.store(OPEN, Relaxed);
                asked = true;
            }
        }
        if asked {
            self.drain();
        }
    }

    /// Takes the hottest chunk. Inside.
    #[inline(always)]
    fn pop(&self, row: usize, mt: Migratetype) -> Option<PageRef> {
        let hot = &self.hot[mt as usize][row];
        let page = hot.load(Relaxed);
        if !page.is_null() {
            hot.store(ptr::null_mut(), Relaxed);
            // SAFETY: it holds the record of a page, which lives for ever.
            return unsafe { page.as_ref() };
        }
        let count = &self.count[row][mt as usize];
        let n = count.load(Relaxed);
        if n == 0 {
            return None;
        }
        count.store(n - 1, Relaxed);
        let at = &self.pages[mt as usize][START[row] + n as usize - 1];
        // SAFETY: entries below the count hold records of pages, which live for ever.
        unsafe { at.load(Relaxed).as_ref() }
    }

    /// Adds a chunk at the hot end; false when the list is full. Inside.
    #[inline(always)]
    fn push(&self, row: usize, mt: Migratetype, page: PageRef) -> bool {
        let hot = &self.hot[mt as usize][row];
        if hot.load(Relaxed).is_null() {
            hot.store(ptr::from_ref(page).cast_mut(), Relaxed);
            return true;
        }
        let count = &self.count[row][mt as usize];
        let n = count.load(Relaxed) as usize;
        if n >= CAPACITY[row] {
            return false;
        }
        let at = &self.pages[mt as usize][START[row] + n];
        at.store(ptr::from_ref(page).cast_mut(), Relaxed);
        // Release: whoever finds this thread gone (fork) sees the entry too.
        count.store(n as u8 + 1, Ordering::Release);
        true
    }

    /// Adds a chunk at the cold end. Inside; the list has room.
    fn push_cold(&self, row: usize, mt: Migratetype, page: PageRef) -> bool {
        let n = self.count[row][mt as usize].load(Relaxed) as usize;
        if n >= CAPACITY[row] {
            return false;
        }
        self.reorder(row, mt as usize, n + 1, |entries| {
            for i in (1..=n).rev() {
                entries[i].store(entries[i - 1].load(Relaxed), Relaxed);
            }
            entries[0].store(ptr::from_ref(page).cast_mut(), Relaxed);
        });
        true
    }

    /// Takes the `most` coldest chunks. Inside.
    fn take_cold(&self, row: usize, mt: usize, most: usize, out: &mut Batch) -> usize {
        let n = self.count[row][mt].load(Relaxed) as usize;
        let taken = most.min(n).min(out.len());
        self.reorder(row, mt, n - taken, |entries| {
            for (cell, entry) in out.iter_mut().zip(&entries[..taken]) {
                // SAFETY: as in `pop`.
                *cell = unsafe { entry.load(Relaxed).as_ref() };
            }
            for i in taken..n {
                entries[i - taken].store(entries[i].load(Relaxed), Relaxed);
            }
        });
        taken
    }

    /// Moves entries about, so that there are `count` afterwards. A thread that a fork
    /// leaves behind in the middle of it loses the list's chunks in the child rather
    /// than having one twice.
    fn reorder(&self, row: usize, mt: usize, count: usize, f: impl FnOnce(&[AtomicPtr<Page>])) {
        let cell = &self.count[row][mt];
        cell.store(0, Relaxed);
        fence(Ordering::Release);
        f(&self.pages[mt][START[row]..START[row] + CAPACITY[row]]);
        cell.store(count as u8, Ordering::Release);
    }

    /// Pages in all lists.
    fn pages(&self) -> usize {
        let mut pages = 0;
        for (row, counts) in self.count.iter().enumerate() {
            let order = if row == ROWS - 1 {
                PAGEBLOCK_ORDER as usize
            } else {
                row
            };
            let mut hot = self.hot.iter().map(|hot| hot[row].load(Relaxed));
            let counts = counts.iter().map(|n| n.load(Relaxed) as usize);
            let chunks = hot.by_ref().filter(|p| !p.is_null()).count() + counts.sum::<usize>();
            pages += chunks << order;
        }
        pages
    }

    fn is_empty(&self) -> bool {
        self.count.iter().flatten().all(|n| n.load(Relaxed) == 0)
            && self.hot.iter().flatten().all(|p| p.load(Relaxed).is_null())
    }

    /// Gives everything back to the zones. Inside, or by whoever barred the lists.
    fn drain(&self) {
        let mut out: Batch = [None; CAPACITY[0]];
        let hot = self.hot.iter().flatten().filter_map(|hot| {
            // SAFETY: as in `pop`.
            unsafe { hot.swap(ptr::null_mut(), Relaxed).as_ref() }
        });
        zone::put_bulk(hot);
        for (row, capacity) in CAPACITY.into_iter().enumerate() {
            for mt in 0..TYPES {
                while self.take_cold(row, mt, capacity, &mut out) > 0 {
                    zone::put_bulk(out.iter_mut().map_while(Option::take));
                }
            }
        }
    }
}

type Batch = [Option<PageRef>; CAPACITY[0]];

/// Takes a chunk from the slot's list, refilling it as needed.
#[inline]
pub(crate) fn get(order: Order, mt: Migratetype) -> Option<PageRef> {
    if let Some(row) = row_of(order.get())
        && mt != Migratetype::HighAtomic
        && let Some(lists) = lists()
    {
        if lists.enter() {
            let found = lists.pop(row, mt);
            lists.leave();
            if let Some(page) = found {
                page.set_kind(PageKind::Pages);
                return Some(page);
            }
        }
        return refill(lists, row, order, mt);
    }
    zone::take(topology::current_node(), order, mt)
}

/// Gives a chunk to the slot's list: at the hot end, or at the cold end when its
/// content is unlikely to be in the cache.
#[inline]
pub(crate) fn put(page: PageRef, cold: bool) {
    let mt = page.migratetype();
    if let Some(row) = row_of(page.order())
        && mt != Migratetype::HighAtomic
        && let Some(lists) = lists()
    {
        page.set_kind(PageKind::Cached);
        page.set_dirty(true);
        if lists.enter() {
            let kept = if cold {
                lists.push_cold(row, mt, page)
            } else {
                lists.push(row, mt, page)
            };
            lists.leave();
            if kept {
                return;
            }
        }
        return flush(lists, row, mt, page);
    }
    zone::put_bulk(core::iter::once(page));
    purge::tick();
}

#[cold]
fn refill(lists: &Lists, row: usize, order: Order, mt: Migratetype) -> Option<PageRef> {
    purge::tick();
    lists.flushes[row][mt as usize].store(0, Relaxed);
    let shift = &lists.refill[row][mt as usize];
    let most = (MAX_BATCH >> order.get()).clamp(1, CAPACITY[row]);
    // With placement off pages of all kinds must lie where they come to lie: a batch for
    // one type would keep those together, 32 at a time, which is placement after all.
    let most = if config::placement() || mt == Migratetype::Movable {
        most
    } else {
        1
    };
    let want = (1usize << shift.load(Relaxed)).min(most);
    shift.store((shift.load(Relaxed) + 1).min(5), Relaxed);
    let mut chunks = [None; MAX_BATCH];
    let out = &mut chunks[..want];
    let mut got = 0;
    if order < Order::PAGEBLOCK {
        got = zone::take_bulk_begun(lists.node, order, mt, out);
        // Rather than memory that nobody has touched, what the other lists hold.
        if got == 0 && lists.pages() >= HOARD {
            drain_current();
        }
    }
    if got == 0 {
        got = zone::take_bulk(lists.node, order, mt, out);
    }
    let mut chunks = chunks.into_iter().take(got).flatten();
    let first = chunks.next()?;
    if got > 1 {
        lists.enter_slow();
        // Reversed: the first of the batch is used first.
        for page in chunks.rev() {
            page.set_kind(PageKind::Cached);
            if !lists.push(row, mt, page) {
                // Filled meanwhile, by a callback of a page owner.
                zone::put_bulk(core::iter::once(page));
            }
        }
        lists.leave();
    }
    Some(first)
}

#[cold]
fn flush(lists: &Lists, row: usize, mt: Migratetype, page: PageRef) {
    purge::tick();
    let m = mt as usize;
    // Frees outrun allocations: ask for less next time, and give back more.
    let shift = &lists.refill[row][m];
    shift.store(shift.load(Relaxed).saturating_sub(1), Relaxed);
    let flushes = lists.flushes[row][m].load(Relaxed).min(1);
    lists.flushes[row][m].store(flushes + 1, Relaxed);
    let most = (CAPACITY[row] / 2 + CAPACITY[row] / 4 * flushes as usize).max(1);
    let mut out: Batch = [None; CAPACITY[0]];
    lists.enter_slow();
    if lists.count[row][m].load(Relaxed) as usize == CAPACITY[row] {
        lists.take_cold(row, m, most, &mut out);
    }
    lists.push(row, mt, page);
    lists.leave();
    zone::put_bulk(out.into_iter().map_while(|page| page));
}

/// Gives all pages of the calling thread's lists back to the zone, and the runs
/// that the zones keep unmerged.
pub fn drain_current() {
    zone::merge_recent();
    if !slot::page_lists().is_null()
        && let Some(lists) = lists()
    {
        lists.enter_slow();
        lists.drain();
        lists.leave();
    }
}

/// Gives the pages of the calling thread's lists back to the zone when they are more
/// than `most` bytes.
pub fn trim_current(most: usize) {
    let at = slot::page_lists().cast::<Lists>();
    // SAFETY: null, or the thread's record, whose counts are atomics.
    if unsafe { at.as_ref() }.is_some_and(|lists| lists.pages() > most >> PAGE_SHIFT) {
        drain_current();
    }
}

/// Gives all pages of all threads' lists back to the zones. Threads that cannot be
/// stopped (the kernel has no expedited membarrier) do it when they come by.
pub fn drain_all() {
    /// Looks at a thread that is inside; each but the first few yields the CPU.
    const LOOKS: usize = 100;
    drain_current();
    let mine = slot::page_lists();
    let each = |f: &mut dyn FnMut(&Lists)| {
        REGISTRY.for_each(|record| {
            if record.as_ptr() != mine {
                // SAFETY: records are never unmapped; all of it is atomic but the
                // node, which is not read here.
                f(unsafe { &*record.as_ptr().cast::<Lists>() });
            }
        });
    };
    let mut any = false;
    each(&mut |lists| any |= !lists.is_empty());
    if !any {
        return;
    }
    let _drain = DRAIN.lock();
    each(&mut |lists| {
        if !lists.is_empty() {
            bar(&lists.bar);
        }
    });
    let fenced = os::membarrier();
    each(&mut |lists| {
        if lists.bar.load(Relaxed) != BARRED {
            return;
        }
        let out = fenced
            && (0..LOOKS).any(|i| {
                let out = is_out(&lists.busy);
                if !out && i > 2 {
                    os::yield_cpu();
                }
                out
            });
        if out {
            lists.drain();
        }
        unbar(&lists.bar, !out);
    });
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
        // SAFETY: records are never unmapped; the counts are atomics.
        pages += unsafe { &*record.as_ptr().cast::<Lists>() }.pages();
    });
    pages
}

/// Runs `f` on the lock of who drains others' lists: for the fork handlers.
pub(crate) fn with_raw_lock(f: impl FnOnce(&FutexLock)) {
    f(crate::fork::raw(&DRAIN));
}

/// The child after fork: other threads' lists become free for reuse.
///
/// # Safety
/// Only the forking thread may run.
pub(crate) unsafe fn after_fork() {
    let mine = slot::page_lists();
    // A thread that is gone may have been inside.
    REGISTRY.for_each(|record| {
        // SAFETY: records are never unmapped; these are atomics.
        let lists = unsafe { &*record.as_ptr().cast::<Lists>() };
        lists.bar.store(OPEN, Relaxed);
        if record.as_ptr() != mine {
            lists.busy.store(0, Relaxed);
        }
    });
    // SAFETY: as promised.
    unsafe { REGISTRY.after_fork(mine) };
}
