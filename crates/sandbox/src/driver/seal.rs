//! How a worker comes under supervision: while it is still ours it installs the filter, and gives its guard the listener.
//!
//! Before that its calls are its own. So the driver library's clients are made by the worker, as the driver wants it: mappings, unified
//! memory and the names of processes in NVML all go by the process that made a client. Nobody makes one afterwards.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use rustix::event::{PollFd, PollFlags};

use super::Branch;
use super::image::Memory;
use super::program::{can_supervise, install_supervised};
use super::supervisor::{self, Driver, OfKernel};

/// What a worker says to its guard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Message {
    /// Try whether you reach this descriptor of mine, and my memory at this address, where a known word is.
    Try(i32, u64),
    /// This descriptor of mine is the listener.
    Supervise(i32),
}

const WORD: u64 = 0x6275_6c6b_6865_6164;
const BYTES: usize = 16;

impl Message {
    fn to_bytes(self) -> [u8; BYTES] {
        let (kind, number, address) = match self {
            Self::Try(number, address) => (0u32, number, address),
            Self::Supervise(number) => (1, number, 0),
        };
        let mut bytes = [0; BYTES];
        bytes[..4].copy_from_slice(&kind.to_ne_bytes());
        bytes[4..8].copy_from_slice(&number.to_ne_bytes());
        bytes[8..].copy_from_slice(&address.to_ne_bytes());
        bytes
    }

    fn of(bytes: [u8; BYTES]) -> Option<Self> {
        let [a, b, c, d, e, f, g, h, address @ ..] = bytes;
        let number = i32::from_ne_bytes([e, f, g, h]);
        match u32::from_ne_bytes([a, b, c, d]) {
            0 => Some(Self::Try(number, u64::from_ne_bytes(address))),
            1 => Some(Self::Supervise(number)),
            _ => None,
        }
    }
}

/// The worker's end of the connection to its guard.
#[derive(Debug)]
pub struct Seal {
    guard: OwnedFd,
    branch: Branch,
}

/// The guard's end.
#[derive(Debug)]
pub(crate) struct GuardEnd {
    worker: OwnedFd,
    branch: Branch,
}

impl GuardEnd {
    /// Of the driver that the worker calls.
    pub(crate) fn branch(&self) -> Branch {
        self.branch
    }
}

impl AsRawFd for GuardEnd {
    fn as_raw_fd(&self) -> RawFd {
        self.worker.as_raw_fd()
    }
}

/// Both ends, before worker and guard part.
pub(crate) fn pair(branch: Branch) -> io::Result<(Seal, GuardEnd)> {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    let (guard, worker) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    Ok((Seal { guard, branch }, GuardEnd { worker, branch }))
}

