//! The device plugin: pods ask for resources, containers get zones.
//!
//! One loop watches everything that can change: kubelet (a restarted one has forgotten us), the broker (its health is that
//! of the devices), the configuration (an invalid one changes nothing), and kubelet's list of pods ([`reconciler`]). The
//! [`allocator`] hands devices out; a [`server`] for each resource talks to kubelet.

mod allocator;
mod reconciler;
mod server;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use control::ZoneName;
use control::admin::{CardStatus, Status};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::api::device_plugin as api;
use crate::api::device_plugin::device_plugin_server::DevicePluginServer;
use crate::api::device_plugin::registration_client::RegistrationClient;
use crate::broker::Broker;
use crate::cdi::SpecDir;
use crate::checkpoints::Checkpoints;
use crate::health::Health;
use crate::inject::Places;
use crate::offer::Part;
use crate::pod_resources::PodName;
use crate::policy::Policy;
use crate::source::{Plan, Source, SourceError};
use crate::zone_store::ZoneStore;
use crate::{node, pod_resources, sockets};
use allocator::{Allocator, PREFIX, Terms};
use server::Plugin;
use sockets::Identity;

/// The name by which probes ask.
pub const HEALTH: &str = "device-plugin";

/// How the names of our sockets begin in kubelet's directory.
pub const SOCKETS: &str = "bulkhead-";

/// How often to check whether kubelet has restarted.
const TICK: Duration = Duration::from_millis(500);
/// How often to check the broker and the configuration.
const CHECK_INTERVAL: Duration = Duration::from_secs(2);
/// How often to ask kubelet for its pods when nothing is new.
const RECONCILE_INTERVAL: Duration = Duration::from_secs(5);
/// A broker that is being replaced is away for a moment; devices become unhealthy only after this.
const UNHEALTHY_AFTER: Duration = Duration::from_secs(10);

/// Everything that the plugin needs to know, with paths as the host sees them.
#[derive(Debug, Clone)]
pub struct Options {
    pub config: Option<PathBuf>,
    pub admin_socket: PathBuf,
    pub places: Places,
    /// Where kubelet and plugins have their sockets.
    pub kubelet: PathBuf,
    pub pod_resources: PathBuf,
    pub cdi: PathBuf,
    /// Our checkpoints.
    pub checkpoints: PathBuf,
    /// The pod in which this plugin runs, where it runs in one.
    pub pod: Option<PodName>,
}

#[derive(Debug, thiserror::Error)]
pub enum PluginError {
    #[error(transparent)]
    Source(#[from] SourceError),
    #[error("cannot use {}", path.display())]
    Directory { path: PathBuf, source: io::Error },
}

/// One resource's socket, registered with kubelet.
struct PluginEndpoint {
    devices: watch::Sender<Vec<api::Device>>,
    socket: PathBuf,
    serving: JoinHandle<()>,
    bound: Option<Identity>,
}

struct Runner {
    options: Options,
    broker: Broker,
    allocator: Arc<Allocator>,
    terms: Terms,
    /// As the broker told of them last.
    cards: Vec<CardStatus>,
    source: Source,
    health: Health,
    endpoints: BTreeMap<String, PluginEndpoint>,
    kubelet: Option<Identity>,
    healthy: bool,
    last_ready: Instant,
}

/// Serves until `stop` is done.
pub async fn run(options: Options, stop: impl Future<Output = ()>) -> Result<(), PluginError> {
    tokio::pin!(stop);
    let health = Health::new();
    health.serve(HEALTH);
    let broker = Broker::new(options.admin_socket.clone());
    let mut source = Source::new(options.config.clone());
    // Report an invalid configuration before waiting for anything.
    source.check()?;
    let node = tokio::select! {
        node = node::wait(&broker, &mut source, &health) => node,
        () = &mut stop => return Ok(()),
    };
    let terms = Terms::from(source.read(&node)?);
    source.changed(&node);
    let cards = node.cards;
    let dir = |path: &PathBuf| {
        let path = path.clone();
        move |source| PluginError::Directory { path, source }
    };
    let checkpoints = Checkpoints::open(&options.checkpoints).map_err(dir(&options.checkpoints))?;
    let cdi = SpecDir::open(&options.cdi).map_err(dir(&options.cdi))?;
    let store = ZoneStore::open(broker.clone(), checkpoints, cdi, options.places.clone(), PREFIX);
    let store = store.map_err(dir(&options.checkpoints))?;
    let allocator = Arc::new(Allocator::new(store, terms.clone(), options.pod.clone()));
    let mut runner = Runner {
        options,
        broker,
        allocator,
        terms,
        cards,
        source,
        health,
        endpoints: BTreeMap::new(),
        kubelet: None,
        healthy: true,
        last_ready: Instant::now(),
    };
    tokio::select! {
        () = runner.go() => {}
        () = &mut stop => {}
    }
    runner.close();
    Ok(())
}

impl Runner {
    async fn go(&mut self) {
        // Pods whose zones are gone must get them back before we register with kubelet.
        let mut restored = false;
        let (mut next_check, mut next_reconcile) = (Instant::now(), Instant::now());
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut status = None;
        loop {
            ticks.tick().await;
            let now = Instant::now();
            if now >= next_check {
                next_check = now + CHECK_INTERVAL;
                status = self.check_broker(!restored).await.inspect(|_| restored = true);
                self.check_config().await;
            }
            if !restored {
                continue;
            }
            self.check_kubelet().await;
            self.tell_probes();
            if now >= next_reconcile
                && let Some(status) = &status
            {
                let all_known = self.reconcile_pods(status).await;
                next_reconcile = now + if all_known { RECONCILE_INTERVAL } else { TICK };
            }
        }
    }

