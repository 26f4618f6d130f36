//! Which libraries a program needs, found as the loader will find them.

use crate::tree::Tree;
use object::elf;
use object::read::elf::{Dyn, FileHeader, ProgramHeader};
use std::collections::BTreeSet;

type Header = elf::FileHeader64<object::Endianness>;

#[derive(Debug, thiserror::Error)]
pub enum ClosureError {
    #[error("{0} not found in the packages")]
    Missing(String),
    #[error("invalid ELF file {0}")]
    Elf(String, #[source] object::Error),
}

/// Where Debian's loader looks without being told.
pub const DIRS: [&str; 4] = ["lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu", "lib", "usr/lib"];

/// Names of the shared libraries that `elf` asks for, its loader among them if it has one.
pub fn needed(name: &str, elf: &[u8]) -> Result<Vec<String>, ClosureError> {
    let wrong = |error| ClosureError::Elf(name.to_owned(), error);
    let header = Header::parse(elf).map_err(wrong)?;
    let endian = header.endian().map_err(wrong)?;
    let segments = header.program_headers(endian, elf).map_err(wrong)?;
    let mut names = Vec::new();
    for segment in segments {
        if let Some(loader) = segment.interpreter(endian, elf).map_err(wrong)? {
            names.push(String::from_utf8_lossy(loader).into_owned());
        }
    }
    let sections = header.sections(endian, elf).map_err(wrong)?;
    if let Some((dynamic, link)) = sections.dynamic(endian, elf).map_err(wrong)? {
        let strings = sections.strings(endian, elf, link).map_err(wrong)?;
        for entry in dynamic.iter().filter(|entry| entry.tag(endian) == elf::DT_NEEDED) {
            names.push(String::from_utf8_lossy(entry.string(endian, strings).map_err(wrong)?).into_owned());
        }
    }
    Ok(names)
}

/// Copies into `into` every library of `from` that the programs in `names` ask for, and what those ask for in turn.
/// What `into` has already is left as it is, but looked at.
pub fn add(from: &Tree, into: &mut Tree, names: Vec<String>) -> Result<(), ClosureError> {
    let mut pending = names;
    let mut seen = BTreeSet::new();
    while let Some(name) = pending.pop() {
        if name.starts_with("linux-vdso") || !seen.insert(name.clone()) {
            continue;
        }
        let places = match name.starts_with('/') {
            true => vec![name.trim_start_matches('/').to_owned()],
            false => DIRS.iter().map(|dir| format!("{dir}/{name}")).collect(),
        };
        if let Some(there) = places.iter().find_map(|place| into.read(place)) {
            pending.extend(needed(&name, there)?);
            continue;
        }
        let found = places.iter().find_map(|place| Some((place, from.read(place)?)));
        let (place, content) = found.ok_or_else(|| ClosureError::Missing(name.clone()))?;
        pending.extend(needed(&name, content)?);
        into.file(place, 0o755, content.clone());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_very_test_needs_a_libc_and_a_loader() {
        let me = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let names = needed("me", &me).unwrap();
        assert!(names.iter().any(|name| name.starts_with("libc.so")), "{names:?}");
        assert!(names.iter().any(|name| name.starts_with("/lib64/ld-linux")), "{names:?}");
    }

    #[test]
    fn a_library_that_is_nowhere_is_named() {
        let error = add(&Tree::default(), &mut Tree::default(), vec!["libnone.so".into()]).unwrap_err();
        assert_eq!(error.to_string(), "libnone.so not found in the packages");
    }
}
