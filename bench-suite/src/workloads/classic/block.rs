//! Blocks: malloc's memory as owned values, so that the rows need no unsafe code.
//!
//! ```text
//!  Block      pointer          -> [ tag = address ^ MAGIC | … ]   at least 8 bytes, checked and freed on drop
//!  Buffer     pointer, size    -> [ tag                   | bytes that may be filled, grown and touched ]
//!  Untouched  pointer          -> [ … ]                           never written
//!  Slots      AtomicPtr table  -> Blocks that any thread may swap for others
//! ```
//!
//! The tag makes every allocation touch its block, as a program would, and finds a malloc that hands out the same bytes
//! twice or loses them in `realloc`: a benchmark of a broken malloc must fail and not win.

use super::super::die;
use std::ffi::c_void;
use std::hint::black_box;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicPtr, Ordering};

const MAGIC: usize = 0x5afe_b10c_0dd5_eed5_u64 as usize;
/// The tag's size: the smallest block.
const LEAST: usize = size_of::<usize>();
/// The step that touches every page.
const PAGE: usize = 4096;

/// What malloc returned, or the end of the worker. The box keeps the compiler from pairing this call with its free and
/// dropping both.
#[inline]
fn checked(pointer: *mut c_void, size: usize) -> NonNull<usize> {
    match NonNull::new(black_box(pointer).cast()) {
        Some(pointer) => pointer,
        None => die(&format!("malloc returned null for {size} bytes")),
    }
}

fn tag(pointer: NonNull<usize>) -> usize {
    pointer.as_ptr() as usize ^ MAGIC
}

/// A block of at least 8 bytes, tagged.
pub struct Block(NonNull<usize>);

// SAFETY: a block is plain memory with one owner, and malloc's may be freed by any thread.
unsafe impl Send for Block {}

impl Block {
    /// malloc.
    #[inline]
    pub fn new(size: usize) -> Self {
        let size = size.max(LEAST);
        // SAFETY: malloc has no precondition.
        Self::own(checked(unsafe { libc::malloc(size) }, size))
    }

    /// calloc; looks at the first word.
    #[inline]
    pub fn zeroed(size: usize) -> Self {
        let size = size.max(LEAST);
        // SAFETY: calloc has no precondition.
        let pointer = checked(unsafe { libc::calloc(1, size) }, size);
        // SAFETY: a fresh block of at least a word, initialised by calloc.
        if unsafe { pointer.read() } != 0 {
            die("calloc returned memory that is not zero");
        }
        Self::own(pointer)
    }

    /// posix_memalign; `alignment` is a power of two of at least 8.
    #[inline]
    pub fn aligned(alignment: usize, size: usize) -> Self {
        let size = size.max(LEAST);
        let mut pointer = null_mut();
        // SAFETY: `pointer` is valid for writing.
        let error = unsafe { libc::posix_memalign(&mut pointer, alignment, size) };
        if error != 0 || !(pointer as usize).is_multiple_of(alignment) {
            die(&format!(
                "posix_memalign({alignment}, {size}): error {error}, {pointer:p}"
            ));
        }
        Self::own(checked(pointer, size))
    }

    #[inline]
    fn own(pointer: NonNull<usize>) -> Self {
        // SAFETY: a fresh block of at least a word; malloc aligns such blocks for a word.
        unsafe { pointer.write(tag(pointer)) };
        Self(pointer)
    }

    /// Writes the block's first word `times` times.
    pub fn hammer(&mut self, times: usize) {
        for i in 0..times {
            // SAFETY: this block's first word.
            unsafe { self.0.write_volatile(i) };
        }
        // SAFETY: as above.
        unsafe { self.0.write(tag(self.0)) };
    }

    #[inline]
    fn check(&self) {
        // SAFETY: this block's first word, which `own` initialised.
        if unsafe { self.0.read() } != tag(self.0) {
            die(&format!("the block at {:p} was overwritten", self.0));
        }
    }

    /// The block's address; it stays allocated until `from_raw`.
    fn into_raw(self) -> *mut usize {
        let pointer = self.0.as_ptr();
        std::mem::forget(self);
        pointer
    }
}

impl Drop for Block {
    #[inline]
    fn drop(&mut self) {
        self.check();
        // SAFETY: the word is this block's, and the block is malloc's and dies here. A block that is handed out twice
        // is found by its second owner.
        unsafe {
            self.0.write(0);
            libc::free(self.0.as_ptr().cast());
        }
    }
}

