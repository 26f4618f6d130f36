//! The real components of a Kubernetes node, fetched and built once and kept in the cache.
//!
//! Kubernetes comes as source through Go's module proxy and is built here, which takes ten minutes. containerd, etcd and
//! the network plugins are Debian's, from its newest release, unpacked and not installed. runc is that of Debian 12: later
//! ones need a later C library.

use crate::{paths, sh};
use anyhow::{Context, Result, bail};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

/// The release, and that of the modules it is made of.
const KUBERNETES: &str = "1.36.4";
const MODULES: &str = "0.36.4";

/// Modules whose versions Kubernetes' own go.mod replaces by folders of its repository, which a module that depends on it
/// does not have.
const STAGING: &str = "api apiextensions-apiserver apimachinery apiserver cli-runtime client-go cloud-provider \
    cluster-bootstrap code-generator component-base component-helpers controller-manager cri-api cri-client \
    cri-streaming csi-translation-lib dynamic-resource-allocation endpointslice externaljwt kms kube-aggregator \
    kube-controller-manager kube-proxy kube-scheduler kubectl kubelet metrics mount-utils pod-security-admission \
    sample-apiserver sample-cli-plugin sample-controller streaming";

const PROGRAMS: [&str; 5] = ["kubectl", "kubelet", "kube-apiserver", "kube-controller-manager", "kube-scheduler"];

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

const KEYS: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// Where the parts lie.
pub struct Parts {
    /// Kubernetes' own programs.
    pub kubernetes: PathBuf,
    /// The root of what Debian's packages hold.
    pub debian: PathBuf,
    /// The same of Podman, to be laid over a node's root.
    pub podman: PathBuf,
    /// The root of what Docker's packages hold.
    pub docker: PathBuf,
}

impl Parts {
    pub fn kubectl(&self) -> PathBuf {
        self.kubernetes.join("kubectl")
    }

    /// What PATH must be, so that they find each other.
    pub fn path(&self) -> String {
        let folders = [self.kubernetes.clone(), self.debian.join("usr/bin"), self.debian.join("usr/sbin")];
        let ours = folders.iter().map(|folder| folder.display().to_string()).collect::<Vec<_>>().join(":");
        format!("{ours}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
    }
}

pub fn home() -> PathBuf {
    paths::cache().join("kubernetes")
}

/// Fetches and builds what is missing; says nothing and takes no time when nothing is. Who cannot wait longer than
/// `until` gets an error then; what was built by that time is kept.
pub fn ensure(until: Option<Instant>) -> Result<Parts> {
    let parts = Parts {
        kubernetes: home().join(format!("v{KUBERNETES}")).join("bin"),
        debian: home().join("debian-1"),
        podman: home().join("podman-1"),
        docker: home().join("docker-1"),
    };
    if !parts.debian.exists() {
        let what = "fetching containerd, etcd, runc and network plugins from Debian";
        timed(what, || debian(&parts.debian, &[("sid", &NEW), ("bookworm", &OLD)]))?;
    }
    if !parts.podman.exists() {
        timed("fetching Podman from Debian", || debian(&parts.podman, &[("bookworm", &PODMAN)]))?;
    }
    // Who cannot wait plays nothing that needs it.
    if until.is_none() && !parts.docker.exists() {
        timed("fetching Docker from Debian", || debian(&parts.docker, &[("sid", &DOCKER)]))?;
    }
    let missing = PROGRAMS.iter().filter(|program| !parts.kubernetes.join(program).exists()).collect::<Vec<_>>();
    if !missing.is_empty() {
        if !sh::exists("go") {
            bail!("Go is needed to build Kubernetes {KUBERNETES} (Debian, Ubuntu: apt-get install golang-go)");
        }
        timed(&format!("building Kubernetes {KUBERNETES} (ten minutes on two cores)"), || {
            let staging = STAGING.split_whitespace().map(|name| format!("k8s.io/{name}=k8s.io/{name}@v{MODULES}"));
            let folder = parts.kubernetes.parent().context("it has a parent")?;
            module(folder, &staging.collect::<Vec<_>>(), &format!("k8s.io/kubernetes@v{KUBERNETES}"), until)
        })?;
        fs::create_dir_all(&parts.kubernetes)?;
        let flags = format!("-s -w -X k8s.io/component-base/version.gitVersion=v{KUBERNETES}");
        for program in missing {
            let package = format!("k8s.io/kubernetes/cmd/{program}");
            timed(&format!("  {program}"), || build(&parts.kubernetes.join(program), &package, &flags, until))?;
        }
    }
    Ok(parts)
}

pub fn timed(what: &str, work: impl FnOnce() -> Result<()>) -> Result<()> {
    println!("{what}");
    let start = Instant::now();
    work()?;
    println!("    took {:.0} s", start.elapsed().as_secs_f64());
    Ok(())
}

/// A module that needs nothing but `wanted`. `go install` refuses modules that replace others, as Kubernetes does.
pub fn module(folder: &Path, replaced: &[String], wanted: &str, until: Option<Instant>) -> Result<()> {
    if folder.join("go.sum").exists() {
        return Ok(());
    }
    fs::create_dir_all(folder)?;
    let _ = fs::remove_file(folder.join("go.mod"));
    sh::output(go(folder, None).args(["mod", "init", "bulkhead.test/parts"]))?;
    if !replaced.is_empty() {
        let edits = replaced.iter().flat_map(|replaced| ["-replace", replaced]);
        sh::output(go(folder, None).args(["mod", "edit"]).args(edits))?;
    }
    sh::output(go(folder, until).args(["get", wanted])).map(drop)
}

/// Builds a program in the module that is beside it or one folder above.
pub fn build(program: &Path, package: &str, flags: &str, until: Option<Instant>) -> Result<()> {
    let beside = program.parent().context("it has a parent")?;
    let folder = beside.ancestors().find(|folder| folder.join("go.mod").exists()).context("there is no module")?;
    // Under another name until it is whole: what stands in the cache is taken for complete.
    let unfinished = program.with_extension("new");
    let mut command = go(folder, until);
    command.env("CGO_ENABLED", "0").args(["build", "-mod=mod", "-trimpath", "-ldflags", flags, "-o"]);
    sh::output(command.arg(&unfinished).arg(package))?;
    fs::rename(&unfinished, program).with_context(|| format!("cannot keep {}", program.display()))
}

fn go(folder: &Path, until: Option<Instant>) -> Command {
    let mut command = Command::new("timeout");
    // 0 is for ever.
    let seconds = until.map_or(0, |until| until.saturating_duration_since(Instant::now()).as_secs() + 1);
    command.arg(seconds.to_string()).arg("go").current_dir(folder);
    command
}

/// Unpacks Debian's packages, by means of lists of our own, so that the machine's stay as they are.
fn debian(root: &Path, wanted: &[(&str, &[&str])]) -> Result<()> {
    let lists = home().join("apt");
    let unfinished = home().join("debian.new");
    let _ = fs::remove_dir_all(&unfinished);
    for (release, packages) in wanted {
        let apt = Apt::new(&lists.join(release), release)?;
        apt.run(&["update"])?;
        let folder = lists.join(release).join("packages");
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder)?;
        apt.run(&[&["download"], *packages].concat())?;
        for package in fs::read_dir(&folder)? {
            let package = package?.path();
            sh::output(Command::new("dpkg-deb").arg("-x").arg(&package).arg(&unfinished))?;
            println!("    {}", package.file_stem().unwrap_or_default().to_string_lossy());
        }
    }
    let _ = fs::remove_dir_all(&lists);
    fs::rename(&unfinished, root).context("cannot keep Debian's packages")
}

