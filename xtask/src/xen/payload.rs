//! What guests run: CUDA programs and the conformance suite, in the tenant's root file system.

use super::Options;
use super::scenarios::Scenario;
use crate::programs::{self, Linkage, Program};
use crate::{paths, sh, toolchain};
use anyhow::{Context, Result};
use guest::tree::Tree;
use guest::{elf, tenant};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Files for Dom0, for guests with a shell, and for the tenant's root file system of others.
#[derive(Default)]
pub struct Payload {
    pub everywhere: Tree,
    pub tenant: Tree,
}

/// Everything that these scenarios want; a tenant's programs see it as `/programs` and `/conformance`.
pub fn make(scenarios: &[&Scenario], options: &Options) -> Result<Payload> {
    let mut payload = Payload::default();
    let tree = &mut payload.tenant;
    let wanted =
        |program: &Program| scenarios.iter().any(|scenario| scenario.programs.contains(&program.name.as_str()));
    let mut all = programs::all()?;
    all.retain(wanted);
    if !all.is_empty() {
        toolchain::ensure()?;
        for binary in programs::build(&programs::own(&all, &[Linkage::Static])?, &[])? {
            add(tree, &tenants(&format!("programs/{}", binary.program.name)), &binary.path)?;
        }
    }
    if scenarios.iter().any(|scenario| scenario.trial) {
        let trial = built(options, &["--package", "xen", "--example", "trial"], "examples/trial")?;
        add(tree, &tenants("programs/trial"), &trial)?;
        add(&mut payload.everywhere, "test/trial", &trial)?;
    }
    if scenarios.iter().any(|scenario| scenario.conformance) {
        toolchain::ensure()?;
        let suite = built(options, &["--package", "conformance", "--bin", "conformance"], "conformance")?;
        // Where the tests of the suite put them, too.
        let kernels = paths::target().join("tmp/kernels");
        sh::run(Command::new(&suite).arg("compile").arg(&kernels))?;
        add(tree, &tenants("conformance/conformance"), &suite)?;
        for entry in fs::read_dir(&kernels)? {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == "ptx") {
                let name = path.file_name().unwrap_or_default().to_string_lossy();
                add(tree, &tenants(&format!("conformance/kernels/{name}")), &path)?;
            }
        }
    }
    Ok(payload)
}

fn tenants(path: &str) -> String {
    format!("{}/{path}", tenant::ROOT)
}

/// What cargo makes of this, by its place in the target folder.
fn built(options: &Options, what: &[&str], place: &str) -> Result<PathBuf> {
    let mut cargo = sh::cargo();
    cargo.arg("build").args(what).args((!options.debug).then_some("--release"));
    sh::run(&mut cargo)?;
    Ok(paths::target().join(if options.debug { "debug" } else { "release" }).join(place))
}

fn add(tree: &mut Tree, path: &str, file: &Path) -> Result<()> {
    let content = fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
    tree.file(path, 0o755, elf::loaded_part(&content));
    Ok(())
}
