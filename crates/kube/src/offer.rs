//! What a node offers: its GPUs, divided by profiles, as resources that pods request.

use std::collections::{BTreeMap, BTreeSet};

use config::kubernetes::{Kubernetes, Profile};
use control::admin::CardStatus;
use control::mig::Instance;
use control::zone::GpuLimits;
use control::{ZoneLimits, ZoneSettings};

/// Maximum number of devices of one resource.
const MAX_DEVICES: usize = 2048;

/// A resource that pods can request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resource {
    pub name: String,
    pub devices: BTreeMap<String, Part>,
    /// The limits of each device.
    pub limits: ZoneLimits,
    /// A container may have only one (`failRequestsGreaterThanOne`).
    pub single: bool,
}

/// A GPU, or a part of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// The place of the GPU among the broker's.
    pub gpu: usize,
    /// The number by which a zone names it.
    pub number: u32,
}

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum OfferError {
    #[error("{who}: GPU {gpu} does not exist (this node has {count})")]
    NoSuchGpu { who: String, gpu: u32, count: usize },
    #[error("GPU {gpu} is reserved for claims and used by profile {profile}; a GPU can be offered in one way only")]
    Twice { gpu: usize, profile: String },
    #[error("profile {profile}: {memory} does not fit on GPU {gpu}, which has {room}")]
    TooLarge { profile: String, memory: String, gpu: usize, room: String },
    #[error("GPU {gpu} is oversubscribed: profiles {profiles} need {taken}, it has {room}; set per_gpu or gpus")]
    Oversold { gpu: usize, profiles: String, taken: String, room: String },
    #[error("profile {profile} has no memory limit; set per_gpu to the number of devices per GPU")]
    NoCount { profile: String },
    #[error("{a} and {b} are both offered as {resource}")]
    SameResource { a: String, b: String, resource: String },
    #[error("{resource} would have more than {MAX_DEVICES} devices")]
    TooMany { resource: String },
}

/// A profile, and what only NVIDIA's files say about one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    pub profile: Profile,
    pub single: bool,
}

impl From<&Profile> for Wanted {
    fn from(profile: &Profile) -> Self {
        Self { profile: profile.clone(), single: false }
    }
}

/// How each GPU is offered: in one way only.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Offer {
    /// For pods that ask for resources.
    pub resources: Vec<Resource>,
    /// GPUs for claims.
    pub claims: BTreeSet<usize>,
}

