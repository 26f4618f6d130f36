//! What the namespace of a pod means for its zone: the quota that it draws on, and the sharing group that it is in.

use std::collections::BTreeMap;

use config::kubernetes::Kubernetes;
use control::zone::ZoneBindings;

use crate::broker::{Broker, BrokerError};

/// The prefix of namespaces' budgets and sharing groups.
const PREFIX: &str = "namespace.";

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Policy {
    /// All pods of a namespace may open each other's memory.
    share_in_namespace: bool,
    /// Memory of all zones of a namespace.
    quotas: BTreeMap<String, u64>,
}

impl From<&Kubernetes> for Policy {
    fn from(config: &Kubernetes) -> Self {
        let quotas = config.quotas.iter().filter_map(|quota| Some((quota.namespace.clone(), quota.memory?)));
        Self { share_in_namespace: config.share_in_namespace, quotas: quotas.collect() }
    }
}

impl Policy {
    /// The bindings of a zone in a namespace; other bindings stay as they are.
    pub fn bindings(&self, namespace: &str, known: &ZoneBindings) -> ZoneBindings {
        let name = format!("{PREFIX}{namespace}");
        let sharing_groups = if self.share_in_namespace { vec![name.clone()] } else { Vec::new() };
        ZoneBindings { budgets: vec![name], sharing_groups, ..known.clone() }
    }

    /// Sets the quotas in the broker, and removes those that are no longer configured.
    pub async fn enforce(&self, broker: &Broker) -> Result<(), BrokerError> {
        let known = broker.budgets().await?;
        let wanted: BTreeMap<String, u64> =
            self.quotas.iter().map(|(namespace, memory)| (format!("{PREFIX}{namespace}"), *memory)).collect();
        for (name, memory) in &wanted {
            if known.get(name) != Some(memory) {
                broker.set_budget(name, Some(*memory)).await?;
            }
        }
        for name in known.keys().filter(|name| name.starts_with(PREFIX) && !wanted.contains_key(*name)) {
            broker.set_budget(name, None).await?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_is_a_budget_and_a_sharing_group_only_if_configured() {
        let known = ZoneBindings { gpus: vec![1], split: true, ..ZoneBindings::default() };
        let apart = Policy::default().bindings("a", &known);
        assert_eq!((apart.budgets, apart.sharing_groups), (vec!["namespace.a".to_owned()], vec![]));
        let together = Policy { share_in_namespace: true, ..Policy::default() }.bindings("a", &known);
        assert_eq!(
            (together.sharing_groups, together.gpus, together.split),
            (vec!["namespace.a".to_owned()], vec![1], true)
        );
    }
}
