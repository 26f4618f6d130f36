//! What a subPath is of. kubelet binds a file or directory of a volume at `…/pods/UID/volume-subpaths/VOLUME/CONTAINER/N`; which
//! one it is, the table of mounts says.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

const MOUNTS: &str = "/proc/self/mountinfo";

/// A volume of the pod's, and what kubelet has bound of it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct SubPath {
    /// As kubelet calls it, without `kubernetes.io~`.
    pub kind: String,
    /// Its directory on the host.
    pub volume: PathBuf,
    bound: PathBuf,
}

/// The volume that a path of `volume-subpaths` belongs to; none where kubelet has no such volume.
pub(super) fn find(source: &Path) -> io::Result<Option<SubPath>> {
    let mut above = source.ancestors().skip(1);
    let (Some(_container), Some(volume), Some(_), Some(pod)) =
        (above.next(), above.next(), above.next(), above.next())
    else {
        return Ok(None);
    };
    let Some(name) = volume.file_name() else { return Ok(None) };
    for kind in std::fs::read_dir(pod.join("volumes"))? {
        let kind = kind?;
        let volume = kind.path().join(name);
        if volume.is_dir() {
            let text = kind.file_name().to_string_lossy().into_owned();
            let kind = text.strip_prefix("kubernetes.io~").map_or_else(|| text.replace('~', "/"), str::to_owned);
            return Ok(Some(SubPath { kind, volume, bound: source.to_owned() }));
        }
    }
    Ok(None)
}

impl SubPath {
    /// The names that lead from the volume to what is bound; none where that cannot be told.
    pub(super) fn below(&self) -> io::Result<Option<Vec<String>>> {
        let parent = self.volume.parent().map(Path::metadata).transpose()?;
        // One that is in memory is a file system of its own, and the table says what is bound from there.
        let mounted = parent.is_none_or(|parent| self.volume.metadata().is_ok_and(|own| own.dev() != parent.dev()));
        Ok(below(&std::fs::read_to_string(MOUNTS)?, &self.volume, &self.bound, mounted))
    }
}

/// Fields of the table: number, parent, device, root, mount point, …
fn below(table: &str, volume: &Path, bound: &Path, mounted: bool) -> Option<Vec<String>> {
    let bound = bound.to_str()?;
    let root = table.lines().rev().find_map(|line| {
        let mut fields = line.split(' ');
        let (root, point) = (fields.nth(3)?, fields.next()?);
        (unescaped(point) == bound).then(|| unescaped(root))
    })?;
    let rest = if mounted {
        root.strip_prefix('/')?.to_owned()
    } else {
        // The path in its file system ends as the volume's does, whatever that is mounted at.
        let parts: Vec<&str> = volume.iter().filter_map(|part| part.to_str()).collect();
        let [.., pod, volumes, kind, name] = parts[..] else { return None };
        let known = format!("/{pod}/{volumes}/{kind}/{name}/");
        let at = root.rfind(&known)?;
        root[at + known.len()..].to_owned()
    };
    let path = Path::new(&rest);
    let plain = path.components().all(|part| matches!(part, Component::Normal(_)));
    (plain && !rest.is_empty()).then(|| path.iter().filter_map(|part| part.to_str()).map(str::to_owned).collect())
}

/// The table has spaces, tabs, newlines and backslashes as octal numbers.
fn unescaped(text: &str) -> String {
    let codes = [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")];
    codes.iter().fold(text.to_owned(), |text, (code, character)| text.replace(code, character))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "\
22 1 8:1 / / rw - ext4 /dev/sda1 rw
30 22 8:2 / /var rw - ext4 /dev/sda2 rw
40 30 8:2 /lib/kubelet/pods/u-1/volumes/kubernetes.io~empty-dir/data/a/b /var/lib/kubelet/pods/u-1/volume-subpaths/data/main/0 rw - ext4 /dev/sda2 rw
41 30 0:50 / /var/lib/kubelet/pods/u-1/volumes/kubernetes.io~empty-dir/mem rw - tmpfs tmpfs rw
42 30 0:50 /x\\040y /var/lib/kubelet/pods/u-1/volume-subpaths/mem/main/1 rw - tmpfs tmpfs rw
";
    const POD: &str = "/var/lib/kubelet/pods/u-1";

    fn look(volume: &str, bound: &str, mounted: bool) -> Option<Vec<String>> {
        let volume = format!("{POD}/volumes/kubernetes.io~empty-dir/{volume}");
        below(TABLE, Path::new(&volume), Path::new(&format!("{POD}/volume-subpaths/{bound}")), mounted)
    }

    #[test]
    fn the_table_of_mounts_says_what_is_bound() {
        assert_eq!(look("data", "data/main/0", false).unwrap(), ["a", "b"]);
        assert_eq!(look("mem", "mem/main/1", true).unwrap(), ["x y"]);
        // Of another volume, not there at all, and the volume itself.
        assert_eq!(look("other", "data/main/0", false), None);
        assert_eq!(look("data", "data/main/7", false), None);
        let whole = "1 0 0:50 / /s rw";
        assert_eq!(below(whole, Path::new("/p/volumes/k/n"), Path::new("/s"), true), None);
    }

    #[test]
    fn the_volume_is_found_by_its_name() {
        let dir = testkit::directory();
        dir.write("pods/u/volumes/kubernetes.io~configmap/config/key", "1");
        dir.write("pods/u/volume-subpaths/config/main/0", "1");
        let found = find(&dir.join("pods/u/volume-subpaths/config/main/0")).unwrap().unwrap();
        assert_eq!(found.kind, "configmap");
        assert_eq!(found.volume, dir.join("pods/u/volumes/kubernetes.io~configmap/config"));
        assert_eq!(find(&dir.join("pods/u/volume-subpaths/none/main/0")).unwrap(), None);
    }
}
