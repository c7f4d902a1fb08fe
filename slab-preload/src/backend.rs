//! The heaps of the library, of which a process uses one: for each backend the normal one,
//! the hardened one and the debug heap.

use core::marker::PhantomData;

use slab_api::debug::DebugHeap;
use slab_api::{Heap, Malloc, Secure};
use slab_classic::Classic;
use slab_unified::Unified;
use slab_unified::v4::UnifiedV4;
use slub::Slub;

/// A process-wide heap that can be put behind the C functions.
pub trait Installed: 'static {
    /// The kind of heap.
    type Heap: Malloc;
    /// The heap itself.
    fn heap() -> &'static Self::Heap;
}

/// Names the hardened heap of a backend.
pub struct Secured<B>(PhantomData<B>);

/// Names the debug heap of a backend.
pub struct Debugged<B>(PhantomData<B>);

macro_rules! installed {
    ($($backend:ty: $heap:ident, $secure:ident, $debug:ident;)*) => {$(
        static $heap: Heap<$backend> = Heap::new();
        static $secure: Secure<$backend> = Secure::new();
        static $debug: DebugHeap<$backend> = DebugHeap::new();

        impl Installed for $backend {
            type Heap = Heap<Self>;

            #[inline(always)]
            fn heap() -> &'static Heap<Self> {
                &$heap
            }
        }

        impl Installed for Secured<$backend> {
            type Heap = Secure<$backend>;

            #[inline(always)]
            fn heap() -> &'static Secure<$backend> {
                &$secure
            }
        }

        impl Installed for Debugged<$backend> {
            type Heap = DebugHeap<$backend>;

            #[inline(always)]
            fn heap() -> &'static DebugHeap<$backend> {
                &$debug
            }
        }
    )*};
}

installed! {
    Classic: CLASSIC, SECURE_CLASSIC, DEBUG_CLASSIC;
    Slub: SLUB, SECURE_SLUB, DEBUG_SLUB;
    Unified: UNIFIED, SECURE_UNIFIED, DEBUG_UNIFIED;
    UnifiedV4: UNIFIED_V4, SECURE_UNIFIED_V4, DEBUG_UNIFIED_V4;
}
