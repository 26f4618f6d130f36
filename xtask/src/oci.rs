//! Container images without a registry: a directory becomes an OCI archive that containerd and Podman import.

use crate::sh;
use anyhow::{Context, Result, bail};
use serde_json::json;
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

/// An image in the making: a root directory to which files are added.
pub(crate) struct Image {
    /// Such as `bulkhead.dev/pause:0.1.0`.
    name: String,
    dir: PathBuf,
}

impl Image {
    /// `dir` is emptied.
    pub(crate) fn new(name: &str, dir: &Path) -> Result<Image> {
        let _ = fs::remove_dir_all(dir);
        let root = dir.join("root");
        for part in ["usr/bin", "usr/sbin", "usr/lib/x86_64-linux-gnu", "usr/lib64", "etc", "tmp"] {
            fs::create_dir_all(root.join(part)).with_context(|| format!("cannot make {}", dir.display()))?;
        }
        // As in Debian and everywhere else today.
        for (link, to) in [("bin", "usr/bin"), ("sbin", "usr/sbin"), ("lib", "usr/lib"), ("lib64", "usr/lib64")] {
            symlink(to, root.join(link))?;
        }
        fs::set_permissions(root.join("tmp"), fs::Permissions::from_mode(0o1777))?;
        Ok(Image { name: name.to_owned(), dir: dir.to_path_buf() })
    }

    /// Puts a file at `to`.
    pub(crate) fn file(&self, from: &Path, to: &str) -> Result<()> {
        let target = self.dir.join("root").join(to.trim_start_matches('/'));
        fs::create_dir_all(target.parent().context("a file lies in a directory")?)?;
        fs::copy(from, &target).map(drop).with_context(|| format!("cannot copy {} into an image", from.display()))
    }

    /// Puts a program at `to`, and the libraries that it loads where the loader looks for them.
    pub(crate) fn program(&self, from: &Path, to: &str) -> Result<()> {
        self.file(from, to)?;
        for library in libraries(from)? {
            let name = library.file_name().context("a library has a name")?.to_string_lossy().into_owned();
            let dir = if name.starts_with("ld-linux") { "usr/lib64" } else { "usr/lib/x86_64-linux-gnu" };
            // Through links: what counts is the name under which it is loaded.
            self.file(&fs::canonicalize(&library)?, &format!("{dir}/{name}"))?;
        }
        Ok(())
    }

    /// Takes the symbols out of a file of ours, which are most of it.
    pub(crate) fn strip(&self, file: &str) -> Result<()> {
        sh::run(Command::new("strip").arg("--strip-unneeded").arg(self.dir.join("root").join(file)))
    }

    /// A program of this machine, from wherever PATH has it.
    pub(crate) fn tool(&self, name: &str) -> Result<()> {
        let found = sh::output(Command::new("sh").args(["-c", "command -v \"$0\"", name]))?;
        let found = fs::canonicalize(found.trim()).with_context(|| format!("there is no {name} on this machine"))?;
        self.program(&found, &format!("usr/bin/{name}"))
    }

    /// Writes the archive; gives its path.
    pub(crate) fn archive(self, entrypoint: &[&str]) -> Result<PathBuf> {
        let blobs = self.dir.join("oci/blobs/sha256");
        fs::create_dir_all(&blobs)?;
        let layer = self.dir.join("layer.tar");
        let owner = ["--owner=0", "--group=0", "--numeric-owner", "--sort=name", "--mtime=@0"];
        sh::output(
            Command::new("tar").args(owner).arg("-cf").arg(&layer).arg("-C").arg(self.dir.join("root")).arg("."),
        )?;
        let layer = blob(&blobs, &layer)?;
        let config = json!({
            "architecture": "amd64", "os": "linux",
            "config": { "Entrypoint": entrypoint, "Env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"], "WorkingDir": "/" },
            "rootfs": { "type": "layers", "diff_ids": [layer.digest] },
        });
        let config = self.document(&blobs, &config)?;
        let manifest = json!({
            "schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": config.descriptor("application/vnd.oci.image.config.v1+json"),
            "layers": [layer.descriptor("application/vnd.oci.image.layer.v1.tar")],
        });
        let mut manifest = self.document(&blobs, &manifest)?.descriptor("application/vnd.oci.image.manifest.v1+json");
        // containerd and Docker go by the one, Podman by the other.
        manifest["annotations"] =
            json!({ "io.containerd.image.name": self.name, "org.opencontainers.image.ref.name": self.name });
        let index = json!({ "schemaVersion": 2, "manifests": [manifest] });
        fs::write(self.dir.join("oci/index.json"), index.to_string())?;
        fs::write(self.dir.join("oci/oci-layout"), json!({ "imageLayoutVersion": "1.0.0" }).to_string())?;
        let archive = self.dir.join("image.tar");
        sh::output(Command::new("tar").arg("-cf").arg(&archive).arg("-C").arg(self.dir.join("oci")).arg("."))?;
        Ok(archive)
    }

    fn document(&self, blobs: &Path, document: &serde_json::Value) -> Result<Blob> {
        let file = self.dir.join("document.json");
        fs::write(&file, document.to_string())?;
        blob(blobs, &file)
    }
}

struct Blob {
    digest: String,
    size: u64,
}

impl Blob {
    fn descriptor(&self, kind: &str) -> serde_json::Value {
        json!({ "mediaType": kind, "digest": self.digest, "size": self.size })
    }
}

/// Moves a file to where its hash says.
fn blob(blobs: &Path, file: &Path) -> Result<Blob> {
    let said = sh::output(Command::new("sha256sum").arg(file))?;
    let hash = said.split_whitespace().next().context("sha256sum said nothing")?;
    let size = fs::metadata(file)?.len();
    fs::rename(file, blobs.join(hash))?;
    Ok(Blob { digest: format!("sha256:{hash}"), size })
}

/// What the loader would load for a program, itself included; nothing for a static one.
fn libraries(program: &Path) -> Result<BTreeSet<PathBuf>> {
    let output = sh::capture(Command::new("ldd").arg(program))?;
    let said = String::from_utf8_lossy(&output.stdout);
    if let Some(missing) = said.lines().find(|line| line.contains("not found")) {
        bail!("{}: {}", program.display(), missing.trim());
    }
    let words = said.lines().filter_map(|line| line.split_whitespace().find(|word| word.starts_with('/')));
    Ok(words.map(PathBuf::from).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_holds_its_program_with_all_that_it_loads() {
        let dir = std::env::temp_dir().join(format!("xtask-image-{}", std::process::id()));
        let image = Image::new("bulkhead.dev/tool:1", &dir).unwrap();
        image.tool("cat").unwrap();
        fs::write(dir.join("root/etc/word"), "spoken").unwrap();
        let archive = image.archive(&["/usr/bin/cat"]).unwrap();
        let names = sh::output(Command::new("tar").arg("-tf").arg(archive)).unwrap();
        assert_eq!(names.lines().filter(|name| name.contains("blobs/sha256/") && !name.ends_with('/')).count(), 3);
        // Only root may change roots.
        if testkit::is_root() {
            let mut chroot = Command::new("chroot");
            let said = sh::output(chroot.arg(dir.join("root")).args(["/bin/cat", "/etc/word"])).unwrap();
            assert_eq!(said, "spoken");
        }
        fs::remove_dir_all(dir).unwrap();
    }
}
