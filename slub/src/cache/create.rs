//! How caches begin and end, and which of them are one.
//!
//! Caches of the same shape are merged, as the kernel does it: the second `create` gets
//! the first one's cache. Fewer slabs are then partly used, and objects of one are still
//! warm for the other. A constructor, [`CacheDesc::no_merge`], another migratetype or
//! another order of objects keep caches apart.

use core::sync::atomic::AtomicBool;

use slab_api::DestroyError;

use super::*;

static SHUFFLED: AtomicBool = AtomicBool::new(false);

/// Whether caches made from now on have randomised freelists: fresh slabs hand out their
/// objects in an order that differs from cache to cache and page to page. Off at first.
pub fn set_shuffled(shuffled: bool) {
    SHUFFLED.store(shuffled, Relaxed);
}

impl Slub {
    /// As [`ObjectCache::create`], with a randomised freelist whatever
    /// [`set_shuffled`] says.
    ///
    /// # Errors
    /// As there.
    pub fn create_shuffled(desc: &CacheDesc<'_>) -> Result<Self, CacheError> {
        Self::create_as(desc, true)
    }

    /// As [`Self::create_shuffled`], by the setting.
    pub(super) fn create_by_setting(desc: &CacheDesc<'_>) -> Result<Self, CacheError> {
        Self::create_as(desc, SHUFFLED.load(Relaxed))
    }

    fn create_as(desc: &CacheDesc<'_>, shuffled: bool) -> Result<Self, CacheError> {
        let secret = slab::init_secret();
        let (align, mut stride) = desc.layout()?;
        let mut offset = (stride / 2) & !7;
        if desc.constructor.is_some() {
            // Constructed objects keep their content: the link goes behind.
            offset = desc.size.next_multiple_of(8);
            stride = (offset + 8).next_multiple_of(align);
        }
        if stride > MAX_OBJECT * 2 {
            return Err(CacheError::Size);
        }
        let guard = guard::bytes(desc);
        let mergeable = !desc.no_merge && desc.constructor.is_none();
        let _merge = MERGE.lock();
        if mergeable && let Some(cache) = Self::like(desc, (align, stride), guard, shuffled) {
            cache.0.users.fetch_add(1, Relaxed);
            bump(&cache.0.counters.merged);
            return Ok(cache);
        }
        let memory = meta::alloc(size_of::<Record>()).ok_or(CacheError::NoMemory)?;
        let record = memory.cast::<Record>();
        let shape = Shape::new(stride, offset, guard);
        let seed = (secret as u64).rotate_left(17) ^ memory.as_ptr() as u64;
        // SAFETY: the memory is large and aligned enough, and ours.
        unsafe {
            record.write(Record {
                head: CacheHead::new(&BACKEND, desc, (align, stride)),
                tuned: Tuned::new(&shape),
                shuffle: shuffled.then(|| Shuffle::new(shape.per_page(), seed)),
                shape,
                migratetype: desc.migratetype,
                constructor: desc.constructor,
                mergeable,
                users: AtomicU32::new(1),
                slabs: AtomicUsize::new(0),
                pages: AtomicUsize::new(0),
                objects: AtomicUsize::new(0),
                counters: Counters::default(),
                nodes: [const {
                    Lock::new(Node {
                        partial: PageList::new(),
                        quiet: PageList::new(),
                    })
                }; MAX_NODES],
            });
            if registry::register(record.cast()).is_none() {
                meta::free(memory, size_of::<Record>());
                return Err(CacheError::TooMany);
            }
            Ok(Self(record.as_ref()))
        }
    }

    /// A cache that serves the description as well. [`MERGE`] is held.
    fn like(
        desc: &CacheDesc<'_>,
        layout: (usize, usize),
        guard: usize,
        shuffled: bool,
    ) -> Option<Self> {
        let (align, stride) = layout;
        let mut found = None;
        registry::for_each(|head| {
            if found.is_some() || !ptr::eq(head.backend, &raw const BACKEND) {
                return;
            }
            let cache = of(head);
            let same = cache.0.mergeable
                && cache.0.shuffle.is_some() == shuffled
                && cache.0.shape.guard == guard
                && cache.0.migratetype == desc.migratetype
                && head.stride as usize == stride
                && (head.align as usize).is_multiple_of(align);
            if same {
                found = Some(cache);
            }
        });
        found
    }

    /// Ends the cache, or only this share of a merged one.
    pub(super) fn end(self) -> Result<(), DestroyError> {
        let _merge = MERGE.lock();
        if self.0.users.load(Relaxed) > 1 {
            // Whose objects are still in use cannot be told, and does not matter: the
            // cache stays.
            self.0.users.fetch_sub(1, Relaxed);
            return Ok(());
        }
        // By the contract no thread is using the cache: what their slots hold can be
        // taken from here.
        let _slots = registry::slots_lock();
        slots::for_each(|slot| self.drain(slot));
        percpu::end(&self.0.head);
        let in_use = self.info().in_use;
        if in_use > 0 {
            return Err(DestroyError::Busy(in_use));
        }
        self.discard_empty();
        registry::unregister(self.id());
        // SAFETY: unregistered and unused: nobody refers to the record any more.
        unsafe { meta::free(NonNull::from(self.0).cast(), size_of::<Record>()) };
        Ok(())
    }
}
