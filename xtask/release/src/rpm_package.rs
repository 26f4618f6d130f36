//! A package for Fedora, RHEL and their kin, with the same files as Debian's and the same effect on the services.

use anyhow::{Context, Result};
use rpm::{BuildConfig, CompressionType, Dependency, FileOptions, PackageBuilder};
use std::path::Path;
use xtask::archive::Entry;
use xtask::package::{self, CONFIG, DESCRIPTION, FEDORA, GLIBC, SERVICES, SUMMARY, VERSION};

const RELEASE: &str = "1";

/// Such as `bulkhead-0.1.0-1.x86_64.rpm`.
pub(crate) fn name() -> String {
    format!("bulkhead-{VERSION}-{RELEASE}.{}.rpm", std::env::consts::ARCH)
}

pub(crate) fn bytes(stage: &Path, time: u64) -> Result<Vec<u8>> {
    let time = u32::try_from(time).context("the commit's time is beyond what an RPM can hold")?;
    let mut builder = PackageBuilder::new("bulkhead", VERSION, "Apache-2.0 OR MIT", std::env::consts::ARCH, SUMMARY);
    // Version 4 is what RHEL 8 and 9 read.
    builder.using_config(BuildConfig::v4().compression(CompressionType::Gzip).source_date(time));
    builder.release(RELEASE).description(DESCRIPTION.join(" ")).build_host("localhost");
    builder.requires(Dependency::any(format!("libc.so.6(GLIBC_{GLIBC})(64bit)")));
    let tree = package::tree(stage, &FEDORA)?;
    for (path, entry) in tree.entries() {
        let place = format!("/{path}");
        let (bytes, mode) = match entry {
            // Directories of others are theirs.
            Entry::Dir { .. } if !is_ours(path) => continue,
            Entry::Dir { mode } => {
                builder.with_dir_entry(FileOptions::dir(place).permissions(*mode as u16))?;
                continue;
            }
            Entry::Link(to) => {
                builder.with_symlink(FileOptions::symlink(place, to.as_str()))?;
                continue;
            }
            Entry::File { from, mode } => {
                (std::fs::read(from).with_context(|| format!("cannot read {}", from.display()))?, *mode)
            }
            Entry::Bytes { bytes, mode } => (bytes.clone(), *mode),
        };
        let mut options = FileOptions::new(place).permissions(mode as u16);
        if path == CONFIG {
            options = options.config().noreplace();
        } else if path.contains("/doc/") {
            options = options.doc();
        }
        builder.with_file_contents(bytes, options)?;
    }
    builder.post_install_script(post()).pre_uninstall_script(preun()).post_uninstall_script(postun());
    let mut bytes = Vec::new();
    builder.build()?.write(&mut bytes)?;
    Ok(bytes)
}

/// Whether a directory comes and goes with the package.
fn is_ours(path: &str) -> bool {
    path.rsplit('/').next() == Some("bulkhead")
}

fn post() -> String {
    format!(
        "if [ -d /run/systemd/system ]; then\n    systemctl daemon-reload\n    systemctl enable --quiet {SERVICES}\n    \
         # A restart replaces the daemons only; tenants' programs go on.\n    systemctl restart {SERVICES} || true\nfi\n"
    )
}

/// 0: no version stays.
fn preun() -> String {
    format!(
        "if [ \"$1\" = 0 ] && [ -d /run/systemd/system ]; then\n    \
         systemctl disable --quiet --now bulkhead-xen-backend.service {SERVICES} || true\nfi\n"
    )
}

fn postun() -> &'static str {
    "if [ -d /run/systemd/system ]; then\n    systemctl daemon-reload || true\nfi\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_holds_what_debians_holds() {
        let stage = std::env::temp_dir().join(format!("release-rpm-{}", std::process::id()));
        package::pretend_stage(&stage).unwrap();
        let made = bytes(&stage, 1_000_000_000).unwrap();
        assert_eq!(made, bytes(&stage, 1_000_000_000).unwrap(), "the same bytes each time");
        let package = rpm::Package::parse(&mut made.as_slice()).unwrap();
        let entries = package.metadata.get_file_entries().unwrap();
        let names: Vec<String> = entries.iter().map(|entry| entry.path().display().to_string()).collect();
        let debian = package::tree(&stage, &package::DEBIAN).unwrap();
        let same = |path: &str| {
            path.replace("vendor-completions/_", "site-functions/_")
                .replace("/lib/python3/dist-packages", "/share/bulkhead/python")
        };
        for (path, _) in debian.entries().filter(|(_, entry)| !matches!(entry, Entry::Dir { .. })) {
            assert!(names.contains(&same(&format!("/{path}"))), "{path} is not in {names:?}");
        }
        std::fs::remove_dir_all(stage).unwrap();
    }
}
