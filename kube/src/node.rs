//! What device plugin and DRA driver both must know of the node.

use std::path::Path;
use std::time::Duration;

use proxy::config::kubernetes::Kubernetes;
use proxy::config::{self, ConfigError};
use proxy::control::admin::CardStatus;

use crate::broker::{Broker, BrokerError};

/// What is kept of each GPU for the driver and for spare workers, where the configuration does not say.
const RESERVE: u64 = 2 << 30;

#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    #[error("{0}")]
    Config(ConfigError),
}

/// What the configuration says of Kubernetes.
pub fn load(path: Option<&Path>) -> Result<Kubernetes, NodeError> {
    let Some(path) = path else { return Ok(Kubernetes::default()) };
    Ok(config::load(path).map_err(NodeError::Config)?.kubernetes)
}

/// Memory of each GPU that is not handed out in parts.
pub fn reserve(config: &Kubernetes, soft: bool) -> u64 {
    config.reserve.unwrap_or(if soft { 0 } else { RESERVE })
}

/// What the node has.
pub struct Node {
    pub cards: Vec<CardStatus>,
    /// They are computed on the CPU.
    pub soft: bool,
}

/// Asks the broker; none while it looks at its GPUs, or has none.
pub async fn look(broker: &Broker) -> Result<Option<Node>, BrokerError> {
    let Some(cards) = broker.cards().await?.filter(|cards| !cards.is_empty()) else { return Ok(None) };
    let soft = broker.status().await?.backend == "soft";
    Ok(Some(Node { cards, soft }))
}

/// Waits for a proxy that has GPUs, and says from time to time what it waits for.
pub async fn wait(broker: &Broker) -> Node {
    const PAUSE: Duration = Duration::from_millis(200);
    const SAY_EVERY: u32 = 150;
    let mut attempt = 0u32;
    loop {
        let why = match look(broker).await {
            Ok(Some(node)) => return node,
            Ok(None) => "it does not know its GPUs yet".to_owned(),
            Err(error) => error.to_string(),
        };
        // The first second is nobody's business.
        if attempt % SAY_EVERY == 5 {
            tracing::warn!(why, "waiting for the proxy; this node offers nothing yet");
        }
        attempt = attempt.wrapping_add(1);
        tokio::time::sleep(PAUSE).await;
    }
}
