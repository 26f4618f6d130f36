//! The real components of a Kubernetes node, fetched and built once and kept in the cache.
//!
//! Kubernetes and Helm come as source through Go's module proxy and are built here ([`go`]). containerd, etcd and the
//! network plugins are Debian's, from its newest release, unpacked and not installed. runc is that of Debian 12: later
//! ones need a later C library.

use super::go::Release;
use super::{debian, go};
use anyhow::{Context, Result};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::time::Instant;
use xtask::{paths, sh};

/// Packages of Debian's newest release.
const NEW: [&str; 3] = ["containerd", "etcd-server", "containernetworking-plugins"];
/// Of Debian 12.
const OLD: [&str; 1] = ["runc"];
/// Podman, of Debian 12, with what it needs beyond what machines have.
const PODMAN: [&str; 10] = [
    "podman",
    "conmon",
    "golang-github-containers-common",
    "golang-github-containers-image",
    "libassuan0",
    "libdevmapper1.02.1",
    "libglib2.0-0",
    "libgpgme11",
    "libsubid4",
    "libyajl2",
];

/// Docker, of Debian's next release, which changes: that of Debian 12 knows no CDI, and it is linked to nothing else of it.
const DOCKER: [&str; 2] = ["docker.io", "docker-cli"];

/// Where the parts lie.
pub(crate) struct Components {
    pub release: Release,
    /// Kubernetes' own programs.
    pub kubernetes: PathBuf,
    /// Helm, with programs of the newest Kubernetes.
    helm: PathBuf,
    /// The root of what Debian's packages hold.
    pub debian: PathBuf,
    /// The same of Podman, to be laid over a node's root.
    pub podman: PathBuf,
    /// The root of what Docker's packages hold.
    pub docker: PathBuf,
}

impl Components {
    pub(crate) fn helm(&self) -> PathBuf {
        self.helm.join("helm")
    }

    pub(crate) fn kubectl(&self) -> PathBuf {
        self.kubernetes.join("kubectl")
    }

    /// What PATH must be, so that they find each other.
    pub(crate) fn path(&self) -> String {
        let dirs =
            [self.kubernetes.clone(), self.helm.clone(), self.debian.join("usr/bin"), self.debian.join("usr/sbin")];
        let ours = dirs.iter().map(|dir| dir.display().to_string()).collect::<Vec<_>>().join(":");
        // Where the shim of tests is built, behind all others.
        let built = paths::target().join("debug");
        format!("{ours}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:{}", built.display())
    }
}

pub(crate) fn home() -> PathBuf {
    paths::cache().join("kubernetes")
}

/// Fetches and builds what is missing; says nothing and takes no time when nothing is. Docker is fetched by itself, by
/// [`ensure_docker`].
pub(crate) fn ensure(release: Release) -> Result<Components> {
    let components = Components {
        release,
        kubernetes: release.bin(),
        helm: go::CURRENT.bin(),
        debian: home().join("debian-1"),
        podman: home().join("podman-1"),
        docker: home().join("docker-1"),
    };
    if !components.debian.exists() {
        let what = "fetching containerd, etcd, runc and network plugins from Debian";
        timed(what, || debian::unpack(&components.debian, &[("sid", &NEW), ("bookworm", &OLD)]))?;
    }
    if !components.podman.exists() {
        timed("fetching Podman from Debian", || debian::unpack(&components.podman, &[("bookworm", &PODMAN)]))?;
    }
    if !components.helm.exists() {
        timed("building Kubernetes and Helm (six minutes on two cores)", || go::build(go::CURRENT))?;
    }
    if !components.kubernetes.exists() {
        let what = format!("building Kubernetes {} (ten minutes on two cores)", release.kubernetes);
        timed(&what, || go::build(release))?;
    }
    // For those who need not know of versions.
    let current = home().join("current");
    if fs::read_link(&current).ok().as_ref() != Some(&components.helm) {
        let _ = fs::remove_file(&current);
        symlink(&components.helm, &current).with_context(|| format!("cannot link {}", current.display()))?;
    }
    Ok(components)
}

/// Builds the shim, for scenarios that need it.
pub(crate) fn build_shim() -> Result<()> {
    let shim = super::scenarios::SHIM;
    sh::run(sh::cargo().args(["build", "--locked", "--package", "pods-lab", "--bin", shim]))
}

/// Fetches Docker, which one scenario needs.
pub(crate) fn ensure_docker(components: &Components) -> Result<()> {
    if components.docker.exists() {
        return Ok(());
    }
    timed("fetching Docker from Debian", || debian::unpack(&components.docker, &[("sid", &DOCKER)]))
}

fn timed(what: &str, work: impl FnOnce() -> Result<()>) -> Result<()> {
    println!("{what}");
    let start = Instant::now();
    work()?;
    println!("    took {:.0} s", start.elapsed().as_secs_f64());
    Ok(())
}
