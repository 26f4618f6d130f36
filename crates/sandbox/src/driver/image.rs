//! A copy of a call's arguments, with all memory that they point to.
//!
//! Each byte is copied once out of the caller's memory; what is decided is decided about the copy, and the driver gets the copy.

use std::io;

/// As much memory as one call may point to.
pub const MAX_BYTES: usize = 1 << 20;
/// Behind a block there is room for what a driver might read or write beyond it.
const SLACK: usize = 4096;

/// The memory of whoever makes a call.
pub trait Memory {
    /// Copies from there.
    fn read(&mut self, address: u64, into: &mut [u8]) -> io::Result<()>;
    /// Copies to there.
    fn write(&mut self, address: u64, from: &[u8]) -> io::Result<()>;
}

/// The copy: the arguments first, then what they point to.
#[derive(Debug, Default)]
pub struct Image {
    blocks: Vec<Block>,
}

#[derive(Debug)]
struct Block {
    /// Where it was copied from.
    address: u64,
    len: usize,
    /// `len` bytes, and slack.
    bytes: Vec<u8>,
    /// The block with its address, and where that is in it.
    parent: Option<(usize, usize)>,
}

impl Image {
    /// Copies the arguments.
    pub fn copy(memory: &mut impl Memory, address: u64, len: usize) -> io::Result<Self> {
        let mut image = Self::default();
        image.add(memory, address, len, None)?;
        Ok(image)
    }

    /// Copies what an address in a block points to. An address of 0 points to nothing.
    pub fn follow(&mut self, memory: &mut impl Memory, (block, at): (usize, usize), len: usize) -> io::Result<()> {
        match self.address(block, at) {
            Some(0) => Ok(()),
            Some(address) => self.add(memory, address, len, Some((block, at))),
            None => Err(io::ErrorKind::InvalidInput.into()),
        }
    }

