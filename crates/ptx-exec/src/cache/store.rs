//! The file. Any number of processes use it at once, each through a descriptor of its own.
//!
//! Records are appended under a lock and never changed, so that readers need none. Once it has grown to `MOST`, the
//! next process to open it truncates it and increments the number at its beginning, by which others notice. A reader that
//! is in the middle of a record finds a wrong checksum, and compiles.

use std::collections::HashMap;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

use parking_lot::Mutex;
use sha2::{Digest, Sha256};

use super::Key;

/// A file of this size is truncated.
pub(super) const MOST: u64 = 256 << 20;
/// The largest piece of code that is kept.
const LARGEST: u64 = 16 << 20;
/// The number at the beginning.
const START: u64 = 8;
/// Key, length, checksum.
const HEADER: usize = 32 + 8 + 32;

pub(super) struct Store {
    file: File,
    index: Mutex<Index>,
}

#[derive(Default)]
struct Index {
    /// Where records' contents lie, and how long they are.
    places: HashMap<Key, (u64, u64)>,
    /// How far the file has been read, and the number that it began with.
    end: u64,
    life: u64,
}

impl Store {
    pub(super) fn open(file: File) -> Option<Store> {
        let store = Store { file, index: Mutex::default() };
        if store.len()? > MOST {
            let _lock = Lock::take(&store.file)?;
            // Another process may have been faster.
            if store.len()? > MOST {
                let life = store.life();
                store.file.set_len(0).ok()?;
                store.file.write_all_at(&life.wrapping_add(1).to_le_bytes(), 0).ok()?;
            }
        }
        Some(store)
    }

    fn len(&self) -> Option<u64> {
        self.file.metadata().ok().map(|data| data.len())
    }

    /// How often the file was emptied.
    fn life(&self) -> u64 {
        let mut number = [0; START as usize];
        self.file.read_exact_at(&mut number, 0).map_or(0, |()| u64::from_le_bytes(number))
    }

    /// The contents of a record.
    pub(super) fn find(&self, key: &Key) -> Option<Vec<u8>> {
        let (at, size) = {
            let mut index = self.index.lock();
            if !index.places.contains_key(key) {
                self.read_on(&mut index)?;
            }
            *index.places.get(key)?
        };
        let mut header = [0; HEADER];
        let mut bytes = vec![0; size as usize];
        self.file.read_exact_at(&mut header, at - HEADER as u64).ok()?;
        self.file.read_exact_at(&mut bytes, at).ok()?;
        let good = header[..32] == *key && header[40..] == checksum(key, &bytes);
        good.then_some(bytes)
    }

    /// Adds a record. A cache may lose records: failures are not reported.
    pub(super) fn add(&self, key: &Key, bytes: &[u8]) {
        if bytes.len() as u64 <= LARGEST {
            let _ = self.append(key, bytes);
        }
    }

    fn append(&self, key: &Key, bytes: &[u8]) -> Option<()> {
        let mut index = self.index.lock();
        let _lock = Lock::take(&self.file)?;
        self.read_on(&mut index)?;
        if index.places.contains_key(key) || index.end > MOST {
            return None;
        }
        let mut record = key.to_vec();
        record.extend((bytes.len() as u64).to_le_bytes());
        record.extend(checksum(key, bytes));
        record.extend_from_slice(bytes);
        // What a process that died left unfinished behind the last record is written over.
        if self.file.write_all_at(&record, index.end).is_err() {
            let _ = self.file.set_len(index.end);
            return None;
        }
        let at = index.end + HEADER as u64;
        index.places.insert(*key, (at, bytes.len() as u64));
        index.end = at + bytes.len() as u64;
        Some(())
    }

    /// Looks what others have added.
    fn read_on(&self, index: &mut Index) -> Option<()> {
        let (len, life) = (self.len()?, self.life());
        if len < index.end || life != index.life || index.end < START {
            // Another process truncated the file, or this is the first time.
            *index = Index { places: HashMap::new(), end: START, life };
        }
        while index.end + HEADER as u64 <= len {
            let mut header = [0; HEADER];
            self.file.read_exact_at(&mut header, index.end).ok()?;
            let key: Key = *header.first_chunk()?;
            let size = u64::from_le_bytes(*header[32..].first_chunk()?);
            let at = index.end + HEADER as u64;
            if size > LARGEST || at + size > len {
                break;
            }
            index.places.insert(key, (at, size));
            index.end = at + size;
        }
        Some(())
    }
}

