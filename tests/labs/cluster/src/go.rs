//! Kubernetes and Helm, built from their source as Go's module proxy has it.
//!
//! They are one module, so that what both consist of (most of Helm) is compiled once: for that Helm must be of the
//! series that is made for this Kubernetes.

use super::components;
use anyhow::{Context, Result, ensure};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use xtask::sh;

/// The release, and that of the modules it is made of.
const KUBERNETES: &str = "1.36.4";
const MODULES: &str = "0.36.4";
const HELM: &str = "3.21.4";

/// Modules whose versions Kubernetes' own go.mod replaces by directories of its repository, which a module that depends on it
/// does not have.
const STAGING: &str = "api apiextensions-apiserver apimachinery apiserver cli-runtime client-go cloud-provider \
    cluster-bootstrap code-generator component-base component-helpers controller-manager cri-api cri-client \
    cri-streaming csi-translation-lib dynamic-resource-allocation endpointslice externaljwt kms kube-aggregator \
    kube-controller-manager kube-proxy kube-scheduler kubectl kubelet metrics mount-utils pod-security-admission \
    sample-apiserver sample-cli-plugin sample-controller streaming";

const PROGRAMS: [&str; 6] = [
    "k8s.io/kubernetes/cmd/kube-apiserver",
    "k8s.io/kubernetes/cmd/kubelet",
    "k8s.io/kubernetes/cmd/kube-controller-manager",
    "k8s.io/kubernetes/cmd/kube-scheduler",
    "k8s.io/kubernetes/cmd/kubectl",
    "helm.sh/helm/v3/cmd/helm",
];

/// Where the module lies.
pub(crate) fn home() -> PathBuf {
    components::home().join(format!("v{KUBERNETES}-helm-{HELM}"))
}

/// Builds all programs into `dir`.
pub(crate) fn build(dir: &Path) -> Result<()> {
    ensure!(sh::exists("go"), "Go is needed to build Kubernetes {KUBERNETES} (https://go.dev/dl)");
    module()?;
    // Under another name until it is whole: what stands in the cache is taken for complete.
    let unfinished = dir.with_extension("new");
    fs::create_dir_all(&unfinished)?;
    let flags = format!("-s -w -X k8s.io/component-base/version.gitVersion=v{KUBERNETES}");
    let mut command = go();
    command.env("CGO_ENABLED", "0").args(["build", "-mod=mod", "-trimpath", "-ldflags", &flags, "-o"]);
    sh::output(command.arg(&unfinished).args(PROGRAMS))?;
    fs::rename(&unfinished, dir).with_context(|| format!("cannot keep {}", dir.display()))
}

/// A module that needs nothing else. `go install` refuses modules that replace others, as Kubernetes does.
fn module() -> Result<()> {
    if home().join("go.sum").exists() {
        return Ok(());
    }
    fs::create_dir_all(home())?;
    let _ = fs::remove_file(home().join("go.mod"));
    sh::output(go().args(["mod", "init", "bulkhead.test/components"]))?;
    let replaced = STAGING.split_whitespace().map(|name| format!("-replace=k8s.io/{name}=k8s.io/{name}@v{MODULES}"));
    sh::output(go().args(["mod", "edit"]).args(replaced))?;
    let wanted = [format!("k8s.io/kubernetes@v{KUBERNETES}"), format!("helm.sh/helm/v3@v{HELM}")];
    sh::output(go().arg("get").args(wanted)).map(drop)
}

fn go() -> Command {
    let mut command = Command::new("go");
    command.current_dir(home());
    command
}
