//! What an operator, or whoever has the admin socket, sends to the broker: JSON that is a request is the same one when it
//! is written again, settings that are valid keep within what they may, and changes keep to what they may change. Answers are
//! what commands read.
#![no_main]

use control::admin::{Answer, Request};
use control::host_defaults::HostDefaults;
use control::zone::{
    MAX_PRIORITY, MAX_SHARE, MIN_HOST_MEMORY, MIN_HOST_PROCESSES, UNLIMITED, ZoneChange, ZoneSettings,
};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(request) = serde_json::from_slice::<Request>(bytes) {
        let text = serde_json::to_vec(&request).expect("a request is JSON");
        assert_eq!(serde_json::from_slice::<Request>(&text).expect("what was written"), request);
        let _ = request.changes();
        if let Request::ChangeZone { change, .. } = &request {
            check_change(change.clone());
        }
        if let Request::CreateZone { name, settings } = request {
            assert!(!name.as_str().contains('/') && !name.as_str().starts_with('.'));
            let text = serde_json::to_vec(&settings).expect("settings are JSON");
            assert!(serde_json::from_slice::<control::ZoneSettings>(&text).is_ok());
            check_settings(&settings);
        }
    }
    if let Ok(answer) = serde_json::from_slice::<Answer>(bytes) {
        let text = serde_json::to_vec(&answer).expect("an answer is JSON");
        assert_eq!(serde_json::from_slice::<Answer>(&text).expect("what was written"), answer);
    }
});

/// Settings that are valid promise no more than there can be, and are so when they were written down.
fn check_settings(settings: &ZoneSettings) {
    if settings.check().is_err() {
        return;
    }
    let limits = settings.limits;
    assert!((1..=MAX_SHARE).contains(&limits.share) && limits.priority <= MAX_PRIORITY);
    assert!(limits.cap.is_none_or(|cap| (1..=100).contains(&cap)) && limits.memory != Some(0));
    assert!(limits.host_memory.is_none_or(|bytes| bytes >= MIN_HOST_MEMORY));
    assert!(limits.host_processes.is_none_or(|count| count >= MIN_HOST_PROCESSES));
    for gpu in settings.bindings.gpus.iter().chain(settings.gpu_limits.keys()) {
        let on_gpu = settings.on_gpu(*gpu);
        assert!((1..=MAX_SHARE).contains(&on_gpu.share) && on_gpu.priority <= MAX_PRIORITY);
        assert!(on_gpu.memory != Some(0) && on_gpu.cap.is_none_or(|cap| (1..100).contains(&cap)));
    }
    let in_force = HostDefaults::default().in_force(&limits);
    assert!(in_force.host_memory != Some(UNLIMITED) && in_force.host_processes != Some(UNLIMITED));
}

/// A change that is made twice is the same as one; it changes neither who may enter a zone nor which GPUs it has.
fn check_change(change: ZoneChange) {
    let before = ZoneSettings::default();
    let mut once = before.clone();
    change.clone().apply(&mut once);
    let mut twice = once.clone();
    change.apply(&mut twice);
    assert_eq!(once, twice);
    assert_eq!((&once.access, &once.bindings.gpus), (&before.access, &before.bindings.gpus));
    check_settings(&once);
}
