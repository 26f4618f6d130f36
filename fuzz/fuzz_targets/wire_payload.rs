//! A payload, as a hostile client may send it: reading it in any order stays inside.
#![no_main]

use cuda_abi::wire::{Handle, Reader};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (Vec<u8>, Vec<u8>)| {
    let (payload, steps) = input;
    let mut reader = Reader::new(&payload);
    for step in steps {
        match step % 6 {
            0 => drop(reader.word().map(Handle::from_word)),
            1 => drop(reader.narrow::<u32>()),
            2 => drop(reader.bytes()),
            // SAFETY: integers.
            3 => drop(unsafe { reader.plain::<[u32; 6]>() }),
            // SAFETY: integers.
            4 => drop(unsafe { reader.array::<u64>(u64::from(step)) }),
            _ => drop(reader.end()),
        }
    }
});
