//! A record of all requests that a worker makes of kernel drivers, for those who write lists of what a driver library
//! needs: one line for each call, in the order in which they returned, and a table of many such lines.

mod line;
mod table;

use std::ffi::{c_int, c_void};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering};

use sandbox::driver::requests::{self, number};

pub use line::{Line, Malformed, Phase};
pub use table::table;

static FILE: OnceLock<File> = OnceLock::new();
static PHASE: AtomicU8 = AtomicU8::new(Phase::Spare as u8);
/// As many bytes of arguments and parameters as are kept: enough for handles and flags at their head.
const HEAD: usize = 48;

/// Begins, in a new file of this directory; before the jail, in which there is no such directory. The descriptor must stay open.
pub fn start(directory: &Path) -> io::Result<RawFd> {
    let path = directory.join(format!("worker-{}", std::process::id()));
    let file = File::options().append(true).create(true).open(path)?;
    Ok(FILE.get_or_init(|| file).as_raw_fd())
}

/// A client has been attached, or its first request has been answered.
pub fn enter(phase: Phase) {
    PHASE.store(phase as u8, Ordering::Relaxed);
}

/// Whether calls are recorded.
pub(crate) fn is_on() -> bool {
    FILE.get().is_some()
}

/// Adds a call that has returned; `errno` is 0 if it succeeded.
///
/// # Safety
/// `argument` is what the request was made with.
pub(crate) unsafe fn add(descriptor: c_int, request: u32, argument: *const c_void, errno: i32) {
    let Some(mut file) = FILE.get() else { return };
    let device = std::fs::read_link(format!("/proc/self/fd/{descriptor}")).unwrap_or_default();
    let device = device.file_name().map_or("?".into(), |name| name.to_string_lossy().replace(['\t', '\n', ' '], "_"));
    let phase = Phase::of(PHASE.load(Ordering::Relaxed));
    let mut line = Line { phase, device, request, errno, ..Line::default() };
    // A pointer that the kernel could not follow is none to follow.
    if !argument.is_null() && errno != libc::EFAULT {
        // SAFETY: the kernel has just read arguments of this request.
        unsafe { read(&mut line, argument.cast()) };
    }
    // There is nobody to tell that this failed.
    let _ = file.write_all(format!("{line}\n").as_bytes());
}

/// Reads what the arguments say.
///
/// # Safety
/// The kernel has just read arguments of this request here.
unsafe fn read(line: &mut Line, argument: *const u8) {
    // SAFETY: all offsets are below the size that the request has.
    let word = |at: usize| unsafe { argument.add(at).cast::<u32>().read_unaligned() };
    // SAFETY: as above.
    let address = |at: usize| unsafe { argument.add(at).cast::<u64>().read_unaligned() };
    let Some((number, size)) = requests::parts(line.request) else {
        if line.device.starts_with("nvidia-uvm") && line.request != requests::UVM_DEINITIALIZE {
            // SAFETY: none of its arguments is shorter.
            line.head = unsafe { head(argument, 8) };
        }
        return;
    };
    // Class, control or function; the parameters, and how many; where the status is.
    let (detail, parameters, bytes, status) = match (number, size) {
        (number::ALLOC, 32) => (Some(word(12)), address(16), word(24), Some(28)),
        (number::ALLOC, 48) => (Some(word(12)), address(16), word(32), Some(40)),
        (number::CONTROL, 32) => (Some(word(8)), address(16), word(24), Some(28)),
        (number::ALLOC_MEMORY, 56) => (Some(word(12)), 0, 0, Some(40)),
        (number::FREE, 16) => (None, 0, 0, Some(12)),
        (number::DUP_OBJECT, 28) => (None, 0, 0, Some(24)),
        (number::VID_HEAP_CONTROL, 184) => (Some(word(8)), 0, 0, Some(20)),
        (number::XFER, 16) => (Some(word(0)), 0, word(4), None),
        _ => (None, 0, 0, None),
    };
    (line.detail, line.parameters) = (detail, bytes);
    line.status = status.filter(|_| line.errno == 0).map(word);
    // SAFETY: the arguments are that long; of parameters the kernel has just read so many bytes, if it took the call.
    line.head = unsafe {
        match (parameters, bytes) {
            (0, _) | (_, 0) => head(argument, size),
            (address, bytes) if line.errno == 0 => {
                head(std::ptr::with_exposed_provenance(address as usize), bytes as usize)
            }
            _ => Vec::new(),
        }
    };
}

/// # Safety
/// So many bytes can be read there.
unsafe fn head(from: *const u8, bytes: usize) -> Vec<u8> {
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts(from, bytes.min(HEAD)) }.to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_controls_and_statuses_are_read() {
        let parameters = [7u32, 8];
        let address = parameters.as_ptr().expose_provenance() as u64;
        let (low, high) = (address as u32, (address >> 32) as u32);
        let read = |request: u32, errno: i32, argument: &[u32]| {
            let mut line = Line { request, errno, device: "nvidiactl".into(), ..Line::default() };
            // SAFETY: as long as the request says.
            unsafe { super::read(&mut line, argument.as_ptr().cast()) };
            line
        };
        let control = read(0xc020_462a, 0, &[1, 2, 0x2080_110b, 0, low, high, 8, 0x23]);
        assert_eq!((control.detail, control.parameters, control.status), (Some(0x2080_110b), 8, Some(0x23)));
        assert_eq!(control.head, [7, 0, 0, 0, 8, 0, 0, 0]);
        let refused = read(0xc020_462a, libc::EPERM, &[1, 2, 3, 0, low, high, 8, 0]);
        assert_eq!((refused.status, refused.head.len()), (None, 0), "the driver has not answered");
        let alloc = read(0xc030_462b, 0, &[1, 2, 3, 0x41, 0, 0, 0, 0, 0, 0, 0x1b, 0]);
        assert_eq!((alloc.detail, alloc.status, alloc.head.len()), (Some(0x41), Some(0x1b), 48));
        assert_eq!(read(0xc010_46d3, 0, &[0x2a, 32, 0, 0]).detail, Some(0x2a), "what it wraps");
        let unified = Line { request: 25, device: "nvidia-uvm".into(), ..Line::default() };
        let mut line = unified.clone();
        // SAFETY: eight bytes are there.
        unsafe { super::read(&mut line, parameters.as_ptr().cast()) };
        assert_eq!(line, Line { head: vec![7, 0, 0, 0, 8, 0, 0, 0], ..unified });
    }
}
