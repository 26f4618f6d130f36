//! Serves kubelet's DRA calls.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use control::{ZoneName, ZoneSettings};
use k8s_openapi::api::resource::v1::ResourceClaim;
use kube::{Api, Client};
use tokio::sync::{Mutex, Notify};
use tonic::{Request, Response, Status};

use super::claims::{self, ClaimError, Prepared};
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
use crate::zone_store::{ZoneStore, ZoneStoreError};

pub struct Driver {
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
            // The broker may have lost it meanwhile.
            store.ensure(&zone).await?;
            return Ok(answer(&zone, &devices));
        }
        let api: Api<ResourceClaim> = Api::namespaced(self.client.clone(), &claim.namespace);
        let read = api.get_opt(&claim.name).await;
        let read = read.map_err(|error| PrepareError::Read { name: claim.name.clone(), error })?;
        let read = read.ok_or_else(|| PrepareError::Gone(claim.name.clone()))?;
        let terms = claims::terms(&read, &claim.uid)?;
        if let Some(strange) = terms.devices.iter().find(|device| device.pool != self.node) {
            return Err(PrepareError::Elsewhere {
                claim: claim.name.clone(),
                device: strange.device.clone(),
                pool: strange.pool.clone(),
            });
        }
        let mut settings = ZoneSettings::from(terms.limits);
        settings.labels.namespace = claim.namespace.clone();
        settings.bindings = self.policy.lock().await.bindings(&claim.namespace, &settings.bindings);
        settings.bindings.gpus = self.gpus(&terms.devices).await?;
        // Each container is a zone of its own that draws on the claim.
        settings.bindings.split = true;
        let holder = Holder::Claim {
            namespace: claim.namespace.clone(),
            name: claim.name.clone(),
            uid: claim.uid.clone(),
            devices: terms.devices.clone(),
        };
        store.make(zone.clone(), settings, holder).await?;
        tracing::info!(%zone, namespace = claim.namespace, claim = claim.name, "claim prepared");
        Ok(answer(&zone, &terms.devices))
    }

    /// The GPUs of a claim, by the broker's numbers.
    async fn gpus(&self, devices: &[Prepared]) -> Result<Vec<u32>, PrepareError> {
        let cards = self.broker.cards().await?.ok_or(PrepareError::NoGpus)?;
        let number = |name: &str| {
            let found = cards.iter().enumerate().find(|(gpu, _)| slices::device_name(*gpu) == name);
            found.map(|(_, card)| card.number).ok_or_else(|| PrepareError::NoSuchGpu(name.to_owned()))
        };
        let numbers: Vec<u32> = claims::gpus(devices).into_iter().map(number).collect::<Result<_, _>>()?;
        Ok(offer::numbers(numbers.into_iter(), cards.len())?)
    }

    async fn unprepare(&self, claim: &api::Claim) -> Result<(), PrepareError> {
        let zone = zone_of(&claim.uid)?;
        let mut store = self.store.lock().await;
        store.end(&zone).await?;
        tracing::info!(%zone, namespace = claim.namespace, claim = claim.name, "claim unprepared");
        Ok(())
    }
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
pub struct Registrar {
    pub endpoint: PathBuf,
    /// A kubelet that asks who we are may have removed our slices.
    pub wake: Arc<Notify>,
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
        if plugin_registered {
            tracing::info!("registered with kubelet");
            self.wake.notify_one();
        } else {
            tracing::error!(error, "kubelet refused the registration; v1.DRAPlugin needs Kubernetes 1.34 or later");
        }
        Ok(Response::new(reg::RegistrationStatusResponse {}))
    }
}
