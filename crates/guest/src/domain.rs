//! Making and ending a guest's domain, through Xen's own `xl`.

use crate::link::options;
use std::fmt::Write;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use xen::DomainId;
use xen::store::{Store, StoreError};

/// For the console, the store and the link.
const RESERVED_GRANTS: u32 = 64;
/// For a network interface: a pod's kernel gives it one queue in each direction, of 256 pages.
const INTERFACE_GRANTS: u32 = 514;
/// For a disk, which has a queue for each processor: 32 requests with 32 pages each, and the queue itself.
const DISK_GRANTS: u32 = 1056;
/// How the guest's kernel calls its disk.
const DISK: &str = "xvda";
/// How it calls the disk that a pod's containers write to.
pub const SCRATCH: &str = "xvdb";
/// How many disks a pod's domain may have at a time: the one for changes, and one for each image of its containers. A pod's
/// kernel gives each of them one queue.
pub const POD_DISKS: u32 = 12;

#[derive(Debug, thiserror::Error)]
pub enum DomainError {
    #[error("not in a Xen control domain: cannot run xl")]
    NoToolstack(#[source] io::Error),
    #[error("{what}: {said}")]
    Xl { what: String, said: String },
    #[error("path contains quotes, backslashes or newlines: {0}")]
    Path(PathBuf),
    #[error("cannot write {0}")]
    Write(PathBuf, #[source] io::Error),
    #[error("cannot ask xenstore about the domain")]
    Store(#[from] StoreError),
}

/// How a domain sees its machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// With the processor's virtualisation, and no emulated devices.
    Pvh,
    /// Without: the kernel itself knows that it is a guest.
    Pv,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Pvh => "pvh",
            Self::Pv => "pv",
        }
    }

    /// PVH where the hypervisor can, else PV.
    pub fn best() -> Result<Self, DomainError> {
        let info = xl(["info"], "cannot query the hypervisor")?;
        let can = info
            .lines()
            .any(|line| line.starts_with("virt_caps") && line.split_whitespace().any(|word| word == "hvm"));
        Ok(if can { Self::Pvh } else { Self::Pv })
    }
}

/// What a domain is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose<'a> {
    /// One command of `bulkhead xen run`.
    Command,
    /// A pod, whose containers write to this block device, which Xen's toolstack attaches with this script; and which has
    /// this network interface.
    Pod { scratch: &'a Path, script: &'a Path, interface: Option<Interface<'a>> },
}

/// A network interface, of which the host has the other end: `vif<domain>.0`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Interface<'a> {
    /// Its hardware address, in the guest.
    pub mac: &'a str,
    /// Tells Xen's toolstack that it is there.
    pub script: &'a Path,
}

/// What a domain is made of.
#[derive(Debug, Clone)]
pub struct Definition<'a> {
    pub name: &'a str,
    /// Its identity, where somebody is to find it by that; else Xen's toolstack chooses one.
    pub uuid: Option<&'a str>,
    pub purpose: Purpose<'a>,
    pub kind: Kind,
    pub kernel: &'a Path,
    pub root: &'a Path,
    /// The block device that is its disk, which it may read.
    pub disk: Option<&'a Path>,
    pub memory: u64,
    pub vcpus: u32,
    /// The domain that has the other end of its link.
    pub host: DomainId,
    /// Frames of grants that its programs may use; each is good for 512 pages, that is 2 MiB.
    pub grant_frames: u32,
}

/// How many frames a domain has in all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Table {
    /// Twice as many as its programs may use. Pages of a program that was killed are taken until its worker has let go of
    /// them, a second or so, and nobody counts them meanwhile; a kernel whose table is full loses track of what it holds.
    Roomy,
    /// As many: the hypervisor allows no more.
    Tight,
}

