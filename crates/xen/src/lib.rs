//! Xen: the tenant is a virtual machine, and the driver domain has the GPU.
//!
//! * `sys`: the kernel's devices, one file each: grants (`gntalloc`, `gntdev`), event channels (`evtchn`, `endings`), and
//!   what disks of guests are made of (`loop_device`).
//! * `store`: xenstore, over its device or its socket.
//! * `card`: what a client in a guest leaves for the driver domain; `guest` and `host` are the two sides of that.
//! * `link`: how a worker gets pages of its client's that it must not choose itself.
//! * `ring`: bytes through memory that the other domain can write at any time.
//! * `talk`: a conversation with the broker, in place of a worker; `names` is who has them in a guest.
//! * `admission`: which domain is which zone.
//! * `doorbell`: idm's doorbell over an event channel.
//! * `counts`: how often this process asked the hypervisor for something.

#![warn(unreachable_pub)]

pub mod admission;
pub mod card;
pub mod counts;
pub mod doorbell;
pub mod guest;
pub mod host;
pub mod link;
pub mod names;
pub mod ring;
pub mod store;
pub mod sys;
pub mod talk;

/// A domain's number. The hypervisor gives it, and vouches for it: grants and event channels name no one else.
pub type DomainId = u16;

/// Grants are made of pages of this size.
pub const PAGE: usize = 4096;
