//! Container images without a registry: a directory becomes an OCI archive that containerd and Podman import.

use crate::archive::{self, Tree};
use crate::{distribution, sh};
use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

/// An image in the making: a root directory to which files are added.
pub(crate) struct Image {
    /// Such as `bulkhead.dev/pause:0.1.0`.
    name: String,
    dir: PathBuf,
    /// Files of this machine that are in it.
    foreign: BTreeSet<PathBuf>,
}

/// An image that is made.
pub struct Built {
    /// With registry and tag.
    pub name: String,
    pub archive: PathBuf,
    /// What a registry calls it: the hash of its manifest.
    pub digest: String,
    /// Packages of this machine's distribution of which it has files.
    pub packages: BTreeSet<distribution::Package>,
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
        Ok(Image { name: name.to_owned(), dir: dir.to_path_buf(), foreign: BTreeSet::new() })
    }

    /// Puts a file at `to`.
    pub(crate) fn file(&self, from: &Path, to: &str) -> Result<()> {
        let target = self.dir.join("root").join(to.trim_start_matches('/'));
        fs::create_dir_all(target.parent().context("a file lies in a directory")?)?;
        fs::copy(from, &target).map(drop).with_context(|| format!("cannot copy {} into an image", from.display()))
    }

    /// Puts a file of this text at `to`.
    pub(crate) fn text(&self, text: &str, to: &str) -> Result<()> {
        fs::write(self.dir.join("root").join(to), text).with_context(|| format!("cannot write {to} of an image"))
    }

    /// Puts a program at `to`, and the libraries that it loads where the loader looks for them.
    pub(crate) fn program(&mut self, from: &Path, to: &str) -> Result<()> {
        self.file(from, to)?;
        for library in libraries(from)? {
            let name = library.file_name().context("a library has a name")?.to_string_lossy().into_owned();
            let dir = if name.starts_with("ld-linux") { "usr/lib64" } else { "usr/lib/x86_64-linux-gnu" };
            // Through links: what counts is the name under which it is loaded.
            self.file(&fs::canonicalize(&library)?, &format!("{dir}/{name}"))?;
            self.foreign.insert(library);
        }
        Ok(())
    }

    /// Takes the symbols out of a file of ours, which are most of it.
    pub(crate) fn strip(&self, file: &str) -> Result<()> {
        sh::run(Command::new("strip").arg("--strip-unneeded").arg(self.dir.join("root").join(file)))
    }

    /// A program of this machine, from wherever PATH has it.
    pub(crate) fn tool(&mut self, name: &str) -> Result<()> {
        let found = sh::output(Command::new("sh").args(["-c", "command -v \"$0\"", name]))?;
        let found = fs::canonicalize(found.trim()).with_context(|| format!("there is no {name} on this machine"))?;
        self.program(&found, &format!("usr/bin/{name}"))?;
        self.foreign.insert(found);
        Ok(())
    }

    /// Writes the archive.
    pub(crate) fn archive(self, entrypoint: &[&str], recipe: &Recipe) -> Result<Built> {
        let packages = distribution::packages(&self.foreign)?;
        // What others wrote comes with its licence.
        for package in &packages {
            let notice = format!("usr/share/doc/{}/copyright", package.name);
            if let Ok(from) = fs::canonicalize(Path::new("/").join(&notice)) {
                self.file(&from, &notice)?;
            }
        }
        let layer = Tree::of_dir(&self.dir.join("root"))?.tar(recipe.time)?;
        let diff_id = format!("sha256:{}", archive::sha256(&layer));
        let (layer, kind) = match recipe.gzip {
            true => (archive::gzip(&layer)?, "application/vnd.oci.image.layer.v1.tar+gzip"),
            false => (layer, "application/vnd.oci.image.layer.v1.tar"),
        };
        let mut layout = Layout::default();
        let layer = layout.blob(kind, layer);
        let mut config = json!({
            "architecture": "amd64", "os": "linux",
            "config": {
                "Entrypoint": entrypoint, "Env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"], "WorkingDir": "/",
                "Labels": recipe.annotations,
            },
            "rootfs": { "type": "layers", "diff_ids": [diff_id] },
        });
        if let Some(created) = &recipe.created {
            config["created"] = json!(created);
        }
        let config = layout.blob("application/vnd.oci.image.config.v1+json", config.to_string());
        let manifest = json!({
            "schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": [layer],
            "annotations": recipe.annotations,
        });
        let digest = layout.manifest(&self.name, &manifest);
        let archive = self.dir.join("image.tar");
        fs::write(&archive, layout.archive()?).context("cannot write an image's archive")?;
        Ok(Built { name: self.name, archive, digest, packages })
    }
}

