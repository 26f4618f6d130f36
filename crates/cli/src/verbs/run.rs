//! `bulkhead run`: runs a program in a zone.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus};
use std::time::{Duration, Instant};

use control::admin::{AdminClient, Answer, Request};
use control::backend::{Backend, Choice, Options};
use control::size::Size;
use rustix::event::{PollFd, PollFlags};
use rustix::process::{Pid, PidfdFlags};
use tracing_subscriber::filter::LevelFilter;

use crate::admin;
use crate::args::RunArgs;
use crate::exit::{Exit, Failure};
use crate::library;
use crate::private_proxy::PrivateProxy;
use crate::signals::Signals;

/// How often to try to reconnect to a proxy that is gone.
const RETRY: Duration = Duration::from_millis(200);
/// How long it may be gone before the user is told what the program waits for.
const SAY_AFTER: Duration = Duration::from_secs(2);

pub(crate) fn run(args: RunArgs) -> Result<ExitCode, Failure> {
    crate::logging::start(LevelFilter::WARN, None);
    let failure = |error: io::Error| Failure::system(Exit::Failure, "cannot run", &error);
    // Check the arguments before anything is started.
    let program = find_program(&args.command[0], std::env::var_os("PATH").as_deref())?;
    let dir = library::find()?;
    let signals = Signals::catch().map_err(failure)?;
    say_if_on_the_cpu(&args);
    let mut side = ProxySide::open(&args)?;
    let socket = side.join_zone()?;

    let mut command = Command::new(&program);
    std::os::unix::process::CommandExt::arg0(&mut command, &args.command[0]);
    command.args(&args.command[1..]);
    library::put_in_front(&mut command, &dir, &socket);
    sandbox::jail::die_with_parent(&mut command);
    let child = command.spawn().map_err(|error| not_executable(&program, &error))?;
    let status = supervise(child, signals, &mut side).map_err(failure)?;
    drop(side);
    Ok(ExitCode::from(exit_code(status)))
}

/// Nobody is to wonder why a program is slow: without a GPU, and unless it was asked for, the software GPU is said to be
/// one.
fn say_if_on_the_cpu(args: &RunArgs) {
    if args.socket.is_none() && args.backend.is_left_open() {
        let nvidia = Options { choice: Choice::Nvidia, ..args.backend.options() };
        if let Err(why) = Backend::choose(&nvidia) {
            eprintln!("bulkhead: {why}; computing on the CPU (--backend soft does so without this line)");
        }
    }
}

fn exit_code(status: ExitStatus) -> u8 {
    let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
    u8::try_from(code & 0xff).unwrap_or(u8::MAX)
}

/// The proxy that has the program's zone.
struct ProxySide<'a> {
    args: &'a RunArgs,
    /// Declared first: the zone is released before the proxy is told to end.
    admin: Option<AdminClient>,
    private: Option<PrivateProxy>,
    restarts: Restarts,
    absence: Option<Absence>,
}

/// A proxy that is gone.
struct Absence {
    since: Instant,
    said: bool,
}

impl<'a> ProxySide<'a> {
    fn open(args: &'a RunArgs) -> Result<Self, Failure> {
        let private = match &args.socket {
            Some(_) => None,
            None => Some(PrivateProxy::start(&args.backend, args.jail)?),
        };
        Ok(Self { args, admin: None, private, restarts: Restarts::default(), absence: None })
    }

    /// Where the proxy listens for operators.
    fn admin_socket(&self) -> Result<PathBuf, Failure> {
        match (&self.args.socket, &self.private) {
            (Some(path), _) => Ok(path.clone()),
            (None, Some(private)) => Ok(private.admin_socket()),
            (None, None) => Err(Failure::new(Exit::Failure, "no proxy")),
        }
    }

    /// Creates or finds the zone, and keeps the connection: a zone created for this run ends with it.
    fn join_zone(&mut self) -> Result<PathBuf, Failure> {
        let client = admin::connect(&self.admin_socket()?)?;
        let request = self.request(&client)?;
        let answer = admin::ask(&client, &request)?;
        self.admin = Some(client);
        match answer {
            Answer::Zone { socket, .. } => Ok(socket),
            Answer::UnknownZone { zones } => Err(admin::unknown_zone(Some(&self.args.zone), &zones)),
            other => Err(admin::unexpected(other)),
        }
    }

    /// What to ask the proxy for. Limits of a zone that others use are not changed unless that was asked for.
    fn request(&self, client: &AdminClient) -> Result<Request, Failure> {
        let (name, wanted) = (self.args.zone.clone(), &self.args.limits);
        let ensure = |limits| Request::EnsureZone { name: name.clone(), limits, lease: true };
        if self.private.is_some() {
            return Ok(ensure(wanted.limits()));
        }
        if !wanted.given() {
            return Ok(Request::FindZone { name });
        }
        let Answer::Zone { limits, .. } = admin::ask(client, &Request::FindZone { name: name.clone() })? else {
            return Ok(ensure(wanted.limits()));
        };
        // Who comes back to a proxy that was restarted takes the zone as it is.
        if wanted.agree_with(&limits) || self.absence.is_some() {
            return Ok(ensure(limits));
        }
        if self.args.update {
            return Ok(Request::ChangeZone { name, change: wanted.change() });
        }
        let memory = limits.memory.map_or("unlimited memory".to_owned(), |memory| Size(memory).to_string());
        let line = format!(
            "zone {:?} exists with {memory} and share {}; omit the limits, or change them with --update",
            name.as_str(),
            limits.share
        );
        Err(Failure::new(Exit::ZoneRefused, line))
    }

