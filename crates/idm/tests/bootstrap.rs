//! The bootstrap over real sockets, with everything that can be wrong with a message.
#![cfg(not(loom))]

use std::io::{IoSlice, Read, Seek, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use idm::bootstrap::{
    self, Attach, BootstrapError, HELLO_NEEDS_FRESH_WORKER, Hello, MAX_FDS, Message, VERSION, Welcome, WelcomeStatus,
};
use idm::region::{Layout, Placement};
use idm::{Client, Server};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use zerocopy::{FromBytes, IntoBytes};

/// Sends what no well-behaved peer would.
fn send_raw(socket: &OwnedFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        assert!(control.push(SendAncillaryMessage::ScmRights(fds)));
    }
    rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::empty()).unwrap();
}

#[test]
fn messages_arrive_with_their_descriptors() {
    let (a, b) = bootstrap::pair().unwrap();
    let hello = Hello::new(42, HELLO_NEEDS_FRESH_WORKER);
    bootstrap::send(&a, &hello, &[]).unwrap();
    let (got, fds) = bootstrap::recv::<Hello>(&b).unwrap();
    assert_eq!((got, fds.len()), (hello, 0));

    let mut file = tempfile();
    file.write_all(b"through the socket").unwrap();
    bootstrap::send(&b, &Welcome::new(WelcomeStatus::Ok, "come in"), &[file.as_fd()]).unwrap();
    let (got, mut fds) = bootstrap::recv::<Welcome>(&a).unwrap();
    assert_eq!((got.status(), got.text().as_str()), (Some(WelcomeStatus::Ok), "come in"));
    let fd = fds.pop().unwrap();
    assert!(rustix::io::fcntl_getfd(&fd).unwrap().contains(rustix::io::FdFlags::CLOEXEC));
    let mut file = std::fs::File::from(fd);
    let mut text = String::new();
    file.rewind().unwrap();
    file.read_to_string(&mut text).unwrap();
    assert_eq!(text, "through the socket");

    bootstrap::send(&b, &Welcome::new(WelcomeStatus::ZoneFull, "full"), &[]).unwrap();
    assert_eq!(bootstrap::recv::<Welcome>(&a).unwrap().1.len(), 0);
}

fn tempfile() -> std::fs::File {
    std::fs::File::from(rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::CLOEXEC).unwrap())
}

#[test]
fn attach_brings_a_region() {
    let (a, b) = bootstrap::pair().unwrap();
    let server = Server::create(Layout::default(), Placement::Anywhere).unwrap();
    bootstrap::send(&a, &Attach::new(*server.layout(), [7; 16]), server.fd().as_slice()).unwrap();
    let (attach, mut fds) = bootstrap::recv::<Attach>(&b).unwrap();
    let client = Client::attach(fds.pop().unwrap(), attach.layout, Placement::Anywhere).unwrap();
    assert_eq!(attach.extra, [7; 16]);
    server.set_status(11);
    assert_eq!(client.status(), 11);
}

#[test]
fn wrong_sizes_and_descriptors_are_refused_and_closed() {
    let (a, b) = bootstrap::pair().unwrap();
    let hello = Hello::new(1, 0);
    let bytes = hello.as_bytes();
    let (passed, witness) = bootstrap::pair().unwrap();

    send_raw(&a, &bytes[..bytes.len() - 1], &[]);
    assert!(matches!(bootstrap::recv::<Hello>(&b), Err(BootstrapError::Size { .. })));
    send_raw(&a, &[bytes, &[0]].concat(), &[]);
    assert!(matches!(bootstrap::recv::<Hello>(&b), Err(BootstrapError::Truncated)));
    for count in [1, 2, MAX_FDS] {
        send_raw(&a, bytes, &vec![passed.as_fd(); count]);
        let got = bootstrap::recv::<Hello>(&b);
        assert!(matches!(got, Err(BootstrapError::Descriptors { expected: 0, actual }) if actual == count));
    }
    send_raw(&a, bytes, &[passed.as_fd(); MAX_FDS + 4]);
    assert!(matches!(bootstrap::recv::<Hello>(&b), Err(BootstrapError::Truncated)));
    send_raw(&a, Welcome::new(WelcomeStatus::Ok, "").as_bytes(), &[]);
    assert!(matches!(bootstrap::recv::<Welcome>(&b), Err(BootstrapError::Descriptors { expected: 1, actual: 0 })));
    send_raw(&a, Welcome::new(WelcomeStatus::NoWorker, "").as_bytes(), &[passed.as_fd()]);
    assert!(matches!(bootstrap::recv::<Welcome>(&b), Err(BootstrapError::Descriptors { expected: 0, actual: 1 })));
    assert!(matches!(
        bootstrap::send(&a, &hello, &[a.as_fd()]),
        Err(BootstrapError::Descriptors { expected: 0, actual: 1 })
    ));

    // A refused message must not leave descriptors behind: the witness hangs up only when every copy is closed.
    drop(passed);
    let hung_up = bootstrap::recv_within::<Hello>(&witness, Duration::from_secs(60));
    assert!(matches!(hung_up, Err(BootstrapError::Closed)));

    drop(a);
    assert!(matches!(bootstrap::recv::<Hello>(&b), Err(BootstrapError::Closed)));
    assert!(matches!(bootstrap::send(&b, &hello, &[]), Err(BootstrapError::Closed)));
}

