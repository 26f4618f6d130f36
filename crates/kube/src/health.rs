//! What kubelet's probes learn of the device plugin and the DRA driver: whether they run, and whether they are at work.
//!
//! A probe is this program once more, in the same container. It asks over an abstract socket: such a one belongs to the
//! pod's network namespace and needs no directory that can be written.

use std::io::{self, Read};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::sync::watch;

/// What a server says that is at work.
const READY: &str = "ready";
/// The most that is read of an answer: whoever has the name may be somebody else.
const LONGEST: u64 = 512;
const TIMEOUT: Duration = Duration::from_secs(5);

/// How a server is doing, as told to those who ask.
#[derive(Debug, Clone)]
pub struct Health(watch::Sender<String>);

impl Health {
    /// Not ready yet, and nobody can ask.
    pub fn new() -> Self {
        Self(watch::Sender::new("starting".to_owned()))
    }

    /// It is at work.
    pub fn ready(&self) {
        self.set(READY);
    }

    /// It is not at work, because of this.
    pub fn waiting(&self, why: &str) {
        self.set(why);
    }

    fn set(&self, state: &str) {
        self.0.send_if_modified(|there| {
            let other = there != state;
            if other {
                state.clone_into(there);
            }
            other
        });
    }

    /// Answers who asks by this name, as long as the runtime lasts. Without the name a server works all the same.
    pub fn serve(&self, name: &str) {
        let listener = match listen(name) {
            Ok(listener) => listener,
            Err(error) => return tracing::warn!(%error, "cannot answer probes"),
        };
        let state = self.0.subscribe();
        tokio::spawn(async move {
            loop {
                let Ok((mut stream, _)) = listener.accept().await else {
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    continue;
                };
                let answer = state.borrow().clone();
                // It fits into the socket's buffer: who asks and does not read holds nobody up.
                let _ = stream.write_all(answer.as_bytes()).await;
            }
        });
    }
}

impl Default for Health {
    fn default() -> Self {
        Self::new()
    }
}

fn address(name: &str) -> io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(format!("bulkhead-{name}-health"))
}

fn listen(name: &str) -> io::Result<tokio::net::UnixListener> {
    let listener = UnixListener::bind_addr(&address(name)?)?;
    listener.set_nonblocking(true)?;
    tokio::net::UnixListener::from_std(listener)
}

/// What the server of this name says: none if it is at work, else why it is not. An error if nobody answers.
pub fn ask(name: &str) -> io::Result<Option<String>> {
    let mut stream = UnixStream::connect_addr(&address(name)?)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    let mut answer = Vec::new();
    stream.by_ref().take(LONGEST).read_to_end(&mut answer)?;
    let answer = String::from_utf8_lossy(&answer);
    let printable = answer.chars().filter(|letter| !letter.is_control()).collect::<String>();
    Ok(Some(printable).filter(|answer| answer != READY))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_probe_learns_whether_a_server_is_at_work_and_why_not() {
        let name = format!("test-{}", std::process::id());
        assert!(ask(&name).is_err(), "nobody is there to answer");
        let health = Health::new();
        let (end, ended) = tokio::sync::oneshot::channel::<()>();
        let (up, is_up) = std::sync::mpsc::channel();
        let (server, served) = (health.clone(), name.clone());
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                server.serve(&served);
                up.send(()).unwrap();
                let _ = ended.await;
            });
        });
        is_up.recv().unwrap();
        assert_eq!(ask(&name).unwrap().as_deref(), Some("starting"));
        health.waiting("no\nproxy");
        assert_eq!(ask(&name).unwrap().as_deref(), Some("noproxy"));
        health.ready();
        assert_eq!(ask(&name).unwrap(), None);
        drop(end);
        thread.join().unwrap();
    }
}
