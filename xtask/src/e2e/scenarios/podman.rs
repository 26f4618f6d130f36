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
    let with_gpu = |words: &[&str]| -> Vec<String> {
        let device = format!("--device=bulkhead.dev/zone={ZONE}");
        // As little as the restricted standard allows pods, and no cgroups, which the node shares with its pods.
        let options = ["run", "--rm", "--network=none", "--cgroups=disabled", "--cap-drop=all", "--user=1000"];
        let options = options.into_iter().chain(["--security-opt=no-new-privileges", &device, &image]);
        options.chain(words.iter().copied()).map(str::to_owned).collect()
    };
    for program in [&["vecadd"][..], &["oom", "2147483648"]] {
        let words = with_gpu(program);
        let said = fine(&words.iter().map(String::as_str).collect::<Vec<_>>())?;
        ensure!(said.lines().last() == Some("PASS"), "{program:?} said {said}");
    }
    // Without the device there is no GPU.
    let output = podman(&["run", "--rm", "--network=none", "--cgroups=disabled", &image, "vecadd"])?;
    ensure!(!output.status.success(), "a container without the device has a GPU");

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
    sh::output(Command::new("cp").args(["-a", "--"]).arg(podman.join(".")).arg("/"))?;
    sh::output(&mut Command::new("ldconfig")).map(drop)
}
