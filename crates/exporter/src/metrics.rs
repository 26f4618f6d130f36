//! A status in Prometheus' text format.
//!
//! Totals never go backwards: what a worker has counted goes to its zone when it ends, and to the next broker.

use std::borrow::Cow;
use std::fmt::Write;

use control::admin::{Status, ZoneGpuStatus, ZoneStatus};
use control::driver_filter::DriverFilter;
use control::histogram::{Bounds, COPY_RATES, Histogram, OPEN_TIMES};
use control::statistics::{Denial, FAULTS};

/// One figure of a zone.
struct Family {
    name: &'static str,
    kind: &'static str,
    help: &'static str,
    /// Values, each with labels of its own beside those of the zone; none where there is nothing to tell.
    samples: fn(&ZoneStatus) -> Vec<Sample>,
}

struct Sample {
    label: Option<(&'static str, Cow<'static, str>)>,
    value: f64,
}

/// One value for each GPU of the zone, where there is something to tell.
fn on_gpus(zone: &ZoneStatus, value: fn(&ZoneGpuStatus) -> Option<f64>) -> Vec<Sample> {
    let sample = |gpu: &ZoneGpuStatus| {
        let label = Some(("gpu", Cow::Owned(gpu.gpu.to_string())));
        value(gpu).map(|value| Sample { label, value })
    };
    zone.gpus.iter().filter_map(sample).collect()
}

fn one(value: u64) -> Vec<Sample> {
    vec![Sample { label: None, value: value as f64 }]
}

fn maybe(value: Option<u64>) -> Vec<Sample> {
    value.map(one).unwrap_or_default()
}

fn labelled(name: &'static str, values: impl IntoIterator<Item = (&'static str, u64)>) -> Vec<Sample> {
    values
        .into_iter()
        .map(|(label, value)| Sample { label: Some((name, label.into())), value: value as f64 })
        .collect()
}

const fn gauge(name: &'static str, help: &'static str, samples: fn(&ZoneStatus) -> Vec<Sample>) -> Family {
    Family { name, kind: "gauge", help, samples }
}

const fn counter(name: &'static str, help: &'static str, samples: fn(&ZoneStatus) -> Vec<Sample>) -> Family {
    Family { name, kind: "counter", help, samples }
}

