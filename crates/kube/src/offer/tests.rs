use super::*;
use control::admin::MigStatus;

const GIB: u64 = 1 << 30;

fn cards(count: usize) -> Vec<CardStatus> {
    let card = |at: usize| CardStatus {
        name: "test".into(),
        uuid: format!("GPU-{at}"),
        number: at as u32,
        bus_id: format!("0000:{at:02x}:00.0"),
        memory: 80 * GIB,
        capability: (9, 0),
        multiprocessors: 132,
        mig: None,
        numa_node: None,
        pcie_root: None,
        driver_version: String::new(),
        fault: None,
    };
    (0..count).map(card).collect()
}

fn profile(name: &str, memory: Option<u64>) -> Profile {
    Profile {
        name: name.into(),
        resource: format!("bulkhead.dev/{name}"),
        limits: ZoneLimits { memory, ..ZoneLimits::default() },
        per_gpu: None,
        gpus: None,
        mig: None,
    }
}

fn config(profiles: Vec<Profile>) -> Kubernetes {
    Kubernetes { profiles, ..Kubernetes::default() }
}

fn whole(profiles: Vec<Profile>) -> Kubernetes {
    Kubernetes { whole_gpus: Some("bulkhead.dev/gpu".into()), ..config(profiles) }
}

#[test]
fn without_profiles_gpus_are_for_claims_or_whole() {
    let offered = cut(&config(vec![]), &[], &cards(2), 0).unwrap();
    assert!(offered.resources.is_empty());
    assert_eq!(offered.claims, BTreeSet::from([0, 1]));
    let offered = cut(&whole(vec![]), &[], &cards(2), 0).unwrap();
    assert_eq!(offered.resources[0].devices.keys().collect::<Vec<_>>(), ["GPU-0", "GPU-1"]);
    assert!(offered.claims.is_empty());
    let both = Kubernetes { claims: Some(vec![1]), ..whole(vec![]) };
    let offered = cut(&both, &[], &cards(2), 0).unwrap();
    assert_eq!(offered.resources[0].devices.keys().collect::<Vec<_>>(), ["GPU-0"]);
    assert_eq!(offered.claims, BTreeSet::from([1]));
}

#[test]
fn a_profile_has_as_many_parts_as_fit_beside_the_reserve() {
    let offered = cut(&config(vec![profile("gpu-10gb", Some(10 * GIB))]), &[], &cards(1), 2 * GIB).unwrap();
    assert!(offered.claims.is_empty());
    assert_eq!(offered.resources.len(), 1);
    assert_eq!(offered.resources[0].devices.len(), 7);
    assert_eq!(offered.resources[0].devices["GPU-0::6"], Part { gpu: 0, number: 0 });
}

#[test]
fn profiles_can_have_gpus_of_their_own_and_the_rest_is_others() {
    let small = Profile { gpus: Some(vec![1]), ..profile("small", Some(40 * GIB)) };
    let offered = cut(&whole(vec![small.clone()]), &[], &cards(3), 0).unwrap();
    assert_eq!(offered.resources[0].devices.keys().collect::<Vec<_>>(), ["GPU-1::0", "GPU-1::1"]);
    assert_eq!(offered.resources[1].devices.keys().collect::<Vec<_>>(), ["GPU-0", "GPU-2"]);
    assert_eq!(cut(&config(vec![small]), &[], &cards(3), 0).unwrap().claims, BTreeSet::from([0, 2]));
}

#[test]
fn what_cannot_be_offered_is_named() {
    let fails = |profiles| cut(&config(profiles), &[], &cards(1), 0).unwrap_err().to_string();
    let two = vec![profile("a", Some(50 * GIB)), profile("b", Some(40 * GIB))];
    assert!(fails(two.clone()).contains("profiles a, b need"), "{}", fails(two));
    assert!(fails(vec![profile("a", None)]).contains("per_gpu"));
    assert!(fails(vec![profile("a", Some(100 * GIB))]).contains("does not fit"));
    let elsewhere = Profile { gpus: Some(vec![3]), ..profile("a", Some(GIB)) };
    assert!(fails(vec![elsewhere]).contains("GPU 3 does not exist"));
    let same = Profile { resource: "bulkhead.dev/a".into(), ..profile("b", Some(GIB)) };
    assert!(fails(vec![profile("a", Some(GIB)), same]).contains("both offered"));
    let twice = Kubernetes { claims: Some(vec![0]), ..config(vec![profile("a", Some(GIB))]) };
    assert!(cut(&twice, &[], &cards(1), 0).unwrap_err().to_string().contains("one way only"));
}

