//! Pods with a machine of their own, under a real kubelet: the containerd shim and its agent, with the machine that is made
//! of namespaces in the place of a Xen domain. Nobody in these pods is to notice, except who asks for the host.

use super::{Scenario, Stage, pods};
use crate::wait::until;
use anyhow::{Context, Result, ensure};
use std::fs;
use std::process::Command;
use xtask::sh;

pub(super) const SCENARIOS: &[Scenario] = &[
    Scenario { name: "machine-pod", play: pod },
    Scenario { name: "machine-files", play: files },
    Scenario { name: "machine-restarts", play: restarts },
    Scenario { name: "machine-killed", play: killed },
    Scenario { name: "machine-refused", play: refused },
    Scenario { name: "machine-gpu", play: gpu },
];

/// The program that containerd starts for such a pod.
pub(crate) const SHIM: &str = "containerd-shim-bulkhead-namespaces-v2";

const CLASS: &str = "{ apiVersion: node.k8s.io/v1, kind: RuntimeClass, metadata: { name: bulkhead-namespaces }, \
    handler: bulkhead-namespaces, overhead: { podFixed: { memory: 32Mi } } }";

/// Where each machine mounts the memory of its agent.
const MOUNT_POINT: &str = "/run/bulkhead-agent";

const HEAD: &str = "apiVersion: v1\nkind: Pod\n";

/// What every pod here has, in the restricted standard.
const SPEC: &str = "runtimeClassName: bulkhead-namespaces\n  terminationGracePeriodSeconds: 2\n  securityContext: \
    { runAsNonRoot: true, runAsUser: 1000, fsGroup: 1000, seccompProfile: { type: RuntimeDefault } }";

const CONFINED: &str = "securityContext: { allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, \
    capabilities: { drop: [ALL] } }";

fn class(stage: &Stage) -> Result<()> {
    stage.cluster.kubectl.apply(None, CLASS)
}

/// Takes away what these scenarios have brought to the cluster and the node: it is the laboratory's, and no install's.
pub(super) fn clear(stage: &Stage) -> Result<()> {
    stage.cluster.kubectl.text(&["delete", "runtimeclass", "bulkhead-namespaces", "--ignore-not-found"])?;
    match fs::remove_dir(MOUNT_POINT) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error).context(MOUNT_POINT),
        _ => Ok(()),
    }
}

/// A container that runs this in a shell.
fn container(name: &str, script: &str, more: &str) -> String {
    format!(
        "- name: {name}\n    image: @examples@\n    command: [sh, -c, \"{script}\"]\n    {CONFINED}\n    {more}\n  "
    )
}

impl Stage<'_> {
    fn exec(&self, pod: &str, container: &str, words: &[&str]) -> Result<String> {
        let head = ["exec", "-n", self.namespace, pod, "-c", container, "--"];
        self.cluster.kubectl.text(&[&head[..], words].concat())
    }

    fn path(&self, pod: &str, path: &str) -> Result<String> {
        let path = format!("jsonpath={path}");
        self.cluster.kubectl.text(&["get", "pod", "-n", self.namespace, pod, "-o", &path])
    }
}

/// Processes of the node whose first words are these.
fn processes(program: &str, word: &str) -> Vec<u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().filter_map(Result::ok);
    let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let is_one = |pid: &u32| {
        let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let words: Vec<String> = words.split(|byte| *byte == 0).map(|w| String::from_utf8_lossy(w).into()).collect();
        let named = words.first().is_some_and(|first| first.ends_with(program) || first == "/proc/self/exe");
        named && words.get(1).is_some_and(|second| second == word)
    };
    numbers.filter(is_one).collect()
}

/// Shims that serve, and machines of theirs with their agents.
fn shims() -> Vec<u32> {
    processes(SHIM, "-namespace")
}

fn machines() -> Vec<u32> {
    processes(SHIM, "machine")
}

/// No pod of this kind is left, and nothing of one.
fn nothing_left() -> Result<()> {
    let mut left = Vec::new();
    let waited = until("the end of shims and machines", || {
        left = shims().into_iter().chain(machines()).collect();
        Ok(left.is_empty().then_some(()))
    });
    waited.with_context(|| format!("still running: {left:?}"))
}

