//! What broker and workers say to each other, and what an operator says to the broker.
//!
//! Workers talk over a `SOCK_SEQPACKET` pair made by the broker ([`wire`] has the messages, [`link`] the worker's end).
//! The broker presumes the worker fallen: a message can only ever change the account of the worker it came from.
//! Operators talk JSON over `admin.sock`, which only the broker's own user may open ([`admin`]).

pub mod admin;
pub mod grant;
pub mod link;
pub mod meeting;
pub mod name;
pub mod rest;
pub mod wire;
pub mod zone;

pub use crate::statistics::WorkerStats;
pub use link::{Assignment, BrokerLink, Denied, Imported, NotShared};
pub use name::ZoneName;
pub use zone::{ZoneLimits, ZoneSettings};
