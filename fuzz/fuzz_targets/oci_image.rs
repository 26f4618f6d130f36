//! A tenant's image, as a tar of an OCI layout or of files: no path leads out of the tree, and nothing is larger than it
//! may be, however it is compressed.
#![no_main]

use std::path::Path;

use guest::tenant::{placed, read_archive};
use guest::tree::Kind;
use libfuzzer_sys::fuzz_target;

const LIMIT: u64 = 1 << 20;

fuzz_target!(|input: (Vec<(String, Vec<u8>, u8)>, Vec<u8>, bool)| {
    let (files, noise, is_noise) = input;
    let bytes = if is_noise { noise } else { shaped(&files) };
    let Ok((tree, manner)) = read_archive(|| Ok(&bytes[..]), Path::new("image"), LIMIT) else { return };
    let mut all = 0;
    for (path, node) in tree.iter() {
        assert!(!path.is_empty() && !path.starts_with('/') && !path.contains('\0'), "{path:?}");
        assert!(path.split('/').all(|part| !part.is_empty() && part != "." && part != ".."), "{path:?}");
        if let Kind::File(content) = &node.kind {
            all = all.max(content.len() as u64);
        }
        assert!(node.mode <= 0o7777);
    }
    assert!(all <= LIMIT);
    let placed = placed(&tree, &manner);
    assert!(placed.iter().all(|(path, _)| path.starts_with("tenant")));
});

/// A tar with these files, links and directories.
fn shaped(files: &[(String, Vec<u8>, u8)]) -> Vec<u8> {
    let mut tar = tar::Builder::new(Vec::new());
    for (name, content, kind) in files.iter().take(16) {
        let mut header = tar::Header::new_ustar();
        let names = ["oci-layout", "index.json", ".wh.a", "a/.wh..wh..opq"];
        let name = if kind & 8 == 0 { name.as_str() } else { names[usize::from(kind >> 4) % names.len()] };
        // As a hostile archive has it: what the library would not write is put there by hand.
        let field = &mut header.as_old_mut().name;
        let len = name.len().min(field.len());
        field[..len].copy_from_slice(&name.as_bytes()[..len]);
        let types = [b'0', b'5', b'2', b'1', b'3', b'6', b'L', b'x'];
        header.set_entry_type(tar::EntryType::new(types[usize::from(kind & 7)]));
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        header.as_old_mut().linkname[..content.len().min(100)].copy_from_slice(&content[..content.len().min(100)]);
        header.set_cksum();
        let _ = tar.append(&header, &content[..]);
    }
    tar.into_inner().unwrap_or_default()
}
