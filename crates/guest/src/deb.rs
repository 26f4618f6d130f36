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

/// Puts those files of the package into `tree` whose path (without a slash in front) is `wanted`.
pub fn unpack(package: &std::path::Path, tree: &mut Tree, wanted: impl Fn(&str) -> bool) -> Result<(), DebError> {
    let cannot = |error| DebError::Read(package.to_owned(), error);
    let bytes = std::fs::read(package).map_err(cannot)?;
    let data = member(&bytes, "data.tar.xz").ok_or_else(|| {
        let known = bytes.starts_with(AR);
        if known { DebError::NoData(package.to_owned()) } else { DebError::NotAPackage(package.to_owned()) }
    })?;
    untar(XzReader::new(data, false), tree, wanted).map_err(cannot)
}

const AR: &[u8] = b"!<arch>\n";

/// A file of an `ar` archive. Headers have 60 bytes, with the name first and the size from 48 on.
fn member<'a>(archive: &'a [u8], name: &str) -> Option<&'a [u8]> {
    let mut rest = archive.strip_prefix(AR)?;
    while let Some((header, after)) = rest.split_at_checked(60) {
        let text = std::str::from_utf8(header).ok()?;
        let size: usize = text[48..58].trim().parse().ok()?;
        let content = after.get(..size)?;
        if text[..16].trim_end().trim_end_matches('/') == name {
            return Some(content);
        }
        rest = after.get(size.next_multiple_of(2)..)?;
    }
    None
}

fn untar(tar: impl Read, tree: &mut Tree, wanted: impl Fn(&str) -> bool) -> io::Result<()> {
    let mut archive = tar::Archive::new(tar);
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
                let mut content = Vec::with_capacity(entry.size() as usize);
                entry.read_to_end(&mut content)?;
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
}