/// A block that knows its size.
pub struct Buffer {
    block: Block,
    size: usize,
}

impl Buffer {
    /// malloc of at least 8 bytes.
    #[inline]
    pub fn new(size: usize) -> Self {
        let size = size.max(LEAST);
        Self {
            block: Block::new(size),
            size,
        }
    }

    /// calloc.
    pub fn zeroed(size: usize) -> Self {
        let size = size.max(LEAST);
        Self {
            block: Block::zeroed(size),
            size,
        }
    }

    /// The numbers of the pages that the block lies in.
    pub fn pages(&self) -> std::ops::RangeInclusive<usize> {
        let at = self.block.0.as_ptr() as usize;
        at / PAGE..=(at + self.size - 1) / PAGE
    }

    /// Its size in bytes.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Writes every byte from `from` on, except the tag.
    pub fn fill(&mut self, from: usize) {
        let from = from.clamp(LEAST, self.size);
        // SAFETY: from..size lies inside the block, whose owner this is.
        unsafe {
            self.block
                .0
                .cast::<u8>()
                .add(from)
                .write_bytes(0xa5, self.size - from)
        };
    }

    /// Writes one byte of each page.
    pub fn touch(&mut self) {
        for at in (PAGE..self.size).step_by(PAGE) {
            // SAFETY: `at` lies inside the block, whose owner this is.
            unsafe { self.block.0.cast::<u8>().add(at).write_volatile(1) };
        }
    }

    /// realloc; ends the worker when the contents did not come along.
    #[inline]
    pub fn resize(&mut self, size: usize) {
        let size = size.max(LEAST);
        let old = tag(self.block.0);
        // SAFETY: the block is malloc's and this owner's; its address is not used again.
        let new = checked(
            unsafe { libc::realloc(self.block.0.as_ptr().cast(), size) },
            size,
        );
        // SAFETY: a block of at least a word; the first one is initialised as realloc copies it.
        unsafe {
            if new.read() != old {
                die("realloc lost the contents of a block");
            }
            new.write(tag(new));
        }
        self.block.0 = new;
        self.size = size;
    }
}

/// A block that nobody writes.
pub struct Untouched(NonNull<usize>);

impl Untouched {
    /// malloc.
    #[inline]
    pub fn new(size: usize) -> Self {
        // SAFETY: malloc has no precondition.
        Self(checked(unsafe { libc::malloc(size) }, size))
    }
}

impl Drop for Untouched {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: the block is malloc's and dies here.
        unsafe { libc::free(self.0.as_ptr().cast()) }
    }
}

/// Places for blocks that threads swap: who stores a block in a place gets the one that was there.
pub struct Slots(Vec<AtomicPtr<usize>>);

impl Slots {
    /// `count` empty places.
    pub fn new(count: usize) -> Self {
        Self((0..count).map(|_| AtomicPtr::new(null_mut())).collect())
    }

    /// Puts `block` in place `at`.
    #[inline]
    pub fn swap(&self, at: usize, block: Block) -> Option<Block> {
        // AcqRel: pairs with itself; the new owner of a block sees what the old one wrote to it.
        let old = self.0[at].swap(block.into_raw(), Ordering::AcqRel);
        NonNull::new(old).map(Block)
    }
}

impl Drop for Slots {
    fn drop(&mut self) {
        for slot in &mut self.0 {
            drop(NonNull::new(*slot.get_mut()).map(Block));
        }
    }
}

/// malloc_trim of whatever malloc this process runs on; glibc's where the preloaded one has none.
pub fn trim() {
    // SAFETY: no precondition.
    unsafe { libc::malloc_trim(0) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_keep_their_tags_through_all_they_can_do() {
        let mut block = Block::new(1);
        block.hammer(3);
        block.check();
        Block::aligned(256, 10).check();
        let mut buffer = Buffer::zeroed(10_000);
        buffer.fill(0);
        buffer.touch();
        buffer.resize(100_000);
        buffer.resize(9);
        buffer.fill(20);
        assert_eq!(buffer.size(), 9);
        buffer.block.check();
        drop(Untouched::new(1 << 20));
    }

    #[test]
    fn slots_give_back_what_was_there_and_free_the_rest() {
        let slots = Slots::new(2);
        let block = Block::new(64);
        let address = block.0;
        assert!(slots.swap(1, block).is_none());
        assert_eq!(slots.swap(1, Block::new(64)).unwrap().0, address);
    }
}
