//! In place of `growth`, in a library that is built without Xen: the staging area has its full size from the start.

use crate::session::Session;

pub fn grow(_session: &Session) -> bool {
    false
}

#[inline]
pub fn count_copied(_bytes: usize) {}
