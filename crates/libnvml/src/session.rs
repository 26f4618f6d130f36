//! Asking the broker. Each question has a connection of its own: nothing is kept open that a fork, a new broker or a
//! program that closes descriptors could break.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use cuda_abi::env_vars;
use cuda_abi::wire::view::ZoneView;
use idm::bootstrap::{self, Answer, BootstrapError, Inquiry};
use parking_lot::Mutex;

use crate::codes::*;
use crate::entry::NvmlResult;

/// The first question of all has the broker start a driver; others are answered at once.
const TIMEOUT: Duration = Duration::from_secs(60);
/// While a new broker takes over from an old one, its sockets are away for a moment.
const TAKEOVER: Duration = Duration::from_millis(500);
/// A guest may start before the driver domain has taken it in.
#[cfg(feature = "xen")]
const TAKE_IN: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(20);

/// How often `nvmlInit` was called and not undone.
static REFERENCES: AtomicU32 = AtomicU32::new(0);
/// The view at the time of `nvmlInit`, for what does not change. Locked for moments only.
static FIRST: Mutex<Option<Arc<ZoneView>>> = Mutex::new(None);

pub(crate) fn ready() -> NvmlResult {
    if REFERENCES.load(Ordering::Relaxed) > 0 { Ok(()) } else { Err(UNINITIALIZED) }
}

/// The zone as it was at `nvmlInit`: its cards are still the same.
pub(crate) fn first() -> NvmlResult<Arc<ZoneView>> {
    FIRST.lock().clone().ok_or(UNINITIALIZED)
}

/// The zone as it is now.
pub(crate) fn now() -> NvmlResult<ZoneView> {
    ask(&env_vars::zone_socket()).map_err(|_| UNKNOWN)
}

fn ask(path: &Path) -> Result<ZoneView, BootstrapError> {
    if env_vars::is_guest(could_be_guest) {
        return ask_driver_domain();
    }
    let start = Instant::now();
    loop {
        match ask_once(path) {
            // A broker that is about to end says so with a message of another size.
            Err(BootstrapError::Closed | BootstrapError::System { .. } | BootstrapError::Size { .. })
                if path.exists() && start.elapsed() < TAKEOVER =>
            {
                std::thread::sleep(PAUSE)
            }
            result => return result,
        }
    }
}

#[cfg(feature = "xen")]
use xen::guest::is_possible as could_be_guest;

#[cfg(not(feature = "xen"))]
fn could_be_guest() -> bool {
    false
}

/// Only a program whose environment asks for Xen comes here.
#[cfg(not(feature = "xen"))]
fn ask_driver_domain() -> Result<ZoneView, BootstrapError> {
    crate::trace::note("this libnvidia-ml.so.1 is built without Xen");
    Err(BootstrapError::Closed)
}

#[cfg(feature = "xen")]
fn ask_driver_domain() -> Result<ZoneView, BootstrapError> {
    let answer = xen::guest::inquire(TAKE_IN, TIMEOUT).map_err(|error| {
        crate::trace::note(&format!("cannot reach the driver domain: {error}"));
        BootstrapError::Closed
    })?;
    ZoneView::read(answer.bytes()).map_err(|_| BootstrapError::Invalid)
}

fn ask_once(path: &Path) -> Result<ZoneView, BootstrapError> {
    let broker = bootstrap::connect(path)?;
    bootstrap::send(&broker, &Inquiry::default(), &[])?;
    let (answer, _) = bootstrap::recv_within::<Answer>(&broker, TIMEOUT)?;
    ZoneView::read(answer.bytes()).map_err(|_| BootstrapError::Invalid)
}

fn start(without_cards: bool) -> NvmlResult {
    let view = ask(&env_vars::zone_socket()).map_err(|error| {
        crate::trace::note(&format!("cannot reach the proxy at {}: {error}", env_vars::zone_socket().display()));
        code(&error)
    })?;
    if view.cards.is_empty() && !without_cards {
        return Err(DRIVER_NOT_LOADED);
    }
    *FIRST.lock() = Some(Arc::new(view));
    REFERENCES.fetch_add(1, Ordering::Relaxed);
    Ok(())
}

/// Of a proxy that does not answer, or not in a form that this version understands.
fn code(error: &BootstrapError) -> u32 {
    match error {
        BootstrapError::Invalid | BootstrapError::Size { .. } => LIB_RM_VERSION_MISMATCH,
        _ => DRIVER_NOT_LOADED,
    }
}

#[allow(non_snake_case)]
pub(crate) mod api {
    use super::*;

    const NO_GPUS: u32 = 1;
    const NO_ATTACH: u32 = 2;

    pub(crate) fn nvmlInit() -> NvmlResult {
        start(false)
    }

    pub(crate) fn nvmlInit_v2() -> NvmlResult {
        start(false)
    }

    pub(crate) fn nvmlInitWithFlags(flags: u32) -> NvmlResult {
        if flags & !(NO_GPUS | NO_ATTACH) != 0 {
            return Err(INVALID_ARGUMENT);
        }
        start(flags & NO_GPUS != 0)
    }

    pub(crate) fn nvmlShutdown() -> NvmlResult {
        let less = |count: u32| count.checked_sub(1);
        REFERENCES.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).map(|_| ()).map_err(|_| UNINITIALIZED)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What NVML says of a broker that answers with these bytes.
    fn code_for(name: &str, answer: &'static [u8]) -> Option<u32> {
        let path = std::env::temp_dir().join(format!("libnvml-{}-{name}", std::process::id()));
        let listener = bootstrap::listen(&path).unwrap();
        let broker = std::thread::spawn(move || {
            let client = bootstrap::accept(&listener).unwrap();
            bootstrap::recv::<Inquiry>(&client).unwrap();
            let answer = Answer::new(|bytes| {
                bytes[..answer.len()].copy_from_slice(answer);
                answer.len()
            });
            bootstrap::send(&client, &*answer, &[]).unwrap();
        });
        let code = ask_once(&path).err().map(|error| code(&error));
        broker.join().unwrap();
        std::fs::remove_file(path).unwrap();
        code
    }

    #[test]
    fn a_proxy_of_another_version_is_a_version_mismatch() {
        assert_eq!(code_for("short", &[0; 3]), Some(LIB_RM_VERSION_MISMATCH));
        assert_eq!(code_for("other", &[0xee; 4096]), Some(LIB_RM_VERSION_MISMATCH));
        assert_eq!(code(&BootstrapError::Closed), DRIVER_NOT_LOADED);
    }
}