fn checksum(key: &Key, bytes: &[u8]) -> [u8; 32] {
    let mut hash = Sha256::new();
    hash.update(key);
    hash.update(bytes);
    hash.finalize().into()
}

/// A lock on the whole file, by open file description: it goes with the descriptor, and so with the process.
struct Lock<'f>(&'f File);

impl<'f> Lock<'f> {
    fn take(file: &'f File) -> Option<Lock<'f>> {
        set_lock(file, libc::F_WRLCK).then_some(Lock(file))
    }
}

impl Drop for Lock<'_> {
    fn drop(&mut self) {
        set_lock(self.0, libc::F_UNLCK);
    }
}

fn set_lock(file: &File, kind: libc::c_int) -> bool {
    // SAFETY: all of it is numbers, for which zero is good.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    // Without waiting: a process that was stopped while it held the lock must not hold up others.
    // SAFETY: the descriptor is open and the structure is the one that the call takes.
    unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) == 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::OpenOptions;

    struct Place(testkit::Directory);

    impl Place {
        fn new() -> Place {
            Place(testkit::directory())
        }

        fn open(&self) -> Store {
            let file =
                OpenOptions::new().read(true).write(true).create(true).truncate(false).open(self.0.join("kernels"));
            Store::open(file.unwrap()).unwrap()
        }
    }

    #[test]
    fn what_one_adds_others_find() {
        let place = Place::new();
        let (one, other) = (place.open(), place.open());
        assert_eq!(one.find(&[1; 32]), None);
        one.add(&[1; 32], b"first");
        other.add(&[2; 32], b"second");
        one.add(&[3; 32], b"third");
        for store in [one, other, place.open()] {
            assert_eq!(store.find(&[1; 32]).as_deref(), Some(&b"first"[..]));
            assert_eq!(store.find(&[2; 32]).as_deref(), Some(&b"second"[..]));
            assert_eq!(store.find(&[3; 32]).as_deref(), Some(&b"third"[..]));
            assert_eq!(store.find(&[4; 32]), None);
        }
    }

    #[test]
    fn damage_is_noticed_and_what_was_cut_off_is_written_over() {
        let place = Place::new();
        let store = place.open();
        store.add(&[1; 32], b"first");
        store.add(&[2; 32], b"second");
        store.file.write_all_at(b"x", START + HEADER as u64).unwrap();
        assert_eq!(place.open().find(&[1; 32]), None, "its checksum is wrong");
        store.file.set_len(store.len().unwrap() - 1).unwrap();
        let again = place.open();
        assert_eq!(again.find(&[2; 32]), None);
        again.add(&[2; 32], b"second");
        assert_eq!(place.open().find(&[2; 32]).as_deref(), Some(&b"second"[..]));
    }

    #[test]
    fn a_file_that_has_grown_is_truncated() {
        let place = Place::new();
        let old = place.open();
        old.add(&[1; 32], b"first");
        old.file.set_len(MOST + 1).unwrap();
        let new = place.open();
        assert_eq!(new.find(&[1; 32]), None);
        new.add(&[2; 32], b"second");
        assert_eq!(old.find(&[2; 32]).as_deref(), Some(&b"second"[..]), "who had it open goes along");
    }

    #[test]
    fn a_length_that_makes_no_sense_ends_the_list() {
        let place = Place::new();
        let store = place.open();
        let mut header = [0u8; HEADER];
        header[32..40].copy_from_slice(&u64::MAX.to_le_bytes());
        store.file.write_all_at(&header, START).unwrap();
        assert_eq!(store.find(&[0; 32]), None);
        store.add(&[5; 32], b"good");
        assert_eq!(store.find(&[5; 32]).as_deref(), Some(&b"good"[..]));
    }
}
