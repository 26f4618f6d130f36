//! A timeline of a process's calls, in the JSON that Chrome's and Perfetto's viewers read ("Trace Event Format"): an array of
//! events, each a call with its thread, its beginning and its duration. A file whose array was never closed, because the
//! process was killed, is read by them as well.

use std::fmt::Write as _;
use std::fs::File;
use std::io::Write as _;
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};

use cuda_abi::env_vars;
use cuda_abi::error::{self, CUresult};

use super::Traffic;

/// Written when so much has come together.
const PART: usize = 64 << 10;
/// Most that a process writes.
const MAX_BYTES: usize = 1 << 30;

pub(super) struct Timeline {
    /// `None` where there is no file, or it is full.
    file: Option<File>,
    text: String,
    written: usize,
    /// The same moment by the clock that calls are timed with, and by the one that processes have in common.
    origin: (Instant, Duration),
    process: u32,
}

fn path(process: u32) -> PathBuf {
    match std::env::var_os(env_vars::TRACE_FILE).filter(|name| !name.is_empty()) {
        Some(mut name) => {
            name.push(format!(".{process}.json"));
            name.into()
        }
        None => format!("bulkhead-timeline.{process}.json").into(),
    }
}

impl Timeline {
    pub(super) fn begin() -> Timeline {
        let process = std::process::id();
        let path = path(process);
        let file = File::create(&path).inspect_err(|error| {
            eprintln!("bulkhead: BULKHEAD_TRACE: cannot create {}: {error}", path.display());
        });
        let name = std::env::args_os().next().unwrap_or_default().to_string_lossy().into_owned();
        let mut text = String::from("[\n");
        // Every other event begins with a comma, so that the array can be closed after any of them.
        let _ = write!(
            text,
            r#"{{"name":"process_name","ph":"M","pid":{process},"tid":{process},"args":{{"name":{}}}}}"#,
            quoted(&name)
        );
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Timeline { file: file.ok(), text, written: 0, origin: (Instant::now(), now), process }
    }

    pub(super) fn add(&mut self, name: &str, code: CUresult, traffic: Traffic, start: Instant, time: Duration) {
        if self.file.is_none() {
            return;
        }
        let Traffic { round_trips, posted, sent, received } = traffic;
        let (origin, clock) = self.origin;
        // Calls that began before the first one ended did so before there was a timeline.
        let at =
            (clock + start.saturating_duration_since(origin)).saturating_sub(origin.saturating_duration_since(start));
        // SAFETY: always succeeds.
        let thread = unsafe { libc::gettid() };
        let _ = write!(
            self.text,
            ",\n{{\"name\":\"{name}\",\"cat\":\"driver\",\"ph\":\"X\",\"pid\":{},\"tid\":{thread},\"ts\":{},\"dur\":{},\
             \"args\":{{\"result\":\"{}\",\"trips\":{round_trips},\"posted\":{posted},\"sent\":{sent},\"received\":{received}}}}}",
            self.process,
            microseconds(at),
            microseconds(time),
            error::name(code),
        );
        if self.text.len() >= PART {
            self.flush();
        }
    }

    fn flush(&mut self) {
        let Some(file) = self.file.as_mut() else { return };
        let full = self.written + self.text.len() > MAX_BYTES;
        if full {
            self.text = "\n]\n".to_owned();
        }
        // There is nobody to tell that this failed; what stands in the file can be read.
        if file.write_all(self.text.as_bytes()).is_err() || full {
            self.file = None;
        }
        self.written += self.text.len();
        self.text.clear();
    }

    pub(super) fn end(mut self) {
        self.flush();
        self.text.push_str("\n]\n");
        self.flush();
    }
}

fn microseconds(time: Duration) -> String {
    format!("{}.{:03}", time.as_micros(), time.subsec_nanos() % 1000)
}

/// A string of JSON.
fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for letter in text.chars() {
        match letter {
            '"' | '\\' => quoted.extend(['\\', letter]),
            letter if letter.is_control() => {
                let _ = write!(quoted, "\\u{:04x}", u32::from(letter));
            }
            letter => quoted.push(letter),
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_programs_are_strings_of_json() {
        assert_eq!(quoted("/bin/a \"b\" \\ \n"), r#""/bin/a \"b\" \\ \u000a""#);
    }

    #[test]
    fn times_have_three_decimals() {
        assert_eq!(microseconds(Duration::from_nanos(1_002_003_004)), "1002003.004");
    }
}
