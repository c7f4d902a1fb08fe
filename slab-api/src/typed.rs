//! Typed object caches.
//!
//! ```
//! # fn demo<C: slab_api::ObjectCache>() {
//! #[derive(Debug)]
//! struct Session { id: u64, name: [u8; 40] }
//! let cache = slab_api::Cache::<Session, C>::new("session").expect("a cache");
//! let session = cache.alloc(Session { id: 7, name: [0; 40] }).expect("memory");
//! assert_eq!(session.id, 7);
//! drop(session); // back to the cache
//! # }
//! ```
//! [`Cache::constructed`] and [`Cache::with_constructor`] give Bonwick's caches: objects
//! are constructed once, when their slab is made, and keep their state while they are
//! free.
//!
//! ```text
//!   Cache::new           alloc(v): write v ──▶ Object ──drop──▶ T dropped, memory free
//!   Cache::constructed   slab made: construct each      ┌──────────────┐
//!                        take(): no write ──▶ Object ──drop──▶ T as it is, object free
//! ```
//! In the second kind a `T` travels from one user to the next, in any thread: that is
//! why it must be `Send`, and why the cache is invariant in `T` (a short-lived
//! reference left in an object must not come back as a long-lived one).

use core::marker::PhantomData;
use core::ops::{Deref, DerefMut};
use core::ptr::NonNull;

use crate::cache::{CacheDesc, CacheError, CacheInfo, ObjectCache};
use crate::config;

/// A cache of `T`s on the backend `C`. Dropping it gives its slabs back; the borrow
/// checker sees to it that no object is in use then.
#[derive(Debug)]
pub struct Cache<T, C: ObjectCache> {
    cache: C,
    constructed: bool,
    /// Invariant: objects carry a T from one user to the next.
    marker: PhantomData<fn(T) -> T>,
}

/// An object of a cache; goes back when dropped.
#[derive(Debug)]
pub struct Object<'a, T, C: ObjectCache> {
    object: NonNull<T>,
    cache: &'a Cache<T, C>,
    marker: PhantomData<T>,
}

// SAFETY: an object is owned like a Box; the cache may be used from any thread.
unsafe impl<T: Send, C: ObjectCache> Send for Object<'_, T, C> {}
// SAFETY: as above: sharing it shares a T.
unsafe impl<T: Sync, C: ObjectCache> Sync for Object<'_, T, C> {}

impl<T, C: ObjectCache> Cache<T, C> {
    /// A cache for objects that are moved in and dropped on the way back.
    ///
    /// # Errors
    /// [`CacheError`]: a `T` too large or too strictly aligned, or no memory.
    pub fn new(name: &str) -> Result<Self, CacheError> {
        config::settings();
        let desc = CacheDesc::new(name, size_of::<T>().max(1)).align(align_of::<T>());
        Ok(Self {
            cache: C::create(&desc)?,
            constructed: false,
            marker: PhantomData,
        })
    }

    /// Moves a value into an object of the cache; hands it back without memory.
    ///
    /// # Errors
    /// The value, when memory is out.
    #[inline]
    pub fn alloc(&self, value: T) -> Result<Object<'_, T, C>, T> {
        match self.cache.alloc() {
            Some(object) => {
                let object = object.cast::<T>();
                // SAFETY: an object of T's size and alignment that is ours. In a
                // constructed cache this overwrites a T that needs no drop.
                unsafe { object.write(value) };
                Ok(Object {
                    object,
                    cache: self,
                    marker: PhantomData,
                })
            }
            None => Err(value),
        }
    }

    /// The cache's figures.
    pub fn info(&self) -> CacheInfo {
        self.cache.info()
    }

    /// Gives free slabs back to the page layer; returns the pages.
    pub fn shrink(&self) -> usize {
        self.cache.shrink()
    }
}

