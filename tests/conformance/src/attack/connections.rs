//! Connections that say nothing, or nonsense, or bring descriptors that nobody asked for.

use std::io::{IoSlice, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use cuda_abi::wire;
use idm::bootstrap::{self, Hello};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use zerocopy::IntoBytes;

use super::session::{Session, greet, socket_path};
use super::{Dice, Tally};

fn send_raw(socket: &OwnedFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(fds));
    }
    // The broker may have hung up already; that is its right.
    let _ = rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL);
}

pub(super) fn attack(dice: &mut Dice, count: u64) -> Tally {
    let mut tally = Tally::default();
    let mut open = Vec::new();
    let hello = Hello::new(wire::fingerprint(), 0);
    for number in 0..count {
        let Ok(socket) = bootstrap::connect(&socket_path()) else { continue };
        tally.sessions += 1;
        tally.messages += 1;
        let mut bytes = hello.as_bytes().to_vec();
        let null = std::fs::File::open("/dev/null").expect("/dev/null");
        match number % 10 {
            // Says nothing and stays.
            0 => {}
            1 => bytes.clear(),
            2 => bytes.truncate(dice.below(bytes.len())),
            3 => bytes.extend(dice.bytes(100)),
            4 => {
                let at = dice.below(bytes.len());
                bytes[at] ^= 1 << dice.below(8);
            }
            5 => bytes = dice.bytes(56),
            6 => bytes = vec![0xff; 100_000],
            // Seven descriptors, and two hellos.
            7 => send_raw(&socket, &bytes, &[null.as_fd(); 7]),
            8 => send_raw(&socket, &bytes, &[]),
            _ => {}
        }
        if number % 10 != 0 {
            send_raw(&socket, &bytes, &[]);
        }
        // Half of them hang up at once, half stay open.
        if dice.below(2) == 0 {
            open.push(socket);
        }
    }
    // Between broker and worker: taken, and never looked at; or spoken to without being asked.
    for number in 0..6 {
        let Ok(socket) = greet() else { continue };
        tally.sessions += 1;
        if number % 2 == 0 {
            for _ in 0..50 {
                send_raw(&socket, &dice.bytes(64), &[socket.as_fd()]);
            }
        }
        if number < 3 {
            open.push(socket);
        }
    }
    // After all of that the zone still takes a client.
    let mut session = Session::start();
    session.ask(&wire::ops::MemInfo {}, |_| ());
    tally.answered += 1;
    let _ = std::io::stdout().flush();
    drop(open);
    tally
}
