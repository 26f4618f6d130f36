//! CDI files for physical GPUs, as `nvidia-ctk cdi generate` writes them, for containers that need the GPU itself.
//!
//! Without hooks: where NVIDIA's toolkit makes links and a loader cache in the container, the driver's libraries are
//! mounted under each of their names into the loader's default directories.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use control::mig::Instance;
use control::{kernel_module, topology};

use super::spec::{Device, DeviceNode, Edits, Mount, Spec};
use crate::inject::LOADER_DIRS;

#[derive(Debug, Clone)]
pub struct Options {
    pub vendor: String,
    pub class: String,
    /// Where the driver's files are; `/` unless the driver is in a container of its own.
    pub driver_root: PathBuf,
    /// Where `/dev` is.
    pub dev_root: PathBuf,
    pub names: Vec<NameStrategy>,
    /// Leave the device `all` out.
    pub no_all_device: bool,
    /// Only these GPUs, by index or UUID, or MIG instances, by index of both or UUID; empty: all.
    pub device_ids: Vec<String>,
    /// What NVML knows of GPUs with MIG instances, if it was asked; without it, instances have no UUIDs.
    pub cut: Vec<topology::Gpu>,
    /// `/proc` of the host.
    pub proc: PathBuf,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NameStrategy {
    /// `0`, and `0:1` for a MIG instance
    Index,
    /// `GPU-4f6c…`, and `MIG-…`
    Uuid,
    /// `gpu0`, and `mig0:1`
    TypeIndex,
}

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum PassthroughError {
    #[error("no NVIDIA device nodes in {0}/dev")]
    NoGpu(String),
    #[error("GPU {0} does not exist")]
    NoSuchGpu(String),
    #[error("no NVIDIA driver libraries (libcuda.so) under {0}")]
    NoDriver(String),
}

/// What a container can have: a GPU, or a MIG instance of a GPU in MIG mode.
struct Choice {
    /// `0`, or `0:1`.
    index: String,
    is_instance: bool,
    uuid: Option<String>,
    nodes: Vec<PathBuf>,
}

impl Choice {
    fn is(&self, id: &str) -> bool {
        self.index == id || self.uuid.as_deref() == Some(id)
    }

    fn name(&self, strategy: NameStrategy) -> Option<String> {
        match strategy {
            NameStrategy::Index => Some(self.index.clone()),
            NameStrategy::TypeIndex => {
                Some(format!("{}{}", if self.is_instance { "mig" } else { "gpu" }, self.index))
            }
            NameStrategy::Uuid => self.uuid.clone(),
        }
    }
}

/// Nodes that every container with a GPU needs; those that the host has are given.
const CONTROL: [&str; 4] = ["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset"];
const LIBRARY_DIRS: [&str; 6] = [
    LOADER_DIRS[0],
    "/usr/lib64",
    "/usr/lib",
    "/usr/local/nvidia/lib64",
    "/usr/lib/nvidia",
    "/run/opengl-driver/lib",
];
const PROGRAMS: [&str; 4] = ["nvidia-smi", "nvidia-debugdump", "nvidia-cuda-mps-control", "nvidia-cuda-mps-server"];

pub fn generate(options: &Options) -> Result<Spec, PassthroughError> {
    let choices = choices(options);
    if choices.is_empty() {
        return Err(PassthroughError::NoGpu(options.dev_root.display().to_string().trim_end_matches('/').to_owned()));
    }
    let known = |id: &&String| choices.iter().any(|choice| choice.is(id));
    if let Some(unknown) = options.device_ids.iter().find(|id| *id != "all" && !known(id)) {
        return Err(PassthroughError::NoSuchGpu(unknown.clone()));
    }
    let is_chosen = |choice: &&Choice| {
        options.device_ids.is_empty() || options.device_ids.iter().any(|id| id == "all" || choice.is(id))
    };
    let mut devices = Vec::new();
    let mut all: Vec<DeviceNode> = Vec::new();
    for choice in choices.iter().filter(is_chosen) {
        let device_nodes: Vec<DeviceNode> = choice.nodes.iter().map(|path| options.node(path)).collect();
        // Slices of one GPU have its node in common.
        all.extend(device_nodes.iter().filter(|node| !all.contains(node)).cloned().collect::<Vec<_>>());
        let names: BTreeSet<String> = options.names.iter().filter_map(|strategy| choice.name(*strategy)).collect();
        devices.extend(names.into_iter().map(|name| Device {
            name,
            container_edits: Edits { device_nodes: device_nodes.clone(), ..Edits::default() },
            ..Device::default()
        }));
    }
    if !options.no_all_device {
        let container_edits = Edits { device_nodes: all, ..Edits::default() };
        devices.push(Device { name: "all".to_owned(), container_edits, ..Device::default() });
    }
    let control = CONTROL.into_iter().map(Path::new).filter(|path| options.host_node(path).exists());
    let container_edits = Edits {
        // So that a hook of NVIDIA's, where one is installed, does not add the GPUs once more.
        env: vec!["NVIDIA_VISIBLE_DEVICES=void".to_owned()],
        device_nodes: control.map(|path| options.node(path)).collect(),
        mounts: mounts(options)?,
        ..Edits::default()
    };
    let kind = format!("{}/{}", options.vendor, options.class);
    Ok(Spec { kind, devices, container_edits, ..Spec::default() }.with_lowest_version())
}

impl Options {
    fn host_node(&self, path: &Path) -> PathBuf {
        under(&self.dev_root, path)
    }

