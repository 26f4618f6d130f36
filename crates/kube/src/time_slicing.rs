//! Reads the time-slicing part of the configuration of NVIDIA's device plugin: each entry becomes a profile.
//!
//! ```yaml
//! version: v1
//! sharing:
//!   timeSlicing:
//!     renameByDefault: false
//!     failRequestsGreaterThanOne: false
//!     resources:
//!     - name: nvidia.com/gpu
//!       replicas: 10
//! ```
//!
//! Some write `replicas` directly under `timeSlicing`, without `resources`: that is of `nvidia.com/gpu`. What is not understood
//! there is an error: a node that silently offers something else is worse.

use std::path::{Path, PathBuf};

use config::kubernetes::Profile;
use control::ZoneLimits;
use serde::Deserialize;

use crate::offer::Wanted;

/// What pods ask for where nothing else is said.
const GPU: &str = "nvidia.com/gpu";

#[derive(Debug, thiserror::Error)]
pub enum TimeSlicingError {
    #[error("{}: {error}", path.display())]
    Unreadable { path: PathBuf, error: std::io::Error },
    #[error("{}: {error}", path.display())]
    Syntax { path: PathBuf, error: Box<serde_saphyr::Error> },
    #[error("{}: {what}", path.display())]
    Wrong { path: PathBuf, what: String },
}

