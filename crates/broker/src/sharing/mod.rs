//! What zones share with each other: who may ([`grants`]), what is offered and open ([`exports`]), and how clients find it
//! by name ([`rendezvous`]). Each of them decides alone; [`messages`] and [`granting`] do what follows.

mod exports;
mod granting;
mod grants;
mod messages;
mod rendezvous;

pub(crate) use exports::{Exports, ShareError};
pub(crate) use grants::{GrantError, Grants, seconds_now};
pub(crate) use rendezvous::Rendezvous;
pub use rendezvous::Strangers;

use control::admin::SharingStatus;
use control::closing::Foreign;

pub(crate) struct Sharing {
    pub grants: Grants,
    pub exports: Exports,
    pub rendezvous: Rendezvous<Foreign>,
}

impl Sharing {
    pub(crate) fn new() -> Self {
        Self { grants: Grants::default(), exports: Exports::new(), rendezvous: Rendezvous::new() }
    }

    /// What an operator is told.
    pub(crate) fn status(&self) -> SharingStatus {
        let mut status = self.exports.status();
        self.rendezvous.count(&mut status);
        status
    }
}
