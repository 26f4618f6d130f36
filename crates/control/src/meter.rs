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
