//! The filter between a worker and NVIDIA's kernel driver: which requests reach the driver, once the worker may have fallen.
//!
//! Of a request the driver looks at number and size alone, whatever its kind and direction say, so the list of what is
//! allowed ([`requests`]) compares all of it, and everything else is refused. It is data, by [`Branch`] of the driver.
//!
//! A filter sees no memory, so that it cannot look behind the addresses of a call. A worker that serves a client is therefore under
//! supervision ([`supervisor`]): another process copies the arguments of calls that allocate, free and control objects, decides on
//! the copy ([`decide`], with [`rules`] as data), and makes the call itself.

mod branch;
pub mod decide;
pub mod image;
mod notify;
mod program;
pub mod requests;
pub mod rules;
mod seal;
pub mod supervisor;

pub use branch::{Branch, UnknownBranch};
pub(crate) use notify::REQUESTS as LISTENER_REQUESTS;
pub use program::install_refusing;
pub use seal::Seal;
pub(crate) use seal::{GuardEnd, pair, supervise};
