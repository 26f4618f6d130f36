//! The proxy: sockets, zones, grants, handles.

use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;

use cuda_abi::wire::view::ZoneView;
use idm::bootstrap::{self, Answer, BootstrapError, Inquiry};
use proxy::control::admin::{AdminClient, AdminError, Answer as AdminAnswer, Request, Status};
use proxy::control::grant::Grant;
use proxy::size::Size;

use super::finding::Finding;
use super::scene::Scene;

/// The first question has the broker start a driver.
const PATIENCE: Duration = Duration::from_secs(60);

/// What there is to try programs with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// The zone that this process is in.
    Zone,
    /// A proxy that makes zones for us.
    Operator,
    /// Neither; a proxy of our own would have to do.
    Private,
    /// There should be one, and is not.
    None,
}

pub fn check(scene: &Scene, findings: &mut Vec<Finding>) -> Way {
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

/// A container that nobody put into a zone: wrong in a pod, which was to have one; elsewhere programs can still be started
/// by `bulkhead run`.
fn without_zone(scene: &Scene, findings: &mut Vec<Finding>) -> Way {
    let seen = format!("this container has no {}", scene.zone_socket().display());
    let symptom = "cuInit answers 100: there is no GPU in this container";
    let fix = "ask for bulkhead.dev/gpu in the pod's resources (or a claim), and see `bulkhead status` on the node";
    if scene.is_pod() {
        let cause = "the pod asks for no GPU of Bulkhead's, or the node's proxy does not run";
        findings.push(Finding::error("socket", seen, symptom, cause, fix));
        return Way::None;
    }
    let cause = "the zone's folder is not mounted into it, and no proxy runs inside";
    let fix = "mount the zone's folder at /run/bulkhead/zone; inside, `bulkhead run` starts a proxy of its own";
    findings.push(Finding::warning("socket", seen, symptom, cause, fix));
    Way::Private
}

/// None where nothing says that there is a zone; else whether it answers.
fn zone(scene: &Scene, findings: &mut Vec<Finding>) -> Option<bool> {
    if !scene.is_tenant() {
        return None;
    }
    let path = scene.zone_socket();
    match ask(&path) {
        Ok(view) => {
            let limit = view.limit.map_or("no limit".to_owned(), |limit| format!("a limit of {}", Size(limit)));
            let processes = view.processes.len();
            findings.push(Finding::ok(
                "socket",
                format!(
                    "the zone answers at {}: {} in use, {limit}, {processes} processes here",
                    path.display(),
                    Size(view.used)
                ),
            ));
            if view.cards.is_empty() {
                findings.push(Finding::error(
                    "zone",
                    "the zone has no GPU",
                    "cuInit answers 100, or waits for a worker",
                    "the proxy's driver does not start",
                    "see the proxy's log, and `bulkhead doctor` on the node",
                ));
            }
            if view.limit.is_some_and(|limit| view.used >= limit) {
                findings.push(Finding::warning(
                    "zone",
                    "the zone has used up its memory",
                    "cuMemAlloc answers 2 (out of memory)",
                    "other programs of this zone hold it, or one that was opened from another zone counts here",
                    "end them, or raise the limit: `bulkhead zones set NAME --memory SIZE`",
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
    let (answer, _) = bootstrap::recv_within::<Answer>(&broker, PATIENCE)?;
    ZoneView::read(answer.bytes()).map_err(|_| BootstrapError::Invalid)
}

fn unreachable(path: &Path, error: &BootstrapError) -> Finding {
    let kind = match error {
        BootstrapError::System { source, .. } => std::io::Error::from(*source).kind(),
        _ => ErrorKind::Other,
    };
    let (cause, fix) = match kind {
        ErrorKind::NotFound => (
            "the socket is not there: the zone was removed, or only the socket's file was mounted and a new proxy has \
             made another",
            "mount the zone's folder, not the file in it; make the zone (`bulkhead zones create`)",
        ),
        ErrorKind::ConnectionRefused => (
            "nobody listens any more: the proxy is stopped, or has crashed",
            "systemctl status bulkhead; what runs goes on, and new programs start when the proxy is back",
        ),
        ErrorKind::PermissionDenied => (
            "the socket's owner or mode does not let this user in",
            "set uid, gid or mode of the zone's socket in the configuration",
        ),
        _ => ("who answers speaks another version, or is no proxy", "use library and proxy of one version"),
    };
    let why = std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string);
    let seen = format!("no proxy answers at {} ({why})", path.display());
    Finding::error("socket", seen, "cuInit answers 100 or 999, and says so on stderr", cause, fix)
}

/// Whether there is a proxy that takes our orders.
fn operator(scene: &Scene, findings: &mut Vec<Finding>) -> bool {
    let path = &scene.admin_socket;
    let admin = match AdminClient::connect(path) {
        Ok(admin) => admin,
        Err(AdminError::Unreachable { source, .. }) if source.kind() == ErrorKind::NotFound => {
            if !scene.is_container() && !scene.is_tenant() {
                findings.push(Finding::note("proxy", format!("no proxy runs here (no {})", path.display())));
            }
            return false;
        }
        Err(AdminError::Unreachable { source, .. }) if source.kind() == ErrorKind::PermissionDenied => {
            findings
                .push(Finding::note("proxy", format!("{} is not for this user; ask again as root", path.display())));
            return false;
        }
        Err(error) => {
            findings.push(Finding::error(
                "proxy",
                format!("{error}, though its socket is there"),
                "new CUDA programs find no GPU; those that run go on",
                "the proxy has ended without removing its socket",
                "systemctl restart bulkhead; its log says why it ended",
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
                "the proxy does not answer as it should",
                "bulkhead status fails",
                "bulkhead and the proxy are of different versions, or the proxy hangs",
                "restart the proxy with the program that asks",
            ));
            false
        }
    }
}

fn judge(status: &Status, grants: &[Grant], findings: &mut Vec<Finding>) {
    let (pid, backend, zones) = (status.pid, &status.backend, status.zones.len());
    findings.push(Finding::ok("proxy", format!("proxy {pid} serves {zones} zones, backend {backend}")));
    if status.version != env!("CARGO_PKG_VERSION") {
        findings.push(Finding::warning(
            "versions",
            format!("the proxy is version {}, this program {}", status.version, env!("CARGO_PKG_VERSION")),
            "programs are refused: client library and proxy are of different versions",
            "one of them was upgraded and the other not",
            "restart the proxy; programs that run go on",
        ));
    }
    if !status.ready {
        findings.push(Finding::error(
            "proxy",
            "workers do not start",
            "cuInit waits, then answers 100 or 999",
            "the driver fails in the worker's jail",
            "the proxy's log has the worker's last words",
        ));
    }
    if !status.missing_jail_parts.is_empty() {
        findings.push(Finding::warning(
            "jail",
            format!("the machine does not allow parts of the jail: {}", status.missing_jail_parts.join(", ")),
            "none; a worker that was taken over has fewer walls around it",
            "the proxy runs in a container, without root, or on a kernel without these features",
            "run the proxy as a service of root; `--jail require` refuses to start without",
        ));
    }
    for zone in &status.zones {
        if zone.limits.memory.is_some_and(|limit| zone.used >= limit) {
            findings.push(Finding::warning(
                "zone",
                format!("zone {} has used up its memory ({})", zone.name.as_str(), Size(zone.used)),
                "cuMemAlloc answers 2 (out of memory) there",
                "its programs hold it, or have opened that much of other zones",
                "end them, or `bulkhead zones set NAME --memory SIZE`",
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
            format!("{} grants {} access, and one of them is not there", grant.from.as_str(), grant.to.as_str()),
        ));
    }
    if grants.is_empty() {
        findings.push(Finding::note("grants", "no grants: programs share memory within their own zone only"));
    } else {
        findings.push(Finding::ok("grants", format!("{} grants between zones", grants.len())));
    }
    if status.sharing.denials > 0 {
        findings.push(Finding::warning(
            "handles",
            format!("{} handles were refused since this proxy serves", status.sharing.denials),
            "cuIpcOpenMemHandle answers 1 (invalid value) or 800 (not permitted)",
            "1: the handle is stale, because its memory was freed, its program ended, or the proxy was restarted since; \
             800: there is no grant between the zones, or the memory was allocated before the first one",
            "hand the handle over anew; `bulkhead ipc wait` never gives a stale one; `bulkhead grants allow FROM TO`",
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
        let scene = Scene::made_up(&root, &[("KUBERNETES_SERVICE_HOST", "10.0.0.1")]);
        assert_eq!(check(&scene, &mut findings), Way::None);
        assert_eq!(findings[0].level, Level::Error);
        assert!(findings.len() == 1 && findings[0].fix.contains("bulkhead.dev/gpu"), "{findings:?}");
        // No pod: programs can have a proxy of their own.
        let mut findings = Vec::new();
        assert_eq!(check(&Scene::made_up(&root, &[]), &mut findings), Way::Private);
        assert_eq!(findings[0].level, Level::Warning);
        // A socket that is named, and not there.
        let mut findings = Vec::new();
        let scene = Scene::made_up(&root, &[("BULKHEAD_SOCKET", "/nowhere/sock")]);
        assert_eq!(check(&scene, &mut findings), Way::None);
        assert!(findings[0].cause.contains("not there"), "{findings:?}");
        // One where nobody listens.
        let path = root.join("sock");
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        let mut findings = Vec::new();
        let scene = Scene::made_up(&root, &[("BULKHEAD_SOCKET", path.to_str().unwrap())]);
        assert_eq!(check(&scene, &mut findings), Way::None);
        assert_eq!(findings[0].level, Level::Error);
    }
}
