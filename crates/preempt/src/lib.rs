//! Takes work off a GPU while it runs, and lets it go on later.
//!
//! A driver runs the work of several processes in time slices. [`Preemptor`] is what a scheduler can do about one worker:
//! set its slice, stop it in the middle of a kernel, and resume it. Two drivers can: NVIDIA's resource manager
//! ([`nvidia`], with its calls as data in [`rm`]) and the software GPU ([`soft`]).
//!
//! ```text
//! broker ──(messages: fixed size, descriptors)──→ preemptor process ──→ NVIDIA's resource manager
//!                                                  one thread per worker ──→ a page of a software GPU
//! ```
//!
//! The calls come from a process of our own ([`process`]), never from the worker: it holds a duplicate of the worker's
//! `/dev/nvidiactl` and the handles of its channels ([`rm::Object`]), which are checked against that descriptor each time.
//! A duplicate keeps the driver's client alive, so it is closed when the worker's process ends.

#![warn(unreachable_pub)]

pub mod messages;
pub mod nvidia;
mod preemptor;
pub mod process;
pub mod rm;
pub mod soft;
pub mod trial;

pub use preemptor::{Costs, PreemptError, Preemptor};
