//! A message of a client that publishes or waits, as the broker receives it; and a broker's answer, as a client does.
#![no_main]

mod shared;

use control::rendezvous::{NOTE, RendezvousMessage, kind};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (Vec<u8>, u8, u8)| {
    let (bytes, shape, descriptors) = input;
    let kinds = [kind::PUBLISH, kind::WAIT, kind::DONE, kind::LIST, kind::FINISH, kind::FOUND, kind::ENTRY];
    let good = RendezvousMessage::new(kinds[usize::from(shape >> 2) % kinds.len()]);
    let bytes = shared::shape(&good, bytes, shape);
    let Some(message) = shared::receive::<RendezvousMessage>(&bytes, descriptors) else { return };
    assert!(message.note().len() <= NOTE && message.note().len() as u64 == message.note_len);
    assert!(message.tokens().count() <= 2);
    if let Some(name) = message.name() {
        assert_eq!(RendezvousMessage::new(message.kind).named(&name).name(), Some(name.clone()));
        assert!(!name.as_str().contains(['/', '\0']) && !name.as_str().starts_with('.'));
    }
    if let Ok(Some(zone)) = message.zone() {
        assert!(!zone.as_str().is_empty());
    }
});
