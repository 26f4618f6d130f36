//! What tests of all rooms share.
//!
//! * `skip`: what cannot be tried on this machine is listed, not passed over in silence.
//! * `wait`: for something that must come true.
//! * `directory`: temporary directories with short paths.
//! * `random`: numbers that look random, whose seed a failing test prints.
//! * `process`: signals, and processes whose log is JSON.
//! * `user`: other users of the machine.
//! * `node`: a proxy in a directory of its own.
//! * `page`: parts of pages that are generated.
//! * `exact`: floating-point arithmetic as IEEE 754 defines it (feature `exact`).
#![forbid(unsafe_code)]
#![warn(unreachable_pub)]

mod directory;
#[cfg(feature = "exact")]
pub mod exact;
mod node;
mod page;
mod process;
mod random;
mod skip;
mod user;
mod wait;

pub use directory::{Directory, directory};
pub use node::{Node, bulkhead};
pub use page::fresh_part;
pub use process::{Logged, is_alive, signal};
pub use random::Random;
pub use rustix::process::Signal;
pub use skip::{NOT_TRIED, is_root, not_tried};
pub use user::{NOBODY, as_user};
pub use wait::{TIMEOUT, until, until_listening};