impl Definition<'_> {
    /// As `xl` wants it.
    fn text(&self, table: Table) -> Result<String, DomainError> {
        let pod = match self.purpose {
            Purpose::Command => None,
            Purpose::Pod { scratch, script, .. } => Some((scratch, script)),
        };
        let interface = match self.purpose {
            Purpose::Pod { interface, .. } => interface,
            Purpose::Command => None,
        };
        let of_pod = pod.into_iter().flat_map(|(scratch, script)| [scratch, script]);
        for path in [self.kernel, self.root].into_iter().chain(self.disk).chain(of_pod) {
            plain(path)?;
        }
        if let Some(Interface { mac, script }) = interface {
            plain(script)?;
            plain(Path::new(mac))?;
        }
        let queues = match self.purpose {
            Purpose::Command => self.disk.map_or(0, |_| self.vcpus),
            Purpose::Pod { .. } => POD_DISKS,
        };
        let for_interface = interface.map_or(0, |_| INTERFACE_GRANTS);
        let for_disks = DISK_GRANTS.saturating_mul(queues);
        let reserved = RESERVED_GRANTS.saturating_add(for_disks).saturating_add(for_interface);
        let grants = self.grant_frames.saturating_mul(512).saturating_sub(reserved);
        let mut text = String::new();
        let _ = writeln!(text, "name = \"{}\"", self.name);
        if let Some(uuid) = self.uuid {
            let _ = writeln!(text, "uuid = \"{uuid}\"");
        }
        let _ = writeln!(text, "type = \"{}\"", self.kind.name());
        let _ = writeln!(text, "kernel = \"{}\"", self.kernel.display());
        let _ = writeln!(text, "ramdisk = \"{}\"", self.root.display());
        let (host, limit) = (options::HOST, options::GRANTS);
        let disk = self.disk.map(|_| format!(" {}={DISK}", options::DISK)).unwrap_or_default();
        let mode = format!(" {}={} {}={SCRATCH}", options::MODE, options::MODE_POD, options::SCRATCH);
        let mode = pod.map(|_| mode).unwrap_or_default();
        let host = format!("{host}={}", self.host);
        let _ = writeln!(text, "extra = \"console=hvc0 quiet loglevel=3 {host} {limit}={grants}{disk}{mode}\"");
        let image = self.disk.map(|device| disk_of(DISK, "ro", None, device));
        let scratch = pod.map(|(device, script)| disk_of(SCRATCH, "rw", Some(script), device));
        let disks: Vec<String> = image.into_iter().chain(scratch).map(|disk| format!("\"{disk}\"")).collect();
        if !disks.is_empty() {
            let _ = writeln!(text, "disk = [ {} ]", disks.join(", "));
        }
        if let Some(Interface { mac, script }) = interface {
            let _ = writeln!(text, "vif = [ \"mac={mac}, script={}\" ]", script.display());
        }
        let _ = writeln!(text, "memory = {}", self.memory.div_ceil(1 << 20));
        let _ = writeln!(text, "vcpus = {}", self.vcpus);
        let frames = if table == Table::Roomy { self.grant_frames.saturating_mul(2) } else { self.grant_frames };
        let _ = writeln!(text, "max_grant_frames = {frames}");
        for end in ["poweroff", "reboot", "crash", "watchdog", "soft_reset"] {
            let _ = writeln!(text, "on_{end} = \"destroy\"");
        }
        Ok(text)
    }
}

/// Nothing that would end a string in what `xl` reads.
fn plain(path: &Path) -> Result<(), DomainError> {
    match path.to_str() {
        Some(text) if !text.contains(['"', '\'', '\\', '\n']) => Ok(()),
        _ => Err(DomainError::Path(path.to_owned())),
    }
}

/// A disk as `xl` wants it. The device's path comes last: it may have commas.
fn disk_of(name: &str, access: &str, script: Option<&Path>, device: &Path) -> String {
    let script = script.map(|script| format!(", script={}", script.display())).unwrap_or_default();
    format!("format=raw, vdev={name}, access={access}, backendtype=phy{script}, target={}", device.display())
}

/// A domain that is destroyed when dropped.
#[derive(Debug)]
pub struct Domain {
    id: DomainId,
    /// Its own unique number: numbers of domains are used again.
    name: String,
    uuid: Option<String>,
}