/// An init container, a shared directory, two containers that share network and IPC, probes, hooks of a container's life,
/// logs, exec, what a container leaves behind.
fn pod(stage: &mut Stage) -> Result<()> {
    class(stage)?;
    let mount = "volumeMounts: [{ name: shared, mountPath: /shared }]";
    let probe = format!(
        "{mount}\n    readinessProbe: {{ exec: {{ command: [cat, /shared/ready] }}, periodSeconds: 1 }}\n    \
         lifecycle: {{ postStart: {{ exec: {{ command: [sh, -c, 'echo yes > /shared/ready'] }} }} }}"
    );
    let main = "echo out; echo err >&2; cat /shared/init; id; while true; do sleep 1; done";
    let side = "echo why it ended > /dev/termination-log; exit 3";
    let manifest = format!(
        "{HEAD}metadata: {{ name: two }}\nspec:\n  restartPolicy: Never\n  {SPEC}\n  volumes: [{{ name: shared, \
         emptyDir: {{ medium: Memory, sizeLimit: 16Mi }} }}]\n  initContainers:\n  {}containers:\n  {}{}",
        container("first", "echo made by init > /shared/init", mount),
        container("main", main, &probe),
        container("side", side, mount),
    );
    stage.apply(&manifest)?;
    stage.wait("two", "Running")?;
    until("readiness of main", || {
        let ready = stage.path("two", "{.status.containerStatuses[?(@.name=='main')].ready}")?;
        Ok((ready == "true").then_some(()))
    })?;
    until("one shim for one pod", || Ok((shims().len() == 1).then_some(())))?;
    let said = stage.cluster.kubectl.logs(stage.namespace, "two", Some("main"))?;
    for line in ["out", "err", "made by init"] {
        ensure!(said.lines().any(|said| said == line), "no {line:?} in\n{said}");
    }
    ensure!(said.contains("uid=1000 gid=0") && said.contains("1000"), "it is somebody else: {said}");
    ensure!(stage.exec("two", "main", &["cat", "/shared/ready"])?.trim() == "yes");
    let failed = stage.exec("two", "main", &["sh", "-c", "exit 5"]).unwrap_err().to_string();
    ensure!(failed.contains("exit code 5"), "exec said {failed}");
    ensure!(stage.exec("two", "main", &["sh", "-c", "echo x > /file"]).is_err(), "the root can be written");
    let ended = "{.status.containerStatuses[?(@.name=='side')].state.terminated";
    until("the end of side", || {
        Ok(Some(stage.path("two", &format!("{ended}.exitCode}}"))?).filter(|it| !it.is_empty()))
    })?;
    ensure!(stage.path("two", &format!("{ended}.exitCode}}"))? == "3");
    ensure!(stage.path("two", &format!("{ended}.message}}"))?.trim() == "why it ended");
    stage.cluster.kubectl.delete_pod(stage.namespace, "two")?;
    nothing_left()
}

/// ConfigMaps, Secrets and tokens are copied in, and again when they change.
fn files(stage: &mut Stage) -> Result<()> {
    class(stage)?;
    let map = |text: &str| {
        format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{ name: settings }}\ndata: {{ key: {text} }}\n---\n")
    };
    let secret = "apiVersion: v1\nkind: Secret\nmetadata: { name: hidden }\nstringData: { word: open-sesame }\n---\n";
    let mounts =
        "volumeMounts: [{ name: settings, mountPath: /etc/settings }, { name: hidden, mountPath: /etc/hidden }]";
    let pod = format!(
        "{HEAD}metadata: {{ name: reader }}\nspec:\n  {SPEC}\n  volumes: [{{ name: settings, configMap: {{ name: settings \
         }} }}, {{ name: hidden, secret: {{ secretName: hidden, defaultMode: 0440 }} }}]\n  containers:\n  {}",
        container("main", "while true; do sleep 1; done", mounts),
    );
    stage.apply(&(map("old") + secret + &pod))?;
    stage.wait("reader", "Running")?;
    let read = |path: &str| stage.exec("reader", "main", &["cat", path]);
    ensure!(read("/etc/settings/key")? == "old");
    ensure!(read("/etc/hidden/word")? == "open-sesame");
    ensure!(!read("/var/run/secrets/kubernetes.io/serviceaccount/token")?.is_empty());
    ensure!(read("/etc/hosts")?.contains("reader"), "its own name is not in /etc/hosts");
    ensure!(stage.exec("reader", "main", &["sh", "-c", "echo x > /etc/settings/key"]).is_err());
    stage.apply(&map("new"))?;
    until("the new ConfigMap", || {
        // A change of the pod has kubelet look at its volumes at once.
        let now = format!("look={}", std::process::id());
        let words = ["annotate", "pod", "-n", stage.namespace, "reader", &now, "--overwrite"];
        stage.cluster.kubectl.text(&words)?;
        Ok((read("/etc/settings/key")? == "new").then_some(()))
    })
}

/// A container that fails is started again, in the same machine.
fn restarts(stage: &mut Stage) -> Result<()> {
    class(stage)?;
    let mount = "volumeMounts: [{ name: shared, mountPath: /shared }]";
    // Fails twice, and then stays.
    let script = "if [ -e /shared/second ]; then while true; do sleep 1; done; fi; \
        if [ -e /shared/first ]; then echo > /shared/second; else echo > /shared/first; fi; exit 1";
    let pod = format!(
        "{HEAD}metadata: {{ name: again }}\nspec:\n  {SPEC}\n  volumes: [{{ name: shared, emptyDir: {{}} }}]\n  \
         containers:\n  {}",
        container("main", script, mount),
    );
    stage.apply(&pod)?;
    until("the third start", || {
        let path = "{.status.containerStatuses[0].restartCount} {.status.containerStatuses[0].state.running}";
        let said = stage.path("again", path)?;
        Ok((said.starts_with("2 ") && said.contains("startedAt")).then_some(()))
    })?;
    until("one shim for one pod", || Ok((shims().len() == 1).then_some(())))?;
    Ok(())
}

