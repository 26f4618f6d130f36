//! `cargo xtask e2e`: Bulkhead on a cluster of real components, on the software GPU.
//!
//! Outside: fetch and build what is needed, and make images. Then this program runs once more inside of namespaces that
//! are the node ([`node`]), starts the cluster there ([`cluster`]) and plays the scenarios.

mod cluster;
mod images;
mod kubectl;
mod node;
mod parts;
mod pki;
mod scenarios;
mod service;
mod wait;

use crate::programs::{self, Linkage};
use crate::{sh, stage, toolchain};
use anyhow::{Context, Result, bail};
use cluster::Cluster;
use images::Image;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

#[derive(Default)]
pub struct Options {
    /// Leave the cluster up until this program is interrupted.
    pub keep: bool,
    /// Quicker to build, slower to run.
    pub debug: bool,
    /// Scenarios to play; all when empty.
    pub names: Vec<String>,
}

/// The verb with which this program calls itself inside of the node.
pub const INSIDE: &str = "e2e-inside";

/// What the node needs of the outside.
const CGROUP: &str = "BULKHEAD_E2E_CGROUP";

pub fn run(options: &Options) -> Result<()> {
    scenarios::check_names(&options.names)?;
    node::check().context("cargo xtask e2e cannot run here")?;
    let parts = parts::ensure()?;
    toolchain::ensure()?;
    stage::build(&stage::Options { debug: options.debug, ..stage::Options::default() })?;
    let mut words = vec![INSIDE.to_owned()];
    words.extend(options.keep.then(|| "--keep".to_owned()));
    words.extend(options.names.iter().cloned());
    let images = build_images()?;
    words.extend(images.iter().flat_map(|image| ["--image".to_owned(), image.display().to_string()]));
    let status = node::enter(&parts, &words)?;
    if !status.success() {
        bail!("not everything holds (logs are in {})", node::run_folder().join("logs").display());
    }
    Ok(())
}

/// Inside of the node.
pub fn inside(options: &Options, images: &[PathBuf]) -> Result<()> {
    let cgroup = std::env::var(CGROUP).context("only cargo xtask e2e calls this")?;
    let run = node::run_folder();
    println!("starting Kubernetes");
    let start = std::time::Instant::now();
    let mut cluster = Cluster::start(&run, parts::ensure()?, &cgroup)?;
    for image in images {
        cluster.import(image)?;
    }
    println!("the node is ready after {:.0} s", start.elapsed().as_secs_f64());
    let fine = scenarios::play(&mut cluster, &options.names);
    if options.keep {
        keep(&cluster)?;
    }
    cluster.stop()?;
    if !fine? {
        bail!("not everything holds");
    }
    Ok(())
}

/// Tells how to get in, and waits to be interrupted.
fn keep(cluster: &Cluster) -> Result<()> {
    let enter = cluster.run.join("enter");
    // From outside this process has another number, which only a process outside can tell.
    let config = &cluster.kubectl.config;
    let text = format!(
        "#!/bin/sh\n# A command, or a shell, on the node of cargo xtask e2e --keep.\n\
         pid=$(cat '{}')\n[ $# -gt 0 ] || set -- bash\n\
         exec nsenter --target \"$pid\" --mount --net --pid --ipc --uts env KUBECONFIG='{config}' PATH='{}' \"$@\"\n",
        cluster.run.join("pid").display(),
        cluster.parts.path(),
    );
    fs::write(&enter, text)?;
    fs::set_permissions(&enter, fs::Permissions::from_mode(0o755))?;
    println!("\nThe cluster stays up until you press Ctrl-C. From another terminal:\n");
    println!("  {} kubectl get pods -A     one command", enter.display());
    println!("  {}                         a shell on the node\n", enter.display());
    println!("KUBECONFIG={config} (inside of the node's network)");
    loop {
        std::thread::park();
    }
}

/// The images of the scenarios; gives their archives.
fn build_images() -> Result<Vec<PathBuf>> {
    let folder = crate::paths::target().join("e2e-images");
    let pause = Image::new("bulkhead.test/pause:1", &folder.join("pause"))?;
    let source = folder.join("pause/pause.c");
    fs::write(&source, "#include <unistd.h>\nint main(void) { for (;;) pause(); }\n")?;
    let program = folder.join("pause/root/pause");
    sh::run(Command::new("g++").args(["-x", "c++", "-Os", "-s", "-static", "-o"]).arg(&program).arg(&source))?;
    Ok(vec![pause.archive(&["/pause"])?, cuda_programs(&folder.join("programs"))?])
}

/// The CUDA programs, as a user's image has them: with a C library, and without any part of Bulkhead or a driver.
fn cuda_programs(folder: &Path) -> Result<PathBuf> {
    let image = Image::new(scenarios::PROGRAMS, folder)?;
    for tool in ["sh", "cat", "sleep", "ls", "id", "mount"] {
        image.tool(tool)?;
    }
    let mut all = programs::all()?;
    all.retain(|program| scenarios::USED.contains(&program.name.as_str()));
    let wanted = programs::own(&all, &[Linkage::Static])?;
    for binary in programs::build(&wanted, &[])? {
        image.program(&binary.path, &format!("usr/bin/{}", binary.program.name))?;
    }
    image.archive(&["/usr/bin/sh"])
}
