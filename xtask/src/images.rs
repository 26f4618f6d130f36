//! `cargo xtask images`: container images as archives, without a registry.
//!
//! ```text
//! target/images/bulkhead.tar   bulkhead.dev/bulkhead:0.1.0   what the chart's DaemonSet runs
//! target/images/examples.tar   bulkhead.dev/examples:0.1.0   the CUDA programs of examples/
//! target/images/pause.tar      bulkhead.dev/pause:0.1.0      what holds a pod together, for clusters without a registry
//! ```
//!
//! `ctr --namespace k8s.io image import` and `podman load` take them.

use crate::oci::{Built, Image, Recipe};
use crate::programs::{self, Linkage};
use crate::{paths, sh, stage};
use anyhow::{Context, Result};
use std::fs;
use std::path::PathBuf;
use std::process::Command;

/// The programs that the examples and the scenarios use.
const USED: [&str; 4] = ["vecadd", "oom", "steady", "share"];

/// Small things that a user's image would have.
const TOOLS: [&str; 7] = ["sh", "cat", "env", "id", "ls", "mkdir", "sleep"];

/// The registry of images that are not pushed anywhere.
pub const REGISTRY: &str = "bulkhead.dev";

/// The full name of an image of ours.
pub fn name(image: &str) -> String {
    Set::staged().name(image)
}

/// Makes all images from the staged tree, and gives their archives.
pub fn build() -> Result<Vec<PathBuf>> {
    let set = Set::staged();
    for image in [Set::bulkhead, Set::examples, Set::pause] {
        image(&set)?;
    }
    Ok(archives())
}

/// Bulkhead's image once more, as another version.
pub struct Next {
    pub name: String,
    pub version: String,
    pub archive: PathBuf,
}

pub fn next() -> Next {
    let set = Set::next();
    Next { name: set.name("bulkhead"), version: set.version(), archive: set.archive("bulkhead") }
}

/// Makes it from the staged tree.
pub fn build_next() -> Result<()> {
    Set::next().bulkhead().map(drop)
}

/// Where their archives are.
pub fn archives() -> Vec<PathBuf> {
    ["bulkhead", "examples", "pause"].map(|name| Set::staged().archive(name)).to_vec()
}

/// Images that belong together.
pub struct Set {
    /// The tree that they are made from.
    pub stage: PathBuf,
    /// Where their archives go.
    pub dir: PathBuf,
    pub registry: String,
    pub recipe: Recipe,
    /// What tells a rebuild of one version from another: nodes take it for a version of its own.
    pub revision: Option<&'static str>,
}

impl Set {
    fn staged() -> Set {
        let (stage, dir) = (paths::stage(), paths::target().join("images"));
        Set { stage, dir, registry: REGISTRY.to_owned(), recipe: Recipe::default(), revision: None }
    }

    /// What an upgrade is tried with.
    fn next() -> Set {
        Set { dir: paths::target().join("images/next"), revision: Some("next"), ..Set::staged() }
    }

    /// The tag, and the name of the directory in which `bulkhead install` puts it on nodes.
    fn version(&self) -> String {
        let revision = self.revision.map(|revision| format!("-{revision}")).unwrap_or_default();
        format!("{}{revision}", env!("CARGO_PKG_VERSION"))
    }

    fn name(&self, image: &str) -> String {
        format!("{}/{image}:{}", self.registry, self.version())
    }

    fn archive(&self, image: &str) -> PathBuf {
        self.dir.join(format!("{image}.tar"))
    }

    fn start(&self, name: &str) -> Result<Image> {
        Image::new(&self.name(name), &self.dir.join(name))
    }

    fn finish(&self, image: Image, name: &str, entrypoint: &[&str]) -> Result<Built> {
        let mut built = image.archive(entrypoint, &self.recipe)?;
        fs::rename(&built.archive, self.archive(name))?;
        built.archive = self.archive(name);
        // The archive is all that is wanted of it.
        fs::remove_dir_all(self.dir.join(name)).context("cannot clean up")?;
        Ok(built)
    }

    /// Bulkhead itself: the program, and the libraries that it lays on nodes.
    pub fn bulkhead(&self) -> Result<Built> {
        let mut image = self.start("bulkhead")?;
        image.program(&self.stage.join("bin/bulkhead"), "usr/bin/bulkhead")?;
        image.strip("usr/bin/bulkhead")?;
        let lib = self.stage.join("lib/bulkhead");
        for library in ["libcuda.so.1", "libnvidia-ml.so.1"] {
            image.file(&lib.join(library), &format!("usr/lib/bulkhead/{library}"))?;
            image.strip(&format!("usr/lib/bulkhead/{library}"))?;
        }
        for daemon in stage::DAEMONS {
            image.program(&lib.join(daemon), &format!("usr/lib/bulkhead/{daemon}"))?;
        }
        let smi = format!("usr/lib/bulkhead/{}", stage::SMI);
        image.file(&lib.join(stage::SMI), &smi)?;
        image.strip(&smi)?;
        if self.revision.is_some() {
            image.text(&format!("{}\n", self.version()), "usr/lib/bulkhead/version")?;
        }
        self.finish(image, "bulkhead", &["/usr/bin/bulkhead"])
    }

    /// CUDA programs, as a user's image has them: with a C library, and without any part of Bulkhead or of a driver.
    pub fn examples(&self) -> Result<Built> {
        let mut image = self.start("examples")?;
        for tool in TOOLS {
            image.tool(tool)?;
        }
        let mut all = programs::all()?;
        all.retain(|program| USED.contains(&program.name.as_str()));
        for binary in programs::build(&programs::own(&all, &[Linkage::Static])?, &[])? {
            image.program(&binary.path, &format!("usr/bin/{}", binary.program.name))?;
        }
        self.finish(image, "examples", &["/usr/bin/vecadd"])
    }

    fn pause(&self) -> Result<Built> {
        let image = self.start("pause")?;
        let (source, program) = (self.dir.join("pause.c"), self.dir.join("pause.bin"));
        fs::write(&source, "#include <unistd.h>\nint main(void) { for (;;) pause(); }\n")?;
        sh::run(Command::new("g++").args(["-x", "c++", "-Os", "-s", "-static", "-o"]).arg(&program).arg(&source))?;
        image.file(&program, "usr/bin/pause")?;
        for file in [source, program] {
            fs::remove_file(file)?;
        }
        self.finish(image, "pause", &["/usr/bin/pause"])
    }
}
