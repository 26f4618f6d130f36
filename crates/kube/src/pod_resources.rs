//! Which container has which device, from kubelet's pod-resources API: Allocate does not name the pod.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use control::zone::Labels;

use crate::api::pod_resources::ListPodResourcesRequest;
use crate::api::pod_resources::pod_resources_lister_client::PodResourcesListerClient;
use crate::sockets;

/// A node with hundreds of pods lists a few hundred kilobytes.
const MAX_LIST: usize = 16 << 20;

/// A pod's namespace and name, as `NAMESPACE/NAME`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct PodName {
    pub namespace: String,
    pub name: String,
}

impl std::str::FromStr for PodName {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.split_once('/') {
            Some((namespace, name)) if !namespace.is_empty() && !name.is_empty() && !name.contains('/') => {
                Ok(Self { namespace: namespace.to_owned(), name: name.to_owned() })
            }
            _ => Err("must be NAMESPACE/NAME"),
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum ListError {
    #[error("cannot use kubelet's pod-resources socket: {0}")]
    Socket(tonic::transport::Error),
    #[error("kubelet cannot list pods: {}", .0.message())]
    Refused(Box<tonic::Status>),
}

/// The containers of devices and claims.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Listing {
    /// All pods, those without any of our devices too.
    pub pods: BTreeSet<PodName>,
    pub devices: BTreeMap<(String, String), Labels>,
    /// By claim: its namespace and its name.
    pub claims: BTreeMap<(String, String), Vec<Labels>>,
}

pub async fn list(socket: &Path) -> Result<Listing, ListError> {
    let mut client = PodResourcesListerClient::new(sockets::channel(socket).map_err(ListError::Socket)?)
        .max_decoding_message_size(MAX_LIST);
    let answer = client.list(ListPodResourcesRequest {}).await;
    let answer = answer.map_err(|status| ListError::Refused(Box::new(status)))?.into_inner();
    let mut listing = Listing::default();
    for pod in answer.pod_resources {
        listing.pods.insert(PodName { namespace: pod.namespace.clone(), name: pod.name.clone() });
        for container in pod.containers {
            let labels =
                Labels { pod: pod.name.clone(), namespace: pod.namespace.clone(), container: container.name.clone() };
            for devices in container.devices {
                let of = |id: String| ((devices.resource_name.clone(), id), labels.clone());
                listing.devices.extend(devices.device_ids.into_iter().map(of));
            }
            for claim in container.dynamic_resources {
                let named = (claim.claim_namespace, claim.claim_name);
                listing.claims.entry(named).or_default().push(labels.clone());
            }
        }
    }
    Ok(listing)
}
