//! `cargo xtask readme`: README's commands for developers, one after the other, as they are pasted.

use anyhow::{Context, Result, ensure};
use std::process::Command;
use xtask::page::{self, Step};
use xtask::paths;

const HEADING: &str = "## Try it from a checkout";

/// The blocks of that section.
fn commands(readme: &str) -> Result<Vec<String>> {
    let steps = page::steps(page::section(readme, HEADING)?)?;
    let commands = steps.into_iter().filter_map(|step| match step {
        Step::Run { commands, .. } => Some(commands),
        Step::Printed(_) => None,
    });
    Ok(commands.collect())
}

pub(crate) fn run() -> Result<()> {
    let readme = std::fs::read_to_string(paths::root().join("README.md")).context("no README.md")?;
    for block in commands(&readme)? {
        println!("$ {}", block.trim_end().replace('\n', "\n  "));
        let mut bash = Command::new("bash");
        bash.args(["-e", "-o", "pipefail", "-c", &block]).current_dir(paths::root());
        ensure!(bash.status().context("cannot start bash")?.success(), "a command of README failed");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #[test]
    fn developers_need_two_commands() {
        let readme = std::fs::read_to_string(xtask::paths::root().join("README.md")).unwrap();
        let blocks = super::commands(&readme).unwrap();
        let words = |line: &str| line.split('#').next().unwrap_or_default().trim().to_owned();
        let lines: Vec<String> = blocks.iter().flat_map(|block| block.lines()).map(words).collect();
        assert_eq!(lines, ["cargo xtask demo", "cargo xtask test --quick"]);
    }
}
