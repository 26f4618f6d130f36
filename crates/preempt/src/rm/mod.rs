//! The calls of NVIDIA's resource manager (RM) that preemption needs, and no others.
//!
//! All of them are ioctls on `/dev/nvidiactl`. Objects form a tree below a *client*; a handle is a number that the client
//! chose. RM checks that the client of a call belongs to the open file that it comes through, so a duplicate of a worker's
//! descriptor is what gives a right over its objects, and over no others.

mod abi;
mod call;
mod driver;
mod object;

pub(crate) use abi::Timeslice;
pub use abi::{Alloc, AllocWithRights, Control, DisableChannels, Free, HandleInfo, MAX_CHANNELS, escape};
pub use call::{Calls, RmError, Status};
pub use driver::{DriverVersion, KnownDriver, UnknownDriver};
pub use object::{Class, Object};

/// Major and minor number of `/dev/nvidiactl`, the same on every machine.
pub const CONTROL_DEVICE: (u32, u32) = (195, 255);
