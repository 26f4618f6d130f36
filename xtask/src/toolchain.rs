//! `cargo xtask toolchain`: what compiles CUDA programs on a machine without a GPU, from PyPI; and an older nvcc, which
//! knows GPUs that the one on PyPI does not, from Debian.

use crate::progress::Progress;
use crate::{paths, sh};
use anyhow::{Context, Result, bail};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const LOCK: &str = include_str!("../toolchain.lock");
const FETCH: &str = include_str!("../fetch_wheel.py");
const FETCH_NVCC: &str = include_str!("../fetch_nvcc.py");

/// The older nvcc: where it is unpacked, and the package.
const OLDER: &str = "nvcc-12.4";
const OLDER_PACKAGE: &str = "pool/non-free/n/nvidia-cuda-toolkit/nvidia-cuda-toolkit_12.4.131~12.4.1-2_amd64.deb";
const OLDER_SHA256: &str = "cd5fe85aee38d108b315f408a688641478f2402622a10c677478eb7a6c4e5319";

/// The runtime that belongs to the compiler.
pub const OWN_RUNTIME: &str = "13.0";

/// A line of toolchain.lock.
struct Wheel {
    into: &'static str,
    package: &'static str,
    version: &'static str,
    sha256: &'static str,
    /// The directory of the wheel that is kept; else all of it.
    keep: Option<&'static str>,
}

impl Wheel {
    /// Exists once the wheel is unpacked. Names the hash, so that a changed lock fetches again.
    fn stamp(&self) -> PathBuf {
        stamp(&self.into.replace('/', "-"), self.sha256)
    }

    fn fetch(&self) -> Result<()> {
        fetch_wheel(self.package, self.version, self.sha256, &paths::cuda().join(self.into), self.keep)?;
        fs::create_dir_all(paths::cuda().join("stamps"))?;
        fs::write(self.stamp(), "").context("cannot note that the wheel is unpacked")
    }
}

/// Fetches a wheel from PyPI by its hash and unpacks what is below its `nvidia/<name>/`, of that only the directory `keep` if
/// there is one; all of the wheel if it is `*`.
pub fn fetch_wheel(package: &str, version: &str, sha256: &str, into: &Path, keep: Option<&str>) -> Result<()> {
    let mut python = Command::new("python3");
    python.args(["-c", FETCH, package, version, sha256]).arg(into).args(keep);
    let done = sh::capture(&mut python)?;
    if !done.status.success() {
        let said = String::from_utf8_lossy(&done.stderr);
        bail!("cannot fetch {}", said.lines().last().unwrap_or("the wheel: python3 said nothing"));
    }
    Ok(())
}

/// Packages of the compiler's lock that end up in programs, with their versions.
pub fn linked() -> impl Iterator<Item = (&'static str, &'static str)> {
    wheels()
        .filter(|wheel| wheel.into.strip_prefix("runtime/") == Some(OWN_RUNTIME))
        .map(|wheel| (wheel.package, wheel.version))
}

/// Packages of the compiler's lock with which programs are compiled: name, version and hash.
pub fn compilers() -> impl Iterator<Item = (&'static str, &'static str, &'static str)> {
    wheels().filter(|wheel| wheel.into == "nvcc").map(|wheel| (wheel.package, wheel.version, wheel.sha256))
}

fn stamp(dir: &str, sha256: &str) -> PathBuf {
    paths::cuda().join("stamps").join(format!("{dir}-{sha256}"))
}

/// Fetches the older nvcc. Without it some tests are left out, which say so: Debian keeps no version for ever.
fn ensure_older() {
    let stamp = stamp(OLDER, OLDER_SHA256);
    if stamp.exists() {
        return;
    }
    let mut python = Command::new("python3");
    python.args(["-c", FETCH_NVCC, OLDER_PACKAGE, OLDER_SHA256]).arg(paths::cuda().join(OLDER));
    match sh::capture(&mut python) {
        Ok(done) if done.status.success() => println!("  {OLDER}"),
        Ok(done) => {
            let said = String::from_utf8_lossy(&done.stderr);
            println!("  no {OLDER}: {}", said.lines().last().unwrap_or("python3 said nothing"));
            return;
        }
        Err(error) => return println!("  no {OLDER}: {error}"),
    }
    let noted = fs::create_dir_all(paths::cuda().join("stamps")).and_then(|()| fs::write(&stamp, ""));
    if let Err(error) = noted {
        println!("  cannot note that {OLDER} is unpacked: {error}");
    }
}

