//! The connection of this process to its worker: opened by `cuInit`, once.

#[cfg(feature = "xen")]
mod guest;
#[cfg(not(feature = "xen"))]
#[path = "session/no_guest.rs"]
mod guest;

use std::ffi::OsString;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::time::Duration;

use cuda_abi::border::Out;
use cuda_abi::env_vars;
use cuda_abi::error::*;
use cuda_abi::wire::ops::{MAX_VALUE, MAX_VARIABLES, Start, Variable};
use cuda_abi::wire::{self, Field, List, Operation, Text, encode_into};
use cuda_abi::{CUDA_VERSION, plan};
use idm::bootstrap::{
    self, Attach, BootstrapError, HELLO_NEEDS_FRESH_WORKER, Handover, Hello, Welcome, WelcomeStatus,
};
use idm::peer::PeerWatch;
use idm::region::Placement;
use parking_lot::Mutex;

use crate::device::Devices;
use crate::variables;

/// Starting a worker takes a fraction of a second; a broker that takes this long has a problem.
const WELCOME_TIMEOUT: Duration = Duration::from_secs(60);
/// After this a person is told what the program waits for.
const WELCOME_QUIET: Duration = Duration::from_secs(2);

pub(crate) struct Session {
    pub client: idm::Client,
    /// For memory; locked across what is handed over and the message that speaks of it.
    pub link: Mutex<Link>,
    pub devices: Devices,
    pub launch_blocking: bool,
}

/// How memory gets to the worker.
pub(crate) enum Link {
    /// As descriptors.
    Socket(OwnedFd),
    /// As grants, to this domain.
    #[cfg(feature = "xen")]
    Guest {
        allocator: xen::sys::gntalloc::GrantAllocator,
        backend: xen::DomainId,
        granted: std::sync::Arc<xen::guest::Granted>,
    },
}

impl Link {
    /// What a forked child must close, for its parent's end to be noticed.
    fn descriptor(&self) -> i32 {
        match self {
            Self::Socket(socket) => socket.as_raw_fd(),
            #[cfg(feature = "xen")]
            Self::Guest { allocator, .. } => allocator.fd().as_raw_fd(),
        }
    }
}

static SESSION: OnceLock<Session> = OnceLock::new();
static STARTING: Mutex<()> = Mutex::new(());
/// Set in a forked child of a process that had called `cuInit`: as natively, nothing works there any more.
static FORKED: AtomicBool = AtomicBool::new(false);
/// The driver started and showed no device.
static NO_DEVICE: AtomicBool = AtomicBool::new(false);
/// The link's descriptor, for the fork handler, which may not lock.
static SOCKET: AtomicI32 = AtomicI32::new(-1);

/// The session, if `cuInit` succeeded in this very process.
#[inline]
pub(crate) fn get() -> CudaResult<&'static Session> {
    match SESSION.get() {
        Some(session) if !FORKED.load(Ordering::Relaxed) => Ok(session),
        _ => Err(CUDA_ERROR_NOT_INITIALIZED),
    }
}

#[inline]
pub(crate) fn ready() -> CudaResult {
    get().map(|_| ())
}

/// `BULKHEAD_LOG=1`: say on stderr which calls failed.
pub(crate) fn is_verbose() -> bool {
    static VERBOSE: OnceLock<bool> = OnceLock::new();
    *VERBOSE.get_or_init(env_vars::is_verbose)
}

/// The worker of this process is gone, and with it all its memory: said once, then every call fails.
#[cold]
pub(crate) fn lost() -> CUresult {
    static SAID: AtomicBool = AtomicBool::new(false);
    if !guest::is_leaving() && !SAID.swap(true, Ordering::Relaxed) {
        eprintln!("bulkhead: the GPU worker of this process is gone; start the program again");
    }
    CUDA_ERROR_DEVICE_UNAVAILABLE
}

/// The version before `cuInit`: asking for it must not start anything (a program may fork afterwards). The broker leaves
/// the node's version beside the zone's socket.
fn promised_version() -> u32 {
    let read =
        |path: PathBuf| std::fs::read_to_string(path.parent()?.join("driver-version")).ok()?.trim().parse().ok();
    let version = if is_guest() { guest::promised_version() } else { read(env_vars::zone_socket()) };
    version.map_or(CUDA_VERSION, |version: u32| version.min(CUDA_VERSION))
}

fn is_guest() -> bool {
    env_vars::is_guest(guest::is_possible)
}

