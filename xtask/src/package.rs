//! The files of an installed Bulkhead: what the packages for Debian and its kin, for Fedora and its kin, and the tarball hold.

use crate::archive::Tree;
use crate::{paths, sh, stage};
use anyhow::{Context, Result};
use std::fs;
use std::path::Path;
use std::process::Command;

pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The oldest C library that all programs and libraries of a release run with.
pub const GLIBC: &str = "2.28";

pub const SUMMARY: &str = "GPUs shared between tenants that do not trust each other";

pub const DESCRIPTION: [&str; 2] = [
    "A pod or program gets part of an NVIDIA GPU: memory and time that it cannot exceed, and no driver,",
    "device node or privilege.",
];

/// What an operator has changed stays as it is.
pub const CONFIG: &str = "etc/bulkhead/bulkhead.toml";

/// The services of a node, in the order in which they start.
pub const SERVICES: &str = "bulkhead-broker.service bulkhead.service bulkhead-exporter.service";

/// Where a kind of package puts what is not in the same place everywhere.
pub struct Places {
    pub units: &'static str,
    pub zsh: &'static str,
    pub python: &'static str,
}

pub const DEBIAN: Places = Places {
    units: "usr/lib/systemd/system",
    zsh: "usr/share/zsh/vendor-completions",
    python: "usr/lib/python3/dist-packages",
};

/// Python's own directory has its version in its name there, so that the module lies beside.
pub const FEDORA: Places = Places {
    units: "usr/lib/systemd/system",
    zsh: "usr/share/zsh/site-functions",
    python: "usr/share/bulkhead/python",
};

const UNITS: [&str; 4] =
    ["bulkhead.service", "bulkhead-broker.service", "bulkhead-exporter.service", "bulkhead-xen-backend.service"];

/// The tree of a package, from what is staged.
pub fn tree(stage: &Path, places: &Places) -> Result<Tree> {
    let (root, packaging) = (paths::root(), paths::root().join("packaging"));
    let mut tree = Tree::default();
    tree.file("usr/bin/bulkhead", &stage.join("bin/bulkhead"), 0o755);
    let lib = stage.join("lib/bulkhead");
    for library in ["libcuda.so.1", "libnvidia-ml.so.1"] {
        tree.file(&format!("usr/lib/bulkhead/{library}"), &lib.join(library), 0o644);
    }
    // bulkhead-init is for images of Xen guests, nvidia-smi for containers.
    for program in stage::DAEMONS.iter().chain(&["bulkhead-init", stage::SMI]) {
        tree.file(&format!("usr/lib/bulkhead/{program}"), &lib.join(program), 0o755);
    }
    // The Xen backend is enabled by hand (docs/xen-install.md), and not restarted by upgrades: clients in guests lose their
    // workers when it ends.
    for unit in UNITS {
        tree.file(&format!("{}/{unit}", places.units), &packaging.join(unit), 0o644);
    }
    // The name in version 0.1.0: a node that has enabled it keeps it enabled.
    let link = crate::archive::Entry::Link("bulkhead-xen-backend.service".to_owned());
    tree.add(&format!("{}/bulkhead-gate.service", places.units), link);
    tree.file(CONFIG, &packaging.join("bulkhead.toml"), 0o644);
    // Buffers by name, for programs.
    tree.file("usr/include/bulkhead_ipc.h", &root.join("bindings/c/bulkhead_ipc.h"), 0o644);
    for entry in fs::read_dir(root.join("bindings/python/bulkhead"))? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.extension().is_some_and(|ending| ending == "py") {
            tree.file(&format!("{}/bulkhead/{name}", places.python), &path, 0o644);
        }
    }
    tree.file("usr/share/doc/bulkhead/LICENSE-APACHE", &root.join("LICENSE-APACHE"), 0o644);
    tree.file("usr/share/doc/bulkhead/copyright", &root.join("LICENSE-MIT"), 0o644);
    written_by_the_program(stage, places, &mut tree)?;
    Ok(tree)
}