const ZONE: &[Family] = &[
    gauge("bulkhead_zone_memory_bytes", "GPU memory charged to the zone, on all GPUs.", |zone| one(zone.used)),
    gauge("bulkhead_zone_memory_peak_bytes", "Peak GPU memory charged to the zone, of each GPU, added up.", |zone| {
        one(zone.peak)
    }),
    gauge(
        "bulkhead_zone_driver_memory_bytes",
        "Part of it that the driver allocates beyond what clients requested.",
        |zone| one(zone.driver_memory),
    ),
    gauge(
        "bulkhead_zone_memory_limit_bytes",
        "GPU memory limit of the zone on each GPU that has no other; absent if unlimited.",
        |zone| maybe(zone.limits.memory),
    ),
    gauge("bulkhead_zone_pinned_bytes", "Host memory pinned by the zone's clients.", |zone| one(zone.pinned)),
    gauge("bulkhead_zone_pinned_limit_bytes", "Pinned memory limit of the zone; absent if unlimited.", |zone| {
        maybe(zone.limits.pinned)
    }),
    gauge("bulkhead_zone_share", "Weight of the zone's GPU time on each GPU that has no other.", |zone| {
        one(zone.limits.share.into())
    }),
    gauge("bulkhead_zone_gpu_memory_bytes", "GPU memory charged to the zone, by GPU.", |zone| {
        on_gpus(zone, |gpu| Some(gpu.used as f64))
    }),
    gauge("bulkhead_zone_gpu_memory_peak_bytes", "Peak GPU memory charged to the zone, by GPU.", |zone| {
        on_gpus(zone, |gpu| Some(gpu.peak as f64))
    }),
    gauge(
        "bulkhead_zone_gpu_memory_limit_bytes",
        "GPU memory limit of the zone, by GPU; absent if unlimited.",
        |zone| on_gpus(zone, |gpu| gpu.limits.memory.map(|limit| limit as f64)),
    ),
    gauge("bulkhead_zone_gpu_share", "Weight of the zone's time, by GPU.", |zone| {
        on_gpus(zone, |gpu| Some(gpu.limits.share.into()))
    }),
    gauge("bulkhead_zone_gpu_cap_ratio", "Maximum share of the GPU's time, by GPU; absent if unlimited.", |zone| {
        on_gpus(zone, |gpu| gpu.limits.cap.map(|cap| f64::from(cap) / 100.0))
    }),
    gauge("bulkhead_zone_gpu_priority", "Scheduling priority of the zone, by GPU.", |zone| {
        on_gpus(zone, |gpu| Some(gpu.limits.priority.into()))
    }),
    gauge(
        "bulkhead_zone_gpu_utilization_ratio",
        "Part of the last second or two in which the zone kept the GPU busy; absent if not measured.",
        |zone| on_gpus(zone, |gpu| gpu.busy.map(|busy| f64::from(busy) / 100.0)),
    ),
    counter(
        "bulkhead_zone_gpu_turn_seconds_total",
        "Time slices of the zone on a GPU that other zones wanted, too.",
        |zone| on_gpus(zone, |gpu| Some(gpu.turn_time_ns as f64 / 1e9)),
    ),
    counter(
        "bulkhead_zone_gpu_preemptions_total",
        "Times that the scheduler took the zone's work off the GPU while it ran.",
        |zone| on_gpus(zone, |gpu| Some(gpu.preemptions as f64)),
    ),
    gauge("bulkhead_zone_workers", "Workers that serve a client.", |zone| one(zone.clients as u64)),
    counter("bulkhead_zone_clients_total", "Clients served.", |zone| one(zone.clients_served)),
    counter("bulkhead_zone_calls_total", "Calls of clients executed.", |zone| one(zone.stats.calls)),
    gauge("bulkhead_zone_calls_in_progress", "Calls being executed.", |zone| one(zone.stats.in_progress)),
    counter("bulkhead_zone_launches_total", "Kernels launched.", |zone| one(zone.stats.launches)),
    counter("bulkhead_zone_copies_total", "Copies; each chunk of a large copy counts.", |zone| {
        one(zone.stats.copies)
    }),
    counter("bulkhead_zone_copied_bytes_total", "Bytes copied, by direction.", |zone| {
        let stats = &zone.stats;
        let directions = [
            ("to_device", stats.bytes_to_device),
            ("from_device", stats.bytes_from_device),
            ("on_device", stats.bytes_on_device),
        ];
        labelled("direction", directions)
    }),
    counter("bulkhead_zone_gpu_seconds_total", "GPU time used; absent if not measured.", |zone| {
        let seconds = |time: u64| vec![Sample { label: None, value: time as f64 / 1e9 }];
        zone.stats.gpu_time_ns.map(seconds).unwrap_or_default()
    }),
    counter("bulkhead_zone_errors_total", "Calls that failed.", |zone| one(zone.stats.errors)),
    counter("bulkhead_zone_denials_total", "Requests refused, by reason.", |zone| {
        let workers = Denial::ALL.iter().zip(zone.stats.denials).map(|(reason, count)| (reason.name(), count));
        labelled(
            "reason",
            workers.chain([
                ("memory", zone.charges_refused),
                ("pinned_memory", zone.pins_refused),
                ("clients", zone.clients_refused),
                ("overdraft", zone.overdrafts),
                ("runaway", zone.runaways),
            ]),
        )
    }),
    gauge("bulkhead_zone_suspended_bytes", "GPU memory of suspended clients, held in host memory.", |zone| {
        one(zone.suspended)
    }),
    counter("bulkhead_zone_suspensions_total", "Times that the memory of a client was moved to the host.", |zone| {
        one(zone.suspensions)
    }),
    counter("bulkhead_zone_suspend_bytes_total", "GPU memory moved by workers, by direction.", |zone| {
        labelled("direction", [("out", zone.moved_out.bytes), ("back", zone.moved_back.bytes)])
    }),
    counter("bulkhead_zone_suspend_seconds_total", "Time that this took, by direction.", |zone| {
        let seconds = |direction: &'static str, micros: u64| Sample {
            label: Some(("direction", direction.into())),
            value: micros as f64 / 1e6,
        };
        vec![seconds("out", zone.moved_out.micros), seconds("back", zone.moved_back.micros)]
    }),
    gauge("bulkhead_zone_frozen", "1 if an operator has taken the zone's work off the GPU, else 0.", |zone| {
        one(u64::from(zone.frozen))
    }),
    counter("bulkhead_zone_faults_total", "Faults that destroyed a context, by CUDA error.", |zone| {
        labelled("code", FAULTS.iter().map(|code| cuda_abi::error::name(*code)).zip(zone.stats.faults))
    }),
];