    fn node(&self, path: &Path) -> DeviceNode {
        let host = self.host_node(path);
        let host_path = (host != path).then(|| text(&host));
        DeviceNode { path: text(path), host_path, ..DeviceNode::default() }
    }
}

/// In the order of their slots, as NVML counts.
fn choices(options: &Options) -> Vec<Choice> {
    let node = |minor: u32| PathBuf::from(format!("/dev/nvidia{minor}"));
    let there = |minor: &u32| options.host_node(&node(*minor)).exists();
    let mut gpus: Vec<(u32, Option<String>)> =
        kernel_module::gpus(&options.proc).into_iter().map(|gpu| (gpu.minor, gpu.uuid)).collect();
    gpus.retain(|(minor, _)| there(minor));
    if gpus.is_empty() {
        // The kernel does not tell; the nodes do.
        gpus = (0..64).filter(there).map(|minor| (minor, None)).collect();
    }
    let instances = kernel_module::instances(&options.proc);
    let choice = |(at, (minor, uuid)): (usize, (u32, Option<String>))| {
        let own: Vec<&Instance> = instances.iter().filter(|instance| instance.gpu == minor).collect();
        if own.is_empty() {
            return vec![Choice { index: at.to_string(), is_instance: false, uuid, nodes: vec![node(minor)] }];
        }
        let slice = |(place, instance): (usize, &&Instance)| {
            let slice = slice_of(&options.cut, **instance);
            let place = slice.map_or(place, |slice| slice.index as usize);
            let capabilities = kernel_module::capabilities(&options.proc, **instance).into_iter().flatten();
            let nodes = capabilities.map(|minor| PathBuf::from(format!("/dev/nvidia-caps/nvidia-cap{minor}")));
            Choice {
                index: format!("{at}:{place}"),
                is_instance: true,
                uuid: slice.map(|slice| slice.uuid.clone()),
                nodes: std::iter::once(node(minor)).chain(nodes).collect(),
            }
        };
        own.iter().enumerate().map(slice).collect()
    };
    gpus.into_iter().enumerate().flat_map(choice).collect()
}

fn slice_of(cut: &[topology::Gpu], instance: Instance) -> Option<&topology::Slice> {
    let gpu = cut.iter().find(|gpu| gpu.minor == Some(instance.gpu))?;
    let mut slices = gpu.mig.iter().flat_map(|mig| &mig.slices);
    slices.find(|slice| {
        (slice.gpu_instance, slice.compute_instance) == (instance.gpu_instance, instance.compute_instance)
    })
}

fn mounts(options: &Options) -> Result<Vec<Mount>, PassthroughError> {
    let root = |path: &Path| under(&options.driver_root, path);
    let dirs: Vec<PathBuf> = LIBRARY_DIRS.iter().map(|dir| root(Path::new(dir))).collect();
    let found = dirs.iter().find_map(|dir| Some((dir, version_in(dir)?)));
    let Some((dir, version)) = found else {
        return Err(PassthroughError::NoDriver(options.driver_root.display().to_string()));
    };
    let mut mounts = Vec::new();
    for (file, names) in libraries(dir, &version) {
        for (name, place) in names.iter().flat_map(|name| LOADER_DIRS.map(|place| (name, place))) {
            mounts.push(mount(&file, &Path::new(place).join(name)));
        }
    }
    for program in PROGRAMS {
        let path = Path::new("/usr/bin").join(program);
        if root(&path).exists() {
            mounts.push(mount(&root(&path), &path));
        }
    }
    let firmware = PathBuf::from(format!("/lib/firmware/nvidia/{version}"));
    let files = std::fs::read_dir(root(&firmware)).into_iter().flatten().flatten();
    let mut files: Vec<_> = files.map(|entry| entry.file_name()).collect();
    files.retain(|name| name.to_string_lossy().starts_with("gsp"));
    files.sort();
    mounts.extend(files.into_iter().map(|name| mount(&root(&firmware).join(&name), &firmware.join(&name))));
    Ok(mounts)
}

/// The driver's version, from the name of its library.
fn version_in(dir: &Path) -> Option<String> {
    let entries = std::fs::read_dir(dir).ok()?.flatten();
    let versions = entries.filter_map(|entry| {
        let name = entry.file_name();
        let version = name.to_str()?.strip_prefix("libcuda.so.")?.to_owned();
        let numbers = version.split('.').filter(|part| !part.is_empty() && part.bytes().all(|c| c.is_ascii_digit()));
        (numbers.count() >= 2).then_some(version)
    });
    versions.max()
}

/// The driver's libraries, each with the names under which programs load it: its own, and those of links to it.
fn libraries(dir: &Path, version: &str) -> Vec<(PathBuf, Vec<String>)> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let names: BTreeSet<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    let ending = format!(".so.{version}");
    let of_driver = |name: &&String| {
        (name.starts_with("libnvidia-") || name.starts_with("libcuda") || name.starts_with("libnvcuvid"))
            && name.ends_with(&ending)
    };
    let files = names.iter().filter(of_driver);
    let with_links = files.map(|file| {
        let target = dir.join(file);
        let leads_here = |name: &&String| {
            // Only names with a version in them: `libcuda.so` alone is for compiling.
            *name != file && name.contains(".so.") && dir.join(name).canonicalize().ok() == target.canonicalize().ok()
        };
        let all = [file].into_iter().chain(names.iter().filter(leads_here)).cloned().collect();
        (target, all)
    });
    with_links.collect()
}

