//! A program in a Xen guest: the region is granted to the driver domain, and what kernels print is asked for.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use cuda_abi::error::*;
use cuda_abi::wire::ops::NextOutput;
use idm::bootstrap::Hello;
use parking_lot::Mutex;
use xen::doorbell::EventDoorbell;
use xen::guest::ConnectError;
pub(super) use xen::guest::is_possible;
use xen::store::Store;

use super::{Failure, Link, Session, WELCOME_TIMEOUT, failure, reserve_window, without_signals};
use crate::operation;

/// A guest may start its program before the driver domain has taken it in, but not for long.
const TAKE_IN: Duration = Duration::from_secs(10);

/// How long a process that ends waits for its worker.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// The version of the driver, as the driver domain wrote it down for this guest.
pub(super) fn promised_version() -> Option<u32> {
    static VERSION: OnceLock<Option<u32>> = OnceLock::new();
    let read = || {
        let path = format!("{}/driver-version", xen::card::SERVICE);
        Store::open().ok()?.read_text(&path).ok()??.parse().ok()
    };
    match VERSION.get() {
        Some(version) => *version,
        // One that is not there yet may come.
        None => read().inspect(|version| _ = VERSION.set(Some(*version))),
    }
}

pub(super) fn connect(hello: &Hello) -> Result<(idm::Client, Link), Failure> {
    reserve_window().map_err(failure(CUDA_ERROR_OPERATING_SYSTEM, "cannot reserve the GPU's address range"))?;
    let connection = xen::guest::connect(hello, xen::guest::layout(), TAKE_IN, WELCOME_TIMEOUT).map_err(|error| {
        let code = match error {
            ConnectError::Xen(_) | ConnectError::Region(_) | ConnectError::Limit(_) => CUDA_ERROR_OPERATING_SYSTEM,
            _ => CUDA_ERROR_NO_DEVICE,
        };
        let source = std::error::Error::source(&error).map(|source| format!(": {source}")).unwrap_or_default();
        Failure { code, text: format!("no GPU from the driver domain: {error}{source}") }
    })?;
    let xen::guest::Connection { region, doorbell, allocator, backend, granted } = connection;
    let _ = DOORBELL.set(doorbell.clone());
    let client = idm::Client::over(region, doorbell.clone());
    let gone = client.gone().clone();
    let events = std::thread::Builder::new().name("bulkhead-events".into());
    without_signals(|| events.spawn(move || doorbell.serve(&gone)))
        .map_err(failure(CUDA_ERROR_OPERATING_SYSTEM, "cannot watch the worker"))?;
    let link = Link::Guest { allocator, backend, granted };
    Ok((client, link))
}

/// For the very end of this process.
static DOORBELL: OnceLock<Arc<EventDoorbell>> = OnceLock::new();
static LEAVING: AtomicBool = AtomicBool::new(false);

/// The worker is gone because this process is about to.
pub(super) fn is_leaving() -> bool {
    LEAVING.load(Ordering::Relaxed)
}

/// Runs when the program has ended, after whatever it does at its end. The worker unmaps our pages first: else this
/// guest's kernel could not give them up with the process, but a few each second.
extern "C" fn leave() {
    if let (Some(doorbell), Ok(session)) = (DOORBELL.get(), super::get())
        && !session.client.gone().is_set()
    {
        drain(session);
        LEAVING.store(true, Ordering::Relaxed);
        doorbell.leave(LAST_WORDS);
    }
}

#[used]
#[unsafe(link_section = ".fini_array")]
static AT_THE_END: extern "C" fn() = leave;

/// One at a time takes output from the worker and prints it, so that it comes out in order.
static PRINTING: Mutex<()> = Mutex::new(());

/// Prints what kernels print, from now on until this process ends, if it is in a guest.
pub(super) fn print_output(session: &'static Session) {
    if DOORBELL.get().is_none() {
        return;
    }
    let thread = std::thread::Builder::new().name("bulkhead-print".into());
    // What was printed before the program's last synchronisation comes out at the latest when it ends; see `leave`.
    let started = without_signals(|| {
        thread.spawn(move || {
            while ask(session, true).is_some() {
                drain(session);
            }
        })
    });
    if started.is_err() {
        eprintln!("bulkhead: cannot start the thread that prints the output of kernels");
    }
}

/// How many waits for the GPU look for output in a program that has not printed yet.
const TRUST: u32 = 64;
static WAITS: AtomicU32 = AtomicU32::new(0);
static PRINTS: AtomicBool = AtomicBool::new(false);

/// After a wait for the GPU: what kernels printed before is out before the program goes on, as it is natively. That is a
/// trip to the worker, so a program that has waited often and never had anything to print is left to the thread.
pub(super) fn print_at_wait(session: &Session) {
    let is_guest = DOORBELL.get().is_some();
    if is_guest && (PRINTS.load(Ordering::Relaxed) || WAITS.fetch_add(1, Ordering::Relaxed) < TRUST) {
        drain(session);
    }
}

fn drain(session: &Session) {
    let _printing = PRINTING.lock();
    while let Some(bytes) = ask(session, false).filter(|bytes| !bytes.is_empty()) {
        PRINTS.store(true, Ordering::Relaxed);
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            // SAFETY: the bytes are ours; descriptor 1 is where this program prints, or is closed.
            match unsafe { libc::write(1, rest.as_ptr().cast(), rest.len()) } {
                written if written > 0 => rest = &rest[written as usize..],
                _ if std::io::Error::last_os_error().kind() == std::io::ErrorKind::Interrupted => {}
                _ => return,
            }
        }
    }
}

/// With `wait`, waits until there is something; else answers what there is. None: the worker is gone.
fn ask(session: &Session, wait: bool) -> Option<Vec<u8>> {
    operation::block_after(session, 0, 0, &NextOutput { wait }, |reply| reply.bytes.to_vec()).ok()
}