/// Times and rates of a zone, in units that Prometheus likes: seconds, and bytes per second.
struct Spread {
    name: &'static str,
    help: &'static str,
    bounds: &'static Bounds,
    /// Divides what is counted into that unit.
    unit: f64,
    values: fn(&ZoneStatus) -> &Histogram,
}

const SPREADS: &[Spread] = &[
    Spread {
        name: "bulkhead_zone_shared_open_seconds",
        help: "Time to open shared memory of another process, in the worker.",
        bounds: &OPEN_TIMES,
        unit: 1e9,
        values: |zone| &zone.stats.shared_opens,
    },
    Spread {
        name: "bulkhead_zone_shared_copy_bytes_per_second",
        help: "Bandwidth of sampled copies of 1 MiB and more from and to shared memory.",
        bounds: &COPY_RATES,
        unit: 1.0,
        values: |zone| &zone.stats.shared_copies,
    },
];

const MIB: u64 = 1 << 20;

/// What zones use, as NVIDIA's exporter names it: whole MiB.
const DCGM: &[Family] = &[
    gauge("DCGM_FI_DEV_FB_USED", "Framebuffer memory used (in MiB).", |zone| {
        on_gpus(zone, |gpu| Some((gpu.used / MIB) as f64))
    }),
    gauge("DCGM_FI_DEV_FB_FREE", "Framebuffer memory free (in MiB).", |zone| {
        on_gpus(zone, |gpu| gpu.limits.memory.map(|limit| (limit.saturating_sub(gpu.used) / MIB) as f64))
    }),
    gauge("DCGM_FI_DEV_FB_TOTAL", "Total framebuffer memory (in MiB).", |zone| {
        on_gpus(zone, |gpu| gpu.limits.memory.map(|limit| (limit / MIB) as f64))
    }),
];

/// A metric of GPUs, and what it means.
const GPU_FAULT: (&str, &str) =
    ("bulkhead_gpu_fault", "1 for each GPU that does not work, and on which nothing new is put; absent for others.");

