//! Slabs that few objects hold after `malloc_trim`: their free objects are no longer
//! linked, so that pages of nothing else can be given back, and their part of the granule
//! map too ([`page_alloc::sparse`]).
//!
//! ```text
//!   a quiet slab:   word { head: 0, inuse: all, not frozen }    as if it were full
//!   head's record:  private[0..3], [3] = base   | its free objects: a bit each,
//!   other pages':   private[0..4]               | by their indices
//! ```
//! Who frees an object of it finds it full, makes it its own by that ([`word`]), notes the
//! object's bit, and gives the slab up again: a page of free objects is not touched for a
//! link. An allocation that finds no partial slab claims a quiet one in the same way, and
//! links its objects; of several, one wins. So a quiet slab has one owner at most, and the
//! bits change hands with it, under the node's lock.

use core::sync::atomic::AtomicU8;

use page_alloc::{PAGE_SHIFT, PAGE_SIZE, PageRef, granule, page_of, sparse};
use slab_api::gaps::Gaps;
use slab_api::sparse::is_worth_it;

use super::*;

/// Words of bits that a slab's records can have.
const WORDS: usize = (4 << slab::MAX_ORDER) - 1;

/// A set of a slab's objects, by their indices.
struct Objects([u64; WORDS]);

impl Objects {
    const fn none() -> Self {
        Self([0; WORDS])
    }

    /// What a quiet slab's records say.
    fn of(head: PageRef) -> Self {
        let mut all = Self::none();
        for (n, word) in all.0.iter_mut().enumerate().take(words(head)) {
            *word = word_of(head, n).map_or(0, |cell| cell.load(Relaxed));
        }
        all
    }

    fn write(&self, head: PageRef) {
        for (n, word) in self.0.iter().enumerate().take(words(head)) {
            if let Some(cell) = word_of(head, n) {
                cell.store(*word, Relaxed);
            }
        }
    }

    fn add(&mut self, index: usize) {
        if let Some(word) = self.0.get_mut(index / 64) {
            *word |= 1 << (index % 64);
        }
    }

    fn add_all(&mut self, others: &Self) {
        for (word, more) in self.0.iter_mut().zip(&others.0) {
            *word |= more;
        }
    }

    fn iter(&self) -> impl Iterator<Item = usize> {
        (0..WORDS * 64).filter(|index| self.contains(*index))
    }

    fn contains(&self, index: usize) -> bool {
        self.0
            .get(index / 64)
            .is_some_and(|word| word >> (index % 64) & 1 != 0)
    }

    fn count(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }
}

/// Words of bits that a slab of this order can have.
fn words(head: PageRef) -> usize {
    (4 << head.order().min(slab::MAX_ORDER)) - 1
}

/// The n-th of them: the first page's last word is the slab's address.
fn word_of(head: PageRef, n: usize) -> Option<&'static AtomicU64> {
    if n < 3 {
        return head.private.get(n);
    }
    let page = slab::base(head).wrapping_add(((n + 1) / 4) << PAGE_SHIFT);
    page_of(page)?.private.get((n + 1) % 4)
}

/// Objects in use of a quiet slab, by its records.
pub(super) fn live(head: PageRef) -> usize {
    usize::from(word::load(&head.word).inuse).saturating_sub(Objects::of(head).count())
}

impl Slub {
    /// Makes slabs that few objects hold quiet, and gives back the pages of their free
    /// objects; returns how many.
    pub(super) fn quieten(self) -> usize {
        // Constructed objects keep their content.
        if self.0.constructor.is_some() {
            return 0;
        }
        let mut pages = 0;
        for node in &self.0.nodes {
            let mut node = node.lock();
            for head in node.quiet.iter() {
                pages += self.discard_free(head, &Objects::of(head));
            }
            let (mut others, mut empty) = (PageList::new(), PageList::new());
            while let Some(head) = node.partial.pop_front() {
                if self.is_nearly_free(head) {
                    match self.make_quiet(head, &mut node) {
                        Some(given) => pages += given,
                        None => empty.push_back(head),
                    }
                } else {
                    others.push_back(head);
                }
            }
            node.partial = others;
            drop(node);
            while let Some(head) = empty.pop_front() {
                pages += 1 << head.order();
                self.discard(head);
            }
        }
        pages
    }

