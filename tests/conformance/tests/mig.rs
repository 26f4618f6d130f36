//! GPUs that are cut into MIG instances: software GPUs stand for them, so that everything but the hardware's part is tried.

use std::path::Path;

use conformance::harness::{Place, Proxy};
use control::ZoneSettings;
use control::admin::{AdminClient, Answer, CardStatus, Request};
use serde_json::Value;

/// Two GPUs of 1 GiB, each cut in two.
const TWO_BY_TWO: [&str; 4] = ["--soft-devices", "2", "--soft-mig", "2"];
const SLICE: u64 = 512 << 20;

fn place() -> Place {
    Place::with_nvml(env!("CARGO_BIN_EXE_conformance"))
}

fn ask(place: &Place, request: &Request) -> Answer {
    let client = AdminClient::connect(&place.state().join("admin.sock")).expect("the broker is there");
    client.ask(request).expect("it answers")
}

fn cards(place: &Place) -> Vec<CardStatus> {
    loop {
        match ask(place, &Request::Cards) {
            Answer::Cards { cards: Some(cards) } => return cards,
            Answer::Cards { cards: None } => std::thread::sleep(std::time::Duration::from_millis(20)),
            answer => panic!("{answer:?}"),
        }
    }
}

fn zone_on(place: &Place, name: &str, gpus: &[u32]) {
    let mut settings = ZoneSettings::default();
    settings.bindings.gpus = gpus.to_vec();
    let request = Request::CreateZone { name: name.parse().unwrap(), settings };
    assert!(matches!(ask(place, &request), Answer::Zone { .. }));
}

/// What was made by hand stays when a proxy ends.
fn end(place: &Place, proxy: Proxy<'_>, zones: &[&str]) {
    for zone in zones {
        let request = Request::RemoveZone { name: zone.parse().unwrap(), force: true };
        assert!(matches!(ask(place, &request), Answer::Removed));
    }
    proxy.stop();
    place.nothing_is_left();
}

/// What programs of a zone see, by CUDA and by NVML; none where there is no device.
fn seen(place: &Place, socket: &Path, variables: &[(&str, &str)]) -> Option<Vec<Value>> {
    let mut command = place.bulkhead(&["topology", "--json"]);
    let output = command.envs(variables.iter().copied()).env("BULKHEAD_SOCKET", socket).output().expect("it runs");
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains("CUDA_ERROR_NO_DEVICE"), "{said}");
        return None;
    }
    let survey: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert!(survey["without_nvml"].is_null(), "{survey}");
    Some(survey["gpus"].as_array().expect("GPUs").clone())
}

#[test]
fn topology_shows_the_slices_of_each_gpu() {
    let place = place();
    let backend = ["--backend", "soft", "--soft-memory", "4GiB"];
    let arguments: Vec<&str> = ["topology", "--json"].into_iter().chain(backend).chain(TWO_BY_TWO).collect();
    let output = place.bulkhead(&arguments).output().expect("it runs");
    let survey: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(
        (survey["gpus"].as_array().map(Vec::len), survey["links"].as_array().map(Vec::len)),
        (Some(2), Some(2))
    );
    let gpu = &survey["gpus"][1];
    assert_eq!((&gpu["memory_bytes"], &gpu["mig"]["enabled"]), (&(4u64 << 30).into(), &true.into()));
    let slices = gpu["mig"]["slices"].as_array().expect("slices");
    assert_eq!(slices.len(), 2);
    assert_eq!((&slices[1]["profile"], &slices[1]["index"]), (&"1g.2gb".into(), &1.into()));
    let table = place.bulkhead(&[&["topology"], &arguments[2..]].concat()).output().expect("it runs");
    let table = String::from_utf8_lossy(&table.stdout).into_owned();
    let line = format!("MIG 1:1  1g.2gb  {}  2", slices[1]["uuid"].as_str().expect("a UUID"));
    assert!(table.contains(&line) && line.contains("MIG-"), "{table}");
    place.nothing_is_left();
}

#[test]
fn each_slice_is_a_gpu_and_a_zone_sees_its_own() {
    let place = place();
    let proxy = Proxy::start_with(&place, &["any"], &TWO_BY_TWO);
    let cards = cards(&place);
    assert_eq!(cards.len(), 4);
    assert!(cards.iter().all(|card| card.uuid.starts_with("MIG-") && card.memory == SLICE), "{cards:?}");
    let parents: Vec<&str> = cards.iter().map(|card| card.mig.as_ref().unwrap().parent_uuid.as_str()).collect();
    assert!(parents[0] == parents[1] && parents[1] != parents[2] && parents[0].starts_with("GPU-"), "{parents:?}");

    zone_on(&place, "last", &[cards[3].number]);
    let last = proxy.socket("last");
    let [gpu] = &seen(&place, &last, &[]).unwrap()[..] else { panic!("one") };
    assert_eq!((&gpu["uuid"], &gpu["memory_bytes"]), (&cards[3].uuid.as_str().into(), &SLICE.into()));
    // A process has one instance, also where its zone has more, or is tied to none.
    zone_on(&place, "two", &[cards[2].number, cards[1].number]);
    for (zone, card) in [("two", &cards[1]), ("any", &cards[0])] {
        let [gpu] = &seen(&place, &proxy.socket(zone), &[]).unwrap()[..] else { panic!("one") };
        assert_eq!(gpu["uuid"], card.uuid);
    }

    // As pods name it; no other can be had by naming it.
    let (own, other) = (cards[3].uuid.as_str(), cards[2].uuid.as_str());
    for variable in ["CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"] {
        for (list, there) in [("0", true), (own, true), (other, false), ("1", false)] {
            let found = seen(&place, &last, &[(variable, list)]);
            assert_eq!(found.map(|gpus| gpus.len()), there.then_some(1), "{variable}={list}");
        }
    }
    end(&place, proxy, &["last", "two"]);
}

#[test]
fn a_zone_on_one_of_several_gpus_sees_no_other() {
    let place = place();
    let proxy = Proxy::start_with(&place, &[], &["--soft-devices", "2"]);
    let cards = cards(&place);
    zone_on(&place, "second", &[cards[1].number]);
    let [gpu] = &seen(&place, &proxy.socket("second"), &[]).unwrap()[..] else { panic!("one") };
    assert_eq!(gpu["uuid"], cards[1].uuid);
    end(&place, proxy, &["second"]);
}
