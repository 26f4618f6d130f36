//! PTX, as a hostile client may write it: parsing and checking end in a module or an error.
#![no_main]

use libfuzzer_sys::fuzz_target;
use ptx_passes::{pauses, reach};

fuzz_target!(|text: &str| {
    let Ok(mut tree) = ptx::parse(text) else { return };
    ptx::library::complete(&mut tree);
    let Ok(module) = ptx_passes::build(&tree) else { return };
    for (index, _) in module.functions.iter().enumerate().filter(|(_, function)| function.entry) {
        let _ = pauses::of(&module, &reach::reach(&module, index));
    }
});