    /// Whether few objects of a slab of the node's list are in use, and its records have
    /// room for a bit for each.
    fn is_nearly_free(self, head: PageRef) -> bool {
        let (inuse, objects) = (word::load(&head.word).inuse, self.shape().objects(head));
        let room = words(head) * 64 >= usize::from(objects);
        // Empty ones are kept on purpose.
        inuse > 0
            && room
            && is_worth_it(head, inuse.into(), objects.into())
            && !(percpu::on() && self.has_queued(head))
    }

    /// Whether an object of a slab of the node's list is neither free in it nor in use: it
    /// waits in a CPU's queue. The node's lock is held, so nobody takes objects off the list.
    fn has_queued(self, head: PageRef) -> bool {
        let mut free = Objects::none();
        self.collect(head, List::of_name(word::load(&head.word).head), &mut free);
        (0..usize::from(self.shape().objects(head)))
            .filter(|index| !free.contains(*index))
            .filter_map(|index| granule::cell(self.object(head, index)))
            .any(|mark| mark.load(Relaxed) == 0)
    }

    /// Takes the free objects of a slab that was on the node's list off its freelist, and
    /// gives their pages back; returns how many, or `None` when meanwhile its last objects
    /// were freed: it is on no list then, and to be discarded. The node's lock is held.
    fn make_quiet(self, head: PageRef, node: &mut Node) -> Option<usize> {
        let mut free = Objects::none();
        self.take_freed(head, &mut free);
        free.write(head);
        sparse::set_quiet(head);
        node.quiet.push_back(head);
        if self.give_up(head, &mut free) {
            return Some(self.discard_free(head, &free));
        }
        self.wake(head, node, &free);
        None
    }

    /// Takes what the freelist in the slab's word has, which makes the slab this thread's
    /// if it is nobody's, and adds it to the set of free objects.
    fn take_freed(self, head: PageRef, free: &mut Objects) {
        let shape = self.shape();
        let list = List::of_name(word::freeze_and_take(&head.word, shape.objects(head)));
        let mut freed = Objects::none();
        self.collect(head, list, &mut freed);
        if sparse::was_sparse(head) {
            // They may have been on their way when the marks were given back.
            for p in freed.iter().map(|i| self.object(head, i)) {
                if let Some(mark) = granule::cell(p) {
                    mark.store(0, Relaxed);
                }
            }
        }
        free.add_all(&freed);
    }

    /// Gives up a quiet slab that is this thread's, with these free objects and what is
    /// freed to it meanwhile. The node's lock is held: whoever is the next to own the slab
    /// waits for it.
    /// False when nothing of it is in use any more: it is this thread's still, to discard.
    #[must_use]
    fn give_up(self, head: PageRef, free: &mut Objects) -> bool {
        let objects = self.shape().objects(head);
        while free.count() < usize::from(objects) {
            free.write(head);
            match word::take_or_unfreeze(&head.word, objects) {
                Some(first) => self.collect(head, List::of_name(first), free),
                None => return true,
            }
        }
        false
    }

    fn object(self, head: PageRef, index: usize) -> *mut u8 {
        slab::base(head).wrapping_add(index * self.shape().stride)
    }

    /// Adds a list of the slab, which is this thread's, to a set.
    fn collect(self, head: PageRef, list: List, to: &mut Objects) {
        let (shape, base) = (self.shape(), slab::base(head) as usize);
        let add = |p: *mut u8| to.add((p as usize - base) / shape.stride);
        // SAFETY: the list is this thread's, or at least nobody takes objects off it.
        if unsafe { shape.walk(head, list, add) }.is_none() {
            let at = list.first(slab::base(head));
            misuse::report("a free object was overwritten in the list of", at);
        }
    }

    fn discard_free(self, head: PageRef, free: &Objects) -> usize {
        let (shape, start) = (self.shape(), slab::base(head) as usize);
        let mut gaps = Gaps::new(
            start..start + (PAGE_SIZE << head.order()) - shape.guard,
            start..start + shape.bytes(head),
        );
        for p in free.iter().map(|i| self.object(head, i)) {
            // SAFETY: a free object that is on no list; the node's lock keeps it so. There
            // is nothing else in a slab but objects and its guard.
            unsafe { gaps.add(p, shape.stride) };
        }
        gaps.finish()
    }

