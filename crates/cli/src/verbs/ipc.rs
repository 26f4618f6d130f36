//! `bulkhead ipc`: publishes buffers by name and waits for them, from a shell.

use std::fmt::Write as _;
use std::io::Read;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use control::ZoneName;
use control::env_vars;
use control::rendezvous::{self, DETACH, HANDLE, NOTE, RendezvousClient, RendezvousError, RendezvousMessage, kind};
use control::size::Size;

use crate::args::{IpcAction, IpcArgs, PublishArgs, QualifiedName};
use crate::exit::{Exit, Failure};
use crate::progress::Progress;
use crate::text::counted;
use crate::{program, verbs};

pub(crate) fn run(args: IpcArgs) -> Result<ExitCode, Failure> {
    let socket = args.zone_socket.unwrap_or_else(env_vars::meeting_socket);
    match args.action {
        IpcAction::Publish(publish_args) => publish(&socket, publish_args, args.json),
        IpcAction::Wait { name, timeout, command } => wait(&socket, &name, deadline(timeout), &command, args.json),
        IpcAction::List => list(&socket, args.json),
        IpcAction::Done { name } => done(&socket, &name, args.json),
        IpcAction::Serve { path } => serve(&path),
    }
}

fn deadline(timeout: Option<Duration>) -> Option<Instant> {
    timeout.map(|timeout| Instant::now() + timeout)
}

fn failed(error: RendezvousError) -> Failure {
    let exit = match error {
        RendezvousError::TimedOut => Exit::TimedOut,
        RendezvousError::Connection(_) => Exit::ProxyUnreachable,
        RendezvousError::Gone => Exit::PeerLost,
        _ => Exit::ZoneRefused,
    };
    let why = std::error::Error::source(&error).map(|source| format!(" ({source})")).unwrap_or_default();
    Failure::new(exit, format!("{error}{why}"))
}

/// The failure of a first message, which names the socket if nobody answers there.
fn failed_at(socket: &Path, error: RendezvousError) -> Failure {
    let unreachable = matches!(error, RendezvousError::Connection(_));
    let failure = failed(error);
    match unreachable {
        true => Failure::new(failure.exit, format!("no proxy answers at {}: {}", socket.display(), failure.line)),
        false => failure,
    }
}

/// Connects to the zone's socket.
fn connect(socket: &Path) -> Result<RendezvousClient, Failure> {
    RendezvousClient::connect(socket).map_err(|error| failed_at(socket, error))
}

/// Bytes of a handle, from hexadecimal digits.
fn handle(text: &str) -> Result<[u8; HANDLE], Failure> {
    let mut bytes = [0; HANDLE];
    hex::decode_to_slice(text.trim(), &mut bytes)
        .map_err(|_| Failure::new(Exit::Usage, "a handle consists of 128 hexadecimal digits"))?;
    Ok(bytes)
}

fn publish(socket: &Path, args: PublishArgs, json: bool) -> Result<ExitCode, Failure> {
    let mut offer = RendezvousMessage::new(kind::PUBLISH).named(&args.name);
    if let Some(text) = &args.handle {
        let text = if text == "-" { from_input()? } else { text.clone() };
        offer.memory = handle(&text)?;
    }
    if let Some(text) = &args.event {
        offer.event = handle(text)?;
    }
    if args.note.len() > NOTE {
        return Err(Failure::new(Exit::Usage, format!("a note has at most {NOTE} bytes")));
    }
    offer.set_note(args.note.as_bytes());
    (offer.bytes, offer.offset) = (args.bytes.unwrap_or(0), args.offset);
    let until = deadline(args.timeout);
    let client = RendezvousClient::publish(socket, &offer).map_err(|error| failed_at(socket, error))?;
    let (mut left, mut lost) = (args.consumers, 0u64);
    while left > 0 {
        let progress = Progress::of("waiting for consumers");
        let heard = client.hear(until);
        drop(progress);
        let Some(event) = heard.map_err(failed)? else {
            return Err(Failure::new(Exit::TimedOut, format!("timed out waiting for {}", counted(left, "consumer"))));
        };
        let zone = event.zone().ok().flatten().map_or_else(String::new, |zone| zone.to_string());
        let word = match event.kind {
            kind::TAKEN => "connected",
            kind::FINISHED => "finished",
            kind::LOST => "died",
            kind::REFUSED => return Err(failed(RendezvousError::Refused(event.code))),
            _ => continue,
        };
        if event.kind != kind::TAKEN {
            left -= 1;
            lost += u64::from(event.kind == kind::LOST);
        }
        let line = match json {
            // One object per line: each is printed when it happens.
            true => serde_json::json!({ "consumer": event.number, "zone": zone, "event": word }).to_string(),
            false => format!("consumer {} in zone {zone} {word}", event.number),
        };
        verbs::man::print(format!("{line}\n").as_bytes())?;
    }
    client.say(&RendezvousMessage::new(kind::DONE)).map_err(failed)?;
    match lost {
        0 => Ok(ExitCode::SUCCESS),
        lost => Err(Failure::new(Exit::PeerLost, format!("{} died before finishing", counted(lost, "consumer")))),
    }
}

