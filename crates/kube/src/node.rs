//! The node's GPUs, for the device plugin and the DRA driver.

use std::path::Path;
use std::time::Duration;

use config::kubernetes::Kubernetes;
use config::{self, ConfigError, File};
use control::admin::{CardStatus, Status};
use control::backend::Choice;

use crate::broker::{Broker, BrokerError};
use crate::health::Health;
use crate::source::Source;

/// What is kept of each GPU for the driver and for spare workers, where the configuration does not say.
const RESERVE: u64 = 2 << 30;

#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    #[error("{0}")]
    Config(ConfigError),
}

/// What the configuration says.
pub fn load(path: Option<&Path>) -> Result<File, NodeError> {
    let Some(path) = path else { return Ok(File::default()) };
    config::load(path).map_err(NodeError::Config)
}

/// Whether GPUs that are computed on the CPU are to be offered. A proxy that finds no driver falls back to them, and a
/// node without a GPU must not look like one that has some.
pub fn means_soft(file: &File) -> bool {
    file.backend == Some(Choice::Soft)
}

/// Whether the proxy has the GPUs that it should have.
pub fn is_meant(status: &Status, soft: bool) -> bool {
    soft || status.backend != "soft"
}

/// Memory of each GPU that is not handed out in parts.
pub fn reserve(config: &Kubernetes, soft: bool) -> u64 {
    config.reserve.unwrap_or(if soft { 0 } else { RESERVE })
}

/// What the node has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    pub cards: Vec<CardStatus>,
    /// They are computed on the CPU.
    pub soft: bool,
}

/// What the broker has to say of its GPUs.
pub enum Sight {
    Gpus(Node),
    /// It looks at them still, or has none.
    Nothing,
    /// It computes on the CPU, which nobody has asked for.
    OnlySoft,
}

/// Asks the broker. `soft`: what it computes on the CPU counts.
pub async fn look(broker: &Broker, soft: bool) -> Result<Sight, BrokerError> {
    let Some(cards) = broker.cards().await?.filter(|cards| !cards.is_empty()) else { return Ok(Sight::Nothing) };
    let status = broker.status().await?;
    if !is_meant(&status, soft) {
        return Ok(Sight::OnlySoft);
    }
    Ok(Sight::Gpus(Node { cards, soft: status.backend == "soft" }))
}

/// The GPUs that are to be offered now, if any.
pub async fn gpus(broker: &Broker, soft: bool) -> Option<Node> {
    match look(broker, soft).await {
        Ok(Sight::Gpus(node)) => Some(node),
        _ => None,
    }
}

/// Waits for a proxy that has GPUs, and says what it waits for: probes at once, the log from time to time.
pub async fn wait(broker: &Broker, source: &mut Source, health: &Health) -> Node {
    const PAUSE: Duration = Duration::from_millis(200);
    const SAY_EVERY: u32 = 150;
    let mut attempt = 0u32;
    loop {
        let why = match look(broker, source.soft).await {
            Ok(Sight::Gpus(node)) => return node,
            Ok(Sight::Nothing) => "it has not probed its GPUs yet".to_owned(),
            Ok(Sight::OnlySoft) => {
                // Who changes the file need not restart us. One that is wrong leaves all as it is.
                let _ = source.check();
                "it found no GPU and uses the software backend; set [proxy] backend = \"soft\" to offer that"
                    .to_owned()
            }
            Err(error) => error.to_string(),
        };
        health.waiting(&format!("waiting for the proxy: {why}"));
        // Do not log during the first second.
        if attempt % SAY_EVERY == 5 {
            tracing::warn!(why, "waiting for the proxy; this node offers no GPUs yet");
        }
        attempt = attempt.wrapping_add(1);
        tokio::time::sleep(PAUSE).await;
    }
}
