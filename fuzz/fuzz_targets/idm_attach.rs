//! The worker's offer of a region, as a client receives it.
#![no_main]

mod shared;

use idm::bootstrap::Attach;
use idm::region::Layout;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (Vec<u8>, u8, u8)| {
    let (bytes, kind, descriptors) = input;
    let bytes = shared::shape(&Attach::new(Layout::default(), [0; 16]), bytes, kind);
    if let Some(attach) = shared::receive::<Attach>(&bytes, descriptors) {
        assert!(attach.layout.region_bytes().expect("a valid layout has a size") > attach.layout.ring_bytes);
    }
});
