//! Requests to a running proxy.

use std::path::Path;

use control::ZoneName;
use control::admin::{AdminClient, AdminError, Answer, Request, Status};

use crate::exit::{Exit, Failure};

pub(crate) fn connect(socket: &Path) -> Result<AdminClient, Failure> {
    AdminClient::connect(socket).map_err(|error| unreachable(&error))
}

pub(crate) fn ask(client: &AdminClient, request: &Request) -> Result<Answer, Failure> {
    client.ask(request).map_err(|error| unreachable(&error))
}

pub(crate) fn status(client: &AdminClient) -> Result<Status, Failure> {
    match ask(client, &Request::Status)? {
        Answer::Status(status) => Ok(status),
        other => Err(unexpected(other)),
    }
}

/// The failure for an answer that does not match the request: a refusal, or another version's.
pub(crate) fn unexpected(answer: Answer) -> Failure {
    match answer {
        Answer::UnknownZone { zones } => unknown_zone(None, &zones),
        Answer::Failed { reason, no_space } => {
            Failure::new(if no_space { Exit::NoSpace } else { Exit::ZoneRefused }, reason)
        }
        _ => Failure::new(Exit::ProxyUnreachable, "unexpected answer from the proxy; is it a different version?"),
    }
}

/// The failure for a zone that does not exist.
pub(crate) fn unknown_zone(name: Option<&ZoneName>, zones: &[ZoneName]) -> Failure {
    let known: Vec<&str> = zones.iter().map(ZoneName::as_str).collect();
    let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
    let what = name.map_or("no such zone".to_owned(), |name| format!("zone {:?} does not exist", name.as_str()));
    Failure::new(Exit::ZoneUnknown, format!("{what} (existing zones: {known})"))
}

fn unreachable(error: &AdminError) -> Failure {
    let why = std::error::Error::source(error).map(|source| format!(" ({source})")).unwrap_or_default();
    Failure::new(Exit::ProxyUnreachable, format!("{error}{why}"))
}
