//! Control groups, really made, on each version that this machine has. Needs root; says what was not tried.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use control::ZoneName;
use control::spawner::HostLimits;
use sandbox::cgroup::{Cgroups, Controller, Rule, Surroundings, Version, left_behind, name, of_policy};
use sandbox::jail::{Part, Policy};

const SLOT: usize = 5;

fn rules() -> Vec<Rule> {
    of_policy(&Policy::Soft)
}

/// Tries something on each version that gives the controller, and says loudly where that cannot be.
fn on_each(controller: Controller, test: impl Fn(&Path, &dyn Fn() -> Surroundings, Version)) {
    if !rustix::process::geteuid().is_root() {
        return testkit::not_tried(&format!("{controller:?}: needs root"));
    }
    for version in [Version::V2, Version::V1] {
        let state = testkit::directory();
        let surroundings = || Surroundings::read().only(version);
        let cgroups = Cgroups::open(&state, &surroundings(), &rules());
        let here = cgroups.has(controller);
        drop_all(cgroups);
        if here {
            println!("{controller:?} on {version:?} ...");
            test(&state, &surroundings, version);
        } else {
            testkit::not_tried(&format!("{controller:?} on {version:?}: this machine does not have it there"));
        }
        assert_eq!(left_behind(&state), Vec::<PathBuf>::new(), "groups are left");
    }
}

fn drop_all(mut cgroups: Cgroups) {
    cgroups.retire(true);
}

fn run(cgroups: &mut Cgroups, slot: usize, script: &str) -> Output {
    let mut command = Command::new("sh");
    command.args(["-c", script]).stdin(Stdio::null());
    cgroups.confine(&mut command, slot, &rules()).unwrap();
    let output = command.output().unwrap();
    cgroups.leave(slot);
    output
}

#[test]
fn devices_are_denied_but_those_on_the_list() {
    on_each(Controller::Devices, |state, surroundings, _| {
        let mut cgroups = Cgroups::open(state, &surroundings(), &rules());
        let try_open = |cgroups: &mut Cgroups, node: &str| {
            run(cgroups, SLOT, &format!("exec 3<{node}")).status.success()
                && run(cgroups, SLOT, &format!("exec 3>{node}")).status.success()
        };
        for node in ["/dev/null", "/dev/zero", "/dev/urandom"] {
            assert!(try_open(&mut cgroups, node), "{node}");
        }
        for node in ["/dev/full", "/dev/random", "/dev/tty"] {
            assert!(!try_open(&mut cgroups, node), "{node} could be opened");
        }
        let node = state.join("node");
        let made = run(&mut cgroups, SLOT, &format!("mknod {} c 1 3", node.display()));
        assert!(!made.status.success() && !node.exists(), "a node could be made");
        drop_all(cgroups);
    });
}

#[test]
fn processes_are_counted() {
    on_each(Controller::Pids, |state, surroundings, _| {
        let mut cgroups = Cgroups::with_limit(state, &surroundings(), &rules(), 5);
        // They hold nothing of the test's, and go with their group.
        let output = run(&mut cgroups, SLOT, "for i in 1 2 3 4 5 6 7 8; do sleep 1000 >/dev/null 2>&1 & done");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(said.contains("fork"), "nobody was refused: {said}");
        drop_all(cgroups);
    });
}

#[test]
fn a_zones_host_memory_is_limited_and_nobody_elses() {
    on_each(Controller::Memory, |state, surroundings, _| {
        let mut cgroups = Cgroups::open(state, &surroundings(), &rules());
        let zone: ZoneName = "team.a".parse().unwrap();
        assert!(cgroups.set_zone(&zone, HostLimits { memory: Some(64 << 20), ..HostLimits::default() }).unwrap());
        let hog = "head -c 300m /dev/zero | tail > /dev/null";
        // Outside of the zone it works.
        assert!(run(&mut cgroups, SLOT, hog).status.success());
        let mut command = Command::new("sh");
        command.args(["-c", &format!("read go; {hog}")]).stdin(Stdio::piped());
        cgroups.confine(&mut command, SLOT, &rules()).unwrap();
        let mut child = command.spawn().unwrap();
        cgroups.admit(SLOT, &zone, &rules()).unwrap();
        drop(child.stdin.take());
        let status = child.wait().unwrap();
        assert!(!status.success(), "it took more than its zone has");
        cgroups.leave(SLOT);
        cgroups.remove_zone(&zone);
        drop_all(cgroups);
    });
}

