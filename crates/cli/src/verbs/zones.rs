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
        && (ZoneChange { gpu: None, ..settings.change() }) == ZoneChange::default()
    {
        return Err(Failure::new(Exit::Usage, "nothing to change: give a limit or a label"));
    }
    if let ZonesAction::Create { settings, gpus, .. } = &args.action
        && settings.change().gpu.is_some()
        && gpus.is_empty()
    {
        // The zone would have all GPUs, and no limit on the others.
        let line = "--gpu sets limits on one of the zone's GPUs; name all that the zone has with --gpus";
        return Err(Failure::new(Exit::Usage, line));
    }
    let client = admin::connect(&args.admin.socket)?;
    match args.action {
        ZonesAction::List => {
            let zones = admin::status(&client)?.zones;
            if json { super::status::print_json(&zones) } else { super::man::print(table(&zones).as_bytes()) }
        }
        ZonesAction::Create { name, settings, gpus, uid, gid, mode } => {
            let mut made = ZoneSettings::default();
            settings.change().apply(&mut made);
            (made.access.uid, made.access.gid, made.bindings.gpus) = (uid, gid, gpus);
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
                other => Err(admin::unexpected_about(other, &client, &[&name])),
            }
        }
        ZonesAction::Freeze { name } => freeze(&client, name, true, json),
        ZonesAction::Thaw { name } => freeze(&client, name, false, json),
        ZonesAction::Suspend { name, hold } => super::suspend::suspend(&client, &name, hold, json),
        ZonesAction::Resume { name } => super::suspend::resume(&client, &name, json),
        ZonesAction::Remove { name, force } => {
            match admin::ask(&client, &Request::RemoveZone { name: name.clone(), force })? {
                Answer::Removed if json => super::status::print_json(&serde_json::json!({ "removed": name })),
                Answer::Removed => super::man::print(format!("removed zone {name}\n").as_bytes()),
                other => Err(admin::unexpected_about(other, &client, &[&name])),
            }
        }
    }
}

fn freeze(client: &AdminClient, name: ZoneName, frozen: bool, json: bool) -> Result<ExitCode, Failure> {
    match admin::ask(client, &Request::FreezeZone { name: name.clone(), frozen })? {
        Answer::Frozen { workers } if json => {
            super::status::print_json(&serde_json::json!({ "name": name, "frozen": frozen, "workers": workers }))
        }
        Answer::Frozen { workers } => {
            let what = if frozen { "froze" } else { "thawed" };
            super::man::print(format!("{what} {} in zone {name}\n", counted(workers as u64, "worker")).as_bytes())
        }
        other => Err(admin::unexpected_about(other, client, &[&name])),
    }
}

/// Sends a request whose answer is the zone, and prints that.
fn zone(client: &AdminClient, request: &Request, name: &ZoneName, json: bool) -> Result<ExitCode, Failure> {
    match admin::ask(client, request)? {
        Answer::Zone { socket, limits, labels } if json => super::status::print_json(
            &serde_json::json!({ "name": name, "socket": socket, "limits": limits, "labels": labels }),
        ),
        Answer::Zone { socket, .. } => super::man::print(format!("{}\n", socket.display()).as_bytes()),
        // A zone that is to be made need not exist.
        other if matches!(request, Request::CreateZone { .. }) => Err(admin::unexpected(other)),
        other => Err(admin::unexpected_about(other, client, &[name])),
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
            gpu: self.gpu,
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
            host_processes: size(self.host_processes),
            graph_nodes: size(self.graph_nodes),
            workers: self.workers.map_or(Change::Keep, Change::Set),
            suspend_memory: size(self.suspend_memory),
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
        let limits = zone.limits_on_line();
        let pod = match (zone.labels.namespace.as_str(), zone.labels.pod.as_str()) {
            ("", pod) => pod.to_owned(),
            (namespace, pod) => format!("{namespace}/{pod}"),
        };
        let line = format!(
            "{:<20} {:>10} {:>10} {:>10} {:>10} {:>6} {:>5} {:>5} {:>8}  {pod}",
            zone.name.as_str(),
            Size(zone.used).to_string(),
            size(limits.memory),
            size(zone.limits.pinned),
            size(zone.limits.host_memory),
            limits.share,
            limits.cap.map_or("-".to_owned(), |cap| format!("{cap}%")),
            limits.priority,
            zone.clients,
        );
        let _ = writeln!(text, "{}", line.trim_end());
        // One GPU is what the zone's own line tells of.
        for gpu in zone.gpus.iter().filter(|_| zone.gpus.len() > 1) {
            let _ = writeln!(
                text,
                "{:<20} {:>10} {:>10} {:>10} {:>10} {:>6} {:>5} {:>5}",
                format!("  GPU {}", gpu.gpu),
                Size(gpu.used).to_string(),
                size(gpu.limits.memory),
                "",
                "",
                gpu.limits.share,
                gpu.limits.cap.map_or("-".to_owned(), |cap| format!("{cap}%")),
                gpu.limits.priority,
            );
        }
    }
    text
}
