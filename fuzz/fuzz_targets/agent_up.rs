//! A message of the agent in a pod's machine, as the shim receives it: whole or not at all, within its bounds, and in one form.
#![no_main]

use agent::protocol::{Answer, CHUNK, Decode, MAX_PIDS, MAX_TERMINATION_MESSAGE, MAX_TEXT, MAX_UP, Up};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let bytes = &bytes[..bytes.len().min(MAX_UP)];
    let Ok(message) = Up::decode(bytes) else { return };
    assert_eq!(message.encode(), bytes, "two forms of {message:?}");
    match message {
        Up::Output { bytes, .. } => assert!(bytes.len() <= CHUNK),
        Up::TerminationMessage { bytes, .. } => assert!(bytes.len() <= MAX_TERMINATION_MESSAGE),
        Up::Reply { result: Err(failure), .. } => assert!(failure.text.len() <= MAX_TEXT),
        Up::Reply { result: Ok(Answer::Pids(pids)), .. } => assert!(pids.len() <= MAX_PIDS),
        _ => {}
    }
});
