//! A pod's zone: its domain is admitted to it, and containers get what is in the guest's image for clients.

use agent::oci::Mount;
use control::ZoneName;
use guest::image::LIBRARY_DIR;
use shim::MachineError;
use std::path::Path;
use xen::DomainId;
use xen::store::Store;

/// Where clients in containers look for Xen's devices.
const DEVICES: &str = "/dev/xen";

/// Admits the domain, unless it is the zone's already. A domain is one zone's: grants and events name no container.
pub(crate) fn admit(current: &mut Option<ZoneName>, zone: &ZoneName, domain: DomainId) -> Result<(), MachineError> {
    if is_new(current.as_ref(), zone)? {
        let failed = |error| MachineError::Start(std::io::Error::other(error));
        let mut store = Store::open().map_err(failed)?;
        xen::admission::admit(&mut store, domain, zone.as_str()).map_err(failed)?;
        *current = Some(zone.clone());
    }
    Ok(())
}

fn is_new(current: Option<&ZoneName>, zone: &ZoneName) -> Result<bool, MachineError> {
    match current {
        None => Ok(true),
        Some(same) if same == zone => Ok(false),
        Some(other) => Err(MachineError::Refused(format!(
            "zone {zone} is not supported in a pod that uses zone {other}: all containers of a pod in a Xen domain have one zone"
        ))),
    }
}

/// Where containers have our `nvidia-smi`; guests' images have none.
const SMI: &str = "/usr/bin/nvidia-smi";

/// What the container mounts in the guest in place of what its specification mounts of the host.
pub(crate) fn mounts(edits: Vec<Mount>) -> Vec<Mount> {
    let of_image = |mount: Mount| {
        let library = Path::new(&mount.destination).file_name().and_then(|name| name.to_str());
        let source = match library {
            Some(name) if name.contains(".so") => format!("/{LIBRARY_DIR}/{name}"),
            // The zone's directory: in a guest it has the socket for named buffers, and clients find the rest in xenstore.
            _ => control::env_vars::ZONE_DIR.to_owned(),
        };
        Mount { source, ..mount }
    };
    let devices = Mount {
        destination: DEVICES.to_owned(),
        kind: "bind".to_owned(),
        source: DEVICES.to_owned(),
        options: vec!["rbind".to_owned(), "rw".to_owned()],
    };
    edits.into_iter().filter(|mount| mount.destination != SMI).map(of_image).chain([devices]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_zone_is_refused_by_name() {
        let (one, other): (ZoneName, ZoneName) = ("team-a".parse().unwrap(), "team-b".parse().unwrap());
        assert!(is_new(None, &one).unwrap());
        assert!(!is_new(Some(&one), &one).unwrap());
        let refused = is_new(Some(&one), &other).unwrap_err().to_string();
        assert!(refused.contains("zone team-b") && refused.contains("zone team-a"), "{refused}");
    }

    #[test]
    fn containers_get_the_guests_own_libraries_and_devices() {
        let bind = |source: &str, destination: &str| Mount {
            destination: destination.into(),
            kind: "bind".into(),
            source: source.into(),
            options: vec!["rbind".into(), "ro".into()],
        };
        let edits = vec![
            bind("/usr/lib/bulkhead/libcuda.so.1", "/usr/lib64/libcuda.so.1"),
            bind("/usr/lib/bulkhead/nvidia-smi", SMI),
            bind("/run/bulkhead/zones/team-a", control::env_vars::ZONE_DIR),
        ];
        let found: Vec<(String, String)> =
            mounts(edits).into_iter().map(|mount| (mount.source, mount.destination)).collect();
        let pair = |source: &str, destination: &str| (source.to_owned(), destination.to_owned());
        let expected = [
            pair("/usr/lib/x86_64-linux-gnu/libcuda.so.1", "/usr/lib64/libcuda.so.1"),
            pair(control::env_vars::ZONE_DIR, control::env_vars::ZONE_DIR),
            pair("/dev/xen", "/dev/xen"),
        ];
        assert_eq!(found, expected);
    }
}