#[test]
fn silence_times_out() {
    let (a, _b) = bootstrap::pair().unwrap();
    let got = bootstrap::recv_within::<Hello>(&a, Duration::from_millis(5));
    assert!(matches!(got, Err(BootstrapError::Timeout)));
}

#[test]
fn validity() {
    let hello = Hello::new(1, 0);
    assert!(hello.is_valid());
    assert!(!Hello { magic: 1, ..hello }.is_valid());
    assert!(!Hello { flags: 1 << 31, ..hello }.is_valid());
    assert!(!Hello { reserved: [0, 0, 0, 1], ..hello }.is_valid());
    // Another version must stay readable, so that it can be answered.
    assert!(Hello { version: VERSION + 1, flags: 1 << 31, ..hello }.is_valid());

    let welcome = Welcome::new(WelcomeStatus::Refused, "no\u{1b}[31m");
    assert!(welcome.is_valid());
    assert_eq!(welcome.text(), "no[31m");
    assert!(!Welcome { status: 99, ..welcome }.is_valid());
    assert!(!Welcome { magic: 0, ..welcome }.is_valid());
    assert!(!Welcome { version: VERSION + 1, ..welcome }.is_valid());
    let other = Welcome::new(WelcomeStatus::VersionMismatch, "old");
    assert!(Welcome { version: VERSION + 1, ..other }.is_valid());
    let long = Welcome::new(WelcomeStatus::Ok, &"ä".repeat(100));
    assert_eq!(long.text(), "ä".repeat(64));

    let attach = Attach::new(Layout::default(), [0; 16]);
    assert!(attach.is_valid());
    assert!(!Attach { version: 2, ..attach }.is_valid());
    assert!(!Attach { layout: Layout { lanes: 0, ..Layout::default() }, ..attach }.is_valid());
}

/// What version 0.1.0 sent and understood: a client of any version must be able to understand why it is refused.
#[test]
fn messages_of_the_first_version_are_read_for_ever() {
    let mut hello = Vec::from(*b"BkHi\x01\0\0\0");
    hello.extend(0x1122_3344_5566_7788_u64.to_le_bytes());
    hello.extend([0, 0, 0, 0, 0x39, 5, 0, 0]);
    hello.extend([0; 32]);
    let read = Hello::read_from_bytes(&hello).unwrap();
    assert!(read.is_valid());
    assert_eq!((read.version, read.abi_fingerprint, read.pid), (1, 0x1122_3344_5566_7788, 1337));

    let text = "client library and proxy are of different versions";
    let mut welcome = Vec::from(*b"BkWe\x01\0\0\0\x01\0\0\0\0\0\0\0");
    welcome.extend(text.bytes().chain(std::iter::repeat(0)).take(128));
    let read = Welcome::read_from_bytes(&welcome).unwrap();
    assert!(read.is_valid());
    assert_eq!((read.status(), read.text().as_str()), (Some(WelcomeStatus::VersionMismatch), text));
    // And what is sent today begins in the same way.
    let sent = Welcome::new(WelcomeStatus::VersionMismatch, text);
    assert_eq!(sent.as_bytes()[8..], welcome[8..]);
    assert_eq!(sent.as_bytes()[..4], welcome[..4]);
}
