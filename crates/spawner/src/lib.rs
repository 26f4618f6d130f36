//! The privileged part: starts and ends processes, confines them, and takes descriptors out of them.
//!
//! ```text
//! broker ── Remote ──(fixed messages, descriptors)── serve ──→ Local ──→ processes, cgroups
//! ```
//!
//! [`Local`] does the work. For an ordinary user it lives in the broker's own process. Where the node runs as root it lives
//! in a process that does nothing else ([`serve`]), and the broker, which has no privilege, speaks to it ([`Remote`]). The
//! messages are few and of fixed size ([`messages`]); an attacker that has taken over the broker can start, confine and end workers
//! of this node, as the operator configured them, and nothing else.

#![forbid(unsafe_code)]
#![warn(unreachable_pub)]

mod command;
mod local;
pub mod messages;
mod remote;
mod server;
mod settings;

pub use local::Local;
pub use remote::Remote;
pub use server::{ServeError, Served, serve};
pub use settings::{Helper, Settings, broker_uid, exporter_uid};