#[test]
fn all_workers_together_have_a_limit() {
    on_each(Controller::Memory, |state, surroundings, _| {
        let mut cgroups = Cgroups::open(state, &surroundings(), &rules());
        let hog = "head -c 300m /dev/zero | tail > /dev/null";
        cgroups.limit_all(Some(64 << 20)).unwrap();
        assert!(!run(&mut cgroups, SLOT, hog).status.success(), "it took more than all may have");
        cgroups.limit_all(None).unwrap();
        assert!(run(&mut cgroups, SLOT, hog).status.success());
        drop_all(cgroups);
    });
}

#[test]
fn processor_time_is_written_where_it_counts() {
    on_each(Controller::Cpu, |state, surroundings, version| {
        let mut cgroups = Cgroups::open(state, &surroundings(), &rules());
        let zone: ZoneName = "a".parse().unwrap();
        cgroups.set_zone(&zone, HostLimits { cpu: Some(150), ..HostLimits::default() }).unwrap();
        let tree = cgroups.trees().iter().find(|tree| tree.has(Controller::Cpu)).unwrap().root.join("zone-a");
        let read = |file: &str| std::fs::read_to_string(tree.join(file)).unwrap().trim().to_owned();
        match version {
            Version::V1 => {
                assert_eq!((read("cpu.cfs_quota_us"), read("cpu.cfs_period_us")), ("150000".into(), "100000".into()))
            }
            Version::V2 => assert_eq!(read("cpu.max"), "150000 100000"),
        }
        assert!(!cgroups.set_zone(&zone, HostLimits::default()).unwrap(), "the group is there already");
        match version {
            Version::V1 => assert_eq!(read("cpu.cfs_quota_us"), "-1"),
            Version::V2 => assert_eq!(read("cpu.max"), "max 100000"),
        }
        cgroups.remove_zone(&zone);
        drop_all(cgroups);
    });
}

#[test]
fn zones_weigh_the_same_whatever_they_have() {
    on_each(Controller::Cpu, |state, surroundings, version| {
        let mut cgroups = Cgroups::open(state, &surroundings(), &rules());
        let (weight, same) = match version {
            Version::V1 => ("cpu.shares", "1024"),
            Version::V2 => ("cpu.weight", "100"),
        };
        for (zone, cpu) in [("a", None), ("b", Some(150))] {
            let zone: ZoneName = zone.parse().unwrap();
            // One without any limit has a group as well: its workers would weigh one by one.
            assert!(cgroups.set_zone(&zone, HostLimits { cpu, ..HostLimits::default() }).unwrap());
            let tree = cgroups.trees().iter().find(|tree| tree.has(Controller::Cpu)).unwrap();
            let path = tree.root.join(format!("zone-{zone}")).join(weight);
            assert_eq!(std::fs::read_to_string(&path).unwrap().trim(), same);
            // Left by somebody, as of a broker before.
            std::fs::write(&path, "300").unwrap();
            cgroups.set_zone(&zone, HostLimits { cpu: Some(50), ..HostLimits::default() }).unwrap();
            assert_eq!(std::fs::read_to_string(&path).unwrap().trim(), same);
            cgroups.remove_zone(&zone);
        }
        drop_all(cgroups);
    });
}

