//! What broker, workers, plugins and commands say to each other, and the words they share: names, limits, sizes, pages of
//! statistics, descriptors in packets.
//!
//! Workers talk over a `SOCK_SEQPACKET` pair made by the broker ([`messages`] has the messages, [`link`] the worker's end).
//! The broker presumes the worker fallen: a message can only ever change the account of the worker it came from.
//! Operators talk JSON over `admin.sock`, which only the broker's own user may open ([`admin`]).
#![warn(missing_docs, unreachable_pub)]
#![cfg_attr(not(test), warn(clippy::cast_possible_truncation, clippy::cast_possible_wrap, clippy::cast_sign_loss))]

pub mod admin;
pub mod atomic_file;
pub mod backend;
pub mod checkpoint;
pub mod closing;
pub mod dispatch;
pub mod driver_filter;
pub mod duration;
pub mod elf;
pub mod grant;
pub mod histogram;
pub mod host_defaults;
pub mod jail;
pub mod kernel_module;
pub mod link;
pub mod lock;
pub mod messages;
pub mod meter;
pub mod mig;
pub mod name;
pub mod namespaces;
pub mod packet;
pub mod process;
pub mod region;
pub mod rendezvous;
pub mod size;
pub mod spawner;
pub mod state_dir;
pub mod statistics;
pub mod suspend;
pub mod topology;
pub mod zone;

pub use cuda_abi::env_vars;
pub use link::{Assignment, BrokerLink, Denied, Imported, NotShared};
pub use name::ZoneName;
pub use statistics::WorkerStats;
pub use zone::{ZoneLimits, ZoneSettings};
