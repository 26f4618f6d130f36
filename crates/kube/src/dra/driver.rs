//! Serves kubelet's DRA calls.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use control::ZoneName;
use k8s_openapi::api::resource::v1::ResourceClaim;
use kube::{Api, Client};
use tokio::sync::{Mutex, Notify};
use tonic::{Request, Response, Status};

use super::claims::{self, ClaimError, ClaimLimits, Prepared};
use super::{DRIVER, PREFIX, slices};
use crate::api::dra as api;
use crate::api::dra::dra_plugin_server::DraPlugin;
use crate::api::registration as reg;
use crate::api::registration::registration_server::Registration;
use crate::broker::{Broker, BrokerError};
use crate::cdi;
use crate::checkpoints::Holder;
use crate::offer::{self, SeveralInstances};
use crate::policy::Policy;
use crate::quantity;
use crate::zone_store::{ZoneStore, ZoneStoreError};

/// How long the API server may take to say what a claim was given. Kubelet waits for longer.
const READ_TIMEOUT: Duration = Duration::from_secs(15);
/// The same for a claim that is prepared already.
const CHECK_TIMEOUT: Duration = Duration::from_secs(2);

pub(super) struct Driver {
    pub client: Client,
    pub broker: Broker,
    pub policy: Arc<Mutex<Policy>>,
    pub store: Arc<Mutex<ZoneStore>>,
    pub node: String,
}

