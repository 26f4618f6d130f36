//! The proxy: sockets, zones, grants, handles.

use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;

use control::admin::{AdminClient, AdminError, Answer as AdminAnswer, Request, Status};
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
    for zone in &status.zones {
        if zone.limits.memory.is_some_and(|limit| zone.used >= limit) {
            findings.push(Finding::warning(
                "zone",
                format!("zone {} has reached its memory limit ({})", zone.name.as_str(), Size(zone.used)),
                "cuMemAlloc returns 2 (out of memory) in this zone",
                "its clients use it, or have opened memory of other zones",
                "end them, or raise the limit with `bulkhead zones set NAME --memory SIZE`",
            ));
        }
    }
    sharing(status, grants, findings);
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
