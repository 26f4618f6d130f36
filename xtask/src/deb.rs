//! `cargo xtask deb`: a package for Debian and its kin, from the staged tree.
//!
//! The service is enabled and started when the package is installed, restarted when it is upgraded (programs that run go
//! on), and stopped when it is removed. It is written without Debian's own tools, whose versions would show in the bytes.

use crate::archive::{Entry, Tree};
use crate::package::{self, CONFIG, DESCRIPTION, SERVICES, SUMMARY, VERSION};
use crate::{paths, stage};
use anyhow::{Context, Result};
use std::fs;
use std::path::{Path, PathBuf};

/// The oldest C library that has what the programs of an ordinary build import; those of a release need less.
const GLIBC: &str = "2.34";

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Compression {
    /// Quick, for packages that are installed once.
    None,
    Gzip,
}

/// What differs between packages of one tree.
pub struct Options<'a> {
    pub compression: Compression,
    /// The oldest C library that the programs run with.
    pub glibc: &'a str,
    /// The time of all files, in seconds since 1970.
    pub time: u64,
}

/// Builds everything, unless what is staged is to be taken, and the package.
pub fn build(staged: bool) -> Result<()> {
    if !staged {
        stage::build(&stage::Options { strip: true, ..stage::Options::default() })?;
    }
    pack(Compression::Gzip)?;
    println!("{}", path().display());
    Ok(())
}

/// Where the package is.
pub fn path() -> PathBuf {
    paths::target().join(name())
}

/// Such as `bulkhead_0.1.0_amd64.deb`.
pub fn name() -> String {
    format!("bulkhead_{VERSION}_{}.deb", architecture())
}

/// Makes the package from what is staged.
pub fn pack(compression: Compression) -> Result<()> {
    let time = std::time::UNIX_EPOCH.elapsed().map_or(0, |time| time.as_secs());
    let bytes = bytes(&paths::stage(), &Options { compression, glibc: GLIBC, time })?;
    fs::write(path(), bytes).with_context(|| format!("cannot write {}", path().display()))
}

/// The package as it is in its file.
pub fn bytes(stage: &Path, options: &Options) -> Result<Vec<u8>> {
    let files = package::tree(stage, &package::DEBIAN)?;
    let mut control = Tree::default();
    control.bytes("control", self::control(options.glibc, size(&files)?), 0o644);
    control.bytes("conffiles", format!("/{CONFIG}\n"), 0o644);
    for (name, text) in [("postinst", postinst()), ("prerm", prerm()), ("postrm", postrm().to_owned())] {
        control.bytes(name, text, 0o755);
    }
    let packed = |tree: &Tree| match options.compression {
        Compression::None => tree.tar(options.time),
        Compression::Gzip => tree.tar_gz(options.time),
    };
    let ending = if options.compression == Compression::None { "" } else { ".gz" };
    let members = [
        ("debian-binary".to_owned(), b"2.0\n".to_vec()),
        (format!("control.tar{ending}"), packed(&control)?),
        (format!("data.tar{ending}"), packed(&files)?),
    ];
    Ok(ar(&members, options.time))
}

/// An archive of Unix's old kind.
fn ar(members: &[(String, Vec<u8>)], time: u64) -> Vec<u8> {
    let mut out = b"!<arch>\n".to_vec();
    for (name, bytes) in members {
        out.extend(format!("{name:<16}{time:<12}{:<6}{:<6}{:<8}{:<10}`\n", 0, 0, "100644", bytes.len()).bytes());
        out.extend(bytes);
        if bytes.len() % 2 == 1 {
            out.push(b'\n');
        }
    }
    out
}

fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "aarch64" => "arm64",
        _ => "amd64",
    }
}

/// In KiB, as dpkg tells it to those who install.
fn size(files: &Tree) -> Result<u64> {
    let mut size = 0;
    for (_, entry) in files.entries() {
        size += match entry {
            Entry::File { from, .. } => {
                fs::metadata(from).with_context(|| format!("cannot read {}", from.display()))?.len()
            }
            Entry::Bytes { bytes, .. } => bytes.len() as u64,
            Entry::Dir { .. } | Entry::Link(_) => 0,
        };
    }
    Ok(size.div_ceil(1024))
}

fn control(glibc: &str, size: u64) -> String {
    let description: String = DESCRIPTION.iter().map(|line| format!(" {line}\n")).collect();
    format!(
        "Package: bulkhead\nVersion: {VERSION}\nArchitecture: {}\nMaintainer: Bulkhead developers\n\
         Installed-Size: {size}\nSection: admin\nPriority: optional\nDepends: libc6 (>= {glibc})\n\
         Description: {SUMMARY}\n{description}",
        architecture()
    )
}

fn postinst() -> String {
    format!(
        r#"#!/bin/sh
set -e
if [ "$1" = configure ] && [ -d /run/systemd/system ]; then
    systemctl daemon-reload
    systemctl enable --quiet {SERVICES}
    # A restart replaces the daemons only; tenants' programs go on.
    systemctl restart {SERVICES} || true
fi
"#
    )
}

fn prerm() -> String {
    format!(
        r#"#!/bin/sh
set -e
if [ "$1" = remove ] && [ -d /run/systemd/system ]; then
    systemctl disable --quiet --now bulkhead-xen-backend.service {SERVICES} || true
fi
"#
    )
}

fn postrm() -> &'static str {
    r#"#!/bin/sh
set -e
if [ "$1" = purge ]; then
    rm -rf /var/lib/bulkhead /run/bulkhead
fi
if [ -d /run/systemd/system ]; then
    systemctl daemon-reload || true
fi
"#
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sh;
    use std::process::Command;

    #[test]
    fn debian_reads_it() {
        let dir = std::env::temp_dir().join(format!("bulkhead-deb-{}", std::process::id()));
        package::pretend_stage(&dir).unwrap();
        for compression in [Compression::None, Compression::Gzip] {
            let options = Options { compression, glibc: "2.28", time: 1_000_000_000 };
            let made = bytes(&dir, &options).unwrap();
            assert_eq!(made, bytes(&dir, &options).unwrap());
            let file = dir.join("package.deb");
            fs::write(&file, made).unwrap();
            let ask = |words: &[&str]| sh::output(Command::new("dpkg-deb").args(words).arg(&file)).unwrap();
            assert!(ask(&["--info"]).contains("Depends: libc6 (>= 2.28)\n"));
            let list = ask(&["--contents"]);
            assert!(list.contains("-rwxr-xr-x root/root"), "{list}");
            assert!(list.contains("2001-09-09"), "{list}");
            assert!(
                list.contains("./usr/lib/bulkhead/libcuda.so.1") || list.contains(" usr/lib/bulkhead/libcuda.so.1")
            );
            sh::output(Command::new("dpkg-deb").arg("--extract").arg(&file).arg(dir.join("out"))).unwrap();
            assert_eq!(fs::read(dir.join("out/usr/lib/bulkhead/bulkhead-broker")).unwrap(), b"bulkhead-broker");
            sh::output(Command::new("dpkg-deb").arg("--control").arg(&file).arg(dir.join("control"))).unwrap();
            let conffiles = fs::read_to_string(dir.join("control/conffiles")).unwrap();
            assert_eq!(conffiles, "/etc/bulkhead/bulkhead.toml\n");
            for part in ["out", "control"] {
                fs::remove_dir_all(dir.join(part)).unwrap();
            }
        }
        fs::remove_dir_all(dir).unwrap();
    }
}
