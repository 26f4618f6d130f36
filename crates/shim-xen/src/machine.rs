//! A pod's Xen domain.
//!
//! The order of a boot is that of what must not be left behind: directories and watchdog first, then the disk, then the
//! domain. Whatever fails on the way, `kill` and the watchdog remove what there is.

use crate::config::Config;
use crate::identity::Identity;
use crate::images::{self, Layers};
use crate::network;
use crate::remains::{self, Places};
use crate::roots::Roots;
use crate::size::DomainSize;
use crate::zone;
use agent::oci::Mount;
use agent::protocol::{Network, Root, RootMount};
use control::ZoneName;
use guest::domain::{self, Definition, Domain, Interface, Kind, Purpose, SCRATCH};
use guest::image;
use guest::link::host::{DomainWatch, HostEnd};
use guest::link::pump::{self, Reader, Writer};
use parking_lot::Mutex;
use rustix::fs::FlockOperation;
use shim::{Booted, Machine, MachineError, Pod};
use std::error::Error;
use std::fs::File;
use std::io;
use std::path::Path;
use std::process::Child;
use xen::store::Store;
use xen::sys::loop_device::{Access, LoopDevice};

/// Held from the look at Xen's free memory until the domain has it.
const MEMORY_LOCK: &str = "/run/bulkhead/pods/.memory";
/// Bytes that one grant frame covers.
const GRANT_FRAME: u64 = 2 << 20;
const FILE_SYSTEM: &str = "ext4";

pub(crate) struct XenMachine {
    /// From the start of a boot on.
    pod: Mutex<Option<Running>>,
}

struct Running {
    identity: Identity,
    config: Config,
    watchdog: Option<Child>,
    domain: Option<Domain>,
    scratch: Option<LoopDevice>,
    roots: Roots<LoopDevice>,
    zone: Option<ZoneName>,
}

fn failed(error: impl Into<Box<dyn Error + Send + Sync>>) -> MachineError {
    MachineError::Start(io::Error::other(error))
}

fn refused(error: &dyn Error) -> MachineError {
    MachineError::Refused(error.to_string())
}

impl Machine for XenMachine {
    const RUNTIME: &'static str = "io.containerd.bulkhead.v2";

    fn new() -> Self {
        Self { pod: Mutex::new(None) }
    }

    fn boot(&self, pod: &Pod) -> Result<Booted, MachineError> {
        let config = Config::load().map_err(failed)?;
        let mut held = self.pod.lock();
        if held.is_some() {
            return Err(MachineError::Refused("the pod's domain has been started already".into()));
        }
        let running = held.insert(Running {
            identity: Identity::of(&pod.namespace, &pod.id),
            config,
            watchdog: None,
            domain: None,
            scratch: None,
            roots: Roots::default(),
            zone: None,
        });
        match running.boot(pod) {
            Ok((from, to, pid, network)) => Ok(Booted { from: Box::new(from), to: Box::new(to), pid, network }),
            Err(error) => {
                if let Some(running) = held.take() {
                    running.end();
                }
                Err(error)
            }
        }
    }

    fn attach_root(&self, container: &str, mounts: &[RootMount]) -> Result<Root, MachineError> {
        let layers = Layers::of(mounts).map_err(|error| refused(&error))?;
        let cache = self.with(|running| Ok(running.config.directory.join("images")))?;
        // Without the lock: an image that is new here takes its time, and others may end the pod meanwhile.
        let image = images::disk(&cache, &layers).map_err(failed)?;
        let device = self.with(|running| running.attach(container, &image))?;
        Ok(Root::Layered { device, kind: FILE_SYSTEM.to_owned() })
    }

    fn detach_root(&self, container: &str) {
        let detached = self.with(|running| {
            let Some(name) = running.roots.leave(container) else { return Ok(()) };
            if let Some(domain) = &running.domain {
                domain.detach_disk(&name).map_err(failed)?;
            }
            running.roots.forget(&name);
            Ok(())
        });
        if let Err(error) = detached {
            log::warn!("container {container}: {error}");
        }
    }

    fn attach_zone(&self, zone: &ZoneName, mounts: Vec<Mount>) -> Result<Vec<Mount>, MachineError> {
        self.with(|running| {
            let domain = running.domain.as_ref().ok_or_else(gone)?.id();
            zone::admit(&mut running.zone, zone, domain)
        })?;
        Ok(zone::mounts(mounts))
    }

    fn kill(&self) {
        // Held until it is gone: who comes second goes on when there is nothing left.
        let mut held = self.pod.lock();
        if let Some(running) = held.take() {
            running.end();
        }
    }

    fn clean_up(namespace: &str, id: &str) {
        let config = Config::load().unwrap_or_default();
        if let Err(error) = remains::remove(&Identity::of(namespace, id), &config) {
            log::warn!("pod {id}: {error}");
        }
    }
}

