//! What the broker and the preemptor say to each other: one struct of fixed size for each direction.

use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use crate::rm::Object;

const TEXT: usize = 128;

/// Kinds of requests. Each is answered, with the same number.
pub mod kind {
    /// A worker; the descriptor is that of its process, and everything of it is let go of when it ends.
    pub const WATCH: u32 = 1;
    /// The descriptor is a duplicate of its `/dev/nvidiactl`, lent until [`RELEASE`]; `value` is the client that was made
    /// through it.
    pub const NVIDIA: u32 = 2;
    /// The descriptor is the page of its software GPU.
    pub const SOFT: u32 = 3;
    /// An object of its driver library.
    pub const OBJECT: u32 = 4;
    /// Its slice, in microseconds.
    pub const SLICE: u32 = 5;
    /// Takes its work off the GPU.
    pub const STOP: u32 = 6;
    /// Lets its work go on.
    pub const RESUME: u32 = 7;
    /// Closes its descriptors of the driver, until others are lent; while it is stopped they stay, for the end of the broker.
    pub const RELEASE: u32 = 8;
    /// Lets go of everything of it.
    pub const FORGET: u32 = 9;
    /// Answered at once, whatever is under way: who does not answer is not there.
    pub const PING: u32 = 10;
}

/// A request of the broker.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Request {
    /// One of [`kind`].
    pub kind: u32,
    reserved: u32,
    /// Numbers the request, for its answer.
    pub seq: u64,
    /// The worker, by the broker's number.
    pub worker: u64,
    /// What the kind says.
    pub value: u64,
    /// Of an [`kind::OBJECT`].
    pub object: Object,
}

impl Request {
    /// A request of which only these are set.
    pub fn new(kind: u32, worker: u64, value: u64) -> Self {
        Self { kind, worker, value, ..Self::new_zeroed() }
    }

    /// An object of a worker's driver library.
    pub fn of_object(worker: u64, object: Object) -> Self {
        Self { object, ..Self::new(kind::OBJECT, worker, 0) }
    }

    /// The request with its number.
    #[must_use]
    pub fn numbered(self, seq: u64) -> Self {
        Self { seq, ..self }
    }
}

/// An answer of the preemptor.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Reply {
    /// Of the request.
    pub kind: u32,
    /// 1 if it failed, and `text` says why.
    failed: u32,
    /// Of the request.
    pub seq: u64,
    /// Of the request.
    pub worker: u64,
    /// How long it took.
    pub microseconds: u64,
    text: [u8; TEXT],
}

impl Reply {
    /// The answer to a request.
    pub fn new(request: &Request, microseconds: u64, result: Result<(), String>) -> Self {
        let mut reply =
            Self { kind: request.kind, seq: request.seq, worker: request.worker, microseconds, ..Self::new_zeroed() };
        if let Err(why) = result {
            reply.failed = 1;
            let why: Vec<u8> = why.bytes().filter(u8::is_ascii).take(TEXT).collect();
            reply.text[..why.len()].copy_from_slice(&why);
        }
        reply
    }

    /// Whether it was done.
    pub fn result(&self) -> Result<(), String> {
        if self.failed == 0 {
            return Ok(());
        }
        let text = self.text.iter().take_while(|byte| **byte != 0).map(|byte| char::from(*byte));
        Err(text.filter(|c| !c.is_control()).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_say_why() {
        let request = Request { seq: 3, ..Request::new(kind::STOP, 7, 0) };
        let reply = Reply::new(&request, 5, Err("é no".repeat(60)));
        let read = Reply::read_from_bytes(reply.as_bytes()).unwrap();
        assert_eq!((read.seq, read.worker, read.microseconds), (3, 7, 5));
        assert!(read.result().unwrap_err().starts_with(" no no"));
        assert_eq!(Reply::new(&request, 0, Ok(())).result(), Ok(()));
    }
}
