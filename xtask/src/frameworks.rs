//! `cargo xtask frameworks`: CuPy and Numba from PyPI on the software GPU, installed as docs/python.md says.
//!
//! Not part of `test`: it fetches some 400 MB into `.cache/frameworks`.

use anyhow::{Context, Result, ensure};
use std::fs;
use std::path::Path;
use std::process::Command;
use xtask::page::{self, Step};
use xtask::{paths, sh, stage};

const PAGE: &str = "docs/python.md";
/// Sections of the page, and what each calls its environment.
const FRAMEWORKS: [(&str, &str); 2] = [("## CuPy", "cupy"), ("## Numba", "numba")];

/// `staged`: take target/stage as it is.
pub(crate) fn run(staged: bool) -> Result<()> {
    if !staged {
        stage::build(&stage::Options::default())?;
    }
    let home = paths::cache().join("frameworks");
    fs::create_dir_all(&home)?;
    let page = fs::read_to_string(paths::root().join(PAGE)).with_context(|| format!("no {PAGE}"))?;
    for (heading, name) in FRAMEWORKS {
        follow(&home, page::section(&page, heading)?)?;
        let check = paths::root().join(format!("tests/programs/frameworks/{name}_check.py"));
        let mut bulkhead = Command::new("bulkhead");
        bulkhead.args(["run", "--backend", "soft", "--"]).arg(home.join(name).join("bin/python")).arg(check);
        sh::run(bulkhead.env("PATH", path()).env("NUMBA_CUDA_LOW_OCCUPANCY_WARNINGS", "0"))?;
    }
    Ok(())
}

/// As on the machine of one who has installed Bulkhead.
fn path() -> String {
    format!("{}:{}", paths::stage().join("bin").display(), std::env::var("PATH").unwrap_or_default())
}

fn follow(home: &Path, section: &str) -> Result<()> {
    let mut printed = String::new();
    for step in page::steps(section)? {
        match step {
            Step::Printed(text) => {
                ensure!(printed.contains(&text), "{PAGE}: {text:?} was not printed, but\n{printed}")
            }
            Step::Run { commands, .. } => {
                println!("$ {}", commands.trim_end().replace('\n', "\n  "));
                let mut bash = Command::new("bash");
                bash.args(["-e", "-o", "pipefail", "-c", &commands]).current_dir(home);
                printed = sh::output(bash.env("PATH", path()))?;
                print!("{printed}");
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What readers of this page must know before all else.
    #[test]
    fn the_page_says_first_that_pytorch_does_not_run() {
        let page = fs::read_to_string(paths::root().join(PAGE)).unwrap();
        let first = page.split("\n\n").nth(1).unwrap();
        assert!(first.starts_with("**PyTorch does not run without a GPU.**") && first.contains("no PTX"), "{first}");
        for (heading, name) in FRAMEWORKS {
            let steps = page::steps(page::section(&page, heading).unwrap()).unwrap();
            let installs = |step: &Step| matches!(step, Step::Run { commands, .. } if commands.contains(&format!("{name}/bin/pip install")));
            assert!(steps.iter().any(installs), "{heading} has no pip line");
        }
    }
}
