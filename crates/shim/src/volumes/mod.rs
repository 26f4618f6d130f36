//! The files that a container's specification wants from the host, and how the machine gets them.
//!
//! A machine does not see the host's files. Which mount is what is told from its path, as kubelet and containerd lay them
//! out: what they write for a pod (ConfigMaps, Secrets, tokens, `/etc/hosts`) is copied in and copied again when it changes;
//! an emptyDir is made in the machine, and so is a volume that an image declares, with what the image has there; the message
//! that a container leaves at its end is copied out. Everything else is a path of the host's, and refused.

mod copy;
mod subpath;

pub(crate) use copy::Copied;

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
/// What shows the zone to people, in its place.
const SMI: &str = "/usr/bin/nvidia-smi";
/// What statfs says of memory.
const TMPFS: u64 = 0x0102_1994;

/// What a mount asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Wanted {
    /// Nothing of the host's: proc, tmpfs and the like.
    Plain,
    /// A directory or file to be copied in.
    Copy,
    /// The same, but not again when it changes: kubelet does not change what it binds for a subPath.
    CopyOnce,
    /// An empty directory that the pod's containers share; in memory where the host has it in memory.
    Shared,
    /// A directory of the container's own, with what its image has there (`VOLUME`).
    OfImage,
    TerminationMessage,
    /// A directory in a volume: what kubelet binds for a subPath.
    SubPath,
    /// A volume of this kind, of which the machine sees nothing.
    Other {
        kind: String,
        name: String,
    },
    /// One of our libraries, our `nvidia-smi`, or the zone's directory.
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
    /// Files that are copied in now and never again.
    pub copies_once: Vec<Copied>,
    /// Volumes whose content comes back, and where it goes.
    pub messages: Vec<(String, PathBuf)>,
    /// The zone that the container is to have, and what its specification mounts for it.
    pub zone: Option<(ZoneName, Vec<Mount>)>,
    added: Vec<(PathBuf, String)>,
}

impl Volumes {
    /// Replaces what `spec`, of this container, mounts from the host by what the machine will have.
    pub(crate) fn plan(
        &mut self,
        spec: &mut Spec,
        container: &str,
        shows_host_paths: bool,
    ) -> Result<Plan, VolumesError> {
        let sandbox = spec.annotations.get(SANDBOX_ID).cloned().unwrap_or_default();
        let uid = spec.annotations.get(SANDBOX_UID).cloned().unwrap_or_default();
        let owner = Owner { sandbox: &sandbox, uid: &uid, container };
        let mut plan = Plan::default();
        let mut mounts = Vec::new();
        let mut zone_mounts = Vec::new();
        for mut mount in std::mem::take(&mut spec.mounts) {
            let wanted = classify(&mount, &owner);
            match wanted {
                Wanted::Plain => {}
                Wanted::Zone => {
                    zone_mounts.push(mount);
                    continue;
                }
                Wanted::Host | Wanted::Other { .. } if shows_host_paths => {}
                Wanted::Host => return Err(Refusal::HostPath(mount.source, mount.destination).into()),
                Wanted::Other { kind, name } => return Err(Refusal::Volume(name, kind, mount.destination).into()),
                Wanted::SubPath => {
                    mount.source = self.subpath(&mount, &mut plan)?;
                    mount.kind = VOLUME.to_owned();
                }
                Wanted::Copy | Wanted::CopyOnce | Wanted::Shared | Wanted::OfImage | Wanted::TerminationMessage => {
                    mount.source = self.volume(&wanted, Path::new(&mount.source), &mut plan)?;
                    mount.kind = VOLUME.to_owned();
                }
            }
            mounts.push(mount);
        }
        if let Some(zone) = zone(&zone_mounts)? {
            plan.zone = Some((zone, zone_mounts));
        } else if let Some(mount) = zone_mounts.pop() {
            // Libraries without a zone: somebody else's.
            return Err(Refusal::HostPath(mount.source, mount.destination).into());
        }
        spec.mounts = mounts;
        Ok(plan)
    }