fn start() -> CudaResult {
    if FORKED.load(Ordering::Relaxed) {
        return Err(CUDA_ERROR_NOT_INITIALIZED);
    }
    let _starting = STARTING.lock();
    if SESSION.get().is_some() {
        return Ok(());
    }
    // As natively, a process that saw no device stays without one; asking again and again must cost nothing.
    if NO_DEVICE.load(Ordering::Relaxed) {
        return Err(CUDA_ERROR_NO_DEVICE);
    }
    let session = connect().map_err(|failure| {
        if failure.code == CUDA_ERROR_NO_DEVICE && failure.text.is_empty() {
            NO_DEVICE.store(true, Ordering::Relaxed);
        } else {
            eprintln!("bulkhead: {}", failure.text);
        }
        failure.code
    })?;
    if session.devices.count() == 0 {
        NO_DEVICE.store(true, Ordering::Relaxed);
        return Err(CUDA_ERROR_NO_DEVICE);
    }
    SOCKET.store(session.link.lock().descriptor(), Ordering::Relaxed);
    let session = SESSION.get_or_init(|| session);
    guest::print_output(session);
    // SAFETY: the handler touches atomics and closes one descriptor.
    unsafe { libc::pthread_atfork(None, None, Some(in_forked_child)) };
    Ok(())
}

/// After a wait for the GPU.
#[inline]
pub(crate) fn print_output(session: &Session) {
    guest::print_at_wait(session);
}

extern "C" fn in_forked_child() {
    FORKED.store(true, Ordering::Relaxed);
    // SAFETY: closing the child's copy only; nothing in the child uses the session any more.
    unsafe { libc::close(SOCKET.load(Ordering::Relaxed)) };
}

/// Why `cuInit` failed: the code for the program, the text for the person.
struct Failure {
    code: CUresult,
    text: String,
}

fn failure<E: std::fmt::Display>(code: CUresult, what: &'static str) -> impl FnOnce(E) -> Failure {
    move |error| Failure { code, text: format!("{what}: {error}") }
}

fn connect() -> Result<Session, Failure> {
    let variables = variables::for_driver();
    let flags = if variables.is_empty() { 0 } else { HELLO_NEEDS_FRESH_WORKER };
    let hello = Hello::new(wire::fingerprint(), flags);
    let (client, link) =
        if is_guest() { guest::connect(&hello)? } else { connect_by_socket(&env_vars::zone_socket(), &hello)? };
    let devices = greet(&client, &variables)?;
    Ok(Session { client, link: Mutex::new(link), devices, launch_blocking: variables::launch_blocking() })
}

fn connect_by_socket(path: &Path, hello: &Hello) -> Result<(idm::Client, Link), Failure> {
    let no_device = CUDA_ERROR_NO_DEVICE;
    let broker = reach(path)
        .map_err(|error| Failure { code: no_device, text: format!("no proxy at {}: {error}", path.display()) })?;
    let broken = "invalid answer from the proxy";
    bootstrap::send(&broker, hello, &[]).map_err(failure(no_device, broken))?;
    let (welcome, fds) =
        await_message::<Welcome>(&broker, WELCOME_QUIET, || eprintln!("bulkhead: waiting for the proxy"))
            .map_err(failure(no_device, broken))?;
    let socket = match (welcome.status(), fds.into_iter().next()) {
        (Some(WelcomeStatus::Ok), Some(socket)) => socket,
        _ => return Err(refused(&welcome)),
    };
    let (attach, fds) =
        await_message::<Attach>(&socket, WELCOME_QUIET, || eprintln!("bulkhead: waiting for a GPU worker"))
            .map_err(failure(no_device, "no word from the worker"))?;
    let Some(region) = fds.into_iter().next() else {
        return Err(Failure { code: no_device, text: "the worker sent no region".to_owned() });
    };
    reserve_window().map_err(failure(CUDA_ERROR_OPERATING_SYSTEM, "cannot reserve the GPU's address range"))?;
    let mapped = "cannot map the shared region";
    let client = idm::Client::attach_in_part(region, attach.layout, Placement::Anywhere, wire::STAGING_AT_START)
        .map_err(failure(CUDA_ERROR_OPERATING_SYSTEM, mapped))?;
    keep_from_children(client.region());
    watch(&client, &socket).map_err(failure(CUDA_ERROR_OPERATING_SYSTEM, "cannot watch the worker"))?;
    hand_over_output(&socket);
    Ok((client, Link::Socket(socket)))
}

