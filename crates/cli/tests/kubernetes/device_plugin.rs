//! `bulkhead device-plugin`.

use bulkhead_kube::api::device_plugin::ContainerAllocateResponse;
use rustix::process::Signal;

use testkit::until;

use crate::node::Node;

const GPU_1GB: &str = "bulkhead.dev/gpu-1gb";
const ONE_PROFILE: &str = "[profiles.gpu-1gb]\nmemory = \"1GiB\"\nshare = 25\n";

/// The zone that a container was given.
fn zone_of(response: &ContainerAllocateResponse) -> String {
    let [device] = response.cdi_devices.as_slice() else { panic!("{response:?}") };
    device.name.strip_prefix("bulkhead.dev/zone=").unwrap().to_owned()
}

#[test]
fn a_container_gets_a_zone_of_its_profile() {
    let node = Node::start(ONE_PROFILE);
    let _plugin = node.device_plugin();
    let ids = node.kubelet.ids(GPU_1GB);
    assert_eq!(ids.len(), 8, "two GPUs with 4 GiB each: {ids:?}");
    assert!(ids.iter().all(|id| id.len() <= 63));

    let response = node.kubelet.allocate(GPU_1GB, &[&ids[0]]).unwrap();
    let zone = zone_of(&response);
    assert!(response.mounts.is_empty() && response.devices.is_empty() && response.envs.is_empty());
    let made = node.zone(&zone).unwrap();
    assert_eq!((&made["limits"]["memory"], &made["limits"]["share"]), (&(1u64 << 30).into(), &25.into()));

    // What the runtime is told: our libraries, the zone's directory, no hooks and no devices.
    let [(file, spec)] = &node.cdi()[..] else { panic!("{:?}", node.cdi()) };
    assert_eq!(*file, format!("bulkhead.dev-zone-{zone}.json"));
    assert_eq!((spec["cdiVersion"].as_str(), spec["kind"].as_str()), (Some("0.3.0"), Some("bulkhead.dev/zone")));
    assert_eq!(spec["devices"][0]["name"], zone);
    let edits = spec["devices"][0]["containerEdits"].as_object().unwrap();
    assert_eq!(edits.keys().collect::<Vec<_>>(), ["env", "mounts"]);
    let mounts: Vec<(String, String)> = edits["mounts"]
        .as_array()
        .unwrap()
        .iter()
        .map(|m| (m["hostPath"].as_str().unwrap().to_owned(), m["containerPath"].as_str().unwrap().to_owned()))
        .collect();
    let dir = node.directory.to_str().unwrap();
    assert_eq!(mounts.len(), 6);
    assert!(mounts.contains(&(format!("{dir}/lib/nvidia-smi"), "/usr/bin/nvidia-smi".to_owned())));
    let library = (format!("{dir}/lib/libcuda.so.1"), "/usr/lib/x86_64-linux-gnu/libcuda.so.1".to_owned());
    assert!(mounts.contains(&library), "{mounts:?}");
    assert!(mounts.contains(&(format!("{dir}/s/zones/{zone}"), "/run/bulkhead/zone".to_owned())));
    assert!(node.state().join("zones").join(&zone).join("sock").exists());
}

#[test]
fn several_devices_are_one_zone_with_their_sum() {
    let node = Node::start(ONE_PROFILE);
    let _plugin = node.device_plugin();
    let ids = node.kubelet.ids(GPU_1GB);
    let preferred = node.kubelet.prefer(GPU_1GB, &ids.iter().map(String::as_str).collect::<Vec<_>>(), 3);
    let zone =
        zone_of(&node.kubelet.allocate(GPU_1GB, &preferred.iter().map(String::as_str).collect::<Vec<_>>()).unwrap());
    let made = node.zone(&zone).unwrap();
    assert_eq!((&made["limits"]["memory"], &made["limits"]["share"]), (&(3u64 << 30).into(), &75.into()));
    let gpu = |id: &str| id.split("::").next().unwrap().to_owned();
    assert!(preferred.iter().all(|id| gpu(id) == gpu(&preferred[0])), "{preferred:?}");
}

