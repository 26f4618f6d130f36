//! `/dev/loop*`: a file as a block device, for domains whose disk it is. Xen's block backend takes devices only.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use super::{XenError, failed, ioctl, open};

const CONTROL: &str = "/dev/loop-control";
const GET_FREE: libc::c_ulong = 0x4c82;
const CONFIGURE: libc::c_ulong = 0x4c0a;
const READ_ONLY: u32 = 1;
/// It goes with the last who has it open.
const AUTO_CLEAR: u32 = 4;
/// Others look for a free one, too, and may be quicker.
const TRIES: usize = 16;

#[repr(C)]
struct Info {
    numbers: [u64; 5],
    number: u32,
    encryption: [u32; 2],
    flags: u32,
    names: [u8; 160],
    init: [u64; 2],
}

#[repr(C)]
struct Config {
    file: u32,
    block_size: u32,
    info: Info,
    reserved: [u64; 8],
}

// The kernel's `struct loop_config`.
const _: () = assert!(size_of::<Info>() == 232 && size_of::<Config>() == 304);

/// What the domains that have a device may do with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    Read,
    Write,
}

/// A file as a device. Once this is dropped the device goes with the domains that have it.
#[derive(Debug)]
pub struct LoopDevice {
    path: PathBuf,
    _device: OwnedFd,
}

impl LoopDevice {
    /// Read-only.
    pub fn attach(file: &Path) -> Result<Self, XenError> {
        Self::attach_for(file, Access::Read)
    }

    pub fn attach_for(file: &Path, access: Access) -> Result<Self, XenError> {
        let write = access == Access::Write;
        let file = OpenOptions::new().read(true).write(write).open(file).map_err(failed("open the disk's image"))?;
        let control = open(CONTROL).map_err(failed("open /dev/loop-control"))?;
        for _ in 0..TRIES {
            // SAFETY: a request without an argument.
            let number = unsafe { ioctl::<u8>(control.as_fd(), GET_FREE, std::ptr::null_mut()) };
            let path = PathBuf::from(format!("/dev/loop{}", number.map_err(failed("find a free loop device"))?));
            let device =
                OpenOptions::new().read(true).write(write).open(&path).map_err(failed("open a loop device"))?;
            match configure(&device, &file, access) {
                Ok(()) => return Ok(Self { path, _device: device.into() }),
                Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {}
                Err(error) => return Err(failed("set up a loop device")(error)),
            }
        }
        Err(failed("find a free loop device")(io::ErrorKind::ResourceBusy.into()))
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
}

fn configure(device: &File, file: &File, access: Access) -> io::Result<()> {
    let read_only = if access == Access::Read { READ_ONLY } else { 0 };
    let info = Info {
        numbers: [0; 5],
        number: 0,
        encryption: [0; 2],
        flags: read_only | AUTO_CLEAR,
        names: [0; 160],
        init: [0; 2],
    };
    let mut config = Config { file: file.as_raw_fd() as u32, block_size: 0, info, reserved: [0; 8] };
    // SAFETY: the struct is the request's.
    unsafe { ioctl(device.as_fd(), CONFIGURE, &mut config) }.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    #[test]
    fn a_device_takes_what_its_access_allows() {
        let directory = testkit::directory();
        let file = directory.write("disk", vec![0; 1 << 20]);
        let device = match LoopDevice::attach_for(&file, Access::Write) {
            Ok(device) => device,
            Err(error) => return testkit::not_tried(&format!("no loop devices: {}", error.source)),
        };
        let open = |device: &LoopDevice| OpenOptions::new().read(true).write(true).open(device.path());
        let disk = open(&device).unwrap();
        disk.write_all_at(b"changed", 4096).unwrap();
        disk.sync_all().unwrap();
        drop((disk, device));
        let mut found = [0; 7];
        File::open(&file).unwrap().read_exact_at(&mut found, 4096).unwrap();
        assert_eq!(&found, b"changed");
        let device = LoopDevice::attach(&file).unwrap();
        assert!(open(&device).and_then(|disk| disk.write_all_at(b"x", 0).and(disk.sync_all())).is_err());
    }
}
