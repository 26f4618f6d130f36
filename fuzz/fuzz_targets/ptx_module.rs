//! PTX, as a hostile client may write it: parsing and checking end in a module or an error.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let _ = ptx_exec::Module::from_ptx(text);
});
