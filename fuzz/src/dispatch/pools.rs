//! What a hostile client has learnt from replies, and uses again: handles by kind, addresses, numbers.

use cuda_abi::plan;
use cuda_abi::wire::{Handle, Kind};

use super::random::Random;
use crate::witness::GLOBALS;

/// The last few of something.
#[derive(Default)]
struct Recent {
    words: Vec<u64>,
    next: usize,
}

impl Recent {
    const ROOM: usize = 24;

    fn add(&mut self, word: u64) {
        if self.words.len() < Self::ROOM {
            self.words.push(word);
        } else {
            self.words[self.next] = word;
            self.next = (self.next + 1) % Self::ROOM;
        }
    }

    fn remove(&mut self, word: u64) {
        self.words.retain(|known| *known != word);
        self.next = 0;
    }

    fn pick(&self, random: &mut dyn Random) -> u64 {
        match self.words.len() {
            0 => 0,
            len => self.words[random.below(len as u64) as usize],
        }
    }
}

#[derive(Default)]
pub(super) struct Pools {
    handles: [Recent; 32],
    addresses: Recent,
    numbers: Recent,
}

impl Pools {
    pub(super) fn learn(&mut self, reply: &[u8]) {
        // Long replies are lists, of which a part is as good as all.
        for word in reply.chunks_exact(8).take(32) {
            let word = word.try_into().map_or(0, u64::from_le_bytes);
            if let Some(handle) = Handle::from_word(word) {
                self.handles[handle.kind as usize].add(word);
            } else if plan::in_device(word, 1) || plan::in_host(word, 1) || (GLOBALS..GLOBALS << 1).contains(&word) {
                self.addresses.add(word);
            } else if word > u64::from(u32::MAX) {
                self.numbers.add(word);
            }
        }
    }

    /// The client has closed it; now and then it is used all the same.
    pub(super) fn forget(&mut self, word: u64) {
        match Handle::from_word(word) {
            Some(handle) => self.handles[handle.kind as usize].remove(word),
            None => self.addresses.remove(word),
        }
    }

    pub(super) fn add_address(&mut self, address: u64) {
        self.addresses.add(address);
    }

    /// A handle of a kind; of a stream often a default one.
    pub(super) fn handle(&self, kind: u32, random: &mut dyn Random) -> u64 {
        if kind == Kind::Stream as u32 && random.once_in(3) {
            return random.below(3);
        }
        self.handles[kind as usize % self.handles.len()].pick(random)
    }

    /// An address that the client has, or one near it.
    pub(super) fn address(&self, random: &mut dyn Random) -> u64 {
        let address = self.addresses.pick(random);
        match random.below(8) {
            0 => address.wrapping_add(random.below(4096)),
            1 => address.wrapping_sub(random.below(4096)),
            2 => address.wrapping_add(plan::DEVICE_GRANULE),
            _ => address,
        }
    }

    pub(super) fn number(&self, random: &mut dyn Random) -> u64 {
        self.numbers.pick(random)
    }

    /// The index of a context, for a message's tag.
    pub(super) fn context(&self, random: &mut dyn Random) -> u32 {
        let word = self.handles[Kind::Context as usize].pick(random);
        Handle::from_word(word).map_or(1, |handle| handle.index)
    }
}

/// A length, from none to all.
pub(super) fn length(random: &mut dyn Random) -> u64 {
    match random.below(8) {
        0 => random.below(16),
        1..4 => random.below(64) * 8,
        4 => random.below(1 << 21),
        5 | 6 => random.below(8) * plan::DEVICE_GRANULE,
        _ => edge(random),
    }
}

/// A number at which arithmetic goes wrong.
pub(super) fn edge(random: &mut dyn Random) -> u64 {
    const EDGES: [u64; 10] = [
        0,
        1,
        u64::MAX,
        u64::MAX - 4095,
        1 << 63,
        u32::MAX as u64,
        1 << 32,
        plan::DEVICE_BASE,
        plan::HOST_BASE + plan::HOST_SIZE,
        i64::MAX as u64,
    ];
    EDGES[random.below(EDGES.len() as u64) as usize].wrapping_add(random.below(3)).wrapping_sub(1)
}
