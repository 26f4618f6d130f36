//! Metrics, health and the status page of a broker, over HTTP.
//!
//! It is a process of its own, which can ask the broker for its status and nothing else. A thread accepts, and each
//! connection has a short-lived one: the broker never waits for a reader.
//! It only answers a status, at most a few times in a second however many ask. Nothing here changes anything: the
//! method is GET or HEAD, a request is at most 8 KiB, and a peer has five seconds for it all.
#![warn(unreachable_pub)]
#![forbid(unsafe_code)]

mod history;
mod metrics;
pub mod request;

pub use metrics::render;

use std::io::{self, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use control::admin::{AdminClient, Answer, Request, Status};
use parking_lot::Mutex;

use history::History;
use request::{Bad, Target};

/// Connections at a time; further ones are closed at once.
const MAX_CONNECTIONS: usize = 32;
/// How long a peer may take from its first byte to its last.
const PATIENCE: Duration = Duration::from_secs(5);
/// A status this young is answered again.
const FRESH: Duration = Duration::from_millis(200);
const PAGE: &str = include_str!("page.html");

#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Names by which it may be asked for, besides those that it always has.
    pub names: Vec<String>,
    /// Also serve the names of NVIDIA's DCGM exporter.
    pub dcgm_names: bool,
}

#[derive(Debug, thiserror::Error)]
#[error("cannot listen at {address}: {source}")]
pub struct ListenError {
    address: SocketAddr,
    source: io::Error,
}

/// Takes the address, before anything else is started for it.
pub fn listen(address: SocketAddr) -> Result<TcpListener, ListenError> {
    TcpListener::bind(address).map_err(|source| ListenError { address, source })
}

/// Serves from now on; answers where.
pub fn serve(listener: TcpListener, broker: PathBuf, options: Options) -> io::Result<SocketAddr> {
    let address = listener.local_addr()?;
    let source = Mutex::new(Source { broker, admin: None, last: None });
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let history = Mutex::new(History::default());
    let server = Arc::new(Server { source, options, host, history, connections: AtomicUsize::new(0) });
    let looker = Arc::clone(&server);
    std::thread::Builder::new().name("history".into()).spawn(move || looker.look_for_ever())?;
    std::thread::Builder::new().name("http".into()).spawn(move || server.accept_for_ever(&listener))?;
    Ok(address)
}

/// The way to the broker, and its last answer.
struct Source {
    /// The broker's socket for those who look.
    broker: PathBuf,
    /// None until the first question, and after a broker has gone.
    admin: Option<AdminClient>,
    last: Option<(Instant, Arc<Status>)>,
}

impl Source {
    /// Asks for the status, of a new broker if the last one is gone: then twice does it.
    fn ask(&mut self) -> Option<Status> {
        let admin = self.admin.take().map_or_else(|| AdminClient::connect(&self.broker), Ok).ok()?;
        match admin.ask(&Request::Status) {
            Ok(Answer::Status(status)) => {
                self.admin = Some(admin);
                Some(status)
            }
            _ => None,
        }
    }
}

struct Server {
    source: Mutex<Source>,
    options: Options,
    /// The machine's name, for those who look at several.
    host: String,
    history: Mutex<History>,
    connections: AtomicUsize,
}

impl Server {
    fn accept_for_ever(self: &Arc<Self>, listener: &TcpListener) {
        loop {
            let stream = match listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection for metrics");
                    // Out of descriptors, most likely: a moment's rest keeps this from spinning.
                    std::thread::sleep(Duration::from_millis(100));
                    continue;
                }
            };
            let server = Arc::clone(self);
            if self.connections.fetch_add(1, Ordering::Relaxed) >= MAX_CONNECTIONS {
                self.connections.fetch_sub(1, Ordering::Relaxed);
                continue;
            }
            let serve = move || {
                // A peer that does not take its answer does not get it.
                let _ = server.answer(stream);
                server.connections.fetch_sub(1, Ordering::Relaxed);
            };
            if std::thread::Builder::new().name("http-peer".into()).spawn(serve).is_err() {
                self.connections.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }

