//! A tenant's own root file system, as an archive that is booted behind the image's.
//!
//! It comes from an OCI image (a directory as `skopeo copy … oci:DIR` makes it, or a tar of one) or from a tar of the files
//! themselves. What is in it is the tenant's, and hostile: nothing of it is written to this machine's file systems under
//! a name of its own, no path leads out of the directory that the archive has for it, and its size is bounded.

mod layers;
mod oci;

use crate::cpio;
use crate::image::gzip;
use crate::tree::{Kind, Node, Tree};
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// Where in the archive the tenant's root file system is.
pub const ROOT: &str = "tenant";
/// What its image says about how it is run: words, each ended by a zero.
pub const ENVIRONMENT: &str = "tenant.d/environment";
/// The working directory. Its name stays as it was: images and archives of different versions boot together.
pub const WORKING_DIR: &str = "tenant.d/working-directory";
pub const COMMAND: &str = "tenant.d/command";

/// What all files together may have. Guests keep them in memory.
const MAX_BYTES: u64 = 16 << 30;

#[derive(Debug, thiserror::Error)]
pub enum TenantError {
    #[error("cannot read {0}")]
    Read(PathBuf, #[source] io::Error),
    #[error("{0} is neither an OCI image nor a tar archive")]
    Unknown(PathBuf),
    #[error("the image has no {0}")]
    Missing(String),
    #[error("digest mismatch of {0} in the image")]
    Digest(String),
    #[error("invalid {0} in the image")]
    Nonsense(&'static str),
    #[error("the image is not for Linux on x86-64")]
    Platform,
    #[error("cannot unpack a layer of the image")]
    Layer(#[source] io::Error),
    #[error("the image is larger than {} GiB", MAX_BYTES >> 30)]
    TooLarge,
}

/// What an image says about how it wants to be run.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Manner {
    pub environment: Vec<String>,
    pub dir: Option<String>,
    pub command: Vec<String>,
}

/// Makes the archive, compressed unless it is to be plain.
pub fn archive(source: &Path, plain: bool) -> Result<Vec<u8>, TenantError> {
    let (tree, manner) = read(source)?;
    let archive = cpio::bytes(&placed(&tree, &manner));
    Ok(if plain { archive } else { gzip(&archive) })
}

/// The files where the guest's first process looks for them.
pub fn placed(tree: &Tree, manner: &Manner) -> Tree {
    let mut placed = Tree::default();
    placed.dir(ROOT);
    for (path, node) in tree.iter() {
        placed.put(&format!("{ROOT}/{path}"), node.clone());
    }
    let words = |words: &[String]| words.iter().flat_map(|word| word.bytes().chain([0])).collect::<Vec<u8>>();
    for (file, content) in [
        (ENVIRONMENT, words(&manner.environment)),
        (WORKING_DIR, words(manner.dir.as_slice())),
        (COMMAND, words(&manner.command)),
    ] {
        placed.put(file, Node::new(Kind::File(content.into()), 0o644));
    }
    placed
}

fn read(source: &Path) -> Result<(Tree, Manner), TenantError> {
    let named = source.to_str().and_then(|text| text.strip_prefix("oci:")).map(Path::new);
    let source = named.unwrap_or(source);
    if source.join("oci-layout").is_file() {
        return oci::read(&oci::Blobs::Dir(source.to_owned()), MAX_BYTES);
    }
    let cannot = |error| TenantError::Read(source.to_owned(), error);
    read_archive(|| File::open(source).map_err(cannot), source, MAX_BYTES)
}

/// What an archive holds, whose bytes `open` gives from the beginning each time; `name` is for errors, and all files
/// together have at most `limit` bytes.
pub fn read_archive<R: Read>(
    open: impl Fn() -> Result<R, TenantError>,
    name: &Path,
    limit: u64,
) -> Result<(Tree, Manner), TenantError> {
    let mut beginning = Vec::new();
    open()?.take(512).read_to_end(&mut beginning).map_err(|error| TenantError::Read(name.to_owned(), error))?;
    if layers::Packing::of(&beginning) == layers::Packing::None && !layers::is_tar(&beginning) {
        return Err(TenantError::Unknown(name.to_owned()));
    }
    if let Some(blobs) = oci::in_tar(layers::unpacked(open()?)?, limit)? {
        return oci::read(&blobs, limit);
    }
    let mut tree = Tree::default();
    layers::apply(open()?, &mut tree, &mut limit.clone())?;
    Ok((tree, Manner::default()))
}

#[cfg(test)]
mod tests;
