//! The spawner as a process.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use control::jail::Demand;
use control::spawner::Spawner;
use control::{packet, process};
use rustix::event::{PollFd, PollFlags};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use spawner::{Local, Served, serve};

use crate::args::ProxyArgs;
use crate::exit::{Exit, Failure};
use crate::{Programs, settings, state_dir};

/// Serves the broker at standard input, or one after the other at a socket.
pub fn run(args: &ProxyArgs, programs: &Programs) -> Result<ExitCode, Failure> {
    let _ = rustix::thread::set_name(c"bulkhead-spawn");
    let failure = |error: io::Error| Failure::system(Exit::Failure, "the spawner cannot start", &error);
    if !rustix::process::geteuid().is_root() {
        return Err(Failure::new(Exit::Usage, "a spawner is root's; others need none"));
    }
    let file = settings::read(settings::config_path(args).as_deref())?;
    settings::start_logs(args, &file);
    let settings = settings::spawner(args, &file, programs)?;
    if settings.jail == Demand::Off {
        return Err(Failure::new(Exit::Usage, "a spawner starts no workers without a jail"));
    }
    let uid = settings.broker_uid();
    state_dir::prepare(&settings.state_dir, uid)
        .map_err(|error| Failure::system(Exit::StateDir, "cannot use the state directory", &error))?;
    let stop = crate::on_signals(&[SIGTERM, SIGINT, SIGHUP]).map_err(failure)?;
    match &args.spawner {
        None => {
            let broker = io::stdin().as_fd().try_clone_to_owned().map_err(failure)?;
            rustix::net::sockopt::socket_type(&broker)
                .map_err(|_| Failure::new(Exit::Usage, "a spawner is started by the proxy only"))?;
            let local = Local::open(settings);
            // Signals of a terminal are for the broker, with which this ends.
            if attend(&local, &broker, &[]) == Some(Served::HungUp { everything: true }) {
                local.retire(true);
            }
        }
        Some(path) => {
            let local = Local::open(settings);
            let listener = listen(path, uid).map_err(failure)?;
            crate::broker::notify_ready();
            while let Some(broker) = next(&local, &listener, &stop).map_err(failure)? {
                match process::peer(&broker) {
                    // A broker that comes takes the place of the last one, which may not have gone by itself.
                    Ok(peer) if peer.uid == uid || peer.uid == 0 => {
                        attend(&local, &broker, &[listener.as_fd(), stop.as_fd()]);
                    }
                    _ => tracing::warn!("a stranger wants to be served as the broker"),
                }
            }
            let _ = std::fs::remove_file(path);
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn attend(local: &Local, broker: &OwnedFd, others: &[BorrowedFd<'_>]) -> Option<Served> {
    serve(local, broker, others)
        .inspect_err(|error| tracing::error!(%error, "the broker is not served any more"))
        .ok()
}

fn listen(path: &Path, uid: u32) -> io::Result<OwnedFd> {
    let listener = packet::listen(path, 0o600, 4)?;
    packet::set_access(path, 0o600, Some(uid), None)?;
    Ok(listener)
}

/// The next broker; none when the spawner is to end.
fn next(local: &Local, listener: &OwnedFd, stop: &OwnedFd) -> io::Result<Option<OwnedFd>> {
    loop {
        local.tidy(Instant::now());
        let mut fds = [PollFd::new(listener, PollFlags::IN), PollFd::new(stop, PollFlags::IN)];
        match rustix::event::poll(&mut fds, None) {
            Ok(_) if !fds[1].revents().is_empty() => return Ok(None),
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => continue,
            Err(error) => return Err(error.into()),
        }
        match packet::accept(listener) {
            Ok(Some(broker)) => {
                rustix::io::ioctl_fionbio(&broker, false)?;
                return Ok(Some(broker));
            }
            Ok(None) => {}
            Err(error) => {
                tracing::warn!(%error, "cannot accept the broker");
                // Out of descriptors, most likely: a moment's rest keeps this from spinning.
                std::thread::sleep(Duration::from_millis(100));
            }
        }
    }
}

/// Starts a spawner of our own; answers with the socket by which it is spoken to.
pub fn start(programs: &Programs) -> io::Result<(Child, OwnedFd)> {
    let (ours, theirs) = packet::pair()?;
    let [program, arguments @ ..] = &programs.spawner[..] else { return Err(io::ErrorKind::InvalidInput.into()) };
    let mut command = Command::new(program);
    command.arg0("bulkhead").args(arguments).args(&programs.arguments);
    command.stdin(Stdio::from(theirs)).stdout(Stdio::null());
    // Out of reach of the terminal's signals: the broker has things to tell it when it ends.
    command.process_group(0);
    Ok((command.spawn()?, ours))
}
