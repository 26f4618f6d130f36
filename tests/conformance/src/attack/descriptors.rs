//! Descriptors for pinned memory that are no such thing.

use std::os::fd::{AsFd, OwnedFd};

use cuda_abi::plan;
use cuda_abi::wire::Typed;
use cuda_abi::wire::ops::{CopySync, HostMap, HostUnmap};
use idm::bootstrap::{self, Handover};
use rustix::fs::{MemfdFlags, SealFlags};

use super::session::{Back, Session};
use super::{Dice, Tally};

const PAGE: u64 = 4096;

/// A memfd with all its pages, as an honest client sends it.
pub(super) fn memfd(len: u64, seals: SealFlags) -> OwnedFd {
    let file = sparse(len, SealFlags::empty());
    // Written, not only allocated: those are holes to who asks.
    for at in (0..len).step_by(PAGE as usize) {
        rustix::io::pwrite(&file, &[0], at).expect("a page");
    }
    rustix::fs::fcntl_add_seals(&file, seals).expect("its seals");
    file
}

fn sparse(len: u64, seals: SealFlags) -> OwnedFd {
    let file = rustix::fs::memfd_create("attack", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).expect("a memfd");
    rustix::fs::ftruncate(&file, len).expect("its size");
    rustix::fs::fcntl_add_seals(&file, seals).expect("its seals");
    file
}

fn map(session: &mut Session, file: &OwnedFd, address: u64, len: u64) -> Back {
    if bootstrap::send(&session.socket, &Handover::default(), &[file.as_fd()]).is_err() {
        return Back::Ended;
    }
    session.try_ask(&HostMap { address, bytes: len })
}

pub(super) fn attack(dice: &mut Dice, count: u64) -> Tally {
    let mut tally = Tally::default();
    let good = memfd(4 * PAGE, SealFlags::SHRINK);
    let (pipe, _writer) = std::io::pipe().expect("a pipe");
    let bad: Vec<(&str, OwnedFd)> = vec![
        ("/dev/null", std::fs::File::open("/dev/null").expect("/dev/null").into()),
        ("/dev/zero", std::fs::File::open("/dev/zero").expect("/dev/zero").into()),
        ("a directory", std::fs::File::open("/").expect("/").into()),
        ("a pipe", pipe.into()),
        ("a memfd that can shrink", memfd(4 * PAGE, SealFlags::GROW)),
        ("a memfd that is too small", memfd(PAGE, SealFlags::SHRINK)),
        ("an empty memfd", memfd(0, SealFlags::SHRINK)),
        ("a memfd without pages", sparse(1 << 40, SealFlags::SHRINK)),
    ];
    let mut session = Session::start();
    tally.sessions += 1;
    for (what, file) in &bad {
        tally.messages += 1;
        match map(&mut session, file, plan::HOST_BASE, 4 * PAGE) {
            Back::Answer { status, .. } => {
                assert_ne!(status, 0, "{what} was mapped");
                tally.answered += 1;
            }
            other => panic!("{what}: {other:?}"),
        }
    }
    // A good one in a bad place.
    for _ in 0..count {
        let any = dice.roll();
        let (address, len) = (dice.boundary(), dice.pick(&[0, 1, PAGE, 4 * PAGE, 8 * PAGE, u64::MAX, any]));
        tally.messages += 1;
        match map(&mut session, &good, address, len) {
            Back::Answer { status: 0, .. } => {
                let fits = plan::in_host(address, len) && len <= 4 * PAGE;
                assert!(fits, "mapped {len} bytes at {address:#x}");
                session.try_ask(&HostUnmap { address, bytes: len });
            }
            Back::Answer { .. } => tally.answered += 1,
            other => panic!("{address:#x}: {other:?}"),
        }
    }
    // A good one twice in the same place; unmapped in parts; and used after it is gone.
    let base = plan::HOST_BASE + (1 << 30);
    let status = |back: Back| match back {
        Back::Answer { status, .. } => status,
        other => panic!("{other:?}"),
    };
    assert_eq!(status(map(&mut session, &good, base, 4 * PAGE)), 0);
    assert_ne!(status(map(&mut session, &good, base + PAGE, PAGE)), 0);
    assert_ne!(status(session.try_ask(&HostUnmap { address: base, bytes: PAGE })), 0);
    // Holes read as zeroes; they do not fault.
    let punch = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(&good, punch, 0, 4 * PAGE).expect("a hole");
    let block = session.alloc(4 * PAGE);
    let copy = CopySync { destination: block, source: base, bytes: 4 * PAGE, stream: Typed::NONE };
    assert_eq!(status(session.try_ask(&copy)), 0);
    assert_eq!(status(session.try_ask(&HostUnmap { address: base, bytes: 4 * PAGE })), 0);
    assert_ne!(status(session.try_ask(&copy)), 0);
    // No descriptor at all, and two at once.
    for fds in [0, 2] {
        let mut session = Session::start();
        tally.sessions += 1;
        if fds == 2 {
            let two = [good.as_fd(), good.as_fd()];
            let _ = rustix::net::sendmsg(
                &session.socket,
                &[std::io::IoSlice::new(zerocopy::IntoBytes::as_bytes(&HandoverBytes([0x6446_6b42, 0])))],
                &mut ancillary(&two, &mut [std::mem::MaybeUninit::uninit(); 64]),
                rustix::net::SendFlags::NOSIGNAL,
            );
        }
        match session.try_ask(&HostMap { address: base, bytes: 4 * PAGE }) {
            Back::Answer { status, .. } => assert_ne!(status, 0),
            Back::Nothing => tally.stuck += 1,
            Back::Ended => tally.ended += 1,
        }
    }
    tally
}

/// The bytes of a `Handover`, which cannot be sent with the wrong number of descriptors otherwise.
#[derive(zerocopy::IntoBytes, zerocopy::Immutable)]
#[repr(C)]
struct HandoverBytes([u32; 2]);

fn ancillary<'a, 'b>(
    fds: &'a [std::os::fd::BorrowedFd<'a>],
    space: &'b mut [std::mem::MaybeUninit<u8>; 64],
) -> rustix::net::SendAncillaryBuffer<'b, 'a, 'a> {
    let mut control = rustix::net::SendAncillaryBuffer::new(space);
    control.push(rustix::net::SendAncillaryMessage::ScmRights(fds));
    control
}
