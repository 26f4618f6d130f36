//! Making a call.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use zerocopy::{FromBytes, IntoBytes};

use super::abi::{Control, escape};

/// What RM answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Status(pub u32);

impl Status {
    /// The client is not one of this descriptor.
    pub const INVALID_CLIENT: Self = Self(0x23);
    /// There is no such object.
    pub const OBJECT_NOT_FOUND: Self = Self(0x57);

    const fn name(self) -> &'static str {
        match self.0 {
            0 => "OK",
            0x1b => "INSUFFICIENT_PERMISSIONS",
            0x1f => "INVALID_ARGUMENT",
            0x21 => "INVALID_CHANNEL",
            0x23 => "INVALID_CLIENT",
            0x31 => "INVALID_OBJECT",
            0x33 => "INVALID_OBJECT_HANDLE",
            0x3b => "INVALID_PARAMETER",
            0x40 => "INVALID_STATE",
            0x56 => "NOT_SUPPORTED",
            0x57 => "OBJECT_NOT_FOUND",
            0x65 => "TIMEOUT",
            _ => "error",
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (0x{:x})", self.name(), self.0)
    }
}

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum RmError {
    /// The kernel does not take it.
    #[error("the driver does not take control 0x{control:08x}: {error}")]
    Ioctl { control: u32, error: io::Error },
    /// RM refuses.
    #[error("the driver answers control 0x{control:08x} with {status}")]
    Refused { control: u32, status: Status },
}

impl RmError {
    /// What RM has answered, if it has.
    pub fn status(&self) -> Option<Status> {
        match self {
            Self::Refused { status, .. } => Some(*status),
            Self::Ioctl { .. } => None,
        }
    }
}

/// What RM's calls are made through: an open file of the driver, or a test.
pub trait Calls {
    /// Has RM do something to an object of a client. No parameters of ours hold pointers.
    fn call(&self, whom: (u32, u32), command: u32, parameters: &mut [u8]) -> Result<(), RmError>;

    /// As [`Calls::call`], with parameters of the type that the control takes.
    fn control<P: IntoBytes + FromBytes>(
        &self,
        whom: (u32, u32),
        command: u32,
        parameters: &mut P,
    ) -> Result<(), RmError> {
        self.call(whom, command, parameters.as_mut_bytes())
    }
}

impl Calls for OwnedFd {
    fn call(&self, whom: (u32, u32), command: u32, parameters: &mut [u8]) -> Result<(), RmError> {
        call(self.as_fd(), whom, command, parameters)
    }
}

fn call(file: BorrowedFd<'_>, (client, object): (u32, u32), command: u32, bytes: &mut [u8]) -> Result<(), RmError> {
    const REQUEST: u32 = escape::request(escape::CONTROL, size_of::<Control>());
    let mut message = Control {
        client,
        object,
        command,
        flags: 0,
        parameters: bytes.as_mut_ptr().expose_provenance() as u64,
        size: bytes.len() as u32,
        status: u32::MAX,
    };
    // SAFETY: the kernel reads and writes a `Control`, and of the parameters as many bytes as it says; both are borrowed for
    // writing across the call, and any bytes are valid values of both.
    let result = unsafe { libc::ioctl(file.as_raw_fd(), REQUEST.into(), &raw mut message) };
    if result != 0 {
        return Err(RmError::Ioctl { control: command, error: io::Error::last_os_error() });
    }
    match message.status {
        0 => Ok(()),
        status => Err(RmError::Refused { control: command, status: Status(status) }),
    }
}

#[cfg(test)]
mod tests {
    use super::super::HandleInfo;
    use super::*;

    #[test]
    fn a_file_that_is_no_driver_refuses() {
        let file = OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
        let mut info = HandleInfo { handle: 0, index: HandleInfo::CLASS, result: 0 };
        let error = file.control((1, 1), 0xd02, &mut info).unwrap_err();
        assert!(error.status().is_none() && error.to_string().contains("0x00000d02"), "{error}");
    }

    #[test]
    fn answers_have_names() {
        let error = RmError::Refused { control: 0x2080_110b, status: Status(0x23) };
        assert_eq!(error.to_string(), "the driver answers control 0x2080110b with INVALID_CLIENT (0x23)");
    }
}
