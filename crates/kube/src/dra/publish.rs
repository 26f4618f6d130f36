//! Publishes the node's ResourceSlice. Kubelet removes it when it starts, and when this driver is not running.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use control::ZoneName;
use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceSlice, ResourceSliceSpec};
use kube::api::PostParams;
use kube::{Api, Client};
use tokio::sync::{Mutex, Notify, watch};
use tokio::time::Instant;

use super::claims::unlisted::{Unlisted, has_ended};
use super::events::Events;
use super::grants::held::Held;
use super::grants::report::Reporter;
use super::grants::{self, Grants};
use super::schedule::Schedule;
use super::{labels, slices};
use crate::broker::Broker;
use crate::checkpoints::Holder;
use crate::health::Health;
use crate::node::{self, Node};
use crate::pod_resources::{self, Listing};
use crate::policy::Policy;
use crate::source::{Plan, Source};
use crate::zone_store::ZoneStore;

/// How often the node's state is reconciled.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// At least between two looks at changed GpuShareGrants.
const GRANTS_PAUSE: Duration = Duration::from_secs(1);
const RESTORE_PAUSE: Duration = Duration::from_millis(500);
/// A broker that is being replaced is away for a moment; the slice is emptied only after so many checks without it.
const UNHEALTHY_AFTER: u32 = 3;
/// How long the API server may take to say what became of a claim, while others wait.
const CLAIM_TIMEOUT: Duration = Duration::from_secs(2);
/// For all events of a look: they are hints, and what follows is not to wait for an API server that hangs.
const EVENTS_TIMEOUT: Duration = Duration::from_secs(2);

pub(super) struct Publisher {
    pub client: Client,
    pub broker: Broker,
    pub store: Arc<Mutex<ZoneStore>>,
    pub node: String,
    pub source: Source,
    pub plan: Plan,
    pub policy: Arc<Mutex<Policy>>,
    pub grants: Grants,
    /// The cluster's GpuShareGrants; none until they are known.
    pub held: watch::Receiver<Option<Held>>,
    pub pod_resources: PathBuf,
    pub container_logs: PathBuf,
    pub wake: Arc<Notify>,
    pub health: Health,
    /// Whether a kubelet has accepted us.
    pub registered: Arc<AtomicBool>,
    pub started: Instant,
    pub schedule: Schedule<ResourceSliceSpec>,
    pub unlisted: Unlisted,
    /// Where events are wanted.
    pub reporter: Option<Reporter>,
    pub events: Option<Events>,
}

impl Publisher {
    /// Restores the zones of prepared claims; retries until that succeeds.
    pub(super) async fn restore(&self) {
        loop {
            match self.restore_once(true).await {
                Ok(()) => return,
                Err(error) => tracing::warn!(error, "cannot restore zones; will retry"),
            }
            tokio::time::sleep(RESTORE_PAUSE).await;
        }
    }

    async fn restore_once(&self, rewrite: bool) -> Result<(), String> {
        let status = self.broker.status().await.map_err(|error| error.to_string())?;
        let known: BTreeSet<ZoneName> = status.zones.into_iter().map(|zone| zone.name).collect();
        self.store.lock().await.restore(&known, rewrite).await.map_err(|error| error.to_string())
    }

    pub(super) async fn run(&mut self) {
        let mut away = 0;
        let mut last: Option<String> = None;
        loop {
            let node = match self.restore_once(false).await {
                Ok(()) => node::gpus(&self.broker, self.source.soft).await,
                Err(error) => {
                    tracing::debug!(error, "proxy does not answer");
                    None
                }
            };
            away = if node.is_some() { 0 } else { away + 1 };
            if let Some(plan) = node.as_ref().and_then(|node| self.source.reread(node)) {
                tracing::info!("configuration reloaded");
                *self.policy.lock().await = Policy::from(&plan.config);
                self.plan = plan;
            }
            if node.is_some() || away >= UNHEALTHY_AFTER {
                let said = self.publish_if_due(node.as_ref()).await.err();
                // Log the same error once.
                if let Some(error) = said.as_ref().filter(|_| said != last) {
                    tracing::warn!(error, "cannot publish ResourceSlice");
                }
                last = said;
            }
            self.tell_probes(away < UNHEALTHY_AFTER, last.as_deref());
            if node.is_some() {
                self.reconcile_pods().await;
            }
            let next = Instant::now() + CHECK_INTERVAL;
            loop {
                tokio::select! {
                    () = tokio::time::sleep_until(next) => break,
                    () = self.wake.notified() => {
                        self.schedule.registered(self.started.elapsed());
                        break;
                    }
                    Ok(()) = self.held.changed(), if node.is_some() => {}
                }
                self.reconcile_pods().await;
                // A user who changes objects all the time does not keep us busy with that.
                tokio::time::sleep(GRANTS_PAUSE).await;
            }
        }
    }

    fn tell_probes(&self, proxy: bool, unpublished: Option<&str>) {
        match unpublished {
            _ if !proxy => self.health.waiting("the proxy does not answer or has no GPUs"),
            Some(error) => self.health.waiting(&format!("cannot publish ResourceSlice: {error}")),
            None if !self.registered.load(Ordering::Relaxed) => self.health.waiting("not registered with kubelet"),
            None => self.health.ready(),
        }
    }