/// A message that may take a while. Who waits is told so, once, after a quiet time.
fn await_message<T: bootstrap::Message>(
    socket: &OwnedFd,
    quiet: Duration,
    say: impl FnOnce(),
) -> Result<(T, Vec<OwnedFd>), BootstrapError> {
    match bootstrap::recv_within(socket, quiet) {
        Err(BootstrapError::Timeout) => {
            say();
            bootstrap::recv_within(socket, WELCOME_TIMEOUT.saturating_sub(quiet))
        }
        came => came,
    }
}

/// Why there is no worker, in the broker's words.
fn refused(welcome: &Welcome) -> Failure {
    let text = format!("the proxy refused: {}", welcome.text());
    match welcome.status() {
        // What the native driver says where library and kernel module are of different versions.
        Some(WelcomeStatus::VersionMismatch) => {
            let text = format!("{text} (this client library is version {})", env!("CARGO_PKG_VERSION"));
            Failure { code: CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, text }
        }
        _ => Failure { code: CUDA_ERROR_NO_DEVICE, text },
    }
}

/// Connects to the broker. While a new broker takes over from an old one, its sockets are away for a moment.
fn reach(path: &Path) -> Result<OwnedFd, BootstrapError> {
    const TAKEOVER: Duration = Duration::from_millis(500);
    const PAUSE: Duration = Duration::from_millis(20);
    let start = std::time::Instant::now();
    loop {
        match bootstrap::connect(path) {
            Err(_) if path.exists() && start.elapsed() < TAKEOVER => std::thread::sleep(PAUSE),
            result => return result,
        }
    }
}

/// Keeps the ranges of the address plan free of anything else in this process.
fn reserve_window() -> std::io::Result<()> {
    static RESERVED: AtomicBool = AtomicBool::new(false);
    if RESERVED.load(Ordering::Relaxed) {
        return Ok(());
    }
    for (base, size) in [(plan::DEVICE_BASE, plan::DEVICE_SIZE), (plan::HOST_BASE, plan::HOST_SIZE)] {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
        // SAFETY: NOREPLACE makes sure that nothing is there yet.
        let got = unsafe { libc::mmap(base as *mut _, size as usize, libc::PROT_NONE, flags, -1, 0) };
        if got == libc::MAP_FAILED {
            return Err(std::io::Error::last_os_error());
        }
        if got as u64 != base {
            // SAFETY: a mapping that was just made; kernels older than NOREPLACE put it elsewhere.
            unsafe { libc::munmap(got, size as usize) };
            return Err(std::io::ErrorKind::AddrInUse.into());
        }
    }
    RESERVED.store(true, Ordering::Relaxed);
    Ok(())
}

/// A forked child must not write into its parent's ring.
fn keep_from_children(region: &idm::region::Region) {
    // SAFETY: the region's own mapping; a child that touches it faults, as with the native driver's mappings.
    unsafe { libc::madvise(region.address() as *mut _, region.len(), libc::MADV_DONTFORK) };
}

/// Notices at once when the worker goes. The thread takes no signals: they are the application's.
fn watch(client: &idm::Client, socket: &OwnedFd) -> std::io::Result<()> {
    let (watch, stop) = PeerWatch::new(socket.try_clone()?, None, client.gone().clone(), || {})?;
    // The watch ends with the process.
    std::mem::forget(stop);
    without_signals(|| watch.spawn())?;
    Ok(())
}

/// Runs something that starts a thread, so that the thread starts with all signals blocked.
pub(crate) fn without_signals<T>(start: impl FnOnce() -> T) -> T {
    let mut all = MaybeUninit::uninit();
    let mut before = MaybeUninit::uninit();
    // SAFETY: sets are filled before they are read.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
    }
    let result = start();
    // SAFETY: filled above.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut()) };
    result
}

/// What kernels print must come out where this program prints.
fn hand_over_output(socket: &OwnedFd) {
    // SAFETY: descriptor 1 is borrowed for the call only; if it is closed, sending fails and nothing is printed.
    let output = unsafe { BorrowedFd::borrow_raw(1) };
    if bootstrap::send(socket, &Handover::default(), &[output]).is_err()
        && let Ok(nowhere) = std::fs::File::open("/dev/null")
    {
        let _ = bootstrap::send(socket, &Handover::default(), &[nowhere.as_fd()]);
    }
}

