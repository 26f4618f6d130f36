//! Memory and events of other processes.
//!
//! A handle of ours is 64 bytes that hold a token, which means something to the broker alone: whether this process may
//! open it, and what it stands for, is not decided here.
#![allow(non_snake_case)]

pub(crate) mod events;
mod memory;
mod physical;
pub(crate) mod pools;

use cuda_abi::error::*;
use cuda_abi::wire::ops;

use crate::entry::say_once;

/// What the exports call.
pub(crate) mod api {
    pub(crate) use super::events::api::*;
    pub(crate) use super::memory::*;
    pub(crate) use super::physical::*;
    pub(crate) use super::pools::api::*;
}

/// What a token is for. A handle of one kind is none of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum What {
    Memory = 1,
    Event,
    Physical,
    Pool,
    Pooled,
}

pub(crate) const HANDLE: usize = 64;
const MAGIC: &[u8; 8] = b"bulkhead";
const VERSION: u8 = 1;
const TOKEN_AT: usize = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Token(ops::Token);

impl Token {
    /// The handle that a program gets.
    fn to_handle(self, what: What) -> [u8; HANDLE] {
        let mut handle = [0; HANDLE];
        handle[..8].copy_from_slice(MAGIC);
        (handle[8], handle[9]) = (VERSION, what as u8);
        handle[TOKEN_AT..TOKEN_AT + 8].copy_from_slice(&self.0[0].to_le_bytes());
        handle[TOKEN_AT + 8..TOKEN_AT + 16].copy_from_slice(&self.0[1].to_le_bytes());
        handle
    }

    /// The token of a handle that `to_handle` made; anything else is an invalid value.
    fn from_handle(handle: &[u8; HANDLE], what: What) -> CudaResult<Token> {
        let half = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| handle[at + byte]));
        let token = Token([half(TOKEN_AT), half(TOKEN_AT + 8)]);
        if token.to_handle(what) == *handle { Ok(token) } else { Err(CUDA_ERROR_INVALID_VALUE) }
    }
}

/// Says why something was not opened, where the code alone does not.
fn explain(code: CUresult) -> CUresult {
    if code == CUDA_ERROR_NOT_PERMITTED {
        say_once("the zone that this memory or event belongs to has not granted it to this zone");
    }
    code
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_are_of_one_kind_and_nothing_else_passes_for_one() {
        let token = Token([0x0123_4567_89ab_cdef, u64::MAX - 7]);
        let handle = token.to_handle(What::Memory);
        assert_eq!(Token::from_handle(&handle, What::Memory), Ok(token));
        assert_eq!(Token::from_handle(&handle, What::Event), Err(CUDA_ERROR_INVALID_VALUE));
        assert!(Token::from_handle(&[0; HANDLE], What::Memory).is_err());
        for at in (0..TOKEN_AT).chain(TOKEN_AT + 16..HANDLE) {
            let mut altered = handle;
            altered[at] ^= 1;
            assert!(Token::from_handle(&altered, What::Memory).is_err(), "{at}");
        }
    }
}
