//! What each process uses of the GPUs, as the process that asks NVML tells the broker.

use std::io;
use std::os::fd::OwnedFd;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::packet;

/// As many readings as one message has: for each process on each of its GPUs, and for each GPU.
pub const MAX_READINGS: usize = 8192;

/// What a process uses of a GPU. Its number is that of the namespace this runs in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Reading {
    /// 0 where it is not one process: then it is all that is used of the GPU, the driver's own part left out.
    pub pid: u32,
    /// The GPU's number, as in [`crate::mig`].
    pub gpu: u32,
    /// Of the GPU's memory.
    pub bytes: u64,
}

/// Of a reading that says nothing.
pub const NO_GPU: u32 = u32::MAX;

/// In place of a process, of a reading that tells how a GPU is: its bytes are a code of [`Condition`].
pub const CONDITION: u32 = u32::MAX;

/// How a GPU is, as its driver tells. A driver that tells of some GPUs and not of another has lost that one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Condition {
    /// It works.
    Fine,
    /// It does not answer any more.
    Lost,
    /// The driver wants it to be recovered, in the way that NVML's recovery action says; 0 where that is not known.
    Recovery(u32),
    /// Its hardware has reported an error, by the number that NVIDIA lists such errors by.
    Xid(u32),
}

impl Condition {
    /// A reading of it.
    pub fn reading(self, gpu: u32) -> Reading {
        let code = |kind: u64, value: u32| kind << 32 | u64::from(value);
        let bytes = match self {
            Self::Fine => code(0, 0),
            Self::Lost => code(1, 0),
            Self::Recovery(action) => code(2, action),
            Self::Xid(xid) => code(3, xid),
        };
        Reading { pid: CONDITION, gpu, bytes }
    }

    /// What a reading tells of its GPU; none where it is of something else, or of a kind that nobody knows.
    pub fn of(reading: &Reading) -> Option<Self> {
        let value = u32::try_from(reading.bytes & u64::from(u32::MAX)).ok()?;
        match (reading.pid, reading.bytes >> 32) {
            (CONDITION, 0) => Some(Self::Fine),
            (CONDITION, 1) => Some(Self::Lost),
            (CONDITION, 2) => Some(Self::Recovery(value)),
            (CONDITION, 3) => Some(Self::Xid(value)),
            _ => None,
        }
    }

    /// Why nothing new is to be put on the GPU; none where it works.
    pub fn fault(self) -> Option<String> {
        match self {
            Self::Fine => None,
            Self::Lost => Some("lost: the driver does not reach it".to_owned()),
            Self::Recovery(1) => Some("the driver asks for a reset of the GPU".to_owned()),
            Self::Recovery(2) => Some("the driver asks for a reboot of the node".to_owned()),
            Self::Recovery(3 | 4) => Some("the driver asks to drain and reset the GPU".to_owned()),
            Self::Recovery(_) => Some("the driver asks for recovery of the GPU".to_owned()),
            Self::Xid(xid) => Some(format!("hardware error Xid {xid}")),
        }
    }
}

/// Reads a message; none when it is not made of readings.
pub fn read(message: &[u8]) -> Option<&[Reading]> {
    <[Reading]>::ref_from_bytes(message).ok()
}

/// Sends one message of readings.
pub fn send(socket: &OwnedFd, readings: &[Reading]) -> io::Result<()> {
    // An empty message would look like the end of the connection.
    let none = [Reading { pid: 0, gpu: NO_GPU, bytes: 0 }];
    let readings = if readings.is_empty() { &none } else { &readings[..readings.len().min(MAX_READINGS)] };
    packet::send(socket, readings.as_bytes(), &[])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_survive_their_readings() {
        for condition in [Condition::Fine, Condition::Lost, Condition::Recovery(4), Condition::Xid(79)] {
            assert_eq!(Condition::of(&condition.reading(3)), Some(condition));
            assert_eq!(condition.fault().is_none(), condition == Condition::Fine);
        }
        assert_eq!(Condition::of(&Reading { pid: CONDITION, gpu: 0, bytes: u64::MAX }), None);
        assert_eq!(Condition::of(&Reading { pid: 1, gpu: 0, bytes: 0 }), None);
    }

    #[test]
    fn messages_are_whole_readings() {
        let (a, b) = packet::pair().unwrap();
        send(&a, &[]).unwrap();
        send(&a, &[Reading { pid: 1, gpu: 3, bytes: 2 }]).unwrap();
        let mut buffer = vec![0u64; 8];
        let buffer = buffer.as_mut_slice().as_mut_bytes();
        let count = packet::receive(&b, buffer).unwrap().len;
        assert_eq!(read(&buffer[..count]).unwrap(), [Reading { pid: 0, gpu: NO_GPU, bytes: 0 }]);
        let count = packet::receive(&b, buffer).unwrap().len;
        assert_eq!(read(&buffer[..count]).unwrap()[0].bytes, 2);
        assert_eq!(read(&buffer[..15]), None);
    }
}