fn from_input() -> Result<String, Failure> {
    let mut text = String::new();
    let read = std::io::stdin().lock().take(1024).read_to_string(&mut text);
    read.map(|_| text).map_err(|error| Failure::system(Exit::Usage, "cannot read the handle", &error))
}

fn request(kind: u32, name: &QualifiedName) -> RendezvousMessage {
    let mut message = RendezvousMessage::new(kind).named(&name.name);
    if let Some(zone) = &name.zone {
        message.zone = zone.to_field();
    }
    message
}

/// With a command: runs it while the offer is held; its exit status says whether it succeeded. Without one: prints the
/// handle, and `done` reports later.
fn wait(
    socket: &Path,
    name: &QualifiedName,
    until: Option<Instant>,
    command: &[std::ffi::OsString],
    json: bool,
) -> Result<ExitCode, Failure> {
    let mut message = request(kind::WAIT, name);
    message.code = if command.is_empty() { DETACH } else { 0 };
    // Before anybody waits for what cannot be run.
    let program = command.first().map(|name| program::find(name)).transpose()?;
    let progress = Progress::of("waiting until the name is published");
    let waited = RendezvousClient::wait(socket, &message, until);
    drop(progress);
    let (client, found) = waited.map_err(|error| failed_at(socket, error))?;
    let (Some(program), Some((name, arguments))) = (program, command.split_first()) else {
        return print_offer(&found, json);
    };
    let mut command = Command::new(&program);
    std::os::unix::process::CommandExt::arg0(&mut command, name);
    command.args(arguments);
    for (name, value) in variables(&found) {
        command.env(name, value);
    }
    let status = command.status().map_err(|error| program::not_started(&program, &error))?;
    if status.success() {
        // The publisher may be gone.
        let _ = client.say(&RendezvousMessage::new(kind::DONE));
    }
    Ok(program::exit_code(status))
}

fn zone_of(message: &RendezvousMessage) -> String {
    message.zone().ok().flatten().map_or_else(String::new, |zone: ZoneName| zone.to_string())
}

/// The environment of the command that `wait` runs.
fn variables(found: &RendezvousMessage) -> Vec<(&'static str, String)> {
    vec![
        ("BULKHEAD_IPC_HANDLE", hex::encode(found.memory)),
        ("BULKHEAD_IPC_EVENT", hex::encode(found.event)),
        ("BULKHEAD_IPC_BYTES", found.bytes.to_string()),
        ("BULKHEAD_IPC_OFFSET", found.offset.to_string()),
        ("BULKHEAD_IPC_ZONE", zone_of(found)),
        ("BULKHEAD_IPC_NOTE", plain(found.note())),
    ]
}

/// Another tenant's text, without control characters for the terminal.
fn plain(note: &[u8]) -> String {
    String::from_utf8_lossy(note).chars().filter(|c| !c.is_control()).collect()
}

fn print_offer(found: &RendezvousMessage, json: bool) -> Result<ExitCode, Failure> {
    if json {
        return verbs::status::print_json(&serde_json::json!({
            "zone": zone_of(found),
            "handle": hex::encode(found.memory),
            "event": hex::encode(found.event),
            "bytes": found.bytes,
            "offset": found.offset,
            "note": plain(found.note()),
        }));
    }
    verbs::man::print(format!("{}\n", hex::encode(found.memory)).as_bytes())
}