/// Divides the GPUs. `extra`: more profiles; `reserve`: memory of each GPU that is not offered.
pub fn cut(config: &Kubernetes, extra: &[Wanted], cards: &[CardStatus], reserve: u64) -> Result<Offer, OfferError> {
    let wanted: Vec<Wanted> = config.profiles.iter().map(Wanted::from).chain(extra.iter().cloned()).collect();
    distinct(&wanted, config.whole_gpus.as_ref())?;
    let mut taken: BTreeMap<usize, Vec<(&str, u64)>> = BTreeMap::new();
    let mut resources = Vec::new();
    for Wanted { profile, single } in &wanted {
        let mut devices = BTreeMap::new();
        let fits = |gpu: &usize| match (&profile.mig, &cards[*gpu].mig) {
            (Some(wanted), instance) => instance.as_ref().is_some_and(|instance| instance.profile == *wanted),
            (None, _) => true,
        };
        for gpu in gpus_of(&profile.name, profile.gpus.as_deref(), cards.len())?.into_iter().filter(fits) {
            let card = &cards[gpu];
            let count = count_on(profile, gpu, card.memory.saturating_sub(reserve))?;
            let memory = profile.limits.memory.unwrap_or(0).saturating_mul(count.into());
            taken.entry(gpu).or_default().push((&profile.name, memory));
            devices
                .extend((0..count).map(|part| (format!("{}::{part}", card.uuid), Part { gpu, number: card.number })));
        }
        if devices.len() > MAX_DEVICES {
            return Err(OfferError::TooMany { resource: profile.resource.clone() });
        }
        let name = profile.resource.clone();
        resources.push(Resource { name, devices, limits: profile.limits, single: *single });
    }
    for (gpu, profiles) in &taken {
        let room = cards[*gpu].memory.saturating_sub(reserve);
        let sum = profiles.iter().fold(0u64, |sum, (_, memory)| sum.saturating_add(*memory));
        if sum > room {
            return Err(OfferError::Oversold {
                gpu: *gpu,
                profiles: profiles.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", "),
                taken: size(sum),
                room: size(room),
            });
        }
    }
    let free = |gpu: &usize| !taken.contains_key(gpu);
    let rest: BTreeSet<usize> = (0..cards.len()).filter(free).collect();
    let claims = match (&config.claims, &config.whole_gpus) {
        (Some(_), _) => gpus_of("claims", config.claims.as_deref(), cards.len())?,
        (None, None) => rest.clone(),
        (None, Some(_)) => BTreeSet::new(),
    };
    if let Some(gpu) = claims.iter().find(|gpu| !free(gpu)) {
        return Err(OfferError::Twice { gpu: *gpu, profile: taken[gpu][0].0.to_owned() });
    }
    if let Some(name) = &config.whole_gpus {
        let whole = rest
            .difference(&claims)
            .map(|gpu| (cards[*gpu].uuid.clone(), Part { gpu: *gpu, number: cards[*gpu].number }));
        let limits = ZoneLimits::default();
        resources.push(Resource { name: name.clone(), devices: whole.collect(), limits, single: false });
    }
    Ok(Offer { resources, claims })
}

/// Resource names must be unique.
fn distinct(wanted: &[Wanted], whole: Option<&String>) -> Result<(), OfferError> {
    let mut names: BTreeMap<&str, &str> = BTreeMap::new();
    let profiles = wanted.iter().map(|wanted| (wanted.profile.resource.as_str(), wanted.profile.name.as_str()));
    for (resource, profile) in profiles.chain(whole.map(|name| (name.as_str(), "whole_gpus"))) {
        if let Some(other) = names.insert(resource, profile) {
            let (a, b, resource) = (other.to_owned(), profile.to_owned(), resource.to_owned());
            return Err(OfferError::SameResource { a, b, resource });
        }
    }
    Ok(())
}

fn gpus_of(who: &str, gpus: Option<&[u32]>, count: usize) -> Result<BTreeSet<usize>, OfferError> {
    let Some(gpus) = gpus else { return Ok((0..count).collect()) };
    let known = |gpu: &u32| match usize::try_from(*gpu) {
        Ok(at) if at < count => Ok(at),
        _ => Err(OfferError::NoSuchGpu { who: who.to_owned(), gpu: *gpu, count }),
    };
    gpus.iter().map(known).collect()
}

fn count_on(profile: &Profile, gpu: usize, room: u64) -> Result<u32, OfferError> {
    match (profile.per_gpu, profile.limits.memory) {
        (Some(count), _) => Ok(count),
        (None, None) => Err(OfferError::NoCount { profile: profile.name.clone() }),
        (None, Some(memory)) => match u32::try_from(room / memory.max(1)).unwrap_or(u32::MAX).min(128) {
            0 => {
                let (memory, room) = (size(memory), size(room));
                Err(OfferError::TooLarge { profile: profile.name.clone(), memory, gpu, room })
            }
            count => Ok(count),
        },
    }
}

fn size(bytes: u64) -> String {
    control::size::Size(bytes).to_string()
}

/// Not possible: CUDA gives a process whole GPUs, or one instance.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("a container can use whole GPUs or one MIG instance, not several instances")]
pub struct SeveralInstances;

