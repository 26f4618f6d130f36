//! `cargo xtask images`: container images as archives, without a registry.
//!
//! ```text
//! target/images/bulkhead.tar   bulkhead.dev/bulkhead:0.1.0   what the chart's DaemonSet runs
//! target/images/examples.tar   bulkhead.dev/examples:0.1.0   the CUDA programs of examples/
//! target/images/pause.tar      bulkhead.dev/pause:0.1.0      what holds a pod together, for clusters without a registry
//! ```
//!
//! `ctr --namespace k8s.io image import` and `podman load` take them.

use crate::oci::Image;
use crate::programs::{self, Linkage};
use crate::{paths, sh, stage};
use anyhow::{Context, Result};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The programs that the examples and the scenarios use.
const USED: [&str; 4] = ["vecadd", "oom", "steady", "share"];

/// Small things that a user's image would have.
const TOOLS: [&str; 7] = ["sh", "cat", "env", "id", "ls", "mkdir", "sleep"];

/// The full name of an image of ours.
pub fn name(image: &str) -> String {
    format!("bulkhead.dev/{image}:{}", env!("CARGO_PKG_VERSION"))
}

/// Makes all images from the staged tree, and gives their archives.
pub fn build() -> Result<Vec<PathBuf>> {
    let dir = paths::target().join("images");
    fs::create_dir_all(&dir)?;
    bulkhead(&dir)?;
    examples(&dir)?;
    pause(&dir)?;
    Ok(archives())
}

/// Where their archives are.
pub fn archives() -> Vec<PathBuf> {
    ["bulkhead", "examples", "pause"].map(archive).to_vec()
}

fn archive(name: &str) -> PathBuf {
    paths::target().join("images").join(format!("{name}.tar"))
}

fn start(dir: &Path, name: &str) -> Result<Image> {
    Image::new(&self::name(name), &dir.join(name))
}

fn finish(image: Image, dir: &Path, name: &str, entrypoint: &[&str]) -> Result<()> {
    fs::rename(image.archive(entrypoint)?, archive(name))?;
    // The archive is all that is wanted of it.
    fs::remove_dir_all(dir.join(name)).context("cannot clean up")
}

/// Bulkhead itself: the program, and the libraries that it lays on nodes.
fn bulkhead(dir: &Path) -> Result<()> {
    let image = start(dir, "bulkhead")?;
    image.program(&paths::stage().join("bin/bulkhead"), "usr/bin/bulkhead")?;
    image.strip("usr/bin/bulkhead")?;
    for library in ["libcuda.so.1", "libnvidia-ml.so.1"] {
        image.file(&paths::stage().join("lib/bulkhead").join(library), &format!("usr/lib/bulkhead/{library}"))?;
        image.strip(&format!("usr/lib/bulkhead/{library}"))?;
    }
    for daemon in stage::DAEMONS {
        image.program(&paths::stage().join("lib/bulkhead").join(daemon), &format!("usr/lib/bulkhead/{daemon}"))?;
    }
    finish(image, dir, "bulkhead", &["/usr/bin/bulkhead"])
}

/// CUDA programs, as a user's image has them: with a C library, and without any part of Bulkhead or of a driver.
fn examples(dir: &Path) -> Result<()> {
    let image = start(dir, "examples")?;
    for tool in TOOLS {
        image.tool(tool)?;
    }
    let mut all = programs::all()?;
    all.retain(|program| USED.contains(&program.name.as_str()));
    for binary in programs::build(&programs::own(&all, &[Linkage::Static])?, &[])? {
        image.program(&binary.path, &format!("usr/bin/{}", binary.program.name))?;
    }
    finish(image, dir, "examples", &["/usr/bin/vecadd"])
}

fn pause(dir: &Path) -> Result<()> {
    let image = start(dir, "pause")?;
    let (source, program) = (dir.join("pause.c"), dir.join("pause.bin"));
    fs::write(&source, "#include <unistd.h>\nint main(void) { for (;;) pause(); }\n")?;
    sh::run(Command::new("g++").args(["-x", "c++", "-Os", "-s", "-static", "-o"]).arg(&program).arg(&source))?;
    image.file(&program, "usr/bin/pause")?;
    for file in [source, program] {
        fs::remove_file(file)?;
    }
    finish(image, dir, "pause", &["/usr/bin/pause"])
}
