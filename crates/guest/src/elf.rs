//! Programs and libraries without what only debuggers read.

use object::elf;
use object::read::elf::{FileHeader, ProgramHeader};

type Header = elf::FileHeader64<object::Endianness>;

// Offsets of the fields of a 64-bit header that say where the sections are.
const SECTIONS_OFFSET: std::ops::Range<usize> = 0x28..0x30;
const SECTIONS_COUNT_AND_NAMES: std::ops::Range<usize> = 0x3c..0x40;

/// The file up to the last byte that is loaded. Symbols for debuggers, and the list of sections, come behind that, and
/// no loader looks at them. What is not an ELF file is given back as it is.
pub fn loaded_part(file: &[u8]) -> Vec<u8> {
    let end = || {
        let header = Header::parse(file).ok()?;
        let endian = header.endian().ok()?;
        let segments = header.program_headers(endian, file).ok()?;
        let table = header.e_phoff.get(endian)
            + segments.len() as u64 * size_of::<elf::ProgramHeader64<object::Endianness>>() as u64;
        let ends = segments.iter().map(|segment| segment.p_offset(endian).saturating_add(segment.p_filesz(endian)));
        let end = usize::try_from(ends.max()?.max(table)).ok()?;
        (end <= file.len()).then_some(end)
    };
    let Some(end) = end() else { return file.to_vec() };
    let mut loaded = file[..end].to_vec();
    loaded[SECTIONS_OFFSET].fill(0);
    loaded[SECTIONS_COUNT_AND_NAMES].fill(0);
    loaded
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_program_runs_without_its_symbols() {
        let me = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let small = loaded_part(&me);
        assert!(small.len() < me.len());
        let directory = testkit::directory();
        let file = directory.write("program", &small);
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).unwrap();
        let output = std::process::Command::new(&file).arg("--list").output().unwrap();
        assert!(String::from_utf8_lossy(&output.stdout).contains("a_program_runs_without_its_symbols"));
    }

    #[test]
    fn what_is_no_program_stays_as_it_is() {
        for bytes in [&b""[..], b"#!/bin/sh", b"\x7fELF and nothing more"] {
            assert_eq!(loaded_part(bytes), bytes);
        }
    }
}