impl Domain {
    /// Makes it, paused. `dir` is for files that are of no use afterwards.
    pub fn create(definition: &Definition, dir: &Path) -> Result<Self, DomainError> {
        let config = dir.join(format!("{}.cfg", definition.name));
        let create = |table| {
            let text = definition.text(table)?;
            std::fs::write(&config, text).map_err(|error| DomainError::Write(config.clone(), error))?;
            xl(["create", "-q", "-p", &config.to_string_lossy()], "cannot create the domain").map(drop)
        };
        // Which of many reasons it was is for the second attempt to say.
        create(Table::Roomy).or_else(|_| create(Table::Tight))?;
        // From here on it must be destroyed whatever happens.
        let uuid = definition.uuid.map(str::to_owned);
        let mut domain = Self { id: 0, name: definition.name.to_owned(), uuid };
        let id = xl(["domid", definition.name], "cannot find the domain")?;
        domain.id =
            id.trim().parse().map_err(|_| DomainError::Xl { what: "cannot find the domain".into(), said: id })?;
        Ok(domain)
    }

    pub fn id(&self) -> DomainId {
        self.id
    }

    pub fn unpause(&self) -> Result<(), DomainError> {
        xl(["unpause", &self.name], "cannot start the domain").map(drop)
    }

    /// Attaches a block device, which the domain may read, under this name. The script tells the toolstack that it is there.
    pub fn attach_disk(&self, name: &str, device: &Path, script: &Path) -> Result<(), DomainError> {
        plain(device)?;
        plain(script)?;
        let disk = disk_of(name, "ro", Some(script), device);
        xl(["block-attach", &self.name, &disk], "cannot attach a disk").map(drop)
    }

    pub fn detach_disk(&self, name: &str) -> Result<(), DomainError> {
        xl(["block-detach", &self.name, name], "cannot detach a disk").map(drop)
    }

    /// Whether it is still there.
    pub fn exists(&self) -> bool {
        output(["domid", &self.name]).is_ok_and(|output| output.status.success())
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        // One that has ended by itself is not there any more.
        let _ = match &self.uuid {
            Some(uuid) => destroy(&self.name, uuid).map(drop),
            None => output(["destroy", &self.name]).map(drop),
        };
    }
}

/// Destroys the domain of this name if it is the one with this identity, and waits until it is gone. False: there is none.
pub fn destroy(name: &str, uuid: &str) -> Result<bool, DomainError> {
    let found = output(["domid", name])?;
    if !found.status.success() {
        return Ok(false);
    }
    let id = String::from_utf8_lossy(&found.stdout).trim().to_owned();
    let vm = Store::open()?.read_text(&format!("/local/domain/{id}/vm"))?;
    if vm.is_none_or(|vm| !is_identity(&vm, uuid)) {
        return Ok(false);
    }
    xl(["destroy", &id], "cannot destroy the domain").map(|_| true)
}

/// Whether this is what a domain's node `vm` says of the identity.
fn is_identity(vm: &str, uuid: &str) -> bool {
    vm.strip_prefix("/vm/").is_some_and(|found| found.eq_ignore_ascii_case(uuid))
}

/// The memory that the hypervisor has left, in bytes.
pub fn free_memory() -> Result<u64, DomainError> {
    let info = xl(["info"], "cannot query the hypervisor")?;
    let missing = || DomainError::Xl { what: "cannot query the hypervisor".into(), said: "no free_memory".into() };
    free_in(&info).ok_or_else(missing)
}

fn free_in(info: &str) -> Option<u64> {
    let line = info.lines().find_map(|line| line.strip_prefix("free_memory")?.trim().strip_prefix(':'))?;
    line.trim().parse::<u64>().ok()?.checked_mul(1 << 20)
}