#[derive(Debug, thiserror::Error)]
enum PrepareError {
    #[error(transparent)]
    Claim(#[from] ClaimError),
    #[error("cannot read claim {name}: {error}")]
    Read { name: String, error: kube::Error },
    #[error("cannot read claim {0}: the API server does not answer")]
    NoAnswer(String),
    #[error(
        "claim {claim}: its devices were {before} when it was prepared and are {now}; delete the pods that use it"
    )]
    Changed { claim: String, before: String, now: String },
    #[error("claim {claim}: {wanted} of {device} is more than its {room}")]
    TooMuch { claim: String, wanted: String, device: String, room: String },
    #[error("claim {0} does not exist")]
    Gone(String),
    #[error("{0:?} is not a valid claim UID")]
    Uid(String),
    #[error("claim {claim}: device {device} is in pool {pool} of another node")]
    Elsewhere { claim: String, device: String, pool: String },
    #[error("the proxy has not probed its GPUs yet")]
    NoGpus,
    #[error("this node no longer has {0}")]
    NoSuchGpu(String),
    #[error(transparent)]
    SeveralInstances(#[from] SeveralInstances),
    #[error(transparent)]
    Broker(#[from] BrokerError),
    #[error(transparent)]
    Store(#[from] ZoneStoreError),
}

fn zone_of(uid: &str) -> Result<ZoneName, PrepareError> {
    format!("{PREFIX}{uid}").parse().map_err(|_| PrepareError::Uid(uid.to_owned()))
}

impl Driver {
    async fn prepare(&self, claim: &api::Claim) -> Result<Vec<api::Device>, PrepareError> {
        let zone = zone_of(&claim.uid)?;
        // One at a time, so that a claim that two pods start to use together is prepared once.
        let mut store = self.store.lock().await;
        let known = store.record(&zone).and_then(|record| match &record.holder {
            Holder::Claim { devices, .. } => Some(devices.clone()),
            Holder::Devices { .. } => None,
        });
        if let Some(devices) = known {
            self.check_unchanged(claim, &devices).await?;
            self.check_there(&devices).await?;
            // The broker may have lost it meanwhile.
            store.ensure(&zone).await?;
            return Ok(answer(&zone, &devices));
        }
        let read = self.read(claim, READ_TIMEOUT).await?.ok_or_else(|| PrepareError::Gone(claim.name.clone()))?;
        let terms = claims::terms(&read, &claim.uid)?;
        let devices = terms.prepared();
        if let Some(strange) = devices.iter().find(|device| device.pool != self.node) {
            return Err(PrepareError::Elsewhere {
                claim: claim.name.clone(),
                device: strange.device.clone(),
                pool: strange.pool.clone(),
            });
        }
        let wrong = |what| ClaimError::Wrong { claim: claim.name.clone(), what };
        let limits = terms.zone_limits().map_err(wrong)?;
        let numbers = self.gpus(claim, &limits).await?;
        let mut settings = limits.settings(&numbers);
        settings.labels.namespace = claim.namespace.clone();
        settings.bindings = self.policy.lock().await.bindings(&claim.namespace, &settings.bindings);
        settings.bindings.gpus = offer::numbers(numbers.into_values())?;
        // Each container is a zone of its own that draws on the claim.
        settings.bindings.split = true;
        let holder = Holder::Claim {
            namespace: claim.namespace.clone(),
            name: claim.name.clone(),
            uid: claim.uid.clone(),
            devices: devices.clone(),
        };
        store.make(zone.clone(), settings, holder).await?;
        tracing::info!(%zone, namespace = claim.namespace, claim = claim.name, "claim prepared");
        Ok(answer(&zone, &devices))
    }

    /// The claim, if there is one of this name.
    async fn read(&self, claim: &api::Claim, timeout: Duration) -> Result<Option<ResourceClaim>, PrepareError> {
        let api: Api<ResourceClaim> = Api::namespaced(self.client.clone(), &claim.namespace);
        let read = tokio::time::timeout(timeout, api.get_opt(&claim.name)).await;
        let read = read.map_err(|_| PrepareError::NoAnswer(claim.name.clone()))?;
        read.map_err(|error| PrepareError::Read { name: claim.name.clone(), error })
    }

    /// A claim that lost its devices and was given others has to be unprepared first: its zone is of the old ones. Where
    /// nobody knows better, what was prepared counts, so that pods start without an API server.
    async fn check_unchanged(&self, claim: &api::Claim, before: &[Prepared]) -> Result<(), PrepareError> {
        let Ok(Some(read)) = self.read(claim, CHECK_TIMEOUT).await else { return Ok(()) };
        match claims::devices(&read, &claim.uid) {
            Ok(now) if now != before => {
                Err(PrepareError::Changed { claim: claim.name.clone(), before: names(before), now: names(&now) })
            }
            _ => Ok(()),
        }
    }

    /// A zone whose GPU was taken out of the node would start and find nothing.
    async fn check_there(&self, devices: &[Prepared]) -> Result<(), PrepareError> {
        let Ok(Some(cards)) = self.broker.cards().await else { return Ok(()) };
        let there: BTreeSet<String> = (0..cards.len()).map(slices::device_name).collect();
        match devices.iter().find(|device| !there.contains(&device.device)) {
            Some(gone) => Err(PrepareError::NoSuchGpu(gone.device.clone())),
            None => Ok(()),
        }
    }

    /// The broker's numbers of a claim's devices.
    async fn gpus(&self, claim: &api::Claim, limits: &ClaimLimits) -> Result<BTreeMap<String, u32>, PrepareError> {
        let cards = self.broker.cards().await?.ok_or(PrepareError::NoGpus)?;
        let mut numbers = BTreeMap::new();
        for (device, limits) in &limits.devices {
            let found = cards.iter().enumerate().find(|(gpu, _)| slices::device_name(*gpu) == *device);
            let (_, card) = found.ok_or_else(|| PrepareError::NoSuchGpu(device.clone()))?;
            if let Some(wanted) = limits.memory.filter(|memory| *memory > card.memory) {
                return Err(PrepareError::TooMuch {
                    claim: claim.name.clone(),
                    wanted: quantity::of_bytes(wanted),
                    device: device.clone(),
                    room: quantity::of_bytes(card.memory),
                });
            }
            numbers.insert(device.clone(), card.number);
        }
        Ok(numbers)
    }

    async fn unprepare(&self, claim: &api::Claim) -> Result<(), PrepareError> {
        let zone = zone_of(&claim.uid)?;
        let mut store = self.store.lock().await;
        store.end(&zone).await?;
        tracing::info!(%zone, namespace = claim.namespace, claim = claim.name, "claim unprepared");
        Ok(())
    }
}

fn names(devices: &[Prepared]) -> String {
    devices.iter().map(|device| device.device.as_str()).collect::<Vec<_>>().join(", ")
}

fn answer(zone: &ZoneName, devices: &[Prepared]) -> Vec<api::Device> {
    let device = |device: &Prepared| api::Device {
        request_names: vec![device.request.clone()],
        pool_name: device.pool.clone(),
        device_name: device.device.clone(),
        cdi_device_ids: vec![cdi::device_name(zone)],
        share_id: device.share_id.clone(),
    };
    devices.iter().map(device).collect()
}

#[tonic::async_trait]
impl DraPlugin for Driver {
    async fn node_prepare_resources(
        &self,
        request: Request<api::NodePrepareResourcesRequest>,
    ) -> Result<Response<api::NodePrepareResourcesResponse>, Status> {
        let mut claims = HashMap::new();
        for claim in request.into_inner().claims {
            let response = match self.prepare(&claim).await {
                Ok(devices) => api::NodePrepareResourceResponse { devices, error: String::new() },
                Err(error) => {
                    tracing::error!(namespace = claim.namespace, claim = claim.name, %error, "cannot prepare claim");
                    api::NodePrepareResourceResponse { devices: Vec::new(), error: error.to_string() }
                }
            };
            claims.insert(claim.uid, response);
        }
        Ok(Response::new(api::NodePrepareResourcesResponse { claims }))
    }

    async fn node_unprepare_resources(
        &self,
        request: Request<api::NodeUnprepareResourcesRequest>,
    ) -> Result<Response<api::NodeUnprepareResourcesResponse>, Status> {
        let mut claims = HashMap::new();
        for claim in request.into_inner().claims {
            let error = self.unprepare(&claim).await.map_or_else(
                |error| {
                    tracing::error!(claim = claim.name, %error, "cannot unprepare claim");
                    error.to_string()
                },
                |()| String::new(),
            );
            claims.insert(claim.uid, api::NodeUnprepareResourceResponse { error });
        }
        Ok(Response::new(api::NodeUnprepareResourcesResponse { claims }))
    }
}

/// Serves kubelet's plugin registration.
pub(super) struct Registrar {
    pub endpoint: PathBuf,
    /// A kubelet that asks who we are may have removed our slices.
    pub wake: Arc<Notify>,
    /// Whether a kubelet has accepted us.
    pub registered: Arc<AtomicBool>,
}

#[tonic::async_trait]
impl Registration for Registrar {
    async fn get_info(&self, _: Request<reg::InfoRequest>) -> Result<Response<reg::PluginInfo>, Status> {
        Ok(Response::new(reg::PluginInfo {
            r#type: "DRAPlugin".to_owned(),
            name: DRIVER.to_owned(),
            endpoint: self.endpoint.to_string_lossy().into_owned(),
            supported_versions: vec!["v1.DRAPlugin".to_owned()],
        }))
    }

    async fn notify_registration_status(
        &self,
        request: Request<reg::RegistrationStatus>,
    ) -> Result<Response<reg::RegistrationStatusResponse>, Status> {
        let reg::RegistrationStatus { plugin_registered, error } = request.into_inner();
        self.registered.store(plugin_registered, Ordering::Relaxed);
        if plugin_registered {
            tracing::info!("registered with kubelet");
            self.wake.notify_one();
        } else {
            tracing::error!(error, "kubelet refused the registration; v1.DRAPlugin needs Kubernetes 1.34 or later");
        }
        Ok(Response::new(reg::RegistrationStatusResponse {}))
    }
}