    /// A broker that does not answer leaves a gap.
    fn look_for_ever(&self) {
        loop {
            let status = self.status();
            if let Some(status) = &status {
                self.history.lock().look(status, Instant::now());
            }
            // The broker may be just about to start.
            std::thread::sleep(if status.is_some() { history::EVERY } else { history::AGAIN });
        }
    }

    fn answer(&self, mut stream: TcpStream) -> io::Result<()> {
        let deadline = Instant::now() + PATIENCE;
        let (response, head) = match request::read(&mut stream, deadline) {
            Ok(request) if !request::is_ours(request.host.as_deref(), &self.options.names) => {
                (Response::text(Bad::Host.status(), "text/plain", format!("{}\n", Bad::Host)), request.head)
            }
            Ok(request) => (self.respond(request.target), request.head),
            Err(Bad::Gone) => return Ok(()),
            Err(bad) => (Response::text(bad.status(), "text/plain", format!("{bad}\n")), false),
        };
        let mut bytes = response.header().into_bytes();
        if !head {
            bytes.extend_from_slice(response.body.as_bytes());
        }
        write_by(&mut stream, &bytes, deadline)?;
        stream.shutdown(std::net::Shutdown::Write)?;
        // Closing with unread bytes would reset the connection, and the answer with it.
        request::drain(&mut stream, deadline);
        Ok(())
    }

    fn respond(&self, target: Target) -> Response {
        let status = match target {
            Target::Page => return Response::text("200 OK", "text/html; charset=utf-8", PAGE.to_owned()),
            Target::History => {
                let text = self.history.lock().json(&self.host, Instant::now()).to_string();
                return Response::text("200 OK", "application/json", text);
            }
            Target::Unknown => {
                return Response::text("404 Not Found", "text/plain", "there is no such page\n".to_owned());
            }
            Target::Health | Target::Ready | Target::Metrics | Target::Status => self.status(),
        };
        let Some(status) = status else {
            let text = "the broker does not answer\n".to_owned();
            return Response::text("503 Service Unavailable", "text/plain", text);
        };
        match target {
            Target::Ready if !status.ready => {
                let text = "workers cannot start; see the log of the proxy\n".to_owned();
                Response::text("503 Service Unavailable", "text/plain", text)
            }
            Target::Metrics => {
                let text = metrics::render(&status, self.options.dcgm_names);
                Response::text("200 OK", "text/plain; version=0.0.4; charset=utf-8", text)
            }
            Target::Status => {
                let text = serde_json::to_string(&*status).unwrap_or_default();
                Response::text("200 OK", "application/json", text)
            }
            _ => Response::text("200 OK", "text/plain", "ok\n".to_owned()),
        }
    }

    fn status(&self) -> Option<Arc<Status>> {
        // Those who ask together wait for one answer, which is then young enough for all of them.
        let mut source = self.source.lock();
        if let Some((at, status)) = &source.last
            && at.elapsed() < FRESH
        {
            return Some(Arc::clone(status));
        }
        let status = Arc::new(source.ask().or_else(|| source.ask())?);
        source.last = Some((Instant::now(), Arc::clone(&status)));
        Some(status)
    }
}

/// Writes it all, or gives up at the deadline.
fn write_by(stream: &mut TcpStream, mut bytes: &[u8], deadline: Instant) -> io::Result<()> {
    while !bytes.is_empty() {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_write_timeout(Some(left))?;
        match stream.write(bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => bytes = &bytes[count..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

struct Response {
    status: &'static str,
    kind: &'static str,
    body: String,
}

impl Response {
    fn text(status: &'static str, kind: &'static str, body: String) -> Self {
        Self { status, kind, body }
    }

    fn header(&self) -> String {
        // The page brings all it needs along, and nobody may frame it or guess at types.
        format!(
            "HTTP/1.1 {}\r\nContent-Type: {}\r\nContent-Length: {}\r\nConnection: close\r\nCache-Control: no-store\r\n\
             X-Content-Type-Options: nosniff\r\nReferrer-Policy: no-referrer\r\n\
             Content-Security-Policy: default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; \
             connect-src 'self'; img-src data:; frame-ancestors 'none'\r\n\r\n",
            self.status,
            self.kind,
            self.body.len()
        )
    }
}
