//! Makes a worker's calls, as far as the rules allow.
//!
//! ```text
//! worker: ioctl ──(kernel: waits)──→ supervisor: copy → decide → call on the copy → copy back ──→ worker goes on
//! ```
//!
//! The supervisor is the guard of the worker's jail: its parent, with the same user and no capability, for the driver counts
//! the rights of whoever makes a call. The worker ends with it, and it with the worker. It knows neither broker nor client.

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use rustix::event::{PollFd, PollFlags};

use super::Branch;
use super::decide::{Decision, Performance, Rules, set_status, status};
use super::image::{Image, Memory};
use super::notify::{Listener, Waiting};
use super::requests;

/// Kinds of refused calls that are told of, each once.
const MAX_TOLD: usize = 64;

/// The driver behind a worker's files; or a test.
pub trait Driver {
    /// A duplicate of one of them.
    type File: AsRawFd;
    /// Duplicates a descriptor of the worker's, if it is a file of the driver.
    fn file(&mut self, descriptor: i32) -> io::Result<Self::File>;
    /// Makes a call.
    ///
    /// # Safety
    /// The arguments are those of the request, and all addresses in them lead to memory as the driver expects it.
    unsafe fn call(&mut self, file: &Self::File, request: u32, arguments: *mut u8) -> io::Result<i32>;
}

/// A call to be served.
#[derive(Debug, Clone, Copy)]
pub struct Asked {
    /// The worker's number of the file.
    pub descriptor: i32,
    /// The request.
    pub request: u32,
    /// Where the arguments are in the worker's memory.
    pub address: u64,
}

/// Serves one call: what it returns to its caller, or which error number.
pub fn serve(
    rules: &mut Rules,
    asked: Asked,
    memory: &mut impl Memory,
    driver: &mut impl Driver,
    told: &mut impl FnMut(&str),
) -> Result<i32, i32> {
    let Asked { descriptor, request, address } = asked;
    let errno = |error: io::Error| error.raw_os_error().unwrap_or(libc::EIO);
    match rules.decide(request, address, memory) {
        Decision::Fail(errno) => {
            told(&format!("request 0x{request:08x}"));
            Err(errno)
        }
        Decision::Answer(image) => image.write_back(memory).map(|()| 0).map_err(errno),
        Decision::Refuse(image, _) => {
            told(&subject(request, &image));
            image.write_back(memory).map(|()| 0).map_err(errno)
        }
        Decision::Perform(performance) => {
            let file = driver.file(descriptor).map_err(errno)?;
            let Performance { mut image, confirm, descriptor } = performance;
            let is_foreign = |client: &&u32| !rules.is_known(**client) && !is_own(driver, &file, **client);
            if let Some(client) = confirm.iter().find(is_foreign) {
                told(&format!("{}, about client 0x{client:08x}", subject(request, &image)));
                refuse(&mut image, request, status::INVALID_CLIENT);
                return image.write_back(memory).map(|()| 0).map_err(errno);
            }
            let result = perform(driver, &file, request, &mut image, descriptor).map_err(errno)?;
            rules.made(request, &image);
            image.write_back(memory).map_err(errno)?;
            Ok(result)
        }
    }
}

/// Makes the call on the copy. A descriptor in it is the worker's, and ours for the time of the call.
fn perform<D: Driver>(
    driver: &mut D,
    file: &D::File,
    request: u32,
    image: &mut Image,
    descriptor: Option<(usize, usize)>,
) -> io::Result<i32> {
    let mut lent = None;
    if let Some((block, at)) = descriptor {
        let theirs = image.word(block, at).ok_or(io::ErrorKind::InvalidInput)?;
        let own = driver.file(theirs.cast_signed())?;
        image.set(block, at, &own.as_raw_fd().to_ne_bytes());
        lent = Some((block, at, theirs, own));
    }
    // SAFETY: the image is a copy of the arguments, with copies of what they point to.
    let result = image.with_own_addresses(|arguments| unsafe { driver.call(file, request, arguments) });
    if let Some((block, at, theirs, _own)) = lent {
        image.set(block, at, &theirs.to_ne_bytes());
    }
    result
}

