//! `bulkhead zones`: manages zones while the proxy runs.

use std::fmt::Write;
use std::process::ExitCode;

use control::ZoneName;
use control::admin::{AdminClient, Answer, Request, ZoneStatus};
use control::size::Size;
use control::zone::{Change, ZoneChange, ZoneSettings};

use crate::admin;
use crate::args::{Limit, SettingArgs, ZonesAction, ZonesArgs};
use crate::exit::{Exit, Failure};
use crate::text::counted;

pub(crate) fn run(args: ZonesArgs) -> Result<ExitCode, Failure> {
    let json = args.admin.json;
    // Check the arguments before asking the proxy.
    if let ZonesAction::Set { settings, .. } = &args.action
        && settings.change() == ZoneChange::default()
    {
        return Err(Failure::new(Exit::Usage, "nothing to change: give a limit or a label"));
    }
    let client = admin::connect(&args.admin.socket)?;
    match args.action {
        ZonesAction::List => {
            let zones = admin::status(&client)?.zones;
            if json { super::status::print_json(&zones) } else { super::man::print(table(&zones).as_bytes()) }
        }
        ZonesAction::Create { name, settings, uid, gid, mode } => {
            let mut made = ZoneSettings::default();
            settings.change().apply(&mut made);
            (made.access.uid, made.access.gid) = (uid, gid);
            made.access.mode = mode.unwrap_or(made.access.mode);
            zone(&client, &Request::CreateZone { name: name.clone(), settings: made }, &name, json)
        }
        ZonesAction::Set { name, settings } => {
            zone(&client, &Request::ChangeZone { name: name.clone(), change: settings.change() }, &name, json)
        }
        ZonesAction::Kill { name, clients } => {
            match admin::ask(&client, &Request::KillZone { name: name.clone(), programs: clients })? {
                Answer::Killed { workers } if json => {
                    super::status::print_json(&serde_json::json!({ "name": name, "killed": workers }))
                }
                Answer::Killed { workers } => super::man::print(
                    format!("ended {} in zone {name}\n", counted(workers as u64, "worker")).as_bytes(),
                ),
                other => Err(admin::unexpected(other)),
            }
        }
        ZonesAction::Remove { name, force } => {
            match admin::ask(&client, &Request::RemoveZone { name: name.clone(), force })? {
                Answer::Removed if json => super::status::print_json(&serde_json::json!({ "removed": name })),
                Answer::Removed => super::man::print(format!("removed zone {name}\n").as_bytes()),
                other => Err(admin::unexpected(other)),
            }
        }
    }
}

/// Sends a request whose answer is the zone, and prints that.
fn zone(client: &AdminClient, request: &Request, name: &ZoneName, json: bool) -> Result<ExitCode, Failure> {
    match admin::ask(client, request)? {
        Answer::Zone { socket, limits, labels } if json => super::status::print_json(
            &serde_json::json!({ "name": name, "socket": socket, "limits": limits, "labels": labels }),
        ),
        Answer::Zone { socket, .. } => super::man::print(format!("{}\n", socket.display()).as_bytes()),
        other => Err(admin::unexpected(other)),
    }
}

impl SettingArgs {
    fn change(&self) -> ZoneChange {
        let size = |limit: Option<Limit>| match limit {
            None => Change::Keep,
            Some(Limit::Unlimited) => Change::Clear,
            Some(Limit::At(value)) => Change::Set(value),
        };
        ZoneChange {
            memory: size(self.memory),
            pinned: size(self.pinned_memory),
            cap: match self.cap {
                None => Change::Keep,
                Some(Limit::Unlimited) => Change::Clear,
                Some(Limit::At(percent)) => Change::Set(u32::try_from(percent).unwrap_or(100)),
            },
            host_memory: size(self.host_memory),
            host_cpu: match self.host_cpu {
                None => Change::Keep,
                Some(Limit::Unlimited) => Change::Clear,
                Some(Limit::At(percent)) => Change::Set(u32::try_from(percent).unwrap_or(u32::MAX)),
            },
            graph_nodes: size(self.graph_nodes),
            workers: self.workers.map_or(Change::Keep, Change::Set),
            share: self.share,
            priority: self.priority,
            pod: self.pod.clone(),
            namespace: self.namespace.clone(),
            container: self.container.clone(),
            ..ZoneChange::default()
        }
    }
}

fn table(zones: &[ZoneStatus]) -> String {
    let mut text = format!(
        "{:<20} {:>10} {:>10} {:>10} {:>10} {:>6} {:>5} {:>5} {:>8}  {}\n",
        "ZONE", "USED", "LIMIT", "PINNED", "HOST", "SHARE", "CAP", "PRIO", "CLIENTS", "POD"
    );
    let size = |bytes: Option<u64>| bytes.map_or("-".to_owned(), |bytes| Size(bytes).to_string());
    for zone in zones {
        let pod = match (zone.labels.namespace.as_str(), zone.labels.pod.as_str()) {
            ("", pod) => pod.to_owned(),
            (namespace, pod) => format!("{namespace}/{pod}"),
        };
        let line = format!(
            "{:<20} {:>10} {:>10} {:>10} {:>10} {:>6} {:>5} {:>5} {:>8}  {pod}",
            zone.name.as_str(),
            Size(zone.used).to_string(),
            size(zone.limits.memory),
            size(zone.limits.pinned),
            size(zone.limits.host_memory),
            zone.limits.share,
            zone.limits.cap.map_or("-".to_owned(), |cap| format!("{cap}%")),
            zone.limits.priority,
            zone.clients,
        );
        let _ = writeln!(text, "{}", line.trim_end());
    }
    text
}
