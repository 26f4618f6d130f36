//! The lines of the table, with what they look like on a terminal that knows colours.

use std::cmp::Ordering;

use control::WorkerStats;
use control::admin::{SuspendState, WorkerStatus, ZoneStatus};

use super::sample::{Rates, Sample, denied};
use super::view::{Sort, View};
use crate::text::counted;

/// From these percent of its limit on, memory is amber, or red.
const AMBER: u64 = 85;
const RED: u64 = 95;

/// Columns behind the name, with a space before each.
const COLUMNS: [(&str, usize); 9] = [
    ("MEM", 5),
    ("LIMIT", 5),
    ("GPU", 4),
    ("CALL/s", 6),
    ("LNCH/s", 6),
    ("COPY/s", 6),
    ("QUE", 3),
    ("DENY", 5),
    ("FLT", 4),
];
/// What they take together.
const FIXED: usize = 5 + 5 + 4 + 6 + 6 + 6 + 3 + 5 + 4 + 9;
/// Of the name's column.
const NARROWEST: usize = 24;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Style {
    #[default]
    Plain,
    Bold,
    Faint,
    Amber,
    Red,
}

impl Style {
    fn begin(self) -> &'static str {
        match self {
            Self::Plain => "",
            Self::Bold => "\x1b[1m",
            Self::Faint => "\x1b[2m",
            Self::Amber => "\x1b[33m",
            Self::Red => "\x1b[1;31m",
        }
    }
}

/// Pieces of a line, one after the other.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Line(Vec<(String, Style)>);

impl Line {
    pub(super) fn of(text: impl Into<String>, style: Style) -> Self {
        Self(vec![(text.into(), style)])
    }

    fn then(mut self, text: impl Into<String>, style: Style) -> Self {
        self.0.push((text.into(), style));
        self
    }

    /// Without colours and spaces at its end.
    pub(super) fn plain(&self) -> String {
        self.0.iter().map(|(text, _)| text.as_str()).collect::<String>().trim_end().to_owned()
    }

    /// As much of it as fits.
    pub(super) fn shown(&self, width: usize, colours: bool) -> String {
        let (mut out, mut left) = (String::new(), width);
        for (text, style) in &self.0 {
            let part: String = text.chars().take(left).collect();
            left -= part.chars().count();
            match *style {
                Style::Plain => out += &part,
                _ if !colours || part.is_empty() => out += &part,
                style => out.extend([style.begin(), &part, "\x1b[0m"]),
            }
        }
        out
    }
}

/// What stands on the screen, above, in and below the part that scrolls.
pub(super) struct Table {
    pub head: Vec<Line>,
    pub body: Vec<Line>,
    pub foot: Line,
}

