//! Guests of Xen: what is in them, and how their images are made.
//!
//! An image is a kernel and a root file system in one archive that the kernel unpacks into memory. Both come from
//! Debian's packages and our own build, and nothing else goes in: the same packages and the same libraries make the
//! same bytes, wherever and whenever they are built.
#![forbid(unsafe_code)]
#![warn(unreachable_pub)]

pub mod closure;
pub mod cpio;
pub mod deb;
pub mod domain;
pub mod elf;
pub mod image;
pub mod kernel;
pub mod link;
pub mod packages;
pub mod tenant;
pub mod tree;