#[derive(Deserialize)]
struct File {
    version: String,
    #[serde(default)]
    sharing: Sharing,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Sharing {
    #[serde(default)]
    time_slicing: TimeSlicing,
    /// Their plugin has replicas that MPS serves, too.
    #[serde(default)]
    mps: Option<serde_json::Value>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
struct TimeSlicing {
    rename_by_default: bool,
    fail_requests_greater_than_one: bool,
    replicas: Option<u32>,
    resources: Vec<Entry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    name: String,
    #[serde(default)]
    rename: Option<String>,
    /// `all`, or GPUs by number. Their plugin takes other ways to name them, too.
    #[serde(default)]
    devices: Option<Devices>,
    replicas: u32,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Devices {
    Word(String),
    List(Vec<u32>),
}

/// Reads the file. `memory`: of the GPU that has least, to be divided among replicas; none: replicas have no limit.
pub fn read(path: &Path, memory: Option<u64>) -> Result<Vec<Wanted>, TimeSlicingError> {
    let unreadable = |error| TimeSlicingError::Unreadable { path: path.to_owned(), error };
    let text = std::fs::read_to_string(path).map_err(unreadable)?;
    let file: File = serde_saphyr::from_str(&text)
        .map_err(|error| TimeSlicingError::Syntax { path: path.to_owned(), error: Box::new(error) })?;
    let wrong = |what: String| TimeSlicingError::Wrong { path: path.to_owned(), what };
    if file.version != "v1" {
        return Err(wrong(format!("unsupported version {}; expected v1", file.version)));
    }
    if file.sharing.mps.is_some() {
        return Err(wrong(
            "sharing.mps is not supported; write the same resources under sharing.timeSlicing".to_owned(),
        ));
    }
    let mut slicing = file.sharing.time_slicing;
    match slicing.replicas {
        Some(_) if !slicing.resources.is_empty() => {
            return Err(wrong("timeSlicing has replicas and resources; write replicas of each resource".to_owned()));
        }
        Some(replicas) => {
            slicing.resources = vec![Entry { name: GPU.to_owned(), rename: None, devices: None, replicas }];
        }
        None => {}
    }
    let wanted = slicing.resources.into_iter().map(|entry| {
        if !(1..=128).contains(&entry.replicas) {
            return Err(wrong(format!("{}: replicas must be between 1 and 128", entry.name)));
        }
        let renamed = if slicing.rename_by_default { format!("{}.shared", entry.name) } else { entry.name.clone() };
        let resource = entry.rename.unwrap_or(renamed);
        if !config::is_resource(&resource) {
            return Err(wrong(format!("{resource} is not a valid resource name")));
        }
        let gpus = match entry.devices {
            None => None,
            Some(Devices::List(list)) => Some(list),
            Some(Devices::Word(word)) if word == "all" => None,
            Some(Devices::Word(word)) => {
                return Err(wrong(format!("devices: {word} is neither \"all\" nor a list of numbers")));
            }
        };
        let limits =
            ZoneLimits { memory: memory.map(|memory| memory / u64::from(entry.replicas)), ..ZoneLimits::default() };
        // As their plugin names slices where it tells sizes apart.
        let mig = entry.name.strip_prefix("nvidia.com/mig-").map(str::to_owned);
        let profile = Profile { name: entry.name, resource, limits, per_gpu: Some(entry.replicas), gpus, mig };
        Ok(Wanted { profile, single: slicing.fail_requests_greater_than_one })
    });
    wanted.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_text(text: &str) -> Result<Vec<Wanted>, TimeSlicingError> {
        let directory = testkit::directory();
        read(&directory.write("slices", text), Some(80 << 30))
    }

    #[test]
    fn replicas_become_parts() {
        let text = "version: v1\nflags:\n  migStrategy: none\nsharing:\n  timeSlicing:\n    renameByDefault: true\n    \
                    failRequestsGreaterThanOne: true\n    resources:\n    - name: nvidia.com/gpu\n      replicas: 10\n";
        let wanted = read_text(text).unwrap();
        assert_eq!(wanted.len(), 1);
        let Wanted { profile, single } = &wanted[0];
        assert_eq!((profile.resource.as_str(), profile.per_gpu, *single), ("nvidia.com/gpu.shared", Some(10), true));
        assert_eq!(profile.limits.memory, Some(8 << 30));
    }

    #[test]
    fn replicas_without_resources_are_of_whole_gpus() {
        let text = "version: v1\nsharing:\n  timeSlicing:\n    renameByDefault: true\n    replicas: 4\n";
        let wanted = read_text(text).unwrap();
        let [Wanted { profile, single }] = &wanted[..] else { panic!("{wanted:?}") };
        assert_eq!((profile.resource.as_str(), profile.per_gpu, *single), ("nvidia.com/gpu.shared", Some(4), false));
        assert_eq!((profile.limits.memory, &profile.mig), (Some(20 << 30), &None));
        // Nothing to share is nothing to offer, and no error.
        assert_eq!(read_text("version: v1\nsharing:\n  timeSlicing: {}\n").unwrap(), []);
        assert_eq!(read_text("version: v1\n").unwrap(), []);
    }

    #[test]
    fn resources_of_slices_are_for_slices_of_that_size() {
        let text = "version: v1\nsharing:\n  timeSlicing:\n    resources:\n    - name: nvidia.com/mig-1g.10gb\n      \
                    replicas: 2\n    - name: nvidia.com/gpu\n      replicas: 2\n";
        let sizes: Vec<Option<String>> =
            read_text(text).unwrap().into_iter().map(|entry| entry.profile.mig).collect();
        assert_eq!(sizes, [Some("1g.10gb".to_owned()), None]);
    }

    #[test]
    fn what_is_wrong_is_said() {
        let says = |text: &str| read_text(text).unwrap_err().to_string();
        assert!(says("version: v2\n").contains("expected v1"));
        assert!(says("version: [").contains("/slices"));
        let under = |what: &str| says(&format!("version: v1\nsharing:\n  {what}\n"));
        assert!(under("timeSlicing: {replicas: 0}").contains("between 1 and 128"));
        assert!(under("timeSlicing: {replica: 4}").contains("replica"), "not silently nothing");
        let both = "timeSlicing: {replicas: 4, resources: [{name: nvidia.com/gpu, replicas: 2}]}";
        assert!(under(both).contains("replicas and resources"));
        assert!(under("mps: {resources: []}").contains("sharing.mps is not supported"));
        let with = |entry: &str| format!("version: v1\nsharing:\n  timeSlicing:\n    resources:\n    - {entry}\n");
        assert!(says(&with("{name: nvidia.com/gpu, replicas: 0}")).contains("between 1 and 128"));
        assert!(says(&with("{name: gpu, replicas: 2}")).contains("not a valid resource name"));
        assert!(says(&with("{name: nvidia.com/gpu, replicas: 2, devices: some}")).contains("neither"));
        assert!(says(&with("{name: nvidia.com/gpu, replica: 2}")).contains("replica"));
    }
}
