//! What a library or program says of itself, read without loading it.

use std::fs::File;
use std::path::{Path, PathBuf};

use object::read::elf::{Dyn, ElfFile64, FileHeader};
use object::{Endianness, Object, ObjectSymbol, ReadCache, ReadRef, elf};

/// The symbol by which our own `libcuda.so.1` is known.
const OUR_SYMBOL: &str = "bulkhead_libvgpu";

/// What matters of a file for finding libraries.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Description {
    /// A shared library (or a program that can be loaded anywhere).
    pub dynamic: bool,
    /// It is our client library.
    pub ours: bool,
    /// Directories that are searched before `LD_LIBRARY_PATH`.
    pub rpath: Vec<PathBuf>,
    /// Directories that are searched after `LD_LIBRARY_PATH`.
    pub runpath: Vec<PathBuf>,
    /// What it needs, by name.
    pub needed: Vec<String>,
}

/// None when it is not for this machine, or not ELF at all.
pub fn describe(path: &Path) -> Option<Description> {
    let file = ReadCache::new(File::open(path).ok()?);
    let elf = ElfFile64::<Endianness, _>::parse(&file).ok()?;
    let native = match elf.architecture() {
        object::Architecture::X86_64 => cfg!(target_arch = "x86_64"),
        object::Architecture::Aarch64 => cfg!(target_arch = "aarch64"),
        _ => false,
    };
    if !native {
        return None;
    }
    let mut description = Description {
        dynamic: elf.kind() == object::ObjectKind::Dynamic,
        ours: elf.dynamic_symbols().any(|symbol| symbol.name() == Ok(OUR_SYMBOL)),
        ..Description::default()
    };
    read_dynamic(&elf, &file, path, &mut description);
    Some(description)
}

fn read_dynamic<'data, R: ReadRef<'data>>(
    elf: &ElfFile64<'data, Endianness, R>,
    data: R,
    path: &Path,
    description: &mut Description,
) -> Option<()> {
    let endian = elf.endian();
    let sections = elf.elf_header().sections(endian, data).ok()?;
    let (entries, link) = sections.dynamic(endian, data).ok()??;
    let strings = sections.strings(endian, data, link).ok()?;
    let dir = path.parent().unwrap_or(Path::new("/"));
    for entry in entries {
        let tag = entry.d_tag(endian);
        if ![elf::DT_RPATH, elf::DT_RUNPATH, elf::DT_NEEDED].contains(&tag) {
            continue;
        }
        let Ok(text) = entry.string(endian, strings) else { continue };
        let text = String::from_utf8_lossy(text);
        match tag {
            elf::DT_RPATH => description.rpath.extend(dirs(&text, dir)),
            elf::DT_RUNPATH => description.runpath.extend(dirs(&text, dir)),
            _ => description.needed.push(text.into_owned()),
        }
    }
    Some(())
}

fn dirs(text: &str, origin: &Path) -> Vec<PathBuf> {
    let origin = origin.to_string_lossy();
    let place = |part: &str| PathBuf::from(part.replace("${ORIGIN}", &origin).replace("$ORIGIN", &origin));
    text.split(':').filter(|part| !part.is_empty()).map(place).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_paths_and_our_symbol_are_read() {
        let directory = testkit::directory();
        let (source, library) = (directory.join("lib.c"), directory.join("lib.so"));
        std::fs::write(&source, "int bulkhead_libvgpu = 1;").unwrap();
        let flags = ["-shared", "-fPIC", "-Wl,--enable-new-dtags,-rpath,$ORIGIN/there:/opt/x"];
        let mut cc = std::process::Command::new("cc");
        assert!(cc.args(flags).arg("-o").arg(&library).arg(&source).status().unwrap().success());
        let found = describe(&library).unwrap();
        assert!(found.ours && found.dynamic && found.rpath.is_empty());
        assert_eq!(found.runpath, [directory.join("there"), PathBuf::from("/opt/x")]);
        assert_eq!(describe(&source), None);
    }
}
