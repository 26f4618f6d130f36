//! The fuzz targets, on the compiler that everybody has: coverage guides them, and the code's own checks judge. What
//! only AddressSanitizer would see needs a nightly compiler (`cargo fuzz`).

mod coverage;

pub(crate) use coverage::measure;

use anyhow::{Result, bail};
use std::path::{Path, PathBuf};
use std::process::Command;

use xtask::report::Counts;
use xtask::{paths, sh};

/// What libFuzzer needs of the compiler, which `cargo fuzz` would ask for.
const COVERAGE: &str = "--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
                        -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
                        -Cllvm-args=-sanitizer-coverage-trace-compares -Ccodegen-units=1";

fn dir() -> PathBuf {
    paths::root().join("fuzz")
}

/// The names of all targets: the files that are one.
fn all() -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(dir().join("fuzz_targets"))? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        names.extend(name.strip_suffix(".rs").filter(|name| *name != "shared").map(str::to_owned));
    }
    names.sort();
    Ok(names)
}

/// A directory of its own: the flags would have everything else rebuilt.
fn target() -> PathBuf {
    paths::target().join("fuzz")
}

/// What a target has found worth keeping.
fn corpus(name: &str) -> PathBuf {
    target().join("corpus").join(name)
}

/// Builds the fuzz crate; answers where its programs are.
fn build(target: &Path, arguments: &[&str], flags: &str) -> Result<PathBuf> {
    let mut cargo = sh::cargo();
    // Named, so that programs which run while building are built without the flags.
    let machine = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    cargo.args(["build", "--locked", "--target", &machine, "--manifest-path"]);
    cargo.arg(dir().join("Cargo.toml")).args(arguments);
    sh::run(cargo.env("CARGO_TARGET_DIR", target).env("RUSTFLAGS", flags))?;
    let profile = if arguments.contains(&"--release") { "release" } else { "debug" };
    Ok(target.join(machine).join(profile))
}

/// Sends so many hostile messages to a worker's dispatch in one process, without guidance, as fast as it can.
pub(crate) fn dispatch(executions: u64, seed: u64) -> Result<()> {
    let arguments = ["--release", "--features", "runner", "--bin", "dispatch"];
    let program = build(&target(), &arguments, "")?.join("dispatch");
    sh::run(Command::new(program).args([executions, seed].map(|number| number.to_string())))
}

/// Builds the targets and runs each for so many seconds.
pub(crate) fn run(seconds: u32, wanted: &[String]) -> Result<Counts> {
    let all = all()?;
    if let Some(unknown) = wanted.iter().find(|name| !all.contains(name)) {
        bail!("there is no fuzz target {unknown}; there are: {}", all.join(", "));
    }
    let programs = build(&target(), &["--release"], COVERAGE)?;
    let mut counts = Counts::default();
    for name in all.iter().filter(|name| wanted.is_empty() || wanted.contains(name)) {
        let found = target().join("found").join(name);
        let corpus = corpus(name);
        std::fs::create_dir_all(&corpus)?;
        std::fs::create_dir_all(&found)?;
        let mut fuzzer = Command::new(programs.join(name));
        // What it begins with, where hardly any input is one by chance.
        let seeds = dir().join("seeds").join(name);
        let seeds = Some(seeds).filter(|seeds| seeds.is_dir());
        fuzzer
            .arg(&corpus)
            .args(seeds)
            .arg(format!("-max_total_time={seconds}"))
            .arg("-print_final_stats=1")
            .arg("-verbosity=0");
        fuzzer.arg(format!("-artifact_prefix={}/", found.display())).current_dir(target());
        let output = sh::capture(&mut fuzzer)?;
        let said = String::from_utf8_lossy(&output.stderr);
        let executed = |line: &str| Some(line.strip_prefix("stat::number_of_executed_units:")?.trim().to_owned());
        match said.lines().find_map(executed).filter(|_| output.status.success()) {
            Some(inputs) => {
                println!("{name}: {inputs} inputs in {seconds} s");
                counts.passed += 1;
            }
            None => {
                println!("{said}{name}: {}; what did it is in {}", output.status, found.display());
                counts.failed += 1;
            }
        }
    }
    Ok(counts)
}