fn wheels() -> impl Iterator<Item = Wheel> {
    let lines = LOCK.lines().filter(|line| !line.starts_with('#'));
    lines.filter_map(|line| {
        let mut words = line.split_whitespace();
        let (into, package, version, sha256) = (words.next()?, words.next()?, words.next()?, words.next()?);
        let keep = words.next().or_else(|| into.starts_with("runtime/").then_some("lib"));
        Some(Wheel { into, package, version, sha256, keep })
    })
}

/// A CUDA runtime of the matrix.
pub struct Runtime {
    /// Such as `12.9`.
    pub version: &'static str,
    pub shared: PathBuf,
    /// Not every wheel holds a static one.
    pub statik: Option<PathBuf>,
}

/// The runtimes, oldest first. They must have been fetched.
pub fn runtimes() -> Result<Vec<Runtime>> {
    let versions = wheels().filter_map(|wheel| wheel.into.strip_prefix("runtime/"));
    versions.map(runtime).collect()
}

/// The runtime that belongs to the compiler.
pub fn own_runtime() -> Result<Runtime> {
    runtime(OWN_RUNTIME)
}

fn runtime(version: &'static str) -> Result<Runtime> {
    let lib = paths::cuda().join("runtime").join(version).join("lib");
    let entries = fs::read_dir(&lib).with_context(|| format!("cannot read {}", lib.display()))?;
    let files = entries.filter_map(|entry| Some(entry.ok()?.path())).collect::<Vec<_>>();
    let find = |start: &str| {
        let named = |path: &&PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(start));
        files.iter().find(named).cloned()
    };
    let shared = find("libcudart.so.").with_context(|| format!("no libcudart in {}", lib.display()))?;
    Ok(Runtime { version, shared, statik: find("libcudart_static.a") })
}

/// nvcc, once it has been fetched.
pub fn nvcc() -> PathBuf {
    paths::cuda().join("nvcc/bin/nvcc")
}

/// Text that changes when the compiler or a runtime does.
pub fn identity() -> &'static str {
    LOCK
}

/// Fetches what is missing; says nothing and takes no time when nothing is.
pub fn ensure() -> Result<()> {
    fetch(|_| true)?;
    ensure_older();
    Ok(())
}

/// Fetches only what compiles a program for the compiler's own runtime.
pub fn ensure_compiler() -> Result<()> {
    fetch(|wheel| wheel.into == "nvcc" || wheel.into.strip_prefix("runtime/") == Some(OWN_RUNTIME))
}

fn fetch(wanted: impl Fn(&Wheel) -> bool) -> Result<()> {
    // nvcc leaves the host's half of a program to it.
    sh::install("g++", "g++")?;
    let missing = wheels().filter(|wheel| wanted(wheel) && !wheel.stamp().exists()).collect::<Vec<_>>();
    if missing.is_empty() {
        return Ok(());
    }
    if !sh::exists("python3") {
        bail!("python3 is needed to fetch the CUDA compiler: install it (Debian, Ubuntu: apt-get install python3)");
    }
    let cuda = paths::cuda();
    println!("fetching the CUDA compiler and runtimes ({} wheels from PyPI) into {}", missing.len(), cuda.display());
    let dirs: BTreeSet<PathBuf> = missing.iter().map(|wheel| cuda.join(wheel.into)).collect();
    let progress = Progress::of_downloads("  fetching", missing.len(), dirs.into_iter().collect());
    let fetched = sh::parallel(&missing, |wheel| {
        let done = wheel.fetch();
        if done.is_ok() {
            progress.part_done();
            progress.say(&format!("  {} {}", wheel.package, wheel.version));
        }
        done
    });
    drop(progress);
    fetched.into_iter().collect::<Result<Vec<()>>>()?;
    // nvcc looks for its libraries in lib64, where the wheels have lib.
    let lib64 = cuda.join("nvcc/lib64");
    if !lib64.exists() {
        std::os::unix::fs::symlink("lib", &lib64).context("cannot link lib64 to lib")?;
    }
    Ok(())
}
