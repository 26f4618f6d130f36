//! A cluster of one node, made of the real components. Runs inside of the node.

use super::components::Components;
use super::further::Further;
use super::kubectl::Kubectl;
use super::node::{NODE_IP, PODS, SERVICE_IP, SERVICES};
use super::pki::Pki;
use super::service::Service;
use super::wait::until;
use anyhow::{Context, Result, bail};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use xtask::{images, sh};

pub(crate) const NODE: &str = "bulkhead-e2e";

pub(crate) struct Cluster {
    pub run: PathBuf,
    pub components: Components,
    pub kubectl: Kubectl,
    pub pki: Pki,
    /// The group below which all cgroups of the cluster are.
    pub cgroup: String,
    /// In the order in which they were started.
    services: Vec<Service>,
    /// Nodes beside the first one, while scenarios have need of them.
    pub further: Vec<Further>,
}

impl Cluster {
    /// Starts everything, and returns when the node is ready for pods.
    pub(crate) fn start(run: &Path, components: Components, cgroup: &str) -> Result<Cluster> {
        let server = format!("https://{SERVICE_IP}");
        let pki = Pki::new(&run.join("pki"), &server)?;
        let names = ["DNS:kubernetes", "DNS:kubernetes.default", "DNS:kubernetes.default.svc", "DNS:localhost"];
        let addresses = [format!("IP:{SERVICE_IP}"), format!("IP:{NODE_IP}"), "IP:127.0.0.1".to_owned()];
        let addresses = names.into_iter().chain(addresses.iter().map(String::as_str)).collect::<Vec<_>>();
        pki.issue("apiserver", "/CN=kube-apiserver", &addresses)?;
        pki.issue("apiserver-kubelet", "/O=system:masters/CN=kube-apiserver", &[])?;
        let admin = pki.client("admin", "/O=system:masters/CN=admin")?;
        let kubectl = Kubectl::new(&components, &admin);
        let dir = run.join("config");
        configure(&dir, run, &components, &Local { cgroup, pods: PODS, reserved: String::new() })?;
        fs::write(dir.join("audit.yaml"), include_str!("../config/audit.yaml"))?;

        let mut cluster = Cluster {
            run: run.to_path_buf(),
            components,
            kubectl,
            pki,
            cgroup: cgroup.to_owned(),
            services: Vec::new(),
            further: Vec::new(),
        };
        let config = cluster.config("containerd.toml");
        cluster.launch("containerd", &["containerd", "--config", &config])?;
        cluster.launch("etcd", &ETCD)?;
        cluster.launch("kube-apiserver", &words(&apiserver(&cluster)))?;
        let (controllers, scheduler, kubelet) = (
            cluster.pki.client("controllers", "/CN=system:kube-controller-manager")?,
            cluster.pki.client("scheduler", "/CN=system:kube-scheduler")?,
            cluster.pki.client("kubelet", &format!("/O=system:nodes/CN=system:node:{NODE}"))?,
        );
        let (authority, accounts) = (cluster.pki.file("ca.crt"), cluster.pki.file("accounts.key"));
        cluster.wait_for("the API server", |cluster| cluster.kubectl.text(&["get", "--raw", "/readyz"]).is_ok())?;
        cluster.launch(
            "kube-controller-manager",
            &[
                "kube-controller-manager",
                "--leader-elect=false",
                "--use-service-account-credentials=true",
                &format!("--kubeconfig={controllers}"),
                &format!("--root-ca-file={authority}"),
                &format!("--service-account-private-key-file={accounts}"),
            ],
        )?;
        let scheduler = format!("--kubeconfig={scheduler}");
        cluster.launch("kube-scheduler", &["kube-scheduler", "--leader-elect=false", &scheduler])?;
        let config = cluster.config("kubelet.yaml");
        cluster.launch(
            "kubelet",
            &[
                "kubelet",
                &format!("--config={config}"),
                &format!("--kubeconfig={kubelet}"),
                &format!("--hostname-override={NODE}"),
                &format!("--node-ip={NODE_IP}"),
            ],
        )?;
        cluster.wait_for("the node", |cluster| cluster.node_ready(NODE))?;
        cluster.wait_for("the default service account", |cluster| {
            cluster.kubectl.text(&["get", "serviceaccount", "default"]).is_ok()
        })?;
        Ok(cluster)
    }

    fn config(&self, name: &str) -> String {
        self.run.join("config").join(name).display().to_string()
    }

    /// Whether its Kubernetes has claims.
    pub(crate) fn has_claims(&self) -> bool {
        self.components.release.has_claims
    }

    /// Starts a further service of the node.
    pub(crate) fn launch(&mut self, name: &'static str, words: &[&str]) -> Result<()> {
        let words = words.iter().map(|word| (*word).to_owned()).collect();
        self.services.push(Service::start_new(name, words, &self.components.path(), &self.run.join("logs"))?);
        Ok(())
    }

    pub(crate) fn service(&self, name: &str) -> Result<&Service> {
        self.services.iter().find(|service| service.name == name).with_context(|| format!("no service {name}"))
    }

    /// Waits, and fails when one of the services does not stay up.
    pub(crate) fn wait_for(&self, what: &str, mut ready: impl FnMut(&Cluster) -> bool) -> Result<()> {
        until(what, || {
            for service in &self.services {
                service.check()?;
            }
            Ok(ready(self).then_some(()))
        })
    }

