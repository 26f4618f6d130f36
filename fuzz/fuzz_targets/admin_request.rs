//! What an operator, or whoever has the admin socket, sends to the broker: JSON that is a request is the same one when it
//! is written again. Answers are what commands read.
#![no_main]

use control::admin::{Answer, Request};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(request) = serde_json::from_slice::<Request>(bytes) {
        let text = serde_json::to_vec(&request).expect("a request is JSON");
        assert_eq!(serde_json::from_slice::<Request>(&text).expect("what was written"), request);
        let _ = request.changes();
        if let Request::CreateZone { name, settings } = request {
            assert!(!name.as_str().contains('/') && !name.as_str().starts_with('.'));
            let text = serde_json::to_vec(&settings).expect("settings are JSON");
            assert!(serde_json::from_slice::<control::ZoneSettings>(&text).is_ok());
        }
    }
    if let Ok(answer) = serde_json::from_slice::<Answer>(bytes) {
        let text = serde_json::to_vec(&answer).expect("an answer is JSON");
        assert_eq!(serde_json::from_slice::<Answer>(&text).expect("what was written"), answer);
    }
});
