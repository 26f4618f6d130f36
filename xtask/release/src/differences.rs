//! Where two builds differ: which files of a release, and in programs and libraries, at which byte of which section.

use object::{Object, ObjectSection};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use crate::make;

/// Prints what differs between two clones, of the files of their releases and of the programs that were packed.
pub(crate) fn explain(clones: [&Path; 2], release: &str) {
    let names: BTreeSet<_> = clones
        .iter()
        .flat_map(|clone| fs::read_dir(clone.join(release)).into_iter().flatten().flatten())
        .map(|entry| entry.file_name())
        .collect();
    for name in names {
        print(&name.to_string_lossy(), clones.map(|clone| clone.join(release).join(&name)).each_ref().map(|p| &**p));
    }
    let built = |clone: &Path| {
        // A clone that was not built has none: then each program of the other is named.
        let found = make::binaries(&clone.join("target/portable/stage")).unwrap_or_default();
        found.into_iter().filter_map(|path| Some(path.strip_prefix(clone).ok()?.to_path_buf())).collect::<Vec<_>>()
    };
    for path in clones.into_iter().flat_map(built).collect::<BTreeSet<_>>() {
        print(&path.display().to_string(), clones.map(|clone| clone.join(&path)).each_ref().map(|p| &**p));
    }
}

fn print(name: &str, files: [&Path; 2]) {
    match files.map(fs::read) {
        [Ok(first), Ok(second)] => {
            if let Some(text) = difference(&first, &second) {
                println!("{name}: {text}");
            }
        }
        _ => println!("{name}: only one of the two has it"),
    }
}

/// Such as `differs at byte 4096, in .rodata`.
fn difference(first: &[u8], second: &[u8]) -> Option<String> {
    if first == second {
        return None;
    }
    let at = first.iter().zip(second).position(|(a, b)| a != b).unwrap_or(first.len().min(second.len()));
    let mut text = format!("differs at byte {at}");
    if let Some(section) = section(first, at as u64) {
        text += &format!(", in {section}");
    }
    if first.len() != second.len() {
        text += &format!("; {} and {} bytes", first.len(), second.len());
    }
    Some(text)
}

/// The section of a program or library that has this byte.
fn section(file: &[u8], at: u64) -> Option<String> {
    let file = object::File::parse(file).ok()?;
    let covers = |(start, size): (u64, u64)| (start..start.saturating_add(size)).contains(&at);
    let found = file.sections().find(|section| section.file_range().is_some_and(covers))?;
    found.name().ok().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_byte_that_differs_is_named_with_its_section() {
        assert_eq!(difference(b"same", b"same"), None);
        assert_eq!(difference(b"abc", b"abd").unwrap(), "differs at byte 2");
        assert_eq!(difference(b"abc", b"ab").unwrap(), "differs at byte 2; 3 and 2 bytes");
        let program = fs::read("/proc/self/exe").unwrap();
        let parsed = object::File::parse(&*program).unwrap();
        let (start, _) = parsed.section_by_name(".rodata").and_then(|section| section.file_range()).unwrap();
        let mut other = program.clone();
        other[start as usize + 1] ^= 1;
        assert_eq!(difference(&program, &other).unwrap(), format!("differs at byte {}, in .rodata", start + 1));
    }
}