#[test]
fn several_parts_are_their_sum() {
    let limits = ZoneLimits { memory: Some(10 * GIB), share: 40, cap: Some(60), ..ZoneLimits::default() };
    let resource = Resource { name: "r".into(), devices: BTreeMap::new(), limits, single: false };
    let three = resource.settings_of(&[0, 0, 0]).on_gpu(0);
    assert_eq!((three.memory, three.share, three.cap), (Some(30 * GIB), 120, None));
}

#[test]
fn parts_of_different_gpus_are_not_added_up() {
    let limits = ZoneLimits { memory: Some(10 * GIB), share: 40, host_memory: Some(GIB), ..ZoneLimits::default() };
    let resource = Resource { name: "r".into(), devices: BTreeMap::new(), limits, single: false };
    let settings = resource.settings_of(&[0, 1, 1]);
    let on = |gpu| (settings.on_gpu(gpu).memory, settings.on_gpu(gpu).share);
    assert_eq!((on(0), on(1)), ((Some(10 * GIB), 40), (Some(20 * GIB), 80)));
    assert_eq!(settings.limits.host_memory, Some(3 * GIB), "the host is one");
}

fn two_gpus() -> Resource {
    let devices = [("a0", 0), ("a1", 0), ("a2", 0), ("b0", 1), ("b1", 1)];
    let devices = devices.into_iter().map(|(id, gpu)| (id.to_owned(), Part { gpu, number: gpu as u32 })).collect();
    Resource { name: "r".into(), devices, limits: ZoneLimits::default(), single: false }
}

fn ids(text: &[&str]) -> Vec<String> {
    text.iter().map(|id| (*id).to_owned()).collect()
}

#[test]
fn packing_fills_the_fuller_gpu_and_spreading_the_emptier() {
    let resource = two_gpus();
    let all = ids(&["a0", "a1", "a2", "b0", "b1"]);
    assert_eq!(resource.prefer(&all, &[], 1, false), ["b0"]);
    assert_eq!(resource.prefer(&all, &[], 1, true), ["a0"]);
}

#[test]
fn a_containers_parts_come_from_one_gpu_if_they_fit_there() {
    let resource = two_gpus();
    let all = ids(&["a0", "a1", "a2", "b0", "b1"]);
    assert_eq!(resource.prefer(&all, &[], 3, false), ["a0", "a1", "a2"]);
    assert_eq!(resource.prefer(&all, &ids(&["b1"]), 2, true), ["b1", "b0"]);
    // More than there is, or things that nobody knows: what can be had.
    assert_eq!(resource.prefer(&ids(&["a0", "nobody"]), &[], 2, false), ["a0"]);
}

#[test]
fn a_zone_names_its_gpus_also_where_they_are_all() {
    assert_eq!(numbers([1].into_iter()), Ok(vec![1]));
    assert_eq!(numbers([1, 0, 1].into_iter()), Ok(vec![0, 1]));
    assert_eq!(numbers([0].into_iter()), Ok(vec![0]), "all of the node's are named, too");
}

#[test]
fn slices_of_a_size_have_a_profile_of_their_own() {
    let mut node = cards(3);
    for (card, profile) in node[1..].iter_mut().zip(["1g.18gb", "2g.35gb"]) {
        card.mig = Some(MigStatus { profile: profile.into(), parent_uuid: "GPU-p".into() });
        card.number += 64;
        card.uuid = format!("MIG-{profile}");
    }
    let slice = Profile { per_gpu: Some(1), mig: Some("1g.18gb".into()), ..profile("mig-1g.18gb", None) };
    let offered = cut(&config(vec![slice]), &[], &node, 0).unwrap();
    assert_eq!(
        offered.resources[0].devices,
        BTreeMap::from([("MIG-1g.18gb::0".into(), Part { gpu: 1, number: 65 })])
    );
    assert_eq!(offered.claims, BTreeSet::from([0, 2]), "the others are for claims");
}

#[test]
fn a_zone_has_whole_gpus_or_one_slice() {
    assert_eq!(numbers([1, 1, 2].into_iter()), Ok(vec![1, 2]));
    assert_eq!(numbers([64, 64].into_iter()), Ok(vec![64]));
    assert_eq!(numbers([64, 72].into_iter()), Err(SeveralInstances));
    assert_eq!(numbers([0, 72].into_iter()), Err(SeveralInstances));
}
