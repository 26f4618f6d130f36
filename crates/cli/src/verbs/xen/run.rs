//! `bulkhead xen run`: creates a domain and its zone, and runs a program in it.

use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use control::ZoneName;
use control::admin::{AdminClient, Answer, Request};
use guest::domain::{Definition, Domain, DomainError, Kind, Purpose};
use guest::image;
use guest::link::host::{self, HostEnd};
use guest::link::{LinkError, frames::Down};
use rustix::event::{PollFd, PollFlags, Timespec};
use xen::store::Store;
use xen::sys::XenError;
use xen::sys::loop_device::LoopDevice;

use super::session::Session;
use crate::admin;
use crate::args::LimitArgs;
use crate::exit::{Exit, Failure};
use crate::progress::Progress;
use crate::signals::Signals;
use crate::xen_args::{KindArg, XenRunArgs};

/// Bytes that one grant frame covers.
const GRANT_FRAME: u64 = 2 << 20;

pub(super) fn run(args: XenRunArgs) -> Result<ExitCode, Failure> {
    let parts = [args.image.join(image::KERNEL), args.image.join(image::ROOT)];
    for file in parts.iter().chain(&args.root).chain(&args.root_disk) {
        if !file.is_file() && !is_block_device(file) {
            let line = format!("{} does not exist (see bulkhead image --help)", file.display());
            return Err(Failure::new(Exit::NoImage, line));
        }
    }
    let mut store = Store::open().map_err(|error| Failure::new(Exit::NoXen, error.to_string()))?;
    let mut signals = Signals::catch().map_err(|error| Failure::system(Exit::Failure, "cannot run", &error))?;
    let name = name().map_err(|error| Failure::system(Exit::Failure, "cannot generate a name", &error))?;
    let zone = Zone::join(&args, &name)?;
    let dir = TempDir::create(&name)?;
    let root = dir.archive(&args)?;
    let disk = args.root_disk.as_deref().map(Disk::of).transpose()?;
    let definition = Definition {
        name: &name,
        uuid: None,
        purpose: Purpose::Command,
        kind: kind(args.kind)?,
        kernel: &args.image.join(image::KERNEL),
        root: &root,
        disk: disk.as_ref().map(Disk::path),
        memory: args.memory,
        vcpus: args.vcpus,
        host: store.read_text("domid").ok().flatten().and_then(|text| text.parse().ok()).unwrap_or(0),
        grant_frames: u32::try_from(args.shared_memory.div_ceil(GRANT_FRAME)).unwrap_or(u32::MAX),
    };
    let domain = Domain::create(&definition, &dir.path).map_err(|error| domain_failure(&error))?;
    let _admitted = Admitted::new(&mut store, domain.id(), zone.name.as_str())?;
    domain.unpause().map_err(|error| domain_failure(&error))?;
    let progress = Progress::of("booting the domain");
    let connected = connect(&mut store, &domain, &mut signals, args.boot_timeout);
    drop(progress);
    let link = match connected? {
        Connected::Link(link) => link,
        Connected::Signal(signal) => return Ok(ExitCode::from(128 + signal)),
    };
    let mut session = Session::new(link, signals, store, args.terminal);
    session.send_all(&description(&args))?;
    session.run(&domain)
}

/// A block device for the domain.
enum Disk {
    Own(LoopDevice),
    Given(PathBuf),
}

impl Disk {
    fn of(path: &Path) -> Result<Self, Failure> {
        if is_block_device(path) {
            return Ok(Self::Given(path.to_owned()));
        }
        let failure = |error: XenError| Failure::system(Exit::Failure, &error.to_string(), &error.source);
        LoopDevice::attach(path).map(Self::Own).map_err(failure)
    }

    fn path(&self) -> &Path {
        match self {
            Self::Own(device) => device.path(),
            Self::Given(path) => path,
        }
    }
}

fn is_block_device(path: &Path) -> bool {
    use std::os::unix::fs::FileTypeExt;
    path.metadata().is_ok_and(|file| file.file_type().is_block_device())
}

/// The zone, for as long as the connection is kept.
struct Zone {
    name: ZoneName,
    _admin: AdminClient,
}

impl Zone {
    fn join(args: &XenRunArgs, domain: &str) -> Result<Self, Failure> {
        let client = admin::connect(&args.socket)?;
        let wanted = LimitArgs { memory: args.gpu_memory, share: args.share };
        let (name, request) = match &args.zone {
            // One that is given without limits must exist, and stays as it is.
            Some(name) => (name.clone(), admin::zone_request(&client, name, &wanted, args.update)?),
            None => {
                let name: ZoneName = domain
                    .parse()
                    .map_err(|_| Failure::new(Exit::Failure, "the domain's name is not a valid zone name"))?;
                let found = admin::ask(&client, &Request::FindZone { name: name.clone() })?;
                // One that the domain had before stays as it is.
                if !wanted.given() && matches!(found, Answer::Zone { .. }) {
                    return Ok(Self { name, _admin: client });
                }
                (name.clone(), Request::EnsureZone { name, limits: wanted.limits(), lease: true })
            }
        };
        match admin::ask(&client, &request)? {
            Answer::Zone { .. } => Ok(Self { name, _admin: client }),
            other if args.zone.is_some() => Err(admin::unexpected_about(other, &client, &[&name])),
            other => Err(admin::unexpected(other)),
        }
    }
}