/// `width`: of the screen.
pub(super) fn table(now: &Sample, before: &Sample, view: &View, width: usize) -> Table {
    let (status, seconds) = (&now.status, now.seconds_since(before));
    let clients: usize = status.zones.iter().map(|zone| zone.clients).sum();
    let mut head = vec![Line::of(
        format!(
            "bulkhead {} · {} · {} · {} · {}",
            status.version,
            status.backend,
            counted(status.zones.len() as u64, "zone"),
            counted(clients as u64, "client"),
            counted(status.spare_workers as u64, "spare worker")
        ),
        Style::Plain,
    )];
    let faults = status.gpu_faults.iter().map(|(gpu, fault)| format!("GPU {gpu} does not work: {fault}"));
    head.extend(faults.map(|text| Line::of(text, Style::Red)));
    head.push(Line::default());
    let mut zones: Vec<(&ZoneStatus, Rates)> = status
        .zones
        .iter()
        .map(|zone| (zone, Rates::new(&zone.stats, before.zone(zone.name.as_str()), seconds)))
        .collect();
    zones.sort_by(|one, other| by(view.sort, one, other));
    if view.reverse {
        zones.reverse();
    }
    let longest = zones.iter().map(|(zone, _)| title(zone).chars().count()).max().unwrap_or(0);
    let name_width = longest.max(NARROWEST).min(width.saturating_sub(FIXED).max(NARROWEST));
    let titles = COLUMNS.iter().map(|(title, width)| format!(" {title:>width$}"));
    head.push(Line::of(format!("{:<name_width$}{}", "ZONE / CLIENT", titles.collect::<String>()), Style::Bold));

    let workers_before = before.workers();
    let mut body = Vec::new();
    let mut total = Row { name: "total".to_owned(), ..Row::default() };
    for (zone, rates) in &zones {
        let row = Row {
            name: title(zone),
            memory: zone.used,
            limit: zone.limits_on_line().memory,
            rates: *rates,
            queue: zone.stats.in_progress,
            denied: denied(zone),
            faults: zone.stats.faulted(),
        };
        total.add(&row);
        body.push(row.line(name_width, Style::Plain));
        body.extend(pod(zone));
        for gpu in zone.gpus.iter().filter(|_| zone.gpus.len() > 1) {
            let name = format!("  GPU {}", gpu.gpu);
            let busy = gpu.busy.map(|busy| f64::from(busy) / 100.0);
            body.push(memory(&name, name_width, gpu.used, gpu.limits.memory, busy, Style::Faint));
        }
        let of = |worker: &WorkerStatus| {
            let rates = Rates::new(&worker.stats, workers_before.get(&worker.pid).copied(), seconds);
            client(worker, rates).line(name_width, Style::Faint)
        };
        body.extend(zone.workers.iter().map(of));
    }
    if zones.is_empty() {
        body.push(Line::of("no zones; create one with `bulkhead zones create`", Style::Faint));
    }
    Table { head, body, foot: total.line(name_width, Style::Bold) }
}

/// Names from A to Z, figures from the largest; those that are the same by name.
fn by(sort: Sort, (one, rates): &(&ZoneStatus, Rates), (other, others): &(&ZoneStatus, Rates)) -> Ordering {
    let figure = |one: f64, other: f64| other.total_cmp(&one);
    let order = match sort {
        Sort::Name => Ordering::Equal,
        Sort::Memory => other.used.cmp(&one.used),
        Sort::Gpu => figure(rates.gpu.unwrap_or(0.0), others.gpu.unwrap_or(0.0)),
        Sort::Calls => figure(rates.calls, others.calls),
        Sort::Launches => figure(rates.launches, others.launches),
        Sort::Copied => figure(rates.copied, others.copied),
        Sort::Denied => denied(other).cmp(&denied(one)),
    };
    order.then_with(|| one.name.cmp(&other.name))
}

/// A line of figures.
#[derive(Debug, Default)]
struct Row {
    name: String,
    memory: u64,
    limit: Option<u64>,
    rates: Rates,
    queue: u64,
    denied: u64,
    faults: u64,
}

impl Row {
    fn add(&mut self, other: &Self) {
        self.memory = self.memory.saturating_add(other.memory);
        self.rates.add(other.rates);
        self.queue = self.queue.saturating_add(other.queue);
        self.denied = self.denied.saturating_add(other.denied);
        self.faults = self.faults.saturating_add(other.faults);
    }

    fn line(&self, name_width: usize, style: Style) -> Line {
        let Self { name, rates, .. } = self;
        let figures = [
            compact(rates.calls, 1000.0),
            compact(rates.launches, 1000.0),
            compact(rates.copied, 1024.0),
            compact(self.queue as f64, 1000.0),
            compact(self.denied as f64, 1000.0),
        ];
        let figures = figures.iter().zip(&COLUMNS[3..]).map(|(text, (_, width))| format!(" {text:>width$}"));
        let faults = format!(" {:>4}", compact(self.faults as f64, 1000.0));
        memory(name, name_width, self.memory, self.limit, rates.gpu, style)
            .then(figures.collect::<String>(), style)
            .then(faults, if self.faults > 0 && style == Style::Plain { Style::Red } else { style })
    }
}

