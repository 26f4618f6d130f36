//! CDI files that somebody else has written, spoilt in every way: reading and checking them ends in a spec or in one line,
//! and what is written of a spec is read as the same.

use bulkhead_kube::cdi::spec::Spec;
use bulkhead_kube::cdi::{to_yaml, validate};
use std::path::Path;
use testkit::Random;

const ROUNDS: usize = 2_000;

const GOOD: &str = r#"{"cdiVersion":"0.7.0","kind":"bulkhead.dev/zone","annotations":{"a":"b"},"devices":[{"name":"a",
    "annotations":{"x":"y"},"containerEdits":{"env":["A=1"],"deviceNodes":[{"path":"/dev/x","hostPath":"/dev/y",
    "type":"c","major":195,"minor":0,"fileMode":438,"permissions":"rwm","uid":0,"gid":0}],
    "mounts":[{"hostPath":"/a","containerPath":"/b","options":["ro","bind"],"type":"none"}],
    "hooks":[{"hookName":"createContainer","path":"/usr/bin/true","args":["true","x"],"env":["B=2"],"timeout":5}],
    "additionalGids":[1,2]}}],"containerEdits":{"env":["C=3"]}}"#;

/// What a spoilt file may hold in place of anything.
const PIECES: [&str; 14] =
    ["", "{", "}", "[", "]", "\"", ":", ",", "null", "-1", "18446744073709551616", "\\ud800", "&a [*a, *a]", "\u{0}"];

fn check(text: &str, is_json: bool) {
    let Ok(spec) = validate::parse(text, is_json) else { return };
    let problems = validate::problems(&spec);
    assert!(problems.iter().all(|problem| !problem.is_empty() && !problem.contains('\n')), "{problems:?}");
    let again: Spec = serde_json::from_str(&serde_json::to_string(&spec).unwrap()).unwrap();
    assert_eq!(again, spec);
    assert_eq!(validate::problems(&again), problems);
    let devices = validate::devices([(Path::new("/etc/cdi/a.json"), &spec)].into_iter());
    assert!(devices.names.len() <= spec.devices.len());
}

fn spoilt(text: &str, random: &mut Random) -> String {
    let mut bytes = text.as_bytes().to_vec();
    for _ in 0..1 + random.below(3) {
        let (from, len) = (random.below(bytes.len() + 1), random.below(12));
        let to = (from + len).min(bytes.len());
        let piece = match random.below(3) {
            0 => random.bytes(4),
            1 => random.pick(&PIECES).as_bytes().to_vec(),
            _ => {
                let (start, len) = (random.below(bytes.len() + 1), random.below(40));
                bytes[start..(start + len).min(bytes.len())].to_vec()
            }
        };
        bytes.splice(from..to, piece);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[test]
fn a_file_that_is_spoilt_is_refused_or_is_another_file() {
    let json: Spec = validate::parse(GOOD, true).unwrap();
    assert_eq!(validate::problems(&json), Vec::<String>::new());
    let yaml = to_yaml(&json).unwrap();
    assert_eq!(validate::parse(&yaml, false).unwrap(), json);
    let mut random = Random::new(0xcd1);
    for _ in 0..ROUNDS {
        check(&spoilt(GOOD, &mut random), true);
        check(&spoilt(&yaml, &mut random), false);
    }
}

#[test]
fn a_file_that_grows_when_it_is_read_is_refused() {
    // Each line names the one before twice: written out, it would be 2^40 words.
    let mut text = "a0: &a0 [x]\n".to_owned();
    for level in 1..40 {
        text += &format!("a{level}: &a{level} [*a{0}, *a{0}]\n", level - 1);
    }
    assert!(validate::parse(&text, false).is_err());
    let deep = "[".repeat(100_000);
    assert!(validate::parse(&deep, true).is_err() && validate::parse(&deep, false).is_err());
}