    /// Marks all objects of a slab but those of a set. For [`sparse::restore`] and
    /// [`sparse::wake`].
    fn mark_but(self, head: PageRef, free: &Objects) {
        let (shape, byte) = (self.shape(), granule::byte_of(self.id()));
        for index in (0..usize::from(shape.objects(head))).filter(|i| !free.contains(*i)) {
            if let Some(mark) = granule::cell(self.object(head, index)) {
                mark.store(byte, Relaxed);
            }
        }
    }

    /// The registry's way to the marks of a sparse slab.
    pub(super) fn restore(self, head: PageRef, mark: &AtomicU8) -> u8 {
        let _node = self.0.nodes[head.node()].lock();
        // Under the lock: a quiet slab of this cache stays one, and no other becomes one.
        if !sparse::is_quiet(head) || head.cache() != self.id() {
            return mark.load(Relaxed);
        }
        let mut free = Objects::of(head);
        // Whoever freed these waits for the lock, to note them.
        let freed = List::of_name(word::load(&head.word).head);
        self.collect(head, freed, &mut free);
        sparse::restore(head, mark, || self.mark_but(head, &free))
    }

    /// This thread's free found a quiet slab full, and made it its own: notes what was
    /// freed. A slab of which nothing is in use any more is discarded.
    #[cold]
    pub(super) fn freed_to_quiet(self, head: PageRef) {
        let mut node = self.0.nodes[head.node()].lock();
        let mut free = Objects::of(head);
        self.take_freed(head, &mut free);
        if self.give_up(head, &mut free) {
            return;
        }
        self.wake(head, &mut node, &free);
        drop(node);
        self.discard(head);
    }

    /// A quiet slab of the node with its whole freelist, this thread's now.
    #[cold]
    pub(super) fn wake_one(self, node: &mut Node) -> Option<(PageRef, List)> {
        // Those that a free was faster to claim wait for the lock.
        let claimed = |head: &PageRef| word::claim_full(&head.word);
        let head = node.quiet.iter().find(claimed)?;
        let mut free = Objects::of(head);
        self.take_freed(head, &mut free);
        self.wake(head, node, &free);
        let (shape, key) = (self.shape(), slab::key_of(slab::base(head) as usize));
        let mut list = List::EMPTY;
        for index in (0..usize::from(shape.objects(head))).rev() {
            if free.contains(index) {
                // SAFETY: a free object of the slab, which is this thread's.
                unsafe { slab::set_next(self.object(head, index), shape.offset, key, list.0) };
                list = List::at(index * shape.stride);
            }
        }
        Some((head, list))
    }

    /// Makes a quiet slab, which this thread owns, an ordinary one.
    fn wake(self, head: PageRef, node: &mut Node, free: &Objects) {
        node.quiet.remove(head);
        sparse::wake(head, || self.mark_but(head, free));
        // The records are again what they are for other slabs.
        head.private[0].store(0, Relaxed);
        head.private[1].store(0, Relaxed);
        head.private[2].store(self.shape().objects(head).into(), Relaxed);
    }

    /// Checks a quiet slab.
    pub(super) fn check_quiet(self, head: PageRef) -> Result<(), Corruption> {
        let wrong = |what| {
            Err(Corruption {
                what,
                address: head.address() as usize,
            })
        };
        let (state, free) = (word::load(&head.word), Objects::of(head));
        let objects = usize::from(self.shape().objects(head));
        if !sparse::is_quiet(head) || head.cache() != self.id() {
            return wrong("a slab on the list of quiet ones that is none");
        }
        if state.frozen || state.head != 0 || usize::from(state.inuse) != objects {
            return wrong("a quiet slab that is another's");
        }
        if free.count() == 0 || free.count() >= objects {
            return wrong("a quiet slab with nothing free, or nothing in use");
        }
        let marked = (0..objects).any(|index| {
            let is_marked =
                granule::cell(self.object(head, index)).is_none_or(|mark| mark.load(Relaxed) != 0);
            let should_be = !sparse::is_sparse(head) && !free.contains(index);
            // An object that was freed since may wait in a CPU's queue.
            is_marked != should_be && (is_marked || !percpu::on())
        });
        if marked {
            return wrong("an object of a quiet slab that is marked wrongly");
        }
        Ok(())
    }
}
