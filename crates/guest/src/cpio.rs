//! The archive that a kernel unpacks as its first root file system: cpio in the `newc` format.
//!
//! Times are zero and numbers count up, so that the same tree gives the same bytes. Archives can be put one behind the
//! other; the kernel unpacks all of them, and a later one replaces what an earlier one had.

use crate::tree::{Kind, Node, Tree};
use std::io::{self, Write};

const DIR: u32 = 0o040_000;
const FILE: u32 = 0o100_000;
const LINK: u32 = 0o120_000;
const CHAR_DEVICE: u32 = 0o020_000;
const BLOCK_DEVICE: u32 = 0o060_000;
const FIFO: u32 = 0o010_000;

/// The last entry of an archive.
const TRAILER: &str = "TRAILER!!!";
/// What an archive is filled up to, so that another can follow.
const BLOCK: usize = 512;

/// Writes `tree` as one archive.
pub fn write(tree: &Tree, out: impl Write) -> io::Result<()> {
    let mut out = Counted { out, written: 0 };
    for (number, (path, node)) in (1u32..).zip(tree.iter()) {
        entry(&mut out, number, path, node)?;
    }
    header(&mut out, &Header { name: TRAILER, links: 1, ..Header::default() })?;
    out.fill_up_to(BLOCK)
}

/// The archive in memory.
pub fn bytes(tree: &Tree) -> Vec<u8> {
    let mut bytes = Vec::new();
    write(tree, &mut bytes).expect("memory takes what is written to it");
    bytes
}

fn entry(out: &mut Counted<impl Write>, number: u32, path: &str, node: &Node) -> io::Result<()> {
    let (kind, device, content): (u32, (u32, u32), &[u8]) = match &node.kind {
        Kind::Directory => (DIR, (0, 0), &[]),
        Kind::File(content) => (FILE, (0, 0), content),
        Kind::Link(target) => (LINK, (0, 0), target.as_bytes()),
        Kind::CharDevice(major, minor) => (CHAR_DEVICE, (*major, *minor), &[]),
        Kind::BlockDevice(major, minor) => (BLOCK_DEVICE, (*major, *minor), &[]),
        Kind::Fifo => (FIFO, (0, 0), &[]),
    };
    let size = u32::try_from(content.len())
        .map_err(|_| io::Error::new(io::ErrorKind::FileTooLarge, format!("{path}: 4 GiB and more do not fit")))?;
    let links = if kind == DIR { 2 } else { 1 };
    let mode = kind | node.mode & 0o7777;
    header(out, &Header { name: path, number, mode, uid: node.uid, gid: node.gid, links, size, device })?;
    out.write_all(content)?;
    out.fill_up_to(4)
}

#[derive(Default)]
struct Header<'a> {
    name: &'a str,
    number: u32,
    mode: u32,
    uid: u32,
    gid: u32,
    links: u32,
    size: u32,
    device: (u32, u32),
}

fn header(out: &mut Counted<impl Write>, it: &Header) -> io::Result<()> {
    let name_size = it.name.len() as u32 + 1;
    let (time, device_of_archive, checksum) = (0, (0, 0), 0);
    let fields = [
        it.number,
        it.mode,
        it.uid,
        it.gid,
        it.links,
        time,
        it.size,
        device_of_archive.0,
        device_of_archive.1,
        it.device.0,
        it.device.1,
        name_size,
        checksum,
    ];
    out.write_all(b"070701")?;
    for field in fields {
        write!(out, "{field:08x}")?;
    }
    out.write_all(it.name.as_bytes())?;
    out.write_all(&[0])?;
    out.fill_up_to(4)
}

struct Counted<W> {
    out: W,
    written: usize,
}

impl<W: Write> Counted<W> {
    fn fill_up_to(&mut self, multiple: usize) -> io::Result<()> {
        let missing = self.written.next_multiple_of(multiple) - self.written;
        self.write_all(&[0; BLOCK][..missing])
    }
}

impl<W: Write> Write for Counted<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.out.write(bytes)?;
        self.written += written;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_is_what_the_format_says() {
        let mut tree = Tree::default();
        tree.file("bin/a", 0o755, *b"hello");
        tree.put("dev/null", Node::new(Kind::CharDevice(1, 3), 0o666));
        let archive = bytes(&tree);
        assert_eq!(archive.len() % BLOCK, 0);
        let text = String::from_utf8_lossy(&archive);
        let of_file = "070701\
            00000002000081ed000000000000000000000001000000000000000500000000000000000000000000000000\
            0000000600000000bin/a\0hello\0\0\0";
        assert!(text.contains(of_file), "{text}");
        assert!(text.contains("00000001000000030000000900000000dev/null\0"), "{text}");
        assert!(text.trim_end_matches('\0').ends_with(TRAILER));
        assert_eq!(archive, bytes(&tree.clone()));
    }
}
