//! `release trial`: what every change must pass, without the long build. What is staged is packed twice, at different times and
//! in different directories, signed with a key made for it, and verified with the tools of those who get releases.

use anyhow::{Context, Result, ensure};
use std::fs;
use std::path::Path;
use std::process::Command;
use xtask::{paths, sh};

use crate::make::{self, Options};
use crate::{sign, verify};

const REGISTRY: &str = "registry.example/trial";

pub(crate) fn run() -> Result<()> {
    sh::install("rpm", "rpm")?;
    sh::install("cpio", "cpio")?;
    sh::install("openssl", "openssl")?;
    let dir = paths::target().join("release-trial");
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir_all(&dir)?;
    let key = dir.join("key.pem");
    sh::output(Command::new("openssl").args(["genpkey", "-algorithm", "ed25519", "-out"]).arg(&key))?;
    let options = |out: &str| Options {
        out: dir.join(out),
        sign: Some(key.clone()),
        // As published ones are: pushed to a registry that is not the examples'.
        registry: REGISTRY.to_owned(),
        source: Some("https://git.example/bulkhead".to_owned()),
        staged: true,
        allow_dirty: true,
        ..Options::default()
    };
    let first = make::release(&options("one"))?;
    let second = make::release(&options("another/place"))?;
    same(&first, &second)?;
    let release = dir.join("one");
    let public = dir.join("trusted.pub");
    fs::copy(release.join(sign::PUBLIC_KEY), &public)?;
    verify::release(&release, Some(&public), false)?;
    registry_is_named(&release)?;
    tampering(&release, &public)?;
    fs::remove_dir_all(dir).context("cannot clean up")
}

pub(crate) fn same(
    first: &std::collections::BTreeMap<String, String>,
    second: &std::collections::BTreeMap<String, String>,
) -> Result<()> {
    for (name, sum) in first {
        ensure!(second.get(name) == Some(sum), "{name} is not the same bytes the second time");
    }
    ensure!(first.len() == second.len(), "the second time there are other files");
    println!("{} files are the same bytes both times", first.len());
    Ok(())
}

/// Whoever does not import the archives pulls from where they were pushed.
fn registry_is_named(release: &Path) -> Result<()> {
    let list: serde_json::Value = serde_json::from_slice(&fs::read(release.join(make::IMAGES))?)?;
    for image in ["bulkhead", "examples"] {
        let named = &list[image]["repository"];
        ensure!(*named == format!("{REGISTRY}/{image}"), "{} has {image} in {named}", make::IMAGES);
    }
    let chart = release.join(format!("bulkhead-{}.tgz", xtask::package::VERSION));
    let values = sh::output(Command::new("tar").arg("-xzOf").arg(chart).arg("bulkhead/values.yaml"))?;
    ensure!(values.contains(&format!("repository: {REGISTRY}/bulkhead\n")), "the chart does not name {REGISTRY}");
    Ok(())
}

/// What was changed on the way is found.
fn tampering(release: &Path, public: &Path) -> Result<()> {
    let file = release.join(make::IMAGES);
    let text = fs::read_to_string(&file)?;
    fs::write(&file, text.replace("sha256:", "sha256:0"))?;
    let error = verify::release(release, Some(public), false).err().map(|error| format!("{error:#}"));
    ensure!(
        error.as_deref() == Some("images.json is not what SHA256SUMS says"),
        "a changed file is not found: {error:?}"
    );
    fs::write(&file, text)?;
    // Whoever changes the checksums, too, has no key.
    let sums = release.join(crate::sums::NAME);
    let mut text = fs::read_to_string(&sums)?;
    fs::write(release.join("more"), "")?;
    text.push_str(&format!("{}  more\n", xtask::archive::sha256(b"")));
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_by_key(|line| line.split_once("  ").map(|(_, name)| name));
    fs::write(&sums, lines.join("\n") + "\n")?;
    let error = verify::release(release, Some(public), false).err().map(|error| format!("{error:#}"));
    ensure!(
        error.as_ref().is_some_and(|error| error.contains("SHA256SUMS is not good")),
        "changed checksums are not found: {error:?}"
    );
    println!("changed files and changed checksums are found");
    Ok(())
}
