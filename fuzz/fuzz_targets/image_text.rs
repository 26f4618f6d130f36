//! A kernel image, as a hostile client may upload it: the container is taken apart without a panic, and bounded.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let _ = cuda_abi::image::is_whole(bytes);
    let _ = fatbin::text(bytes, 90);
});
