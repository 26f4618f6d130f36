//! Which disks a pod's domain has, and for which containers.

use guest::domain::POD_DISKS;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Names of disks, as the guest's kernel calls them, from the first behind those that every pod has.
const FIRST: u8 = b'c';
/// One is for changes.
const MOST: usize = POD_DISKS as usize - 1;

/// Disks by name. `D` is what keeps one there.
#[derive(Debug)]
pub(crate) struct Roots<D> {
    disks: BTreeMap<String, Disk<D>>,
}

#[derive(Debug)]
struct Disk<D> {
    image: PathBuf,
    containers: Vec<String>,
    _device: D,
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("a pod has at most {MOST} different images")]
pub(crate) struct TooMany;

impl<D> Default for Roots<D> {
    fn default() -> Self {
        Self { disks: BTreeMap::new() }
    }
}

impl<D> Roots<D> {
    /// The disk that has this image already, which this container uses from now on.
    pub(crate) fn join(&mut self, container: &str, image: &Path) -> Option<String> {
        let (name, disk) = self.disks.iter_mut().find(|(_, disk)| disk.image == image)?;
        disk.containers.push(container.to_owned());
        Some(name.clone())
    }

    /// A name that no disk has.
    pub(crate) fn free(&self) -> Result<String, TooMany> {
        let mut names = (FIRST..=b'z').take(MOST).map(|letter| format!("xvd{}", char::from(letter)));
        names.find(|name| !self.disks.contains_key(name)).ok_or(TooMany)
    }

    /// The domain has this disk from now on, for this container.
    pub(crate) fn add(&mut self, name: String, container: &str, image: PathBuf, device: D) {
        self.disks.insert(name, Disk { image, containers: vec![container.to_owned()], _device: device });
    }

    /// The container is gone: the disk that nobody uses any more, to be detached and then forgotten.
    pub(crate) fn leave(&mut self, container: &str) -> Option<String> {
        let used = |disk: &Disk<D>| disk.containers.iter().position(|user| user == container);
        let (name, disk) = self.disks.iter_mut().find(|(_, disk)| used(disk).is_some())?;
        if let Some(at) = used(disk) {
            disk.containers.swap_remove(at);
        }
        disk.containers.is_empty().then(|| name.clone())
    }

    pub(crate) fn forget(&mut self, name: &str) {
        self.disks.remove(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn containers_of_one_image_have_one_disk_which_goes_with_the_last() {
        let mut roots = Roots::default();
        let image = Path::new("/images/a");
        assert_eq!(roots.join("one", image), None);
        let name = roots.free().unwrap();
        assert_eq!(name, "xvdc");
        roots.add(name.clone(), "one", image.into(), ());
        assert_eq!(roots.join("two", image), Some(name.clone()));
        assert_eq!(roots.free().unwrap(), "xvdd");
        assert_eq!(roots.leave("one"), None);
        assert_eq!(roots.leave("one"), None);
        assert_eq!(roots.leave("two"), Some(name.clone()));
        // Until it is detached, its name is taken.
        assert_eq!(roots.free().unwrap(), "xvdd");
        roots.forget(&name);
        assert_eq!(roots.free().unwrap(), "xvdc");
    }

    #[test]
    fn there_are_only_so_many() {
        let mut roots = Roots::default();
        for index in 0..MOST {
            let name = roots.free().unwrap();
            roots.add(name, "c", format!("/images/{index}").into(), ());
        }
        assert_eq!(roots.free(), Err(TooMany));
    }
}