#[test]
fn a_device_that_is_handed_out_again_ends_the_zone_before() {
    let node = Node::start(ONE_PROFILE);
    let _plugin = node.device_plugin();
    let ids = node.kubelet.ids(GPU_1GB);
    let first = zone_of(&node.kubelet.allocate(GPU_1GB, &[&ids[0]]).unwrap());
    let second = zone_of(&node.kubelet.allocate(GPU_1GB, &[&ids[0]]).unwrap());
    assert_ne!(first, second);
    assert!(node.zone(&first).is_none() && node.zone(&second).is_some());
    assert_eq!((node.cdi().len(), node.checkpoints()), (1, 1));
    assert!(!node.state().join("zones").join(&first).exists());
}

#[test]
fn pods_give_zones_their_names_and_take_them_along() {
    let node = Node::start(ONE_PROFILE);
    let plugin = node.device_plugin();
    let ids = node.kubelet.ids(GPU_1GB);
    let zone = zone_of(&node.kubelet.allocate(GPU_1GB, &[&ids[0]]).unwrap());
    node.kubelet.run_pod("research", "trainer-0", GPU_1GB, &[&ids[0]]);
    plugin.logged("zone assigned to pod");
    let labels = &node.zone(&zone).unwrap()["labels"];
    assert_eq!(
        (&labels["pod"], &labels["namespace"], &labels["container"]),
        (&"trainer-0".into(), &"research".into(), &"main".into())
    );
    node.kubelet.end_pod("research", "trainer-0");
    plugin.logged("zone ended");
    assert!(node.zones().is_empty());
    assert_eq!((node.cdi().len(), node.checkpoints()), (0, 0));
}

#[test]
fn restarts_of_kubelet_plugin_and_proxy_lose_nothing() {
    let mut node = Node::start(ONE_PROFILE);
    let mut plugin = node.device_plugin();
    let ids = node.kubelet.ids(GPU_1GB);
    let zone = zone_of(&node.kubelet.allocate(GPU_1GB, &[&ids[0]]).unwrap());
    node.kubelet.run_pod("n", "p", GPU_1GB, &[&ids[0]]);
    plugin.logged("zone assigned to pod");

    node.kubelet.restart();
    assert_eq!(node.kubelet.ids(GPU_1GB), ids);

    plugin.kill(Signal::KILL);
    node.kubelet.restart();
    let mut plugin = node.device_plugin();
    assert_eq!(node.kubelet.ids(GPU_1GB), ids);
    assert_eq!(node.zone(&zone).unwrap()["labels"]["pod"], "p");

    // The broker alone: its state brings the zone back.
    node.proxy.as_mut().unwrap().kill(Signal::KILL);
    node.start_proxy();
    assert!(node.zone(&zone).is_some());

    // The node: everything under /run is gone, and so are all processes.
    plugin.kill(Signal::KILL);
    node.proxy.as_mut().unwrap().kill(Signal::KILL);
    std::fs::remove_dir_all(node.state()).unwrap();
    std::fs::remove_dir_all(node.directory.join("cdi")).unwrap();
    node.kubelet.restart();
    node.start_proxy();
    let plugin = node.device_plugin();
    // Kubelet hears of us only when the zone is there again.
    assert_eq!(node.kubelet.ids(GPU_1GB), ids);
    plugin.logged("zone restored");
    let restored = node.zone(&zone).unwrap();
    assert_eq!((&restored["labels"]["pod"], &restored["limits"]["memory"]), (&"p".into(), &(1u64 << 30).into()));
    assert_eq!(node.cdi().len(), 1);
}

#[test]
fn a_node_that_comes_back_keeps_no_zone_of_a_pod_that_is_elsewhere_now() {
    let mut node = Node::start(ONE_PROFILE);
    let mut plugin = node.device_plugin_in("bulkhead-system/bulkhead-1");
    let ids = node.kubelet.ids(GPU_1GB);
    let zone = zone_of(&node.kubelet.allocate(GPU_1GB, &[&ids[0]]).unwrap());
    node.kubelet.run_pod("n", "p", GPU_1GB, &[&ids[0]]);
    plugin.logged("zone assigned to pod");
    // The node goes, and its pod is made again on another one.
    plugin.kill(Signal::KILL);
    node.kubelet.end_pod("n", "p");
    node.kubelet.restart();
    let plugin = node.device_plugin_in("bulkhead-system/bulkhead-2");
    assert_eq!(node.kubelet.ids(GPU_1GB), ids);
    // Kubelet has heard from the API server: the DaemonSet's pod is there, and no other.
    node.kubelet.run_pod("bulkhead-system", "bulkhead-2", GPU_1GB, &[]);
    assert_eq!(plugin.logged("zone ended")["zone"], zone);
    assert!(node.zones().is_empty() && node.cdi().is_empty());
    assert_eq!(node.checkpoints(), 0);
}