fn mount(from: &Path, to: &Path) -> Mount {
    let options = ["ro", "nosuid", "nodev", "bind"].map(str::to_owned).to_vec();
    Mount { host_path: text(from), container_path: text(to), kind: None, options }
}

fn under(root: &Path, path: &Path) -> PathBuf {
    root.join(path.strip_prefix("/").unwrap_or(path))
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    struct Host(testkit::Directory);

    impl Host {
        fn new() -> Self {
            let root = testkit::directory();
            let lib = root.join(&LOADER_DIRS[0][1..]);
            for dir in [&lib, &root.join("dev"), &root.join("usr/bin"), &root.join("lib/firmware/nvidia/580.1.2")] {
                fs::create_dir_all(dir).unwrap();
            }
            for file in ["libcuda.so.580.1.2", "libnvidia-ml.so.580.1.2", "libnvidia-glcore.so.570.0", "libc.so.6"] {
                fs::write(lib.join(file), "").unwrap();
            }
            std::os::unix::fs::symlink("libcuda.so.580.1.2", lib.join("libcuda.so.1")).unwrap();
            std::os::unix::fs::symlink("libcuda.so.1", lib.join("libcuda.so")).unwrap();
            for file in ["dev/nvidia0", "dev/nvidia1", "dev/nvidiactl", "dev/nvidia-uvm", "usr/bin/nvidia-smi"] {
                fs::write(root.join(file), "").unwrap();
            }
            fs::write(root.join("lib/firmware/nvidia/580.1.2/gsp_ga10x.bin"), "").unwrap();
            for (slot, minor, uuid) in [("0000:41:00.0", 0, "GPU-b"), ("0000:01:00.0", 1, "GPU-a")] {
                let dir = root.join("proc/driver/nvidia/gpus").join(slot);
                fs::create_dir_all(&dir).unwrap();
                let text = format!("Model: \t\t H200\nGPU UUID: \t {uuid}\nDevice Minor: \t {minor}\n");
                fs::write(dir.join("information"), text).unwrap();
            }
            Self(root)
        }

        fn options(&self) -> Options {
            Options {
                vendor: "nvidia.com".into(),
                class: "gpu".into(),
                driver_root: self.0.to_path_buf(),
                dev_root: self.0.to_path_buf(),
                names: vec![NameStrategy::Index, NameStrategy::Uuid],
                no_all_device: false,
                device_ids: Vec::new(),
                cut: Vec::new(),
                proc: self.0.join("proc"),
            }
        }
    }

    #[test]
    fn a_host_with_two_gpus() {
        let host = Host::new();
        let spec = generate(&host.options()).unwrap();
        assert_eq!((spec.kind.as_str(), spec.cdi_version.as_str()), ("nvidia.com/gpu", "0.5.0"));
        let names: Vec<&str> = spec.devices.iter().map(|device| device.name.as_str()).collect();
        assert_eq!(names, ["0", "GPU-a", "1", "GPU-b", "all"]);
        // The order is that of the slots: index 0 is minor 1 here.
        assert_eq!(spec.devices[0].container_edits.device_nodes[0].path, "/dev/nvidia1");
        assert_eq!(spec.devices[4].container_edits.device_nodes.len(), 2);
        let edits = &spec.container_edits;
        assert!(edits.hooks.is_empty());
        assert_eq!(
            edits.device_nodes.iter().map(|node| node.path.as_str()).collect::<Vec<_>>(),
            ["/dev/nvidiactl", "/dev/nvidia-uvm"]
        );
        let inside: BTreeSet<&str> = edits.mounts.iter().map(|mount| mount.container_path.as_str()).collect();
        for place in LOADER_DIRS {
            for name in ["libcuda.so.580.1.2", "libcuda.so.1", "libnvidia-ml.so.580.1.2"] {
                assert!(inside.contains(format!("{place}/{name}").as_str()), "{place}/{name}: {inside:?}");
            }
            assert!(!inside.contains(format!("{place}/libcuda.so").as_str()));
            assert!(!inside.contains(format!("{place}/libc.so.6").as_str()));
        }
        assert!(inside.contains("/usr/bin/nvidia-smi"));
        assert!(inside.contains("/lib/firmware/nvidia/580.1.2/gsp_ga10x.bin"));
        assert!(!inside.iter().any(|path| path.contains("570")), "another driver's");
        assert_eq!(crate::cdi::validate::problems(&spec), Vec::<String>::new());
    }

    #[test]
    fn gpus_can_be_chosen_and_named_otherwise() {
        let host = Host::new();
        let names = vec![NameStrategy::TypeIndex];
        let options = Options { names, no_all_device: true, device_ids: vec!["GPU-b".into()], ..host.options() };
        let spec = generate(&options).unwrap();
        assert_eq!(spec.devices.len(), 1);
        assert_eq!(spec.devices[0].name, "gpu1");
        let unknown = Options { device_ids: vec!["7".into()], ..host.options() };
        assert_eq!(generate(&unknown), Err(PassthroughError::NoSuchGpu("7".into())));
    }

    #[test]
    fn a_gpu_that_is_cut_is_there_in_slices() {
        let host = Host::new();
        for (instance, minors) in [("gi9", [66, 67]), ("gi10", [75, 76])] {
            let dir = host.0.join("proc/driver/nvidia/capabilities/gpu0/mig").join(instance);
            fs::create_dir_all(dir.join("ci0")).unwrap();
            for (file, minor) in ["access", "ci0/access"].into_iter().zip(minors) {
                fs::write(dir.join(file), format!("DeviceFileMinor: {minor}\nDeviceFileMode: 292\n")).unwrap();
            }
        }
        let names = |spec: &Spec| spec.devices.iter().map(|device| device.name.clone()).collect::<Vec<_>>();
        let nodes = |device: &Device| {
            device.container_edits.device_nodes.iter().map(|node| node.path.clone()).collect::<Vec<_>>()
        };
        // GPU 1, by slot, is the one with minor 0.
        let spec = generate(&host.options()).unwrap();
        assert_eq!(names(&spec), ["0", "GPU-a", "1:0", "1:1", "all"]);
        let caps = |minor: u32| format!("/dev/nvidia-caps/nvidia-cap{minor}");
        assert_eq!(nodes(&spec.devices[2]), ["/dev/nvidia0".to_owned(), caps(66), caps(67)]);
        assert_eq!(nodes(&spec.devices[4]).len(), 6, "each node once");
        assert_eq!(crate::cdi::validate::problems(&spec), Vec::<String>::new());
        // NVML knows their UUIDs, and counts them in an order of its own.
        let slice = |index, gpu_instance| topology::Slice {
            index,
            uuid: format!("MIG-{gpu_instance}"),
            gpu_instance,
            ..topology::Slice::default()
        };
        let mig = Some(topology::Mig { enabled: true, slices: vec![slice(0, 10), slice(1, 9)] });
        let cut = vec![topology::Gpu { minor: Some(0), mig, ..topology::Gpu::default() }];
        let spec = generate(&Options { cut: cut.clone(), no_all_device: true, ..host.options() }).unwrap();
        assert_eq!(names(&spec), ["0", "GPU-a", "1:1", "MIG-9", "1:0", "MIG-10"]);
        let device_ids = vec!["MIG-10".to_owned()];
        let names_by_type = vec![NameStrategy::TypeIndex];
        let chosen = Options { cut, device_ids, names: names_by_type, no_all_device: true, ..host.options() };
        assert_eq!(names(&generate(&chosen).unwrap()), ["mig1:0"]);
        let whole = Options { device_ids: vec!["1".into()], ..host.options() };
        assert_eq!(generate(&whole), Err(PassthroughError::NoSuchGpu("1".into())));
    }

    #[test]
    fn a_host_without_a_gpu_or_driver_is_told_so() {
        let host = Host::new();
        fs::remove_file(host.0.join("dev/nvidia0")).unwrap();
        fs::remove_file(host.0.join("dev/nvidia1")).unwrap();
        assert!(matches!(generate(&host.options()), Err(PassthroughError::NoGpu(_))));
        fs::write(host.0.join("dev/nvidia3"), "").unwrap();
        fs::remove_file(host.0.join(&LOADER_DIRS[0][1..]).join("libcuda.so.580.1.2")).unwrap();
        assert!(matches!(generate(&host.options()), Err(PassthroughError::NoDriver(_))));
    }
}
