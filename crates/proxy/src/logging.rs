//! Logs go to stderr, one line per event, as text or JSON.
//!
//! A JSON line has `time`, `level` and `event`, which is one of a fixed set of messages, and the event's fields: `zone`,
//! `worker` (the process ID of a worker), `pid` (that of a client), and others.

use std::fmt;

use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

use crate::args::LogFormat;

/// `$BULKHEAD_LOG` and `$BULKHEAD_LOG_FORMAT` decide, else the command's defaults.
pub fn start(default: LevelFilter, format: Option<LogFormat>) {
    let variable = |name: &str| std::env::var(name).ok();
    let level = variable(control::env_vars::LOG).and_then(|level| level.parse().ok()).unwrap_or(default);
    let json = format.map(|format| format == LogFormat::Json);
    let json = json.unwrap_or_else(|| variable(control::env_vars::LOG_FORMAT).as_deref() == Some("json"));
    let lines = tracing_subscriber::fmt()
        .with_max_level(level)
        .with_ansi(false)
        .with_target(false)
        // A line that cannot be written is dropped: reporting that on the same stderr would end the process.
        .log_internal_errors(false)
        .with_writer(std::io::stderr);
    // A second subscriber in one process is refused; the first one stays.
    let _ = if json { lines.event_format(Json).try_init() } else { lines.try_init() };
}

/// The same for a proxy that a user started with `run` and never sees: what it says stands between the program's own lines.
pub(crate) fn start_plain(default: LevelFilter) {
    let lines = tracing_subscriber::fmt().with_max_level(default).with_ansi(false).log_internal_errors(false);
    let _ = lines.with_writer(std::io::stderr).event_format(Plain).try_init();
}

/// A line as a command prints it; what a worker says, such as the software GPU's report of a faulting kernel, as it is.
struct Plain;

impl<S, N> FormatEvent<S, N> for Plain
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, _: &FmtContext<'_, S, N>, mut writer: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let mut fields = Fields::default();
        event.record(&mut fields);
        writeln!(writer, "{}", plain(&fields.0))
    }
}

fn plain(fields: &serde_json::Map<String, serde_json::Value>) -> String {
    let text = |value: &serde_json::Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let event = fields.get("event").map(text).unwrap_or_default();
    if let (WORKER_LOG, Some(said)) = (event.as_str(), fields.get("text")) {
        return text(said);
    }
    let others = fields.iter().filter(|(name, _)| *name != "event");
    let others: Vec<String> = others.map(|(name, value)| format!("{name} {}", text(value))).collect();
    let others = if others.is_empty() { String::new() } else { format!(" ({})", others.join(", ")) };
    format!("bulkhead: {event}{others}")
}

/// The event that brings a line of a worker's.
const WORKER_LOG: &str = "worker log";

/// One flat object per event.
struct Json;

impl<S, N> FormatEvent<S, N> for Json
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, _: &FmtContext<'_, S, N>, mut writer: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let mut time = String::new();
        SystemTime.format_time(&mut Writer::new(&mut time))?;
        let mut fields = Fields::default();
        fields.set("time", time.into());
        fields.set("level", event.metadata().level().as_str().to_ascii_lowercase().into());
        event.record(&mut fields);
        let line = serde_json::to_string(&fields.0).map_err(|_| fmt::Error)?;
        writeln!(writer, "{line}")
    }
}

#[derive(Default)]
struct Fields(serde_json::Map<String, serde_json::Value>);

impl Fields {
    fn set(&mut self, name: &str, value: serde_json::Value) {
        let name = if name == "message" { "event" } else { name };
        self.0.insert(name.to_owned(), value);
    }
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.set(field.name(), format!("{value:?}").into());
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.set(field.name(), value.into());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.set(field.name(), value.into());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.set(field.name(), value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.set(field.name(), value.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_private_proxy_speaks_in_plain_lines() {
        let line = |fields: serde_json::Value| plain(fields.as_object().unwrap());
        let report = "softgpu: illegal address in kernel oob(int*, int)";
        assert_eq!(line(serde_json::json!({ "event": "worker log", "worker": 7, "text": report })), report);
        let dropped = serde_json::json!({ "event": "worker log lines dropped", "lines": 3, "worker": 7 });
        assert_eq!(line(dropped), "bulkhead: worker log lines dropped (lines 3, worker 7)");
        assert_eq!(line(serde_json::json!({ "event": "gone" })), "bulkhead: gone");
    }
}
