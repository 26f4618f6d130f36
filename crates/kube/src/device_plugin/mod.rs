//! The device plugin: pods ask for resources, containers get zones.
//!
//! One loop looks at everything that can change: kubelet (a new one has forgotten us), the broker (its health is that of
//! the devices), the configuration (a wrong one changes nothing), and kubelet's list of pods ([`census`]). Handing out is
//! the [`desk`]'s; a [`server`] for each resource talks to kubelet.

mod census;
mod desk;
mod server;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use proxy::control::ZoneName;
use proxy::control::admin::Status;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::api::device_plugin as api;
use crate::api::device_plugin::device_plugin_server::DevicePluginServer;
use crate::api::device_plugin::registration_client::RegistrationClient;
use crate::books::Books;
use crate::broker::Broker;
use crate::cdi::SpecDir;
use crate::inject::Places;
use crate::keeper::Keeper;
use crate::policy::Policy;
use crate::source::{Plan, Source, SourceError};
use crate::{node, pod_resources, sockets};
use desk::{Desk, PREFIX, Terms};
use server::Plugin;
use sockets::Identity;

/// How the names of our sockets begin in kubelet's directory.
pub const SOCKETS: &str = "bulkhead-";

/// How often it is looked whether kubelet is a new one.
const TICK: Duration = Duration::from_millis(500);
/// How often broker and configuration are looked at.
const LOOK: Duration = Duration::from_secs(2);
/// How often kubelet is asked for its pods when nothing is new.
const CENSUS: Duration = Duration::from_secs(5);
/// A broker that is replaced is away for a moment; devices are ill only after this.
const ILL_AFTER: Duration = Duration::from_secs(10);

/// Everything that the plugin must know, with the places as the host names them.
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
    pub books: PathBuf,
}

