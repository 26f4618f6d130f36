//! A hostile client's messages, executed by a worker: what reaches the driver is alive, mapped and paid for.
#![no_main]

use bulkhead_fuzz::dispatch::{Bytes, Session};
use libfuzzer_sys::fuzz_target;

/// A longer input says no more.
const MOST_MESSAGES: usize = 200;

fuzz_target!(|bytes: &[u8]| {
    let Some((seed, rest)) = bytes.split_first() else { return };
    let mut session = Session::new(u64::from(*seed));
    let mut random = Bytes(rest);
    for _ in 0..MOST_MESSAGES {
        if random.is_empty() {
            break;
        }
        session.step(&mut random);
    }
});
