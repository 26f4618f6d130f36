//! `cargo xtask deb`: a package for Debian and its kin, from the staged tree.
//!
//! The service is enabled and started when the package is installed, restarted when it is upgraded (programs that run go
//! on), and stopped when it is removed.

use crate::{paths, sh, stage};
use anyhow::{Context, Result};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The oldest C library that has all that our programs and libraries import (`objdump -T`).
const GLIBC: &str = "2.34";

/// Where each shell looks for completions, by its name.
const COMPLETIONS: [(&str, &str); 3] = [
    ("bash", "usr/share/bash-completion/completions/bulkhead"),
    ("zsh", "usr/share/zsh/vendor-completions/_bulkhead"),
    ("fish", "usr/share/fish/vendor_completions.d/bulkhead.fish"),
];

const PYTHON: &str = "usr/lib/python3/dist-packages/bulkhead";

const POSTINST: &str = r#"#!/bin/sh
set -e
if [ "$1" = configure ] && [ -d /run/systemd/system ]; then
    systemctl daemon-reload
    systemctl enable --quiet bulkhead-broker.service bulkhead.service bulkhead-exporter.service
    # A restart replaces the daemons only; tenants' programs go on.
    systemctl restart bulkhead-broker.service bulkhead.service bulkhead-exporter.service || true
fi
"#;

const PRERM: &str = r#"#!/bin/sh
set -e
if [ "$1" = remove ] && [ -d /run/systemd/system ]; then
    systemctl disable --quiet --now bulkhead-xen-backend.service bulkhead-exporter.service bulkhead.service bulkhead-broker.service || true
fi
"#;

const POSTRM: &str = r#"#!/bin/sh
set -e
if [ "$1" = purge ]; then
    rm -rf /var/lib/bulkhead /run/bulkhead
fi
if [ -d /run/systemd/system ]; then
    systemctl daemon-reload || true
fi
"#;

/// Builds everything, and the package.
pub fn build() -> Result<()> {
    stage::build(&stage::Options { strip: true, ..stage::Options::default() })?;
    pack("-Zxz")?;
    println!("{}", path().display());
    Ok(())
}

/// Where the package is.
pub fn path() -> PathBuf {
    paths::target().join(format!("bulkhead_{VERSION}_{}.deb", architecture()))
}

/// Makes the package from what is staged. `compression` is an option of dpkg-deb's.
pub fn pack(compression: &str) -> Result<()> {
    let root = paths::target().join("deb");
    let _ = fs::remove_dir_all(&root);
    lay_out(&paths::stage(), &root)?;
    let options = ["--root-owner-group", compression, "--build"];
    sh::output(Command::new("dpkg-deb").args(options).arg(&root).arg(path())).map(drop)
}

fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "aarch64" => "arm64",
        _ => "amd64",
    }
}

