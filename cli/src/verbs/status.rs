//! `bulkhead status`: a proxy's zones and what they use.

use std::fmt::Write;
use std::process::ExitCode;

use proxy::control::admin::{AdminClient, Answer, Request, Status};
use proxy::size::Size;

use crate::args::StatusArgs;
use crate::exit::{Exit, Failure};

pub fn run(args: &StatusArgs) -> Result<ExitCode, Failure> {
    let unreachable =
        |error: proxy::control::admin::AdminError| Failure::new(Exit::ProxyUnreachable, error.to_string());
    let client = AdminClient::connect(&args.socket).map_err(unreachable)?;
    let Answer::Status(status) = client.ask(&Request::Status).map_err(unreachable)? else {
        return Err(Failure::new(Exit::ProxyUnreachable, "the proxy's answer makes no sense"));
    };
    let text = if args.json {
        serde_json::to_string_pretty(&status).map_err(|error| Failure::new(Exit::Failure, error.to_string()))? + "\n"
    } else {
        table(&status)
    };
    super::man::print(text.as_bytes())
}

fn table(status: &Status) -> String {
    let mut text =
        format!("proxy {}, backend {}, spare workers {}\n", status.pid, status.backend, status.spare_workers);
    if !status.missing_jail_parts.is_empty() {
        let _ = writeln!(text, "jail: missing {}", status.missing_jail_parts.join(", "));
    }
    let _ = writeln!(
        text,
        "{:<20} {:>10} {:>10} {:>6} {:>8} {:>8}",
        "ZONE", "USED", "LIMIT", "SHARE", "CLIENTS", "SERVED"
    );
    for zone in &status.zones {
        let limit = zone.limits.memory.map_or("-".to_owned(), |limit| Size(limit).to_string());
        let _ = writeln!(
            text,
            "{:<20} {:>10} {:>10} {:>6} {:>8} {:>8}",
            zone.name.as_str(),
            Size(zone.used).to_string(),
            limit,
            zone.limits.share,
            zone.clients,
            zone.clients_served
        );
    }
    text
}