/// The first columns of a line.
fn memory(name: &str, width: usize, used: u64, limit: Option<u64>, gpu: Option<f64>, style: Style) -> Line {
    let full = limit.map_or(0, |limit| used.saturating_mul(100) / limit.max(1));
    let colour = match full {
        RED.. => Style::Red,
        AMBER.. => Style::Amber,
        _ => style,
    };
    let limit = limit.map_or_else(|| "-".to_owned(), |limit| compact(limit as f64, 1024.0));
    let gpu = gpu.map_or_else(|| "-".to_owned(), |part| format!("{:.0}%", (part * 100.0).min(999.0)));
    Line::of(format!("{:<width$}", cut(name, width)), style)
        .then(format!(" {:>5}", compact(used as f64, 1024.0)), colour)
        .then(format!(" {limit:>5} {gpu:>4}"), style)
}

fn client(worker: &WorkerStatus, rates: Rates) -> Row {
    let WorkerStats { in_progress, .. } = worker.stats;
    let away = where_memory_is(worker.suspend.state);
    Row {
        name: format!("  {} {away}{}", worker.client_pid, command_name(worker.client_pid)),
        memory: worker.charged,
        limit: None,
        rates,
        queue: in_progress,
        denied: worker.stats.denied(),
        faults: worker.stats.faulted(),
    }
}

/// Whose zone it is, where Kubernetes has told.
fn pod(zone: &ZoneStatus) -> Option<Line> {
    let labels = &zone.labels;
    if labels.pod.is_empty() {
        return None;
    }
    let container =
        if labels.container.is_empty() { String::new() } else { format!(" container {}", labels.container) };
    Some(Line::of(format!("  pod {}/{}{container}", labels.namespace, labels.pod), Style::Faint))
}

/// Of a client whose memory is not on the GPU.
fn where_memory_is(state: SuspendState) -> &'static str {
    match state {
        SuspendState::Running => "",
        SuspendState::Suspending => "[to host] ",
        SuspendState::Suspended => "[host] ",
        SuspendState::Resuming => "[to GPU] ",
        SuspendState::Waiting => "[waits] ",
    }
}

/// Its name, and whether its work stands still: frozen by an operator, or until its next turn.
fn title(zone: &ZoneStatus) -> String {
    let (frozen, stopped) = (zone.frozen.then_some(" [frozen]"), zone.stopped.then_some(" [preempted]"));
    format!("{}{}", zone.name.as_str(), frozen.or(stopped).unwrap_or_default())
}

/// The client's command name, as far as this process can see it. A tenant chooses it, so only printable characters are
/// shown.
fn command_name(pid: u32) -> String {
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    name.trim_end().chars().map(|c| if c.is_ascii_graphic() { c } else { '?' }).collect()
}

/// At most five characters: `0`, `12`, `9.8k`, `512M`, `1.0G`. `base`: 1000, or 1024 for bytes.
fn compact(value: f64, base: f64) -> String {
    const UNITS: [&str; 7] = ["", "K", "M", "G", "T", "P", "E"];
    let (mut value, mut unit) = (value, 0);
    // 999.5 would be written with four digits.
    while value >= 999.5 && unit + 1 < UNITS.len() {
        value /= base;
        unit += 1;
    }
    let unit = UNITS[unit];
    if unit.is_empty() || value >= 9.95 { format!("{value:.0}{unit}") } else { format!("{value:.1}{unit}") }
}

