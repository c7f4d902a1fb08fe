//! What the larger workloads build their data from: owned buffers and owned values in the heap of the allocator under
//! test, freed when they are dropped. The workloads themselves need no unsafe code.
//!
//! ```text
//!  Buf<O>          Owned<O, T>        Extent<O>
//!  len ─┐          ┌─> T              len, not written:
//!       └> bytes   │  (its own parts  only single bytes
//!                  │   may be Bufs)   are touched
//! ```

use super::die;
use crate::objects::Objects;
use std::cell::Cell;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::{Mutex, PoisonError};

thread_local! {
    static TAKEN: Cell<u64> = const { Cell::new(0) };
}

/// Objects that this thread took so far.
pub fn taken() -> u64 {
    TAKEN.get()
}

/// Gives memory back when there is none left; false when it has none to give.
pub type Reclaim = Box<dyn Fn() -> bool + Send>;

static RECLAIM: Mutex<Option<Reclaim>> = Mutex::new(None);

/// Sets what is tried before memory counts as run out, as a kernel reclaims its caches. It must take no objects.
pub fn on_shortage(reclaim: Option<Reclaim>) {
    *RECLAIM.lock().unwrap_or_else(PoisonError::into_inner) = reclaim;
}

/// Rounds of reclaim before an object counts as impossible.
const TRIES: usize = 10_000;

#[cold]
fn take_after_reclaim<O: Objects>(bytes: usize) -> Option<NonNull<u8>> {
    let reclaim = RECLAIM.lock().unwrap_or_else(PoisonError::into_inner);
    for _ in 0..TRIES {
        if !reclaim.as_ref()?() {
            return None;
        }
        // What was reclaimed lies in slabs of another size until these go back.
        O::trim();
        if let object @ Some(_) = NonNull::new(O::take(bytes)) {
            return object;
        }
    }
    None
}

fn take<O: Objects>(bytes: usize) -> Option<NonNull<u8>> {
    let object = NonNull::new(O::take(bytes)).or_else(|| take_after_reclaim::<O>(bytes));
    TAKEN.set(TAKEN.get() + u64::from(object.is_some()));
    object
}

#[cold]
fn out_of_memory<O: Objects>(bytes: usize) -> ! {
    die(&format!(
        "{}: out of memory for an object of {bytes} bytes",
        O::NAME
    ))
}

/// Bytes that nobody has written yet.
pub struct Extent<O: Objects> {
    start: NonNull<u8>,
    len: usize,
    allocator: PhantomData<fn() -> O>,
}

// SAFETY: an extent owns its bytes; the allocator takes objects back from any thread.
unsafe impl<O: Objects> Send for Extent<O> {}

impl<O: Objects> Extent<O> {
    /// `len` bytes; `None` when memory has run out.
    pub fn try_new(len: usize) -> Option<Self> {
        Some(Self {
            start: take::<O>(len)?,
            len,
            allocator: PhantomData,
        })
    }

    /// `len` bytes; ends the worker when memory has run out.
    pub fn new(len: usize) -> Self {
        Self::try_new(len).unwrap_or_else(|| out_of_memory::<O>(len))
    }

    /// Writes the byte at `at`.
    ///
    /// # Panics
    /// When `at` lies outside.
    pub fn touch(&mut self, at: usize, byte: u8) {
        assert!(at < self.len, "byte {at} of {}", self.len);
        // SAFETY: `at` lies inside the extent, which this value owns. Volatile: the write is what is measured.
        unsafe { self.start.as_ptr().add(at).write_volatile(byte) }
    }

    fn into_buf(self, source: &[u8], fill: u8) -> Buf<O> {
        assert!(source.len() <= self.len, "a copy longer than its buffer");
        // SAFETY: both parts lie inside the extent and together initialise all of it; `source` is another object.
        unsafe {
            let start = self.start.as_ptr();
            start.copy_from_nonoverlapping(source.as_ptr(), source.len());
            start
                .add(source.len())
                .write_bytes(fill, self.len - source.len());
        }
        Buf(self)
    }
}

impl<O: Objects> Drop for Extent<O> {
    fn drop(&mut self) {
        // SAFETY: the object came from `take` and ends here.
        unsafe { O::give(self.start.as_ptr()) }
    }
}

/// Bytes that are all written.
pub struct Buf<O: Objects>(Extent<O>);

// SAFETY: through a shared reference the bytes are only read.
unsafe impl<O: Objects> Sync for Buf<O> {}

impl<O: Objects> Buf<O> {
    /// `len` bytes of `fill`.
    pub fn filled(len: usize, fill: u8) -> Self {
        Extent::new(len).into_buf(&[], fill)
    }

    /// As [`Buf::filled`]; `None` when memory has run out.
    pub fn try_filled(len: usize, fill: u8) -> Option<Self> {
        Some(Extent::try_new(len)?.into_buf(&[], fill))
    }

    /// A copy of `source`.
    pub fn copy_of(source: &[u8]) -> Self {
        Extent::new(source.len()).into_buf(source, 0)
    }

    /// As [`Buf::copy_of`]; `None` when memory has run out.
    pub fn try_copy_of(source: &[u8]) -> Option<Self> {
        Some(Extent::try_new(source.len())?.into_buf(source, 0))
    }

    /// The same bytes in a larger buffer, zeroes behind them: what a growing array does.
    ///
    /// # Panics
    /// When `len` is smaller.
    pub fn grown(self, len: usize) -> Self {
        Extent::new(len).into_buf(&self, 0)
    }
}

