//! A request of the broker, as the spawner receives it, which has the privilege: what is taken for a request has one
//! meaning, names no file, and stays within what there is.
#![no_main]

use libfuzzer_sys::fuzz_target;
use spawner::messages::{Asked, Request};
use zerocopy::{FromBytes, IntoBytes};

fuzz_target!(|input: (Vec<u8>, u8, u8)| {
    let (mut bytes, kind, shape) = input;
    if shape & 1 == 0 {
        bytes.resize(size_of::<Request>(), 0);
        bytes[..4].copy_from_slice(&u32::from(kind % 26).to_le_bytes());
    }
    let Ok(request) = Request::read_from_bytes(&bytes) else {
        assert_ne!(bytes.len(), size_of::<Request>());
        return;
    };
    let Ok(asked) = request.asked() else { return };
    let again = Request::of(&asked).expect("what was asked can be asked again");
    assert_eq!(again.asked().as_ref(), Ok(&asked));
    assert_eq!(Request::of(&asked).expect("twice").as_bytes(), again.as_bytes());
    match asked {
        Asked::Start(program, ..) => {
            if let control::spawner::Program::Worker(how) | control::spawner::Program::Inventory(how) = program {
                assert!(how.slot < control::spawner::SLOTS && how.gpus.len() <= 64);
            }
        }
        Asked::Adopt { slot, .. } | Asked::IsFree(slot) => assert!(slot < control::spawner::SLOTS),
        Asked::SetAccess { zone, mode, .. } => {
            assert!(mode <= 0o777 && !zone.as_str().contains('/') && !zone.as_str().starts_with('.'));
        }
        Asked::MakeZoneDirectory(zone, _) | Asked::RemoveZoneDirectory(zone) => {
            assert!(!zone.as_str().contains('/') && !zone.as_str().starts_with('.') && !zone.as_str().is_empty());
        }
        _ => {}
    }
});
