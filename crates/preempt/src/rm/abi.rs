//! Layouts, as the public headers of the open kernel modules have them; the same in all of [`super::KnownDriver::ALL`].

use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

/// As many channels as one call can name.
pub const MAX_CHANNELS: usize = 64;

/// Kinds of ioctls. The kernel looks at number and size alone.
pub mod escape {
    /// The letter of all of them.
    pub const KIND: u8 = b'F';
    /// [`super::Free`].
    pub const FREE: u8 = 0x29;
    /// [`super::Control`].
    pub const CONTROL: u8 = 0x2a;
    /// [`super::Alloc`] or [`super::AllocWithRights`], by size.
    pub const ALLOC: u8 = 0x2b;

    /// The request of an escape, for reading and writing.
    pub const fn request(number: u8, size: usize) -> u32 {
        0xc000_0000 | (size as u32) << 16 | (KIND as u32) << 8 | number as u32
    }

    /// Number and size of a request, if it is an escape.
    pub const fn parts(request: u32) -> Option<(u8, usize)> {
        if request >> 8 & 0xff != KIND as u32 {
            return None;
        }
        Some((request as u8, (request >> 16 & 0x3fff) as usize))
    }
}

/// `NVOS54_PARAMETERS`.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Control {
    pub client: u32,
    pub object: u32,
    pub command: u32,
    pub flags: u32,
    pub parameters: u64,
    pub size: u32,
    pub status: u32,
}

/// `NVOS21_PARAMETERS`.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Alloc {
    pub client: u32,
    pub parent: u32,
    pub handle: u32,
    pub class: u32,
    pub parameters: u64,
    pub size: u32,
    pub status: u32,
}

/// `NVOS64_PARAMETERS`.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct AllocWithRights {
    pub client: u32,
    pub parent: u32,
    pub handle: u32,
    pub class: u32,
    pub parameters: u64,
    pub rights: u64,
    pub size: u32,
    pub flags: u32,
    pub status: u32,
    pub padding: u32,
}

/// `NVOS00_PARAMETERS`.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Free {
    pub client: u32,
    pub parent: u32,
    pub handle: u32,
    pub status: u32,
}

/// `NV0000_CTRL_CLIENT_GET_HANDLE_INFO_PARAMS`.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct HandleInfo {
    pub handle: u32,
    pub index: u32,
    pub result: u64,
}

impl HandleInfo {
    /// Asks for the parent.
    pub const PARENT: u32 = 1;
    /// Asks for the class.
    pub const CLASS: u32 = 2;
}

/// `NVA06C_CTRL_TIMESLICE_PARAMS`: microseconds.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct Timeslice {
    pub(crate) microseconds: u64,
}

/// `NV2080_CTRL_FIFO_DISABLE_CHANNELS_PARAMS`. RM checks neither list: see [`super::Object`] for who does.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct DisableChannels {
    pub disable: u8,
    padding: [u8; 3],
    pub count: u32,
    pub only_scheduling: u8,
    pub rewind: u8,
    padding_2: [u8; 6],
    pub event: u64,
    pub clients: [u32; MAX_CHANNELS],
    pub channels: [u32; MAX_CHANNELS],
}

impl DisableChannels {
    /// Of channels of one client; those beyond [`MAX_CHANNELS`] are left out.
    pub fn new(disable: bool, client: u32, channels: &[u32]) -> Self {
        let mut message = Self::new_zeroed();
        let count = channels.len().min(MAX_CHANNELS);
        (message.disable, message.count) = (disable.into(), count as u32);
        message.clients[..count].fill(client);
        message.channels[..count].copy_from_slice(&channels[..count]);
        message
    }
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;

    #[test]
    fn layouts_are_those_of_the_driver() {
        let sizes = [
            (size_of::<Control>(), 32),
            (size_of::<Alloc>(), 32),
            (size_of::<AllocWithRights>(), 48),
            (size_of::<Free>(), 16),
            (size_of::<HandleInfo>(), 16),
            (size_of::<Timeslice>(), 8),
            (size_of::<DisableChannels>(), 536),
        ];
        assert!(sizes.iter().all(|(size, expected)| size == expected), "{sizes:?}");
        let offsets = [offset_of!(DisableChannels, count), offset_of!(DisableChannels, event)];
        assert_eq!((offsets, offset_of!(DisableChannels, channels)), ([4, 16], 280));
        assert_eq!((offset_of!(Control, status), offset_of!(AllocWithRights, status)), (28, 40));
    }

    #[test]
    fn requests_are_taken_apart() {
        let request = escape::request(escape::CONTROL, 32);
        assert_eq!(request, 0xc020_462a);
        assert_eq!(escape::parts(request), Some((escape::CONTROL, 32)));
        assert_eq!(escape::parts(0x5401), None);
    }

    #[test]
    fn no_more_channels_than_fit() {
        let message = DisableChannels::new(true, 7, &[9; 100]);
        assert_eq!((message.count, message.clients[63], message.channels[63]), (64, 7, 9));
        assert_eq!(DisableChannels::new(false, 7, &[1]).clients[1], 0, "others stay empty");
    }
}
