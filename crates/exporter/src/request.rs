//! The little of HTTP/1.1 that is understood: one GET or HEAD, without a body.

use std::io::{self, Read};
use std::net::TcpStream;
use std::time::Instant;

/// No request for one of our pages is longer, or has more headers.
const MAX_REQUEST: usize = 8 * 1024;
const MAX_HEADERS: usize = 64;

/// What can be asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    Page,
    Metrics,
    Status,
    History,
    Health,
    Ready,
    Unknown,
}

/// A request that is understood.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Get {
    pub target: Target,
    /// The name that it was asked for by, without a port; programs of old times send none.
    pub host: Option<String>,
    /// Only the header is wanted.
    pub head: bool,
}

/// Why a request is not answered with a page.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Bad {
    #[error("not an HTTP/1 request")]
    Nonsense,
    #[error("only GET and HEAD are allowed")]
    Method,
    #[error("not a name of this machine; add it to names in [http]")]
    Host,
    #[error("the request is too long")]
    TooLong,
    #[error("the request took too long")]
    TooSlow,
    #[error("the peer is gone")]
    Gone,
}

impl Bad {
    /// Of the response.
    pub fn status(&self) -> &'static str {
        match self {
            Self::Nonsense | Self::Gone => "400 Bad Request",
            Self::Method => "405 Method Not Allowed",
            Self::Host => "421 Misdirected Request",
            Self::TooLong => "431 Request Header Fields Too Large",
            Self::TooSlow => "408 Request Timeout",
        }
    }
}

/// Reads the header of a request.
pub(crate) fn read(stream: &mut TcpStream, deadline: Instant) -> Result<Get, Bad> {
    let mut bytes = Vec::with_capacity(1024);
    loop {
        if let Some(get) = parse(&bytes)? {
            return Ok(get);
        }
        if bytes.len() >= MAX_REQUEST {
            return Err(Bad::TooLong);
        }
        let mut part = [0; 1024];
        let room = part.len().min(MAX_REQUEST - bytes.len());
        match read_by(stream, &mut part[..room], deadline) {
            Ok(0) => return Err(Bad::Gone),
            Ok(count) => bytes.extend_from_slice(&part[..count]),
            Err(error) if error.kind() == io::ErrorKind::TimedOut => return Err(Bad::TooSlow),
            Err(_) => return Err(Bad::Gone),
        }
    }
}

/// Takes off what the peer still sends, until it closes or time is up; bounded, for it may send for ever.
pub(crate) fn drain(stream: &mut TcpStream, deadline: Instant) {
    let mut part = [0; 1024];
    for _ in 0..64 {
        if !matches!(read_by(stream, &mut part, deadline), Ok(count) if count > 0) {
            return;
        }
    }
}

fn read_by(stream: &mut TcpStream, part: &mut [u8], deadline: Instant) -> io::Result<usize> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(part) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Err(io::ErrorKind::TimedOut.into()),
            other => return other,
        }
    }
}

/// What is asked for; none while the header is not complete. Of what follows the first line, only `Host` matters.
pub fn parse(bytes: &[u8]) -> Result<Option<Get>, Bad> {
    // The parser passes over empty lines at the start; nobody of ours sends any, and how many have come so far is chance.
    if bytes.starts_with(b"\r") || bytes.starts_with(b"\n") {
        return Err(Bad::Nonsense);
    }
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    let status = request.parse(bytes).map_err(|error| match error {
        httparse::Error::TooManyHeaders => Bad::TooLong,
        _ => Bad::Nonsense,
    })?;
    let (true, Some(method), Some(target)) = (status.is_complete(), request.method, request.path) else {
        // A header that has ended and is none.
        let ended = bytes.windows(4).any(|part| part == b"\r\n\r\n");
        return if ended { Err(Bad::Nonsense) } else { Ok(None) };
    };
    if !target.starts_with('/') {
        return Err(Bad::Nonsense);
    }
    let head = match method {
        "GET" => false,
        "HEAD" => true,
        _ => return Err(Bad::Method),
    };
    let path = target.split(['?', '#']).next().unwrap_or_default();
    let target = match path {
        "/" => Target::Page,
        "/metrics" => Target::Metrics,
        "/api/status" => Target::Status,
        "/api/history" => Target::History,
        "/healthz" => Target::Health,
        "/readyz" => Target::Ready,
        _ => Target::Unknown,
    };
    Ok(Some(Get { target, host: host(request.headers)?, head }))
}