impl Seal {
    /// Whether supervision will work: the kernel has what it takes, and the guard reaches us. For that it must be allowed
    /// to look into this process, as nobody else of this user is there to do.
    pub(crate) fn try_out(&self) -> io::Result<()> {
        rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::Dumpable)?;
        can_supervise()?;
        let word = WORD;
        let address = (&raw const word).expose_provenance() as u64;
        self.ask(Message::Try(self.guard.as_raw_fd(), address))
    }

    /// Puts this process under supervision, for good. If that fails, it must end: its calls would wait for ever.
    pub fn close(self) -> io::Result<()> {
        let listener = install_supervised(self.branch)?;
        self.ask(Message::Supervise(listener.as_raw_fd()))
    }

    fn ask(&self, message: Message) -> io::Result<()> {
        // By plain writing: descriptors cannot be sent, and none are.
        rustix::io::write(&self.guard, &message.to_bytes())?;
        let mut answer = [0; 4];
        match rustix::io::retry_on_intr(|| rustix::io::read(&self.guard, &mut answer))? {
            4 => match i32::from_ne_bytes(answer) {
                0 => Ok(()),
                errno => Err(io::Error::from_raw_os_error(errno)),
            },
            _ => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

/// The guard's life as supervisor; returns when the worker has ended and is to be reaped. An error is for the guard to end with.
pub(crate) fn supervise(
    end: GuardEnd,
    child: libc::pid_t,
    confine: impl FnOnce() -> io::Result<()>,
) -> io::Result<()> {
    let pid = rustix::process::Pid::from_raw(child).ok_or(io::ErrorKind::InvalidInput)?;
    let process = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty())?;
    serve(end, (child, process.as_fd()), confine, &mut OfKernel(process.as_fd()))
}

/// As [`supervise`], with a driver of the caller's choice.
fn serve(
    end: GuardEnd,
    (child, process): (libc::pid_t, BorrowedFd<'_>),
    confine: impl FnOnce() -> io::Result<()>,
    driver: &mut impl Driver,
) -> io::Result<()> {
    let GuardEnd { worker, branch } = end;
    loop {
        let mut fds = [PollFd::new(&worker, PollFlags::IN), PollFd::new(&process, PollFlags::IN)];
        rustix::io::retry_on_intr(|| rustix::event::poll(&mut fds, None))?;
        if !fds[1].revents().is_empty() {
            return Ok(());
        }
        let mut bytes = [0; BYTES];
        let len = rustix::io::retry_on_intr(|| rustix::io::read(&worker, &mut bytes))?;
        let answer = |result: &io::Result<()>| {
            let errno = result.as_ref().err().map_or(0, |error| error.raw_os_error().unwrap_or(libc::EIO));
            rustix::io::write(&worker, &errno.to_ne_bytes()).map(drop)
        };
        match (len, Message::of(bytes)) {
            // It does without.
            (0, _) => return Ok(()),
            (BYTES, Some(Message::Try(number, address))) => answer(&reach(child, process, number, address))?,
            (BYTES, Some(Message::Supervise(number))) => {
                let listener = supervisor::duplicate(process, number).and_then(|listener| {
                    confine()?;
                    Ok(listener)
                });
                return match listener {
                    Ok(listener) => {
                        answer(&Ok(()))?;
                        drop(worker);
                        supervisor::run(listener, (child, process), branch, driver)
                    }
                    Err(error) => {
                        let told = Err(error);
                        answer(&told)?;
                        told
                    }
                };
            }
            _ => return Err(io::ErrorKind::InvalidData.into()),
        }
    }
}

fn reach(child: libc::pid_t, process: BorrowedFd<'_>, number: i32, address: u64) -> io::Result<()> {
    drop(supervisor::duplicate(process, number)?);
    let mut bytes = [0; 8];
    supervisor::OfProcess(child).read(address, &mut bytes)?;
    supervisor::OfProcess(child).write(address, &bytes)?;
    if u64::from_ne_bytes(bytes) == WORD { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::EFAULT)) }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::super::decide::status;
    use super::*;

    /// A driver whose every file is ours, and whose every control adds 1 to the first word of its parameters.
    struct Adding(usize);

    impl Driver for Adding {
        type File = OwnedFd;

        fn file(&mut self, _: i32) -> io::Result<OwnedFd> {
            Ok(File::open("/dev/null")?.into())
        }

        unsafe fn call(&mut self, _: &OwnedFd, request: u32, arguments: *mut u8) -> io::Result<i32> {
            assert_eq!(request, CONTROL);
            self.0 += 1;
            // SAFETY: a control's arguments, with parameters of at least a word.
            unsafe {
                let parameters = arguments.add(16).cast::<*mut u32>().read_unaligned();
                *parameters += 1;
                arguments.add(28).cast::<u32>().write_unaligned(0);
            }
            Ok(0)
        }
    }

    const CONTROL: u32 = 0xc020_462a;
    const ALLOWED: u32 = 0x0000_0102;
    const FORBIDDEN: u32 = 0x2080_110b;
    const ANSWERED: u32 = 0x2080_200a;

    /// Makes a control in this process: its result, its status and the first word of its parameters.
    fn control(file: i32, command: u32) -> (i64, u32, u32) {
        let mut parameters = [41u32, 0];
        let address = parameters.as_mut_ptr().expose_provenance() as u64;
        let mut arguments = [1, 1, command, 0, address as u32, (address >> 32) as u32, 8, 0xdead];
        // SAFETY: arguments and parameters of a control, which live through the call.
        let result = unsafe { libc::syscall(libc::SYS_ioctl, file, CONTROL, arguments.as_mut_ptr()) };
        (result, arguments[7], std::hint::black_box(parameters)[0])
    }

    /// What a supervised process sees; 0 if that is as it should be.
    fn inside(seal: Seal, file: i32) -> Result<(), u8> {
        let check = |right: bool, code: u8| if right { Ok(()) } else { Err(code) };
        // SAFETY: plain numbers.
        check(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) } == 0, 1)?;
        let before = std::thread::spawn(move || {
            std::thread::sleep(std::time::Duration::from_millis(1));
            while control(file, ALLOWED) != (0, 0, 42) {
                std::thread::yield_now();
            }
        });
        seal.try_out().map_err(|_| 2)?;
        // Nobody stands between yet, and the file is no driver.
        check(control(file, FORBIDDEN) == (-1, 0xdead, 41), 3)?;
        seal.close().map_err(|_| 4)?;
        check(control(file, ALLOWED) == (0, 0, 42), 5)?;
        check(control(file, FORBIDDEN) == (0, status::NOT_SUPPORTED, 41), 6)?;
        check(control(file, ANSWERED) == (0, 0, 41), 7)?;
        // What another thread does is supervised as well.
        before.join().map_err(|_| 8)?;
        // SAFETY: the kernel refuses before it looks at the address.
        let another = unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, 0) };
        check(another == -1 && io::Error::last_os_error().raw_os_error() == Some(libc::EPERM), 9)?;
        // A process of its own has no file of the driver's.
        // SAFETY: the child makes system calls, and ends.
        match unsafe { libc::fork() } {
            // SAFETY: as above.
            0 => unsafe { libc::_exit(i32::from(control(file, ALLOWED).0 != -1)) },
            child => {
                let mut status = 0;
                // SAFETY: a local.
                unsafe { libc::waitpid(child, &raw mut status, 0) };
                check(status == 0, 10)
            }
        }
    }

    #[test]
    fn a_process_under_supervision_gets_what_the_rules_allow() {
        let file = File::open("/dev/null").unwrap();
        let (seal, end) = pair(Branch::of("580.1").unwrap()).unwrap();
        // SAFETY: the child of the C library's fork may allocate; it ends by itself.
        let child = unsafe { libc::fork() };
        if child == 0 {
            drop(end);
            let status = inside(seal, file.as_raw_fd()).err().unwrap_or(0);
            // SAFETY: ends the child.
            unsafe { libc::_exit(status.into()) };
        }
        drop(seal);
        let pid = rustix::process::Pid::from_raw(child).unwrap();
        let process = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).unwrap();
        let mut driver = Adding(0);
        let mut confined = false;
        let confine = || {
            confined = true;
            Ok(())
        };
        let served = serve(end, (child, process.as_fd()), confine, &mut driver);
        let mut status = 0;
        // SAFETY: a local.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!((libc::WIFEXITED(status), libc::WEXITSTATUS(status)), (true, 0), "{served:?}");
        assert!(served.is_ok() && confined && driver.0 >= 2, "{served:?} {}", driver.0);
    }

    #[test]
    fn messages_are_read_as_they_are_written() {
        for message in [Message::Try(7, 0x1234_5678_9abc), Message::Supervise(-1)] {
            assert_eq!(Message::of(message.to_bytes()), Some(message));
        }
        assert_eq!(Message::of([9; BYTES]), None);
    }
}
