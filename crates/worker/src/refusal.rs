//! Why a message was not executed.

use cuda_abi::error::*;
use cuda_abi::wire::Malformed;

/// What became of a message: the driver's result, or a refusal.
pub(crate) type Outcome = Result<CUresult, Refusal>;

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The client made a mistake that CUDA has an error for.
    #[error("{}", cuda_abi::error::name(*.0))]
    Code(CUresult),
    /// No libvgpu sends this: the client is broken or hostile, and is ended.
    #[error("malformed message")]
    Malformed,
    #[error("unknown operation")]
    UnknownOperation,
    #[error("a message before the first")]
    NotStarted,
    /// The worker could not be put under supervision, as it must be; it ends.
    #[error("the worker is not supervised")]
    Unsupervised,
    /// The message names a stream of this device, for which the thread has no leave yet.
    #[error("a stream of another device")]
    OtherDevice(u32),
}

impl From<Malformed> for Refusal {
    fn from(_: Malformed) -> Self {
        Refusal::Malformed
    }
}

/// Turns a driver's result into something `?` understands.
pub(crate) fn succeed(result: CUresult) -> Result<(), Refusal> {
    if result == CUDA_SUCCESS { Ok(()) } else { Err(Refusal::Code(result)) }
}
