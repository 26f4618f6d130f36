//! The files that a container's specification wants from the host, and how the machine gets them.
//!
//! A machine does not see the host's files. Which mount is what is told from its path, as kubelet and containerd lay them
//! out: what they write for a pod (ConfigMaps, Secrets, tokens, `/etc/hosts`) is copied in and copied again when it changes;
//! an emptyDir is made in the machine; the message that a container leaves at its end is copied out. Everything else
//! is a path of the host's, and refused.

mod copy;

pub(crate) use copy::Copied;

use crate::machine::Machine;
use crate::policy::{Refusal, SANDBOX_ID, SANDBOX_UID};
use agent::oci::{Mount, Spec, VOLUME};
use agent::protocol::{Request, VolumeKind};
use control::ZoneName;
use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

/// Where the client library looks for its zone.
const ZONE_DIR: &str = control::env_vars::ZONE_DIR;
const LIBRARIES: [&str; 2] = ["libcuda.so.1", "libnvidia-ml.so.1"];
/// What statfs says of memory.
const TMPFS: u64 = 0x0102_1994;

/// What a mount asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Wanted {
    /// Nothing of the host's: proc, tmpfs and the like.
    Plain,
    /// A directory or file to be copied in.
    Copy,
    /// An empty directory that the pod's containers share; `true` where the host has it in memory.
    Shared,
    TerminationMessage,
    /// One of our libraries, or the zone's directory.
    Zone,
    Host,
}

/// The volumes of a pod, by their path on the host.
#[derive(Default)]
pub(crate) struct Volumes {
    known: HashMap<PathBuf, String>,
    pub copied: Vec<Copied>,
    /// Where the messages go that containers leave behind.
    pub messages: HashMap<String, PathBuf>,
    next: u32,
}

/// What must be done before a container can be made. The volumes are known when that has succeeded: see
/// [`Volumes::commit`].
#[derive(Default)]
pub(crate) struct Plan {
    /// To be asked of the agent, one after the other.
    pub requests: Vec<Request>,
    /// Files that are still to be copied in.
    pub copies: Vec<Copied>,
    /// Volumes whose content comes back, and where it goes.
    pub messages: Vec<(String, PathBuf)>,
    added: Vec<(PathBuf, String)>,
}

impl Volumes {
    /// Replaces what `spec` mounts from the host by what the machine will have.
    pub(crate) fn plan(&mut self, spec: &mut Spec, machine: &impl Machine) -> Result<Plan, VolumesError> {
        let sandbox = spec.annotations.get(SANDBOX_ID).cloned().unwrap_or_default();
        let uid = spec.annotations.get(SANDBOX_UID).cloned().unwrap_or_default();
        let mut plan = Plan::default();
        let mut mounts = Vec::new();
        let mut zone_mounts = Vec::new();
        for mut mount in std::mem::take(&mut spec.mounts) {
            let wanted = classify(&mount, &sandbox, &uid);
            match wanted {
                Wanted::Plain => {}
                Wanted::Zone => {
                    zone_mounts.push(mount);
                    continue;
                }
                Wanted::Host if machine.shows_host_paths() => {}
                Wanted::Host if mount.source.contains("/volume-subpaths/") => {
                    return Err(Refusal::SubPath(mount.destination).into());
                }
                Wanted::Host => return Err(Refusal::HostPath(mount.source, mount.destination).into()),
                Wanted::Copy | Wanted::Shared | Wanted::TerminationMessage => {
                    mount.source = self.volume(&wanted, Path::new(&mount.source), &mut plan)?;
                    mount.kind = VOLUME.to_owned();
                }
            }
            mounts.push(mount);
        }
        if let Some(zone) = zone(&zone_mounts)? {
            mounts.extend(machine.attach_zone(&zone, zone_mounts)?);
        } else if let Some(mount) = zone_mounts.pop() {
            // Libraries without a zone: somebody else's.
            return Err(Refusal::HostPath(mount.source, mount.destination).into());
        }
        spec.mounts = mounts;
        Ok(plan)
    }

    /// The name of the volume for a path of the host's; one that several containers mount is the same for all.
    fn volume(&mut self, wanted: &Wanted, source: &Path, plan: &mut Plan) -> Result<String, VolumesError> {
        let planned = plan.added.iter().find(|(path, _)| path == source).map(|(_, name)| name);
        if let Some(name) = self.known.get(source).or(planned) {
            return Ok(name.clone());
        }
        let failed = |error| VolumesError::Read(source.to_owned(), error);
        let meta = std::fs::symlink_metadata(source).map_err(failed)?;
        self.next += 1;
        let name = format!("v{}", self.next);
        let kind = match wanted {
            Wanted::TerminationMessage => VolumeKind::TerminationMessage,
            Wanted::Shared => shared_kind(source).map_err(failed)?,
            _ if meta.is_dir() => VolumeKind::Directory,
            _ => VolumeKind::File,
        };
        let (mode, uid, gid) = (meta.mode() & 0o7777, meta.uid(), meta.gid());
        plan.requests.push(Request::Volume { name: name.clone(), kind, mode, uid, gid });
        match wanted {
            Wanted::Copy => plan.copies.push(Copied::new(name.clone(), source.to_owned())),
            Wanted::TerminationMessage => plan.messages.push((name.clone(), source.to_owned())),
            _ => {}
        }
        plan.added.push((source.to_owned(), name.clone()));
        Ok(name)
    }

