//! A driver call of a worker that has fallen, as its supervisor receives it: whatever the worker's memory holds, only what is
//! listed is made, no byte is read twice, and every client that the driver would not look at is asked about.
#![no_main]

use std::io;

use libfuzzer_sys::fuzz_target;
use sandbox::driver::Branch;
use sandbox::driver::decide::{Decision, Rules};
use sandbox::driver::image::{MAX_BYTES, Memory};
use sandbox::driver::requests::{self, number};
use sandbox::driver::rules;

/// Where the worker's memory begins; nothing lies below or above.
const BASE: u64 = 0x1000;

/// Memory that changes whenever it is read, as another thread's may.
struct Restless {
    bytes: Vec<u8>,
    read: Vec<(u64, u64)>,
}

impl Restless {
    fn range(&self, address: u64, len: usize) -> io::Result<std::ops::Range<usize>> {
        let fault = || io::Error::from_raw_os_error(14);
        let from = address.checked_sub(BASE).and_then(|from| usize::try_from(from).ok()).ok_or_else(fault)?;
        let to = from.checked_add(len).filter(|to| *to <= self.bytes.len()).ok_or_else(fault)?;
        Ok(from..to)
    }
}

impl Memory for Restless {
    fn read(&mut self, address: u64, into: &mut [u8]) -> io::Result<()> {
        let range = self.range(address, into.len())?;
        into.copy_from_slice(&self.bytes[range.clone()]);
        self.bytes[range].iter_mut().for_each(|byte| *byte ^= 0xff);
        self.read.push((address, into.len() as u64));
        Ok(())
    }

    fn write(&mut self, address: u64, from: &[u8]) -> io::Result<()> {
        let range = self.range(address, from.len())?;
        self.bytes[range].copy_from_slice(from);
        Ok(())
    }
}

/// Number and size of what is supervised, and two that are not.
const REQUESTS: [(u32, u32); 12] = [
    (0x29, 16),
    (0x2a, 32),
    (0x2b, 32),
    (0x2b, 48),
    (0x34, 28),
    (0x35, 24),
    (0x4a, 184),
    (206, 16),
    (207, 16),
    (214, 8),
    (211, 16),
    (0x27, 56),
];

fuzz_target!(|input: (Vec<u8>, Vec<u8>)| {
    let (calls, bytes) = input;
    let branch = Branch::of("580.159.04").expect("a branch that is known");
    let mut rules = Rules::new(branch);
    let mut memory = Restless { bytes, read: Vec::new() };
    for (at, which) in calls.iter().take(16).enumerate() {
        let (number, size) = REQUESTS[usize::from(*which) % REQUESTS.len()];
        let request = 0xc000_4600 | size << 16 | number;
        memory.read.clear();
        match rules.decide(request, BASE + 8 * at as u64, &mut memory) {
            Decision::Perform(performance) => {
                let image = &performance.image;
                let (number, _) = requests::parts(request).expect("a request of the driver");
                let client = image.word(0, 0).expect("every call has a client");
                match number {
                    number::CONTROL => assert!(rules::control(image.word(0, 8).unwrap()).is_some()),
                    number::ALLOC => assert!(rules::class(branch, image.word(0, 12).unwrap()).is_some()),
                    number::DUP_OBJECT => {
                        let source = image.word(0, 12).unwrap();
                        assert!(source == 0 || source == client || performance.confirm.contains(&source));
                    }
                    number::FREE_OS_EVENT => assert!(performance.confirm.contains(&client)),
                    _ => {}
                }
                let copied: usize = (0..image.count()).map(|block| image.bytes(block).len()).sum();
                assert!(copied <= MAX_BYTES);
                assert!(memory.read.len() <= image.count(), "something was read twice");
                let mut image = performance.image;
                image.with_own_addresses(|arguments| assert!(!arguments.is_null()));
                rules.made(request, &image);
            }
            Decision::Refuse(image, status) => {
                assert_ne!(status, 0);
                let _ = image.write_back(&mut memory);
            }
            Decision::Answer(image) => {
                let _ = image.write_back(&mut memory);
            }
            Decision::Fail(errno) => assert!(errno > 0),
        }
    }
});