/// Whether a client is one of this file, by the driver's word: only then it answers questions about it.
fn is_own<D: Driver>(driver: &mut D, file: &D::File, client: u32) -> bool {
    const CONTROL: u32 = 0xc020_462a;
    /// `NV0000_CTRL_CMD_CLIENT_GET_HANDLE_INFO`, of a handle its class.
    const HANDLE_INFO: u32 = 0xd02;
    const CLASS: u32 = 2;
    let mut parameters = [client, CLASS, 0, 0];
    let address = parameters.as_mut_ptr().expose_provenance() as u64;
    let [low, high] = [address & 0xffff_ffff, address >> 32].map(|half| u32::try_from(half).unwrap_or(0));
    let size = u32::try_from(size_of_val(&parameters)).unwrap_or(0);
    let mut arguments = [client, client, HANDLE_INFO, 0, low, high, size, u32::MAX];
    // SAFETY: arguments and parameters of this control, which live through the call.
    let made = unsafe { driver.call(file, CONTROL, arguments.as_mut_ptr().cast()) };
    made.is_ok() && arguments[7] == 0
}

fn refuse(image: &mut Image, request: u32, status: u32) {
    if let Some((number, size)) = requests::parts(request) {
        set_status(image, number, size, status);
    }
}

/// What a call is about, for people.
fn subject(request: u32, image: &Image) -> String {
    let name = requests::name(request).unwrap_or("request");
    let detail = match requests::parts(request) {
        Some((requests::number::CONTROL, _)) => image.word(0, 8),
        Some((requests::number::ALLOC, _)) => image.word(0, 12),
        _ => None,
    };
    detail.map_or_else(|| name.to_owned(), |detail| format!("{name} 0x{detail:08x}"))
}

/// The memory of a process that waits for us.
pub(super) struct OfProcess(pub(super) libc::pid_t);

impl Memory for OfProcess {
    fn read(&mut self, address: u64, into: &mut [u8]) -> io::Result<()> {
        let local = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
        let remote = far(address, into.len())?;
        // SAFETY: the kernel writes to our slice; the other address is the other process's.
        let copied = unsafe { libc::process_vm_readv(self.0, &raw const local, 1, &raw const remote, 1, 0) };
        whole(copied, into.len())
    }

    fn write(&mut self, address: u64, from: &[u8]) -> io::Result<()> {
        let local = libc::iovec { iov_base: from.as_ptr().cast_mut().cast(), iov_len: from.len() };
        let remote = far(address, from.len())?;
        // SAFETY: the kernel reads from our slice; the other address is the other process's.
        let copied = unsafe { libc::process_vm_writev(self.0, &raw const local, 1, &raw const remote, 1, 0) };
        whole(copied, from.len())
    }
}

fn far(address: u64, len: usize) -> io::Result<libc::iovec> {
    let address = usize::try_from(address).map_err(|_| io::Error::from_raw_os_error(libc::EFAULT))?;
    Ok(libc::iovec { iov_base: std::ptr::without_provenance_mut(address), iov_len: len })
}

/// Part of it is none of it.
fn whole(copied: isize, len: usize) -> io::Result<()> {
    match usize::try_from(copied) {
        Ok(copied) if copied == len => Ok(()),
        Ok(_) => Err(io::Error::from_raw_os_error(libc::EFAULT)),
        Err(_) => Err(io::Error::last_os_error()),
    }
}

/// NVIDIA's driver, behind the files of a process.
pub(super) struct OfKernel<'a>(pub(super) BorrowedFd<'a>);

