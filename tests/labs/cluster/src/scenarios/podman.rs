//! A container of Podman's with a part of a GPU, by CDI and without Kubernetes.

use super::{Scenario, Stage, engine};
use anyhow::{Context, Result};
use std::path::Path;
use std::process::{Command, Output};
use xtask::sh;

pub(super) const SCENARIOS: &[Scenario] = &[Scenario { name: "podman", play }];

fn play(stage: &mut Stage) -> Result<()> {
    install(&stage.cluster.components.podman)?;
    let runc = stage.cluster.components.debian.join("usr/sbin/runc");
    let podman = |words: &[&str]| -> Result<Output> {
        let mut command = Command::new("podman");
        // Its storage lies in a directory that is no overlay, and the node has no systemd.
        command.args([
            "--root",
            "/run/podman-storage",
            "--runroot",
            "/run/podman-run",
            "--tmpdir",
            "/run/podman-tmp",
        ]);
        command.args(["--storage-driver", "vfs", "--cgroup-manager", "cgroupfs", "--events-backend", "file"]);
        command.arg("--runtime").arg(&runc).args(words).output().context("cannot start podman")
    };
    // Below the node's own group, which goes with the node.
    let group = format!("--cgroup-parent=/{}/podman", std::env::var(crate::CGROUP)?);
    engine::play("podmans", &podman, &[&group])
}

/// Lays Debian's packages over the node's root, which forgets them.
fn install(podman: &Path) -> Result<()> {
    // Where the node has a link in place of a directory, its files belong behind the link.
    let copy = "tar -C \"$1\" -cf - . | tar -C / --keep-directory-symlink -xf - && ldconfig";
    sh::output(Command::new("sh").args(["-c", copy, "sh"]).arg(podman)).map(drop)
}
