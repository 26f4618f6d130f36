//! Zones whose containers are zones of their own.
//!
//! A zone that is `split` has one socket, which several containers see. Which of them a client is in is the kernel's
//! word: its cgroup, which names the container and which a container cannot leave. Each container becomes a
//! zone of its own, with its own ledger and totals, that draws on the first zone's memory and takes part in its turns;
//! they share with each other as clients of one zone do.

use std::io;
use std::time::Instant;

use crate::Broker;
use crate::zones::PartError;
use control::ZoneName;
use control::process::Peer;

/// Digits of a container's name that tell it from all others of the node.
const DIGITS: usize = 12;

impl Broker {
    /// The zone of a client that came in through a zone's socket.
    pub(super) fn zone_of(&mut self, through: &ZoneName, peer: &Peer) -> ZoneName {
        if !self.zones.get(through).is_some_and(|zone| zone.bindings().split) {
            return through.clone();
        }
        let Some(container) = container_of(peer) else { return through.clone() };
        let Ok(name) = format!("{through}.{container}").parse::<ZoneName>() else { return through.clone() };
        match self.open_part(through, &name) {
            Ok(()) => name,
            Err(error) => {
                tracing::warn!(zone = %through, %error, "cannot create a zone for a container");
                through.clone()
            }
        }
    }

    fn open_part(&mut self, parent: &ZoneName, name: &ZoneName) -> Result<(), PartError> {
        if self.zones.find_part(parent, name)? {
            return Ok(());
        }
        let parent_zone = self.zones.get(parent).ok_or(io::Error::from(io::ErrorKind::NotFound))?;
        let settings = parent_zone.part_settings();
        self.make_part(name, settings, parent)?;
        self.zones.set_parent(name, parent, Instant::now());
        Ok(self.save_or_remove(name)?)
    }
}

/// The container that a process is in, as its cgroup says. Before Linux 6.5 a process is known by the number that it had when it
/// connected, which may be another's by now: who ends right after it has connected may be taken for one of another container.
/// It is in a part of its own zone all the same, whatever that is called.
fn container_of(peer: &Peer) -> Option<String> {
    let groups = std::fs::read_to_string(format!("/proc/{}/cgroup", peer.pid)).ok()?;
    // The number may have been used again meanwhile: what was read counts only if the process is still there.
    if peer.is_alive() { container_in(&groups) } else { None }
}

/// The first part of a path that has a container's name in it: 64 hexadecimal digits. What follows is the container's own.
fn container_in(groups: &str) -> Option<String> {
    let paths = groups.lines().filter_map(|line| line.splitn(3, ':').nth(2));
    paths.flat_map(|path| path.split('/')).find_map(|part| {
        let digits = part.split(|c: char| !c.is_ascii_hexdigit()).find(|run| run.len() == 64)?;
        Some(digits[..DIGITS].to_ascii_lowercase())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn containers_are_found_in_control_groups() {
        let id = "0123456789abcdef".repeat(4);
        let found = |text: String| container_in(&text);
        let short = Some("0123456789ab".to_owned());
        let cases = [
            format!("0::/kubepods.slice/kubepods-pod12.slice/cri-containerd-{id}.scope\n"),
            format!("12:memory:/kubepods/burstable/pod1/{id}\n11:cpu:/kubepods/burstable/pod1/{id}\n"),
            format!("0::/machine.slice/libpod-{id}.scope/container\n"),
            // What a container makes of its own stands behind, whatever it is called.
            format!("0::/kubepods/pod1/{id}/{}\n", "f".repeat(64)),
        ];
        for text in cases {
            assert_eq!(found(text.clone()), short, "{text}");
        }
        for text in ["0::/user.slice/session-3.scope\n", "", "nonsense", "0::/a/0123456789abcdef\n"] {
            assert_eq!(found(text.to_owned()), None, "{text}");
        }
    }
}