fn gone() -> MachineError {
    MachineError::Refused("the pod's domain is gone".into())
}

impl XenMachine {
    fn with<T>(&self, call: impl FnOnce(&mut Running) -> Result<T, MachineError>) -> Result<T, MachineError> {
        call(self.pod.lock().as_mut().ok_or_else(gone)?)
    }
}

impl Running {
    fn boot(&mut self, pod: &Pod) -> Result<(Reader, Writer, u32, Option<Network>), MachineError> {
        let Self { identity, config, watchdog, domain, scratch: kept, .. } = self;
        let places = Places::of(identity, config);
        // Of one that had the same name and whose end nobody could see to.
        remains::remove(identity, config).map_err(failed)?;
        places.create().map_err(failed)?;
        let about = format!("{}\n{}\n{}\n", pod.namespace, pod.id, identity.uuid);
        std::fs::write(places.state.join("pod"), about).map_err(failed)?;
        let pid = watchdog.insert(remains::start_watchdog(&pod.namespace, &pod.id).map_err(failed)?).id();

        let file = places.disks.join("scratch.ext4");
        images::scratch(&file, config.scratch).map_err(failed)?;
        let scratch = LoopDevice::attach_for(&file, Access::Write).map_err(failed)?;
        let mut store = Store::open().map_err(failed)?;
        let host = store.read_text("domid").ok().flatten().and_then(|text| text.parse().ok()).unwrap_or(0);
        let interface = pod.network.as_deref().map(network::find).transpose().map_err(failed)?.flatten();
        let size = DomainSize::of(pod, config);
        let definition = Definition {
            name: &identity.name,
            uuid: Some(&identity.uuid),
            purpose: Purpose::Pod {
                scratch: scratch.path(),
                script: &config.block_script,
                interface: interface
                    .as_ref()
                    .map(|interface| Interface { mac: &interface.network.mac, script: &config.network_script }),
            },
            kind: Kind::best().map_err(failed)?,
            kernel: &config.image.join(image::KERNEL),
            root: &config.image.join(image::ROOT),
            disk: None,
            memory: size.memory,
            vcpus: size.vcpus,
            host,
            grant_frames: u32::try_from(config.shared_memory.div_ceil(GRANT_FRAME)).unwrap_or(u32::MAX),
        };
        let created = create(&definition, size, &places)?;
        *kept = Some(scratch);
        let domain = domain.insert(created);
        domain.unpause().map_err(failed)?;
        if let (Some(namespace), Some(interface)) = (&pod.network, &interface) {
            network::join(namespace, interface, domain.id()).map_err(failed)?;
        }
        let end = HostEnd::connect(&mut store, domain, config.boot_timeout).map_err(failed)?;
        let watch = DomainWatch::new(store, domain.id()).map_err(failed)?;
        let (from, to) = pump::split(end, watch).map_err(failed)?;
        Ok((from, to, pid, interface.map(|interface| interface.network)))
    }

    /// The name of the disk that has the image, attached if it is not there yet.
    fn attach(&mut self, container: &str, image: &Path) -> Result<String, MachineError> {
        if let Some(name) = self.roots.join(container, image) {
            return Ok(name);
        }
        let name = self.roots.free().map_err(|error| refused(&error))?;
        debug_assert_ne!(name, SCRATCH);
        let device = LoopDevice::attach(image).map_err(failed)?;
        let domain = self.domain.as_ref().ok_or_else(gone)?;
        domain.attach_disk(&name, device.path(), &self.config.block_script).map_err(failed)?;
        self.roots.add(name.clone(), container, image.to_owned(), device);
        Ok(name)
    }

    /// Ends the domain and removes everything.
    fn end(mut self) {
        // First the domain, then what it uses.
        drop(self.domain.take());
        drop(self.scratch.take());
        drop(std::mem::take(&mut self.roots));
        let removed = remains::remove(&self.identity, &self.config);
        let Some(mut watchdog) = self.watchdog.take() else { return };
        match removed {
            Ok(()) => {
                let _ = watchdog.kill();
                let _ = watchdog.wait();
            }
            // It tries again, and goes on to when this process has ended.
            Err(error) => log::warn!("{}: {error}", self.identity.name),
        }
    }
}

/// Makes the domain, if the hypervisor has room for it. One at a time: what is free is not promised to two.
fn create(definition: &Definition, size: DomainSize, places: &Places) -> Result<Domain, MachineError> {
    let lock = File::options().create(true).append(true).open(MEMORY_LOCK).map_err(failed)?;
    rustix::fs::flock(&lock, FlockOperation::LockExclusive).map_err(|error| failed(io::Error::from(error)))?;
    size.check(domain::free_memory().map_err(failed)?).map_err(|error| refused(&error))?;
    places.expect_domain().map_err(failed)?;
    Domain::create(definition, &places.state).map_err(failed)
}
