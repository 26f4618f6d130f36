//! What guests run: CUDA programs and the conformance suite, in the tenant's root file system.

use super::Options;
use super::scenarios::Scenario;
use anyhow::{Context, Result};
use guest::tree::Tree;
use guest::{elf, tenant};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use xtask::programs::{self, Linkage, Program};
use xtask::{paths, sh, toolchain};

/// Two parts of it: the suite is large, and guests boot quicker without it.
#[derive(Default)]
pub(crate) struct Payload {
    /// What guests see as `/programs`.
    pub programs: Tree,
    /// What they see as `/conformance`.
    pub conformance: Tree,
}

/// Everything that these scenarios want.
pub(crate) fn make(scenarios: &[&Scenario], options: &Options) -> Result<Payload> {
    let mut payload = Payload::default();
    let wanted =
        |program: &Program| scenarios.iter().any(|scenario| scenario.programs.contains(&program.name.as_str()));
    let mut all = programs::all()?;
    all.retain(wanted);
    if !all.is_empty() {
        toolchain::ensure()?;
        for binary in programs::build(&programs::own(&all, &[Linkage::Static])?, &[])? {
            add(&mut payload.programs, &format!("programs/{}", binary.program.name), &binary.path)?;
        }
    }
    if scenarios.iter().any(|scenario| scenario.conformance) {
        toolchain::ensure()?;
        let suite = suite(options)?;
        // Where the tests of the suite put them, too.
        let kernels = paths::target().join("tmp/kernels");
        sh::run(Command::new(&suite).arg("compile").arg(&kernels))?;
        let tree = &mut payload.conformance;
        add(tree, "conformance/conformance", &suite)?;
        for entry in fs::read_dir(&kernels)? {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == "ptx") {
                let name = path.file_name().unwrap_or_default().to_string_lossy();
                add(tree, &format!("conformance/kernels/{name}"), &path)?;
            }
        }
    }
    Ok(payload)
}

/// The trial of the `xen` crate, if one of these scenarios wants it.
pub(crate) fn trial(scenarios: &[&Scenario], options: &Options) -> Result<Option<PathBuf>> {
    if !scenarios.iter().any(|scenario| scenario.trial) {
        return Ok(None);
    }
    let mut cargo = sh::cargo();
    cargo.args(["build", "--package", "xen", "--example", "trial"]);
    cargo.args((!options.debug).then_some("--release"));
    sh::run(&mut cargo)?;
    let profile = if options.debug { "debug" } else { "release" };
    Ok(Some(paths::target().join(profile).join("examples/trial")))
}

/// The program of the conformance suite.
fn suite(options: &Options) -> Result<PathBuf> {
    let mut cargo = sh::cargo();
    cargo.args(["build", "--package", "conformance", "--bin", "conformance"]);
    cargo.args((!options.debug).then_some("--release"));
    sh::run(&mut cargo)?;
    Ok(paths::target().join(if options.debug { "debug" } else { "release" }).join("conformance"))
}

fn add(tree: &mut Tree, path: &str, file: &Path) -> Result<()> {
    let content = fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
    tree.file(&format!("{}/{path}", tenant::ROOT), 0o755, elf::loaded_part(&content));
    Ok(())
}
