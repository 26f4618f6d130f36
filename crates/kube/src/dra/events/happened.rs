//! What has happened to zones between two looks at the broker, as far as somebody who looks at their pods wants to know.

use std::collections::BTreeMap;
use std::time::Duration;

use control::ZoneName;
use control::admin::{Status, ZoneStatus};
use control::size::Size;
use control::statistics::{Denial, FAULTS};
use control::zone::Labels;

/// At least between two events of one reason about one zone; what happens meanwhile is counted together.
const PAUSE: Duration = Duration::from_secs(60);
/// Events of one look, of all zones together; others wait for the next.
const MOST: usize = 20;

/// As events name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Reason {
    OutOfMemory,
    PinnedOutOfMemory,
    ClientRefused,
    CallRefused,
    Fault,
    Overdraft,
    Runaway,
    Suspended,
    Frozen,
    Thawed,
}

impl Reason {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::OutOfMemory => "GpuOutOfMemory",
            Self::PinnedOutOfMemory => "GpuPinnedOutOfMemory",
            Self::ClientRefused => "GpuClientRefused",
            Self::CallRefused => "GpuCallRefused",
            Self::Fault => "GpuFault",
            Self::Overdraft => "GpuOverdraft",
            Self::Runaway => "GpuRunaway",
            Self::Suspended => "GpuSuspended",
            Self::Frozen => "GpuFrozen",
            Self::Thawed => "GpuThawed",
        }
    }

    pub(super) fn is_warning(self) -> bool {
        !matches!(self, Self::Suspended | Self::Frozen | Self::Thawed)
    }
}

/// What is to be said about a zone's pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Happened {
    pub labels: Labels,
    pub reason: Reason,
    pub message: String,
    /// How often, since it was last said.
    pub count: u64,
}

/// Totals of a zone, when they were last looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Totals {
    counts: BTreeMap<Reason, u64>,
    calls: Vec<u64>,
    faults: Vec<u64>,
    frozen: bool,
}

impl From<&ZoneStatus> for Totals {
    fn from(zone: &ZoneStatus) -> Self {
        let sum = |counts: &[u64]| counts.iter().fold(0, |sum: u64, count| sum.saturating_add(*count));
        let (calls, faults) = (zone.stats.denials.to_vec(), zone.stats.faults.to_vec());
        let counts = [
            (Reason::OutOfMemory, zone.charges_refused),
            (Reason::PinnedOutOfMemory, zone.pins_refused),
            (Reason::ClientRefused, zone.clients_refused),
            (Reason::CallRefused, sum(&calls)),
            (Reason::Fault, sum(&faults)),
            (Reason::Overdraft, zone.overdrafts),
            (Reason::Runaway, zone.runaways),
            (Reason::Suspended, zone.suspensions),
        ];
        Self { counts: counts.into(), calls, faults, frozen: zone.frozen }
    }
}

/// What was said of a zone so far.
#[derive(Debug)]
struct Zone {
    /// As it was when that was last said; only what is told of moves on.
    told: Totals,
    last: BTreeMap<Reason, Duration>,
}

/// Remembers what was said. A zone's first look says nothing: what happened before this process began was said by another.
#[derive(Debug, Default)]
pub(super) struct Watcher(BTreeMap<ZoneName, Zone>);

impl Watcher {
    /// `now`: since some moment in the past.
    pub(super) fn look(&mut self, status: &Status, now: Duration) -> Vec<Happened> {
        self.0.retain(|name, _| status.zones.iter().any(|zone| zone.name == *name));
        let mut happened = Vec::new();
        for zone in status.zones.iter().filter(|zone| !zone.labels.pod.is_empty()) {
            let totals = Totals::from(zone);
            let Some(known) = self.0.get_mut(&zone.name) else {
                self.0.insert(zone.name.clone(), Zone { told: totals, last: BTreeMap::new() });
                continue;
            };
            happened.extend(known.look(zone, &totals, now, MOST.saturating_sub(happened.len())));
        }
        happened
    }
}

