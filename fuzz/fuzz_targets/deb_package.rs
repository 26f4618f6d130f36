//! A package of Debian's: an archive of archives, of which a mirror may send anything.
#![no_main]

use std::path::Path;

use guest::deb::unpack_bytes;
use guest::tree::{Kind, Tree};
use libfuzzer_sys::fuzz_target;

const LIMIT: u64 = 1 << 20;

fuzz_target!(|input: (Vec<u8>, u8)| {
    let (bytes, shape) = input;
    let package = if shape & 1 == 0 { around(&bytes) } else { bytes };
    let mut tree = Tree::default();
    let _ = unpack_bytes(&package, Path::new("package"), LIMIT, &mut tree, |path| !path.contains("doc"));
    let sizes = tree.iter().map(|(path, node)| {
        assert!(!path.is_empty() && !path.contains("doc"));
        if let Kind::File(content) = &node.kind { content.len() as u64 } else { 0 }
    });
    assert!(sizes.sum::<u64>() <= LIMIT);
});

/// An archive with one member: a tar in one block that is not compressed, as xz has it where that would not help.
fn around(tar: &[u8]) -> Vec<u8> {
    let mut data = Vec::new();
    let options = lzma_rust2::XzOptions::with_preset(0);
    if let Ok(mut writer) = lzma_rust2::XzWriter::new(&mut data, options) {
        let mut blocks = tar.to_vec();
        blocks.resize(tar.len().next_multiple_of(512) + 1024, 0);
        if blocks.len() >= 512 {
            // Its sum must be right for the rest to be read.
            blocks[148..156].fill(b' ');
            let sum: u32 = blocks[..512].iter().map(|byte| u32::from(*byte)).sum();
            blocks[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        }
        let _ = std::io::Write::write_all(&mut writer, &blocks);
        let _ = writer.finish();
    }
    let mut package = b"!<arch>\n".to_vec();
    package.extend(format!("{:<16}{:<32}{:<10}`\n", "data.tar.xz", "0", data.len()).bytes());
    package.extend(data);
    package
}
