//! What the file says of Kubernetes. The broker has no use for it; `bulkhead device-plugin` and `bulkhead dra` do.

use std::path::PathBuf;

use super::limits;
use super::reader::Tables;
use control::ZoneLimits;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Kubernetes {
    /// The resource of whole GPUs; none where they are not handed out.
    pub whole_gpus: Option<String>,
    /// The GPUs of claims; none: those that nothing else has.
    pub claims: Option<Vec<u32>>,
    pub spread: bool,
    /// Containers get what they need by plain mounts, not by CDI.
    pub mounts: bool,
    pub reserve: Option<u64>,
    pub time_slicing: Option<PathBuf>,
    pub time_slicing_unlimited: bool,
    /// All pods of a namespace may open each other's memory.
    pub share_in_namespace: bool,
    pub profiles: Vec<Profile>,
    pub quotas: Vec<Quota>,
}

/// A part of a GPU that pods can ask for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Profile {
    pub name: String,
    pub resource: String,
    pub limits: ZoneLimits,
    /// None: as many as fit.
    pub per_gpu: Option<u32>,
    /// None: all.
    pub gpus: Option<Vec<u32>>,
    /// Only MIG instances of this size.
    pub mig: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Quota {
    pub namespace: String,
    pub memory: Option<u64>,
}

impl Kubernetes {
    pub(super) fn read(tables: &Tables) -> Self {
        let values = &tables.kubernetes;
        let says = |name: &str, word: &str| values.text(name) == Some(word);
        let profiles = tables.profiles.iter().map(|(name, values)| Profile {
            name: name.clone(),
            resource: values.text("resource").map_or_else(|| format!("bulkhead.dev/{name}"), str::to_owned),
            limits: limits(values, &ZoneLimits::default()),
            per_gpu: values.number("per_gpu").and_then(|count| u32::try_from(count).ok()),
            gpus: values.numbers("gpus"),
            mig: values.text("mig").map(str::to_owned),
        });
        let quotas = tables
            .quotas
            .iter()
            .map(|(namespace, values)| Quota { namespace: namespace.clone(), memory: values.number("memory") });
        Self {
            whole_gpus: values.text("whole_gpus").map(str::to_owned),
            claims: values.numbers("claims"),
            spread: says("placement", "spread"),
            mounts: says("injection", "mounts"),
            reserve: values.number("reserve"),
            time_slicing: values.text("time_slicing").map(PathBuf::from),
            time_slicing_unlimited: says("time_slicing_memory", "unlimited"),
            share_in_namespace: says("sharing", "namespace"),
            profiles: profiles.collect(),
            quotas: quotas.collect(),
        }
    }
}
