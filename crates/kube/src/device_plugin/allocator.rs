//! Hands devices out: one allocator for all resources, one request at a time.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use control::ZoneName;
use control::zone::{Labels, ZoneChange, ZoneSettings};
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::reconciler::{Action, PodReconciler};
use crate::api::device_plugin as api;
use crate::cdi;
use crate::checkpoints::{Holder, Record};
use crate::offer::{self, Resource, SeveralInstances};
use crate::pod_resources::{Listing, PodName};
use crate::policy::Policy;
use crate::zone_store::{ZoneStore, ZoneStoreError};

/// The prefix of every zone that the device plugin creates.
pub(super) const PREFIX: &str = "plugin-";

#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    #[error("this node does not offer {0}")]
    UnknownResource(String),
    #[error("device {0} does not exist")]
    UnknownDevice(String),
    #[error("a container may have only one {0} (failRequestsGreaterThanOne)")]
    OnlyOne(String),
    #[error(transparent)]
    SeveralInstances(#[from] SeveralInstances),
    #[error(transparent)]
    Store(#[from] ZoneStoreError),
}

/// What is offered, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Terms {
    pub resources: Vec<Resource>,
    pub spread: bool,
    pub mounts: bool,
    pub policy: Policy,
}

pub(super) struct Allocator {
    inside: Mutex<Inside>,
    started: Instant,
}

struct Inside {
    store: ZoneStore,
    terms: Terms,
    reconciler: PodReconciler,
}

impl Allocator {
    /// `own`: the pod in which this plugin runs.
    pub(super) fn new(store: ZoneStore, terms: Terms, own: Option<PodName>) -> Self {
        let inside = Inside { store, terms, reconciler: PodReconciler::new(own) };
        Self { inside: Mutex::new(inside), started: Instant::now() }
    }

    fn now(&self) -> Duration {
        self.started.elapsed()
    }

    pub(super) async fn set_terms(&self, terms: Terms) {
        self.inside.lock().await.terms = terms;
    }

    pub(super) async fn prefer(
        &self,
        resource: &str,
        available: &[String],
        must: &[String],
        size: usize,
    ) -> Result<Vec<String>, Refusal> {
        let inside = self.inside.lock().await;
        let spread = inside.terms.spread;
        Ok(inside.resource(resource)?.prefer(available, must, size, spread))
    }

    /// Creates a zone for each container. Either all are created, or none is left.
    pub(super) async fn allocate(
        &self,
        resource: &str,
        wishes: Vec<Vec<String>>,
    ) -> Result<Vec<api::ContainerAllocateResponse>, Refusal> {
        let mut inside = self.inside.lock().await;
        let mut made: Vec<ZoneName> = Vec::new();
        let mut responses = Vec::new();
        for ids in wishes {
            match inside.hand_out(resource, ids).await {
                Ok(zone) => {
                    responses.push(inside.response(&zone));
                    made.push(zone);
                }
                Err(refusal) => {
                    for zone in made {
                        inside.end(&zone).await;
                    }
                    return Err(refusal);
                }
            }
        }
        inside.reconciler.allocated();
        Ok(responses)
    }

    /// Kubelet has restarted.
    pub(super) async fn new_kubelet(&self) {
        self.inside.lock().await.reconciler.new_kubelet(self.now());
    }

    /// Creates missing zones again, and ends those that nobody has.
    pub(super) async fn restore(&self, known: &BTreeSet<ZoneName>, rewrite: bool) -> Result<(), ZoneStoreError> {
        self.inside.lock().await.store.restore(known, rewrite).await
    }

    /// All zones of ours.
    pub(super) async fn zones(&self) -> BTreeSet<ZoneName> {
        self.inside.lock().await.store.records().map(|record| record.zone.clone()).collect()
    }

    /// Applies what kubelet listed when only the `known` zones existed: it says nothing about others. Returns whether every
    /// zone's pod is known.
    ///
    /// An allocation meanwhile waits for one zone at most, because zones are dealt with one by one.
    pub(super) async fn reconcile(
        &self,
        listing: &Listing,
        known: &BTreeSet<ZoneName>,
        clients: impl Fn(&ZoneName) -> usize,
    ) -> bool {
        let (ended, changed) = {
            let mut inside = self.inside.lock().await;
            let Inside { store, reconciler, .. } = &mut *inside;
            let (mut ended, mut names) = (Vec::new(), BTreeMap::new());
            for action in reconciler.reconcile(self.now(), listing, known, store.records(), clients) {
                match action {
                    Action::End(zone) => ended.push(zone),
                    Action::Label(zone, labels) => drop(names.insert(zone, labels)),
                }
            }
            (ended, inside.changed(&names))
        };
        for zone in ended {
            self.inside.lock().await.end(&zone).await;
        }
        for record in changed {
            self.inside.lock().await.settle(record).await;
        }
        self.inside.lock().await.store.records().all(|record| !record.settings.labels.pod.is_empty())
    }
}

