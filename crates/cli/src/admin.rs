//! Requests to a running proxy.

use std::path::Path;

use control::ZoneName;
use control::admin::{AdminClient, AdminError, Answer, Request, Status};
use control::size::Size;

use crate::args::LimitArgs;
use crate::exit::{Exit, Failure};
use crate::progress::Progress;

pub(crate) fn connect(socket: &Path) -> Result<AdminClient, Failure> {
    AdminClient::connect(socket).map_err(|error| unreachable(&error))
}

pub(crate) fn ask(client: &AdminClient, request: &Request) -> Result<Answer, Failure> {
    let _progress = Progress::of("waiting for the proxy");
    client.ask(request).map_err(|error| unreachable(&error))
}

pub(crate) fn status(client: &AdminClient) -> Result<Status, Failure> {
    match ask(client, &Request::Status)? {
        Answer::Status(status) => Ok(status),
        other => Err(unexpected(other)),
    }
}

/// The request by which a program that needs these limits gets into a zone. Limits of a zone that others use are changed only
/// with `update`.
pub(crate) fn zone_request(
    client: &AdminClient,
    name: &ZoneName,
    wanted: &LimitArgs,
    update: bool,
) -> Result<Request, Failure> {
    if !wanted.given() {
        return Ok(Request::FindZone { name: name.clone() });
    }
    let ensure = |limits| Request::EnsureZone { name: name.clone(), limits, lease: true };
    let Answer::Zone { limits, .. } = ask(client, &Request::FindZone { name: name.clone() })? else {
        return Ok(ensure(wanted.limits()));
    };
    if wanted.agree_with(&limits) {
        return Ok(ensure(limits));
    }
    if update {
        return Ok(Request::ChangeZone { name: name.clone(), change: wanted.change() });
    }
    let memory = limits.memory.map_or("unlimited memory".to_owned(), |memory| Size(memory).to_string());
    let line = format!(
        "zone {:?} exists with {memory} and share {}; omit the limits, or change them with --update",
        name.as_str(),
        limits.share
    );
    Err(Failure::new(Exit::ZoneRefused, line))
}

/// The failure for an answer to a request that is about these zones.
pub(crate) fn unexpected_about(answer: Answer, client: &AdminClient, about: &[&ZoneName]) -> Failure {
    let zones = match &answer {
        Answer::UnknownZone { zones } => zones.clone(),
        // Some requests are refused for it in words of their own.
        Answer::Failed { .. } => match status(client) {
            Ok(status) => status.zones.into_iter().map(|zone| zone.name).collect(),
            Err(_) => return unexpected(answer),
        },
        _ => return unexpected(answer),
    };
    match about.iter().find(|name| !zones.contains(name)) {
        Some(unknown) => unknown_zone(unknown, &zones),
        None => unexpected(answer),
    }
}

/// The failure for an answer that does not match the request: a refusal, or another version's.
pub(crate) fn unexpected(answer: Answer) -> Failure {
    match answer {
        Answer::UnknownZone { .. } => Failure::new(Exit::ZoneUnknown, "no such zone"),
        Answer::Failed { reason, no_space } => {
            Failure::new(if no_space { Exit::NoSpace } else { Exit::ZoneRefused }, reason)
        }
        _ => Failure::new(Exit::ProxyUnreachable, "unexpected answer from the proxy; is it a different version?"),
    }
}

/// The failure for a zone that does not exist.
pub(crate) fn unknown_zone(name: &ZoneName, zones: &[ZoneName]) -> Failure {
    let known: Vec<&str> = zones.iter().map(ZoneName::as_str).collect();
    let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
    Failure::new(Exit::ZoneUnknown, format!("zone {:?} does not exist (existing zones: {known})", name.as_str()))
}

fn unreachable(error: &AdminError) -> Failure {
    let why = std::error::Error::source(error).map(|source| format!(" ({source})")).unwrap_or_default();
    Failure::new(Exit::ProxyUnreachable, format!("{error}{why}"))
}
