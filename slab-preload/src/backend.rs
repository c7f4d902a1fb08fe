//! The three heaps of the library, of which a process uses one.

use slab_api::{Heap, ObjectCache};
use slab_classic::Classic;
use slab_unified::Unified;
use slub::Slub;

/// A backend with its process-wide heap.
pub trait Installed: ObjectCache + Sized + 'static {
    /// The heap that this backend's malloc serves from.
    fn heap() -> &'static Heap<Self>;
}

static CLASSIC: Heap<Classic> = Heap::new();
static SLUB: Heap<Slub> = Heap::new();
static UNIFIED: Heap<Unified> = Heap::new();

impl Installed for Classic {
    #[inline(always)]
    fn heap() -> &'static Heap<Self> {
        &CLASSIC
    }
}

impl Installed for Slub {
    #[inline(always)]
    fn heap() -> &'static Heap<Self> {
        &SLUB
    }
}

impl Installed for Unified {
    #[inline(always)]
    fn heap() -> &'static Heap<Self> {
        &UNIFIED
    }
}
