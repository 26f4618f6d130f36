//! Events for containerd, in the order in which things happened.
//!
//! The connection is our own and not that of the crate's publisher, which does not connect again to a containerd that
//! was restarted, and sends an event that failed behind those that came later.

use containerd_shim::event::Event;
use containerd_shim::protos::protobuf::MessageDyn;
use containerd_shim::protos::shim::event::Envelope;
use containerd_shim::protos::shim::events::ForwardRequest;
use containerd_shim::protos::shim_async::{Client, EventsClient};
use containerd_shim::protos::ttrpc::context;
use containerd_shim::util::{convert_to_any, timestamp};
use std::time::Duration;
use tokio::sync::mpsc;

/// How long a containerd that is gone is waited for, with each event.
const TRIES: u32 = 60;
const PAUSE: Duration = Duration::from_secs(1);
const FORWARD_TIMEOUT: i64 = Duration::from_secs(10).as_nanos() as i64;

/// An event and its topic.
type Published = (String, Box<dyn MessageDyn>);

#[derive(Clone)]
pub(super) struct Events(mpsc::UnboundedSender<Published>);

impl Events {
    pub(super) fn send(&self, event: impl Event) {
        let _ = self.0.send((event.topic(), Box::new(event)));
    }
}

/// Begins to publish to containerd at this address. One task does it all, so that an exit never overtakes a start.
pub(super) fn publish(address: &str, namespace: &str) -> Events {
    let (sender, mut receiver) = mpsc::unbounded_channel::<Published>();
    let address = match address.starts_with("unix://") {
        true => address.to_owned(),
        false => format!("unix://{address}"),
    };
    let namespace = namespace.to_owned();
    tokio::spawn(async move {
        let mut client = None;
        while let Some((topic, event)) = receiver.recv().await {
            match envelope(&topic, &namespace, event) {
                Ok(envelope) => forward(&mut client, &address, envelope).await,
                Err(error) => log::warn!("cannot encode event {topic}: {error}"),
            }
        }
    });
    Events(sender)
}

fn envelope(topic: &str, namespace: &str, event: Box<dyn MessageDyn>) -> containerd_shim::Result<Envelope> {
    let mut envelope = Envelope::new();
    envelope.set_topic(topic.to_owned());
    envelope.set_namespace(namespace.to_owned());
    envelope.set_timestamp(timestamp()?);
    envelope.set_event(convert_to_any(event)?);
    Ok(envelope)
}

/// Sends one event, over a new connection if the one that there was is of no use.
async fn forward(client: &mut Option<EventsClient>, address: &str, envelope: Envelope) {
    let mut request = ForwardRequest::new();
    let topic = envelope.topic.clone();
    request.set_envelope(envelope);
    let mut last = String::new();
    for _ in 0..TRIES {
        if client.is_none() {
            match Client::connect(address).await {
                Ok(connected) => *client = Some(EventsClient::new(connected)),
                Err(error) => last = error.to_string(),
            }
        }
        if let Some(connected) = client.as_ref() {
            match connected.forward(context::with_timeout(FORWARD_TIMEOUT), &request).await {
                Ok(_) => return,
                Err(error) => last = error.to_string(),
            }
            *client = None;
            // What failed may have been the old connection alone.
            if let Ok(connected) = Client::connect(address).await {
                *client = Some(EventsClient::new(connected));
                continue;
            }
        }
        tokio::time::sleep(PAUSE).await;
    }
    log::warn!("event {topic} is lost: {last}");
}

#[cfg(test)]
mod tests {
    use super::*;
    use async_trait::async_trait;
    use containerd_shim::api::Empty;
    use containerd_shim::protos::events::task::{TaskExit, TaskStart};
    use containerd_shim::protos::shim_async::{Events as EventsApi, create_events};
    use containerd_shim::protos::ttrpc::r#async::Server;
    use containerd_shim::{TtrpcContext, TtrpcResult};
    use std::sync::Arc;

    /// A containerd that takes events.
    struct Fake(mpsc::UnboundedSender<String>);

    #[async_trait]
    impl EventsApi for Fake {
        async fn forward(&self, _: &TtrpcContext, request: ForwardRequest) -> TtrpcResult<Empty> {
            let _ = self.0.send(request.envelope().topic.clone());
            Ok(Empty::new())
        }
    }

    async fn containerd(address: &str) -> (Server, mpsc::UnboundedReceiver<String>) {
        let (sender, receiver) = mpsc::unbounded_channel();
        let service = create_events(Arc::new(Fake(sender)));
        let mut server = Server::new().bind(address).unwrap().register_service(service);
        server.start().await.unwrap();
        (server, receiver)
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn events_reach_a_containerd_that_was_restarted() {
        let dir = testkit::directory();
        let path = dir.join("events.sock");
        let address = format!("unix://{}", path.display());
        let (mut server, mut topics) = containerd(&address).await;
        let events = publish(&path.display().to_string(), "k8s.io");
        events.send(TaskStart::new());
        assert_eq!(topics.recv().await.unwrap(), "/tasks/start");
        server.shutdown().await.unwrap();
        drop(server);
        let _ = std::fs::remove_file(&path);
        let (_server, mut topics) = containerd(&address).await;
        events.send(TaskStart::new());
        events.send(TaskExit::new());
        assert_eq!(topics.recv().await.unwrap(), "/tasks/start");
        assert_eq!(topics.recv().await.unwrap(), "/tasks/exit");
    }
}
