//! What each process uses of the GPUs, as the process that asks NVML tells the broker.

use std::io;
use std::os::fd::OwnedFd;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::packet;

/// As many processes as one message tells of.
pub const MAX_READINGS: usize = 2048;

/// What a process uses, over all GPUs. Its number is that of the namespace this runs in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Reading {
    /// 0 where there is no process.
    pub pid: u32,
    /// Zero.
    pub reserved: u32,
    /// Of GPU memory.
    pub bytes: u64,
}

/// Reads a message; none when it is not made of readings.
pub fn read(message: &[u8]) -> Option<&[Reading]> {
    <[Reading]>::ref_from_bytes(message).ok()
}

/// Sends one message of readings.
pub fn send(socket: &OwnedFd, readings: &[Reading]) -> io::Result<()> {
    // An empty message would look like the end of the connection.
    let none = [Reading { pid: 0, reserved: 0, bytes: 0 }];
    let readings = if readings.is_empty() { &none } else { &readings[..readings.len().min(MAX_READINGS)] };
    packet::send(socket, readings.as_bytes(), &[])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_whole_readings() {
        let (a, b) = packet::pair().unwrap();
        send(&a, &[]).unwrap();
        send(&a, &[Reading { pid: 1, reserved: 0, bytes: 2 }]).unwrap();
        let mut buffer = vec![0u64; 8];
        let buffer = buffer.as_mut_slice().as_mut_bytes();
        let count = packet::receive(&b, buffer).unwrap().len;
        assert_eq!(read(&buffer[..count]).unwrap(), [Reading { pid: 0, reserved: 0, bytes: 0 }]);
        let count = packet::receive(&b, buffer).unwrap().len;
        assert_eq!(read(&buffer[..count]).unwrap()[0].bytes, 2);
        assert_eq!(read(&buffer[..15]), None);
    }
}
