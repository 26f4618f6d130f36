//! idm (inter-domain messages) moves messages between two processes that do not trust each other.
//!
//! It knows no GPU. The *server* (worker) is trusted by the client; the *client* can write anything anywhere in the
//! region at any time, and the server survives it: what it reads is copied once, checked as the copy, and a broken rule is
//! an error that ends the client.
//!
//! * `region`: the shared memory and its layout. The only module that dereferences addresses.
//! * `ring`: posted messages, in one total order.
//! * `lane`: a client thread's place to await answers.
//! * `doorbell`: spinning while it pays, then sleeping; `gone` ends every wait when the peer dies.
//! * `bulk`: payloads too long for the ring. `flags`: completion words.
//! * `bootstrap`: the messages and descriptors that bring two sides together; `peer` notices when one leaves.
//! * `client`, `server`: one side each, put together.

#![warn(missing_docs, unreachable_pub)]
#![cfg_attr(not(test), warn(clippy::cast_possible_truncation, clippy::cast_possible_wrap, clippy::cast_sign_loss))]
// `next` on the receiving ends lends what it returns, which an Iterator cannot.
#![allow(clippy::should_implement_trait)]
// The models use only the parts that synchronise.
#![cfg_attr(loom, allow(dead_code, missing_docs, unreachable_pub, unused_imports))]

mod aligned;
#[cfg(not(loom))]
pub mod bootstrap;
#[cfg(not(loom))]
pub mod bulk;
#[cfg(not(loom))]
mod client;
pub mod doorbell;
#[cfg(not(loom))]
pub mod flags;
mod gone;
mod index;
pub mod lane;
#[cfg(all(test, loom))]
mod models;
#[cfg(not(loom))]
pub mod peer;
pub mod region;
pub mod ring;
#[cfg(not(loom))]
mod server;
mod spin;
mod sync;

#[cfg(not(loom))]
pub use client::Client;
pub use gone::{Gone, PeerGone};
#[cfg(not(loom))]
pub use server::Server;