    /// Checks health, and restores zones that the broker has lost. `rewrite`: also CDI files that exist.
    async fn check_broker(&mut self, rewrite: bool) -> Option<Status> {
        let status = match self.broker.status().await {
            Ok(status) => {
                let known: BTreeSet<ZoneName> = status.zones.iter().map(|zone| zone.name.clone()).collect();
                let restored = self.allocator.restore(&known, rewrite).await.map_err(|error| error.to_string());
                let enforced = self.terms.policy.enforce(&self.broker).await.map_err(|error| error.to_string());
                match restored.and(enforced) {
                    Ok(()) => Some(status),
                    Err(error) => {
                        tracing::warn!(error, "cannot restore zones; will retry");
                        None
                    }
                }
            }
            Err(error) => {
                tracing::debug!(%error, "proxy does not answer");
                None
            }
        };
        let ready = |status: &Status| status.ready && node::is_meant(status, self.source.soft);
        let ready = status.as_ref().is_some_and(ready);
        if ready {
            self.last_ready = Instant::now();
        }
        let healthy = ready || self.last_ready.elapsed() < UNHEALTHY_AFTER;
        if healthy != self.healthy {
            self.healthy = healthy;
            match healthy {
                true => tracing::info!("proxy is ready again; devices are healthy"),
                false => {
                    tracing::error!("proxy does not answer or cannot start workers; devices are unhealthy")
                }
            }
            self.publish();
        }
        status
    }

    async fn check_config(&mut self) {
        let Some(node) = node::gpus(&self.broker, self.source.soft).await else { return };
        if node.cards != self.cards {
            for (gpu, card) in node.cards.iter().enumerate() {
                let before = self.cards.get(gpu).and_then(|card| card.fault.as_ref());
                match &card.fault {
                    fault if fault.as_ref() == before => {}
                    Some(fault) => tracing::error!(gpu, uuid = card.uuid, fault, "devices of this GPU are unhealthy"),
                    None => tracing::info!(gpu, uuid = card.uuid, "devices of this GPU are healthy again"),
                }
            }
            self.cards.clone_from(&node.cards);
            self.publish();
        }
        let Some(terms) = self.source.reread(&node).map(Terms::from).filter(|terms| *terms != self.terms) else {
            return;
        };
        tracing::info!("configuration reloaded");
        self.terms = terms.clone();
        self.allocator.set_terms(terms).await;
        self.publish();
        // Register new resources with kubelet, and drop those that are gone.
        self.kubelet = None;
    }

    fn tell_probes(&self) {
        match (self.kubelet, self.healthy) {
            (Some(_), true) => self.health.ready(),
            (Some(_), false) => self.health.waiting("the proxy does not answer or cannot start workers"),
            (None, _) => self.health.waiting("not registered with kubelet"),
        }
    }

    /// Registers with a kubelet that does not know us, and again after it has removed our sockets.
    async fn check_kubelet(&mut self) {
        let kubelet = sockets::identity(&self.options.kubelet.join("kubelet.sock"));
        let Some(kubelet) = kubelet else {
            self.kubelet = None;
            return;
        };
        let gone = self.endpoints.values().any(|endpoint| sockets::identity(&endpoint.socket) != endpoint.bound);
        if self.kubelet == Some(kubelet) && !gone {
            return;
        }
        if self.kubelet.is_some_and(|known| known != kubelet) || gone {
            tracing::info!("kubelet restarted; registering again");
        }
        self.allocator.new_kubelet().await;
        match self.open_endpoints().await {
            Ok(()) => self.kubelet = Some(kubelet),
            Err(error) => {
                tracing::warn!(error, "cannot register with kubelet; will retry");
                self.kubelet = None;
            }
        }
    }

