//! What guests run: CUDA programs and the conformance suite, in the tenant's root file system.

use super::Options;
use super::scenarios::Scenario;
use crate::programs::{self, Linkage, Program};
use crate::{paths, sh, toolchain};
use anyhow::{Context, Result};
use guest::tree::Tree;
use guest::{elf, tenant};
use std::fs;
use std::path::Path;
use std::process::Command;

/// Everything that these scenarios want, where a guest's programs see it as `/programs` and `/conformance`.
pub fn make(scenarios: &[&Scenario], options: &Options) -> Result<Tree> {
    let mut tree = Tree::default();
    let wanted =
        |program: &Program| scenarios.iter().any(|scenario| scenario.programs.contains(&program.name.as_str()));
    let mut all = programs::all()?;
    all.retain(wanted);
    if !all.is_empty() {
        toolchain::ensure()?;
        for binary in programs::build(&programs::own(&all, &[Linkage::Static])?, &[])? {
            add(&mut tree, &format!("programs/{}", binary.program.name), &binary.path)?;
        }
    }
    if scenarios.iter().any(|scenario| scenario.conformance) {
        toolchain::ensure()?;
        let suite = suite(options)?;
        // Where the tests of the suite put them, too.
        let kernels = paths::target().join("tmp/kernels");
        sh::run(Command::new(&suite).arg("compile").arg(&kernels))?;
        add(&mut tree, "conformance/conformance", &suite)?;
        for entry in fs::read_dir(&kernels)? {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == "ptx") {
                let name = path.file_name().unwrap_or_default().to_string_lossy();
                add(&mut tree, &format!("conformance/kernels/{name}"), &path)?;
            }
        }
    }
    Ok(tree)
}

/// The program of the conformance suite.
fn suite(options: &Options) -> Result<std::path::PathBuf> {
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