#[test]
fn devices_are_as_healthy_as_the_proxy() {
    let mut node = Node::start(ONE_PROFILE);
    let plugin = node.device_plugin();
    assert!(node.kubelet.devices(GPU_1GB).iter().all(|(_, health)| health == "Healthy"));
    node.proxy.as_mut().unwrap().kill(Signal::KILL);
    plugin.logged("proxy does not answer or cannot start workers; devices are unhealthy");
    assert!(node.kubelet.devices(GPU_1GB).iter().all(|(_, health)| health == "Unhealthy"));
    node.start_proxy();
    plugin.logged("proxy is ready again; devices are healthy");
    assert!(node.kubelet.devices(GPU_1GB).iter().all(|(_, health)| health == "Healthy"));
}

#[test]
fn a_wrong_configuration_is_named_and_the_old_one_stays() {
    let node = Node::start(ONE_PROFILE);
    let plugin = node.device_plugin();
    assert_eq!(node.kubelet.ids(GPU_1GB).len(), 8);
    node.configure("[profiles.gpu-1gb]\nmemori = \"1GiB\"\n");
    let problem = plugin.logged("configuration")["problem"].as_str().unwrap().to_owned();
    assert!(problem.contains("b.toml:2:1") && problem.contains("did you mean \"memory\""), "{problem}");
    plugin.logged("invalid configuration; keeping the previous one");
    assert_eq!(node.kubelet.ids(GPU_1GB).len(), 8);
    // One that is right again counts at once.
    node.configure("[profiles.gpu-2gb]\nmemory = \"2GiB\"\nresource = \"nvidia.com/gpu\"\n");
    plugin.logged("configuration reloaded");
    assert_eq!(node.kubelet.ids("nvidia.com/gpu").len(), 4);
    until("the old resource's socket is gone", || {
        !node.kubelet.plugins.join("bulkhead-bulkhead.dev_gpu-1gb.sock").exists()
    });
}

#[test]
fn what_cannot_be_had_is_refused_and_leaves_nothing() {
    let node = Node::start(ONE_PROFILE);
    let _plugin = node.device_plugin();
    let refused = node.kubelet.allocate(GPU_1GB, &["GPU-nobody::0"]).unwrap_err();
    assert!(refused.message().contains("device GPU-nobody::0 does not exist"), "{refused:?}");
    // No place for the checkpoint: the directory is a file.
    let ids = node.kubelet.ids(GPU_1GB);
    std::fs::remove_dir_all(node.directory.join("checkpoints")).unwrap();
    std::fs::write(node.directory.join("checkpoints"), "").unwrap();
    let refused = node.kubelet.allocate(GPU_1GB, &[&ids[0]]).unwrap_err();
    assert!(refused.message().contains("cannot write the checkpoint"), "{refused:?}");
    assert!(node.zones().is_empty() && node.cdi().is_empty());
    // And when there is room again, it goes on.
    std::fs::remove_file(node.directory.join("checkpoints")).unwrap();
    std::fs::create_dir(node.directory.join("checkpoints")).unwrap();
    node.kubelet.allocate(GPU_1GB, &[&ids[0]]).unwrap();
}

