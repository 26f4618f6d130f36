//! OCI images: an index, manifests, a configuration and layers, each known by its digest.

use super::layers;
use super::{Manner, TenantError};
use crate::tree::Tree;
use serde::Deserialize;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::path::PathBuf;

/// Where the parts of an image are.
pub(crate) enum Blobs {
    Dir(PathBuf),
    /// Files of a tar, by their names.
    Memory(BTreeMap<String, Vec<u8>>),
}

/// Indexes can lead to indexes.
const MAX_DEPTH: usize = 4;
const MAX_JSON: usize = 16 << 20;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Descriptor {
    digest: String,
    #[serde(default)]
    media_type: String,
    platform: Option<Platform>,
}

#[derive(Deserialize)]
struct Platform {
    architecture: String,
    os: String,
}

#[derive(Deserialize)]
struct Index {
    manifests: Vec<Descriptor>,
}

#[derive(Deserialize)]
struct Manifest {
    config: Descriptor,
    layers: Vec<Descriptor>,
}

#[derive(Deserialize)]
struct Configuration {
    config: Option<Run>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Run {
    env: Option<Vec<String>>,
    entrypoint: Option<Vec<String>>,
    cmd: Option<Vec<String>>,
    working_dir: Option<String>,
}

impl Blobs {
    fn file(&self, name: &str) -> Result<Vec<u8>, TenantError> {
        match self {
            Self::Memory(files) => files.get(name).cloned().ok_or_else(|| TenantError::Missing(name.to_owned())),
            Self::Dir(dir) => {
                let path = dir.join(name);
                fs::read(&path).map_err(|error| TenantError::Read(path, error))
            }
        }
    }

    /// A part of the image, compared with its digest.
    fn blob(&self, digest: &str) -> Result<Vec<u8>, TenantError> {
        let good = |sum: &&str| sum.len() == 64 && sum.bytes().all(|byte| byte.is_ascii_hexdigit());
        let sum = digest.strip_prefix("sha256:").filter(good).ok_or(TenantError::Nonsense("digest"))?;
        let bytes = self.file(&format!("blobs/sha256/{sum}"))?;
        if hex::encode(Sha256::digest(&bytes)) == sum {
            Ok(bytes)
        } else {
            Err(TenantError::Digest(digest.to_owned()))
        }
    }
}

/// The files of a tar, if it is one of an image.
pub(crate) fn in_tar(tar: impl Read, limit: u64) -> Result<Option<Blobs>, TenantError> {
    let mut files = BTreeMap::new();
    let mut left = limit;
    for entry in tar::Archive::new(tar).entries().map_err(TenantError::Layer)? {
        let mut entry = entry.map_err(TenantError::Layer)?;
        let name = String::from_utf8_lossy(&entry.path_bytes()).trim_start_matches("./").to_owned();
        if !entry.header().entry_type().is_file() {
            continue;
        }
        let ours = ["oci-layout", "index.json"].contains(&name.as_str()) || name.starts_with("blobs/");
        // An image begins with such names; a root file system has others, and is not read twice for nothing.
        if !ours && !["manifest.json", "repositories"].contains(&name.as_str()) {
            break;
        }
        let mut content = Vec::new();
        entry.by_ref().take(left + 1).read_to_end(&mut content).map_err(TenantError::Layer)?;
        left = left.checked_sub(content.len() as u64).ok_or(TenantError::TooLarge)?;
        files.insert(name, content);
    }
    Ok(files.contains_key("oci-layout").then_some(Blobs::Memory(files)))
}

/// The files of an image, of at most so many bytes together, and how it wants to be run.
pub(crate) fn read(blobs: &Blobs, limit: u64) -> Result<(Tree, Manner), TenantError> {
    let manifest = manifest(blobs, &blobs.file("index.json")?, MAX_DEPTH)?;
    let configuration: Configuration = json(&blobs.blob(&manifest.config.digest)?, "configuration")?;
    let (mut tree, mut left) = (Tree::default(), limit);
    for layer in &manifest.layers {
        layers::apply(&blobs.blob(&layer.digest)?[..], &mut tree, &mut left)?;
    }
    Ok((tree, configuration.config.map(manner).unwrap_or_default()))
}

fn manifest(blobs: &Blobs, index: &[u8], depth: usize) -> Result<Manifest, TenantError> {
    let index: Index = json(index, "index")?;
    let ours = |platform: &Platform| platform.os == "linux" && platform.architecture == "amd64";
    let fits = |descriptor: &&Descriptor| descriptor.platform.as_ref().is_none_or(ours);
    let found = index.manifests.iter().find(fits).ok_or(TenantError::Platform)?;
    let bytes = blobs.blob(&found.digest)?;
    if found.media_type.contains("index") || found.media_type.contains("manifest.list") {
        let depth = depth.checked_sub(1).ok_or(TenantError::Nonsense("index"))?;
        return manifest(blobs, &bytes, depth);
    }
    json(&bytes, "manifest")
}

fn manner(run: Run) -> Manner {
    let mut command = run.entrypoint.unwrap_or_default();
    command.extend(run.cmd.unwrap_or_default());
    let dir = run.working_dir.filter(|dir| !dir.is_empty());
    Manner { environment: run.env.unwrap_or_default(), dir, command }
}

fn json<'a, T: Deserialize<'a>>(bytes: &'a [u8], what: &'static str) -> Result<T, TenantError> {
    let bytes = Some(bytes).filter(|bytes| bytes.len() <= MAX_JSON).ok_or(TenantError::Nonsense(what))?;
    serde_json::from_slice(bytes).map_err(|_| TenantError::Nonsense(what))
}
