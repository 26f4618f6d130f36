//! Turns the configuration file and the node's GPUs into what the node offers.

use std::path::PathBuf;

use config::kubernetes::Kubernetes;

use crate::node::{self, Node, NodeError};
use crate::offer::{self, Offer, OfferError};
use crate::time_slicing::{self, TimeSlicingError};

#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    #[error(transparent)]
    Node(#[from] NodeError),
    #[error(transparent)]
    TimeSlicing(#[from] TimeSlicingError),
    #[error(transparent)]
    Offer(#[from] OfferError),
}

/// What the files say, for the GPUs of this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    pub config: Kubernetes,
    pub offer: Offer,
    /// Memory of each GPU that is not handed out in parts.
    pub reserve: u64,
}

/// The files that say what is offered.
pub struct Source {
    path: Option<PathBuf>,
    /// What they held, and for which GPUs they were read, when that was last looked at.
    seen: Option<(Vec<Option<String>>, Node)>,
    time_slicing: Option<PathBuf>,
    /// Offer software GPUs. Read once at the start.
    pub soft: bool,
}

impl Source {
    pub fn new(path: Option<PathBuf>) -> Self {
        Self { path, seen: None, time_slicing: None, soft: false }
    }

    /// Validates the file, as far as that does not depend on the node's GPUs.
    pub fn check(&mut self) -> Result<(), SourceError> {
        self.soft = node::means_soft(&node::load(self.path.as_deref())?);
        Ok(())
    }

    /// Whether a file or the node's GPUs have changed since the last call. The files of a ConfigMap are links, so their
    /// contents are compared; and a new proxy may find GPUs that were partitioned again.
    pub fn changed(&mut self, node: &Node) -> bool {
        let files = [self.path.as_ref(), self.time_slicing.as_ref()];
        let files = files.map(|file| file.and_then(|file| std::fs::read_to_string(file).ok())).to_vec();
        let mut node = node.clone();
        // What is offered does not depend on which GPUs work today.
        node.cards.iter_mut().for_each(|card| card.fault = None);
        let now = Some((files, node));
        let changed = self.seen != now;
        self.seen = now;
        changed
    }

    pub fn read(&mut self, node: &Node) -> Result<Plan, SourceError> {
        let config = node::load(self.path.as_deref())?.kubernetes;
        self.time_slicing = config.time_slicing.clone();
        let reserve = node::reserve(&config, node.soft);
        let least = node.cards.iter().map(|card| card.memory.saturating_sub(reserve)).min();
        let sliced = match &config.time_slicing {
            Some(path) => time_slicing::read(path, least.filter(|_| !config.time_slicing_unlimited))?,
            None => Vec::new(),
        };
        let offer = offer::cut(&config, &sliced, &node.cards, reserve)?;
        Ok(Plan { config, offer, reserve })
    }

    /// Reads the files again if something has changed. Logs what is invalid, and returns nothing then.
    pub fn reread(&mut self, node: &Node) -> Option<Plan> {
        if !self.changed(node) {
            return None;
        }
        match self.read(node) {
            Ok(plan) => Some(plan),
            Err(error) => {
                error.to_string().lines().for_each(|problem| tracing::error!(problem, "configuration"));
                tracing::error!("invalid configuration; keeping the previous one");
                None
            }
        }
    }
}