    /// Labels zones with their pods, sets the quotas of namespaces, applies grants, and ends the zones of claims that are
    /// elsewhere now.
    async fn reconcile_pods(&mut self) {
        let policy = self.policy.lock().await.clone();
        if let Err(error) = policy.enforce(&self.broker).await {
            tracing::warn!(%error, "cannot set quotas");
        }
        let listing = match pod_resources::list(&self.pod_resources).await {
            Ok(listing) => listing,
            // Without the list no grant changes.
            Err(error) => return tracing::debug!(%error, "cannot list pod resources"),
        };
        let Ok(status) = self.broker.status().await else { return };
        if let Some(events) = &mut self.events {
            let _ = tokio::time::timeout(EVENTS_TIMEOUT, events.tell(&status)).await;
        }
        let (names, subjects) = {
            let store = self.store.lock().await;
            let logs = labels::logs(&self.container_logs);
            let names = labels::wanted(&status, store.records(), &listing, &logs);
            (names, labels::subjects(&status, store.records(), &listing))
        };
        labels::tell(&self.broker, names).await;
        self.end_claims(&listing).await;
        // Before they are known none is revoked.
        let (wanted, remarks) = {
            let held = self.held.borrow_and_update();
            let Some(held) = held.as_ref() else { return };
            let now = self.started.elapsed();
            let remarks = self.reporter.as_mut().map(|reporter| reporter.due(now, held.named(), &subjects));
            (grants::wanted(held.iter(), &subjects), remarks)
        };
        if let Err(error) = self.grants.apply(&self.broker, &wanted).await {
            tracing::warn!(%error, "cannot apply grants");
        }
        if let (Some(reporter), Some(remarks)) = (&mut self.reporter, remarks) {
            let _ = tokio::time::timeout(EVENTS_TIMEOUT, reporter.say(&self.client, &self.node, remarks)).await;
        }
    }

    /// Ends the zones of claims that no pod of this node uses and that the API server has given to others since.
    async fn end_claims(&mut self, listing: &Listing) {
        // Held all the while: a claim that is being prepared is either there already, or read after us.
        let mut store = self.store.lock().await;
        let due: Vec<_> = self.unlisted.due(self.started.elapsed(), store.records(), listing);
        let due: Vec<_> = due.into_iter().cloned().collect();
        for record in due {
            let Holder::Claim { namespace, name, uid, devices } = &record.holder else { continue };
            let api: Api<ResourceClaim> = Api::namespaced(self.client.clone(), namespace);
            let read = match tokio::time::timeout(CLAIM_TIMEOUT, api.get_opt(name)).await {
                Ok(Ok(read)) => read,
                // Pods and their zones outlive an API server.
                Ok(Err(_)) | Err(_) => return,
            };
            if !has_ended(read.as_ref(), uid, devices) {
                continue;
            }
            match store.end(&record.zone).await {
                Ok(()) => {
                    tracing::info!(zone = %record.zone, namespace, claim = name, "zone ended: its claim is not of this node")
                }
                Err(error) => tracing::warn!(zone = %record.zone, %error, "cannot end zone; will retry"),
            }
        }
    }

    fn slice(&self, node: Option<&Node>, generation: i64) -> ResourceSlice {
        let cards = node.map_or(&[][..], |node| &node.cards);
        slices::slice(&self.node, cards, &self.plan.offer.claims, self.plan.reserve, generation)
    }

    async fn publish_if_due(&mut self, node: Option<&Node>) -> Result<(), String> {
        let (now, wanted) = (self.started.elapsed(), self.slice(node, 0).spec);
        if !self.schedule.is_due(now, &wanted) {
            return Ok(());
        }
        let published = self.publish(node).await;
        match published.is_ok() {
            true => self.schedule.published(now, wanted),
            false => self.schedule.failed(),
        }
        published
    }

    /// Publishes the GPUs for claims; none without a proxy.
    async fn publish(&self, node: Option<&Node>) -> Result<(), String> {
        let api: Api<ResourceSlice> = Api::all(self.client.clone());
        let name = slices::slice_name(&self.node);
        let there = api.get_opt(&name).await.map_err(|error| explain(&error))?;
        let generation = there.as_ref().map_or(1, |slice| slice.spec.pool.generation);
        let mut wanted = self.slice(node, generation);
        let gpus = wanted.spec.devices.as_ref().map_or(0, Vec::len);
        match there {
            None => {
                api.create(&PostParams::default(), &wanted).await.map_err(|error| explain(&error))?;
                tracing::info!(gpus, slice = name, "ResourceSlice created");
            }
            Some(there) if same(&there, &wanted) => {}
            Some(there) => {
                wanted = self.slice(node, generation + 1);
                wanted.metadata.resource_version = there.metadata.resource_version;
                api.replace(&name, &PostParams::default(), &wanted).await.map_err(|error| explain(&error))?;
                tracing::info!(gpus, slice = name, "ResourceSlice updated");
            }
        }
        Ok(())
    }
}

/// The API server adds nothing to our spec, so any difference is a real one.
fn same(there: &ResourceSlice, wanted: &ResourceSlice) -> bool {
    there.spec == wanted.spec
}

fn explain(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) if status.code == 404 => {
            format!("{status}; does this cluster have resource.k8s.io/v1 (Kubernetes 1.34)?")
        }
        error => error.to_string(),
    }
}
