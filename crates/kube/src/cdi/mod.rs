//! CDI files: what a container runtime does when a container requests a device by name.

pub mod passthrough;
pub mod spec;
pub mod validate;

use control::atomic_file;
use std::io;
use std::path::{Path, PathBuf};

use control::ZoneName;

use crate::inject::Places;
use spec::{Device, Spec};

pub const VENDOR: &str = "bulkhead.dev";
pub const CLASS: &str = "zone";
/// The directory for CDI files that do not survive a reboot.
pub const SPEC_DIR: &str = "/var/run/cdi";

/// The name by which a container requests a zone.
pub fn device_name(zone: &ZoneName) -> String {
    format!("{VENDOR}/{CLASS}={zone}")
}

/// The file of one zone.
pub fn zone_spec(places: &Places, zone: &ZoneName) -> Spec {
    zones_spec(places, &format!("{VENDOR}/{CLASS}"), std::slice::from_ref(zone))
}

/// One file for several zones.
pub fn zones_spec(places: &Places, kind: &str, zones: &[ZoneName]) -> Spec {
    let device =
        |zone: &ZoneName| Device { name: zone.to_string(), container_edits: places.edits(zone), ..Device::default() };
    let devices = zones.iter().map(device).collect();
    Spec { kind: kind.to_owned(), devices, ..Spec::default() }.with_lowest_version()
}

pub fn to_yaml(spec: &Spec) -> Result<String, String> {
    Ok(format!("---\n{}", serde_saphyr::to_string(spec).map_err(|error| error.to_string())?))
}

/// The directory that runtimes read. One file per zone, so that creating one never touches another.
#[derive(Debug, Clone)]
pub struct SpecDir(PathBuf);

impl SpecDir {
    pub fn open(path: &Path) -> io::Result<Self> {
        std::fs::create_dir_all(path)?;
        Ok(Self(path.to_owned()))
    }

    fn file(&self, zone: &ZoneName) -> PathBuf {
        self.0.join(format!("{VENDOR}-{CLASS}-{zone}.json"))
    }

    pub fn write(&self, zone: &ZoneName, spec: &Spec) -> io::Result<()> {
        atomic_file::write_volatile(&self.file(zone), &serde_json::to_vec_pretty(spec)?)
    }

    pub fn remove(&self, zone: &ZoneName) -> io::Result<()> {
        atomic_file::remove(&self.file(zone))
    }

    /// The zones that have a file here.
    pub fn zones(&self) -> io::Result<Vec<ZoneName>> {
        let prefix = format!("{VENDOR}-{CLASS}-");
        let mut zones = Vec::new();
        for entry in std::fs::read_dir(&self.0)? {
            let name = entry?.file_name();
            let zone = name.to_str().and_then(|name| name.strip_prefix(&prefix)?.strip_suffix(".json"));
            zones.extend(zone.and_then(|zone| zone.parse::<ZoneName>().ok()));
        }
        Ok(zones)
    }
}
