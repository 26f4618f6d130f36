//! Tar archives that are the same bytes wherever and whenever they are made: sorted, owned by root, with one time for all.

use anyhow::{Context, Result};
use flate2::{Compression, GzBuilder};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// What is at a path of an archive.
#[derive(Debug, Clone)]
pub enum Entry {
    Dir {
        mode: u32,
    },
    /// A file of this machine.
    File {
        from: PathBuf,
        mode: u32,
    },
    Bytes {
        bytes: Vec<u8>,
        mode: u32,
    },
    Link(String),
}

/// A tree in the making, by paths without a slash at their beginning. Directories above an entry need not be named.
#[derive(Debug, Clone, Default)]
pub struct Tree(BTreeMap<String, Entry>);

impl Tree {
    pub fn add(&mut self, path: &str, entry: Entry) {
        for (at, _) in path.match_indices('/') {
            self.0.entry(path[..at].to_owned()).or_insert(Entry::Dir { mode: 0o755 });
        }
        self.0.insert(path.to_owned(), entry);
    }

    pub fn file(&mut self, path: &str, from: &Path, mode: u32) {
        self.add(path, Entry::File { from: from.to_path_buf(), mode });
    }

    pub fn bytes(&mut self, path: &str, bytes: impl Into<Vec<u8>>, mode: u32) {
        self.add(path, Entry::Bytes { bytes: bytes.into(), mode });
    }

    /// All that is in a directory. Of modes only that a file is executable and that a directory is sticky is kept: the rest
    /// depends on who made them.
    pub fn of_dir(dir: &Path) -> Result<Tree> {
        let mut tree = Tree::default();
        tree.collect(dir, "")?;
        Ok(tree)
    }

    fn collect(&mut self, dir: &Path, prefix: &str) -> Result<()> {
        for entry in fs::read_dir(dir).with_context(|| format!("cannot read {}", dir.display()))? {
            let entry = entry?;
            let name = entry.file_name().into_string().ok().context("a file's name is not UTF-8")?;
            let (path, kind, mode) =
                (format!("{prefix}{name}"), entry.file_type()?, entry.metadata()?.permissions().mode());
            if kind.is_symlink() {
                let to = fs::read_link(entry.path())?;
                self.add(&path, Entry::Link(to.to_string_lossy().into_owned()));
            } else if kind.is_dir() {
                self.add(&path, Entry::Dir { mode: if mode & 0o1000 == 0 { 0o755 } else { 0o1777 } });
                self.collect(&entry.path(), &format!("{path}/"))?;
            } else {
                self.file(&path, &entry.path(), if mode & 0o100 == 0 { 0o644 } else { 0o755 });
            }
        }
        Ok(())
    }

    /// Paths and what is there, sorted.
    pub fn entries(&self) -> impl Iterator<Item = (&str, &Entry)> {
        self.0.iter().map(|(path, entry)| (path.as_str(), entry))
    }

    /// The same, below a directory.
    #[must_use]
    pub fn below(&self, prefix: &str) -> Tree {
        let mut tree = Tree::default();
        for (path, entry) in self.entries() {
            tree.add(&format!("{prefix}/{path}"), entry.clone());
        }
        tree
    }

    /// Writes the archive; every entry has this time, in seconds since 1970.
    pub fn write<W: Write>(&self, out: W, time: u64) -> Result<W> {
        let mut tar = tar::Builder::new(out);
        for (path, entry) in self.entries() {
            let mut header = tar::Header::new_gnu();
            header.set_mtime(time);
            header.set_uid(0);
            header.set_gid(0);
            header.set_username("root")?;
            header.set_groupname("root")?;
            header.set_size(0);
            let added = match entry {
                Entry::Dir { mode } => {
                    header.set_entry_type(tar::EntryType::Directory);
                    header.set_mode(*mode);
                    tar.append_data(&mut header, format!("{path}/"), std::io::empty())
                }
                Entry::Link(to) => {
                    header.set_entry_type(tar::EntryType::Symlink);
                    header.set_mode(0o777);
                    tar.append_link(&mut header, path, to)
                }
                Entry::Bytes { bytes, mode } => {
                    header.set_size(bytes.len() as u64);
                    header.set_mode(*mode);
                    tar.append_data(&mut header, path, bytes.as_slice())
                }
                Entry::File { from, mode } => {
                    let file = fs::File::open(from).with_context(|| format!("cannot read {}", from.display()))?;
                    header.set_size(file.metadata()?.len());
                    header.set_mode(*mode);
                    tar.append_data(&mut header, path, file)
                }
            };
            added.with_context(|| format!("cannot add {path} to an archive"))?;
        }
        tar.into_inner().context("cannot end an archive")
    }

    pub fn tar(&self, time: u64) -> Result<Vec<u8>> {
        self.write(Vec::new(), time)
    }

    pub fn tar_gz(&self, time: u64) -> Result<Vec<u8>> {
        gzip(&self.tar(time)?)
    }
}

/// Without a name or a time.
pub fn gzip(bytes: &[u8]) -> Result<Vec<u8>> {
    let mut out = GzBuilder::new().write(Vec::new(), Compression::new(6));
    out.write_all(bytes)?;
    Ok(out.finish()?)
}

/// In hexadecimal digits.
pub fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn when_and_by_whom_files_were_made_does_not_matter() {
        let make = |name: &str, umask: u32, order: [&str; 3]| {
            let dir = std::env::temp_dir().join(format!("xtask-archive-{}-{name}", std::process::id()));
            for file in order {
                let path = dir.join("sub").join(file);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(&path, file).unwrap();
                fs::set_permissions(&path, fs::Permissions::from_mode(0o666 & !umask)).unwrap();
                let time = std::time::UNIX_EPOCH + std::time::Duration::from_secs(u64::from(umask));
                fs::File::options().write(true).open(&path).unwrap().set_modified(time).unwrap();
            }
            fs::set_permissions(dir.join("sub"), fs::Permissions::from_mode(0o777 & !umask)).unwrap();
            std::os::unix::fs::symlink("a", dir.join("link")).unwrap();
            let bytes = Tree::of_dir(&dir).unwrap().tar_gz(7).unwrap();
            fs::remove_dir_all(dir).unwrap();
            bytes
        };
        assert_eq!(make("one", 0o022, ["a", "b", "c"]), make("two", 0o077, ["c", "b", "a"]));
        assert_ne!(make("three", 0o022, ["a", "b", "c"]), make("four", 0o022, ["a", "b", "d"]));
    }

    #[test]
    fn a_tree_names_its_directories_before_what_is_in_them() {
        let mut tree = Tree::default();
        tree.bytes("a/b/c", *b"text", 0o644);
        let paths: Vec<&str> = tree.entries().map(|(path, _)| path).collect();
        assert_eq!(paths, ["a", "a/b", "a/b/c"]);
        assert_eq!(tree.below("x").entries().count(), 4);
        assert_eq!(sha256(b"abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    }
}
