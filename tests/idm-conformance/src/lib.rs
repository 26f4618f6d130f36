//! What every transport must do, stated once.
//!
//! A transport brings a client together with a far side that runs [`serve`]: another thread, another process, another
//! machine's guest. [`SUITE`] drives the client; each behaviour panics when it finds something wrong.
#![warn(unreachable_pub)]
#![forbid(unsafe_code)]

mod far_side;
mod suite;

pub use far_side::serve;
pub use suite::SUITE;

use idm::Client;
use idm::region::Layout;

/// Brings two sides together.
pub trait Transport {
    fn name(&self) -> &str;
    /// A client whose far side was made with `layout` and runs [`serve`].
    fn connect(&self, layout: Layout) -> Connection;
}

/// A client, and what keeps its far side going; dropping `far_side` ends it.
pub struct Connection {
    pub client: Client,
    pub far_side: Box<dyn std::any::Any>,
}

/// One behaviour.
pub struct Behaviour {
    pub name: &'static str,
    pub check: fn(&dyn Transport),
}

/// What the far side understands.
pub mod op {
    /// Post: adds the payload's first u64 to the sum, and mixes it into the digest of the order.
    pub const ADD: u16 = 1;
    /// Call or block: answers with (sum, digest).
    pub const READ: u16 = 2;
    /// Call or block: answers with the payload; the status is the header's tag.
    pub const ECHO: u16 = 3;
    /// Call: inverts the bytes of a bulk range, given as (offset, len); status 1 if the range is bad.
    pub const INVERT: u16 = 4;
    /// Block: does not answer before `RELEASE` was posted.
    pub const HOLD: u16 = 5;
    pub const RELEASE: u16 = 6;
    /// Post: sets a completion word, given as (index, value).
    pub const FLAG: u16 = 7;
    /// Post: sets the status word.
    pub const STATUS: u16 = 8;
    /// Post: the far side ends without a word.
    pub const DIE: u16 = 9;
}

/// Mixes a value into a digest that depends on the order.
pub(crate) fn mix(digest: u64, value: u64) -> u64 {
    (digest.rotate_left(5) ^ value).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

pub(crate) fn words<const N: usize>(payload: &[u8]) -> Option<[u64; N]> {
    use zerocopy::FromBytes;
    <[u64; N]>::read_from_prefix(payload).ok().map(|(words, _)| words)
}
