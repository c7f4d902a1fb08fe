//! Collections on a heap of their own, by `allocator-api2`.

use std::alloc::Layout;

use allocator_api2::alloc::Allocator;
use allocator_api2::boxed::Box;
use allocator_api2::vec::Vec;
use proptest::prelude::*;
use slab_api::{Heap, misuse};
use slab_unified::Unified;

#[test]
fn a_vector_grows_and_shrinks() {
    let heap: Heap<Unified> = Heap::new();
    let mut numbers = Vec::new_in(&heap);
    for n in 0..200_000u64 {
        numbers.push(n);
    }
    assert!(heap.stats().large_in_use >= 1_600_000);
    numbers.truncate(100);
    numbers.shrink_to_fit();
    assert!(numbers.iter().copied().eq(0..100));
    drop(numbers);
    let boxed = Box::new_in([1u128; 4], &heap);
    assert!((&raw const *boxed).is_aligned());
    drop(boxed);
    assert_eq!(heap.stats().small_in_use, 0);
}

#[test]
fn alignment_is_kept() {
    #[derive(Clone, Copy, Debug, PartialEq)]
    #[repr(align(256))]
    struct Wide(u8);
    let heap: Heap<Unified> = Heap::new();
    let mut wide = Vec::new_in(&heap);
    for n in 0..100 {
        wide.push(Wide(n));
        assert!(wide.as_ptr().is_aligned());
    }
    wide.truncate(3);
    wide.shrink_to_fit();
    assert!(wide.as_ptr().is_aligned());
    assert_eq!(&wide[..], [Wide(0), Wide(1), Wide(2)]);
}

proptest! {
    /// Resized step by step, between all kinds of size and alignment: the content
    /// stays, what grow_zeroed adds is zero, and no size counts as misuse.
    #[test]
    fn resizing_keeps_the_content(
        steps in prop::collection::vec((0usize..70_000, 0u32..8, any::<bool>()), 1..12),
    ) {
        let heap: Heap<Unified> = Heap::new();
        let heap = &heap;
        let before = misuse::detected();
        let mut layout = Layout::from_size_align(40, 8).expect("a layout");
        let mut block = heap.allocate_zeroed(layout).expect("memory").cast::<u8>();
        // SAFETY: `block` is always the block in use, `layout` its layout.
        unsafe {
            for (n, (size, shift, zeroed)) in steps.into_iter().enumerate() {
                let new = Layout::from_size_align(size, 1 << shift).expect("a layout");
                let fill = n as u8 + 1;
                block.write_bytes(fill, layout.size());
                let resized = if size < layout.size() {
                    heap.shrink(block, layout, new)
                } else if zeroed {
                    heap.grow_zeroed(block, layout, new)
                } else {
                    heap.grow(block, layout, new)
                };
                let resized = resized.expect("memory");
                prop_assert_eq!(resized.len(), size);
                block = resized.cast();
                prop_assert!((block.as_ptr() as usize).is_multiple_of(new.align()));
                let kept = layout.size().min(size);
                prop_assert!((0..kept).all(|i| block.add(i).read() == fill));
                if zeroed && size >= layout.size() {
                    prop_assert!((kept..size).all(|i| block.add(i).read() == 0));
                }
                layout = new;
            }
            heap.deallocate(block, layout);
        }
        prop_assert_eq!(misuse::detected(), before);
        prop_assert_eq!(heap.stats().small_in_use, 0);
    }
}
