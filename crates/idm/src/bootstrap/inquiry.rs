//! Asking the broker without wanting a worker: one question, one answer, and the connection ends.

use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use super::message::{Hello, Message, VERSION};
use crate::index::index;

const INQUIRY_MAGIC: u32 = u32::from_le_bytes(*b"BkAs");
const RENDEZVOUS_MAGIC: u32 = u32::from_le_bytes(*b"BkMt");
const ANSWER_MAGIC: u32 = u32::from_le_bytes(*b"BkAn");

/// As much as an answer can say. What it means is not idm's to know.
pub const ANSWER_BYTES: usize = 32 << 10;

/// Client → broker, in place of a `Hello`, and of its size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Inquiry {
    /// Tells this message from others.
    pub magic: u32,
    /// The protocol's.
    pub version: u32,
    /// 0; it has the size of a `Hello`.
    pub reserved: [u64; 6],
}

impl Default for Inquiry {
    fn default() -> Self {
        Self { magic: INQUIRY_MAGIC, version: VERSION, reserved: [0; 6] }
    }
}

impl Message for Inquiry {
    fn is_valid(&self) -> bool {
        *self == Self::default()
    }

    fn descriptors(&self) -> usize {
        0
    }
}

/// Client → broker, in place of a `Hello`, and of its size: the client wants to meet other programs. What follows on this
/// connection is not idm's to know.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Rendezvous {
    /// Tells this message from others.
    pub magic: u32,
    /// The protocol's.
    pub version: u32,
    /// 0; it has the size of a `Hello`.
    pub reserved: [u64; 6],
}

impl Default for Rendezvous {
    fn default() -> Self {
        Self { magic: RENDEZVOUS_MAGIC, version: VERSION, reserved: [0; 6] }
    }
}

impl Message for Rendezvous {
    fn is_valid(&self) -> bool {
        *self == Self::default()
    }

    fn descriptors(&self) -> usize {
        0
    }
}

/// Broker → client: the answer to an `Inquiry`.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Answer {
    magic: u32,
    version: u32,
    len: u64,
    bytes: [u8; ANSWER_BYTES],
}

impl Answer {
    /// Lets `write` fill the answer and say how long it is; what is longer than it can be is empty.
    pub fn new(write: impl FnOnce(&mut [u8]) -> usize) -> Box<Self> {
        let mut answer = Box::new(Self::new_zeroed());
        (answer.magic, answer.version) = (ANSWER_MAGIC, VERSION);
        let len = write(&mut answer.bytes);
        answer.len = if len <= ANSWER_BYTES { len as u64 } else { 0 };
        answer
    }

    /// What was answered, without the room behind it.
    pub fn bytes(&self) -> &[u8] {
        self.bytes.get(..index(self.len)).unwrap_or_default()
    }
}

impl Message for Answer {
    fn is_valid(&self) -> bool {
        self.magic == ANSWER_MAGIC && self.version == VERSION && self.len <= ANSWER_BYTES as u64
    }

    fn descriptors(&self) -> usize {
        0
    }
}

/// What a connection may begin with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum First {
    /// A client that wants a worker.
    Hello(Hello),
    /// A question, which gets one answer.
    Inquiry,
    /// A publication, or somebody who waits for one.
    Rendezvous,
}

/// The bytes of a first message, whichever it is: all have one size, so that one receive takes either.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Opening([u64; 7]);

const _: () = assert!(size_of::<Opening>() == size_of::<Hello>() && size_of::<Opening>() == size_of::<Inquiry>());
const _: () = assert!(size_of::<Opening>() == size_of::<Rendezvous>());

impl Opening {
    /// What it begins, if it is well formed.
    pub fn first(&self) -> Option<First> {
        let hello = Hello::read_from_bytes(self.as_bytes()).ok().filter(Message::is_valid);
        let inquiry = Inquiry::read_from_bytes(self.as_bytes()).ok().filter(Message::is_valid);
        let rendezvous = Rendezvous::read_from_bytes(self.as_bytes()).ok().filter(Message::is_valid);
        hello.map(First::Hello).or(inquiry.map(|_| First::Inquiry)).or(rendezvous.map(|_| First::Rendezvous))
    }
}

impl Message for Opening {
    fn is_valid(&self) -> bool {
        self.first().is_some()
    }

    fn descriptors(&self) -> usize {
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bootstrap;

    #[test]
    fn one_receive_takes_either_beginning() {
        let (a, b) = bootstrap::pair().unwrap();
        let hello = Hello::new(7, 0);
        bootstrap::send(&a, &hello, &[]).unwrap();
        bootstrap::send(&a, &Inquiry::default(), &[]).unwrap();
        bootstrap::send(&a, &Rendezvous::default(), &[]).unwrap();
        bootstrap::send(&a, &Inquiry { reserved: [0, 0, 1, 0, 0, 0], ..Inquiry::default() }, &[]).unwrap();
        assert_eq!(bootstrap::recv::<Opening>(&b).unwrap().0.first(), Some(First::Hello(hello)));
        assert_eq!(bootstrap::recv::<Opening>(&b).unwrap().0.first(), Some(First::Inquiry));
        assert_eq!(bootstrap::recv::<Opening>(&b).unwrap().0.first(), Some(First::Rendezvous));
        assert!(bootstrap::recv::<Opening>(&b).is_err());
    }

    #[test]
    fn an_answer_is_read_as_far_as_it_goes() {
        let (a, b) = bootstrap::pair().unwrap();
        let answer = Answer::new(|bytes| {
            bytes[..3].copy_from_slice(b"yes");
            3
        });
        bootstrap::send(&a, &*answer, &[]).unwrap();
        assert_eq!(bootstrap::recv::<Answer>(&b).unwrap().0.bytes(), b"yes");
        assert_eq!(Answer::new(|_| ANSWER_BYTES + 1).bytes(), b"");
    }
}