impl Inside {
    fn resource(&self, name: &str) -> Result<&Resource, Refusal> {
        let found = self.terms.resources.iter().find(|resource| resource.name == name);
        found.ok_or_else(|| Refusal::UnknownResource(name.to_owned()))
    }

    async fn hand_out(&mut self, name: &str, ids: Vec<String>) -> Result<ZoneName, Refusal> {
        let resource = self.resource(name)?;
        if let Some(unknown) = ids.iter().find(|id| !resource.devices.contains_key(*id)) {
            return Err(Refusal::UnknownDevice(unknown.clone()));
        }
        if resource.single && ids.len() > 1 {
            return Err(Refusal::OnlyOne(name.to_owned()));
        }
        let parts: Vec<u32> = ids.iter().filter_map(|id| resource.devices.get(id)).map(|part| part.number).collect();
        let mut settings = resource.settings_of(&parts);
        settings.bindings.gpus = offer::numbers(parts.into_iter())?;
        // Kubelet gives a device to another container only after the one that had it is gone.
        let had = |record: &&Record| match &record.holder {
            Holder::Devices { resource, ids: others } => resource == name && others.iter().any(|id| ids.contains(id)),
            Holder::Claim { .. } => false,
        };
        let over: Vec<ZoneName> = self.store.records().filter(had).map(|record| record.zone.clone()).collect();
        for zone in over {
            tracing::info!(%zone, "ending zone: its devices are allocated again");
            self.store.end(&zone).await?;
        }
        let zone = new_name(name);
        let holder = Holder::Devices { resource: name.to_owned(), ids };
        self.store.make(zone.clone(), settings, holder).await?;
        tracing::info!(%zone, resource = name, "zone allocated");
        Ok(zone)
    }

    /// Zones whose pod became known, or whose namespace has another policy since the configuration changed.
    fn changed(&self, names: &BTreeMap<ZoneName, Labels>) -> Vec<Record> {
        let changed = self.store.records().filter_map(|record| {
            let labels = names.get(&record.zone).unwrap_or(&record.settings.labels).clone();
            if labels.namespace.is_empty() {
                return None;
            }
            let bindings = self.terms.policy.bindings(&labels.namespace, &record.settings.bindings);
            let settings = ZoneSettings { labels, bindings, ..record.settings.clone() };
            (settings != record.settings).then(|| Record { settings, ..record.clone() })
        });
        changed.collect()
    }

    async fn settle(&mut self, record: Record) {
        // It may have ended meanwhile.
        if self.store.record(&record.zone).is_none() {
            return;
        }
        let (zone, ZoneSettings { labels, bindings, .. }) = (record.zone.clone(), record.settings.clone());
        let Labels { pod, namespace, container } = labels;
        let change = ZoneChange {
            pod: Some(pod.clone()),
            namespace: Some(namespace.clone()),
            container: Some(container.clone()),
            budgets: Some(bindings.budgets),
            sharing_groups: Some(bindings.sharing_groups),
            ..ZoneChange::default()
        };
        match self.store.change(record, change).await {
            Ok(()) => tracing::info!(%zone, namespace, pod, container, "zone assigned to pod"),
            Err(error) => tracing::warn!(%zone, %error, "cannot set the zone's pod"),
        }
    }

    fn response(&self, zone: &ZoneName) -> api::ContainerAllocateResponse {
        if self.terms.mounts {
            return self.store.places().response(zone);
        }
        let cdi_devices = vec![api::CdiDevice { name: cdi::device_name(zone) }];
        api::ContainerAllocateResponse { cdi_devices, ..Default::default() }
    }

    async fn end(&mut self, zone: &ZoneName) {
        match self.store.end(zone).await {
            Ok(()) => tracing::info!(%zone, "zone ended"),
            // Its checkpoint is still there, so the next pass tries again.
            Err(error) => tracing::warn!(%zone, %error, "cannot end zone; will retry"),
        }
    }
}

/// A name that no zone has had: a container that outlives its zone must not find another one under its name.
fn new_name(resource: &str) -> ZoneName {
    let tail = resource.rsplit('/').next().unwrap_or("gpu");
    let tail: String =
        tail.chars().filter(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '.')).take(32).collect();
    let mut random = [0; 6];
    // This fails only while the kernel starts, long before there is a kubelet.
    let _ = rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty());
    format!("{PREFIX}{tail}-{}", hex::encode(random))
        .parse()
        .unwrap_or_else(|_| unreachable!("only valid characters are left"))
}
