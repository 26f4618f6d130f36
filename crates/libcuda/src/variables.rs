//! The environment variables that NVIDIA's driver and its container toolkit act on: read here, and passed to the worker
//! where they must reach the driver before it starts. A client that passes none can have a worker that is warm already.

use std::ffi::OsString;

use cuda_abi::wire::DRIVER_VARIABLES;

const VISIBLE: &str = "CUDA_VISIBLE_DEVICES";
/// What a container may see, as the container toolkit reads it; `CUDA_VISIBLE_DEVICES` then counts among those.
const CONTAINER_VISIBLE: &str = "NVIDIA_VISIBLE_DEVICES";
const LAUNCH_BLOCKING: &str = "CUDA_LAUNCH_BLOCKING";
const MODULE_LOADING: &str = "CUDA_MODULE_LOADING";
/// The driver's way of saying that no device is wanted.
const NO_DEVICE: &str = "-1";

/// Is every launch to be waited for? That is done on this side.
pub(crate) fn launch_blocking() -> bool {
    std::env::var_os(LAUNCH_BLOCKING).is_some_and(|value| value != "0")
}

/// What the driver must be started with, as far as it differs from what the driver does anyway.
pub(crate) fn for_driver() -> Vec<(OsString, OsString)> {
    let given = DRIVER_VARIABLES.iter().filter_map(|name| Some((*name, std::env::var_os(name)?)));
    let mut passed: Vec<(OsString, OsString)> = given
        .filter(|(name, value)| !matches!(*name, VISIBLE | LAUNCH_BLOCKING) && !is_default(name, value))
        .map(|(name, value)| (name.into(), value))
        .collect();
    let text = |name| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned());
    let visible = visible(text(CONTAINER_VISIBLE).as_deref(), text(VISIBLE).as_deref());
    passed.extend(visible.map(|list| (VISIBLE.into(), list.into())));
    passed
}

/// PyTorch sets the loading mode that every driver we run on has by default.
fn is_default(name: &str, value: &OsString) -> bool {
    name == MODULE_LOADING && (value == "LAZY" || value == "DEFAULT")
}

/// The list of devices that is left when the container sees some and the program wants some of those.
fn visible(container: Option<&str>, program: Option<&str>) -> Option<String> {
    let container = match container.map(str::trim) {
        None | Some("all") => return program.map(str::to_owned),
        Some("" | "none" | "void") => return Some(NO_DEVICE.to_owned()),
        Some(list) => list,
    };
    let Some(program) = program else { return Some(container.to_owned()) };
    let seen: Vec<&str> = container.split(',').map(str::trim).collect();
    let wanted = program.split(',').map(|entry| match entry.trim().parse::<usize>() {
        Ok(index) => seen.get(index).copied(),
        // A device named by its UUID is the same wherever one counts from.
        Err(_) => Some(entry.trim()),
    });
    // As natively, the first entry that means nothing ends the list.
    let wanted: Vec<&str> = wanted.map_while(|entry| entry).collect();
    Some(if wanted.is_empty() { NO_DEVICE.to_owned() } else { wanted.join(",") })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_counts_among_the_devices_of_its_container() {
        let cases = [
            (None, None, None),
            (None, Some("1"), Some("1")),
            (Some("all"), Some("1"), Some("1")),
            (Some("all"), None, None),
            (Some("2,3"), None, Some("2,3")),
            (Some("2,3"), Some("1"), Some("3")),
            (Some("2, 3"), Some("1,0"), Some("3,2")),
            (Some("2,3"), Some("0,7,1"), Some("2")),
            (Some("2,3"), Some("7"), Some("-1")),
            (Some("GPU-aa,GPU-bb"), Some("1"), Some("GPU-bb")),
            (Some("GPU-aa"), Some("GPU-aa"), Some("GPU-aa")),
            (Some("MIG-cc"), None, Some("MIG-cc")),
            (Some("2,3"), Some(""), Some("")),
            (Some("none"), None, Some("-1")),
            (Some("void"), Some("0"), Some("-1")),
            (Some(""), None, Some("-1")),
        ];
        for (container, program, expected) in cases {
            assert_eq!(visible(container, program).as_deref(), expected, "{container:?} {program:?}");
        }
    }

    #[test]
    fn what_the_driver_does_anyway_needs_no_worker_of_its_own() {
        assert!(is_default(MODULE_LOADING, &"LAZY".into()));
        assert!(!is_default(MODULE_LOADING, &"EAGER".into()));
        assert!(!is_default("CUDA_FORCE_PTX_JIT", &"LAZY".into()));
    }
}
