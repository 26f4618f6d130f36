//! Copying a directory of kubelet's into the machine, and again when it changes.
//!
//! kubelet replaces a volume's content in one step: new files in a directory of their own, then the link `..data` to it. The copy
//! keeps to that: directories and files first, then links, then what is gone is removed. No link is followed.

use crate::link::{Link, LinkError};
use crate::policy::Refusal;
use agent::protocol::{FILE_CHUNK, Request};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// What one volume may have; what kubelet writes is far below.
const MAX_ENTRIES: u64 = 10_000;
const MAX_BYTES: u64 = 64 << 20;
/// kubelet may change a volume while it is read.
const TRIES: u32 = 5;

#[derive(Debug, Clone, PartialEq, Eq)]
enum Entry {
    Directory { mode: u32, uid: u32, gid: u32 },
    File { mode: u32, uid: u32, gid: u32, size: u64, inode: u64, changed: (i64, i64) },
    Link { target: String },
}

/// A directory or file of the host's, as it was when it was last copied.
#[derive(Debug)]
pub(crate) struct Copied {
    volume: String,
    source: PathBuf,
    entries: BTreeMap<String, Entry>,
    /// Whether it could not be brought up to date when that was last tried.
    pub failing: bool,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum CopyError {
    #[error("cannot read {0}")]
    Read(PathBuf, #[source] io::Error),
    #[error(transparent)]
    TooLarge(#[from] Refusal),
    #[error(transparent)]
    Link(#[from] LinkError),
}

impl Copied {
    pub(crate) fn new(volume: String, source: PathBuf) -> Self {
        Self { volume, source, entries: BTreeMap::new(), failing: false }
    }

    /// Brings the copy in the machine up to date. True: something was different.
    pub(crate) async fn update(&mut self, link: &Link) -> Result<bool, CopyError> {
        let found = scan(&self.source)?;
        if found == self.entries {
            return Ok(false);
        }
        for request in changes(&self.volume, &self.entries, &found) {
            let Change { request, content } = request;
            match content {
                None => drop(link.ask(request).await?),
                Some(path) => self.send_file(link, &path, request).await?,
            }
        }
        self.entries = found;
        Ok(true)
    }

    async fn send_file(&self, link: &Link, path: &str, request: Request) -> Result<(), CopyError> {
        let Request::PutFile { volume, path: to, mode, uid, gid, .. } = request else { return Ok(()) };
        let from = if path.is_empty() { self.source.clone() } else { self.source.join(path) };
        let failed = |error| CopyError::Read(from.clone(), error);
        // As it is now: it may have been replaced since it was looked at, and is then copied again.
        let bytes = match read(&from) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            other => other.map_err(failed)?,
        };
        let mut append = false;
        let mut chunks = bytes.chunks(FILE_CHUNK).collect::<Vec<_>>();
        if chunks.is_empty() {
            chunks.push(&[]);
        }
        for chunk in chunks {
            let (volume, path, bytes) = (volume.clone(), to.clone(), chunk.to_vec());
            link.ask(Request::PutFile { volume, path, mode, uid, gid, append, bytes }).await?;
            append = true;
        }
        Ok(())
    }
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    let nofollow = i32::try_from(rustix::fs::OFlags::NOFOLLOW.bits()).unwrap_or(0);
    let file = File::options().read(true).custom_flags(nofollow).open(path)?;
    let mut bytes = Vec::new();
    file.take(MAX_BYTES).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// A volume as it is, once it holds together: what `..data` leads to must be there.
fn scan(source: &Path) -> Result<BTreeMap<String, Entry>, CopyError> {
    let mut tries = 0;
    loop {
        tries += 1;
        let (mut entries, mut bytes) = (BTreeMap::new(), 0);
        let found = walk(source, source, &mut entries, &mut bytes);
        let whole = match entries.get("..data") {
            Some(Entry::Link { target }) => entries.contains_key(target),
            _ => true,
        };
        match found {
            Ok(()) if whole => return Ok(entries),
            Err(Walk::TooLarge) => {
                return Err(Refusal::TooLarge(source.display().to_string(), MAX_BYTES).into());
            }
            Err(Walk::Io(error)) if tries == TRIES => return Err(CopyError::Read(source.to_owned(), error)),
            Ok(()) if tries == TRIES => {
                let error = io::Error::new(io::ErrorKind::InvalidData, "it changes while it is read");
                return Err(CopyError::Read(source.to_owned(), error));
            }
            _ => {}
        }
    }
}

enum Walk {
    Io(io::Error),
    TooLarge,
}

impl From<io::Error> for Walk {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

fn walk(root: &Path, path: &Path, entries: &mut BTreeMap<String, Entry>, bytes: &mut u64) -> Result<(), Walk> {
    let meta = std::fs::symlink_metadata(path)?;
    let name = path.strip_prefix(root).unwrap_or(Path::new("")).to_string_lossy().into_owned();
    let (mode, uid, gid) = (meta.mode() & 0o7777, meta.uid(), meta.gid());
    if meta.is_symlink() {
        let target = std::fs::read_link(path)?.to_string_lossy().into_owned();
        entries.insert(name, Entry::Link { target });
    } else if meta.is_dir() {
        // The volume itself was made with its mode.
        if !name.is_empty() {
            entries.insert(name, Entry::Directory { mode, uid, gid });
        }
        for child in std::fs::read_dir(path)? {
            walk(root, &child?.path(), entries, bytes)?;
        }
    } else if meta.is_file() {
        *bytes = bytes.saturating_add(meta.len());
        let changed = (meta.mtime(), meta.mtime_nsec());
        entries.insert(name, Entry::File { mode, uid, gid, size: meta.len(), inode: meta.ino(), changed });
    }
    // Sockets and devices are none that kubelet writes.
    if *bytes > MAX_BYTES || entries.len() as u64 > MAX_ENTRIES { Err(Walk::TooLarge) } else { Ok(()) }
}

/// A request, and the file whose content goes with it.
#[derive(Debug, PartialEq, Eq)]
struct Change {
    request: Request,
    content: Option<String>,
}

/// What makes `new` of `old`, in the order in which nobody sees a half.
fn changes(volume: &str, old: &BTreeMap<String, Entry>, new: &BTreeMap<String, Entry>) -> Vec<Change> {
    let volume = volume.to_owned();
    let (mut first, mut links) = (Vec::new(), Vec::new());
    for (path, entry) in new.iter().filter(|(path, entry)| old.get(*path) != Some(entry)) {
        let (volume, path) = (volume.clone(), path.clone());
        match entry.clone() {
            Entry::Directory { mode, uid, gid } => {
                let request = Request::PutDirectory { volume, path, mode, uid, gid };
                first.push(Change { request, content: None });
            }
            Entry::File { mode, uid, gid, .. } => {
                let content = Some(path.clone());
                let (append, bytes) = (false, Vec::new());
                first.push(Change {
                    request: Request::PutFile { volume, path, mode, uid, gid, append, bytes },
                    content,
                });
            }
            Entry::Link { target } => {
                links.push(Change { request: Request::PutLink { volume, path, target }, content: None });
            }
        }
    }
    // What is in a directory that goes, goes with it.
    let gone = |path: &&String| !new.contains_key(*path);
    let removed = old.keys().filter(gone).filter(|path| {
        let parent = Path::new(path.as_str()).parent().and_then(Path::to_str).unwrap_or_default();
        parent.is_empty() || new.contains_key(parent)
    });
    let removals = removed.map(|path| {
        let request = Request::Remove { volume: volume.clone(), path: path.clone() };
        Change { request, content: None }
    });
    first.into_iter().chain(links).chain(removals).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    /// Writes a version of a volume as kubelet does.
    fn swap(dir: &Path, version: &str, text: &str) {
        std::fs::create_dir_all(dir.join(version)).unwrap();
        std::fs::write(dir.join(version).join("key"), text).unwrap();
        let _ = std::fs::remove_file(dir.join("..data_tmp"));
        symlink(version, dir.join("..data_tmp")).unwrap();
        std::fs::rename(dir.join("..data_tmp"), dir.join("..data")).unwrap();
        let _ = symlink("..data/key", dir.join("key"));
    }

    fn names(changes: &[Change]) -> Vec<String> {
        let name = |change: &Change| match &change.request {
            Request::PutDirectory { path, .. } => format!("dir {path}"),
            Request::PutFile { path, .. } => format!("file {path}"),
            Request::PutLink { path, target, .. } => format!("link {path} {target}"),
            Request::Remove { path, .. } => format!("remove {path}"),
            other => panic!("{other:?}"),
        };
        changes.iter().map(name).collect()
    }

    #[test]
    fn a_swap_is_new_files_then_the_link_then_what_is_gone() {
        let dir = testkit::directory();
        swap(&dir, "..1", "old");
        let old = scan(&dir).unwrap();
        assert_eq!(
            names(&changes("v", &BTreeMap::new(), &old)),
            ["dir ..1", "file ..1/key", "link ..data ..1", "link key ..data/key"]
        );
        swap(&dir, "..2", "new");
        std::fs::remove_dir_all(dir.join("..1")).unwrap();
        let new = scan(&dir).unwrap();
        assert_eq!(names(&changes("v", &old, &new)), ["dir ..2", "file ..2/key", "link ..data ..2", "remove ..1"]);
        assert!(changes("v", &new, &new).is_empty());
    }

    #[test]
    fn links_are_copied_and_not_followed() {
        let dir = testkit::directory();
        symlink("/etc", dir.join("out")).unwrap();
        let found = scan(&dir).unwrap();
        assert_eq!(found.get("out"), Some(&Entry::Link { target: "/etc".into() }));
        assert_eq!(found.len(), 1);
        assert!(read(&dir.join("out")).is_err());
    }

    #[test]
    fn a_file_by_itself_is_a_volume_too() {
        let dir = testkit::directory();
        let file = dir.join("hosts");
        std::fs::write(&file, "127.0.0.1 localhost\n").unwrap();
        let found = scan(&file).unwrap();
        assert_eq!(names(&changes("v", &BTreeMap::new(), &found)), ["file "]);
    }
}