    /// Returns when services that were restarted are at work again.
    pub(crate) fn settled(&self) -> Result<()> {
        self.wait_for("containerd", |cluster| sh::output(cluster.ctr().arg("version")).is_ok())?;
        self.wait_for("the broker", |_| super::lab::zones().is_ok())?;
        self.wait_for("the node", |cluster| cluster.node_ready(NODE))
    }

    /// Whether a node is ready for pods, as far as the API server knows.
    pub(crate) fn node_ready(&self, node: &str) -> bool {
        let path = "{.status.conditions[?(@.type=='Ready')].status}";
        let said = self.kubectl.text(&["get", "node", node, "-o", &format!("jsonpath={path}")]);
        said.is_ok_and(|said| said == "True")
    }

    /// What the API server has written down of what our accounts asked for.
    pub(crate) fn audit_log(&self) -> PathBuf {
        self.run.join("logs/audit.log")
    }

    /// Brings an image into containerd.
    pub(crate) fn import(&self, archive: &Path) -> Result<()> {
        let mut ctr = self.ctr();
        sh::output(ctr.args(["--namespace", "k8s.io", "image", "import", "--local"]).arg(archive)).map(drop)
    }

    pub(crate) fn ctr(&self) -> Command {
        let mut ctr = Command::new(self.components.debian.join("usr/bin/ctr"));
        ctr.args(["--address", "/run/containerd/containerd.sock"]);
        ctr
    }

    /// Ends all services, the last one first.
    pub(crate) fn stop(&self) -> Result<()> {
        let mut troubles = Vec::new();
        for service in self.services.iter().rev() {
            troubles.extend(service.stop().err().map(|error| error.to_string()));
        }
        if !troubles.is_empty() {
            bail!("{}", troubles.join("; "));
        }
        Ok(())
    }
}

fn words(words: &[String]) -> Vec<&str> {
    words.iter().map(String::as_str).collect()
}

const ETCD: [&str; 9] = [
    "etcd",
    "--data-dir=/run/etcd",
    // Nothing of it is to survive, so nothing is worth the wait for a disk.
    "--unsafe-no-fsync",
    "--listen-client-urls=http://127.0.0.1:2379",
    "--advertise-client-urls=http://127.0.0.1:2379",
    "--listen-peer-urls=http://127.0.0.1:2380",
    "--initial-advertise-peer-urls=http://127.0.0.1:2380",
    "--initial-cluster=default=http://127.0.0.1:2380",
    "--log-level=warn",
];

fn apiserver(cluster: &Cluster) -> Vec<String> {
    let file = |flag: &str, name: &str| format!("--{flag}={}", cluster.pki.file(name));
    vec![
        "kube-apiserver".to_owned(),
        "--etcd-servers=http://127.0.0.1:2379".to_owned(),
        // The port that pods find in KUBERNETES_SERVICE_PORT, since nothing stands between them and this server.
        "--secure-port=443".to_owned(),
        format!("--advertise-address={NODE_IP}"),
        format!("--service-cluster-ip-range={SERVICES}"),
        "--authorization-mode=Node,RBAC".to_owned(),
        "--enable-admission-plugins=NodeRestriction".to_owned(),
        "--allow-privileged=true".to_owned(),
        "--kubelet-preferred-address-types=InternalIP".to_owned(),
        "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
        file("service-account-signing-key-file", "accounts.key"),
        file("service-account-key-file", "accounts.pub"),
        file("client-ca-file", "ca.crt"),
        file("tls-cert-file", "apiserver.crt"),
        file("tls-private-key-file", "apiserver.key"),
        file("kubelet-client-certificate", "apiserver-kubelet.crt"),
        file("kubelet-client-key", "apiserver-kubelet.key"),
        format!("--audit-policy-file={}", cluster.config("audit.yaml")),
        format!("--audit-log-path={}", cluster.audit_log().display()),
    ]
}

/// What differs between nodes.
pub(crate) struct Local<'a> {
    pub cgroup: &'a str,
    pub pods: &'a str,
    /// Further lines for kubelet.
    pub reserved: String,
}

/// Writes a node's configuration files, with this run's names in them.
pub(crate) fn configure(dir: &Path, run: &Path, components: &Components, local: &Local<'_>) -> Result<()> {
    let files = [
        ("containerd.toml", include_str!("../config/containerd.toml")),
        ("kubelet.yaml", include_str!("../config/kubelet.yaml")),
        ("cni/pods.conflist", include_str!("../config/cni.conflist")),
    ];
    fs::create_dir_all(dir.join("cni"))?;
    for (name, text) in files {
        let text = text.replace("@run@", &run.display().to_string());
        let text = text.replace("@config@", &dir.display().to_string());
        let text = text.replace("@debian@", &components.debian.display().to_string());
        let text = text.replace("@pause@", &images::name("pause"));
        let text = text.replace("@reserved@", &local.reserved);
        let text = text.replace("@cgroup@", local.cgroup).replace("@pods@", local.pods);
        fs::write(dir.join(name), text).with_context(|| format!("cannot write {name}"))?;
    }
    Ok(())
}