/// What the header `Host` says, in lower case.
fn host(headers: &[httparse::Header<'_>]) -> Result<Option<String>, Bad> {
    let mut found = None;
    for header in headers.iter().filter(|header| header.name.eq_ignore_ascii_case("host")) {
        let value = String::from_utf8_lossy(header.value).trim().to_ascii_lowercase();
        // What follows the last colon is a port, unless it is part of an address in brackets.
        let name = match value.rsplit_once(':') {
            Some((name, port)) if !port.contains(']') => name.to_owned(),
            _ => value,
        };
        if found.replace(name).is_some() {
            return Err(Bad::Nonsense);
        }
    }
    Ok(found)
}

/// Whether somebody who asks for this name means us. Any other name may be one that a stranger chose, so that a browser
/// takes what we answer for the stranger's own.
pub(crate) fn is_ours(host: Option<&str>, names: &[String]) -> bool {
    let Some(host) = host else { return true };
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    let own = rustix::system::uname();
    bare.parse::<std::net::IpAddr>().is_ok()
        || host == "localhost"
        || own.nodename().to_str().is_ok_and(|own| own.eq_ignore_ascii_case(host))
        || names.iter().any(|name| name.eq_ignore_ascii_case(host))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_in_pieces_is_judged_as_the_whole() {
        for request in
            ["\r\n\r\nGET / HTTP/1.1\r\n\r\n", "\nGET / HTTP/1.1\r\n\r\n", "GET / HTTP/1.1\r\nHost: a\r\n\r\n"]
        {
            let pieces = (0..=request.len()).map(|end| parse(&request.as_bytes()[..end]));
            assert_eq!(pieces.into_iter().find(|part| !matches!(part, Ok(None))), Some(parse(request.as_bytes())));
        }
    }

    #[test]
    fn requests_are_read_by_their_first_line() {
        let get = |text: &str| parse(format!("{text}\r\n\r\n").as_bytes()).map(Option::unwrap);
        assert_eq!(
            get("GET /metrics HTTP/1.1\r\nHost: x"),
            Ok(Get { target: Target::Metrics, host: Some("x".into()), head: false })
        );
        assert_eq!(get("HEAD /?x=1 HTTP/1.0"), Ok(Get { target: Target::Page, host: None, head: true }));
        assert_eq!(get("GET /../etc HTTP/1.1"), Ok(Get { target: Target::Unknown, host: None, head: false }));
        assert_eq!(get("POST / HTTP/1.1"), Err(Bad::Method));
        for bad in ["GET", "GET /", "GET / HTTP/2.0", "GET  / HTTP/1.1", "GET x HTTP/1.1", "GET / HTTP/1.1 x"] {
            assert_eq!(parse(format!("{bad}\r\n\r\n").as_bytes()), Err(Bad::Nonsense), "{bad:?}");
        }
        for bad in [&[0xff, b' ', b'/'][..], b"GET / HTTP/1.1\r\nno colon\r\n\r\n", b"\0", b"\r\n\r\n"] {
            assert_eq!(parse(bad), Err(Bad::Nonsense), "{bad:?}");
        }
    }

    #[test]
    fn a_request_is_waited_for_to_its_end_and_has_few_headers() {
        let whole = b"GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n";
        for end in 0..whole.len() {
            assert_eq!(parse(&whole[..end]), Ok(None), "{end}");
        }
        assert!(parse(whole).unwrap().is_some());
        let many = format!("GET / HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(MAX_HEADERS + 1));
        assert_eq!(parse(many.as_bytes()), Err(Bad::TooLong));
    }

    #[test]
    fn only_names_of_our_own_are_answered() {
        let host = |text: &str| {
            let end = if text.is_empty() { "\r\n" } else { "\r\n\r\n" };
            parse(format!("GET / HTTP/1.1\r\n{text}{end}").as_bytes()).map(|get| get.unwrap().host)
        };
        let names = ["Node1.Example".to_owned()];
        let answered = |text: &str| is_ours(host(text).unwrap().as_deref(), &names);
        for fine in [
            "",
            "X: y",
            "Host: 127.0.0.1",
            "host: 10.0.0.7:9470",
            "HOST: [::1]:9470",
            "Host:[fe80::1]",
            "Host: localhost:9470",
            "Host: LOCALHOST",
            "Host: node1.example:80",
        ] {
            assert!(answered(fine), "{fine}");
        }
        for other in ["Host: evil.example", "Host: localhost.evil.example", "Host: x1.2.3.4", "Host: ", "Host: :80"] {
            assert!(!answered(other), "{other}");
        }
        let own = rustix::system::uname().nodename().to_str().unwrap().to_owned();
        assert!(answered(&format!("Host: {own}:1")));
        assert_eq!(host("Host: localhost\r\nHost: evil.example"), Err(Bad::Nonsense));
    }
}
