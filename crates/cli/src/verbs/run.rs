//! `bulkhead run`: runs a program in a zone.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, ExitStatus};
use std::time::{Duration, Instant};

use control::admin::{AdminClient, Answer, Request};
use control::backend::{Backend, Choice, Options};
use control::env_vars;
use rustix::event::{PollFd, PollFlags};
use rustix::process::{Pid, PidfdFlags};
use tracing_subscriber::filter::LevelFilter;

use crate::args::RunArgs;
use crate::check::Check;
use crate::exit::{Exit, Failure};
use crate::private_proxy::PrivateProxy;
use crate::program;
use crate::signals::Signals;
use crate::{admin, library};

/// How often to try to reconnect to a proxy that is gone.
const RETRY: Duration = Duration::from_millis(200);
/// How long it may be gone before the user is told what the program waits for.
const SAY_AFTER: Duration = Duration::from_secs(2);

/// Has CuPy keep what it compiles as PTX, without which the software GPU cannot run it.
const CUPY_PTX: &str = "CUPY_COMPILE_WITH_PTX";

pub(crate) fn run(args: RunArgs) -> Result<ExitCode, Failure> {
    crate::logging::start(LevelFilter::WARN, None);
    let failure = |error: io::Error| Failure::system(Exit::Failure, "cannot run", &error);
    // Check the arguments before anything is started.
    let program = program::find(&args.command[0])?;
    let dir = library::find()?;
    let signals = Signals::catch().map_err(failure)?;
    say_if_on_the_cpu(&args);
    let check = Check::begin(&args.check)?;
    let mut side = ProxySide::open(&args, check.as_ref())?;
    let socket = side.join_zone()?;

    let mut command = Command::new(&program);
    std::os::unix::process::CommandExt::arg0(&mut command, &args.command[0]);
    command.args(&args.command[1..]);
    library::put_in_front(&mut command, &dir, &socket);
    if side.is_soft() && std::env::var_os(CUPY_PTX).is_none() {
        command.env(CUPY_PTX, "1");
    }
    if let Some(check) = &check {
        if !side.is_soft() {
            return Err(Failure::new(Exit::Usage, "--check and --lockstep need the software GPU (--backend soft)"));
        }
        command.env(env_vars::SOFT_CHECK, check.wanted());
    }
    sandbox::jail::die_with_parent(&mut command);
    let child = command.spawn().map_err(|error| program::not_started(&program, &error))?;
    let status = supervise(child, signals, &mut side).map_err(failure)?;
    // Before the proxy ends its workers: one may still be saying what the program left behind.
    let findings = check.map_or(Ok(0), Check::finish);
    drop(side);
    Ok(if findings? > 0 && status.success() { Exit::Findings.into() } else { program::exit_code(status) })
}

/// Nobody is to wonder why a program is slow: without a GPU, and unless it was asked for, the software GPU is said to be
/// one.
fn say_if_on_the_cpu(args: &RunArgs) {
    if args.socket.is_none() && args.backend.may_be_either() {
        let nvidia = Options { choice: Choice::Nvidia, ..args.backend.options() };
        if let Err(why) = Backend::choose(&nvidia) {
            eprintln!("bulkhead: {why}; computing on the CPU (--backend soft does so without this line)");
        }
    }
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
    fn open(args: &'a RunArgs, check: Option<&Check>) -> Result<Self, Failure> {
        let private = match &args.socket {
            Some(_) => None,
            None => Some(PrivateProxy::start(&args.backend, args.jail, check)?),
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
            Answer::UnknownZone { zones } => Err(admin::unknown_zone(&self.args.zone, &zones)),
            other => Err(admin::unexpected(other)),
        }
    }

    /// Whether the zone's GPU is computed on the CPU.
    fn is_soft(&self) -> bool {
        match &self.admin {
            Some(client) if self.private.is_none() => {
                matches!(admin::ask(client, &Request::Status), Ok(Answer::Status(status)) if status.backend == "soft")
            }
            _ => matches!(Backend::choose(&self.args.backend.options()), Ok(Backend::Soft { .. })),
        }
    }

    /// What to ask the proxy for.
    fn request(&self, client: &AdminClient) -> Result<Request, Failure> {
        let (name, wanted) = (&self.args.zone, &self.args.limits);
        if self.private.is_some() {
            return Ok(Request::EnsureZone { name: name.clone(), limits: wanted.limits(), lease: true });
        }
        // Who comes back to a proxy that was restarted takes the zone as it is, if it is there.
        let back = self.absence.is_some() && wanted.given();
        if back && let Answer::Zone { limits, .. } = admin::ask(client, &Request::FindZone { name: name.clone() })? {
            return Ok(Request::EnsureZone { name: name.clone(), limits, lease: true });
        }
        admin::zone_request(client, name, wanted, self.args.update)
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
