//! A program in a Xen guest: the region is granted to the driver domain, and what kernels print is asked for.

use std::sync::OnceLock;
use std::time::Duration;

use cuda_abi::error::*;
use cuda_abi::wire::Op;
use idm::bootstrap::Hello;
use parking_lot::Mutex;
use xen::guest::ConnectError;
use xen::store::Store;

use super::{Failure, Link, PATIENCE, Session, failure, reserve_window, without_signals};
use crate::carry;

/// A guest may start its program before the driver domain has taken it in, but not for long.
const TAKE_IN: Duration = Duration::from_secs(10);

/// The version of the driver, as the driver domain wrote it down for this guest.
pub fn promised_version() -> Option<u32> {
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

pub fn connect(hello: &Hello) -> Result<(idm::Client, Link), Failure> {
    reserve_window().map_err(failure(CUDA_ERROR_OPERATING_SYSTEM, "cannot reserve the GPU's address range"))?;
    let connection = xen::guest::connect(hello, xen::guest::layout(), TAKE_IN, PATIENCE).map_err(|error| {
        let code = match error {
            ConnectError::Xen(_) | ConnectError::Region(_) => CUDA_ERROR_OPERATING_SYSTEM,
            _ => CUDA_ERROR_NO_DEVICE,
        };
        let source = std::error::Error::source(&error).map(|source| format!(": {source}")).unwrap_or_default();
        Failure { code, text: format!("no GPU from the driver domain: {error}{source}") }
    })?;
    let doorbell = connection.doorbell;
    let client = idm::Client::over(connection.region, doorbell.clone());
    let gone = client.gone().clone();
    let events = std::thread::Builder::new().name("bulkhead-events".into());
    without_signals(|| events.spawn(move || doorbell.serve(&gone)))
        .map_err(failure(CUDA_ERROR_OPERATING_SYSTEM, "cannot watch the worker"))?;
    let link = Link::Guest { allocator: connection.allocator, backend: connection.backend };
    Ok((client, link))
}

/// One at a time takes output from the worker and prints it, so that it comes out in order.
static PRINTING: Mutex<()> = Mutex::new(());

/// Prints what kernels print, from now on until this process ends.
pub fn print_output(session: &'static Session) {
    let thread = std::thread::Builder::new().name("bulkhead-print".into());
    let started = without_signals(|| {
        thread.spawn(move || {
            while ask(session, true).is_some() {
                drain(session);
            }
        })
    });
    if started.is_ok() {
        // What was printed before the program's last synchronisation must come out before it ends.
        // SAFETY: the handler stays loaded: this library is never unloaded once a session is open.
        unsafe { libc::atexit(at_exit) };
    }
}

extern "C" fn at_exit() {
    if let Ok(session) = super::get()
        && !session.client.gone().is_set()
    {
        drain(session);
    }
}

fn drain(session: &Session) {
    let _printing = PRINTING.lock();
    while let Some(bytes) = ask(session, false).filter(|bytes| !bytes.is_empty()) {
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
    let mut bytes = Vec::new();
    let asked = carry::block_after(
        session,
        Op::NextOutput as u16,
        0,
        0,
        |writer| writer.word(wait.into()),
        |reader| {
            bytes = reader.bytes()?.to_vec();
            Ok(())
        },
    );
    asked.ok().map(|()| bytes)
}
