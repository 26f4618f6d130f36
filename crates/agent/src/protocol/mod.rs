//! What shim and agent say to each other.
//!
//! The link is a stream of bytes in each direction. A frame is a word with the length of its body, and the body: a byte
//! that says what it is, and its fields ([`codec`]). The shim sends [`Down`], the agent [`Up`].
//!
//! **Streams have credits.** What a process reads and prints travels in pieces, on the same link as everything else. Whoever
//! sends on a stream may send as many bytes as the other side has granted and no more: [`WINDOW`] at first, and again
//! what was passed on. So an output that nobody reads stops the process that prints it, and nothing else: the frames of
//! other streams, answers and exits never wait behind it, and neither side ever holds more than a window of a stream.
//!
//! **Who believes whom.** The agent believes the shim, which is the host. The shim believes nothing: a body is read into
//! memory of its own once, its length is bounded by [`MAX_UP`], decoding is total ([`Up::decode`]), and whatever an
//! honest agent does not send ends the machine.

pub mod codec;
mod message;

pub use codec::{Decode, DecodeError, Reader, Writer};
pub use message::{
    Address, Answer, Down, Failure, FailureKind, Network, PidNamespace, Request, Root, RootMount, Route, Stats,
    StreamId, StreamKind, Up, VolumeKind,
};

/// Said by the agent when it is ready; a shim speaks to its own version only.
pub const VERSION: u32 = 2;
/// The longest body that the agent sends.
pub const MAX_UP: usize = 64 << 10;
/// The longest body that the shim sends: a container's specification with all its environment.
pub const MAX_DOWN: usize = 4 << 20;
/// What may be under way on a stream before the other side has granted more.
pub const WINDOW: u32 = 256 << 10;
/// The most bytes of a stream in one frame.
pub const CHUNK: usize = 32 << 10;
/// The most bytes of a file in one frame.
pub const FILE_CHUNK: usize = 256 << 10;
/// The longest text of a failure.
pub const MAX_TEXT: usize = 4 << 10;
/// The most processes that the agent lists.
pub const MAX_PIDS: usize = 8 << 10;
/// The longest message that a container leaves behind: kubelet reads no more.
pub const MAX_TERMINATION_MESSAGE: usize = 4 << 10;

/// A frame of this body.
pub fn frame(body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len()).unwrap_or(u32::MAX);
    [&length.to_le_bytes(), body].concat()
}
