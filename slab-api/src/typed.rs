//! Typed object caches.
//!
//! ```
//! # fn demo<C: slab_api::ObjectCache>() {
//! struct Session { id: u64, name: [u8; 40] }
//! let cache = slab_api::Cache::<Session, C>::new("session").expect("a cache");
//! let session = cache.alloc(Session { id: 7, name: [0; 40] }).expect("memory");
//! assert_eq!(session.id, 7);
//! drop(session); // back to the cache
//! # }
//! ```
//! [`Cache::constructed`] gives Bonwick's caches: objects are constructed once, when
//! their slab is made, and keep their state while they are free.

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
    marker: PhantomData<fn() -> T>,
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

impl<T: Default, C: ObjectCache> Cache<T, C> {
    /// A cache whose objects are constructed (as `T::default()`) when their slab is
    /// made, and keep their state from one user to the next.
    ///
    /// `T` must not need dropping: objects are never dropped, only their memory is
    /// given back in the end.
    ///
    /// # Errors
    /// As [`Cache::new`].
    pub fn constructed(name: &str) -> Result<Self, CacheError> {
        const {
            assert!(
                !core::mem::needs_drop::<T>(),
                "constructed objects are never dropped"
            )
        };
        unsafe fn construct<T: Default>(p: *mut u8) {
            // SAFETY: the cache calls it with fresh objects of T's size and alignment.
            unsafe { p.cast::<T>().write(T::default()) };
        }
        config::settings();
        let desc = CacheDesc::new(name, size_of::<T>().max(1))
            .align(align_of::<T>())
            .constructor(construct::<T>);
        Ok(Self {
            cache: C::create(&desc)?,
            constructed: true,
            marker: PhantomData,
        })
    }

    /// An object as its last user left it, or as it was constructed; `None` without
    /// memory. In a cache of [`Cache::new`] it is made by `T::default()`.
    #[inline]
    pub fn take(&self) -> Option<Object<'_, T, C>> {
        if !self.constructed {
            return self.alloc(T::default()).ok();
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