fn list(socket: &Path, json: bool) -> Result<ExitCode, Failure> {
    let mut entries = Vec::new();
    // Each answer is a page; the last one is empty.
    loop {
        let page = entries.len();
        if list_page(socket, &mut entries)? <= entries.len() || entries.len() == page {
            break;
        }
    }
    let name = |entry: &RendezvousMessage| entry.name().map_or_else(String::new, |name| name.to_string());
    if json {
        let rows: Vec<_> = entries
            .iter()
            .map(|entry| {
                serde_json::json!({
                    "name": name(entry), "zone": zone_of(entry), "bytes": entry.bytes, "consumers": entry.number,
                    "age_ms": entry.age, "note": plain(entry.note()),
                })
            })
            .collect();
        return verbs::status::print_json(&rows);
    }
    let mut text =
        format!("{:<24} {:<20} {:>10} {:>9} {:>8}  {}\n", "NAME", "ZONE", "SIZE", "CONSUMERS", "AGE", "NOTE");
    for entry in &entries {
        let (size, age) = (Size(entry.bytes).to_string(), format!("{} s", entry.age / 1000));
        let (name, zone, note) = (name(entry), zone_of(entry), plain(entry.note()));
        let _ = writeln!(text, "{name:<24} {zone:<20} {size:>10} {:>9} {age:>8}  {note}", entry.number);
    }
    verbs::man::print(text.as_bytes())
}

/// Appends the next page of entries; returns how many there are in total.
fn list_page(socket: &Path, entries: &mut Vec<RendezvousMessage>) -> Result<usize, Failure> {
    let client = connect(socket)?;
    let mut request = RendezvousMessage::new(kind::LIST);
    request.number = entries.len() as u64;
    client.say(&request).map_err(failed)?;
    loop {
        match client.hear(Some(Instant::now() + Duration::from_secs(10))).map_err(failed)? {
            Some(entry) if entry.kind == kind::ENTRY => entries.push(entry),
            Some(end) if end.kind == kind::END => return Ok(usize::try_from(end.number).unwrap_or(0)),
            Some(entry) if entry.kind == kind::REFUSED => return Err(failed(RendezvousError::Refused(entry.code))),
            _ => return Err(failed(RendezvousError::Nonsense)),
        }
    }
}

fn done(socket: &Path, name: &QualifiedName, json: bool) -> Result<ExitCode, Failure> {
    let client = connect(socket)?;
    client.say(&request(kind::FINISH, name)).map_err(failed)?;
    match client.hear(Some(Instant::now() + Duration::from_secs(10))).map_err(failed)? {
        Some(answer) if answer.kind == kind::END && json => {
            verbs::status::print_json(&serde_json::json!({ "done": name.name }))
        }
        Some(answer) if answer.kind == kind::END => Ok(ExitCode::SUCCESS),
        Some(answer) if answer.kind == kind::REFUSED => {
            Err(Failure::new(Exit::ZoneRefused, rendezvous::explain(answer.code)))
        }
        _ => Err(failed(RendezvousError::Nonsense)),
    }
}

/// In a guest: serves the socket that clients and the other commands use.
fn serve(path: &Path) -> Result<ExitCode, Failure> {
    let listener = xen::names::Listener::at(path);
    let listener = listener.map_err(|error| Failure::new(Exit::Failure, error.to_string()))?;
    listener.serve(|problem| eprintln!("bulkhead: {problem}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_are_digits_and_nothing_else() {
        let text = hex::encode([0xa5; HANDLE]);
        assert_eq!(handle(&format!("{text}\n")).unwrap(), [0xa5; HANDLE]);
        for bad in ["", "a5", &text[1..], &format!("{text}00"), &text.replace("a5", "ä")] {
            assert!(handle(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn programs_look_where_guests_listen() {
        assert_eq!(xen::names::SOCKET, env_vars::NAMES_SOCKET);
    }

    #[test]
    fn what_another_tenant_wrote_does_nothing_to_a_terminal() {
        assert_eq!(plain(b"\x1b[2Jhello\x07\xff"), "[2Jhello\u{fffd}");
    }
}