/// Man pages and completions.
fn written_by_the_program(stage: &Path, places: &Places, tree: &mut Tree) -> Result<()> {
    let bulkhead = stage.join("bin/bulkhead");
    let pages = paths::target().join(format!("man-{}", std::process::id()));
    let _ = fs::remove_dir_all(&pages);
    fs::create_dir_all(&pages)?;
    sh::output(Command::new(&bulkhead).args(["man", "--dir"]).arg(&pages))?;
    for entry in fs::read_dir(&pages)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        tree.bytes(&format!("usr/share/man/man1/{name}"), fs::read(&path)?, 0o644);
    }
    fs::remove_dir_all(&pages).context("cannot remove the man pages")?;
    let zsh = format!("{}/_bulkhead", places.zsh);
    let completions = [
        ("bash", "usr/share/bash-completion/completions/bulkhead"),
        ("zsh", zsh.as_str()),
        ("fish", "usr/share/fish/vendor_completions.d/bulkhead.fish"),
    ];
    for (shell, place) in completions {
        tree.bytes(place, sh::output(Command::new(&bulkhead).args(["completions", shell]))?, 0o644);
    }
    Ok(())
}

/// For tests: a staged tree of programs that only say what they were asked.
#[doc(hidden)]
pub fn pretend_stage(stage: &Path) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    fs::create_dir_all(stage.join("bin"))?;
    fs::create_dir_all(stage.join("lib/bulkhead"))?;
    let script =
        "#!/bin/sh\nif [ \"$1 $2\" = 'man --dir' ]; then echo page > \"$3/bulkhead.1\"; else echo \"$@\"; fi\n";
    fs::write(stage.join("bin/bulkhead"), script)?;
    fs::set_permissions(stage.join("bin/bulkhead"), fs::Permissions::from_mode(0o755))?;
    for name in ["libcuda.so.1", "libnvidia-ml.so.1", "bulkhead-init", stage::SMI].iter().chain(&stage::DAEMONS) {
        fs::write(stage.join("lib/bulkhead").join(name), *name)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::archive::Entry;

    #[test]
    fn everything_that_users_need_is_in_it() {
        let stage = std::env::temp_dir().join(format!("bulkhead-package-{}", std::process::id()));
        pretend_stage(&stage).unwrap();
        let tree = tree(&stage, &DEBIAN).unwrap();
        let read = |wanted: &str| match tree.entries().find(|(path, _)| *path == wanted).map(|(_, entry)| entry) {
            Some(Entry::File { from, .. }) => fs::read_to_string(from).unwrap(),
            Some(Entry::Bytes { bytes, .. }) => String::from_utf8(bytes.clone()).unwrap(),
            Some(Entry::Link(to)) => to.clone(),
            other => panic!("{wanted}: {other:?}"),
        };
        assert_eq!(read("usr/share/bash-completion/completions/bulkhead"), "completions bash\n");
        assert_eq!(read("usr/share/zsh/vendor-completions/_bulkhead"), "completions zsh\n");
        assert_eq!(read("usr/share/fish/vendor_completions.d/bulkhead.fish"), "completions fish\n");
        assert_eq!(read("usr/share/man/man1/bulkhead.1"), "page\n");
        assert_eq!(read("usr/lib/systemd/system/bulkhead-gate.service"), "bulkhead-xen-backend.service");
        assert!(read("usr/lib/systemd/system/bulkhead-xen-backend.service").contains("bulkhead xen-backend"));
        assert!(read("usr/include/bulkhead_ipc.h").contains("bulkhead"));
        assert!(read("usr/lib/python3/dist-packages/bulkhead/__init__.py").contains("import"));
        for service in SERVICES.split(' ') {
            assert!(read(&format!("usr/lib/systemd/system/{service}")).contains("[Service]"));
        }
        fs::remove_dir_all(stage).unwrap();
    }
}