/// The domain is admitted to the zone until this is dropped.
struct Admitted {
    domain: xen::DomainId,
}

impl Admitted {
    fn new(store: &mut Store, domain: xen::DomainId, zone: &str) -> Result<Self, Failure> {
        let done = xen::admission::admit(store, domain, zone);
        done.map_err(|error| Failure::new(Exit::NoXen, format!("cannot assign the domain to its zone: {error}")))?;
        Ok(Self { domain })
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        if let Ok(mut store) = Store::open() {
            let _ = xen::admission::dismiss(&mut store, self.domain);
        }
    }
}

/// A directory for files that are needed only until the domain is created.
struct TempDir {
    path: PathBuf,
}

impl TempDir {
    fn create(name: &str) -> Result<Self, Failure> {
        use std::os::unix::fs::DirBuilderExt;
        let path = std::env::temp_dir().join(name);
        let made = std::fs::DirBuilder::new().mode(0o700).create(&path);
        made.map_err(|error| Failure::system(Exit::Failure, &format!("cannot create {}", path.display()), &error))?;
        Ok(Self { path })
    }

    /// What the domain boots from: the image's archive, and the tenant's behind it.
    fn archive(&self, args: &XenRunArgs) -> Result<PathBuf, Failure> {
        let ours = args.image.join(image::ROOT);
        let Some(tenant) = &args.root else { return Ok(ours) };
        let both = self.path.join("root.cpio");
        let append = || -> io::Result<()> {
            let mut out = std::fs::File::create(&both)?;
            for part in [&ours, tenant] {
                io::copy(&mut std::fs::File::open(part)?, &mut out)?;
            }
            Ok(())
        };
        append().map_err(|error| Failure::system(Exit::Failure, "cannot concatenate the archives", &error))?;
        Ok(both)
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

enum Connected {
    Link(HostEnd),
    /// A signal asked to terminate.
    Signal(u8),
}

/// Waits until the guest offers its link.
fn connect(
    store: &mut Store,
    domain: &Domain,
    signals: &mut Signals,
    timeout: Duration,
) -> Result<Connected, Failure> {
    let failure = |error: LinkError| Failure::new(Exit::Guest, error.to_string());
    let (start, node) = (Instant::now(), host::node(domain.id()));
    for watched in [node.as_str(), "@releaseDomain"] {
        store.watch(watched, "link").map_err(|error| failure(error.into()))?;
    }
    loop {
        while store.next_event(Some(Duration::ZERO)).map_err(|error| failure(error.into()))?.is_some() {}
        if let Some(text) = store.read_text(&node).map_err(|error| failure(error.into()))? {
            return HostEnd::accept(domain.id(), &text).map(Connected::Link).map_err(failure);
        }
        if !domain.exists() {
            return Err(failure(LinkError::Gone));
        }
        let left = timeout.checked_sub(start.elapsed()).ok_or_else(|| failure(LinkError::Timeout(timeout)))?;
        let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        let mut fds = [
            PollFd::from_borrowed_fd(store.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(signals.fd(), PollFlags::IN),
        ];
        let _ = rustix::event::poll(&mut fds, Some(&left));
        if let Some(signal) = signals.take().into_iter().find(|signal| Signals::is_termination(*signal)) {
            return Ok(Connected::Signal(signal as u8));
        }
    }
}

/// The description of the program for the guest.
fn description(args: &XenRunArgs) -> Vec<Down> {
    use std::os::unix::ffi::OsStrExt;
    let mut frames: Vec<Down> = args.command.iter().map(|word| Down::Argument(word.as_bytes().to_vec())).collect();
    let here = |name: &str| std::env::var_os(name).map(|value| [name.as_bytes(), b"=", value.as_bytes()].concat());
    let term = args.terminal.then(|| here("TERM")).flatten();
    let given = args.environment.iter().filter_map(|variable| match variable.contains('=') {
        true => Some(variable.as_bytes().to_vec()),
        false => here(variable),
    });
    frames.extend(term.into_iter().chain(given).map(Down::Variable));
    frames.extend(args.workdir.iter().map(|dir| Down::WorkingDirectory(dir.as_os_str().as_bytes().to_vec())));
    frames.push(Down::Start { terminal: args.terminal });
    frames
}

fn kind(arg: KindArg) -> Result<Kind, Failure> {
    match arg {
        KindArg::Pvh => Ok(Kind::Pvh),
        KindArg::Pv => Ok(Kind::Pv),
        KindArg::Auto => Kind::best().map_err(|error| domain_failure(&error)),
    }
}

/// Of a domain, its zone if it has one of its own, and its files.
fn name() -> io::Result<String> {
    let mut random = [0; 4];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
    Ok(format!("bulkhead-{:08x}", u32::from_ne_bytes(random)))
}

fn domain_failure(error: &DomainError) -> Failure {
    let exit = if matches!(error, DomainError::NoToolstack(_)) { Exit::NoXen } else { Exit::Guest };
    Failure::new(exit, error.to_string())
}