#[test]
fn a_disk_that_is_full_of_checkpoints_is_named_and_nothing_is_lost() {
    if !testkit::is_root() {
        return;
    }
    let node = Node::start(ONE_PROFILE);
    let _plugin = node.device_plugin_with_room(2);
    let ids = node.kubelet.ids(GPU_1GB);
    let first = zone_of(&node.kubelet.allocate(GPU_1GB, &[&ids[0]]).unwrap());
    let second = zone_of(&node.kubelet.allocate(GPU_1GB, &[&ids[1]]).unwrap());
    for _ in 0..3 {
        let refused = node.kubelet.allocate(GPU_1GB, &[&ids[2]]).unwrap_err();
        let said = refused.message();
        assert!(said.contains("cannot write the checkpoint") && said.contains("No space left"), "{refused:?}");
    }
    assert!(node.zone(&first).is_some() && node.zone(&second).is_some());
    assert_eq!((node.zones().len(), node.cdi().len()), (2, 2));
    // A zone that ends makes room for another.
    let third = zone_of(&node.kubelet.allocate(GPU_1GB, &[&ids[0]]).unwrap());
    assert!(node.zone(&first).is_none() && node.zone(&third).is_some());
    assert_eq!((node.zones().len(), node.cdi().len()), (2, 2));
}

#[test]
fn a_kubelet_of_another_version_is_named() {
    let node = Node::start(ONE_PROFILE);
    node.kubelet.refuse(true);
    let plugin = node.device_plugin();
    let said = plugin.logged("cannot register with kubelet; will retry")["error"].as_str().unwrap().to_owned();
    assert!(said.contains("another version of the device plugin API"), "{said}");
    node.kubelet.refuse(false);
    assert_eq!(node.kubelet.ids(GPU_1GB).len(), 8);
}

#[test]
fn without_a_proxy_the_node_offers_nothing_until_there_is_one() {
    let mut node = Node::start(ONE_PROFILE);
    node.proxy.as_mut().unwrap().kill(Signal::KILL);
    let plugin = node.device_plugin();
    plugin.logged("waiting for the proxy; this node offers no GPUs yet");
    assert!(node.kubelet.registered().is_empty());
    node.start_proxy();
    assert_eq!(node.kubelet.ids(GPU_1GB).len(), 8);
}

#[test]
fn a_node_without_a_gpu_offers_nothing_unless_it_is_told_to() {
    let node = Node::start(ONE_PROFILE);
    node.write_config(ONE_PROFILE);
    let plugin = node.device_plugin();
    let why =
        plugin.logged("waiting for the proxy; this node offers no GPUs yet")["why"].as_str().unwrap().to_owned();
    assert!(why.contains("no GPU"), "{why}");
    assert!(node.kubelet.registered().is_empty());
    node.configure(ONE_PROFILE);
    assert_eq!(node.kubelet.ids(GPU_1GB).len(), 8);
}

#[test]
fn nvidias_time_slicing_file_becomes_a_profile() {
    let node = Node::start("");
    let file = node.directory.join("nvidia.yaml");
    let text = "version: v1\nsharing:\n  timeSlicing:\n    failRequestsGreaterThanOne: true\n    resources:\n    - name: \
                nvidia.com/gpu\n      replicas: 4\n";
    std::fs::write(&file, text).unwrap();
    node.configure(&format!("[kubernetes]\ntime_slicing = \"{}\"\ninjection = \"mounts\"\n", file.display()));
    let _plugin = node.device_plugin();
    let ids = node.kubelet.ids("nvidia.com/gpu");
    assert_eq!(ids.len(), 8);
    assert!(node.kubelet.allocate("nvidia.com/gpu", &[&ids[0], &ids[1]]).unwrap_err().message().contains("only one"));
    // A runtime without CDI gets plain mounts.
    let response = node.kubelet.allocate("nvidia.com/gpu", &[&ids[0]]).unwrap();
    assert!(response.cdi_devices.is_empty());
    assert_eq!(response.mounts.len(), 6);
    assert!(response.mounts.iter().all(|mount| mount.read_only));
    assert_eq!(node.zones()[0]["limits"]["memory"], 1u64 << 30);
}

#[test]
fn gpus_can_be_had_whole() {
    let node = Node::start("[kubernetes]\nwhole_gpus = \"bulkhead.dev/gpu\"\n");
    let _plugin = node.device_plugin();
    let ids = node.kubelet.ids("bulkhead.dev/gpu");
    assert_eq!(ids.len(), 2);
    let zone = zone_of(&node.kubelet.allocate("bulkhead.dev/gpu", &[&ids[0]]).unwrap());
    assert!(node.zone(&zone).unwrap()["limits"]["memory"].is_null());
}
