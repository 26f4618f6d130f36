//! What a process in a zone learns of its zone: the question to the broker, and how the answer is read. `libnvidia-ml.so.1` and
//! `nvidia-smi` show the same because they have it from here.
//!
//! Each question has a connection of its own: nothing is kept open that a fork, a new broker or a program that closes
//! descriptors could break.
#![warn(unreachable_pub)]
#![forbid(unsafe_code)]

mod account;
mod pci;

pub use account::{Memory, memory, processes};
pub use pci::PciAddress;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use cuda_abi::env_vars;
use cuda_abi::wire::view::ZoneView;
use idm::bootstrap::{self, Answer, BootstrapError, Inquiry};

/// The first question of all has the broker start a driver; others are answered at once.
const TIMEOUT: Duration = Duration::from_secs(60);
/// While a new broker takes over from an old one, its sockets are away for a moment.
const TAKEOVER: Duration = Duration::from_millis(500);
/// A guest may start before the driver domain has taken it in.
#[cfg(feature = "xen")]
const TAKE_IN: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(20);

/// Why nothing is known of the zone.
#[derive(Debug, thiserror::Error)]
pub enum InquiryError {
    #[error("cannot reach the proxy at {}: {source}", socket.display())]
    Proxy { socket: PathBuf, source: BootstrapError },
    #[error("the proxy at {} is of another version", .0.display())]
    Version(PathBuf),
    #[error("cannot reach the driver domain: {0}")]
    DriverDomain(String),
    #[error("the driver domain has a proxy of another version")]
    DriverDomainVersion,
    #[error("this build has no support for Xen guests")]
    WithoutXen,
}

impl InquiryError {
    /// Somebody answered, in a form that this version does not understand.
    pub fn is_other_version(&self) -> bool {
        matches!(self, Self::Version(_) | Self::DriverDomainVersion)
    }
}

/// The zone of this process, as it is now.
pub fn ask() -> Result<ZoneView, InquiryError> {
    match env_vars::is_guest(could_be_guest) {
        true => ask_driver_domain(),
        false => ask_at(&env_vars::zone_socket()),
    }
}

/// The zone of this socket.
pub fn ask_at(socket: &Path) -> Result<ZoneView, InquiryError> {
    let start = Instant::now();
    let error = loop {
        match ask_once(socket) {
            // A broker that is about to end says so with a message of another size.
            Err(BootstrapError::Closed | BootstrapError::System { .. } | BootstrapError::Size { .. })
                if socket.exists() && start.elapsed() < TAKEOVER =>
            {
                std::thread::sleep(PAUSE)
            }
            Ok(view) => return Ok(view),
            Err(error) => break error,
        }
    };
    Err(match error {
        BootstrapError::Invalid | BootstrapError::Size { .. } => InquiryError::Version(socket.to_owned()),
        source => InquiryError::Proxy { socket: socket.to_owned(), source },
    })
}

fn ask_once(socket: &Path) -> Result<ZoneView, BootstrapError> {
    let broker = bootstrap::connect(socket)?;
    bootstrap::send(&broker, &Inquiry::default(), &[])?;
    let (answer, _) = bootstrap::recv_within::<Answer>(&broker, TIMEOUT)?;
    ZoneView::read(answer.bytes()).map_err(|_| BootstrapError::Invalid)
}

#[cfg(feature = "xen")]
use xen::guest::is_possible as could_be_guest;

#[cfg(not(feature = "xen"))]
fn could_be_guest() -> bool {
    false
}

/// Only a program whose environment asks for Xen comes here.
#[cfg(not(feature = "xen"))]
fn ask_driver_domain() -> Result<ZoneView, InquiryError> {
    Err(InquiryError::WithoutXen)
}

#[cfg(feature = "xen")]
fn ask_driver_domain() -> Result<ZoneView, InquiryError> {
    let answer =
        xen::guest::inquire(TAKE_IN, TIMEOUT).map_err(|error| InquiryError::DriverDomain(error.to_string()))?;
    ZoneView::read(answer.bytes()).map_err(|_| InquiryError::DriverDomainVersion)
}

/// The program of a process, as this process's own /proc tells.
pub fn process_name(pid: u32) -> Option<String> {
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let program = line.split(|byte| *byte == 0).next().filter(|program| !program.is_empty())?;
    Some(String::from_utf8_lossy(program).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What comes of a broker that answers with these bytes, however often it is asked.
    fn asked(name: &str, answer: &'static [u8]) -> Result<ZoneView, InquiryError> {
        let path = std::env::temp_dir().join(format!("inquiry-{}-{name}", std::process::id()));
        let listener = bootstrap::listen(&path).unwrap();
        std::thread::spawn(move || {
            while let Ok(client) = bootstrap::accept(&listener) {
                bootstrap::recv::<Inquiry>(&client).unwrap();
                let answer = Answer::new(|bytes| {
                    bytes[..answer.len()].copy_from_slice(answer);
                    answer.len()
                });
                bootstrap::send(&client, &*answer, &[]).unwrap();
            }
        });
        let asked = ask_at(&path);
        std::fs::remove_file(path).unwrap();
        asked
    }

    #[test]
    fn a_proxy_of_another_version_is_known_as_one() {
        for (name, answer) in [("short", &[0; 3][..]), ("other", &[0xee; 4096])] {
            assert!(asked(name, answer).is_err_and(|error| error.is_other_version()), "{name}");
        }
    }

    #[test]
    fn without_a_proxy_the_error_names_its_socket() {
        let error = ask_at(Path::new("/nowhere/sock")).unwrap_err();
        assert!(!error.is_other_version());
        assert!(error.to_string().starts_with("cannot reach the proxy at /nowhere/sock: "), "{error}");
    }
}