impl Driver for OfKernel<'_> {
    type File = OwnedFd;

    fn file(&mut self, descriptor: i32) -> io::Result<OwnedFd> {
        /// Of `/dev/nvidiactl` and `/dev/nvidiaN`, on every machine.
        const MAJOR: u32 = 195;
        let file = duplicate(self.0, descriptor)?;
        let stat = rustix::fs::fstat(&file)?;
        let is_device = rustix::fs::FileType::from_raw_mode(stat.st_mode) == rustix::fs::FileType::CharacterDevice;
        // Our request to another file would be made with our rights.
        if is_device && rustix::fs::major(stat.st_rdev) == MAJOR {
            Ok(file)
        } else {
            Err(io::Error::from_raw_os_error(libc::ENOTTY))
        }
    }

    unsafe fn call(&mut self, file: &OwnedFd, request: u32, arguments: *mut u8) -> io::Result<i32> {
        // Not by the C library's name, which a recorder may have taken.
        // SAFETY: the caller's promise.
        let result =
            unsafe { libc::syscall(libc::SYS_ioctl, file.as_raw_fd(), libc::c_ulong::from(request), arguments) };
        if result < 0 { Err(io::Error::last_os_error()) } else { i32::try_from(result).map_err(io::Error::other) }
    }
}

/// A descriptor of another process, as ours.
pub(super) fn duplicate(process: BorrowedFd<'_>, descriptor: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: plain numbers.
    let own = unsafe { libc::syscall(libc::SYS_pidfd_getfd, process.as_raw_fd(), descriptor, 0) };
    if own < 0 {
        return Err(io::Error::last_os_error());
    }
    let own = RawFd::try_from(own).map_err(io::Error::other)?;
    // SAFETY: the kernel has just opened it for us.
    Ok(unsafe { OwnedFd::from_raw_fd(own) })
}

/// Serves all calls of a child until it has ended, which is for the caller to reap: so long nobody else has its number.
pub(super) fn run(
    listener: OwnedFd,
    (child, process): (libc::pid_t, BorrowedFd<'_>),
    branch: Branch,
    driver: &mut impl Driver,
) -> io::Result<()> {
    let listener = Listener::new(listener);
    let mut rules = Rules::new(branch);
    let mut told = BTreeSet::new();
    let mut tell = move |what: &str| {
        if told.len() < MAX_TOLD && told.insert(what.to_owned()) {
            // Nobody may be left to read it.
            let _ = writeln!(io::stderr(), "driver filter refused {what}");
        }
    };
    loop {
        let mut fds = [PollFd::new(&listener, PollFlags::IN), PollFd::new(&process, PollFlags::IN)];
        rustix::io::retry_on_intr(|| rustix::event::poll(&mut fds, None))?;
        if !fds[1].revents().is_empty() {
            return Ok(());
        }
        if !fds[0].revents().contains(PollFlags::IN) {
            // All threads are gone, and the process is about to be.
            if fds[0].revents().intersects(PollFlags::HUP | PollFlags::ERR) {
                return Ok(());
            }
            continue;
        }
        let Some(waiting) = listener.next()? else { continue };
        let result = if is_thread_of(child, waiting.thread) {
            match listener.is_valid(&waiting) {
                true => serve(&mut rules, Asked::from(waiting), &mut OfProcess(child), driver, &mut tell),
                false => continue,
            }
        } else {
            // A process that the worker has made: the driver's files are not for it.
            Err(libc::EPERM)
        };
        listener.answer(&waiting, result)?;
    }
}

impl From<Waiting> for Asked {
    fn from(Waiting { descriptor, request, address, .. }: Waiting) -> Self {
        Self { descriptor, request, address }
    }
}

/// Whether a thread is one of this process.
fn is_thread_of(process: libc::pid_t, thread: u32) -> bool {
    let Ok(thread) = libc::pid_t::try_from(thread) else { return false };
    // SAFETY: plain numbers; the signal 0 is none.
    unsafe { libc::syscall(libc::SYS_tgkill, process, thread, 0) == 0 }
}

#[cfg(test)]
mod tests;
