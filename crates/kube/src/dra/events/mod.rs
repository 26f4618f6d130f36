//! Events on pods: who runs `kubectl describe pod` sees what the GPU had against it.
//!
//! They need the right to read pods, because an event names its pod by UID, and are off unless `--events` asks for them.

mod happened;

use std::time::Instant;

use control::admin::Status;
use control::zone::Labels;
use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use k8s_openapi::jiff::Timestamp;
use kube::api::PostParams;
use kube::{Api, Client};

use super::DRIVER;
use happened::{Happened, Watcher};

pub(super) struct Events {
    client: Client,
    node: String,
    started: Instant,
    watcher: Watcher,
}

impl Events {
    pub(super) fn new(client: Client, node: String) -> Self {
        Self { client, node, started: Instant::now(), watcher: Watcher::default() }
    }

    /// Says what is new. What the API server does not take is said no more: the metrics have it.
    pub(super) async fn tell(&mut self, status: &Status) {
        for happened in self.watcher.look(status, self.started.elapsed()) {
            let Labels { pod, namespace, .. } = happened.labels.clone();
            if let Err(error) = self.post(happened).await {
                tracing::warn!(namespace, pod, %error, "cannot create an event");
            }
        }
    }

    async fn post(&self, happened: Happened) -> Result<(), kube::Error> {
        let Labels { pod, namespace, .. } = &happened.labels;
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), namespace);
        // One that is gone has nobody who looks at it; one of its name that came after it had nothing to do with this, but
        // its zone would be another one.
        let Some(found) = pods.get_opt(pod).await? else { return Ok(()) };
        let event = event(&happened, found.metadata.uid, &self.node, Timestamp::now());
        let events: Api<Event> = Api::namespaced(self.client.clone(), namespace);
        events.create(&PostParams::default(), &event).await.map(drop)
    }
}

fn event(happened: &Happened, uid: Option<String>, node: &str, now: Timestamp) -> Event {
    let Labels { pod, namespace, container } = &happened.labels;
    let mut random = [0; 8];
    // This fails only while the kernel starts.
    let _ = rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty());
    // A pod's name may be as long as an event's.
    let name = format!("{}.{}", pod.chars().take(200).collect::<String>(), hex::encode(random));
    let text = |text: &str| Some(text.to_owned());
    Event {
        metadata: ObjectMeta { name: Some(name), namespace: Some(namespace.clone()), ..ObjectMeta::default() },
        involved_object: ObjectReference {
            api_version: text("v1"),
            kind: text("Pod"),
            name: Some(pod.clone()),
            namespace: Some(namespace.clone()),
            uid,
            // As kubelet writes it.
            field_path: (!container.is_empty()).then(|| format!("spec.containers{{{container}}}")),
            ..ObjectReference::default()
        },
        reason: text(happened.reason.name()),
        message: Some(happened.message.clone()),
        type_: text(if happened.reason.is_warning() { "Warning" } else { "Normal" }),
        count: Some(i32::try_from(happened.count).unwrap_or(i32::MAX)),
        first_timestamp: Some(Time(now)),
        last_timestamp: Some(Time(now)),
        source: Some(EventSource { component: text("bulkhead"), host: Some(node.to_owned()) }),
        reporting_component: text(DRIVER),
        reporting_instance: Some(node.to_owned()),
        ..Event::default()
    }
}
