//! The first message of a client, as the broker receives it.
#![no_main]

mod shared;

use idm::bootstrap::{HELLO_NEEDS_FRESH_WORKER, Hello, VERSION};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (Vec<u8>, u8, u8)| {
    let (bytes, kind, descriptors) = input;
    let bytes = shared::shape(&Hello::new(0, 0), bytes, kind);
    if let Some(hello) = shared::receive::<Hello>(&bytes, descriptors)
        && hello.version == VERSION
    {
        assert_eq!(hello.flags & !HELLO_NEEDS_FRESH_WORKER, 0);
    }
});
