//! Follows the cluster's GpuShareGrants: a list by pages, then a watch from where the list ended, as client-go's reflector
//! does it.
//!
//! What the API server sends is not kept: a page is parsed as it arrives ([`super::page`]), an event is one line of bounded
//! length, and [`Held`] bounds the rest. A list that fails leaves what was known in force.

use std::collections::BTreeSet;
use std::io;
use std::time::Duration;

use futures::{AsyncBufRead, AsyncBufReadExt};
use kube::Client;
use kube::api::{ListParams, WatchParams};
use kube::core::Request;
use serde::Deserialize;
use tokio::sync::watch;
use tokio::time::Instant;

use super::held::{self, Held, Note};
use super::page;
use super::spec::Object;

const PATH: &str = "/apis/bulkhead.dev/v1alpha1/gpusharegrants";
/// Objects of one page.
const PAGE: u32 = 100;
/// Seconds after which the API server ends a watch, and we begin another.
const WATCH_SECONDS: u32 = 240;
/// A watch that says nothing for so long, not even a bookmark or that it ends, is dead.
const SILENCE: Duration = Duration::from_secs(300);
/// No object is larger than a request to the API server, which is 3 MiB.
const MAX_EVENT: usize = 4 << 20;
/// Between a failure and the next list; doubled with each.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// At least between two lists that are made because there may be room for what was left out.
const RELIST_AFTER: Duration = Duration::from_secs(60);
/// Lines about objects; beyond it they may be said again.
const MAX_SAID: usize = 1024;

