//! In place of `guest`, in a library that is built without Xen: no program is in a guest.

use cuda_abi::error::CUDA_ERROR_NO_DEVICE;
use idm::bootstrap::Hello;

use super::{Failure, Link, Session};

pub(crate) fn is_possible() -> bool {
    false
}

pub(crate) fn promised_version() -> Option<u32> {
    None
}

/// Only a program whose environment asks for Xen comes here.
pub(crate) fn connect(_hello: &Hello) -> Result<(idm::Client, Link), Failure> {
    Err(Failure { code: CUDA_ERROR_NO_DEVICE, text: "this libcuda.so.1 is built without Xen".to_owned() })
}

pub(crate) fn is_leaving() -> bool {
    false
}

pub(crate) fn print_output(_session: &'static Session) {}

#[inline]
pub(crate) fn print_at_wait(_session: &Session) {}