/// The tree of the package.
fn lay_out(stage: &Path, root: &Path) -> Result<()> {
    let packaging = paths::root().join("packaging");
    let files = [
        (stage.join("bin/bulkhead"), "usr/bin/bulkhead", 0o755),
        (stage.join("lib/bulkhead/libcuda.so.1"), "usr/lib/bulkhead/libcuda.so.1", 0o644),
        (stage.join("lib/bulkhead/libnvidia-ml.so.1"), "usr/lib/bulkhead/libnvidia-ml.so.1", 0o644),
        // For images of Xen guests, and for guests to get to the GPU. Enabled by hand (docs/xen-install.md), and not restarted
        // by upgrades: clients in guests lose their workers when the Xen backend ends.
        (stage.join("lib/bulkhead/bulkhead-init"), "usr/lib/bulkhead/bulkhead-init", 0o755),
        (
            packaging.join("bulkhead-xen-backend.service"),
            "usr/lib/systemd/system/bulkhead-xen-backend.service",
            0o644,
        ),
        (packaging.join("bulkhead.service"), "usr/lib/systemd/system/bulkhead.service", 0o644),
        (packaging.join("bulkhead-broker.service"), "usr/lib/systemd/system/bulkhead-broker.service", 0o644),
        (packaging.join("bulkhead-exporter.service"), "usr/lib/systemd/system/bulkhead-exporter.service", 0o644),
        (stage.join("lib/bulkhead/bulkhead-spawner"), "usr/lib/bulkhead/bulkhead-spawner", 0o755),
        (stage.join("lib/bulkhead/bulkhead-broker"), "usr/lib/bulkhead/bulkhead-broker", 0o755),
        (stage.join("lib/bulkhead/bulkhead-exporter"), "usr/lib/bulkhead/bulkhead-exporter", 0o755),
        (packaging.join("bulkhead.toml"), "etc/bulkhead/bulkhead.toml", 0o644),
        // Buffers by name, for programs.
        (paths::root().join("bindings/c/bulkhead_ipc.h"), "usr/include/bulkhead_ipc.h", 0o644),
        (paths::root().join("LICENSE-APACHE"), "usr/share/doc/bulkhead/LICENSE-APACHE", 0o644),
        (paths::root().join("LICENSE-MIT"), "usr/share/doc/bulkhead/copyright", 0o644),
    ];
    for (from, to, mode) in files {
        let bytes = fs::read(&from).with_context(|| format!("cannot read {}", from.display()))?;
        write(&root.join(to), &bytes, mode)?;
    }
    // The name in version 0.1.0: a node that has enabled it keeps it enabled.
    let old_unit = root.join("usr/lib/systemd/system/bulkhead-gate.service");
    std::os::unix::fs::symlink("bulkhead-xen-backend.service", old_unit)?;
    for entry in fs::read_dir(paths::root().join("bindings/python/bulkhead"))? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_owned();
        if path.extension().is_some_and(|ending| ending == "py") {
            write(&root.join(PYTHON).join(name), &fs::read(&path)?, 0o644)?;
        }
    }
    let says = |words: &[&str]| sh::output(Command::new(stage.join("bin/bulkhead")).args(words));
    write(&root.join("usr/share/man/man1/bulkhead.1"), says(&["man"])?.as_bytes(), 0o644)?;
    for (shell, place) in COMPLETIONS {
        write(&root.join(place), says(&["completions", shell])?.as_bytes(), 0o644)?;
    }
    write(&root.join("DEBIAN/control"), control().as_bytes(), 0o644)?;
    // What an operator has changed stays as it is.
    write(&root.join("DEBIAN/conffiles"), b"/etc/bulkhead/bulkhead.toml\n", 0o644)?;
    for (name, text) in [("postinst", POSTINST), ("prerm", PRERM), ("postrm", POSTRM)] {
        write(&root.join("DEBIAN").join(name), text.as_bytes(), 0o755)?;
    }
    Ok(())
}

fn control() -> String {
    format!(
        "Package: bulkhead\nVersion: {VERSION}\nArchitecture: {}\nMaintainer: Bulkhead developers\nSection: admin\n\
         Priority: optional\nDepends: libc6 (>= {GLIBC})\nDescription: GPUs shared between tenants that do not trust each \
         other\n A pod or program gets part of an NVIDIA GPU: memory and time that it cannot exceed, and no driver,\n \
         device node or privilege.\n",
        architecture()
    )
}

fn write(path: &Path, bytes: &[u8], mode: u32) -> Result<()> {
    if let Some(dir) = path.parent() {
        fs::create_dir_all(dir)?;
    }
    fs::write(path, bytes).with_context(|| format!("cannot write {}", path.display()))?;
    fs::set_permissions(path, fs::Permissions::from_mode(mode))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_that_users_need_is_in_it() {
        let dir = std::env::temp_dir().join(format!("bulkhead-deb-{}", std::process::id()));
        let (stage, root) = (dir.join("stage"), dir.join("root"));
        write(&stage.join("bin/bulkhead"), b"#!/bin/sh\necho \"$@\"\n", 0o755).unwrap();
        for name in ["libcuda.so.1", "libnvidia-ml.so.1", "bulkhead-init"].iter().chain(&stage::DAEMONS) {
            write(&stage.join("lib/bulkhead").join(name), b"", 0o644).unwrap();
        }
        lay_out(&stage, &root).unwrap();
        let read = |path: &str| fs::read_to_string(root.join(path)).unwrap_or_else(|error| panic!("{path}: {error}"));
        for (shell, place) in COMPLETIONS {
            assert_eq!(read(place), format!("completions {shell}\n"));
        }
        assert_eq!(read("usr/share/man/man1/bulkhead.1"), "man\n");
        let old_unit = fs::read_link(root.join("usr/lib/systemd/system/bulkhead-gate.service")).unwrap();
        assert_eq!(old_unit, Path::new("bulkhead-xen-backend.service"));
        assert!(read("usr/lib/systemd/system/bulkhead-xen-backend.service").contains("bulkhead xen-backend"));
        assert!(read("usr/include/bulkhead_ipc.h").contains("bulkhead"));
        assert!(read("usr/lib/python3/dist-packages/bulkhead/__init__.py").contains("import"));
        assert!(read("DEBIAN/control").contains("Depends: libc6 (>= 2.34)\n"));
        fs::remove_dir_all(dir).unwrap();
    }
}