/// Where this machine gets Debian's packages from.
fn archive() -> Result<String> {
    if !Path::new(KEYS).exists() {
        bail!("containerd, etcd and runc come from Debian, and this machine does not have {KEYS}");
    }
    let mut command = Command::new("apt-get");
    let known = sh::output(command.args(["indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"]))?;
    let debian = known.lines().find(|address| address.trim_end_matches('/').ends_with("/debian"));
    debian.map(str::to_owned).context("apt-get has no source of Debian's packages on this machine")
}

/// apt-get with lists and settings of its own.
struct Apt {
    folder: PathBuf,
}

impl Apt {
    fn new(folder: &Path, release: &str) -> Result<Apt> {
        for part in ["state/lists/partial", "cache/archives/partial", "packages"] {
            fs::create_dir_all(folder.join(part))?;
        }
        let source = format!("deb [signed-by={KEYS}] {} {release} main\n", archive()?);
        fs::write(folder.join("sources.list"), source)?;
        Ok(Apt { folder: folder.to_path_buf() })
    }

    fn run(&self, words: &[&str]) -> Result<()> {
        let at = |part: &str| self.folder.join(part).display().to_string();
        let options = [
            format!("Dir::State={}", at("state")),
            format!("Dir::Cache={}", at("cache")),
            format!("Dir::Etc::sourcelist={}", at("sources.list")),
            "Dir::Etc::sourceparts=-".to_owned(),
            // Mirrors may be behind.
            "Acquire::Check-Valid-Until=false".to_owned(),
            // Of the lists only what is needed to download.
            "Acquire::Languages=none".to_owned(),
            "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false".to_owned(),
            "APT::Sandbox::User=root".to_owned(),
            "Acquire::Retries=3".to_owned(),
        ];
        let mut command = Command::new("apt-get");
        command.current_dir(self.folder.join("packages"));
        command.args(options.iter().flat_map(|option| ["-o", option]));
        sh::output(command.args(words)).map(drop)
    }
}
