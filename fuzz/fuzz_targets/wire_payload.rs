//! A payload, as a hostile client may send it: whatever operation it is said to be of, reading it stays inside, and what
//! is taken for a message has this one encoding. Requests are what a worker reads; replies are what a client does.
#![no_main]

use cuda_abi::wire::{Codec, Handle, Op, Reader, Source, ops};
use libfuzzer_sys::fuzz_target;

fn check(codec: &Codec, payload: &[u8]) {
    if let Ok(again) = (codec.again)(payload) {
        assert_eq!(again.encoding, payload);
    }
}

/// A message of an operation, well-formed but for one byte.
fn spoilt(codec: &Codec, random: &[u8], at: usize, change: u8) -> Vec<u8> {
    let mut message = Vec::new();
    (codec.sample)(&mut Source::new(random), &mut message);
    if let Some(place) = at.checked_rem(message.len()) {
        message[place] ^= change;
    }
    message
}

fuzz_target!(|input: (Vec<u8>, Vec<u8>, u16, u8)| {
    let (payload, steps, at, change) = input;
    for op in Op::ALL {
        let definition = op.definition();
        for codec in [definition.request, definition.reply] {
            check(&codec, &payload);
            check(&codec, &spoilt(&codec, &payload, usize::from(at), change));
        }
    }
    for (_, codec) in ops::UPLOADS {
        check(&codec, &payload);
    }
    // The table's calls, which are read argument by argument.
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
