//! A container of Docker's with a part of a GPU, by CDI and without Kubernetes.

use super::{Scenario, Stage, engine};
use anyhow::{Context, Result};
use std::process::{Command, Output};

pub(super) const SCENARIOS: &[Scenario] = &[Scenario { name: "docker", play }];

const SOCKET: &str = "unix:///run/docker.sock";
const DAEMON: &str = "dockerd";

fn play(stage: &mut Stage) -> Result<()> {
    let docker = stage.cluster.components.docker.clone();
    // Below the node's own group, which goes with the node.
    let group = format!("--cgroup-parent=/{}/docker", std::env::var(crate::CGROUP)?);
    let daemon = docker.join("usr/sbin/dockerd").display().to_string();
    // The node's own containerd keeps its images, for the layout of ours is one that its own store does not read. There
    // is no network to make, and no systemd.
    let words = [
        &daemon,
        "--host",
        SOCKET,
        "--containerd",
        "/run/containerd/containerd.sock",
        "--feature",
        "containerd-snapshotter=true",
        "--data-root",
        "/run/docker-data",
        "--exec-root",
        "/run/docker-exec",
        "--pidfile",
        "/run/docker.pid",
        "--exec-opt",
        "native.cgroupdriver=cgroupfs",
        "--bridge=none",
        "--iptables=false",
        "--ip6tables=false",
        "--userland-proxy=false",
        &group,
    ];
    stage.cluster.launch(DAEMON, &words)?;
    let program = docker.join("usr/bin/docker");
    let docker = |words: &[&str]| -> Result<Output> {
        Command::new(&program).args(["--host", SOCKET]).args(words).output().context("cannot start docker")
    };
    let answers = |output: Result<Output>| output.is_ok_and(|output| output.status.success());
    let ready = stage.cluster.wait_for("Docker", |_| answers(docker(&["version"])));
    let played = ready.and_then(|()| engine::play("dockers", &docker, &[]));
    let stopped = stage.cluster.service(DAEMON)?.stop();
    played.and(stopped)
}
