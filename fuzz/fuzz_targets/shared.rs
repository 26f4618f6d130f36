//! Sends arbitrary bytes, with arbitrary numbers of descriptors, the way a peer would.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::AsFd;

use idm::bootstrap::{self, Message};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};

pub fn receive<T: Message>(bytes: &[u8], descriptors: u8) -> Option<T> {
    let (near, far) = bootstrap::pair().expect("socket pair");
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(7))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds = vec![near.as_fd(); usize::from(descriptors % 8)];
    if !fds.is_empty() {
        assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
    }
    rustix::net::sendmsg(&near, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL).ok()?;
    drop(fds);
    drop(near);
    let (message, fds) = bootstrap::recv::<T>(&far).ok()?;
    assert!(bytes.len() == size_of::<T>() && message.is_valid());
    assert_eq!(fds.len(), message.descriptors());
    Some(message)
}

/// Puts the right size and the right start in front, most of the time: otherwise nearly everything is refused at once.
pub fn shape<T: Message>(good: &T, mut bytes: Vec<u8>, kind: u8) -> Vec<u8> {
    let start = good.as_bytes();
    if kind & 1 == 0 {
        bytes.resize(start.len(), 0);
    }
    if kind & 2 == 0 && bytes.len() >= 8 {
        bytes[..8].copy_from_slice(&start[..8]);
    }
    bytes
}