    /// The machine has what was planned.
    pub(crate) fn commit(&mut self, plan: Plan) {
        self.known.extend(plan.added);
        self.messages.extend(plan.messages);
        self.copied.extend(plan.copies);
    }
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum VolumesError {
    #[error(transparent)]
    Refused(#[from] Refusal),
    #[error("cannot read {0}")]
    Read(PathBuf, #[source] std::io::Error),
    #[error(transparent)]
    Machine(#[from] crate::machine::MachineError),
}

/// A directory like the host's: in memory, with the same limit, if that is.
fn shared_kind(source: &Path) -> std::io::Result<VolumeKind> {
    let found = rustix::fs::statfs(source)?;
    if found.f_type as u64 != TMPFS {
        return Ok(VolumeKind::Directory);
    }
    // A path that happens to lie in some larger tmpfs is not one that was mounted for it.
    let above = source.parent().map(rustix::fs::stat).transpose()?;
    let own = rustix::fs::stat(source)?;
    if above.is_none_or(|above| above.st_dev == own.st_dev) {
        return Ok(VolumeKind::Directory);
    }
    let block = u64::try_from(found.f_bsize).unwrap_or(0);
    Ok(VolumeKind::Memory(found.f_blocks.saturating_mul(block)))
}

fn classify(mount: &Mount, sandbox: &str, uid: &str) -> Wanted {
    let bound = mount.kind == "bind" || mount.options.iter().any(|option| option == "bind" || option == "rbind");
    if !bound {
        return Wanted::Plain;
    }
    let destination = Path::new(&mount.destination);
    let library = destination.file_name().is_some_and(|name| LIBRARIES.iter().any(|library| name == *library));
    if mount.destination == ZONE_DIR || library {
        return Wanted::Zone;
    }
    let source = Path::new(&mount.source);
    let plain = |part: Component| matches!(part, Component::RootDir | Component::Normal(_));
    if !source.is_absolute() || !source.components().all(plain) {
        return Wanted::Host;
    }
    let parts: Vec<&str> = source.iter().filter_map(|part| part.to_str()).collect();
    // What containerd writes for a sandbox: …/sandboxes/ID/NAME.
    if let [.., "sandboxes", id, name] = parts[..]
        && !sandbox.is_empty()
        && id == sandbox
    {
        return match name {
            "hostname" | "hosts" | "resolv.conf" => Wanted::Copy,
            "shm" => Wanted::Shared,
            _ => Wanted::Host,
        };
    }
    let Some(pod) = parts.iter().rposition(|part| !uid.is_empty() && *part == uid) else { return Wanted::Host };
    if pod == 0 || parts[pod - 1] != "pods" {
        return Wanted::Host;
    }
    // What kubelet writes for a pod: …/pods/UID/….
    match parts[pod + 1..] {
        ["etc-hosts"] => Wanted::Copy,
        ["containers", _, _] => Wanted::TerminationMessage,
        ["volumes", kind, _] => match kind.strip_prefix("kubernetes.io~") {
            Some("configmap" | "secret" | "projected" | "downward-api") => Wanted::Copy,
            Some("empty-dir") => Wanted::Shared,
            _ => Wanted::Host,
        },
        _ => Wanted::Host,
    }
}

/// The zone whose directory is among the mounts.
fn zone(mounts: &[Mount]) -> Result<Option<ZoneName>, Refusal> {
    let mut dirs = mounts.iter().filter(|mount| mount.destination == ZONE_DIR);
    let Some(mount) = dirs.next() else { return Ok(None) };
    if dirs.next().is_some() {
        return Err(Refusal::SeveralZones);
    }
    let parts: Vec<&str> = mount.source.split('/').collect();
    let name = match parts[..] {
        [.., "zones", name] => name.parse().ok(),
        _ => None,
    };
    name.map(Some).ok_or_else(|| Refusal::Zone(mount.source.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::MachineError;
    use agent::protocol::{Root, RootMount};

    fn bind(source: &str, destination: &str) -> Mount {
        let options = vec!["rbind".to_owned(), "ro".to_owned()];
        Mount { destination: destination.into(), kind: "bind".into(), source: source.into(), options }
    }

    #[test]
    fn paths_say_what_a_mount_is() {
        let of = |source: &str| classify(&bind(source, "/x"), "s1", "u-1");
        let kubelet = |rest: &str| of(&format!("/var/lib/kubelet/pods/u-1/{rest}"));
        for kind in ["configmap", "secret", "projected", "downward-api"] {
            assert_eq!(kubelet(&format!("volumes/kubernetes.io~{kind}/name")), Wanted::Copy);
        }
        assert_eq!(kubelet("volumes/kubernetes.io~empty-dir/scratch"), Wanted::Shared);
        assert_eq!(kubelet("etc-hosts"), Wanted::Copy);
        assert_eq!(kubelet("containers/main/0a1b2c"), Wanted::TerminationMessage);
        assert_eq!(kubelet("volumes/kubernetes.io~csi/pvc-1/mount"), Wanted::Host);
        assert_eq!(kubelet("volumes/kubernetes.io~configmap/../../../../../etc"), Wanted::Host);
        let containerd = "/var/lib/containerd/io.containerd.grpc.v1.cri/sandboxes";
        assert_eq!(of(&format!("{containerd}/s1/resolv.conf")), Wanted::Copy);
        assert_eq!(of(&format!("{containerd}/s1/shm")), Wanted::Shared);
        // Another pod's, and none at all.
        assert_eq!(of(&format!("{containerd}/s2/resolv.conf")), Wanted::Host);
        assert_eq!(of("/var/lib/kubelet/pods/u-2/etc-hosts"), Wanted::Host);
        assert_eq!(of("/etc"), Wanted::Host);
        assert_eq!(classify(&bind("/var/lib/kubelet/pods//etc-hosts", "/x"), "", ""), Wanted::Host);
    }

    #[test]
    fn what_is_not_bound_is_not_the_hosts() {
        let proc = Mount { destination: "/proc".into(), kind: "proc".into(), source: "proc".into(), options: vec![] };
        assert_eq!(classify(&proc, "s1", "u-1"), Wanted::Plain);
        let hidden = Mount { options: vec!["rbind".into()], source: "/etc".into(), ..proc };
        assert_eq!(classify(&hidden, "s1", "u-1"), Wanted::Host);
    }

    struct NoMachine;

    impl Machine for NoMachine {
        const RUNTIME: &'static str = "none";

        fn new() -> Self {
            Self
        }

        fn boot(&self, _: &crate::Pod) -> Result<crate::Booted, MachineError> {
            Err(MachineError::Refused("none".into()))
        }

        fn attach_root(&self, _: &str, _: &[RootMount]) -> Result<Root, MachineError> {
            Err(MachineError::Refused("none".into()))
        }

        fn detach_root(&self, _: &str) {}

        fn attach_zone(&self, _: &ZoneName, mounts: Vec<Mount>) -> Result<Vec<Mount>, MachineError> {
            Ok(mounts)
        }

        fn kill(&self) {}

        fn clean_up(_: &str) {}
    }

    #[test]
    fn a_container_that_was_refused_leaves_no_volume_behind() {
        let dir = testkit::directory();
        dir.write("pods/u-1/etc-hosts", "127.0.0.1 localhost\n");
        let hosts = bind(&dir.join("pods/u-1/etc-hosts").display().to_string(), "/etc/hosts");
        let spec = |mounts: &[Mount]| {
            let annotations = [(SANDBOX_UID.to_owned(), "u-1".to_owned())].into();
            Spec { mounts: mounts.to_vec(), annotations, ..Spec::default() }
        };
        let mut volumes = Volumes::default();
        let refused = volumes.plan(&mut spec(&[hosts.clone(), bind("/etc", "/host")]), &NoMachine).err().unwrap();
        assert!(refused.to_string().contains("hostPath /etc"), "{refused}");
        // The next try asks for the volume again, once however often it is mounted.
        let mut again = spec(&[hosts.clone(), Mount { destination: "/hosts".into(), ..hosts.clone() }]);
        let plan = volumes.plan(&mut again, &NoMachine).unwrap();
        assert_eq!((plan.requests.len(), plan.copies.len()), (1, 1));
        assert_eq!(again.mounts[0].kind, VOLUME);
        assert_eq!(again.mounts[0].source, again.mounts[1].source);
        volumes.commit(plan);
        let mut other = spec(&[hosts]);
        assert!(volumes.plan(&mut other, &NoMachine).unwrap().requests.is_empty());
        assert_eq!(other.mounts[0].source, again.mounts[0].source);
    }

    #[test]
    fn zones_come_from_the_edits() {
        let edits = [
            bind("/usr/lib/bulkhead/libcuda.so.1", "/usr/lib64/libcuda.so.1"),
            bind("/run/bulkhead/zones/team-a", ZONE_DIR),
        ];
        assert!(edits.iter().all(|mount| classify(mount, "s1", "u-1") == Wanted::Zone));
        assert_eq!(zone(&edits).unwrap().unwrap().as_str(), "team-a");
        assert_eq!(zone(&edits[..1]).unwrap(), None);
        assert_eq!(zone(&[bind("/etc", ZONE_DIR)]), Err(Refusal::Zone("/etc".into())));
        assert_eq!(zone(&[edits[1].clone(), edits[1].clone()]), Err(Refusal::SeveralZones));
    }
}
