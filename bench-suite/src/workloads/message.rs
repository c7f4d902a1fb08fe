//! A message as a network stack holds it: a head object (an sk_buff) and a data object, from two caches.
//!
//! ```text
//!  head, 256 bytes            data, (headroom + size + tail) rounded up to a power of two
//! ┌──────────────────┐       ┌──────────┬─────────────────────────┬──────┐
//! │ data  len  seq …─┼─────> │ headroom │ address, seq, payload … │ tail │
//! └──────────────────┘       └──────────┴─────────────────────────┴──────┘
//! ```
//! The sender makes it: every byte of the head and of the payload is written. The receiver, usually another thread,
//! takes it: every byte of the payload is read, the stamp is checked, both objects are freed.

use super::die;
use crate::objects::Objects;

/// Size of the head object, as that of an sk_buff.
pub const HEAD_SIZE: usize = 256;
/// Bytes before the payload (NET_SKB_PAD).
const HEADROOM: usize = 64;
/// Bytes behind it (skb_shared_info).
const TAIL: usize = 320;
/// The largest payload whose data object a cache still holds (32 KiB).
pub const MAX_PAYLOAD: usize = 32768 - HEADROOM - TAIL;
/// The stamp at the payload's start: the head's address and the sequence number.
pub const STAMP: usize = 16;

/// The head object; the rest of its 256 bytes is zeroed, as alloc_skb does.
#[repr(C)]
pub struct Head {
    data: *mut u8,
    len: usize,
    sequence: u64,
}

/// The size of the data object for a payload of `size` bytes.
pub const fn data_size(size: usize) -> usize {
    (HEADROOM + size + TAIL).next_power_of_two()
}

/// The two caches, for payloads of one size.
pub struct Caches<O: Objects> {
    head: O::Cache,
    data: O::Cache,
    size: usize,
}

impl<O: Objects> Clone for Caches<O> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<O: Objects> Copy for Caches<O> {}

/// A head's address on its way to the receiver.
#[derive(Clone, Copy)]
pub struct Message(pub *mut Head);

// SAFETY: a message is owned by whoever holds it; the objects have no thread of their own.
unsafe impl Send for Message {}

impl<O: Objects> Caches<O> {
    /// Makes the caches for payloads of `size` bytes.
    pub fn create(size: usize) -> Result<Self, String> {
        Ok(Self {
            head: O::create("msg_head", HEAD_SIZE)?,
            data: O::create("msg_data", data_size(size))?,
            size,
        })
    }

    /// The size of a payload.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Allocates and fills a message: `payload` (at least `size` bytes) under a stamp of `sequence`.
    #[inline]
    pub fn make(&self, payload: &[u8], sequence: u64) -> Message {
        let payload = &payload[..self.size];
        let head = O::alloc(self.head);
        let data = O::alloc(self.data);
        if head.is_null() || data.is_null() {
            die(&format!(
                "{}: out of memory for a message of {} bytes",
                O::NAME,
                self.size
            ));
        }
        let message = Message(head.cast());
        let mut stamp = [0; STAMP];
        stamp[..8].copy_from_slice(&(head as usize as u64).to_ne_bytes());
        stamp[8..].copy_from_slice(&sequence.to_ne_bytes());
        // SAFETY: `head` is a fresh object of HEAD_SIZE bytes, aligned at least for a pointer; `data` is one of
        // data_size(size) bytes, so the payload fits behind its headroom, and nobody else knows either.
        unsafe {
            head.write_bytes(0, HEAD_SIZE);
            message.0.write(Head {
                data,
                len: self.size,
                sequence,
            });
            let start = data.add(HEADROOM);
            start.copy_from_nonoverlapping(payload.as_ptr(), self.size);
            start.copy_from_nonoverlapping(stamp.as_ptr(), self.size.min(STAMP));
        }
        message
    }

    /// The payload of a message, inside its data object: what goes to the socket.
    ///
    /// # Safety
    /// `message` is live, and neither taken nor freed while the slice is in use.
    pub unsafe fn payload<'a>(&self, message: Message) -> &'a [u8] {
        // SAFETY: a live message was made by `make`: its data object holds `len` written bytes behind the headroom.
        unsafe {
            let head = &*message.0;
            std::slice::from_raw_parts(head.data.add(HEADROOM), head.len)
        }
    }

    /// Reads a message into `sink` (at least `size` bytes), checks its stamp and frees both objects. Returns the
    /// sequence number.
    ///
    /// # Safety
    /// `message` is live and the caller owns it.
    #[inline]
    pub unsafe fn take(&self, message: Message, sink: &mut [u8]) -> u64 {
        // SAFETY: the caller promises a live message.
        let (sequence, data, payload) = unsafe {
            let head = &*message.0;
            (head.sequence, head.data, self.payload(message))
        };
        if payload.len() != self.size {
            die(&format!("{}: a head object was overwritten", O::NAME));
        }
        sink[..self.size].copy_from_slice(payload);
        let mut stamp = [0; STAMP];
        stamp[..8].copy_from_slice(&(message.0 as usize as u64).to_ne_bytes());
        stamp[8..].copy_from_slice(&sequence.to_ne_bytes());
        let stamped = self.size.min(STAMP);
        if sink[..stamped] != stamp[..stamped] {
            die(&format!("{}: a data object was overwritten", O::NAME));
        }
        std::hint::black_box(&mut sink[..]);
        // SAFETY: both objects came from these caches in `make`, and the caller owns them.
        unsafe {
            O::free(self.data, data);
            O::free(self.head, message.0.cast());
        }
        sequence
    }
}

/// The head's address and the sequence number that stand at the start of a payload.
pub fn read_stamp(payload: &[u8]) -> (Message, u64) {
    let word = |at: usize| u64::from_ne_bytes(std::array::from_fn(|i| payload[at + i]));
    (Message(word(0) as usize as *mut Head), word(8))
}

/// Bytes to send: a pattern of `size` bytes.
pub fn pattern(size: usize) -> Vec<u8> {
    (0..size).map(|i| (i % 251) as u8).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::SystemMalloc;

    #[test]
    fn data_objects_have_the_sizes_of_the_kernels_size_classes() {
        assert_eq!(data_size(100), 512);
        assert_eq!(data_size(256), 1024);
        assert_eq!(data_size(1024), 2048);
        assert_eq!(data_size(16384), 32768);
    }

    #[test]
    fn a_message_arrives_as_it_was_made() {
        for size in [1, 15, 16, 100, 4096] {
            let caches = Caches::<SystemMalloc>::create(size).unwrap();
            let source = pattern(size);
            let message = caches.make(&source, 42);
            let mut sink = vec![0; size];
            if size >= STAMP {
                // SAFETY: the message is live until taken below.
                let (found, sequence) = read_stamp(unsafe { caches.payload(message) });
                assert_eq!((found.0, sequence), (message.0, 42));
            }
            // SAFETY: the message was just made and is taken once.
            assert_eq!(unsafe { caches.take(message, &mut sink) }, 42);
            assert_eq!(sink[size.min(STAMP)..], source[size.min(STAMP)..]);
        }
    }
}
