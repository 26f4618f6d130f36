//! Which C library a program or library needs: what it imports says so.

use anyhow::{Context, Result, bail, ensure};
use object::Endianness;
use object::elf::FileHeader64;
use object::read::elf::{Dyn, FileHeader};
use std::path::Path;

/// The libraries that every machine with glibc has.
const EVERYWHERE: [&str; 7] =
    ["libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1", "libutil.so.1", "ld-linux-x86-64.so.2"];

/// What a file asks of the machine.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Needs {
    /// The newest version of glibc's symbols; 0 if it asks for none.
    pub glibc: (u32, u32),
    pub libraries: Vec<String>,
}

/// Fails if the file needs more than a machine with this glibc has.
pub(crate) fn check(file: &Path, most: &str) -> Result<Needs> {
    let bytes = std::fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
    let needs = needs(&bytes).with_context(|| format!("cannot understand {}", file.display()))?;
    let most = version(most).context("not a version")?;
    let (major, minor) = needs.glibc;
    ensure!(needs.glibc <= most, "{} needs glibc {major}.{minor}, not {}.{}", file.display(), most.0, most.1);
    if let Some(library) = needs.libraries.iter().find(|name| !EVERYWHERE.contains(&name.as_str())) {
        bail!("{} needs {library}, which not every machine has", file.display());
    }
    Ok(needs)
}

pub(crate) fn needs(bytes: &[u8]) -> Result<Needs> {
    let header = FileHeader64::<Endianness>::parse(bytes)?;
    let endian = header.endian()?;
    let sections = header.sections(endian, bytes)?;
    let mut needs = Needs { glibc: (0, 0), libraries: Vec::new() };
    if let Some((entries, link)) = sections.dynamic(endian, bytes)? {
        let strings = sections.strings(endian, bytes, link)?;
        for entry in entries.iter().filter(|entry| entry.tag(endian) == object::elf::DT_NEEDED) {
            let name = entry.string(endian, strings)?;
            needs.libraries.push(String::from_utf8_lossy(name).into_owned());
        }
    }
    if let Some((mut verneeds, link)) = sections.gnu_verneed(endian, bytes)? {
        let strings = sections.strings(endian, bytes, link)?;
        while let Some((_, mut names)) = verneeds.next()? {
            while let Some(name) = names.next()? {
                let name = String::from_utf8_lossy(name.name(endian, strings)?).into_owned();
                let Some(number) = name.strip_prefix("GLIBC_") else { continue };
                // Such as GLIBC_ABI_DT_RELR: what the loader must know.
                let number = version(number).with_context(|| format!("it needs {name}"))?;
                needs.glibc = needs.glibc.max(number);
            }
        }
    }
    Ok(needs)
}

/// `2.28`, or `2.2.5`, of which the first two count.
fn version(text: &str) -> Option<(u32, u32)> {
    let mut numbers = text.split('.').map(|number| number.parse().ok());
    Some((numbers.next()??, numbers.next()??))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_needs_what_it_imports() {
        let own = std::env::current_exe().unwrap();
        let needs = needs(&std::fs::read(&own).unwrap()).unwrap();
        assert!(needs.glibc >= (2, 17), "{needs:?}");
        assert!(needs.libraries.contains(&"libc.so.6".to_owned()), "{needs:?}");
        let error = check(&own, "2.10").unwrap_err().to_string();
        assert!(error.contains("needs glibc 2.") && error.ends_with("not 2.10"), "{error}");
        // An ordinary build has the compiler's own library, too, which not every machine has.
        let error = check(&own, "9.0").map(|needs| needs.libraries);
        assert_eq!(error.is_err(), needs.libraries.contains(&"libgcc_s.so.1".to_owned()), "{error:?}");
    }

    #[test]
    fn versions_are_numbers() {
        assert_eq!(version("2.2.5"), Some((2, 2)));
        assert_eq!(version("2.28"), Some((2, 28)));
        assert_eq!(version("ABI_DT_RELR"), None);
        assert!(needs(b"#!/bin/sh\n").is_err());
    }
}