impl Zone {
    fn look(&mut self, zone: &ZoneStatus, now: &Totals, time: Duration, most: usize) -> Vec<Happened> {
        let mut happened = Vec::new();
        let mut say = |last: &mut BTreeMap<Reason, Duration>, reason: Reason, count: u64, message: String| {
            let quiet = last.get(&reason).is_none_or(|last| time.saturating_sub(*last) >= PAUSE);
            let fits = quiet && happened.len() < most;
            if fits {
                last.insert(reason, time);
                happened.push(Happened { labels: zone.labels.clone(), reason, message, count });
            }
            fits
        };
        for (reason, total) in &now.counts {
            let before = self.told.counts.get(reason).copied().unwrap_or(0);
            // A broker that has lost its totals begins again.
            if *total <= before {
                self.told.counts.insert(*reason, *total);
                continue;
            }
            let message = message(*reason, zone, &self.told, now);
            if say(&mut self.last, *reason, total - before, message) {
                self.told.counts.insert(*reason, *total);
                match reason {
                    Reason::CallRefused => self.told.calls.clone_from(&now.calls),
                    Reason::Fault => self.told.faults.clone_from(&now.faults),
                    _ => {}
                }
            }
        }
        if now.frozen != self.told.frozen {
            let (reason, text) = match now.frozen {
                true => (Reason::Frozen, "an operator has taken its work off the GPU"),
                false => (Reason::Thawed, "its work goes on"),
            };
            if say(&mut self.last, reason, 1, text.to_owned()) {
                self.told.frozen = now.frozen;
            }
        }
        happened
    }
}

fn message(reason: Reason, zone: &ZoneStatus, before: &Totals, now: &Totals) -> String {
    match reason {
        Reason::OutOfMemory => {
            let limit = zone.limits_on_line().memory;
            let limit = limit.map_or_else(|| "what the GPU has".to_owned(), |limit| Size(limit).to_string());
            format!("asked for more GPU memory than {limit}, of which {} are in use", Size(zone.used))
        }
        Reason::PinnedOutOfMemory => "asked for more pinned host memory than its limit".to_owned(),
        Reason::ClientRefused => "a program got no worker: the zone has as many clients as it may have".to_owned(),
        Reason::CallRefused => {
            let names = Denial::ALL.iter().map(|reason| reason.name());
            format!("calls of a program were refused: {}", grown(names, &before.calls, &now.calls))
        }
        Reason::Fault => {
            let names = FAULTS.iter().map(|code| cuda_error(*code));
            let names: Vec<String> = names.collect();
            let names = names.iter().map(String::as_str);
            format!("a kernel or call destroyed its program's context: {}", grown(names, &before.faults, &now.faults))
        }
        Reason::Overdraft => "a program was ended: it used GPU memory that was never granted".to_owned(),
        Reason::Runaway => "a program was ended: it kept the GPU from others".to_owned(),
        Reason::Suspended => "an idle program's GPU memory was moved to the host".to_owned(),
        Reason::Frozen | Reason::Thawed => String::new(),
    }
}

/// The names of what has grown.
fn grown<'a>(names: impl Iterator<Item = &'a str>, before: &[u64], now: &[u64]) -> String {
    let before = before.iter().copied().chain(std::iter::repeat(0));
    let more = names.zip(now.iter().zip(before)).filter(|(_, (now, before))| **now > *before);
    more.map(|(name, _)| name).collect::<Vec<_>>().join(", ")
}