/// What does not come from an image's files.
#[derive(Default)]
pub struct Recipe {
    /// The time of all files, in seconds since 1970.
    pub time: u64,
    /// The same for people, if it is known (RFC 3339).
    pub created: Option<String>,
    /// Smaller, and slower to make and to import.
    pub gzip: bool,
    pub annotations: BTreeMap<String, String>,
}

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";

/// The OCI's directory of blobs, in an archive: what a registry holds of an image or a chart.
#[derive(Default)]
pub struct Layout {
    tree: Tree,
}

impl Layout {
    /// Adds a blob; gives the descriptor by which manifests name it.
    pub fn blob(&mut self, kind: &str, bytes: impl Into<Vec<u8>>) -> Value {
        let bytes = bytes.into();
        let (hash, size) = (archive::sha256(&bytes), bytes.len());
        self.tree.bytes(&format!("blobs/sha256/{hash}"), bytes, 0o644);
        json!({ "mediaType": kind, "digest": format!("sha256:{hash}"), "size": size })
    }

    /// Adds the manifest, under a name with a tag; gives its digest.
    pub fn manifest(&mut self, name: &str, manifest: &Value) -> String {
        let mut descriptor = self.blob(MANIFEST, manifest.to_string());
        let digest = descriptor["digest"].as_str().unwrap_or_default().to_owned();
        // containerd and Docker go by the one, Podman and Skopeo by the other.
        descriptor["annotations"] =
            json!({ "io.containerd.image.name": name, "org.opencontainers.image.ref.name": name });
        if let Some(kind) = manifest.get("artifactType") {
            descriptor["artifactType"] = kind.clone();
        }
        let index = json!({ "schemaVersion": 2, "mediaType": INDEX, "manifests": [descriptor] });
        self.tree.bytes("index.json", index.to_string(), 0o644);
        self.tree.bytes("oci-layout", json!({ "imageLayoutVersion": "1.0.0" }).to_string(), 0o644);
        digest
    }

    pub fn archive(&self) -> Result<Vec<u8>> {
        self.tree.tar(0)
    }
}

const INDEX: &str = "application/vnd.oci.image.index.v1+json";

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
        let mut image = Image::new("bulkhead.dev/tool:1", &dir).unwrap();
        image.tool("cat").unwrap();
        fs::write(dir.join("root/etc/word"), "spoken").unwrap();
        let Built { archive, digest, packages, .. } = image.archive(&["/usr/bin/cat"], &Recipe::default()).unwrap();
        let bytes = fs::read(&archive).unwrap();
        let names = sh::output(Command::new("tar").arg("-tf").arg(archive)).unwrap();
        assert_eq!(names.lines().filter(|name| name.contains("blobs/sha256/") && !name.ends_with('/')).count(), 3);
        assert!(names.contains(&format!("blobs/sha256/{}\n", digest.trim_start_matches("sha256:"))), "{names}");
        let again = Image { name: "bulkhead.dev/tool:1".to_owned(), dir: dir.clone(), foreign: BTreeSet::new() };
        let again = again.archive(&["/usr/bin/cat"], &Recipe::default()).unwrap();
        assert_eq!(bytes, fs::read(again.archive).unwrap(), "the same bytes each time");
        if sh::exists("dpkg-query") {
            let names: Vec<&str> = packages.iter().map(|package| package.name.as_str()).collect();
            assert!(names.contains(&"libc6") && names.contains(&"coreutils"), "{names:?}");
        }
        // Only root may change roots.
        if testkit::is_root() {
            let mut chroot = Command::new("chroot");
            let said = sh::output(chroot.arg(dir.join("root")).args(["/bin/cat", "/etc/word"])).unwrap();
            assert_eq!(said, "spoken");
        }
        fs::remove_dir_all(dir).unwrap();
    }
}
