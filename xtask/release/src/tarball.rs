//! The tarball: what the packages hold, to be unpacked anywhere; `bin/bulkhead` finds its libraries beside it.

use anyhow::Result;
use std::path::Path;
use xtask::archive::Tree;
use xtask::package::{self, DEBIAN, VERSION};
use xtask::paths;

/// Such as `bulkhead-0.1.0-linux-x86_64.tar.gz`.
pub(crate) fn name() -> String {
    format!("bulkhead-{VERSION}-linux-{}.tar.gz", std::env::consts::ARCH)
}

pub(crate) fn bytes(stage: &Path, time: u64) -> Result<Vec<u8>> {
    tree(stage)?.below(&format!("bulkhead-{VERSION}")).tar_gz(time)
}

/// As below `/usr/local`, but for the configuration and the units, whose places an operator decides on.
fn tree(stage: &Path) -> Result<Tree> {
    let mut tree = Tree::default();
    for (path, entry) in package::tree(stage, &DEBIAN)?.entries() {
        let place = match path {
            package::CONFIG => Some("share/bulkhead/bulkhead.toml".to_owned()),
            _ => path.strip_prefix("usr/").map(|path| {
                path.strip_prefix("lib/systemd/system")
                    .map_or(path.to_owned(), |unit| format!("share/bulkhead/systemd{unit}"))
            }),
        };
        let is_dir = matches!(entry, xtask::archive::Entry::Dir { .. });
        if let Some(place) = place.filter(|_| !is_dir) {
            let place = place.replace("lib/python3/dist-packages", "share/bulkhead/python");
            tree.add(&place, entry.clone());
        }
    }
    for file in ["README.md", "CHANGELOG.md", "LICENSE-APACHE", "LICENSE-MIT"] {
        tree.file(file, &paths::root().join(file), 0o644);
    }
    Ok(tree)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_runs_where_it_is_unpacked() {
        let stage = std::env::temp_dir().join(format!("release-tarball-{}", std::process::id()));
        package::pretend_stage(&stage).unwrap();
        let tree = tree(&stage).unwrap();
        let paths: Vec<&str> = tree.entries().map(|(path, _)| path).collect();
        let wanted = ["bin/bulkhead", "lib/bulkhead/libcuda.so.1", "lib/bulkhead/bulkhead-broker", "LICENSE-MIT"];
        for path in wanted.iter().chain(&[
            "share/bulkhead/bulkhead.toml",
            "share/bulkhead/systemd/bulkhead.service",
            "share/bulkhead/python/bulkhead/__init__.py",
            "share/man/man1/bulkhead.1",
        ]) {
            assert!(paths.contains(path), "{path} is not in {paths:?}");
        }
        assert!(paths.iter().all(|path| !path.starts_with("usr") && !path.starts_with("lib/systemd")), "{paths:?}");
        std::fs::remove_dir_all(stage).unwrap();
    }
}