    /// What kubelet has bound for a subPath, as a volume of the machine or a directory in one.
    fn subpath(&mut self, mount: &Mount, plan: &mut Plan) -> Result<String, VolumesError> {
        let source = Path::new(&mount.source);
        let planned = plan.added.iter().find(|(path, _)| path == source).map(|(_, name)| name);
        if let Some(name) = self.known.get(source).or(planned) {
            return Ok(name.clone());
        }
        let failed = |error| VolumesError::Read(source.to_owned(), error);
        let unknown = || Refusal::SubPath(mount.destination.clone());
        let found = subpath::find(source).map_err(failed)?.ok_or_else(unknown)?;
        match found.kind.as_str() {
            "configmap" | "secret" | "projected" | "downward-api" => self.volume(&Wanted::CopyOnce, source, plan),
            "empty-dir" => {
                let below = found.below().map_err(failed)?.ok_or_else(unknown)?;
                let volume = self.volume(&Wanted::Shared, &found.volume, plan)?;
                let mut path = PathBuf::new();
                for part in &below {
                    path.push(part);
                    let meta = std::fs::symlink_metadata(found.volume.join(&path)).map_err(failed)?;
                    let (mode, uid, gid) = (meta.mode() & 0o7777, meta.uid(), meta.gid());
                    let (volume, path) = (volume.clone(), path.display().to_string());
                    plan.requests.push(Request::PutDirectory { volume, path, mode, uid, gid });
                }
                let name = Path::new(&volume).join(path).display().to_string();
                plan.added.push((source.to_owned(), name.clone()));
                Ok(name)
            }
            _ => {
                let name = found.volume.file_name().unwrap_or_default().to_string_lossy().into_owned();
                Err(Refusal::Volume(name, found.kind, mount.destination.clone()).into())
            }
        }
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
            Wanted::CopyOnce | Wanted::OfImage => {
                plan.copies_once.push(Copied::new(name.clone(), source.to_owned()));
            }
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

/// Whose paths are told from those of others.
struct Owner<'a> {
    sandbox: &'a str,
    uid: &'a str,
    container: &'a str,
}

fn classify(mount: &Mount, owner: &Owner) -> Wanted {
    let bound = mount.kind == "bind" || mount.options.iter().any(|option| option == "bind" || option == "rbind");
    if !bound {
        return Wanted::Plain;
    }
    let destination = Path::new(&mount.destination);
    let library = destination.file_name().is_some_and(|name| LIBRARIES.iter().any(|library| name == *library));
    if mount.destination == ZONE_DIR || mount.destination == SMI || library {
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
        && !owner.sandbox.is_empty()
        && id == owner.sandbox
    {
        return match name {
            "hostname" | "hosts" | "resolv.conf" => Wanted::Copy,
            "shm" => Wanted::Shared,
            _ => Wanted::Host,
        };
    }
    // What it makes for a volume that the container's image declares: …/containers/ID/volumes/NAME.
    if let [.., "containers", id, "volumes", _] = parts[..]
        && !owner.container.is_empty()
        && id == owner.container
    {
        return Wanted::OfImage;
    }
    let of_pod = |part: &&str| !owner.uid.is_empty() && *part == owner.uid;
    let Some(pod) = parts.iter().rposition(of_pod) else { return Wanted::Host };
    if pod == 0 || parts[pod - 1] != "pods" {
        return Wanted::Host;
    }
    // What kubelet writes for a pod: …/pods/UID/….
    match parts[pod + 1..] {
        ["etc-hosts"] => Wanted::Copy,
        ["containers", _, _] => Wanted::TerminationMessage,
        ["volumes", kind, name, ref rest @ ..] => match (kind.strip_prefix("kubernetes.io~"), rest) {
            (Some("configmap" | "secret" | "projected" | "downward-api"), []) => Wanted::Copy,
            (Some("empty-dir"), []) => Wanted::Shared,
            // A CSI volume is mounted at NAME/mount.
            (Some(other), [] | ["mount"]) => Wanted::Other { kind: other.to_owned(), name: name.to_owned() },
            // Of a plugin that has its own name, with a slash that kubelet writes as a tilde.
            (None, []) => Wanted::Other { kind: kind.replace('~', "/"), name: name.to_owned() },
            _ => Wanted::Host,
        },
        ["volume-subpaths", _, _, _] => Wanted::SubPath,
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

    const OWNER: Owner = Owner { sandbox: "s1", uid: "u-1", container: "c1" };

    fn bind(source: &str, destination: &str) -> Mount {
        let options = vec!["rbind".to_owned(), "ro".to_owned()];
        Mount { destination: destination.into(), kind: "bind".into(), source: source.into(), options }
    }

    #[test]
    fn paths_say_what_a_mount_is() {
        let of = |source: &str| classify(&bind(source, "/x"), &OWNER);
        let kubelet = |rest: &str| of(&format!("/var/lib/kubelet/pods/u-1/{rest}"));
        for kind in ["configmap", "secret", "projected", "downward-api"] {
            assert_eq!(kubelet(&format!("volumes/kubernetes.io~{kind}/name")), Wanted::Copy);
        }
        assert_eq!(kubelet("volumes/kubernetes.io~empty-dir/scratch"), Wanted::Shared);
        assert_eq!(kubelet("etc-hosts"), Wanted::Copy);
        assert_eq!(kubelet("containers/main/0a1b2c"), Wanted::TerminationMessage);
        let other = |kind: &str, name: &str| Wanted::Other { kind: kind.into(), name: name.into() };
        assert_eq!(kubelet("volumes/kubernetes.io~csi/pvc-1/mount"), other("csi", "pvc-1"));
        assert_eq!(kubelet("volumes/kubernetes.io~local-volume/pv-2"), other("local-volume", "pv-2"));
        assert_eq!(kubelet("volumes/example.com~disk/d"), other("example.com/disk", "d"));
        assert_eq!(kubelet("volumes/kubernetes.io~csi/pvc-1/globalmount/x"), Wanted::Host);
        assert_eq!(kubelet("volume-subpaths/config/main/0"), Wanted::SubPath);
        assert_eq!(kubelet("volumes/kubernetes.io~configmap/../../../../../etc"), Wanted::Host);
        let containerd = "/var/lib/containerd/io.containerd.grpc.v1.cri/sandboxes";
        assert_eq!(of(&format!("{containerd}/s1/resolv.conf")), Wanted::Copy);
        assert_eq!(of(&format!("{containerd}/s1/shm")), Wanted::Shared);
        let cri = "/var/lib/containerd/io.containerd.grpc.v1.cri/containers";
        assert_eq!(of(&format!("{cri}/c1/volumes/0a1b")), Wanted::OfImage);
        // Another container's, another pod's, and none at all.
        assert_eq!(of(&format!("{cri}/c2/volumes/0a1b")), Wanted::Host);
        assert_eq!(of(&format!("{containerd}/s2/resolv.conf")), Wanted::Host);
        assert_eq!(of("/var/lib/kubelet/pods/u-2/etc-hosts"), Wanted::Host);
        assert_eq!(of("/etc"), Wanted::Host);
        assert_eq!(
            classify(&bind("/var/lib/kubelet/pods//etc-hosts", "/x"), &Owner { sandbox: "", uid: "", container: "" }),
            Wanted::Host
        );
    }

    #[test]
    fn what_is_not_bound_is_not_the_hosts() {
        let proc = Mount { destination: "/proc".into(), kind: "proc".into(), source: "proc".into(), options: vec![] };
        assert_eq!(classify(&proc, &OWNER), Wanted::Plain);
        let hidden = Mount { options: vec!["rbind".into()], source: "/etc".into(), ..proc };
        assert_eq!(classify(&hidden, &OWNER), Wanted::Host);
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
        let refused = volumes.plan(&mut spec(&[hosts.clone(), bind("/etc", "/host")]), "c1", false).err().unwrap();
        assert!(refused.to_string().contains("hostPath /etc"), "{refused}");
        // The next try asks for the volume again, once however often it is mounted.
        let mut again = spec(&[hosts.clone(), Mount { destination: "/hosts".into(), ..hosts.clone() }]);
        let plan = volumes.plan(&mut again, "c1", false).unwrap();
        assert_eq!((plan.requests.len(), plan.copies.len()), (1, 1));
        assert_eq!(again.mounts[0].kind, VOLUME);
        assert_eq!(again.mounts[0].source, again.mounts[1].source);
        volumes.commit(plan);
        let mut other = spec(&[hosts]);
        assert!(volumes.plan(&mut other, "c1", false).unwrap().requests.is_empty());
        assert_eq!(other.mounts[0].source, again.mounts[0].source);
    }

    #[test]
    fn a_volume_of_an_image_is_made_with_what_the_image_has_and_not_kept_fresh() {
        let dir = testkit::directory();
        dir.write("containers/c1/volumes/a/seed", "1");
        let mount = bind(&dir.join("containers/c1/volumes/a").display().to_string(), "/data");
        let mut spec = Spec { mounts: vec![mount], ..Spec::default() };
        let mut volumes = Volumes::default();
        let plan = volumes.plan(&mut spec, "c1", false).unwrap();
        assert!(matches!(plan.requests[..], [Request::Volume { kind: VolumeKind::Directory, .. }]));
        assert_eq!((plan.copies.len(), plan.copies_once.len()), (0, 1));
        assert_eq!(spec.mounts[0].kind, VOLUME);
        volumes.commit(plan);
        assert!(volumes.copied.is_empty());
    }

    #[test]
    fn volumes_that_the_machine_cannot_have_are_refused_by_their_name() {
        let csi = bind("/var/lib/kubelet/pods/u-1/volumes/kubernetes.io~csi/pvc-1/mount", "/data");
        let annotations: std::collections::BTreeMap<_, _> = [(SANDBOX_UID.to_owned(), "u-1".to_owned())].into();
        let mut spec = Spec { mounts: vec![csi], annotations: annotations.into_iter().collect(), ..Spec::default() };
        let refused = Volumes::default().plan(&mut spec, "c1", false).err().unwrap().to_string();
        assert_eq!(
            refused,
            "volume pvc-1 (csi) is not supported (mounted at /data): the machine does not see the host's file systems"
        );
    }

    #[test]
    fn zones_come_from_the_edits() {
        let edits = [
            bind("/usr/lib/bulkhead/libcuda.so.1", "/usr/lib64/libcuda.so.1"),
            bind("/run/bulkhead/zones/team-a", ZONE_DIR),
            bind("/usr/lib/bulkhead/nvidia-smi", SMI),
        ];
        assert!(edits.iter().all(|mount| classify(mount, &OWNER) == Wanted::Zone));
        assert_eq!(zone(&edits).unwrap().unwrap().as_str(), "team-a");
        assert_eq!(zone(&edits[..1]).unwrap(), None);
        assert_eq!(zone(&[bind("/etc", ZONE_DIR)]), Err(Refusal::Zone("/etc".into())));
        assert_eq!(zone(&[edits[1].clone(), edits[1].clone()]), Err(Refusal::SeveralZones));
    }
}
