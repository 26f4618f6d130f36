//! The GPUs of workers, and what they hold of all but the first: beside the [registry](super::slots), whose slots are as the
//! first version wrote them and have room for one.
//!
//! As there, a successor reads it, records are rewritten in place, and the file is allocated whole. A record means something
//! only while its slot is taken; one of zeros is a worker of a version that did not write this.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use super::SLOTS;
use control::messages::Token;
use control::messages::account::GPUS;

const MAGIC: [u8; 16] = *b"bulkhead-gpus-01";

#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Record {
    /// Of the worker that it is of: an earlier version takes slots without a word of it here.
    token: Token,
    /// Numbers and 1, by the worker's index; 0: no more.
    gpus: [u32; GPUS],
    /// By the same index; the first is in the registry.
    charged: [u64; GPUS],
}

pub(super) struct GpuCharges {
    file: File,
}

impl GpuCharges {
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let file = File::options().read(true).write(true).create(true).truncate(false).open(path)?;
        let size = offset(SLOTS);
        let mut magic = [0; MAGIC.len()];
        let known = file.metadata()?.len() == size && file.read_exact_at(&mut magic, 0).is_ok() && magic == MAGIC;
        if !known {
            file.set_len(0)?;
            file.write_all_at(&vec![0; size as usize], 0)?;
            file.write_all_at(&MAGIC, 0)?;
        }
        Ok(Self { file })
    }

    /// A worker begins with these GPUs and nothing of them.
    pub(super) fn begin(&self, slot: usize, token: Token, gpus: &[u32]) -> io::Result<()> {
        let mut record = Record { token, ..Record::new_zeroed() };
        record.gpus.iter_mut().zip(gpus).for_each(|(place, gpu)| *place = gpu + 1);
        self.file.write_all_at(record.as_bytes(), offset(slot))
    }

    pub(super) fn write(&self, slot: usize, index: usize, charged: u64) -> io::Result<()> {
        if index >= GPUS {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let field = std::mem::offset_of!(Record, charged) + index * size_of::<u64>();
        self.file.write_all_at(charged.as_bytes(), offset(slot) + field as u64)
    }

    /// The GPUs of a worker and what it holds of each, but for the first; nothing if an earlier version started it.
    pub(super) fn read(&self, slot: usize, token: &Token) -> io::Result<Vec<(u32, u64)>> {
        let mut record = Record::new_zeroed();
        self.file.read_exact_at(record.as_mut_bytes(), offset(slot))?;
        if record.token != *token {
            return Ok(Vec::new());
        }
        let named =
            record.gpus.iter().zip(record.charged).map_while(|(gpu, bytes)| Some((gpu.checked_sub(1)?, bytes)));
        Ok(named.collect())
    }
}

fn offset(slot: usize) -> u64 {
    (MAGIC.len() + slot * size_of::<Record>()) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_successor_reads_what_was_written() {
        let directory = testkit::directory();
        let path = directory.join("gpus");
        let charges = GpuCharges::open(&path).unwrap();
        let token = [7; 16];
        charges.begin(3, token, &[4, 0, 7]).unwrap();
        charges.write(3, 2, 1 << 40).unwrap();
        assert!(charges.write(3, GPUS, 1).is_err());
        let charges = GpuCharges::open(&path).unwrap();
        assert_eq!(charges.read(3, &token).unwrap(), [(4, 0), (0, 0), (7, 1 << 40)]);
        assert!(charges.read(3, &[8; 16]).unwrap().is_empty(), "another worker has the slot");
        assert!(charges.read(2, &token).unwrap().is_empty(), "nobody wrote it");
        charges.begin(3, token, &[1]).unwrap();
        assert_eq!(charges.read(3, &token).unwrap(), [(1, 0)]);
        std::fs::write(&path, "rubbish").unwrap();
        assert!(GpuCharges::open(&path).unwrap().read(3, &token).unwrap().is_empty());
    }
}
