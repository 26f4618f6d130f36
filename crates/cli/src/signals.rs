//! Forwards signals to the program that `run` runs.

use std::collections::HashSet;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use rustix::process::{Pid, Signal};
use signal_hook::consts::{SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGUSR1, SIGUSR2, SIGWINCH};
use signal_hook::iterator::backend::SignalDelivery;
use signal_hook::iterator::exfiltrator::WithOrigin;
use signal_hook::low_level::siginfo::{Cause, Origin};

const FORWARDED: [i32; 9] = [SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGWINCH, SIGCONT, SIGTSTP];

pub(crate) struct Signals {
    delivery: SignalDelivery<UnixStream, WithOrigin>,
}

impl Signals {
    /// From now on signals are kept for [`Signals::forward`]. Signals that were ignored at the start stay ignored, because
    /// the program inherits that (`nohup`).
    pub(crate) fn catch() -> io::Result<Self> {
        let ignored = ignored();
        let wanted: Vec<i32> = FORWARDED.into_iter().filter(|signal| !ignored.contains(signal)).collect();
        let (read, write) = UnixStream::pair()?;
        let delivery = SignalDelivery::with_pipe(read, write, WithOrigin::default(), wanted)?;
        Ok(Self { delivery })
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.delivery.get_read().as_fd()
    }

    /// The pending signals, for a program that the terminal does not reach.
    #[cfg(feature = "xen")]
    pub(crate) fn take(&mut self) -> Vec<i32> {
        self.drain();
        self.delivery.pending().map(|origin| origin.signal).collect()
    }

    /// Whether a signal asks to terminate.
    #[cfg(feature = "xen")]
    pub(crate) fn is_termination(signal: i32) -> bool {
        [SIGINT, SIGTERM, SIGHUP, SIGQUIT].contains(&signal)
    }

    /// The bytes in the pipe only wake the poll.
    fn drain(&self) {
        let mut buffer = [0; 64];
        while matches!(rustix::net::recv(self.fd(), &mut buffer[..], rustix::net::RecvFlags::DONTWAIT), Ok((n, _)) if n > 0)
        {
        }
    }

    /// Forwards pending signals.
    pub(crate) fn forward(&mut self, to: Pid) {
        self.drain();
        let pending: Vec<Origin> = self.delivery.pending().collect();
        for origin in pending {
            let Some(signal) = Signal::from_named_raw(origin.signal) else { continue };
            // Signals of the terminal go to the whole foreground group, so the program has them already.
            if origin.cause != Cause::Kernel {
                let _ = rustix::process::kill_process(to, signal);
            }
            if origin.signal == SIGTSTP {
                // The program is stopped, so stop, too; SIGCONT resumes both.
                let _ = rustix::process::kill_process(rustix::process::getpid(), Signal::STOP);
            }
        }
    }
}

fn ignored() -> HashSet<i32> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).map(str::trim);
    let mask = mask.and_then(|mask| u64::from_str_radix(mask, 16).ok()).unwrap_or(0);
    (1..=64).filter(|signal| mask & 1 << (signal - 1) != 0).collect()
}
