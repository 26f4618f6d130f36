//! A CDI file that somebody else has written, as JSON or YAML: what is read of it is the same when it is written again, and
//! what is wrong with it is said in lines.
//!
//! The two files of `kube` that read CDI are built into this target: the crate brings an HTTP client and a gRPC server
//! along, which take minutes to build and of which nothing is needed here.
#![no_main]

use std::path::Path;

use libfuzzer_sys::fuzz_target;

#[allow(dead_code, unreachable_pub, reason = "of what commands use, only the parser is tried")]
#[path = "../../crates/kube/src/cdi/spec.rs"]
mod spec;
#[allow(dead_code, unreachable_pub, reason = "as above")]
#[path = "../../crates/kube/src/cdi/validate.rs"]
mod validate;

fuzz_target!(|input: (bool, &str)| {
    let (is_json, text) = input;
    let spec = match validate::parse(text, is_json) {
        Ok(spec) => spec,
        Err(why) => return assert!(!why.is_empty()),
    };
    let problems = validate::problems(&spec);
    assert!(problems.iter().all(|problem| !problem.is_empty() && !problem.contains('\n')), "{problems:?}");
    let written = serde_json::to_string(&spec).expect("a spec is JSON");
    let again = validate::parse(&written, true).expect("what was written is read");
    assert_eq!(again, spec);
    assert_eq!(validate::problems(&again), problems);
    let devices = validate::devices([(Path::new("/etc/cdi/a.json"), &spec)].into_iter());
    assert!(devices.names.len() <= spec.devices.len());
});