#[test]
fn processes_of_a_zone_and_of_all_are_counted_together() {
    on_each(Controller::Pids, |state, surroundings, _| {
        let mut cgroups = Cgroups::open(state, &surroundings(), &rules());
        let zone: ZoneName = "a".parse().unwrap();
        cgroups.set_zone(&zone, HostLimits { processes: Some(8), ..HostLimits::default() }).unwrap();
        let start = |cgroups: &mut Cgroups, slot: usize, zone: Option<&ZoneName>| {
            let forks = "read go; for i in 1 2 3 4 5; do sleep 1000 >/dev/null 2>&1 & done";
            let mut command = Command::new("sh");
            command.args(["-c", forks]).stdin(Stdio::piped()).stderr(Stdio::piped());
            cgroups.confine(&mut command, slot, &rules()).unwrap();
            let mut child = command.spawn().unwrap();
            zone.inspect(|zone| cgroups.admit(slot, zone, &rules()).unwrap());
            drop(child.stdin.take());
            String::from_utf8_lossy(&child.wait_with_output().unwrap().stderr).into_owned()
        };
        assert_eq!(start(&mut cgroups, 1, Some(&zone)), "", "one has room");
        assert!(start(&mut cgroups, 2, Some(&zone)).contains("fork"), "two together have not");
        assert_eq!(start(&mut cgroups, 3, None), "", "another zone's are its own");
        cgroups.limit_all_processes(Some(14)).unwrap();
        assert!(start(&mut cgroups, 4, None).contains("fork"), "all together have not");
        cgroups.limit_all_processes(None).unwrap();
        assert_eq!(start(&mut cgroups, 5, None), "");
        (1..=5).for_each(|slot| cgroups.leave(slot));
        cgroups.remove_zone(&zone);
        drop_all(cgroups);
    });
}

/// What a broker that was killed leaves: its successor ends who nobody has adopted, and keeps the others.
#[test]
fn left_overs_are_ended_and_removed() {
    on_each(Controller::Devices, |state, surroundings, _| {
        let start = |cgroups: &mut Cgroups, slot| {
            let mut command = Command::new("sleep");
            command.arg("1000");
            cgroups.confine(&mut command, slot, &rules()).unwrap();
            command.spawn().unwrap()
        };
        let mut first = Cgroups::open(state, &surroundings(), &rules());
        let (mut kept, mut lost) = (start(&mut first, 1), start(&mut first, 2));
        let root = first.trees()[0].root.clone();
        // As a killed broker would: nothing is put in order.
        drop(first);
        // Another broker comes by: there is somebody inside, so it leaves the groups alone.
        let other = testkit::directory();
        drop_all(Cgroups::open(&other, &surroundings(), &rules()));
        assert!(root.join("w1").exists() && root.join("w2").exists());

        let mut second = Cgroups::open(state, &surroundings(), &rules());
        second.adopt(1, None);
        second.sweep();
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&lost.wait().unwrap()), Some(9));
        assert!(kept.try_wait().unwrap().is_none(), "the adopted one was ended");
        assert!(!second.is_free(1));
        kept.kill().unwrap();
        kept.wait().unwrap();
        second.leave(1);
        // A broker that is gone with nobody left inside: the next one that comes by cleans up.
        drop(second);
        assert!(root.exists());
        // Brokers of other tests come by, too, and may be about to.
        testkit::until("what is left of it is removed", || {
            drop_all(Cgroups::open(&other, &surroundings(), &rules()));
            !root.exists()
        });
    });
}

#[test]
fn a_machine_without_groups_is_told_apart() {
    let state = testkit::directory();
    // A version that is mounted nowhere.
    let nowhere = Surroundings::read().only(Version::V1).only(Version::V2);
    let mut cgroups = Cgroups::open(&state, &nowhere, &rules());
    for part in [Part::Cgroup, Part::DeviceRules] {
        assert!(cgroups.missing().contains(part), "{part:?}");
    }
    // Root's workers are counted by their users.
    assert_eq!(cgroups.missing().contains(Part::ProcessLimit), !rustix::process::geteuid().is_root());
    assert!(cgroups.can_limit(HostLimits { memory: Some(1), ..HostLimits::default() }).is_err());
    assert!(cgroups.limit_all(Some(1)).is_err() && cgroups.limit_all(None).is_ok());
    assert!(cgroups.can_limit(HostLimits { processes: Some(300), ..HostLimits::default() }).is_err());
    assert!(cgroups.limit_all_processes(Some(300)).is_err() && cgroups.limit_all_processes(None).is_ok());
    assert!(run(&mut cgroups, SLOT, "exit 0").status.success());
    assert_ne!(name(&state), name(Path::new("/elsewhere")));
}
