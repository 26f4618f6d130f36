//! The broker's answer, as a client receives it.
#![no_main]

mod shared;

use idm::bootstrap::{Welcome, WelcomeStatus};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (Vec<u8>, u8, u8)| {
    let (bytes, kind, descriptors) = input;
    let bytes = shared::shape(&Welcome::new(WelcomeStatus::Ok, ""), bytes, kind);
    if let Some(welcome) = shared::receive::<Welcome>(&bytes, descriptors) {
        assert!(welcome.status().is_some());
        assert!(!welcome.text().chars().any(char::is_control));
    }
});
