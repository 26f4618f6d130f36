//! Where devices are handed out: one desk for all resources, one customer at a time.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use proxy::control::ZoneName;
use proxy::control::zone::{Labels, ZoneChange, ZoneSettings};
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::census::{Census, Finding};
use crate::api::device_plugin as api;
use crate::books::{Holder, Record};
use crate::cdi;
use crate::keeper::{KeepError, Keeper};
use crate::offer::{self, Resource, SeveralSlices};
use crate::pod_resources::Listing;
use crate::policy::Policy;

/// How every zone's name begins that the device plugin makes.
pub const PREFIX: &str = "plugin-";

#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    #[error("this node does not offer {0}")]
    UnknownResource(String),
    #[error("there is no device {0}")]
    UnknownDevice(String),
    #[error("a container may have only one {0} (failRequestsGreaterThanOne)")]
    OnlyOne(String),
    #[error(transparent)]
    SeveralSlices(#[from] SeveralSlices),
    #[error(transparent)]
    Keep(#[from] KeepError),
}

/// What is offered, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Terms {
    pub resources: Vec<Resource>,
    pub spread: bool,
    pub mounts: bool,
    /// How many GPUs the node has.
    pub gpus: usize,
    pub policy: Policy,
}

pub struct Desk {
    inside: Mutex<Inside>,
    opened: Instant,
}

struct Inside {
    keeper: Keeper,
    terms: Terms,
    census: Census,
}

impl Desk {
    pub fn new(keeper: Keeper, terms: Terms) -> Self {
        let inside = Inside { keeper, terms, census: Census::default() };
        Self { inside: Mutex::new(inside), opened: Instant::now() }
    }

    fn now(&self) -> Duration {
        self.opened.elapsed()
    }

    pub async fn set_terms(&self, terms: Terms) {
        self.inside.lock().await.terms = terms;
    }

    pub async fn prefer(
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

    /// Makes a zone for each container. Either all are made, or none is left.
    pub async fn allocate(
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
        inside.census.allocated();
        Ok(responses)
    }

    /// A kubelet has started.
    pub async fn new_kubelet(&self) {
        self.inside.lock().await.census.new_kubelet(self.now());
    }

    /// Makes zones again that should be there, and ends those that should not.
    pub async fn restore(&self, known: &BTreeSet<ZoneName>, anew: bool) -> Result<(), KeepError> {
        self.inside.lock().await.keeper.restore(known, anew).await
    }

    /// The zones that there are.
    pub async fn zones(&self) -> BTreeSet<ZoneName> {
        self.inside.lock().await.keeper.records().map(|record| record.zone.clone()).collect()
    }

    /// Takes note of what kubelet listed when there were only the zones that are `known`: of others it says nothing. Answers
    /// whether every zone has its pod's name.
    ///
    /// Whoever wants a device meanwhile waits for one zone at most: each is dealt with by itself.
    pub async fn look(
        &self,
        listing: &Listing,
        known: &BTreeSet<ZoneName>,
        programs: impl Fn(&ZoneName) -> usize,
    ) -> bool {
        let (ended, changed) = {
            let mut inside = self.inside.lock().await;
            let Inside { keeper, census, .. } = &mut *inside;
            let (mut ended, mut names) = (Vec::new(), BTreeMap::new());
            for finding in census.look(self.now(), listing, known, keeper.records(), programs) {
                match finding {
                    Finding::Ended(zone) => ended.push(zone),
                    Finding::Belongs(zone, labels) => drop(names.insert(zone, labels)),
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
        self.inside.lock().await.keeper.records().all(|record| !record.settings.labels.pod.is_empty())
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
        let mut settings = ZoneSettings::from(resource.limits_of(ids.len()));
        let gpus = ids.iter().filter_map(|id| resource.devices.get(id)).map(|part| part.number);
        settings.ties.gpus = offer::numbers(gpus, self.terms.gpus)?;
        // Kubelet gives a device to somebody else only when the one who had it is gone.
        let had = |record: &&Record| match &record.holder {
            Holder::Devices { resource, ids: others } => resource == name && others.iter().any(|id| ids.contains(id)),
            Holder::Claim { .. } => false,
        };
        let over: Vec<ZoneName> = self.keeper.records().filter(had).map(|record| record.zone.clone()).collect();
        for zone in over {
            tracing::info!(%zone, "its devices are handed out again");
            self.keeper.end(&zone).await?;
        }
        let zone = new_name(name);
        let holder = Holder::Devices { resource: name.to_owned(), ids };
        self.keeper.make(zone.clone(), settings, holder).await?;
        tracing::info!(%zone, resource = name, "zone allocated");
        Ok(zone)
    }

    /// Zones that get their pods' names, or what follows from the namespace since the configuration changed.
    fn changed(&self, names: &BTreeMap<ZoneName, Labels>) -> Vec<Record> {
        let changed = self.keeper.records().filter_map(|record| {
            let labels = names.get(&record.zone).unwrap_or(&record.settings.labels).clone();
            if labels.namespace.is_empty() {
                return None;
            }
            let ties = self.terms.policy.ties(&labels.namespace, &record.settings.ties);
            let settings = ZoneSettings { labels, ties, ..record.settings.clone() };
            (settings != record.settings).then(|| Record { settings, ..record.clone() })
        });
        changed.collect()
    }

    async fn settle(&mut self, record: Record) {
        // It may have ended since it was looked at.
        if self.keeper.record(&record.zone).is_none() {
            return;
        }
        let (zone, ZoneSettings { labels, ties, .. }) = (record.zone.clone(), record.settings.clone());
        let Labels { pod, namespace, container } = labels;
        let change = ZoneChange {
            pod: Some(pod.clone()),
            namespace: Some(namespace.clone()),
            container: Some(container.clone()),
            budgets: Some(ties.budgets),
            circles: Some(ties.circles),
            ..ZoneChange::default()
        };
        match self.keeper.change(record, change).await {
            Ok(()) => tracing::info!(%zone, namespace, pod, container, "zone's pod is known"),
            Err(error) => tracing::warn!(%zone, %error, "cannot tell the proxy whose zone it is"),
        }
    }

    fn response(&self, zone: &ZoneName) -> api::ContainerAllocateResponse {
        if self.terms.mounts {
            return self.keeper.places().response(zone);
        }
        let cdi_devices = vec![api::CdiDevice { name: cdi::device_name(zone) }];
        api::ContainerAllocateResponse { cdi_devices, ..Default::default() }
    }

    async fn end(&mut self, zone: &ZoneName) {
        match self.keeper.end(zone).await {
            Ok(()) => tracing::info!(%zone, "zone ended"),
            // It is in the books still, and is tried again at the next look.
            Err(error) => tracing::warn!(%zone, %error, "cannot end the zone yet"),
        }
    }
}

/// A name that no zone has had: a container that outlives its zone must not find another's under its name.
fn new_name(resource: &str) -> ZoneName {
    let tail = resource.rsplit('/').next().unwrap_or("gpu");
    let tail: String =
        tail.chars().filter(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '.')).take(32).collect();
    let mut random = [0; 6];
    // Only the kernel's own start-up can make this fail, long before there is a kubelet.
    let _ = rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty());
    format!("{PREFIX}{tail}-{}", hex::encode(random))
        .parse()
        .unwrap_or_else(|_| unreachable!("only fine characters are left"))
}
