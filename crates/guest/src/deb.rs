//! Reading Debian's packages: an `ar` archive with a compressed `tar` in it.

use crate::tree::{Kind, Node, Tree};
use lzma_rust2::XzReader;
use std::io::{self, Read};
use std::path::PathBuf;

#[derive(Debug, thiserror::Error)]
pub enum DebError {
    #[error("{0} is not a Debian package")]
    NotAPackage(PathBuf),
    #[error("{0} has no data.tar.xz")]
    NoData(PathBuf),
    #[error("cannot read {0}")]
    Read(PathBuf, #[source] io::Error),
}

/// What the files of a package may have together: more than any of Debian's, and less than a guest's memory.
pub const MAX_BYTES: u64 = 4 << 30;
/// What the decompressor may need: Debian's packages are compressed with dictionaries of 64 MiB at most.
const MAX_DICTIONARY_KIB: u32 = 256 << 10;

/// Puts those files of the package into `tree` whose path (without a slash in front) is `wanted`.
pub fn unpack(package: &std::path::Path, tree: &mut Tree, wanted: impl Fn(&str) -> bool) -> Result<(), DebError> {
    let cannot = |error| DebError::Read(package.to_owned(), error);
    let bytes = std::fs::read(package).map_err(cannot)?;
    unpack_bytes(&bytes, package, MAX_BYTES, tree, wanted)
}

/// The same of a package that is in memory; `name` is for errors, and all files together have at most `limit` bytes.
pub fn unpack_bytes(
    bytes: &[u8],
    name: &std::path::Path,
    limit: u64,
    tree: &mut Tree,
    wanted: impl Fn(&str) -> bool,
) -> Result<(), DebError> {
    let data = member(bytes, "data.tar.xz").ok_or_else(|| {
        let known = bytes.starts_with(AR);
        if known { DebError::NoData(name.to_owned()) } else { DebError::NotAPackage(name.to_owned()) }
    })?;
    let unpacked = XzReader::new_mem_limit(data, false, MAX_DICTIONARY_KIB);
    untar(unpacked, limit, tree, wanted).map_err(|error| DebError::Read(name.to_owned(), error))
}

const AR: &[u8] = b"!<arch>\n";

/// A file of an `ar` archive. Headers have 60 bytes, with the name first and the size from 48 on.
fn member<'a>(archive: &'a [u8], name: &str) -> Option<&'a [u8]> {
    let mut rest = archive.strip_prefix(AR)?;
    while let Some((header, after)) = rest.split_at_checked(60) {
        // In bytes: a header of other characters has no place to be cut at.
        let field = |range: std::ops::Range<usize>| std::str::from_utf8(&header[range]).ok();
        let size: usize = field(48..58)?.trim().parse().ok()?;
        let content = after.get(..size)?;
        if field(0..16)?.trim_end().trim_end_matches('/') == name {
            return Some(content);
        }
        rest = after.get(size.checked_next_multiple_of(2)?..)?;
    }
    None
}

fn untar(tar: impl Read, limit: u64, tree: &mut Tree, wanted: impl Fn(&str) -> bool) -> io::Result<()> {
    let too_large = || io::Error::new(io::ErrorKind::InvalidData, "its files are larger than those of any package");
    let mut left = limit;
    // What is passed over is unpacked, too.
    let mut archive = tar::Archive::new(tar.take(limit.saturating_mul(2)));
    for entry in archive.entries()? {
        let mut entry = entry?;
        let path = entry.path()?.to_string_lossy().trim_start_matches("./").trim_end_matches('/').to_owned();
        if path.is_empty() || !wanted(&path) {
            continue;
        }
        let kind = match entry.header().entry_type() {
            tar::EntryType::Directory => Kind::Directory,
            tar::EntryType::Symlink => match entry.link_name()? {
                Some(target) => Kind::Link(target.to_string_lossy().into_owned()),
                None => continue,
            },
            tar::EntryType::Regular => {
                // Not what the header says, which may be anything: what comes.
                let mut content = Vec::new();
                entry.by_ref().take(left + 1).read_to_end(&mut content)?;
                left = left.checked_sub(content.len() as u64).ok_or_else(too_large)?;
                Kind::File(content.into())
            }
            _ => continue,
        };
        tree.put(&path, Node::new(kind, entry.header().mode()? & 0o7777));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_found_by_name_and_lies_about_sizes_end_the_search() {
        let header = |name: &str, size: usize| format!("{name:<16}{:<32}{size:<10}`\n", "0");
        let mut archive = AR.to_vec();
        archive.extend(header("debian-binary", 3).bytes().chain(*b"2.0\n"));
        archive.extend(header("data.tar.xz", 4).bytes().chain(*b"data"));
        assert_eq!(member(&archive, "data.tar.xz"), Some(&b"data"[..]));
        assert_eq!(member(&archive, "control.tar.xz"), None);
        archive.truncate(archive.len() - 1);
        assert_eq!(member(&archive, "data.tar.xz"), None);
    }

    #[test]
    fn a_header_of_other_characters_is_none() {
        // Two bytes each, so that fields begin and end within one.
        let mut archive = AR.to_vec();
        archive.push(b'a');
        archive.extend("ä".repeat(30).bytes().take(59));
        assert_eq!(member(&archive, "data.tar.xz"), None);
    }

    #[test]
    fn files_have_so_many_bytes_and_no_more_whatever_a_header_says() {
        let mut header = tar::Header::new_gnu();
        header.set_size(u64::MAX >> 8);
        header.set_mode(0o644);
        header.set_path("large").unwrap();
        header.set_cksum();
        let mut lie = header.as_bytes().to_vec();
        lie.extend([7; 2048]);
        let mut tree = Tree::default();
        assert!(untar(&lie[..], 1024, &mut tree, |_| true).is_err());
        assert!(tree.get("large").is_none());
    }
}
