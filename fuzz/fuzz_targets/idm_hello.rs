//! The first message of a client, as the broker receives it: a hello, a question, or the wish to meet others.
#![no_main]

mod shared;

use idm::bootstrap::{
    First, HELLO_BRINGS_REGION, HELLO_NEEDS_FRESH_WORKER, Hello, Inquiry, Message, Opening, Rendezvous, VERSION,
};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (Vec<u8>, u8, u8)| {
    let (bytes, kind, descriptors) = input;
    let bytes = match kind >> 2 & 3 {
        0 => shared::shape(&Inquiry::default(), bytes, kind),
        1 => shared::shape(&Rendezvous::default(), bytes, kind),
        _ => shared::shape(&Hello::new(0, 0), bytes, kind),
    };
    match shared::receive::<Opening>(&bytes, descriptors).map(|opening| opening.first()) {
        Some(Some(First::Hello(hello))) if hello.version == VERSION => {
            assert_eq!(hello.flags & !(HELLO_NEEDS_FRESH_WORKER | HELLO_BRINGS_REGION), 0);
        }
        Some(Some(First::Hello(hello))) => assert!(hello.is_valid()),
        Some(Some(First::Inquiry | First::Rendezvous)) => assert_eq!(bytes[8..], [0; 48]),
        Some(None) => panic!("a message that is valid and nothing"),
        None => {}
    }
});