/// The GPUs that a zone is told of, by number; also where they are all that the node has today, lest the zone gets those
/// that it has tomorrow.
pub fn numbers(gpus: impl Iterator<Item = u32>) -> Result<Vec<u32>, SeveralInstances> {
    let numbers: BTreeSet<u32> = gpus.collect();
    if numbers.len() > 1 && numbers.iter().any(|number| Instance::of(*number).is_some()) {
        return Err(SeveralInstances);
    }
    Ok(numbers.into_iter().collect())
}

impl Resource {
    /// The settings of a container with parts of these GPUs, one number for each part: of each GPU as much as it has parts of
    /// it, of the host as much as all of them.
    pub fn settings_of(&self, parts: &[u32]) -> ZoneSettings {
        let narrow = |value: u64, most: u32| u32::try_from(value).unwrap_or(most).min(most);
        let on_gpu = |count: u64| GpuLimits {
            memory: self.limits.memory.map(|limit| limit.saturating_mul(count)),
            share: narrow(u64::from(self.limits.share) * count, control::zone::MAX_SHARE),
            cap: self.limits.cap.map(|cap| narrow(u64::from(cap) * count, 100)),
            priority: self.limits.priority,
        };
        let mut counts: BTreeMap<u32, u64> = BTreeMap::new();
        parts.iter().for_each(|gpu| *counts.entry(*gpu).or_default() += 1);
        let gpus = counts.into_iter().map(|(gpu, count)| (gpu, on_gpu(count))).collect();
        ZoneSettings::with_gpus(self.host_limits_of(parts.len()), &gpus)
    }

    fn host_limits_of(&self, parts: usize) -> ZoneLimits {
        let count = u64::try_from(parts).unwrap_or(1).max(1);
        let times = |limit: Option<u64>| limit.map(|limit| limit.saturating_mul(count));
        let narrow = |value: u64, most: u32| u32::try_from(value).unwrap_or(most).min(most);
        ZoneLimits {
            pinned: times(self.limits.pinned),
            host_memory: times(self.limits.host_memory),
            host_processes: times(self.limits.host_processes),
            // Of each client, whatever its zone has.
            graph_nodes: self.limits.graph_nodes,
            workers: self.limits.workers,
            suspend_memory: times(self.limits.suspend_memory),
            host_cpu: self
                .limits
                .host_cpu
                .map(|percent| narrow(u64::from(percent) * count, control::zone::MAX_HOST_CPU)),
            ..ZoneLimits::default()
        }
    }

    /// Which devices to prefer: those of one GPU together, and the fullest GPU first, or the emptiest.
    pub fn prefer(&self, available: &[String], must: &[String], size: usize, spread: bool) -> Vec<String> {
        let gpu_of = |id: &String| self.devices.get(id).map(|part| part.gpu);
        let mut chosen: Vec<String> = must.to_vec();
        let mut by_gpu: BTreeMap<usize, BTreeSet<&String>> = BTreeMap::new();
        for id in available.iter().filter(|id| !must.contains(id)) {
            if let Some(gpu) = gpu_of(id) {
                by_gpu.entry(gpu).or_default().insert(id);
            }
        }
        while chosen.len() < size {
            let left = size - chosen.len();
            let begun: BTreeSet<usize> = chosen.iter().filter_map(gpu_of).collect();
            // A GPU that the container has a part of already, then one on which all of the rest fits.
            let rank = |(gpu, ids): &(&usize, &BTreeSet<&String>)| {
                let many = ids.len() as isize;
                let full = if spread { -many } else { many };
                (!begun.contains(gpu), ids.len() < left, full, **gpu)
            };
            let Some(gpu) = by_gpu.iter().filter(|(_, ids)| !ids.is_empty()).min_by_key(rank).map(|(gpu, _)| *gpu)
            else {
                break;
            };
            chosen.extend(by_gpu.get_mut(&gpu).and_then(BTreeSet::pop_first).cloned());
        }
        chosen
    }
}

#[cfg(test)]
mod tests;