/// Programs and people know these by their numbers, too; the table of names is not this room's.
fn cuda_error(code: u32) -> String {
    format!("CUDA error {code}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use control::{WorkerStats, ZoneLimits};
    use serde_json::json;

    fn status(zones: &[(&str, serde_json::Value)]) -> Status {
        let zone = |(name, more): &(&str, serde_json::Value)| {
            let mut zone = json!({
                "name": name, "socket": "/s", "limits": ZoneLimits { memory: Some(100 << 20), ..ZoneLimits::default() }, "used": 60 << 20, "peak": 0,
                "pinned": 0, "clients": 0, "clients_served": 0, "clients_refused": 0, "charges_refused": 0,
                "pins_refused": 0, "overdrafts": 0, "driver_memory": 0, "workers": [],
                "labels": { "pod": "p", "namespace": "n", "container": "c" }, "stats": WorkerStats::default(),
            });
            for (key, value) in more.as_object().unwrap() {
                zone[key] = value.clone();
            }
            zone
        };
        serde_json::from_value(json!({
            "pid": 1, "version": "0", "uptime_seconds": 0, "backend": "soft", "cuda_version": 13000, "ready": true,
            "spare_workers": 1, "reloads": 0, "reloads_failed": 0, "waiting_clients": 0, "missing_jail_parts": [],
            "grants": 0, "sharing": {}, "zones": zones.iter().map(zone).collect::<Vec<_>>(),
        }))
        .unwrap()
    }

    fn seconds(count: u64) -> Duration {
        Duration::from_secs(count)
    }

    fn said(happened: &[Happened]) -> Vec<(Reason, u64)> {
        happened.iter().map(|one| (one.reason, one.count)).collect()
    }

    #[test]
    fn what_happened_before_was_said_by_another() {
        let mut watcher = Watcher::default();
        assert_eq!(watcher.look(&status(&[("a", json!({ "charges_refused": 7 }))]), seconds(0)), []);
        assert_eq!(watcher.look(&status(&[("a", json!({ "charges_refused": 7 }))]), seconds(5)), []);
        let next = watcher.look(&status(&[("a", json!({ "charges_refused": 9 }))]), seconds(10));
        assert_eq!(said(&next), [(Reason::OutOfMemory, 2)]);
        assert_eq!(next[0].message, "asked for more GPU memory than 100 MiB, of which 60 MiB are in use");
    }

    #[test]
    fn a_reason_is_said_once_a_minute_and_nothing_is_lost() {
        let mut watcher = Watcher::default();
        let mut after = |time, refused: u64, runaways: u64| {
            let zone = json!({ "charges_refused": refused, "runaways": runaways });
            said(&watcher.look(&status(&[("a", zone)]), seconds(time)))
        };
        assert_eq!(after(0, 0, 0), []);
        assert_eq!(after(5, 1, 0), [(Reason::OutOfMemory, 1)]);
        assert_eq!(after(10, 500, 1), [(Reason::Runaway, 1)], "others are not in the way");
        assert_eq!(after(64, 900, 1), []);
        assert_eq!(after(65, 901, 1), [(Reason::OutOfMemory, 900)]);
        assert_eq!(after(200, 3, 1), [], "a broker that began again");
        assert_eq!(after(205, 4, 1), [(Reason::OutOfMemory, 1)]);
    }

    #[test]
    fn faults_and_refusals_are_named_and_zones_without_a_pod_have_nobody_to_tell() {
        let mut watcher = Watcher::default();
        let mut stats = WorkerStats::default();
        let mut look = |stats: WorkerStats, frozen: bool| {
            let zone = json!({ "stats": stats, "frozen": frozen });
            let nobodys = json!({ "stats": stats, "frozen": frozen, "labels": { "pod": "" } });
            watcher.look(&status(&[("a", zone), ("b", nobodys)]), seconds(0))
        };
        assert_eq!(look(stats, false), []);
        (stats.faults[0], stats.denials[2]) = (2, 1);
        let happened = look(stats, true);
        assert_eq!(said(&happened), [(Reason::CallRefused, 1), (Reason::Fault, 2), (Reason::Frozen, 1)]);
        assert!(happened[0].message.ends_with(": unsupported"), "{happened:?}");
        assert!(happened[1].message.ends_with(&format!("CUDA error {}", FAULTS[0])), "{happened:?}");
        assert_eq!(said(&look(stats, false)), [(Reason::Thawed, 1)]);
    }

    #[test]
    fn many_zones_at_once_are_told_of_one_after_the_other() {
        let mut watcher = Watcher::default();
        let names: Vec<String> = (0..MOST + 5).map(|at| format!("z{at:02}")).collect();
        let mut look = |refused: u64, time| {
            let zones: Vec<(&str, serde_json::Value)> =
                names.iter().map(|name| (name.as_str(), json!({ "charges_refused": refused }))).collect();
            watcher.look(&status(&zones), seconds(time)).len()
        };
        assert_eq!([look(0, 0), look(1, 5), look(1, 10), look(1, 15)], [0, MOST, 5, 0]);
    }
}
