//! `cargo xtask frameworks`: CuPy and Numba from PyPI on the software GPU.
//!
//! Not part of `test`: it fetches some 400 MB into `.cache/frameworks`.

use anyhow::Result;
use std::process::Command;
use xtask::{paths, sh, stage};

struct Framework {
    name: &'static str,
    packages: &'static [&'static str],
    /// Installed with what it depends on, and taken out again.
    without: &'static [&'static str],
    environment: &'static [(&'static str, &'static str)],
}

const FRAMEWORKS: [Framework; 2] = [
    Framework {
        name: "cupy",
        packages: &["cupy-cuda12x==14.2.0", "numpy", "scipy", "nvidia-cuda-nvrtc-cu12", "nvidia-cuda-runtime-cu12"],
        without: &[],
        environment: &[("CUPY_COMPILE_WITH_PTX", "1")],
    },
    Framework {
        name: "numba",
        packages: &["numba-cuda[cu12]==0.30.4", "numpy"],
        // It links PTX to machine code for a GPU; without it Numba leaves that to the driver.
        without: &["nvidia-nvjitlink-cu12"],
        environment: &[("NUMBA_CUDA_LOW_OCCUPANCY_WARNINGS", "0")],
    },
];

pub(crate) fn run() -> Result<()> {
    stage::build(&stage::Options::default())?;
    for framework in &FRAMEWORKS {
        println!("{}", framework.name);
        let home = paths::cache().join("frameworks").join(framework.name);
        let python = home.join("bin/python");
        if !python.exists() {
            sh::run(Command::new("python3").args(["-m", "venv"]).arg(&home))?;
        }
        let pip = |words: &[&str], packages: &[&str]| {
            let mut command = Command::new(&python);
            command.args(["-m", "pip", "--quiet", "--disable-pip-version-check"]).args(words).args(packages);
            sh::run(&mut command)
        };
        pip(&["install"], framework.packages)?;
        if !framework.without.is_empty() {
            pip(&["uninstall", "--yes"], framework.without)?;
        }
        let mut bulkhead = Command::new(paths::stage().join("bin/bulkhead"));
        bulkhead.args(["run", "--backend", "soft", "--"]).arg(&python);
        bulkhead.arg(paths::root().join(format!("tests/programs/frameworks/{}_check.py", framework.name)));
        bulkhead.envs(framework.environment.iter().copied());
        sh::run(&mut bulkhead)?;
    }
    Ok(())
}