fn kill(pids: &[u32]) -> Result<()> {
    let words = pids.iter().map(u32::to_string);
    sh::output(Command::new("kill").arg("-KILL").args(words)).map(drop)
}

/// containerd, machine and shim are killed in turn: the pod goes on, or begins anew, and nothing is left of the old one.
fn killed(stage: &mut Stage) -> Result<()> {
    class(stage)?;
    let pod = format!(
        "{HEAD}metadata: {{ name: steady }}\nspec:\n  {SPEC}\n  containers:\n  {}",
        container("main", "while true; do sleep 1; done", ""),
    );
    stage.apply(&pod)?;
    stage.wait("steady", "Running")?;
    let count = || -> Result<u32> {
        let said = stage.path("steady", "{.status.containerStatuses[0].restartCount}")?;
        Ok(said.parse().unwrap_or(0))
    };
    let alive = || stage.exec("steady", "main", &["cat", "/proc/1/comm"]);
    // Those of the scenario before may be on their way.
    until("one shim", || Ok((shims().len() == 1).then_some(())))?;
    let before = shims();
    stage.cluster.service("containerd")?.kill()?;
    stage.cluster.service("containerd")?.start()?;
    until("containerd", || Ok(alive().ok()))?;
    ensure!(shims() == before && count()? == 0, "containerd's end was the pod's");
    for (what, victims) in [("machine", machines as fn() -> Vec<u32>), ("shim", shims)] {
        let (killed, starts) = (victims(), count()?);
        ensure!(!killed.is_empty(), "there is no {what}");
        kill(&killed)?;
        until(&format!("the pod after its {what} was killed"), || {
            Ok((count()? > starts && alive().is_ok()).then_some(()))
        })?;
        ensure!(victims().iter().all(|pid| !killed.contains(pid)), "a killed {what} is still there");
        until("one shim", || Ok((shims().len() == 1).then_some(())))?;
    }
    stage.cluster.kubectl.delete_pod(stage.namespace, "steady")?;
    nothing_left()
}

/// What is the host's is refused by the name that users know, in an event of the pod's.
fn refused(stage: &mut Stage) -> Result<()> {
    class(stage)?;
    let label = "pod-security.kubernetes.io/enforce=privileged";
    stage.cluster.kubectl.text(&["label", "namespace", stage.namespace, label, "--overwrite"])?;
    let cases = [
        ("network", "hostNetwork: true", "", "hostNetwork is not supported"),
        ("pids", "hostPID: true", "", "hostPID is not supported"),
        ("ipc", "hostIPC: true", "", "hostIPC is not supported"),
        ("privileged", "", "securityContext: { privileged: true }", "privileged containers are not supported"),
        (
            "path",
            "volumes: [{ name: etc, hostPath: { path: /etc } }]",
            "volumeMounts: [{ name: etc, mountPath: /host }]",
            "hostPath /etc is not supported",
        ),
    ];
    for (name, of_pod, of_container, _) in cases {
        stage.apply(&format!(
            "{HEAD}metadata: {{ name: {name} }}\nspec:\n  runtimeClassName: bulkhead-namespaces\n  \
             terminationGracePeriodSeconds: 1\n  {of_pod}\n  containers:\n  - name: main\n    image: @examples@\n    \
             command: [sleep, '1000']\n    {of_container}\n"
        ))?;
    }
    for (name, _, _, wanted) in cases {
        let about = format!("involvedObject.name={name}");
        let words =
            ["get", "events", "-n", stage.namespace, "--field-selector", &about, "-o", "jsonpath={..message}"];
        until(&format!("an event that says {wanted:?}"), || {
            Ok(stage.cluster.kubectl.text(&words)?.contains(wanted).then_some(()))
        })?;
        stage.cluster.kubectl.delete_pod(stage.namespace, name)?;
    }
    nothing_left()
}

/// A CUDA program in such a pod uses the node's GPU: zone and libraries come from the same edits as for runc.
fn gpu(stage: &mut Stage) -> Result<()> {
    class(stage)?;
    let manifest = pods::with_part("vecadd", &["vecadd"]);
    stage.apply(&manifest.replace("spec:\n", "spec:\n  runtimeClassName: bulkhead-namespaces\n"))?;
    stage.passes("vecadd")?;
    stage.cluster.kubectl.delete_pod(stage.namespace, "vecadd")?;
    nothing_left()?;
    stage.nothing_left()
}
