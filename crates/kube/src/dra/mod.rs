//! The DRA driver: claims take memory and share of GPUs, and every container that uses a claim gets its zone.
//!
//! The scheduler decides from what [`slices`] publish; kubelet then asks for each claim to be prepared ([`driver`]), and
//! what the claim was given ([`claims`]) is what the broker enforces. A prepared claim has a checkpoint, so it
//! gets the same answer again after a restart, with or without an API server.

pub mod claims;
mod driver;
mod events;
mod grants;
mod labels;
mod publish;
mod schedule;
pub mod slices;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use kube::Client;
use tokio::sync::{Mutex, Notify};
use tokio::time::Instant;
use tonic::transport::Server;

use crate::api::dra::dra_plugin_server::DraPluginServer;
use crate::api::registration::registration_server::RegistrationServer;
use crate::broker::Broker;
use crate::cdi::SpecDir;
use crate::checkpoints::Checkpoints;
use crate::health::Health;
use crate::inject::Places;
use crate::node;
use crate::policy::Policy;
use crate::sockets;
use crate::source::{Source, SourceError};
use crate::zone_store::ZoneStore;
use claims::unlisted::Unlisted;
use driver::{Driver, Registrar};
use grants::Grants;
use grants::report::Reporter;
use schedule::Schedule;

/// The name by which classes and claims know us.
pub const DRIVER: &str = "gpu.bulkhead.dev";
/// The name by which probes ask.
pub const HEALTH: &str = "dra";
/// The prefix of every zone that belongs to a claim.
pub const PREFIX: &str = "claim-";

#[derive(Debug, Clone)]
pub struct Options {
    pub config: Option<PathBuf>,
    pub admin_socket: PathBuf,
    pub places: Places,
    pub node: String,
    /// Tell pods what happens to their zones, as events.
    pub events: bool,
    /// None: the one that pods have, or the usual one of a person.
    pub kubeconfig: Option<PathBuf>,
    /// Kubelet's directory in which it looks for drivers.
    pub registry: PathBuf,
    /// The directory for our own socket.
    pub plugin: PathBuf,
    pub pod_resources: PathBuf,
    /// Kubelet's directory with a link for each container's log.
    pub container_logs: PathBuf,
    pub cdi: PathBuf,
    pub checkpoints: PathBuf,
}

#[derive(Debug, thiserror::Error)]
pub enum DraError {
    #[error(transparent)]
    Source(#[from] SourceError),
    #[error("cannot use {}", path.display())]
    Directory { path: PathBuf, source: io::Error },
    #[error("another process has removed or replaced {}", .0.display())]
    Replaced(PathBuf),
    #[error("cannot talk to the API server: {0}")]
    Cluster(String),
}

/// The name of the socket at which kubelet finds us. Kubelet dials with the path as authority; what stands before an @ is not
/// looked at by the http library, which would refuse the rest.
pub fn registry_socket() -> String {
    format!("{DRIVER}@reg.sock")
}

/// Serves until `stop` is done.
pub async fn run(options: Options, stop: impl Future<Output = ()>) -> Result<(), DraError> {
    tokio::pin!(stop);
    let health = Health::new();
    health.serve(HEALTH);
    let dir = |path: &PathBuf| {
        let path = path.clone();
        move |source| DraError::Directory { path, source }
    };
    let client = client(options.kubeconfig.as_ref()).await?;
    let broker = Broker::new(options.admin_socket.clone());
    let mut source = Source::new(options.config.clone());
    // Report an invalid configuration before waiting for anything.
    source.check()?;
    let node = tokio::select! {
        node = node::wait(&broker, &mut source, &health) => node,
        () = &mut stop => return Ok(()),
    };
    let plan = source.read(&node)?;
    let policy = Arc::new(Mutex::new(Policy::from(&plan.config)));
    source.changed(&node);
    let checkpoints = Checkpoints::open(&options.checkpoints).map_err(dir(&options.checkpoints))?;
    let cdi = SpecDir::open(&options.cdi).map_err(dir(&options.cdi))?;
    let store = ZoneStore::open(broker.clone(), checkpoints, cdi, options.places.clone(), PREFIX);
    let store = Arc::new(Mutex::new(store.map_err(dir(&options.checkpoints))?));

    let wake = Arc::new(Notify::new());
    let registered = Arc::new(AtomicBool::new(false));
    let socket = options.plugin.join("dra.sock");
    std::fs::create_dir_all(&options.plugin).map_err(dir(&options.plugin))?;
    std::fs::create_dir_all(&options.registry).map_err(dir(&options.registry))?;
    let registry = options.registry.join(registry_socket());

    let (watcher, held) = grants::watch::Watcher::new(client.clone());
    let mut publisher = publish::Publisher {
        client: client.clone(),
        broker: broker.clone(),
        store: store.clone(),
        node: options.node.clone(),
        source,
        plan: plan.clone(),
        policy: policy.clone(),
        grants: Grants::open(&options.checkpoints),
        held,
        pod_resources: options.pod_resources.clone(),
        container_logs: options.container_logs.clone(),
        wake: wake.clone(),
        health,
        registered: registered.clone(),
        started: Instant::now(),
        schedule: Schedule::default(),
        unlisted: Unlisted::default(),
        reporter: options.events.then(Reporter::default),
        events: options.events.then(|| events::Events::new(client.clone(), options.node.clone())),
    };
    // Restore the zones of claims in use before kubelet learns of us.
    tokio::select! {
        () = publisher.restore() => {}
        () = &mut stop => return Ok(()),
    }
    let serve = |path: &PathBuf| {
        let bound = sockets::listen(path).map_err(dir(path))?;
        Ok::<_, DraError>((bound, sockets::Bound::new(path)))
    };
    let (driver_socket, driver_bound) = serve(&socket)?;
    let (registry_socket, registry_bound) = serve(&registry)?;
    let driver = DraPluginServer::new(Driver { client, broker, store, policy, node: options.node });
    let lost = socket.clone();
    let registrar = RegistrationServer::new(Registrar { endpoint: socket, wake, registered });
    tokio::select! {
        ended = Server::builder().add_service(driver).serve_with_incoming(driver_socket) => {
            ended.map_err(|error| DraError::Cluster(error.to_string()))
        }
        ended = Server::builder().add_service(registrar).serve_with_incoming(registry_socket) => {
            ended.map_err(|error| DraError::Cluster(error.to_string()))
        }
        () = publisher.run() => Ok(()),
        () = watcher.run() => Ok(()),
        // A driver that is being replaced takes them with it when it ends; who starts us again puts them back.
        () = driver_bound.until_lost() => Err(DraError::Replaced(lost)),
        () = registry_bound.until_lost() => Err(DraError::Replaced(registry)),
        () = &mut stop => Ok(()),
    }
}

async fn client(kubeconfig: Option<&PathBuf>) -> Result<Client, DraError> {
    let failed = |error: &dyn std::fmt::Display| DraError::Cluster(error.to_string());
    let config = match kubeconfig {
        Some(path) => {
            let file = kube::config::Kubeconfig::read_from(path).map_err(|error| failed(&error))?;
            kube::Config::from_custom_kubeconfig(file, &Default::default()).await.map_err(|error| failed(&error))?
        }
        None => kube::Config::infer().await.map_err(|error| failed(&error))?,
    };
    Client::try_from(config).map_err(|error| failed(&error))
}
