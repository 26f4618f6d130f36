//! Packages of Debian's, unpacked and not installed.

use super::components::home;
use anyhow::{Context, Result, bail};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use xtask::sh;

const KEYS: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// Unpacks Debian's packages, by means of lists of our own, so that the machine's stay as they are.
pub(crate) fn unpack(root: &Path, wanted: &[(&str, &[&str])]) -> Result<()> {
    let lists = home().join("apt");
    let unfinished = home().join("debian.new");
    let _ = fs::remove_dir_all(&unfinished);
    for (release, packages) in wanted {
        let apt = Apt::new(&lists.join(release), release)?;
        apt.run(&["update"])?;
        let dir = lists.join(release).join("packages");
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(&dir)?;
        apt.run(&[&["download"], *packages].concat())?;
        for package in fs::read_dir(&dir)? {
            let package = package?.path();
            sh::output(Command::new("dpkg-deb").arg("-x").arg(&package).arg(&unfinished))?;
            println!("    {}", package.file_stem().unwrap_or_default().to_string_lossy());
        }
    }
    let _ = fs::remove_dir_all(&lists);
    fs::rename(&unfinished, root).context("cannot keep Debian's packages")
}

/// Where this machine gets Debian's packages from.
fn archive() -> Result<String> {
    if !Path::new(KEYS).exists() {
        bail!("containerd, etcd and runc come from Debian, and this machine does not have {KEYS}");
    }
    let mut command = Command::new("apt-get");
    let known = sh::output(command.args(["indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"]))?;
    let debian = known.lines().find(|address| address.trim_end_matches('/').ends_with("/debian"));
    debian.map(str::to_owned).context("apt-get has no source of Debian's packages on this machine")
}

/// apt-get with lists and settings of its own.
struct Apt {
    dir: PathBuf,
}

impl Apt {
    fn new(dir: &Path, release: &str) -> Result<Apt> {
        for part in ["state/lists/partial", "cache/archives/partial", "packages"] {
            fs::create_dir_all(dir.join(part))?;
        }
        let source = format!("deb [signed-by={KEYS}] {} {release} main\n", archive()?);
        fs::write(dir.join("sources.list"), source)?;
        Ok(Apt { dir: dir.to_path_buf() })
    }

    fn run(&self, words: &[&str]) -> Result<()> {
        let at = |part: &str| self.dir.join(part).display().to_string();
        let options = [
            format!("Dir::State={}", at("state")),
            format!("Dir::Cache={}", at("cache")),
            format!("Dir::Etc::sourcelist={}", at("sources.list")),
            "Dir::Etc::sourceparts=-".to_owned(),
            // Mirrors may be behind.
            "Acquire::Check-Valid-Until=false".to_owned(),
            // Of the lists only what is needed to download.
            "Acquire::Languages=none".to_owned(),
            "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false".to_owned(),
            "APT::Sandbox::User=root".to_owned(),
            "Acquire::Retries=3".to_owned(),
        ];
        let mut command = Command::new("apt-get");
        command.current_dir(self.dir.join("packages"));
        command.args(options.iter().flat_map(|option| ["-o", option]));
        sh::output(command.args(words)).map(drop)
    }
}
