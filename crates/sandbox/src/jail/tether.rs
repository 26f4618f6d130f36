//! What a child of ours is set up with before it runs: its life tied to ours, or a session of its own.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// The child is killed when the thread that starts it ends, however that happens.
pub fn die_with_parent(command: &mut Command) {
    let parent = std::process::id();
    let tie = move || {
        rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
        // The parent may have ended before the kernel knew of our wish.
        match rustix::process::getppid() {
            Some(pid) if pid.as_raw_nonzero().get().unsigned_abs() == parent => Ok(()),
            _ => Err(io::ErrorKind::NotFound.into()),
        }
    };
    // SAFETY: between fork and exec the closure makes two system calls and allocates nothing.
    unsafe { command.pre_exec(tie) };
}

/// Makes a change of credentials, by which the kernel forgets whose death is ours, and reminds it.
pub(super) fn stay_tied(change: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
    let (signal, parent) = (rustix::process::parent_process_death_signal()?, rustix::process::getppid());
    change()?;
    let Some(signal) = signal else { return Ok(()) };
    rustix::process::set_parent_process_death_signal(Some(signal))?;
    // The parent may have ended in between.
    if rustix::process::getppid() == parent { Ok(()) } else { Err(io::ErrorKind::NotFound.into()) }
}

/// The child leads a session of its own: Ctrl-C at our terminal is for us, and the terminal is none of a worker's.
pub fn lead_session(command: &mut Command) {
    let lead = || rustix::process::setsid().map(drop).map_err(io::Error::from);
    // SAFETY: between fork and exec the closure makes one system call and allocates nothing.
    unsafe { command.pre_exec(lead) };
}
