//! The exporter as a process.

use std::io;
use std::net::TcpListener;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};

use clap::Args;
use control::{env_vars, packet};
use rustix::event::{PollFd, PollFlags};
use signal_hook::consts::{SIGINT, SIGTERM};
use tracing_subscriber::filter::LevelFilter;

use crate::exit::{Exit, Failure};
use crate::settings::{self, Http};
use crate::{Programs, logging};

/// What the exporter is told.
#[derive(Debug, Args)]
pub struct ExporterArgs {
    /// Configuration file (default: /etc/bulkhead/bulkhead.toml, if it exists)
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// State directory of the broker (default: /run/bulkhead)
    #[arg(long, value_name = "PATH")]
    pub state_dir: Option<PathBuf>,
    /// Name by which it may be asked for, besides those that it always has
    #[arg(long = "name", value_name = "NAME", hide = true)]
    pub names: Vec<String>,
    /// Also serve the names of NVIDIA's DCGM exporter
    #[arg(long, hide = true)]
    pub dcgm_names: bool,
    /// Standard input is a socket to the proxy that started us: it sends what we listen at, and we end with it
    #[arg(long, hide = true)]
    pub managed: bool,
}

/// Serves until a signal comes, or the proxy that started it is gone.
pub fn run(args: &ExporterArgs) -> Result<ExitCode, Failure> {
    let _ = rustix::thread::set_name(c"bulkhead-export");
    logging::start(LevelFilter::INFO, None);
    let failure = |error: io::Error| Failure::system(Exit::Failure, "the exporter cannot start", &error);
    let stop = crate::on_signals(&[SIGTERM, SIGINT]).map_err(failure)?;
    let mut options = exporter::Options { names: args.names.clone(), dcgm_names: args.dcgm_names };
    let mut state_dir = args.state_dir.clone();
    let (listener, lifeline) = if args.managed {
        let proxy = io::stdin().as_fd().try_clone_to_owned().map_err(failure)?;
        let listener = packet::receive(&proxy, &mut [0; 16]).map_err(failure)?.fds.pop();
        let listener =
            listener.ok_or_else(|| Failure::new(Exit::Usage, "a managed exporter is started by the proxy"))?;
        (TcpListener::from(listener), Some(proxy))
    } else {
        let path = args.config.clone().or_else(settings::usual_config);
        let file = settings::read(path.as_deref())?;
        state_dir = state_dir.or_else(|| file.state_dir.clone());
        options.names.extend(file.http_names.iter().cloned());
        options.dcgm_names |= file.dcgm_names;
        let Some(address) = file.http else {
            tracing::info!("metrics are off: the configuration has no [http] listen");
            // To the service manager, one that ends without a word has failed.
            crate::broker::notify_ready();
            return Ok(ExitCode::SUCCESS);
        };
        let listener = exporter::listen(address).map_err(|error| Failure::new(Exit::Failure, error.to_string()))?;
        if rustix::process::geteuid().is_root() {
            let (broker, exporter) = settings::daemon_uids(&file);
            sandbox::jail::become_user(exporter, broker).map_err(failure)?;
        }
        (listener, None)
    };
    let state_dir = state_dir.unwrap_or_else(|| settings::STATE_DIR.into());
    rustix::thread::set_no_new_privs(true).map_err(|error| failure(error.into()))?;
    let address = exporter::serve(listener, state_dir.join("status.sock"), options).map_err(failure)?;
    tracing::info!(%address, "listening for metrics and status page");
    if !args.managed {
        crate::broker::notify_ready();
    }
    wait(&stop, lifeline.as_ref()).map_err(failure)?;
    Ok(ExitCode::SUCCESS)
}

/// Until one of them has something to say, or hangs up.
fn wait(stop: &OwnedFd, lifeline: Option<&OwnedFd>) -> io::Result<()> {
    let mut fds = vec![PollFd::new(stop, PollFlags::IN)];
    fds.extend(lifeline.map(|lifeline| PollFd::new(lifeline, PollFlags::IN)));
    rustix::io::retry_on_intr(|| rustix::event::poll(&mut fds, None))?;
    Ok(())
}

/// Starts an exporter that listens where we do; it ends when the socket in the answer is closed.
pub fn start(
    programs: &Programs,
    http: &Http,
    listener: &TcpListener,
    state_dir: &Path,
    (uid, gid): (Option<u32>, Option<u32>),
) -> io::Result<(Child, OwnedFd)> {
    let (ours, theirs) = packet::pair()?;
    let [program, arguments @ ..] = &programs.exporter[..] else { return Err(io::ErrorKind::InvalidInput.into()) };
    let mut command = Command::new(program);
    command.arg0("bulkhead").args(arguments).arg("--managed").arg("--state-dir").arg(state_dir);
    for name in &http.options.names {
        command.arg("--name").arg(name);
    }
    command.args(http.options.dcgm_names.then_some("--dcgm-names"));
    command.env_clear().envs(std::env::var_os(env_vars::LOG).map(|level| (env_vars::LOG, level)));
    command.envs(http.json_logs.then_some((env_vars::LOG_FORMAT, "json")));
    command.stdin(Stdio::from(theirs)).stdout(Stdio::null()).process_group(0);
    // The group first: who has given up root cannot choose one.
    if let Some(gid) = gid {
        command.gid(gid);
    }
    if let Some(uid) = uid {
        command.uid(uid);
    }
    let child = command.spawn()?;
    drop(command);
    packet::send(&ours, b"listener", &[listener.as_fd()])?;
    Ok((child, ours))
}