/// Its beginning, and a sign that there is more.
fn cut(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    text.chars().take(width.saturating_sub(1)).chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use control::ZoneLimits;
    use control::admin::Status;

    /// Zones with these names, memory in use (of 100 MiB) and calls so far.
    fn sample(zones: &[(&str, u64, u64)]) -> Sample {
        let zone = |(name, used, calls): &(&str, u64, u64)| {
            serde_json::json!({
                "name": name, "socket": "/s", "limits": ZoneLimits { memory: Some(100 << 20), ..ZoneLimits::default() }, "used": used << 20, "peak": 0,
                "pinned": 0, "clients": 0, "clients_served": 0, "clients_refused": 0, "charges_refused": 0,
                "pins_refused": 0, "overdrafts": 0, "driver_memory": 0, "workers": [],
                "labels": { "pod": "trainer-7d9f", "namespace": "research", "container": "main" },
                "stats": WorkerStats { calls: *calls, ..WorkerStats::default() },
            })
        };
        let status: Status = serde_json::from_value(serde_json::json!({
            "pid": 1, "version": "0", "uptime_seconds": 0, "backend": "soft", "cuda_version": 13000, "ready": true,
            "spare_workers": 1, "reloads": 0, "reloads_failed": 0, "waiting_clients": 0, "missing_jail_parts": [],
            "grants": 0, "sharing": {}, "gpu_faults": { "3": "hardware error Xid 79" },
            "zones": zones.iter().map(zone).collect::<Vec<_>>(),
        }))
        .unwrap();
        Sample::new(status)
    }

    fn names(view: &View) -> Vec<String> {
        let zones = [("b", 84, 10), ("a", 99, 300), ("c", 10, 20)];
        let table = table(&sample(&zones), &sample(&[]), view, 80);
        let lines = table.body.iter().map(Line::plain).filter(|line| !line.starts_with(' '));
        lines.map(|line| line.split(' ').next().unwrap().to_owned()).collect()
    }

    #[test]
    fn zones_are_sorted_as_asked() {
        let of = |sort, reverse| names(&View { sort, reverse, ..View::default() });
        assert_eq!(of(Sort::Name, false), ["a", "b", "c"]);
        assert_eq!(of(Sort::Name, true), ["c", "b", "a"]);
        assert_eq!(of(Sort::Memory, false), ["a", "b", "c"]);
        assert_eq!(of(Sort::Calls, false), ["a", "c", "b"]);
        assert_eq!(of(Sort::Gpu, false), ["a", "b", "c"], "what is the same is in the order of names");
    }

    #[test]
    fn everything_fits_eighty_columns() {
        let zones = [("plugin-gpu-10gb-0123456789ab-and-more", 1 << 40, u64::MAX), ("b", 1, 0)];
        let made = table(&sample(&zones), &sample(&[]), &View::default(), 80);
        for line in made.head.iter().chain(&made.body).chain([&made.foot]) {
            assert!(line.plain().chars().count() <= 80, "{}", line.plain());
        }
        assert!(made.body.iter().any(|line| line.plain() == "  pod research/trainer-7d9f container main"));
        assert!(made.head.iter().any(|line| line.plain() == "GPU 3 does not work: hardware error Xid 79"));
        // Who has more room sees more.
        let wide = table(&sample(&zones), &sample(&[]), &View::default(), 200);
        assert!(wide.body.iter().any(|line| line.plain().starts_with("plugin-gpu-10gb-0123456789ab-and-more ")));
    }

    #[test]
    fn totals_are_of_all_zones() {
        let made = table(&sample(&[("a", 30, 1), ("b", 12, 1)]), &sample(&[]), &View::default(), 80);
        let words: Vec<String> = made.foot.plain().split_whitespace().map(str::to_owned).collect();
        assert_eq!(words[..3], ["total", "42M", "-"]);
    }

    #[test]
    fn memory_near_its_limit_is_amber_and_then_red() {
        let colour = |used: u64| {
            let made = table(&sample(&[("a", used, 0)]), &sample(&[]), &View::default(), 80);
            made.body[0].0[1].1
        };
        assert_eq!(
            [84, 85, 94, 95, 120].map(colour),
            [Style::Plain, Style::Amber, Style::Amber, Style::Red, Style::Red]
        );
        let line = Line::of("abc", Style::Red).then("def", Style::Plain);
        assert_eq!((line.shown(4, false), line.shown(2, true)), ("abcd".into(), "\x1b[1;31mab\x1b[0m".into()));
    }

    #[test]
    fn figures_take_five_characters_at_most() {
        let known = [(0.0, "0"), (9.0, "9"), (999.0, "999"), (1024.0, "1.0K"), (1e6, "977K"), (1.5e9, "1.4G")];
        for (value, text) in known {
            assert_eq!(compact(value, 1024.0), text);
        }
        for value in [999.4, 999.5, 1023.0, 9.94e3, 9.96e3, 1e12, u64::MAX as f64] {
            let text = compact(value, 1000.0);
            assert!(text.len() <= 5, "{text}");
        }
    }

    #[test]
    fn names_of_clients_cannot_control_the_terminal() {
        assert!(!command_name(std::process::id()).contains('\x1b'));
        assert_eq!(command_name(u32::MAX), "");
        assert_eq!(cut("äöüß", 3), "äö…");
    }
}
