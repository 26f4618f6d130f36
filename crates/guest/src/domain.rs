//! Making and ending a guest's domain, through Xen's own `xl`.

use crate::link::options;
use std::fmt::Write;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use xen::DomainId;

/// For the console, the store and the link.
const RESERVED_GRANTS: u32 = 64;
/// For a disk, which has a queue for each processor: 32 requests with 32 pages each, and the queue itself.
const DISK_GRANTS: u32 = 1056;
/// How the guest's kernel calls its disk.
const DISK: &str = "xvda";

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

/// What a domain is made of.
#[derive(Debug, Clone)]
pub struct Definition<'a> {
    pub name: &'a str,
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
        for path in [self.kernel, self.root].into_iter().chain(self.disk) {
            if path.to_str().is_none_or(|text| text.contains(['"', '\'', '\\', '\n'])) {
                return Err(DomainError::Path(path.to_owned()));
            }
        }
        let for_disk = self.disk.map_or(0, |_| DISK_GRANTS.saturating_mul(self.vcpus));
        let reserved = RESERVED_GRANTS.saturating_add(for_disk);
        let grants = self.grant_frames.saturating_mul(512).saturating_sub(reserved);
        let mut text = String::new();
        let _ = writeln!(text, "name = \"{}\"", self.name);
        let _ = writeln!(text, "type = \"{}\"", self.kind.name());
        let _ = writeln!(text, "kernel = \"{}\"", self.kernel.display());
        let _ = writeln!(text, "ramdisk = \"{}\"", self.root.display());
        let (host, limit) = (options::HOST, options::GRANTS);
        let disk = self.disk.map(|_| format!(" {}={DISK}", options::DISK)).unwrap_or_default();
        let host = format!("{host}={}", self.host);
        let _ = writeln!(text, "extra = \"console=hvc0 quiet loglevel=3 {host} {limit}={grants}{disk}\"");
        if let Some(device) = self.disk {
            // A path comes last: it may have commas.
            let how = format!("format=raw, vdev={DISK}, access=ro, backendtype=phy");
            let _ = writeln!(text, "disk = [ \"{how}, target={}\" ]", device.display());
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

/// A domain that is destroyed when dropped.
#[derive(Debug)]
pub struct Domain {
    id: DomainId,
    /// Its own unique number: numbers of domains are used again.
    name: String,
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
        let mut domain = Self { id: 0, name: definition.name.to_owned() };
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

    /// Whether it is still there.
    pub fn exists(&self) -> bool {
        output(["domid", &self.name]).is_ok_and(|output| output.status.success())
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        // One that has ended by itself is not there any more.
        let _ = output(["destroy", &self.name]);
    }
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
    fn a_path_cannot_say_more_than_a_path() {
        for path in ["/k\"\nname = \"b", "/k\\", "/a'b"] {
            assert!(matches!(definition(path).text(Table::Tight), Err(DomainError::Path(_))));
            let disk = Definition { disk: Some(Path::new(path)), ..definition("/k") };
            assert!(matches!(disk.text(Table::Tight), Err(DomainError::Path(_))));
        }
    }
}
