//! What is injected into a container of a zone: the two client libraries in the loader's default directories, `nvidia-smi`
//! where NVIDIA's toolkit puts its own, and the zone's directory.
//!
//! No hooks, which container toolkits had escapes in, no device nodes, and no `LD_LIBRARY_PATH`, which would replace the
//! image's own. The directory is mounted, not the socket in it: a mounted socket would be dead after a restart of the
//! broker.

use std::path::{Path, PathBuf};

use control::ZoneName;

use crate::api::device_plugin as api;
use crate::cdi::spec::{Edits, Mount};

/// Where the client library looks for its zone.
const ZONE: &str = control::env_vars::ZONE_DIR;
const LIBRARIES: [&str; 2] = ["libcuda.so.1", "libnvidia-ml.so.1"];
/// What shows the zone, beside the libraries.
const SMI: &str = "nvidia-smi";
const PROGRAM_DIR: &str = "/usr/bin";

/// Default directories of distributions' loaders: Debian's, and all others'.
#[cfg(target_arch = "x86_64")]
pub const LOADER_DIRS: [&str; 2] = ["/usr/lib/x86_64-linux-gnu", "/usr/lib64"];
#[cfg(target_arch = "aarch64")]
pub const LOADER_DIRS: [&str; 2] = ["/usr/lib/aarch64-linux-gnu", "/usr/lib64"];

/// Paths on the host, as the host sees them.
#[derive(Debug, Clone)]
pub struct Places {
    /// The directory of the client libraries.
    pub libraries: PathBuf,
    /// The broker's state directory.
    pub state: PathBuf,
    /// Containers get our `nvidia-smi`. A host with a package of an earlier version has none, and a container whose mount has no
    /// source does not start.
    pub smi: bool,
}

impl Places {
    pub fn zone(&self, zone: &ZoneName) -> PathBuf {
        self.state.join("zones").join(zone.as_str())
    }

    fn mounts(&self, zone: &ZoneName) -> Vec<(PathBuf, PathBuf)> {
        let libraries = LIBRARIES.into_iter().flat_map(|library| {
            let from = self.libraries.join(library);
            LOADER_DIRS.into_iter().map(move |dir| (from.clone(), Path::new(dir).join(library)))
        });
        let smi = self.smi.then(|| (self.libraries.join(SMI), Path::new(PROGRAM_DIR).join(SMI)));
        libraries.chain(smi).chain([(self.zone(zone), PathBuf::from(ZONE))]).collect()
    }

    /// For CDI.
    pub fn edits(&self, zone: &ZoneName) -> Edits {
        let mount = |(from, to): (PathBuf, PathBuf)| Mount {
            host_path: text(&from),
            container_path: text(&to),
            kind: None,
            options: ["ro", "nosuid", "nodev", "bind"].map(str::to_owned).to_vec(),
        };
        let env = environment().map(|(name, value)| format!("{name}={value}")).to_vec();
        Edits { env, mounts: self.mounts(zone).into_iter().map(mount).collect(), ..Edits::default() }
    }

    /// For a kubelet or a runtime without CDI.
    pub fn response(&self, zone: &ZoneName) -> api::ContainerAllocateResponse {
        let mount = |(from, to): (PathBuf, PathBuf)| api::Mount {
            host_path: text(&from),
            container_path: text(&to),
            read_only: true,
        };
        api::ContainerAllocateResponse {
            envs: environment().into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect(),
            mounts: self.mounts(zone).into_iter().map(mount).collect(),
            ..Default::default()
        }
    }
}

/// Whether a directory of client libraries that can be seen has a program for containers beside them.
pub fn has_smi(libraries: &Path) -> bool {
    libraries.join(SMI).is_file()
}

/// Triton asks `ldconfig`, which does not know mounted files, unless this is set.
fn environment() -> [(&'static str, &'static str); 1] {
    [("TRITON_LIBCUDA_PATH", LOADER_DIRS[0])]
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}
