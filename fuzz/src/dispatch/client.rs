//! The hostile client's end: its lanes, and the socket through which descriptors go.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use cuda_abi::wire::Op;
use idm::bootstrap::{self, Handover};
use idm::lane::Lane;
use rustix::fs::{MemfdFlags, SealFlags};

use super::Message;
use crate::witness::State;

pub(super) struct Client {
    region: idm::Client,
    lane: Lane,
    socket: OwnedFd,
}

impl Client {
    pub(super) fn new(region: idm::Client, socket: OwnedFd) -> Self {
        let lane = region.lane().expect("a lane");
        rustix::io::ioctl_fionbio(&socket, true).expect("a socket");
        Self { region, lane, socket }
    }

    /// What comes before the first message: where output goes.
    pub(super) fn send_output(&self) {
        let file = rustix::io::dup(rustix::stdio::stdout()).expect("standard output");
        self.send_file(&file);
    }

    /// Where the socket is full, there are enough already.
    fn send_file(&self, file: &OwnedFd) {
        let _ = bootstrap::send(&self.socket, &Handover::default(), &[file.as_fd()]);
    }

    /// Does what must be done for a message that the worker would wait for otherwise.
    pub(super) fn prepare(&self, message: &mut Message) {
        match Op::from_code(message.op) {
            Some(Op::HostMap) => self.send_file(&pages()),
            // Nobody ever answers where nothing is due.
            Some(Op::NextCallback) if !State::look().take_due() => message.op = Op::MemInfo as u16,
            _ => {}
        }
    }

    /// False: it is no message.
    pub(super) fn send(&mut self, message: &Message) -> bool {
        let fill = |slot: &mut [u8]| slot.copy_from_slice(&message.payload);
        let len = message.payload.len();
        if message.posted {
            self.region.producer().post(message.op, 0, message.tag, len, fill).is_ok()
        } else {
            self.lane.begin_call(message.op, 0, message.tag, len, fill).is_ok()
        }
    }

    /// What was answered, if it was.
    pub(super) fn answer(&mut self, message: &Message) -> Option<&[u8]> {
        if message.posted || !self.lane.has_answer() {
            return None;
        }
        self.lane.finish(Some(Duration::ZERO)).ok().map(|reply| reply.payload)
    }
}

/// Memory that a client may share: two pages, touched, of a size that stays.
fn pages() -> OwnedFd {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = rustix::fs::memfd_create("pinned", flags).expect("a file");
    rustix::io::write(&file, &[0; 8192]).expect("two pages");
    rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL).expect("seals");
    file
}
