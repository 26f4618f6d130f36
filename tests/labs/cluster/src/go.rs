//! Kubernetes and Helm, built from their source as Go's module proxy has it.
//!
//! They are one module, so that what both consist of (most of Helm) is compiled once: for that Helm must be of the
//! series that is made for this Kubernetes.

use super::components;
use anyhow::{Context, Result, ensure};
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use xtask::sh;

/// A release of Kubernetes that can be tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Release {
    pub kubernetes: &'static str,
    /// The version of the modules it is made of.
    modules: &'static str,
    /// The Helm that is made for it, where Helm is built with it.
    helm: Option<&'static str>,
    /// Whether claims can take a part of a device.
    pub has_claims: bool,
}

/// What scenarios are played on, and where Helm comes from.
pub(crate) const CURRENT: Release =
    Release { kubernetes: "1.36.4", modules: "0.36.4", helm: Some("3.21.4"), has_claims: true };

/// One from before claims: there the device plugin is all.
const BEFORE_CLAIMS: Release = Release { kubernetes: "1.33.13", modules: "0.33.13", helm: None, has_claims: false };

/// Modules whose versions Kubernetes' own go.mod replaces by directories of its repository, which a module that depends on it
/// does not have.
const STAGING: &str = "api apiextensions-apiserver apimachinery apiserver cli-runtime client-go cloud-provider \
    cluster-bootstrap code-generator component-base component-helpers controller-manager cri-api cri-client \
    cri-streaming csi-translation-lib dynamic-resource-allocation endpointslice externaljwt kms kube-aggregator \
    kube-controller-manager kube-proxy kube-scheduler kubectl kubelet metrics mount-utils pod-security-admission \
    sample-apiserver sample-cli-plugin sample-controller streaming";
/// Those of them that came after 1.33.
const NEWER: [&str; 2] = ["cri-streaming", "streaming"];

const PROGRAMS: [&str; 5] = [
    "k8s.io/kubernetes/cmd/kube-apiserver",
    "k8s.io/kubernetes/cmd/kubelet",
    "k8s.io/kubernetes/cmd/kube-controller-manager",
    "k8s.io/kubernetes/cmd/kube-scheduler",
    "k8s.io/kubernetes/cmd/kubectl",
];
const HELM: &str = "helm.sh/helm/v3/cmd/helm";

/// The release that a user means by `1.33`.
pub(crate) fn release(wanted: &str) -> Result<Release> {
    let named = |release: &Release| {
        let rest = release.kubernetes.strip_prefix(wanted);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    };
    let known = [CURRENT, BEFORE_CLAIMS];
    let versions = known.map(|release| release.kubernetes).join(" and ");
    known
        .into_iter()
        .find(named)
        .with_context(|| format!("Kubernetes {wanted} is not known here, but {versions} are"))
}

impl Release {
    /// Where its programs lie.
    pub(crate) fn bin(&self) -> PathBuf {
        self.home().join("bin")
    }

    /// Where the module lies.
    fn home(&self) -> PathBuf {
        let helm = self.helm.map(|helm| format!("-helm-{helm}")).unwrap_or_default();
        components::home().join(format!("v{}{helm}", self.kubernetes))
    }
}

/// Builds all programs of a release.
pub(crate) fn build(release: Release) -> Result<()> {
    let kubernetes = release.kubernetes;
    ensure!(sh::exists("go"), "Go is needed to build Kubernetes {kubernetes} (https://go.dev/dl)");
    module(release)?;
    let dir = release.bin();
    // Under another name until it is whole: what stands in the cache is taken for complete.
    let unfinished = dir.with_extension("new");
    fs::create_dir_all(&unfinished)?;
    let flags = format!("-s -w -X k8s.io/component-base/version.gitVersion=v{kubernetes}");
    let mut command = go(&release);
    command.env("CGO_ENABLED", "0").args(["build", "-mod=mod", "-trimpath", "-ldflags", &flags, "-o"]);
    sh::output(command.arg(&unfinished).args(PROGRAMS).args(release.helm.map(|_| HELM)))?;
    fs::rename(&unfinished, &dir).with_context(|| format!("cannot keep {}", dir.display()))
}

/// A module that needs nothing else. `go install` refuses modules that replace others, as Kubernetes does.
fn module(release: Release) -> Result<()> {
    let home = release.home();
    if home.join("go.sum").exists() {
        return Ok(());
    }
    fs::create_dir_all(&home)?;
    let _ = fs::remove_file(home.join("go.mod"));
    sh::output(go(&release).args(["mod", "init", "bulkhead.test/components"]))?;
    let modules = release.modules;
    let there = STAGING.split_whitespace().filter(|name| release.has_claims || !NEWER.contains(name));
    let replaced = there.map(|name| format!("-replace=k8s.io/{name}=k8s.io/{name}@v{modules}"));
    sh::output(go(&release).args(["mod", "edit"]).args(replaced))?;
    let helm = release.helm.map(|helm| format!("helm.sh/helm/v3@v{helm}"));
    let kubernetes = format!("k8s.io/kubernetes@v{}", release.kubernetes);
    sh::output(go(&release).arg("get").arg(kubernetes).args(helm)).map(drop)
}

fn go(release: &Release) -> Command {
    let mut command = Command::new("go");
    command.current_dir(release.home());
    command
}
