//! A container of Podman's with a part of a GPU, by CDI and without Kubernetes.

use super::{Scenario, Stage};
use crate::e2e::lab;
use crate::{images, sh};
use anyhow::{Context, Result, ensure};
use std::path::Path;
use std::process::{Command, Output};

pub const SCENARIOS: &[Scenario] = &[Scenario { name: "podman", play }];

const ZONE: &str = "podmans";
const FILE: &str = "/etc/cdi/podmans.yaml";

fn play(stage: &mut Stage) -> Result<()> {
    install(&stage.cluster.parts.podman)?;
    let runc = stage.cluster.parts.debian.join("usr/sbin/runc");
    let podman = |words: &[&str]| -> Result<Output> {
        let mut command = Command::new("podman");
        // Its storage lies in a folder that is no overlay, and the node has no systemd.
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
    let fine = |words: &[&str]| -> Result<String> {
        let output = podman(words)?;
        let (said, why) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        ensure!(output.status.success(), "podman {}: {said}{why}", words.join(" "));
        Ok(said.into_owned())
    };
    let archive = images::archives().into_iter().find(|archive| archive.ends_with("examples.tar"));
    fine(&["load", "--quiet", "--input", &archive.context("no image of examples")?.display().to_string()])?;

    lab::run(&["zones", "create", ZONE, "--memory", "2GiB"])?;
    std::fs::create_dir_all("/etc/cdi")?;
    lab::run(&["cdi", "generate", "--zone", ZONE, "--output", FILE])?;
    lab::run(&["cdi", "validate", FILE])?;
    let image = images::name("examples");
    // Below the node's own group, which goes with the node.
    let group = format!("--cgroup-parent=/{}/podman", std::env::var(crate::e2e::CGROUP)?);
    let device = format!("--device=bulkhead.dev/zone={ZONE}");
    // No more rights than the restricted standard leaves to pods.
    let restricted = ["--network=none", "--cap-drop=all", "--user=1000", "--security-opt=no-new-privileges"];
    let run = [&["run", "--rm", &group][..], &restricted].concat();
    for program in [&["vecadd"][..], &["oom", "2147483648"]] {
        let said = fine(&[&run[..], &[&device, &image], program].concat())?;
        ensure!(said.lines().last() == Some("PASS"), "{program:?} said {said}");
    }
    // Without the device there is no GPU.
    let output = podman(&[&run[..], &[&image, "vecadd"]].concat())?;
    let said = String::from_utf8_lossy(&output.stdout);
    ensure!(said.contains("FAIL") && !output.status.success(), "without the device a program said {said}");

    // A second file with the same device: runtimes refuse both, and validate says which.
    std::fs::copy(FILE, "/etc/cdi/again.yaml")?;
    let refused = lab::run(&["cdi", "validate"]).err().map(|error| format!("{error:#}")).unwrap_or_default();
    ensure!(refused.contains("again.yaml") && refused.contains("podmans.yaml"), "validate said {refused:?}");
    for file in [FILE, "/etc/cdi/again.yaml"] {
        std::fs::remove_file(file)?;
    }
    lab::run(&["zones", "remove", ZONE]).map(drop)
}

/// Lays Debian's packages over the node's root, which forgets them.
fn install(podman: &Path) -> Result<()> {
    // Where the node has a link in place of a folder, its files belong behind the link.
    let copy = "tar -C \"$1\" -cf - . | tar -C / --keep-directory-symlink -xf - && ldconfig";
    sh::output(Command::new("sh").args(["-c", copy, "sh"]).arg(podman)).map(drop)
}
