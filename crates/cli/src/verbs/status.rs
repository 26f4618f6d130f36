//! `bulkhead status`: the proxy's zones and their usage.

use std::fmt::Write;
use std::process::ExitCode;

use control::admin::Status;
use control::size::Size;

use crate::admin;
use crate::args::StatusArgs;
use crate::exit::{Exit, Failure};

pub(crate) fn run(args: &StatusArgs) -> Result<ExitCode, Failure> {
    let status = admin::status(&admin::connect(&args.admin.socket)?)?;
    if args.admin.json {
        return print_json(&status);
    }
    super::man::print(table(&status).as_bytes())
}

pub(crate) fn print_json(value: &impl serde::Serialize) -> Result<ExitCode, Failure> {
    let text = serde_json::to_string_pretty(value).map_err(|error| Failure::new(Exit::Failure, error.to_string()))?;
    super::man::print((text + "\n").as_bytes())
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
        let limits = zone.limits_on_line();
        let limit = limits.memory.map_or("-".to_owned(), |limit| Size(limit).to_string());
        let _ = writeln!(
            text,
            "{:<20} {:>10} {:>10} {:>6} {:>8} {:>8}",
            zone.name.as_str(),
            Size(zone.used).to_string(),
            limit,
            limits.share,
            zone.clients,
            zone.clients_served
        );
        for gpu in zone.gpus.iter().filter(|_| zone.gpus.len() > 1) {
            let limit = gpu.limits.memory.map_or("-".to_owned(), |limit| Size(limit).to_string());
            let name = format!("  GPU {}", gpu.gpu);
            let used = Size(gpu.used).to_string();
            let _ = writeln!(text, "{name:<20} {used:>10} {limit:>10} {:>6}", gpu.limits.share);
        }
    }
    text
}