#[derive(Debug, thiserror::Error)]
pub enum PluginError {
    #[error(transparent)]
    Source(#[from] SourceError),
    #[error("cannot use {}", path.display())]
    Directory { path: PathBuf, source: io::Error },
}

/// A resource on offer.
struct Stall {
    devices: watch::Sender<Vec<api::Device>>,
    socket: PathBuf,
    serving: JoinHandle<()>,
    bound: Option<Identity>,
}

struct Runner {
    options: Options,
    broker: Broker,
    desk: Arc<Desk>,
    terms: Terms,
    source: Source,
    stalls: BTreeMap<String, Stall>,
    kubelet: Option<Identity>,
    healthy: bool,
    heard: Instant,
}

/// Serves until `stop` is done.
pub async fn run(options: Options, stop: impl Future<Output = ()>) -> Result<(), PluginError> {
    tokio::pin!(stop);
    let broker = Broker::new(options.admin_socket.clone());
    let mut source = Source::new(options.config.clone());
    // A wrong configuration is said before anything is waited for.
    source.check()?;
    let node = tokio::select! {
        node = node::wait(&broker, &mut source) => node,
        () = &mut stop => return Ok(()),
    };
    let terms = Terms::from(source.read(&node)?);
    source.changed(&node);
    let dir = |path: &PathBuf| {
        let path = path.clone();
        move |source| PluginError::Directory { path, source }
    };
    let books = Books::open(&options.books).map_err(dir(&options.books))?;
    let cdi = SpecDir::open(&options.cdi).map_err(dir(&options.cdi))?;
    let keeper = Keeper::open(broker.clone(), books, cdi, options.places.clone(), PREFIX);
    let keeper = keeper.map_err(dir(&options.books))?;
    let desk = Arc::new(Desk::new(keeper, terms.clone()));
    let mut runner = Runner {
        options,
        broker,
        desk,
        terms,
        source,
        stalls: BTreeMap::new(),
        kubelet: None,
        healthy: true,
        heard: Instant::now(),
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
        // Pods whose zones are gone must have them back before kubelet hears of us.
        let mut whole = false;
        let (mut next_look, mut next_census) = (Instant::now(), Instant::now());
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut status = None;
        loop {
            ticks.tick().await;
            let now = Instant::now();
            if now >= next_look {
                next_look = now + LOOK;
                status = self.look_at_broker(!whole).await.inspect(|_| whole = true);
                self.look_at_config().await;
            }
            if !whole {
                continue;
            }
            self.look_at_kubelet().await;
            if now >= next_census
                && let Some(status) = &status
            {
                let named = self.look_at_pods(status).await;
                next_census = now + if named { CENSUS } else { TICK };
            }
        }
    }

    /// Health, and zones that the broker has lost. `anew`: our first look.
    async fn look_at_broker(&mut self, anew: bool) -> Option<Status> {
        let status = match self.broker.status().await {
            Ok(status) => {
                let known: BTreeSet<ZoneName> = status.zones.iter().map(|zone| zone.name.clone()).collect();
                let restored = self.desk.restore(&known, anew).await.map_err(|error| error.to_string());
                let enforced = self.terms.policy.enforce(&self.broker).await.map_err(|error| error.to_string());
                match restored.and(enforced) {
                    Ok(()) => Some(status),
                    Err(error) => {
                        tracing::warn!(error, "cannot restore zones yet");
                        None
                    }
                }
            }
            Err(error) => {
                tracing::debug!(%error, "the proxy does not answer");
                None
            }
        };
        let well = |status: &Status| status.ready && node::is_meant(status, self.source.soft);
        let well = status.as_ref().is_some_and(well);
        if well {
            self.heard = Instant::now();
        }
        let healthy = well || self.heard.elapsed() < ILL_AFTER;
        if healthy != self.healthy {
            self.healthy = healthy;
            match healthy {
                true => tracing::info!("the proxy answers again; devices are healthy"),
                false => {
                    tracing::error!("the proxy does not answer, or its workers do not start; devices are unhealthy")
                }
            }
            self.publish();
        }
        status
    }

    async fn look_at_config(&mut self) {
        let Some(node) = node::gpus(&self.broker, self.source.soft).await else { return };
        let Some(terms) = self.source.reread(&node).map(Terms::from).filter(|terms| *terms != self.terms) else {
            return;
        };
        tracing::info!("configuration read");
        self.terms = terms.clone();
        self.desk.set_terms(terms).await;
        self.publish();
        // What is new is made known to kubelet, and what is gone is not.
        self.kubelet = None;
    }

    /// Registers with a kubelet that does not know us, and again when it has removed our sockets.
    async fn look_at_kubelet(&mut self) {
        let kubelet = sockets::identity(&self.options.kubelet.join("kubelet.sock"));
        let Some(kubelet) = kubelet else {
            self.kubelet = None;
            return;
        };
        let gone = self.stalls.values().any(|stall| sockets::identity(&stall.socket) != stall.bound);
        if self.kubelet == Some(kubelet) && !gone {
            return;
        }
        if self.kubelet.is_some_and(|known| known != kubelet) || gone {
            tracing::info!("kubelet is a new one");
        }
        self.desk.new_kubelet().await;
        match self.open_stalls().await {
            Ok(()) => self.kubelet = Some(kubelet),
            Err(error) => {
                tracing::warn!(error, "cannot register with kubelet yet");
                self.kubelet = None;
            }
        }
    }

    async fn open_stalls(&mut self) -> Result<(), String> {
        let wanted: Vec<String> = self.terms.resources.iter().map(|resource| resource.name.clone()).collect();
        self.stalls.retain(|name, stall| {
            let keep = wanted.contains(name);
            if !keep {
                stall.close();
            }
            keep
        });
        for name in wanted {
            let stall = match self.stalls.remove(&name) {
                Some(stall) if sockets::identity(&stall.socket) == stall.bound => stall,
                old => {
                    if let Some(old) = old {
                        old.serving.abort();
                    }
                    self.open_stall(&name).map_err(|error| format!("{name}: {error}"))?
                }
            };
            let endpoint = stall.socket.file_name().unwrap_or_default().to_string_lossy().into_owned();
            self.stalls.insert(name.clone(), stall);
            self.register(&name, endpoint).await.map_err(|status| {
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

    fn open_stall(&self, name: &str) -> io::Result<Stall> {
        let (devices, receiver) = watch::channel(self.devices(name));
        let plugin = Plugin { resource: name.to_owned(), desk: self.desk.clone(), devices: receiver };
        let socket = self.options.kubelet.join(format!("{SOCKETS}{}.sock", name.replace('/', "_")));
        let incoming = sockets::listen(&socket)?;
        let bound = sockets::identity(&socket);
        let serving = tokio::spawn(async move {
            let server = tonic::transport::Server::builder().add_service(DevicePluginServer::new(plugin));
            if let Err(error) = server.serve_with_incoming(incoming).await {
                tracing::error!(%error, "cannot serve kubelet");
            }
        });
        Ok(Stall { devices, socket, serving, bound })
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
        let health = if self.healthy { "Healthy" } else { "Unhealthy" };
        let device = |id: &String| api::Device { id: id.clone(), health: health.to_owned(), topology: None };
        resource.into_iter().flat_map(|resource| resource.devices.keys()).map(device).collect()
    }

    fn publish(&self) {
        for (name, stall) in &self.stalls {
            stall.devices.send_replace(self.devices(name));
        }
    }

    /// Answers whether all zones have names.
    async fn look_at_pods(&self, status: &Status) -> bool {
        // A device may have been given to somebody else by the time that the list is here.
        let known = self.desk.zones().await;
        let listing = match pod_resources::list(&self.options.pod_resources).await {
            Ok(listing) => listing,
            Err(error) => {
                tracing::debug!(%error, "cannot ask who has which device");
                return true;
            }
        };
        let programs: BTreeMap<&ZoneName, usize> =
            status.zones.iter().map(|zone| (&zone.name, zone.clients)).collect();
        self.desk.look(&listing, &known, |zone| programs.get(zone).copied().unwrap_or(0)).await
    }

    fn close(&mut self) {
        self.stalls.values().for_each(Stall::close);
    }
}

impl From<Plan> for Terms {
    fn from(plan: Plan) -> Self {
        let Plan { config, offer, gpus, .. } = plan;
        let policy = Policy::from(&config);
        Self { resources: offer.resources, spread: config.spread, mounts: config.mounts, gpus, policy }
    }
}

impl Stall {
    fn close(&self) {
        self.serving.abort();
        if sockets::identity(&self.socket) == self.bound {
            let _ = std::fs::remove_file(&self.socket);
        }
    }
}
