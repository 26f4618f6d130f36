//! Layers: tars, compressed or not, one laid over the other.

use super::TenantError;
use crate::tree::{Kind, Node, Tree};
use std::io::{self, BufReader, Read};
use tar::EntryType;

/// A name with this in front removes the file of the rest of it from the layers below.
const WHITEOUT: &str = ".wh.";
/// This one removes all that the layers below have in its directory.
const OPAQUE: &str = ".wh..wh..opq";
/// More entries than any image has.
const MAX_ENTRIES: usize = 4 << 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Packing {
    None,
    Gzip,
    Zstd,
}

impl Packing {
    pub(crate) fn of(beginning: &[u8]) -> Self {
        match beginning {
            [0x1f, 0x8b, ..] => Self::Gzip,
            [0x28, 0xb5, 0x2f, 0xfd, ..] => Self::Zstd,
            _ => Self::None,
        }
    }
}

pub(crate) fn is_tar(beginning: &[u8]) -> bool {
    beginning.get(257..262) == Some(b"ustar")
}

/// The tar in what may be compressed.
pub(crate) fn unpacked<'a>(packed: impl Read + 'a) -> Result<Box<dyn Read + 'a>, TenantError> {
    let mut packed = BufReader::new(packed);
    let beginning = io::BufRead::fill_buf(&mut packed).map_err(TenantError::Layer)?;
    Ok(match Packing::of(beginning) {
        Packing::None => Box::new(packed),
        Packing::Gzip => Box::new(flate2::read::MultiGzDecoder::new(packed)),
        Packing::Zstd => {
            let decoder = ruzstd::decoding::StreamingDecoder::new(packed);
            Box::new(decoder.map_err(|error| TenantError::Layer(io::Error::other(error)))?)
        }
    })
}

/// Lays a layer over `tree`. What its files have is taken off `left`.
pub(crate) fn apply(layer: impl Read, tree: &mut Tree, left: &mut u64) -> Result<(), TenantError> {
    let mut added = Vec::new();
    let mut archive = tar::Archive::new(unpacked(layer)?);
    for entry in archive.entries().map_err(TenantError::Layer)? {
        let mut entry = entry.map_err(TenantError::Layer)?;
        let Some(path) = clean(&entry.path_bytes()) else { continue };
        let (dir, name) = path.rsplit_once('/').unwrap_or(("", &path));
        // They are about the layers below, so they come first, wherever in the layer they stand.
        if name == OPAQUE {
            if let Some(dir) = tree.resolve(dir) {
                tree.clear(&dir);
            }
        } else if let Some(hidden) = name.strip_prefix(WHITEOUT) {
            if let Some(dir) = tree.resolve(dir) {
                tree.remove(&join(&dir, hidden));
            }
        } else if let Some(new) = entry_of(&mut entry, left)? {
            added.push((path, new));
        }
        if added.len() > MAX_ENTRIES {
            return Err(TenantError::TooLarge);
        }
    }
    added.into_iter().for_each(|(path, new)| put(tree, &path, new));
    Ok(())
}

enum New {
    Node(Node),
    /// Another name of a file that is there already.
    Same(String),
}

fn entry_of(entry: &mut tar::Entry<impl Read>, left: &mut u64) -> Result<Option<New>, TenantError> {
    let wrong = TenantError::Layer;
    let text =
        |bytes: Option<std::borrow::Cow<[u8]>>| String::from_utf8_lossy(&bytes.unwrap_or_default()).into_owned();
    let header = entry.header();
    let device = || -> io::Result<(u32, u32)> {
        Ok((header.device_major()?.unwrap_or(0), header.device_minor()?.unwrap_or(0)))
    };
    let kind = match header.entry_type() {
        EntryType::Directory => Kind::Directory,
        EntryType::Symlink => Kind::Link(text(entry.link_name_bytes())),
        EntryType::Link => return Ok(clean(text(entry.link_name_bytes()).as_bytes()).map(New::Same)),
        EntryType::Char => device().map(|(major, minor)| Kind::CharDevice(major, minor)).map_err(wrong)?,
        EntryType::Block => device().map(|(major, minor)| Kind::BlockDevice(major, minor)).map_err(wrong)?,
        EntryType::Fifo => Kind::Fifo,
        EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => {
            let mut content = Vec::new();
            // Not what the header says, which may be anything: what comes.
            entry.take(*left + 1).read_to_end(&mut content).map_err(wrong)?;
            *left = left.checked_sub(content.len() as u64).ok_or(TenantError::TooLarge)?;
            Kind::File(content.into())
        }
        _ => return Ok(None),
    };
    let header = entry.header();
    let id = |id: io::Result<u64>| id.map(|id| u32::try_from(id).unwrap_or(0)).map_err(wrong);
    let mode = header.mode().map_err(wrong)? & 0o7777;
    let (uid, gid) = (id(header.uid())?, id(header.gid())?);
    Ok(Some(New::Node(Node { kind, mode, uid, gid })))
}

/// Puts it where its directory really is: a directory that is a link leads somewhere else in the tree, and nowhere else.
fn put(tree: &mut Tree, path: &str, new: New) {
    let (dir, name) = path.rsplit_once('/').unwrap_or(("", path));
    let Some(dir) = tree.resolve(dir) else { return };
    let place = join(&dir, name);
    let node = match new {
        New::Node(node) => node,
        New::Same(other) => match tree.get(&other).cloned() {
            Some(node) => node,
            None => return,
        },
    };
    let is_dir = |node: Option<&Node>| node.is_some_and(|node| node.kind == Kind::Directory);
    if is_dir(tree.get(&place)) && node.kind != Kind::Directory {
        tree.remove(&place);
    }
    tree.put(&place, node);
}

fn join(dir: &str, name: &str) -> String {
    if dir.is_empty() { name.to_owned() } else { format!("{dir}/{name}") }
}

/// A path without what it may not have; none for the root itself and for those that lead out.
fn clean(path: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(path);
    let parts: Vec<&str> = text.split('/').filter(|part| !part.is_empty() && *part != ".").collect();
    let good = !parts.is_empty() && !parts.contains(&"..") && !text.contains('\0');
    good.then(|| parts.join("/"))
}
