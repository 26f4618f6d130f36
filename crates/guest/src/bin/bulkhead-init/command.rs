//! Starting the command, with pipes or on a terminal.

use crate::tenant::Tenant;
use rustix::pty::OpenptFlags;
use std::ffi::{CStr, OsStr, OsString};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

/// The first argument when this program is to put the rest of them on the terminal that is its standard input.
pub(crate) const ON_TERMINAL: &str = "--on-terminal";

const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The command as the host describes it, piece by piece.
#[derive(Debug, Default)]
pub(crate) struct Described {
    arguments: Vec<OsString>,
    environment: Vec<OsString>,
    dir: Option<OsString>,
}

/// A command that runs. Errors come with output where there is a terminal.
pub(crate) struct Running {
    pub child: Child,
    pub input: Option<File>,
    pub output: Option<File>,
    pub errors: Option<File>,
    /// The terminal's master.
    pub terminal: Option<File>,
}

impl Described {
    pub(crate) fn argument(&mut self, bytes: Vec<u8>) {
        self.arguments.push(OsString::from_vec(bytes));
    }

    pub(crate) fn variable(&mut self, bytes: Vec<u8>) {
        self.environment.push(OsString::from_vec(bytes));
    }

    pub(crate) fn dir(&mut self, bytes: Vec<u8>) {
        self.dir = Some(OsString::from_vec(bytes));
    }

    /// Starts it; what the host left open, the tenant's image decides.
    pub(crate) fn start(self, tenant: Tenant, terminal: bool) -> io::Result<Running> {
        let arguments = if self.arguments.is_empty() { tenant.command } else { self.arguments };
        let (program, rest) = arguments.split_first().ok_or(io::ErrorKind::InvalidInput)?;
        let mut command = match terminal {
            false => {
                let mut command = Command::new(program);
                // A group of its own, so that signals reach all of it.
                command.process_group(0).args(rest);
                command
            }
            true => {
                let mut command = Command::new("/proc/self/exe");
                command.arg(ON_TERMINAL).arg(program).args(rest);
                command
            }
        };
        command.env_clear().env("PATH", PATH).env("HOME", "/root").env("USER", "root");
        for variable in tenant.environment.iter().chain(&self.environment) {
            if let Some((name, value)) = split(variable) {
                command.env(name, value);
            }
        }
        let dir = self.dir.or(tenant.dir).unwrap_or_else(|| "/".into());
        std::fs::create_dir_all(&dir)?;
        command.current_dir(dir);
        if terminal { on_new_terminal(command) } else { with_pipes(command) }
    }
}

fn split(variable: &OsStr) -> Option<(&OsStr, &OsStr)> {
    let bytes = variable.as_bytes();
    let at = bytes.iter().position(|byte| *byte == b'=').filter(|at| *at > 0)?;
    Some((OsStr::from_bytes(&bytes[..at]), OsStr::from_bytes(&bytes[at + 1..])))
}

fn with_pipes(mut command: Command) -> io::Result<Running> {
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let file = |fd: Option<OwnedFd>| -> io::Result<Option<File>> {
        let Some(fd) = fd else { return Ok(None) };
        rustix::io::ioctl_fionbio(&fd, true)?;
        Ok(Some(File::from(fd)))
    };
    Ok(Running {
        input: file(child.stdin.take().map(Into::into))?,
        output: file(child.stdout.take().map(Into::into))?,
        errors: file(child.stderr.take().map(Into::into))?,
        terminal: None,
        child,
    })
}

fn on_new_terminal(mut command: Command) -> io::Result<Running> {
    let master = rustix::pty::openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
    rustix::pty::unlockpt(&master)?;
    let name = rustix::pty::ptsname(&master, Vec::new())?;
    let slave = || OpenOptions::new().read(true).write(true).open(path(&name));
    let child = command.stdin(slave()?).stdout(slave()?).stderr(slave()?).spawn()?;
    rustix::io::ioctl_fionbio(&master, true)?;
    let master = File::from(master);
    Ok(Running {
        input: Some(master.try_clone()?),
        output: Some(master.try_clone()?),
        errors: None,
        terminal: Some(master),
        child,
    })
}

fn path(name: &CStr) -> &OsStr {
    OsStr::from_bytes(name.to_bytes())
}

/// Becomes the leader of a session on the terminal at standard input, and then the command.
pub(crate) fn on_terminal(command: &[OsString]) -> ! {
    let _ = rustix::process::setsid();
    let _ = rustix::process::ioctl_tiocsctty(io::stdin());
    let error = match command.split_first() {
        Some((program, rest)) => Command::new(program).args(rest).exec(),
        None => io::ErrorKind::InvalidInput.into(),
    };
    eprintln!("{}: {error}", command.first().cloned().unwrap_or_default().display());
    std::process::exit(if error.kind() == io::ErrorKind::NotFound { 127 } else { 126 });
}