    async fn open_endpoints(&mut self) -> Result<(), String> {
        let wanted: Vec<String> = self.terms.resources.iter().map(|resource| resource.name.clone()).collect();
        self.endpoints.retain(|name, endpoint| {
            let keep = wanted.contains(name);
            if !keep {
                endpoint.close();
            }
            keep
        });
        for name in wanted {
            let endpoint = match self.endpoints.remove(&name) {
                Some(endpoint) if sockets::identity(&endpoint.socket) == endpoint.bound => endpoint,
                old => {
                    if let Some(old) = old {
                        old.serving.abort();
                    }
                    self.open_endpoint(&name).map_err(|error| format!("{name}: {error}"))?
                }
            };
            let socket_name = endpoint.socket.file_name().unwrap_or_default().to_string_lossy().into_owned();
            self.endpoints.insert(name.clone(), endpoint);
            self.register(&name, socket_name).await.map_err(|status| {
                let hint = match status.code() {
                    tonic::Code::Unimplemented => " (this kubelet speaks another version of the device plugin API)",
                    _ => "",
                };
                format!("{name}: {}{hint}", status.message())
            })?;
            tracing::info!(resource = name, "registered with kubelet");
        }
        Ok(())
    }

    fn open_endpoint(&self, name: &str) -> io::Result<PluginEndpoint> {
        let (devices, receiver) = watch::channel(self.devices(name));
        let plugin = Plugin { resource: name.to_owned(), allocator: self.allocator.clone(), devices: receiver };
        let socket = self.options.kubelet.join(format!("{SOCKETS}{}.sock", name.replace('/', "_")));
        let incoming = sockets::listen(&socket)?;
        let bound = sockets::identity(&socket);
        let serving = tokio::spawn(async move {
            let server = tonic::transport::Server::builder().add_service(DevicePluginServer::new(plugin));
            if let Err(error) = server.serve_with_incoming(incoming).await {
                tracing::error!(%error, "cannot serve kubelet");
            }
        });
        Ok(PluginEndpoint { devices, socket, serving, bound })
    }

    async fn register(&self, name: &str, endpoint: String) -> Result<(), Box<tonic::Status>> {
        let channel = sockets::channel(&self.options.kubelet.join("kubelet.sock"))
            .map_err(|error| Box::new(tonic::Status::unavailable(error.to_string())))?;
        let request = api::RegisterRequest {
            version: "v1beta1".to_owned(),
            endpoint,
            resource_name: name.to_owned(),
            options: Some(server::options()),
        };
        RegistrationClient::new(channel).register(request).await?;
        Ok(())
    }

    fn devices(&self, name: &str) -> Vec<api::Device> {
        let resource = self.terms.resources.iter().find(|resource| resource.name == name);
        let device = |(id, part): (&String, &Part)| {
            // A card that is told of no more is one that new terms will leave out.
            let card = self.cards.get(part.gpu);
            let healthy = self.healthy && card.is_none_or(|card| card.fault.is_none());
            let health = if healthy { "Healthy" } else { "Unhealthy" }.to_owned();
            let node = card.and_then(|card| card.numa_node);
            let topology = node.map(|node| api::TopologyInfo { nodes: vec![api::NumaNode { id: node.into() }] });
            api::Device { id: id.clone(), health, topology }
        };
        resource.into_iter().flat_map(|resource| &resource.devices).map(device).collect()
    }

    fn publish(&self) {
        for (name, endpoint) in &self.endpoints {
            endpoint.devices.send_replace(self.devices(name));
        }
    }

    /// Returns whether every zone's pod is known.
    async fn reconcile_pods(&self, status: &Status) -> bool {
        // A device may have been given to another pod by the time the list arrives.
        let known = self.allocator.zones().await;
        let listing = match pod_resources::list(&self.options.pod_resources).await {
            Ok(listing) => listing,
            Err(error) => {
                tracing::debug!(%error, "cannot list pod resources");
                return true;
            }
        };
        let clients: BTreeMap<&ZoneName, usize> =
            status.zones.iter().map(|zone| (&zone.name, zone.clients)).collect();
        self.allocator.reconcile(&listing, &known, |zone| clients.get(zone).copied().unwrap_or(0)).await
    }

    fn close(&mut self) {
        self.endpoints.values().for_each(PluginEndpoint::close);
    }
}

impl From<Plan> for Terms {
    fn from(plan: Plan) -> Self {
        let Plan { config, offer, .. } = plan;
        let policy = Policy::from(&config);
        Self { resources: offer.resources, spread: config.spread, mounts: config.mounts, policy }
    }
}

impl PluginEndpoint {
    fn close(&self) {
        self.serving.abort();
        if sockets::identity(&self.socket) == self.bound {
            let _ = std::fs::remove_file(&self.socket);
        }
    }
}