impl<O: Objects> Deref for Buf<O> {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: all bytes are written, and this value owns them.
        unsafe { std::slice::from_raw_parts(self.0.start.as_ptr(), self.0.len) }
    }
}

impl<O: Objects> DerefMut for Buf<O> {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and the borrow is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.0.start.as_ptr(), self.0.len) }
    }
}

/// A value in an object of its own.
pub struct Owned<O: Objects, T> {
    start: NonNull<T>,
    allocator: PhantomData<(fn() -> O, T)>,
}

// SAFETY: as a Box: it owns the value.
unsafe impl<O: Objects, T: Send> Send for Owned<O, T> {}
// SAFETY: as a Box: shared references reach the value only.
unsafe impl<O: Objects, T: Sync> Sync for Owned<O, T> {}

impl<O: Objects, T> Owned<O, T> {
    /// Moves `value` into an object; ends the worker when memory has run out.
    pub fn new(value: T) -> Self {
        // What malloc promises for any object.
        const { assert!(align_of::<T>() <= 16) };
        // An object of no bytes would not be one of its own.
        let bytes = size_of::<T>().max(1);
        let start: NonNull<T> = take::<O>(bytes)
            .unwrap_or_else(|| out_of_memory::<O>(bytes))
            .cast();
        // SAFETY: the object is fresh, large enough and aligned to 16.
        unsafe { start.write(value) };
        Self {
            start,
            allocator: PhantomData,
        }
    }

    /// Moves the value out and gives its object back.
    pub fn into_inner(self) -> T {
        let start = self.start;
        std::mem::forget(self);
        // SAFETY: `self` is forgotten: the value is read once, and then the object is given back once.
        unsafe {
            let value = start.read();
            O::give(start.as_ptr().cast());
            value
        }
    }
}

impl<O: Objects, T> Drop for Owned<O, T> {
    fn drop(&mut self) {
        // SAFETY: the value is live and dropped once; then its object is given back once.
        unsafe {
            self.start.drop_in_place();
            O::give(self.start.as_ptr().cast());
        }
    }
}

impl<O: Objects, T> Deref for Owned<O, T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: the value is live as long as this owner.
        unsafe { self.start.as_ref() }
    }
}

impl<O: Objects, T> DerefMut for Owned<O, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above, and the borrow is exclusive.
        unsafe { self.start.as_mut() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::{Cached, SystemMalloc};

    type Unified = Cached<slab_unified::Unified>;

    #[test]
    fn buffers_hold_what_was_written() {
        let before = taken();
        let mut buffer = Buf::<Unified>::copy_of(b"seed").grown(6);
        assert_eq!(&*buffer, b"seed\0\0");
        buffer[5] = 7;
        assert_eq!(buffer[5], 7);
        assert_eq!(&*Buf::<SystemMalloc>::filled(3, 9), &[9; 3]);
        assert_eq!(taken() - before, 3);
    }

    #[test]
    fn values_are_dropped_once_and_move_out() {
        struct Node(Option<Owned<Unified, Node>>, std::rc::Rc<()>);
        let witness = std::rc::Rc::new(());
        let tail = Owned::new(Node(None, witness.clone()));
        let head: Owned<Unified, Node> = Owned::new(Node(Some(tail), witness.clone()));
        assert_eq!(std::rc::Rc::strong_count(&witness), 3);
        let Node(tail, first) = head.into_inner();
        drop(first);
        assert_eq!(std::rc::Rc::strong_count(&witness), 2);
        drop(tail);
        assert_eq!(std::rc::Rc::strong_count(&witness), 1);
    }

    #[test]
    fn a_shortage_is_met_by_reclaim() {
        thread_local! {
            static FULL: Cell<bool> = const { Cell::new(false) };
        }
        struct Scarce;
        impl Objects for Scarce {
            const NAME: &'static str = "scarce";
            type Cache = usize;
            fn create(name: &'static str, size: usize) -> Result<usize, String> {
                SystemMalloc::create(name, size)
            }
            fn alloc(size: usize) -> *mut u8 {
                Self::take(size)
            }
            unsafe fn free(_: usize, object: *mut u8) {
                // SAFETY: the caller's promise, passed on.
                unsafe { Self::give(object) }
            }
            fn alloc_bulk(_: usize, _: &mut [*mut u8]) -> usize {
                0
            }
            unsafe fn free_bulk(_: usize, _: &[*mut u8]) {}
            fn take(size: usize) -> *mut u8 {
                if FULL.get() {
                    std::ptr::null_mut()
                } else {
                    SystemMalloc::take(size)
                }
            }
            unsafe fn give(object: *mut u8) {
                // SAFETY: the caller's promise, passed on.
                unsafe { SystemMalloc::give(object) }
            }
            fn trim() {}
            fn held() -> Option<u64> {
                None
            }
            fn limit(_: usize) -> bool {
                false
            }
            fn counters() -> Vec<(String, u64)> {
                Vec::new()
            }
        }
        FULL.set(true);
        assert!(Buf::<Scarce>::try_filled(10, 0).is_none());
        on_shortage(Some(Box::new(|| FULL.replace(false))));
        assert!(Buf::<Scarce>::try_filled(10, 0).is_some());
        on_shortage(None);
    }

    #[test]
    #[should_panic(expected = "byte 10 of 10")]
    fn an_extent_is_touched_inside_only() {
        let mut extent = Extent::<SystemMalloc>::new(10);
        extent.touch(9, 1);
        extent.touch(10, 1);
    }
}