/// Figures of the node as a whole.
fn node(status: &Status) -> [(&'static str, &'static str, &'static str, u64); 18] {
    [
        ("bulkhead_uptime_seconds", "gauge", "Time since the broker started.", status.uptime_seconds),
        ("bulkhead_spare_workers", "gauge", "Idle workers kept ready.", status.spare_workers as u64),
        ("bulkhead_waiting_clients", "gauge", "Clients waiting for a worker.", status.waiting_clients as u64),
        ("bulkhead_ready", "gauge", "1 if workers can start, else 0.", u64::from(status.ready)),
        (
            "bulkhead_jail_missing_parts",
            "gauge",
            "Parts of the jail that are unavailable on this machine.",
            status.missing_jail_parts.len() as u64,
        ),
        (
            "bulkhead_driver_filter",
            "gauge",
            "Filter between workers and NVIDIA's driver: 0 off, 1 refuse, 2 supervise.",
            status.driver_filter.parse().unwrap_or(DriverFilter::Off) as u64,
        ),
        (
            "bulkhead_preemption_in_force",
            "gauge",
            "1 if running kernels can be taken off the GPU, else 0 (zones take turns).",
            u64::from(status.preemption.in_force),
        ),
        (
            "bulkhead_preemptor_restarts_total",
            "counter",
            "Times that the preemptor ended and another took its place.",
            status.preemption.restarts,
        ),
        ("bulkhead_config_reloads_total", "counter", "Successful configuration reloads.", status.reloads),
        (
            "bulkhead_config_reload_failures_total",
            "counter",
            "Configuration reloads rejected as invalid.",
            status.reloads_failed,
        ),
        ("bulkhead_grants", "gauge", "Grants between zones.", status.grants as u64),
        (
            "bulkhead_shared_exports_total",
            "counter",
            "Memory and events exported by clients.",
            status.sharing.exports,
        ),
        ("bulkhead_shared_opens_total", "counter", "Exported memory and events opened.", status.sharing.opens),
        (
            "bulkhead_shared_denials_total",
            "counter",
            "Attempts to open exported memory or events that were refused.",
            status.sharing.denials,
        ),
        (
            "bulkhead_shared_mapped_bytes",
            "gauge",
            "Shared memory mapped by other clients; each mapping counts.",
            status.sharing.mapped_bytes,
        ),
        ("bulkhead_published_total", "counter", "Names published by clients.", status.sharing.published),
        ("bulkhead_publications", "gauge", "Names currently published.", status.sharing.publications as u64),
        ("bulkhead_publications_awaited", "gauge", "Clients waiting for a name.", status.sharing.waiting as u64),
    ]
}

pub fn render(status: &Status, dcgm_names: bool) -> String {
    let mut text = String::new();
    let (version, backend) = (escape(&status.version), escape(&status.backend));
    let cuda = format!("{}.{}", status.cuda_version / 1000, status.cuda_version % 1000 / 10);
    header(&mut text, "bulkhead_build_info", "gauge", "Build information.");
    let _ = writeln!(
        text,
        "bulkhead_build_info{{version=\"{version}\",backend=\"{backend}\",cuda_version=\"{cuda}\"}} 1"
    );
    for (name, kind, help, value) in node(status) {
        header(&mut text, name, kind, help);
        let _ = writeln!(text, "{name} {value}");
    }
    header(&mut text, GPU_FAULT.0, "gauge", GPU_FAULT.1);
    for (gpu, fault) in &status.gpu_faults {
        let _ = writeln!(text, "{}{{gpu=\"{gpu}\",fault=\"{}\"}} 1", GPU_FAULT.0, escape(fault));
    }
    let families = ZONE.iter().chain(if dcgm_names { DCGM } else { &[] });
    for family in families {
        header(&mut text, family.name, family.kind, family.help);
        for zone in &status.zones {
            let labels = labels(zone);
            for Sample { label, value } in (family.samples)(zone) {
                let own = label.map(|(name, label)| format!(",{name}=\"{label}\"")).unwrap_or_default();
                let _ = writeln!(text, "{}{{{labels}{own}}} {value}", family.name);
            }
        }
    }
    SPREADS.iter().for_each(|spread| render_spread(&mut text, spread, &status.zones));
    text
}

fn labels(zone: &ZoneStatus) -> String {
    format!(
        "zone=\"{}\",pod=\"{}\",namespace=\"{}\",container=\"{}\"",
        escape(zone.name.as_str()),
        escape(&zone.labels.pod),
        escape(&zone.labels.namespace),
        escape(&zone.labels.container)
    )
}

fn render_spread(text: &mut String, spread: &Spread, zones: &[ZoneStatus]) {
    let Spread { name, help, bounds, unit, values } = spread;
    header(text, name, "histogram", help);
    for zone in zones {
        let (labels, histogram) = (labels(zone), values(zone));
        for (bound, count) in histogram.cumulative(bounds) {
            let _ = writeln!(text, "{name}_bucket{{{labels},le=\"{}\"}} {count}", bound as f64 / unit);
        }
        let count = histogram.count();
        let _ = writeln!(text, "{name}_bucket{{{labels},le=\"+Inf\"}} {count}");
        let _ = writeln!(text, "{name}_sum{{{labels}}} {}", histogram.sum as f64 / unit);
        let _ = writeln!(text, "{name}_count{{{labels}}} {count}");
    }
}

fn header(text: &mut String, name: &str, kind: &str, help: &str) {
    let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
}

/// Labels hold what people wrote.
fn escape(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use control::WorkerStats;
    use control::zone::{GpuLimits, Labels, ZoneLimits};

    fn on_gpu(gpu: u32, memory: Option<u64>) -> ZoneGpuStatus {
        let limits = GpuLimits { memory, cap: Some(50), ..GpuLimits::default() };
        let (used, peak, turn_time_ns) = (MIB + 1, MIB + 1, 2_500_000_000);
        let (charges_refused, busy, turns, preemptions) = (0, Some(25), 4, 7);
        ZoneGpuStatus { gpu, limits, used, peak, charges_refused, busy, turns, turn_time_ns, preemptions }
    }

    pub(crate) fn status() -> Status {
        let mut stats = WorkerStats { calls: 9, bytes_to_device: 1 << 40, ..WorkerStats::default() };
        (stats.denials[2], stats.faults[1], stats.gpu_time_ns) = (4, 1, Some(1_500_000_000));
        (stats.shared_opens.counts[0], stats.shared_opens.counts[2], stats.shared_opens.sum) = (2, 1, 60_000);
        let zone = ZoneStatus {
            name: "a".parse().unwrap(),
            socket: "/s".into(),
            limits: ZoneLimits { memory: Some(3 * MIB), ..ZoneLimits::default() },
            labels: Labels { pod: "q\"\\".into(), ..Labels::default() },
            used: MIB + 1,
            peak: 2 * MIB,
            clients: 1,
            clients_served: 2,
            clients_refused: 3,
            charges_refused: 5,
            pinned: 4096,
            pins_refused: 0,
            overdrafts: 0,
            runaways: 0,
            suspended: 0,
            suspensions: 0,
            moved_out: Default::default(),
            moved_back: Default::default(),
            frozen: false,
            stopped: false,
            preemptions: 0,
            turns: 0,
            turn_time_ns: 0,
            driver_memory: 0,
            gpus: vec![on_gpu(0, Some(3 * MIB)), on_gpu(1, None)],
            stats,
            workers: Vec::new(),
        };
        let free = ZoneStatus {
            name: "b".parse().unwrap(),
            limits: ZoneLimits::default(),
            stats: WorkerStats::default(),
            ..zone.clone()
        };
        Status {
            pid: 1,
            version: "0.1.0".into(),
            uptime_seconds: 7,
            backend: "soft".into(),
            cuda_version: 13010,
            ready: true,
            spare_workers: 1,
            reloads: 2,
            reloads_failed: 1,
            waiting_clients: 0,
            missing_jail_parts: Vec::new(),
            gpu_faults: [(3, "hardware error Xid 79".to_owned())].into(),
            grants: 2,
            preemption: control::admin::PreemptionStatus::default(),
            driver_filter: "refuse".to_owned(),
            sharing: control::admin::SharingStatus::default(),
            zones: vec![zone, free],
        }
    }

    #[test]
    fn what_is_known_is_told_and_what_is_not_is_absent() {
        let text = render(&status(), false);
        let a = "zone=\"a\",pod=\"q\\\"\\\\\",namespace=\"\",container=\"\"";
        for line in [
            "bulkhead_gpu_fault{gpu=\"3\",fault=\"hardware error Xid 79\"} 1".to_owned(),
            "bulkhead_build_info{version=\"0.1.0\",backend=\"soft\",cuda_version=\"13.1\"} 1".to_owned(),
            format!("bulkhead_zone_memory_bytes{{{a}}} 1048577"),
            format!("bulkhead_zone_memory_limit_bytes{{{a}}} 3145728"),
            format!("bulkhead_zone_gpu_memory_bytes{{{a},gpu=\"1\"}} 1048577"),
            format!("bulkhead_zone_gpu_memory_limit_bytes{{{a},gpu=\"0\"}} 3145728"),
            format!("bulkhead_zone_gpu_cap_ratio{{{a},gpu=\"0\"}} 0.5"),
            format!("bulkhead_zone_gpu_utilization_ratio{{{a},gpu=\"1\"}} 0.25"),
            format!("bulkhead_zone_gpu_turn_seconds_total{{{a},gpu=\"1\"}} 2.5"),
            format!("bulkhead_zone_gpu_preemptions_total{{{a},gpu=\"1\"}} 7"),
            format!("bulkhead_zone_copied_bytes_total{{{a},direction=\"to_device\"}} 1099511627776"),
            format!("bulkhead_zone_denials_total{{{a},reason=\"unsupported\"}} 4"),
            format!("bulkhead_zone_denials_total{{{a},reason=\"memory\"}} 5"),
            format!("bulkhead_zone_faults_total{{{a},code=\"CUDA_ERROR_ASSERT\"}} 1"),
            format!("bulkhead_zone_gpu_seconds_total{{{a}}} 1.5"),
            format!("bulkhead_zone_shared_open_seconds_bucket{{{a},le=\"0.00001\"}} 2"),
            format!("bulkhead_zone_shared_open_seconds_bucket{{{a},le=\"0.00002\"}} 2"),
            format!("bulkhead_zone_shared_open_seconds_bucket{{{a},le=\"0.00005\"}} 3"),
            format!("bulkhead_zone_shared_open_seconds_bucket{{{a},le=\"+Inf\"}} 3"),
            format!("bulkhead_zone_shared_open_seconds_sum{{{a}}} 0.00006"),
            format!("bulkhead_zone_shared_open_seconds_count{{{a}}} 3"),
        ] {
            assert!(text.lines().any(|known| known == line), "{line}\nis not in\n{text}");
        }
        assert!(!text.contains("\nbulkhead_zone_memory_limit_bytes{zone=\"b\""));
        assert!(!text.contains(&format!("gpu_memory_limit_bytes{{{a},gpu=\"1\"")));
        assert!(!text.contains("gpu_seconds_total{zone=\"b\""));
        assert!(!text.contains("DCGM"));
        let dcgm = render(&status(), true);
        assert!(dcgm.contains("DCGM_FI_DEV_FB_USED{zone=\"a\"") && dcgm.contains("DCGM_FI_DEV_FB_FREE{zone=\"a\""));
    }

    /// `BULKHEAD_BLESS=1` rewrites it.
    #[test]
    fn the_reference_is_fresh() {
        const BEGIN: &str = "<!-- metrics: made from crates/exporter/src/metrics.rs -->\n";
        const END: &str = "<!-- end of metrics -->\n";
        let mut table = String::from("\n| metric | kind | additional labels | meaning |\n|---|---|---|---|\n");
        let _ = writeln!(
            table,
            "| `bulkhead_build_info` | gauge | `version`, `backend`, `cuda_version` | Build information. |"
        );
        for (name, kind, help, _) in node(&status()) {
            let _ = writeln!(table, "| `{name}` | {kind} | | {help} |");
        }
        let _ = writeln!(table, "| `{}` | gauge | `gpu`, `fault` | {} |", GPU_FAULT.0, GPU_FAULT.1);
        for Family { name, kind, help, samples } in ZONE.iter().chain(DCGM) {
            let label = samples(&status().zones[0]).first().and_then(|sample| sample.label.clone());
            let label = label.map(|(name, _)| format!("`{name}` ")).unwrap_or_default();
            let _ = writeln!(table, "| `{name}` | {kind} | {label}| {help} |");
        }
        for Spread { name, help, .. } in SPREADS {
            let _ = writeln!(table, "| `{name}` | histogram | `le` | {help} |");
        }
        table += "\n`bulkhead_zone_*` have the labels `zone`, `pod`, `namespace` and `container`. `DCGM_*` need `dcgm_names`.\n\n";
        testkit::fresh_part("docs/operations.md", BEGIN, END, &table);
    }

    /// Every metric and label that a query names is one of ours.
    #[test]
    fn the_dashboard_asks_for_what_there_is() {
        fn collect(value: &serde_json::Value, queries: &mut Vec<String>) {
            match value {
                serde_json::Value::Object(map) => {
                    for (key, value) in map {
                        match value.as_str() {
                            Some(text) if key == "expr" || key == "query" || key == "legendFormat" => {
                                queries.push(text.to_owned());
                            }
                            _ => collect(value, queries),
                        }
                    }
                }
                serde_json::Value::Array(list) => list.iter().for_each(|value| collect(value, queries)),
                _ => {}
            }
        }
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/grafana/bulkhead.json");
        let dashboard: serde_json::Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
        let mut queries = Vec::new();
        collect(&dashboard, &mut queries);
        let text = render(&status(), false);
        let words = |query: &str| {
            let word = |c: char| !(c.is_ascii_alphanumeric() || c == '_');
            query.split(word).map(str::to_owned).collect::<Vec<_>>()
        };
        let mut asked = 0;
        for name in queries.iter().flat_map(|query| words(query)).filter(|word| word.starts_with("bulkhead_")) {
            let family = name.strip_suffix("_bucket").unwrap_or(&name);
            assert!(text.contains(&format!("\n# TYPE {family} ")), "{name} is not served");
            asked += 1;
        }
        assert!(asked > 10);
        for label in queries.iter().filter(|query| query.contains("{{")) {
            for name in label.split("{{").skip(1).filter_map(|rest| rest.split("}}").next()) {
                assert!(text.contains(&format!("{name}=\"")), "{name} is no label");
            }
        }
    }

    /// Every metric, label and alert in the rules is there, and every alert has its section in the runbooks, and no other has.
    #[test]
    fn the_alerts_ask_for_what_there_is_and_lead_somewhere() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let read = |path: &str| std::fs::read_to_string(root.join(path)).unwrap();
        let (rules, page) = (read("packaging/prometheus/bulkhead.yaml"), read("docs/monitoring.md"));
        let text = render(&status(), false);
        let word = |c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == ':');
        let named: Vec<&str> = rules.split(word).filter(|word| word.starts_with("bulkhead_")).collect();
        assert!(named.len() > 10);
        for name in named {
            assert!(text.contains(&format!("\n# TYPE {name} ")), "{name} is not served");
        }
        let reasons: Vec<&str> = rules.split("reason=\"").skip(1).filter_map(|rest| rest.split('"').next()).collect();
        assert!(!reasons.is_empty());
        for reason in reasons {
            assert!(text.contains(&format!(",reason=\"{reason}\"}}")), "{reason} is no reason");
        }
        let alerts: Vec<&str> = rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect();
        let sections: Vec<&str> = page.lines().filter_map(|line| line.strip_prefix("### ")).collect();
        assert_eq!(sections, alerts, "docs/monitoring.md has a section for each alert, in their order");
        for alert in alerts {
            let link = format!("runbook_url: docs/monitoring.md#{}\n", alert.to_lowercase());
            assert!(rules.contains(&link), "{alert} does not lead to its section");
        }
    }

    #[test]
    fn every_sample_follows_its_header() {
        let text = render(&status(), true);
        let mut family = "";
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# TYPE ") {
                family = rest.split(' ').next().unwrap();
            } else if !line.starts_with('#') {
                let name = line.split(['{', ' ']).next().unwrap();
                let own = ["", "_bucket", "_sum", "_count"].map(|end| format!("{family}{end}"));
                assert!(own.iter().any(|known| known == name), "{line}");
                assert!(line.rsplit(' ').next().unwrap().parse::<f64>().is_ok(), "{line}");
            }
        }
        assert!(text.ends_with('\n'));
    }
}
