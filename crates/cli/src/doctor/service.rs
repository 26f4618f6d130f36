//! The proxy: sockets, zones, grants, handles.

use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;

use control::admin::{AdminClient, AdminError, Answer as AdminAnswer, PreemptionStatus, Request, Status};
use control::driver_filter::DriverFilter;
use control::grant::Grant;
use control::size::Size;
use cuda_abi::wire::view::ZoneView;
use idm::bootstrap::{self, Answer, BootstrapError, Inquiry};

use super::finding::Finding;
use super::scene::Scene;
use crate::text::counted;

/// The first request makes the broker load a driver.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Where the self-test can run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// The zone that this process is in.
    Zone,
    /// A zone of the running proxy.
    Operator,
    /// Neither: a private proxy.
    Private,
    /// There should be a zone, but there is none.
    None,
}

pub(super) fn check(scene: &Scene, findings: &mut Vec<Finding>) -> Way {
    let zone = zone(scene, findings);
    let operator = operator(scene, findings);
    match (zone, operator) {
        (Some(true), _) => Way::Zone,
        (Some(false), _) => Way::None,
        (None, true) => Way::Operator,
        (None, false) if scene.is_container() => without_zone(scene, findings),
        (None, false) => Way::Private,
    }
}

/// A container without a zone: an error in a pod; elsewhere `bulkhead run` still works.
fn without_zone(scene: &Scene, findings: &mut Vec<Finding>) -> Way {
    let seen = format!("no {} in this container", scene.zone_socket().display());
    let symptom = "cuInit returns 100 (no device) in this container";
    let fix = "request bulkhead.dev/gpu in the pod's resources (or a claim), and check `bulkhead status` on the node";
    if scene.is_pod() {
        let cause = "the pod does not request a GPU from Bulkhead, or the node's proxy is not running";
        findings.push(Finding::error("socket", seen, symptom, cause, fix));
        return Way::None;
    }
    let cause = "the zone's directory is not mounted, and no proxy is running in the container";
    let fix = "mount the zone's directory at /run/bulkhead/zone, or use `bulkhead run`, which starts a private proxy";
    findings.push(Finding::warning("socket", seen, symptom, cause, fix));
    Way::Private
}

/// None if no zone is configured; else whether it answers.
fn zone(scene: &Scene, findings: &mut Vec<Finding>) -> Option<bool> {
    if !scene.is_tenant() {
        return None;
    }
    let path = scene.zone_socket();
    match ask(&path) {
        Ok(view) => {
            let limit = view.limit.map_or("no limit".to_owned(), |limit| format!("a limit of {}", Size(limit)));
            let clients = counted(view.processes.len() as u64, "client");
            findings.push(Finding::ok(
                "socket",
                format!("zone answers at {}: {} in use, {limit}, {clients}", path.display(), Size(view.used)),
            ));
            if view.cards.is_empty() {
                findings.push(Finding::error(
                    "zone",
                    "the zone has no GPU",
                    "cuInit returns 100, or waits for a worker",
                    "the proxy cannot initialize the driver",
                    "check the proxy's log, and run `bulkhead doctor` on the node",
                ));
            }
            if view.limit.is_some_and(|limit| view.used >= limit) {
                findings.push(Finding::warning(
                    "zone",
                    "the zone has reached its memory limit",
                    "cuMemAlloc returns 2 (out of memory)",
                    "other clients of this zone use it, or memory opened from another zone counts here",
                    "end them, or raise the limit with `bulkhead zones set NAME --memory SIZE`",
                ));
            }
            Some(true)
        }
        Err(error) => {
            findings.push(unreachable(&path, &error));
            Some(false)
        }
    }
}

fn ask(path: &Path) -> Result<ZoneView, BootstrapError> {
    let broker = bootstrap::connect(path)?;
    bootstrap::send(&broker, &Inquiry::default(), &[])?;
    let (answer, _) = bootstrap::recv_within::<Answer>(&broker, TIMEOUT)?;
    ZoneView::read(answer.bytes()).map_err(|_| BootstrapError::Invalid)
}

fn unreachable(path: &Path, error: &BootstrapError) -> Finding {
    let kind = match error {
        BootstrapError::System { source, .. } => std::io::Error::from(*source).kind(),
        _ => ErrorKind::Other,
    };
    let (cause, fix) = match kind {
        ErrorKind::NotFound => (
            "the socket does not exist: the zone was removed, or only the socket was mounted and a restarted proxy has \
             created another one",
            "mount the zone's directory, not the socket; create the zone (`bulkhead zones create`)",
        ),
        ErrorKind::ConnectionRefused => (
            "nothing listens on the socket: the proxy was stopped or has crashed",
            "check systemctl status bulkhead; running clients continue, new ones need the proxy",
        ),
        ErrorKind::PermissionDenied => (
            "the owner or mode of the socket denies this user",
            "set uid, gid or mode of the zone's socket in the configuration",
        ),
        _ => (
            "the peer is a different version, or not a proxy",
            "use the same version of the client library and the proxy",
        ),
    };
    let why = std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string);
    let seen = format!("cannot reach the proxy at {} ({why})", path.display());
    Finding::error("socket", seen, "cuInit returns 100 or 999, with a message on stderr", cause, fix)
}

