//! Tying a child's life to ours.

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