    /// The connection that hangs up when the proxy goes; none while it is gone.
    fn watch(&self) -> Option<BorrowedFd<'_>> {
        self.admin.as_ref().map(|admin| admin.socket().as_fd())
    }

    /// The proxy is gone: reconnect, after restarting it if it was private.
    fn recover(&mut self) {
        self.admin = None;
        let absence = self.absence.get_or_insert(Absence { since: Instant::now(), said: false });
        if !absence.said && absence.since.elapsed() >= SAY_AFTER {
            absence.said = true;
            eprintln!("bulkhead: the proxy is gone; waiting for another one");
        }
        if self.private.is_some() && !self.restarts.allowed() {
            return;
        }
        let result = match &mut self.private {
            Some(private) => private.restart(),
            None => Ok(()),
        };
        match result.and_then(|()| self.join_zone().map(drop)) {
            Err(Failure { line, .. }) => {
                self.admin = None;
                tracing::debug!("cannot reach the proxy: {line}");
            }
            Ok(()) => {
                if self.absence.take().is_some_and(|absence| absence.said) {
                    eprintln!("bulkhead: the proxy is back");
                }
            }
        }
    }
}

/// Backs off when a proxy ends again and again.
#[derive(Default)]
struct Restarts {
    count: u32,
    last: Option<Instant>,
}

impl Restarts {
    fn allowed(&mut self) -> bool {
        let pause = RETRY * (1 << self.count.min(8));
        match self.last {
            Some(last) if self.count > 3 && last.elapsed() < pause => return false,
            Some(last) if last.elapsed() > Duration::from_secs(60) => self.count = 0,
            _ => {}
        }
        self.count += 1;
        self.last = Some(Instant::now());
        true
    }
}

/// Waits for the program, forwarding signals and keeping a proxy.
fn supervise(mut child: Child, mut signals: Signals, side: &mut ProxySide<'_>) -> io::Result<ExitStatus> {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::InvalidInput)?;
    let process = rustix::process::pidfd_open(pid, PidfdFlags::empty())?;
    loop {
        let watch = side.watch();
        let mut fds =
            vec![PollFd::new(&process, PollFlags::IN), PollFd::from_borrowed_fd(signals.fd(), PollFlags::IN)];
        fds.extend(watch.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
        let time =
            fds.len().lt(&3).then(|| rustix::event::Timespec { tv_sec: 0, tv_nsec: RETRY.subsec_nanos().into() });
        match rustix::event::poll(&mut fds, time.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        drop(fds);
        if ready[0] {
            return child.wait();
        }
        if ready[1] {
            signals.forward(pid);
        }
        // The proxy never sends anything unasked, so anything readable is the hang-up.
        if ready.get(2).copied().unwrap_or(true) {
            side.recover();
        }
    }
}

/// Finds the program as a shell would.
fn find_program(name: &OsStr, path: Option<&OsStr>) -> Result<PathBuf, Failure> {
    let not_found = || Failure::new(Exit::NotFound, format!("program not found: {}", name.display()));
    let candidates: Vec<PathBuf> = if name.as_encoded_bytes().contains(&b'/') {
        vec![PathBuf::from(name)]
    } else if name.is_empty() {
        Vec::new()
    } else {
        std::env::split_paths(path.unwrap_or(OsStr::new("/usr/bin:/bin"))).map(|dir| dir.join(name)).collect()
    };
    let mut seen = None;
    for candidate in candidates {
        match std::fs::metadata(&candidate) {
            Ok(meta) if meta.is_file() && meta.permissions().mode() & 0o111 != 0 => return Ok(candidate),
            Ok(_) => seen = Some(candidate),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => seen = Some(candidate),
            Err(_) => {}
        }
    }
    match seen {
        Some(path) => Err(Failure::new(Exit::NotExecutable, format!("not executable: {}", path.display()))),
        None => Err(not_found()),
    }
}

fn not_executable(program: &Path, error: &io::Error) -> Failure {
    let exit = if error.kind() == io::ErrorKind::NotFound { Exit::NotFound } else { Exit::NotExecutable };
    Failure::new(exit, format!("cannot execute {}: {error}", program.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_as_by_a_shell() {
        assert!(find_program(OsStr::new("sh"), Some(OsStr::new("/nowhere:/bin"))).is_ok());
        let exit = |name: &str| find_program(OsStr::new(name), Some(OsStr::new("/bin"))).unwrap_err().exit;
        assert_eq!(exit("no-such-program"), Exit::NotFound);
        assert_eq!(exit("./no-such-program"), Exit::NotFound);
        assert_eq!(exit(""), Exit::NotFound);
        assert_eq!(exit("/etc/passwd"), Exit::NotExecutable);
        assert_eq!(exit("/"), Exit::NotExecutable);
    }
}
