//! The messages of the bootstrap, all of them.

use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use crate::region::Layout;

/// Version of these messages. A broker answers a `Hello` of another version with `VersionMismatch`; their first two
/// fields and the size of `Hello` and `Welcome` never change.
pub const VERSION: u32 = 1;

const HELLO_MAGIC: u32 = u32::from_le_bytes(*b"BkHi");
const WELCOME_MAGIC: u32 = u32::from_le_bytes(*b"BkWe");
const ATTACH_MAGIC: u32 = u32::from_le_bytes(*b"BkAt");

/// Something that can be sent whole over a seqpacket socket.
pub trait Message: FromBytes + FromZeros + IntoBytes + Immutable + KnownLayout {
    /// Whether the fields make sense. Called on a private copy, before anything else looks at it.
    fn is_valid(&self) -> bool;
    /// How many descriptors come with this very message.
    fn descriptors(&self) -> usize;
}

/// `Hello::flags`: the client's driver variables differ from the node's, so a pre-started worker will not do.
pub const HELLO_NEEDS_FRESH_WORKER: u32 = 1 << 0;
/// `Hello::flags`: the client brings the region: the worker waits for what its transport offers, and there is no `Attach`.
pub const HELLO_BRINGS_REGION: u32 = 1 << 1;
const HELLO_FLAGS: u32 = HELLO_NEEDS_FRESH_WORKER | HELLO_BRINGS_REGION;

/// Client → broker: the first message. It names no zone: the socket does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Hello {
    /// Tells this message from others.
    pub magic: u32,
    /// The protocol's.
    pub version: u32,
    /// Of the API table that the client was built with; client and worker must agree on it.
    pub abi_fingerprint: u64,
    /// `HELLO_*`, or 0.
    pub flags: u32,
    /// As the client sees itself; for messages to people only.
    pub pid: u32,
    /// 0.
    pub reserved: [u64; 4],
}

impl Hello {
    /// The first message of a client.
    pub fn new(abi_fingerprint: u64, flags: u32) -> Self {
        let pid = std::process::id();
        Self { magic: HELLO_MAGIC, version: VERSION, abi_fingerprint, flags, pid, reserved: [0; 4] }
    }
}

impl Message for Hello {
    /// True also for another version, which deserves an answer; its other fields mean nothing to us then.
    fn is_valid(&self) -> bool {
        let known = self.flags & !HELLO_FLAGS == 0 && self.reserved == [0; 4];
        self.magic == HELLO_MAGIC && (self.version != VERSION || known)
    }

    fn descriptors(&self) -> usize {
        0
    }
}

/// How the broker answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum WelcomeStatus {
    /// A worker is yours; the descriptor is the socket to it.
    Ok = 0,
    /// The client was built from another table, or speaks another version.
    VersionMismatch = 1,
    /// The zone has as many clients as it may have.
    ZoneFull = 2,
    /// No worker could be started.
    NoWorker = 3,
    /// The broker is about to end.
    ShuttingDown = 4,
    /// The zone may not have this; the text says what.
    Refused = 5,
}

impl WelcomeStatus {
    /// What a number on the wire means, if anything.
    pub fn from_wire(value: u32) -> Option<Self> {
        let all =
            [Self::Ok, Self::VersionMismatch, Self::ZoneFull, Self::NoWorker, Self::ShuttingDown, Self::Refused];
        all.into_iter().find(|status| *status as u32 == value)
    }
}

const TEXT: usize = 128;

/// Broker → client: the answer to `Hello`, with one descriptor if the status is `Ok`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Welcome {
    /// Tells this message from others.
    pub magic: u32,
    /// The protocol's.
    pub version: u32,
    /// A [`WelcomeStatus`].
    pub status: u32,
    /// 0.
    pub reserved: u32,
    /// For a person, filled up with zeroes.
    pub text: [u8; TEXT],
}

impl Welcome {
    /// An answer, with words for people.
    pub fn new(status: WelcomeStatus, text: &str) -> Self {
        let mut bytes = [0; TEXT];
        let mut len = text.len().min(TEXT);
        while !text.is_char_boundary(len) {
            len -= 1;
        }
        bytes[..len].copy_from_slice(&text.as_bytes()[..len]);
        Self { magic: WELCOME_MAGIC, version: VERSION, status: status as u32, reserved: 0, text: bytes }
    }

    /// What was answered, if this version knows it.
    pub fn status(&self) -> Option<WelcomeStatus> {
        WelcomeStatus::from_wire(self.status)
    }

    /// The text, without control characters: it ends up on a terminal.
    pub fn text(&self) -> String {
        let end = self.text.iter().position(|byte| *byte == 0).unwrap_or(TEXT);
        String::from_utf8_lossy(&self.text[..end]).chars().filter(|c| !c.is_control()).collect()
    }
}

impl Message for Welcome {
    fn is_valid(&self) -> bool {
        let magic = self.magic == WELCOME_MAGIC && self.reserved == 0;
        let mismatch = self.status() == Some(WelcomeStatus::VersionMismatch);
        magic && self.status().is_some() && (self.version == VERSION || mismatch)
    }

    fn descriptors(&self) -> usize {
        usize::from(self.status == WelcomeStatus::Ok as u32)
    }
}

/// Broker → client: the region that it shares with its worker, as a descriptor, and how to read it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Attach {
    /// Tells this message from others.
    pub magic: u32,
    /// The protocol's.
    pub version: u32,
    /// Where what is in the region.
    pub layout: Layout,
    /// Opaque to idm.
    pub extra: [u64; 16],
}

impl Attach {
    /// What goes with the descriptor of a region.
    pub fn new(layout: Layout, extra: [u64; 16]) -> Self {
        Self { magic: ATTACH_MAGIC, version: VERSION, layout, extra }
    }
}

impl Message for Attach {
    fn is_valid(&self) -> bool {
        self.magic == ATTACH_MAGIC && self.version == VERSION && self.layout.validate().is_ok()
    }

    fn descriptors(&self) -> usize {
        1
    }
}