/// Whether there is a proxy that this user may administer.
fn operator(scene: &Scene, findings: &mut Vec<Finding>) -> bool {
    let path = &scene.admin_socket;
    let admin = match AdminClient::connect(path) {
        Ok(admin) => admin,
        Err(AdminError::Unreachable { source, .. }) if source.kind() == ErrorKind::NotFound => {
            if !scene.is_container() && !scene.is_tenant() {
                findings
                    .push(Finding::note("proxy", format!("no proxy is running ({} does not exist)", path.display())));
            }
            return false;
        }
        Err(AdminError::Unreachable { source, .. }) if source.kind() == ErrorKind::PermissionDenied => {
            findings.push(Finding::note("proxy", format!("no permission for {}; run this as root", path.display())));
            return false;
        }
        Err(error) => {
            findings.push(Finding::error(
                "proxy",
                format!("{error}, but its socket exists"),
                "new clients find no GPU; running ones continue",
                "the proxy ended without removing its socket",
                "run systemctl restart bulkhead, and check its log",
            ));
            return false;
        }
    };
    match admin.ask(&Request::Status) {
        Ok(AdminAnswer::Status(status)) => {
            let grants = match admin.ask(&Request::Grants) {
                Ok(AdminAnswer::Grants { grants }) => grants,
                _ => Vec::new(),
            };
            judge(&status, &grants, findings);
            true
        }
        _ => {
            findings.push(Finding::error(
                "proxy",
                "unexpected answer from the proxy",
                "bulkhead status fails",
                "this program and the proxy are different versions, or the proxy hangs",
                "restart the proxy with this version",
            ));
            false
        }
    }
}

fn judge(status: &Status, grants: &[Grant], findings: &mut Vec<Finding>) {
    let (pid, backend, zones) = (status.pid, &status.backend, counted(status.zones.len() as u64, "zone"));
    findings.push(Finding::ok("proxy", format!("proxy {pid} serves {zones}, backend {backend}")));
    if status.version != env!("CARGO_PKG_VERSION") {
        findings.push(Finding::warning(
            "versions",
            format!("the proxy is version {}, this program is {}", status.version, env!("CARGO_PKG_VERSION")),
            "clients are refused because the client library and the proxy are different versions",
            "only one of them was upgraded",
            "restart the proxy; running clients continue",
        ));
    }
    if !status.ready {
        findings.push(Finding::error(
            "proxy",
            "the proxy cannot start workers",
            "cuInit waits, then returns 100 or 999",
            "the driver fails in the workers' jail",
            "check the proxy's log for the worker's error",
        ));
    }
    if !status.missing_jail_parts.is_empty() {
        findings.push(Finding::warning(
            "jail",
            format!("jail is incomplete on this machine; missing: {}", status.missing_jail_parts.join(", ")),
            "none, but a compromised worker is less confined",
            "the proxy runs in a container, without root, or on a kernel without these features",
            "run the proxy as a root service; `--jail require` refuses to start without them",
        ));
    }
    if status.backend == "nvidia" {
        driver_filter(&status.driver_filter, findings);
    }
    preemption(&status.preemption, &status.driver_filter, findings);
    for zone in &status.zones {
        for gpu in zone.gpus.iter().filter(|gpu| gpu.limits.memory.is_some_and(|limit| gpu.used >= limit)) {
            let (name, used) = (zone.name.as_str(), Size(gpu.used));
            findings.push(Finding::warning(
                "zone",
                format!("zone {name} has reached its memory limit on GPU {} ({used})", gpu.gpu),
                "cuMemAlloc returns 2 (out of memory) in this zone",
                "its clients use it, or have opened memory of other zones",
                "end them, or raise the limit with `bulkhead zones set NAME --memory SIZE`",
            ));
        }
    }
    sharing(status, grants, findings);
}

fn driver_filter(filter: &str, findings: &mut Vec<Finding>) {
    findings.push(match filter.parse() {
        Ok(DriverFilter::Supervise) => {
            Finding::ok("driver filter", "supervise: calls of workers are made for them, by rules")
        }
        Ok(DriverFilter::Refuse) => {
            Finding::ok("driver filter", "refuse: only requests of a driver library reach the driver")
        }
        _ => Finding::note("driver filter", "off: all requests of a compromised worker reach the kernel driver"),
    });
}