impl<T: Send, C: ObjectCache> Cache<T, C> {
    /// A cache whose objects `construct` makes when their slab is made; they keep their
    /// state from one user to the next ([`Cache::take`]).
    ///
    /// `T` must not need dropping: objects are never dropped, only their memory is
    /// given back in the end. `construct` runs inside the allocator: it must not use
    /// this cache, nor a heap of the same backend, and a panic in it aborts. It is a
    /// function or a closure that captures nothing:
    ///
    /// ```
    /// # fn demo<C: slab_api::ObjectCache>() {
    /// let cache = slab_api::Cache::<[u32; 8], C>::with_constructor("rows", || [7; 8]);
    /// # }
    /// ```
    ///
    /// ```compile_fail
    /// # fn demo<C: slab_api::ObjectCache>(seven: u32) {
    /// let cache = slab_api::Cache::<[u32; 8], C>::with_constructor("rows", move || [seven; 8]);
    /// # }
    /// # struct Any; // the closure captures: no cache can keep it
    /// # demo::<slab_unified::Unified>(7);
    /// ```
    ///
    /// # Errors
    /// As [`Cache::new`].
    pub fn with_constructor<F>(name: &str, construct: F) -> Result<Self, CacheError>
    where
        F: Fn() -> T + Copy + Send + Sync + 'static,
    {
        const {
            assert!(
                !core::mem::needs_drop::<T>(),
                "constructed objects are never dropped"
            );
            assert!(
                size_of::<F>() == 0,
                "the constructor must capture nothing: slabs are made at any time"
            );
        };
        let _: F = construct;
        config::settings();
        let desc = CacheDesc::new(name, size_of::<T>().max(1))
            .align(align_of::<T>())
            .constructor(construct_object::<T, F>);
        Ok(Self {
            cache: C::create(&desc)?,
            constructed: true,
            marker: PhantomData,
        })
    }
}

/// Constructs one object.
///
/// # Safety
/// `p` must be a fresh object of `T`'s size and alignment, and a value of the empty type
/// `F` must have been given to [`Cache::with_constructor`].
unsafe fn construct_object<T, F: Fn() -> T + Copy>(p: *mut u8) {
    /// The caller is the middle of an allocator: no panic may pass through it.
    struct AbortOnUnwind;
    impl Drop for AbortOnUnwind {
        fn drop(&mut self) {
            std::process::abort();
        }
    }
    let guard = AbortOnUnwind;
    // SAFETY: F has no bytes and is Copy, and the cache was given one of it to be used
    // from any thread; so here is a copy of it. `p` is promised by the caller.
    unsafe {
        let construct: F = NonNull::dangling().read();
        p.cast::<T>().write(construct());
    }
    core::mem::forget(guard);
}

impl<T: Default + Send + 'static, C: ObjectCache> Cache<T, C> {
    /// [`Cache::with_constructor`] with `T::default`.
    ///
    /// Values that are tied to a thread are refused, because the next user may be
    /// another one:
    ///
    /// ```compile_fail
    /// # fn demo<C: slab_api::ObjectCache>() {
    /// type Tied = Option<&'static core::cell::Cell<u32>>;
    /// let cache = slab_api::Cache::<Tied, C>::constructed("tied");
    /// # }
    /// ```
    ///
    /// And so is a cache that promises less than it was made with:
    ///
    /// ```compile_fail
    /// use slab_api::{Cache, ObjectCache};
    /// fn shorten<'s, C: ObjectCache>(
    ///     cache: &'s Cache<Option<&'static u32>, C>,
    /// ) -> &'s Cache<Option<&'s u32>, C> {
    ///     cache
    /// }
    /// ```
    ///
    /// # Errors
    /// As [`Cache::new`].
    pub fn constructed(name: &str) -> Result<Self, CacheError> {
        Self::with_constructor(name, T::default)
    }
}

impl<T, C: ObjectCache> Cache<T, C> {
    /// An object as its last user left it, or as it was constructed; `None` without
    /// memory, and in a cache of [`Cache::new`], whose objects are not constructed.
    #[inline]
    pub fn take(&self) -> Option<Object<'_, T, C>> {
        if !self.constructed {
            return None;
        }
        let object = self.cache.alloc()?.cast::<T>();
        // The constructor, or the last user, left a T there.
        Some(Object {
            object,
            cache: self,
            marker: PhantomData,
        })
    }
}

impl<T, C: ObjectCache> Drop for Cache<T, C> {
    fn drop(&mut self) {
        // Busy only if an object was forgotten: then the cache stays, as it must.
        let _ = self.cache.destroy();
    }
}

impl<T, C: ObjectCache> Deref for Object<'_, T, C> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: holds a T, ours.
        unsafe { self.object.as_ref() }
    }
}

impl<T, C: ObjectCache> DerefMut for Object<'_, T, C> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as in deref.
        unsafe { self.object.as_mut() }
    }
}

impl<T, C: ObjectCache> Drop for Object<'_, T, C> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: holds a T that nobody uses any more; the object came from this
        // cache. Constructed objects stay as they are.
        unsafe {
            if !self.cache.constructed {
                self.object.drop_in_place();
            }
            self.cache.cache.free(self.object.cast());
        }
    }
}