    fn add(
        &mut self,
        memory: &mut impl Memory,
        address: u64,
        len: usize,
        parent: Option<(usize, usize)>,
    ) -> io::Result<()> {
        let all: usize = self.blocks.iter().map(|block| block.len).sum();
        if len > MAX_BYTES || all + len > MAX_BYTES {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let mut bytes = vec![0; len + SLACK];
        if len > 0 {
            memory.read(address, &mut bytes[..len])?;
        }
        self.blocks.push(Block { address, len, bytes, parent });
        Ok(())
    }

    /// How many blocks there are.
    pub fn count(&self) -> usize {
        self.blocks.len()
    }

    /// The bytes of a block.
    pub fn bytes(&self, block: usize) -> &[u8] {
        self.blocks.get(block).map_or(&[], |block| &block.bytes[..block.len])
    }

    /// A word of a block; none beyond its end.
    pub fn word(&self, block: usize, at: usize) -> Option<u32> {
        let bytes = self.bytes(block).get(at..at.checked_add(4)?)?;
        Some(u32::from_ne_bytes(bytes.try_into().ok()?))
    }

    /// An address in a block.
    pub fn address(&self, block: usize, at: usize) -> Option<u64> {
        let bytes = self.bytes(block).get(at..at.checked_add(8)?)?;
        Some(u64::from_ne_bytes(bytes.try_into().ok()?))
    }

    /// Changes bytes of a block; nothing beyond its end.
    pub fn set(&mut self, block: usize, at: usize, value: &[u8]) {
        let Some(block) = self.blocks.get_mut(block) else { return };
        if let Some(to) = block.bytes[..block.len].get_mut(at..at.saturating_add(value.len())) {
            to.copy_from_slice(value);
        }
    }

    /// Has `call` use the copy: every address in it leads to the copy of what was there. Afterwards the addresses are the
    /// caller's again.
    pub fn with_own_addresses<R>(&mut self, call: impl FnOnce(*mut u8) -> R) -> R {
        let links: Vec<(usize, usize, usize)> = self
            .blocks
            .iter()
            .enumerate()
            .filter_map(|(child, block)| block.parent.map(|(parent, at)| (child, parent, at)))
            .collect();
        for (child, parent, at) in &links {
            let own = self.blocks[*child].bytes.as_mut_ptr().expose_provenance() as u64;
            self.set(*parent, *at, &own.to_ne_bytes());
        }
        let result = call(self.blocks.first_mut().map_or(std::ptr::null_mut(), |block| block.bytes.as_mut_ptr()));
        for (child, parent, at) in &links {
            let theirs = self.blocks[*child].address;
            self.set(*parent, *at, &theirs.to_ne_bytes());
        }
        result
    }

    /// Copies everything back to where it came from.
    pub fn write_back(&self, memory: &mut impl Memory) -> io::Result<()> {
        // The arguments last: their status says that the rest is there.
        self.blocks
            .iter()
            .rev()
            .filter(|block| block.len > 0)
            .try_for_each(|block| memory.write(block.address, &block.bytes[..block.len]))
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// Memory of blocks at addresses; each read is counted.
    #[derive(Default)]
    pub(in crate::driver) struct Fake {
        pub(in crate::driver) blocks: BTreeMap<u64, Vec<u8>>,
        pub(in crate::driver) reads: usize,
    }

    impl Fake {
        pub(in crate::driver) fn with(mut self, address: u64, bytes: &[u8]) -> Self {
            self.blocks.insert(address, bytes.to_vec());
            self
        }

        fn at(&mut self, address: u64, len: usize) -> io::Result<&mut [u8]> {
            let fault = || io::Error::from_raw_os_error(libc::EFAULT);
            let (start, block) = self.blocks.range_mut(..=address).next_back().ok_or_else(fault)?;
            let from = usize::try_from(address - start).unwrap();
            block.get_mut(from..from + len).ok_or_else(fault)
        }
    }

    impl Memory for Fake {
        fn read(&mut self, address: u64, into: &mut [u8]) -> io::Result<()> {
            self.reads += 1;
            into.copy_from_slice(self.at(address, into.len())?);
            Ok(())
        }

        fn write(&mut self, address: u64, from: &[u8]) -> io::Result<()> {
            self.at(address, from.len())?.copy_from_slice(from);
            Ok(())
        }
    }

    #[test]
    fn addresses_lead_to_the_copy_and_come_back() {
        let mut memory = Fake::default().with(0x1000, &[0; 16]).with(0x2000, &[7; 4]);
        memory.write(0x1008, &0x2000u64.to_ne_bytes()).unwrap();
        let mut image = Image::copy(&mut memory, 0x1000, 16).unwrap();
        image.follow(&mut memory, (0, 8), 4).unwrap();
        image.follow(&mut memory, (0, 0), 4).unwrap();
        assert_eq!((image.count(), memory.reads), (2, 2), "nothing lies at 0");
        image.with_own_addresses(|arguments| {
            // SAFETY: the copy of 16 bytes, with an address at 8 that leads to 4 bytes.
            unsafe {
                let inner = arguments.add(8).cast::<u64>().read_unaligned();
                let inner = std::ptr::with_exposed_provenance_mut::<u8>(usize::try_from(inner).unwrap());
                assert_eq!(inner.read(), 7);
                inner.write(9);
                arguments.write(1);
            }
        });
        image.write_back(&mut memory).unwrap();
        assert_eq!((memory.blocks[&0x1000][0], memory.blocks[&0x2000][0]), (1, 9));
        assert_eq!(image.address(0, 8), Some(0x2000), "the caller's own address");
    }

    #[test]
    fn no_call_points_to_more_than_it_may() {
        let mut memory = Fake::default().with(0x10, &[0; 64]);
        assert!(Image::copy(&mut memory, 0x10, MAX_BYTES + 1).is_err());
        let mut image = Image::copy(&mut memory, 0x10, 8).unwrap();
        image.set(0, 0, &0x20u64.to_ne_bytes());
        assert!(image.follow(&mut memory, (0, 0), MAX_BYTES - 4).is_err());
        assert!(image.follow(&mut memory, (0, 4), 4).is_err(), "no address fits there");
        assert!(image.follow(&mut memory, (5, 0), 4).is_err());
        image.set(0, 6, &[1; 4]);
        assert_eq!((image.bytes(0)[6], image.word(0, 6), image.word(0, usize::MAX)), (0, None, None));
    }
}