fn preemption(preemption: &PreemptionStatus, filter: &str, findings: &mut Vec<Finding>) {
    let reason = &preemption.reason;
    if preemption.in_force {
        findings.push(Finding::ok("preemption", format!("in force: {reason}")));
        // What a worker tells of its channels is confirmed by the driver, but nobody else sees what it does not tell.
        let text = match filter.parse() {
            Ok(DriverFilter::Supervise) => "cooperative: a compromised worker can hide channels",
            _ => "cooperative: a compromised worker can hide channels and set its own time slice",
        };
        findings.push(Finding::note("preemption", text));
    } else {
        findings.push(Finding::warning(
            "preemption",
            format!("not in force: {reason}"),
            "a zone waits for a neighbour's kernel to end before its turn begins",
            "this driver does not let a running kernel be stopped, or the self-test could not run",
            "use a driver between 535 and 595; check the proxy's log",
        ));
    }
}

fn sharing(status: &Status, grants: &[Grant], findings: &mut Vec<Finding>) {
    let known = |name| status.zones.iter().any(|zone| zone.name == name);
    for grant in grants.iter().filter(|grant| !known(grant.from.clone()) || !known(grant.to.clone())) {
        findings.push(Finding::note(
            "grants",
            format!("grant from {} to {}: one of the zones does not exist", grant.from.as_str(), grant.to.as_str()),
        ));
    }
    if grants.is_empty() {
        findings.push(Finding::note("grants", "no grants; clients share memory only within their zone"));
    } else {
        findings.push(Finding::ok("grants", format!("{} between zones", counted(grants.len() as u64, "grant"))));
    }
    if status.sharing.denials > 0 {
        findings.push(Finding::warning(
            "handles",
            format!("{} refused since the proxy started", counted(status.sharing.denials, "handle")),
            "cuIpcOpenMemHandle returns 1 (invalid value) or 800 (not permitted)",
            "1: the handle is stale: its memory was freed, its client ended, or the proxy was restarted; 800: no grant \
             between the zones, or the memory was allocated before the first one",
            "export the handle again (`bulkhead ipc wait` never returns a stale one); `bulkhead grants allow FROM TO`",
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::finding::Level;

    #[test]
    fn preemption_that_is_not_in_force_has_a_reason() {
        let mut findings = Vec::new();
        let reason = "a stopped kernel runs on".to_owned();
        preemption(&PreemptionStatus { in_force: false, reason, restarts: 0 }, "off", &mut findings);
        assert_eq!(findings[0].level, Level::Warning);
        assert!(findings[0].seen.contains("a stopped kernel runs on"), "{findings:?}");
    }

    #[test]
    fn what_stands_before_the_driver_is_said() {
        for (filter, level, slice) in
            [("off", Level::Note, true), ("refuse", Level::Ok, true), ("supervise", Level::Ok, false)]
        {
            let mut findings = Vec::new();
            driver_filter(filter, &mut findings);
            preemption(&PreemptionStatus { in_force: true, ..PreemptionStatus::default() }, filter, &mut findings);
            assert_eq!(findings[0].level, level, "{filter}");
            assert!(findings[0].seen.starts_with(filter), "{findings:?}");
            assert_eq!(findings[2].seen.contains("time slice"), slice, "{findings:?}");
        }
    }

    #[test]
    fn a_container_without_a_zone_is_told_so() {
        let root = testkit::directory();
        std::fs::write(root.join(".dockerenv"), "").unwrap();
        let mut findings = Vec::new();
        let scene = Scene::fake(&root, &[("KUBERNETES_SERVICE_HOST", "10.0.0.1")]);
        assert_eq!(check(&scene, &mut findings), Way::None);
        assert_eq!(findings[0].level, Level::Error);
        assert!(findings.len() == 1 && findings[0].fix.contains("bulkhead.dev/gpu"), "{findings:?}");
        // Not a pod: a private proxy works.
        let mut findings = Vec::new();
        assert_eq!(check(&Scene::fake(&root, &[]), &mut findings), Way::Private);
        assert_eq!(findings[0].level, Level::Warning);
        // A socket that is configured but does not exist.
        let mut findings = Vec::new();
        let scene = Scene::fake(&root, &[("BULKHEAD_SOCKET", "/nowhere/sock")]);
        assert_eq!(check(&scene, &mut findings), Way::None);
        assert!(findings[0].cause.contains("does not exist"), "{findings:?}");
        // A socket without a listener.
        let path = root.join("sock");
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        let mut findings = Vec::new();
        let scene = Scene::fake(&root, &[("BULKHEAD_SOCKET", path.to_str().unwrap())]);
        assert_eq!(check(&scene, &mut findings), Way::None);
        assert_eq!(findings[0].level, Level::Error);
    }
}