/// The first request, and the device snapshot that answers it.
fn greet(client: &idm::Client, variables: &[(OsString, OsString)]) -> Result<Devices, Failure> {
    let broken = "the worker did not start";
    let variables: Vec<Variable<'_>> = variables
        .iter()
        .map(|(name, value)| Variable { name: Text(name.as_bytes()), value: Text(value.as_bytes()) })
        .collect();
    let fits = |variable: &Variable<'_>| variable.name.0.len().max(variable.value.0.len()) <= MAX_VALUE;
    if variables.len() > MAX_VARIABLES || !variables.iter().all(fits) {
        let text = "too many CUDA_* variables, or too long ones".to_owned();
        return Err(Failure { code: CUDA_ERROR_INVALID_VALUE, text });
    }
    let request = Start { variables: List::new(&variables) };
    let mut lane = client.lane().map_err(failure(CUDA_ERROR_OPERATING_SYSTEM, broken))?;
    let reply = lane
        .call(Start::CODE, 0, 0, request.size(), |slot| encode_into(&request, slot))
        .map_err(failure(CUDA_ERROR_NO_DEVICE, broken))?;
    if reply.status != CUDA_SUCCESS as i32 {
        let code = reply.status as CUresult;
        if code == CUDA_ERROR_NO_DEVICE {
            return Err(Failure { code, text: String::new() });
        }
        return Err(Failure { code, text: format!("the driver did not start: {}", cuda_abi::error::name(code)) });
    }
    let snapshot = wire::decode(reply.payload).map_err(failure(CUDA_ERROR_NO_DEVICE, broken))?;
    Ok(Devices::new(&snapshot))
}

#[allow(non_snake_case)]
pub(crate) mod api {
    use super::*;

    pub(crate) fn cuInit(flags: u32) -> CudaResult {
        if flags != 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        start()
    }

    pub(crate) fn cuDriverGetVersion(version: Out<i32>) -> CudaResult {
        version.required()?;
        let known = match get() {
            Ok(session) => session.devices.driver_version,
            Err(_) => promised_version(),
        };
        version.put(known as i32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A broker that answers one client with this.
    fn refused_with(welcome: Welcome) -> Failure {
        let path = std::env::temp_dir().join(format!("libcuda-{}-{}", std::process::id(), welcome.status));
        let listener = bootstrap::listen(&path).unwrap();
        let broker = std::thread::spawn(move || {
            let client = bootstrap::accept(&listener).unwrap();
            let (hello, _) = bootstrap::recv::<Hello>(&client).unwrap();
            bootstrap::send(&client, &welcome, &[]).unwrap();
            hello.abi_fingerprint
        });
        let failure = connect_by_socket(&path, &Hello::new(wire::fingerprint(), 0)).err().unwrap();
        assert_eq!(broker.join().unwrap(), wire::fingerprint());
        std::fs::remove_file(path).unwrap();
        failure
    }

    #[test]
    fn a_long_wait_is_told_once_and_a_short_one_is_not() {
        let (ours, theirs) = std::os::unix::net::UnixDatagram::pair().unwrap();
        let ours = OwnedFd::from(ours);
        let hello = Hello::new(7, 0);
        let mut told = 0;
        // The other side answers only when this one has said that it waits.
        let say = || {
            told += 1;
            bootstrap::send(&theirs, &hello, &[]).unwrap();
        };
        await_message::<Hello>(&ours, Duration::from_millis(1), say).unwrap();
        assert_eq!(told, 1);
        bootstrap::send(&theirs, &hello, &[]).unwrap();
        await_message::<Hello>(&ours, WELCOME_QUIET, || panic!("nobody has waited")).unwrap();
    }

    #[test]
    fn a_proxy_of_another_version_is_named_as_such() {
        let text = "this proxy is version 9.9.9, and the client library is of another; install both from one release";
        // Also when the messages themselves have changed since.
        let welcome = Welcome { version: 7, ..Welcome::new(WelcomeStatus::VersionMismatch, text) };
        let failure = refused_with(welcome);
        assert_eq!(failure.code, CUDA_ERROR_SYSTEM_DRIVER_MISMATCH);
        let version = env!("CARGO_PKG_VERSION");
        assert_eq!(failure.text, format!("the proxy refused: {text} (this client library is version {version})"));
    }

    #[test]
    fn other_refusals_are_told_in_the_proxys_words() {
        let failure = refused_with(Welcome::new(WelcomeStatus::ZoneFull, "no room"));
        assert_eq!((failure.code, failure.text.as_str()), (CUDA_ERROR_NO_DEVICE, "the proxy refused: no room"));
    }
}