#[derive(Debug, thiserror::Error)]
pub(crate) enum WatchError {
    #[error("{0}")]
    Cluster(#[from] kube::Error),
    #[error("{0}")]
    Request(#[from] kube::core::request::Error),
    #[error("{0}")]
    Body(#[from] io::Error),
    #[error("an event is larger than {MAX_EVENT} bytes")]
    TooLarge,
    #[error("the API server said {code}: {message}")]
    Status { code: u16, message: String },
}

impl WatchError {
    /// The connection failed, or the server is not itself: what is known is still true.
    fn is_passing(&self) -> bool {
        match self {
            Self::Cluster(kube::Error::Api(status)) => status.code >= 500,
            // An event that makes no sense would come again.
            Self::Body(error) => !matches!(error.kind(), io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof),
            Self::Cluster(_) => true,
            Self::Status { code, .. } => *code >= 500,
            Self::Request(_) | Self::TooLarge => false,
        }
    }

    /// The API server has forgotten the version that we know: usual after a long silence, and mended by a list.
    fn is_expired(&self) -> bool {
        match self {
            Self::Status { code, .. } => *code == 410,
            Self::Cluster(kube::Error::Api(status)) => status.code == 410,
            _ => false,
        }
    }
}

#[derive(Deserialize)]
struct Event {
    r#type: String,
    object: Object,
}

pub(crate) struct Watcher {
    client: Client,
    /// None until there was a list.
    held: watch::Sender<Option<Held>>,
    said: BTreeSet<Note>,
    last_error: Option<String>,
}

impl Watcher {
    pub(crate) fn new(client: Client) -> (Self, watch::Receiver<Option<Held>>) {
        let (held, seen) = watch::channel(None);
        (Self { client, held, said: BTreeSet::new(), last_error: None }, seen)
    }

    pub(crate) async fn run(mut self) {
        let mut pause = FIRST_PAUSE;
        loop {
            match self.follow(&mut pause).await {
                Ok(()) => {}
                Err(error) if error.is_expired() => {}
                Err(error) => self.complain(error.to_string()),
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// One list, and watches until one fails or another list is due.
    async fn follow(&mut self, pause: &mut Duration) -> Result<(), WatchError> {
        let listed = Instant::now();
        let Some((held, mut version)) = self.list().await? else {
            // The cluster does not define the resource.
            self.held.send_replace(Some(Held::default()));
            *pause = LONGEST_PAUSE;
            return Ok(());
        };
        self.held.send_replace(Some(held));
        self.report();
        loop {
            let begun = Instant::now();
            match self.watch(&mut version, listed).await {
                Ok(Ended::ListAgain) => return Ok(()),
                Ok(Ended::Usually) => {
                    self.last_error = None;
                    *pause = FIRST_PAUSE;
                    // An API server that ends watches at once is not asked without end.
                    tokio::time::sleep_until(begun + FIRST_PAUSE).await;
                }
                // All nodes lose an API server at once. What they know is still true, and the watch goes on from there: a
                // list by each of them is what a server that has just come back can do without.
                Err(error) if error.is_passing() => {
                    self.complain(error.to_string());
                    tokio::time::sleep(*pause).await;
                    *pause = (*pause * 2).min(LONGEST_PAUSE);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// One watch, from this version on.
    async fn watch(&mut self, version: &mut String, listed: Instant) -> Result<Ended, WatchError> {
        let params = WatchParams::default().timeout(WATCH_SECONDS);
        let request = Request::new(PATH).watch(&params, version)?;
        let body = std::pin::pin!(self.client.request_stream(request).await?);
        self.events(body, version, listed).await
    }

    /// All objects, and the version from which to watch; none if the cluster does not define the resource.
    async fn list(&self) -> Result<Option<(Held, String)>, WatchError> {
        let (mut held, mut params) = (Held::default(), ListParams::default().limit(PAGE));
        // Of the first page: what happens while the others are read is then seen by the watch, whatever they show.
        let mut version = None;
        loop {
            let request = Request::new(PATH).list(&params)?;
            let body = match self.client.request_stream(request).await {
                Err(kube::Error::Api(status)) if status.code == 404 => return Ok(None),
                body => body?,
            };
            let (held_now, end) = page::read(body, held).await?;
            held = held_now;
            let version = version.get_or_insert(end.resource_version);
            if end.r#continue.is_empty() {
                return Ok(Some((held, std::mem::take(version))));
            }
            params.continue_token = Some(end.r#continue);
        }
    }

    async fn events(
        &mut self,
        mut body: impl AsyncBufRead + Unpin,
        version: &mut String,
        listed: Instant,
    ) -> Result<Ended, WatchError> {
        let mut line = Vec::new();
        loop {
            let next = tokio::time::timeout(SILENCE, next_line(&mut body, &mut line)).await;
            if !next.map_err(io::Error::from)?? {
                return Ok(Ended::Usually);
            }
            let Event { r#type, object } = serde_json::from_slice(&line).map_err(io::Error::from)?;
            // What one object needed is not kept for the next.
            line = Vec::new();
            if r#type == "ERROR" {
                let (code, message) = (object.code.unwrap_or(0), object.message.unwrap_or_default());
                return Err(WatchError::Status { code, message });
            }
            object.metadata.resource_version.clone_into(version);
            if r#type != "BOOKMARK" {
                let (key, spec) = object.into_parts();
                let deleted = r#type == "DELETED";
                self.held.send_modify(|held| {
                    let held = held.get_or_insert_default();
                    if deleted {
                        held.remove(&key);
                    } else {
                        held.put(key, spec);
                    }
                });
                self.report();
            }
            // With the next event, or with a bookmark, of which there is one a minute.
            let room = self.held.borrow().as_ref().is_some_and(Held::has_room_for_more);
            if room && listed.elapsed() >= RELIST_AFTER {
                return Ok(Ended::ListAgain);
            }
        }
    }

    /// Logs the same failure once.
    fn complain(&mut self, error: String) {
        if self.last_error.as_ref() != Some(&error) {
            tracing::warn!(error, "cannot follow GpuShareGrants; those known stay in force");
            self.last_error = Some(error);
        }
    }

    /// Logs each remark once.
    fn report(&mut self) {
        let held = self.held.borrow();
        for note in held.iter().flat_map(Held::notes).filter(|note| !self.said.contains(*note)) {
            match note {
                Note::OverLimit { namespace } => tracing::warn!(
                    namespace,
                    limit = held::MAX_OF_NAMESPACE,
                    "too many GpuShareGrants; some of this namespace are not in force"
                ),
                Note::Invalid { namespace, name, error } => {
                    tracing::warn!(namespace, name, error, "ignoring invalid GpuShareGrant");
                }
            }
        }
        let new: Vec<Note> = held.iter().flat_map(Held::notes).cloned().collect();
        if self.said.len() > MAX_SAID {
            self.said.clear();
        }
        self.said.extend(new);
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Ended {
    Usually,
    ListAgain,
}

/// The next line; false at the end.
async fn next_line(body: &mut (impl AsyncBufRead + Unpin), line: &mut Vec<u8>) -> Result<bool, WatchError> {
    loop {
        let chunk = body.fill_buf().await?;
        if chunk.is_empty() {
            // A line that was cut off is sent again.
            return Ok(false);
        }
        let end = chunk.iter().position(|byte| *byte == b'\n');
        let part = &chunk[..end.unwrap_or(chunk.len())];
        if line.len() + part.len() > MAX_EVENT {
            return Err(WatchError::TooLarge);
        }
        line.extend_from_slice(part);
        let taken = end.map_or(chunk.len(), |at| at + 1);
        body.consume_unpin(taken);
        if end.is_some() {
            return Ok(true);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::io::Cursor;

    #[test]
    fn a_watch_goes_on_after_what_passes_and_is_listed_again_after_what_does_not() {
        let status = |code| WatchError::Status { code, message: String::new() };
        assert!(status(500).is_passing() && status(503).is_passing());
        assert!(!status(410).is_passing() && !status(403).is_passing());
        assert!(WatchError::Body(io::ErrorKind::ConnectionReset.into()).is_passing());
        let nonsense = serde_json::from_slice::<Event>(b"{]").map_err(io::Error::from).err().unwrap();
        assert!(!WatchError::Body(nonsense).is_passing() && !WatchError::TooLarge.is_passing());
    }

    #[tokio::test]
    async fn lines_are_bounded_and_what_is_cut_off_is_none() {
        let mut line = Vec::new();
        let mut body = Cursor::new(b"one\n\ntwo\nhalf".to_vec());
        for expected in ["one", "", "two"] {
            assert!(next_line(&mut body, &mut line).await.unwrap());
            assert_eq!(std::mem::take(&mut line), expected.as_bytes());
        }
        assert!(!next_line(&mut body, &mut line).await.unwrap());
        let mut long = Cursor::new(vec![b'x'; MAX_EVENT + 1]);
        let refused = next_line(&mut long, &mut Vec::new()).await;
        assert!(matches!(refused, Err(WatchError::TooLarge)), "{refused:?}");
    }
}