fn xl<const N: usize>(arguments: [&str; N], what: &str) -> Result<String, DomainError> {
    let output = output(arguments)?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        // It says a lot about what follows from the first thing that went wrong.
        let said = said.lines().find(|line| !line.trim().is_empty()).unwrap_or("no output from xl").trim().to_owned();
        return Err(DomainError::Xl { what: what.to_owned(), said });
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn output<const N: usize>(arguments: [&str; N]) -> Result<Output, DomainError> {
    use std::os::unix::process::CommandExt;
    let mut xl = Command::new("xl");
    // The terminal's signals are for the program in the guest.
    xl.args(arguments).stdin(Stdio::null()).process_group(0);
    xl.output().map_err(DomainError::NoToolstack)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn definition(kernel: &str) -> Definition<'_> {
        Definition {
            name: "a",
            uuid: None,
            purpose: Purpose::Command,
            kind: Kind::Pvh,
            kernel: Path::new(kernel),
            root: Path::new("/r"),
            disk: None,
            memory: (256 << 20) + 1,
            vcpus: 2,
            host: 0,
            grant_frames: 64,
        }
    }

    #[test]
    fn a_definition_says_what_xl_must_know() {
        let text = definition("/k").text(Table::Tight).unwrap();
        for line in ["type = \"pvh\"", "kernel = \"/k\"", "memory = 257", "vcpus = 2", "max_grant_frames = 64"] {
            assert!(text.lines().any(|other| other == line), "{line} is not in\n{text}");
        }
        assert!(text.contains("bulkhead.host=0 bulkhead.grants=32704") && !text.contains("disk = ["));
        let roomy = definition("/k").text(Table::Roomy).unwrap();
        assert!(roomy.contains("max_grant_frames = 128\n") && roomy.contains("bulkhead.grants=32704"));
    }

    #[test]
    fn a_disk_is_read_only_and_grants_are_left_for_it() {
        let with_disk = Definition { disk: Some(Path::new("/dev/loop3")), ..definition("/k") };
        let text = with_disk.text(Table::Tight).unwrap();
        let line = "disk = [ \"format=raw, vdev=xvda, access=ro, backendtype=phy, target=/dev/loop3\" ]";
        assert!(text.lines().any(|other| other == line), "{text}");
        assert!(
            text.contains(&format!("bulkhead.grants={} bulkhead.disk=xvda\"", 32704 - 2 * DISK_GRANTS)),
            "{text}"
        );
    }

    #[test]
    fn a_pod_has_a_disk_to_write_to_and_is_known_by_its_identity() {
        let interface = Some(Interface { mac: "0a:58:0a:16:00:05", script: Path::new("/v") });
        let purpose = Purpose::Pod { scratch: Path::new("/dev/loop4"), script: Path::new("/s"), interface };
        let pod = Definition { purpose, uuid: Some("0a0b"), ..definition("/k") };
        let text = pod.text(Table::Tight).unwrap();
        let disk = "disk = [ \"format=raw, vdev=xvdb, access=rw, backendtype=phy, script=/s, target=/dev/loop4\" ]";
        assert!(text.lines().any(|line| line == disk), "{text}");
        assert!(text.lines().any(|line| line == "uuid = \"0a0b\""), "{text}");
        let vif = "vif = [ \"mac=0a:58:0a:16:00:05, script=/v\" ]";
        assert!(text.lines().any(|line| line == vif), "{text}");
        let grants = 32704 - POD_DISKS * DISK_GRANTS - INTERFACE_GRANTS;
        let extra = format!("bulkhead.grants={grants} bulkhead.mode=pod bulkhead.scratch=xvdb\"");
        assert!(text.contains(&extra), "{text}");
        assert!(is_identity("/vm/0A0B", "0a0b") && !is_identity("/vm/0a0c", "0a0b") && !is_identity("0a0b", "0a0b"));
    }

    #[test]
    fn free_memory_is_in_what_the_hypervisor_says() {
        let info = "total_memory           : 2047\nfree_memory            : 1256\nsharing_freed_memory   : 0\n";
        assert_eq!(free_in(info), Some(1256 << 20));
        assert_eq!(free_in("free_memory_x : 3"), None);
        assert_eq!(free_in(""), None);
    }

    #[test]
    fn a_path_cannot_say_more_than_a_path() {
        for path in ["/k\"\nname = \"b", "/k\\", "/a'b"] {
            assert!(matches!(definition(path).text(Table::Tight), Err(DomainError::Path(_))));
            let disk = Definition { disk: Some(Path::new(path)), ..definition("/k") };
            assert!(matches!(disk.text(Table::Tight), Err(DomainError::Path(_))));
        }
    }
}
