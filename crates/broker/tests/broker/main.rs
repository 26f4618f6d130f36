//! A broker as a process, with workers and clients that do what the tests say. This program is all of them: its first
//! argument says which. Nothing here needs root.

mod gpus;
mod hostile;
mod node;
mod parts;

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use broker::{Broker, Config, Meter, Reload, Suspend};
use control::admin::{AdminClient, Answer, Request, Status, ZoneStatus};
use control::backend::Backend;
use control::host_defaults::HostDefaults;
use control::jail::Demand;
use control::link::Order;
use control::messages::ToBroker;
use control::meter::{self, Reading};
use control::packet;
use control::spawner::SLOTS;
use control::statistics;
use control::zone::{Change, Labels, ZoneChange, ZoneSettings};
use control::{BrokerLink, ZoneLimits};
use idm::bootstrap::{self, Attach, Hello, Welcome, WelcomeStatus};
use libtest_mimic::{Arguments, Trial};
use rustix::event::{PollFd, PollFlags};
use rustix::process::{Pid, Signal};
use spawner::{Helper, Local, Settings};
use testkit::{Directory, NOBODY, is_alive, until};

use hostile::*;
use node::*;
use parts::*;

const MIB: u64 = 1 << 20;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.first().map(String::as_str) {
        Some("as-broker") => as_broker(Path::new(&arguments[1])),
        Some("as-worker") => as_worker(&arguments),
        Some("as-meter") => as_meter(Path::new(&arguments[1])),
        Some("as-mover") => as_mover(Path::new(&arguments[1]), &arguments[2..]),
        Some("as-client") => as_client(Path::new(&arguments[1])),
        _ => {
            let trial = |(name, test): (&str, fn())| {
                Trial::test(name, move || {
                    test();
                    Ok(())
                })
            };
            let mut arguments = Arguments::from_args();
            // One by one: some change what belongs to the whole process.
            arguments.test_threads.get_or_insert(1);
            libtest_mimic::run(&arguments, TESTS.into_iter().map(trial).collect()).exit()
        }
    }
}

const TESTS: [(&str, fn()); 46] = [
    ("a_client_gets_a_worker_and_leaves_nothing", a_client_gets_a_worker_and_leaves_nothing),
    ("a_zone_has_one_limit_for_all_its_workers", a_zone_has_one_limit_for_all_its_workers),
    ("a_killed_client_frees_its_ledger", a_killed_client_frees_its_ledger),
    ("a_worker_that_does_not_follow_its_client_is_ended", a_worker_that_does_not_follow_its_client_is_ended),
    ("a_killed_worker_is_noticed_by_its_client_only", a_killed_worker_is_noticed_by_its_client_only),
    ("a_successor_takes_over", a_successor_takes_over),
    ("workers_of_the_previous_version_join_where_they_look", workers_of_the_previous_version_join_where_they_look),
    ("requests_wait_for_the_successor", requests_wait_for_the_successor),
    ("a_second_broker_is_refused", a_second_broker_is_refused),
    ("hostile_hellos_hurt_nobody", hostile_hellos_hurt_nobody),
    ("clients_of_other_versions_are_told_so", clients_of_other_versions_are_told_so),
    ("silent_clients_hold_up_nobody", silent_clients_hold_up_nobody),
    ("descriptors_that_linger_hold_up_nobody", descriptors_that_linger_hold_up_nobody),
    ("messages_full_of_descriptors_hold_up_nobody", messages_full_of_descriptors_hold_up_nobody),
    ("what_waits_to_be_closed_wakes_nobody", what_waits_to_be_closed_wakes_nobody),
    ("a_worker_joins_only_so_often", a_worker_joins_only_so_often),
    ("a_client_that_somebody_holds_is_forgotten", a_client_that_somebody_holds_is_forgotten),
    ("clients_that_leave_again_leave_no_workers", clients_that_leave_again_leave_no_workers),
    ("a_zone_made_again_owes_nothing", a_zone_made_again_owes_nothing),
    ("a_worker_that_breaks_the_protocol_is_ended", a_worker_that_breaks_the_protocol_is_ended),
    ("a_fallen_worker_hurts_nobody", a_fallen_worker_hurts_nobody),
    ("a_stranger_cannot_join_as_worker", a_stranger_cannot_join_as_worker),
    ("silent_strangers_keep_nobody_from_joining", silent_strangers_keep_nobody_from_joining),
    ("guests_come_through_their_own_door_only", guests_come_through_their_own_door_only),
    ("strangers_among_workers_take_no_descriptors", strangers_among_workers_take_no_descriptors),
    (
        "workers_share_neither_stderr_nor_session_with_the_broker",
        workers_share_neither_stderr_nor_session_with_the_broker,
    ),
    ("a_worker_that_says_it_is_suspended_moves_nobody", a_worker_that_says_it_is_suspended_moves_nobody),
    ("whose_memory_is_moved_is_known_by_more_than_a_number", whose_memory_is_moved_is_known_by_more_than_a_number),
    ("leased_zones_go_with_their_operator", leased_zones_go_with_their_operator),
    ("a_lowered_limit_takes_nothing_away_and_gives_nothing", a_lowered_limit_takes_nothing_away_and_gives_nothing),
    ("pinned_memory_has_an_account_of_its_own", pinned_memory_has_an_account_of_its_own),
    ("memory_that_was_never_asked_for_counts_and_is_ended", memory_that_was_never_asked_for_counts_and_is_ended),
    ("many_small_overdrafts_of_a_zone_are_one", many_small_overdrafts_of_a_zone_are_one),
    ("a_warm_context_is_paid_for_by_who_gets_it", a_warm_context_is_paid_for_by_who_gets_it),
    ("every_zone_has_workers_whatever_others_do", every_zone_has_workers_whatever_others_do),
    ("zones_are_made_changed_killed_and_removed", zones_are_made_changed_killed_and_removed),
    ("figures_outlive_worker_and_broker", figures_outlive_worker_and_broker),
    ("a_status_of_any_length_arrives", a_status_of_any_length_arrives),
    ("a_new_configuration_counts_and_a_wrong_one_does_not", a_new_configuration_counts_and_a_wrong_one_does_not),
    ("zones_of_a_budget_have_one_limit_together", zones_of_a_budget_have_one_limit_together),
    ("containers_of_a_zone_are_parts_of_it", containers_of_a_zone_are_parts_of_it),
    ("every_gpu_is_limited_by_itself", gpus::every_gpu_is_limited_by_itself),
    ("a_successor_knows_every_gpu", gpus::a_successor_knows_every_gpu),
    ("what_is_taken_on_a_gpu_counts_there", gpus::what_is_taken_on_a_gpu_counts_there),
    ("what_a_node_does_not_have_is_refused", gpus::what_a_node_does_not_have_is_refused),
    ("ledgers_are_empty_after_kills_at_random", ledgers_are_empty_after_kills_at_random),
];

fn a_client_gets_a_worker_and_leaves_nothing() {
    let node = Node::start();
    let client = Client::connect(&node.socket("a"));
    assert_eq!(client.ask("+1000"), "granted");
    assert_eq!(client.ask("?"), format!("(1000, Some({}))", 100 * MIB));
    let zone = node.zone("a");
    assert_eq!((zone.used, zone.clients, zone.stats.calls), (1000, 1, 3));
    assert_eq!(zone.workers[0].client_pid, std::process::id());
    let worker = zone.workers[0].pid;
    drop(client);
    until("the worker is gone", || !is_alive(worker));
    until("the ledger is empty", || node.zone("a").used == 0);
    let zone = node.zone("a");
    assert_eq!((zone.peak, zone.clients_served, zone.stats.calls), (1000, 1, 3));
    until("there is a new spare", || node.status().spare_workers == 1);
}

fn a_zone_has_one_limit_for_all_its_workers() {
    let node = Node::start();
    let (first, second, other) =
        (Client::connect(&node.socket("a")), Client::connect(&node.socket("a")), Client::connect(&node.socket("b")));
    assert_eq!(first.ask(&format!("+{}", 60 * MIB)), "granted");
    assert_eq!(second.ask(&format!("+{}", 60 * MIB)), "OverLimit");
    assert_eq!(second.ask(&format!("+{}", u64::MAX)), "OverLimit");
    assert_eq!(other.ask(&format!("+{}", 60 * MIB)), "granted");
    // A release counts for its own worker only, whatever it says.
    second.ask(&format!("-{}", u64::MAX));
    assert_eq!(second.ask(&format!("+{}", 60 * MIB)), "OverLimit");
    first.ask(&format!("-{}", 30 * MIB));
    until("there is room", || second.ask(&format!("+{}", 60 * MIB)) == "granted");
    assert_eq!(node.zone("a").used, 90 * MIB);
}

fn start_client_process(node: &Node) -> Child {
    let mut command = Command::new("/proc/self/exe");
    command.arg("as-client").arg(node.socket("a")).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut line = String::new();
    io::BufRead::read_line(&mut io::BufReader::new(child.stdout.take().unwrap()), &mut line).unwrap();
    assert_eq!(line, "granted\n");
    child
}

fn a_killed_client_frees_its_ledger() {
    let node = Node::start();
    let mut child = start_client_process(&node);
    assert_eq!(node.zone("a").used, 40 * MIB);
    child.kill().unwrap();
    child.wait().unwrap();
    until("the ledger is empty", || node.zone("a").used == 0);
    assert_eq!(node.zone("a").clients, 0);
}

fn a_worker_that_does_not_follow_its_client_is_ended() {
    let node = Node::start();
    let client = Client::connect(&node.socket("a"));
    assert_eq!(client.ask("h"), "hanging");
    // The client lives on, but has let go: the worker may stay as long as it likes.
    let worker = node.zone("a").workers[0].pid;
    drop(client);
    assert!(is_alive(worker));
    // One whose client is dead may not.
    let mut child = start_client_process(&node);
    let other = node.zone("a").workers.iter().map(|worker| worker.pid).find(|pid| *pid != worker).unwrap();
    rustix::process::kill_process(Pid::from_raw(other as i32).unwrap(), Signal::STOP).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    until("the stopped worker is ended", || !is_alive(other));
    assert!(is_alive(worker));
    kill(worker);
}

fn a_killed_worker_is_noticed_by_its_client_only() {
    let node = Node::start();
    let (mine, other) = (Client::connect(&node.socket("a")), Client::connect(&node.socket("b")));
    assert_eq!(mine.ask("+5"), "granted");
    kill(node.zone("a").workers[0].pid);
    mine.wait_for_hangup();
    until("the ledger is empty", || node.zone("a").used == 0);
    assert_eq!(other.ask("+5"), "granted");
    assert_eq!(Client::connect(&node.socket("a")).ask("+5"), "granted");
}

fn a_successor_takes_over() {
    let mut node = Node::start();
    let client = Client::connect(&node.socket("a"));
    assert_eq!(client.ask(&format!("+{}", 70 * MIB)), "granted");
    let worker = node.zone("a").workers[0].pid;
    let spares_of_old = node.status();
    assert_eq!(spares_of_old.zones.len(), 2);
    node.kill_broker();
    // Running clients go on without a broker, and what they give back now must not be lost.
    assert_eq!(client.ask(&format!("-{}", 20 * MIB)), "released");
    node.restart();
    assert_eq!(node.zone("a").workers[0].pid, worker);
    until("the account is settled", || node.zone("a").used == 50 * MIB);
    let second = Client::connect(&node.socket("a"));
    assert_eq!(second.ask(&format!("+{}", 60 * MIB)), "OverLimit");
    assert_eq!(second.ask(&format!("+{}", 50 * MIB)), "granted");
    drop(client);
    until("the adopted worker is gone", || !is_alive(worker));
    until("its charge is back", || node.zone("a").used == 50 * MIB);
}

fn workers_of_the_previous_version_join_where_they_look() {
    let mut node = Node::of_previous_version();
    let old_place = node.state_dir.join("rejoin/workers.sock");
    let client = Client::connect(&node.socket("a"));
    assert_eq!(client.ask("+5"), "granted");
    assert!(!old_place.exists(), "nobody looks there yet");
    let worker = node.zone("a").workers[0].pid;
    node.kill_broker();
    // As that version wrote it: the entry does not say where the worker looks.
    let registry = node.state_dir.join("books/workers");
    let mut bytes = std::fs::read(&registry).unwrap();
    let entry = [2_u32.to_le_bytes(), worker.to_le_bytes()].concat();
    let at = bytes.windows(entry.len()).position(|window| window == entry).unwrap();
    assert_eq!(bytes[at + 30..at + 32], [1, 0]);
    bytes[at + 30] = 0;
    std::fs::write(&registry, bytes).unwrap();
    for round in 0..3 {
        node.restart();
        assert_eq!(client.ask("+5"), "granted", "round {round}");
        assert_eq!(node.zone("a").workers[0].pid, worker);
        until("the old place is closed", || !old_place.exists());
        node.kill_broker();
    }
    // Others have nothing to look for there.
    node.restart();
    until("it has joined", || !old_place.exists());
    drop(client);
    until("it is gone", || node.zone("a").clients == 0);
    std::fs::remove_file(beside(&node.state_dir, "previous")).unwrap();
}

fn requests_wait_for_the_successor() {
    let mut node = Node::start();
    let client = Client::connect(&node.socket("a"));
    node.kill_broker();
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| client.ask("+4096"));
        std::thread::sleep(Duration::from_millis(100));
        node.restart();
        assert_eq!(asking.join().unwrap(), "granted");
    });
    assert_eq!(node.zone("a").used, 4096);
}

fn a_second_broker_is_refused() {
    let node = Node::start();
    let output = Command::new("/proc/self/exe").arg("as-broker").arg(&node.state_dir).output().unwrap();
    assert_eq!(output.status.code(), Some(75));
    assert!(String::from_utf8_lossy(&output.stderr).contains("another proxy"));
    assert_eq!(Client::connect(&node.socket("a")).ask("+1"), "granted");
}

fn leased_zones_go_with_their_operator() {
    let node = Node::start();
    let admin = node.admin();
    let name: control::ZoneName = "leased".parse().unwrap();
    let limits = ZoneLimits { memory: Some(10), share: 1, ..ZoneLimits::default() };
    let request = Request::EnsureZone { name: name.clone(), limits, lease: true };
    let Answer::Zone { socket, .. } = admin.ask(&request).unwrap() else { panic!() };
    let client = Client::connect(&socket);
    assert_eq!(client.ask("+11"), "OverLimit");
    // Whoever comes with other limits changes nothing.
    for other in [ZoneLimits { memory: Some(1 << 20), ..limits }, ZoneLimits::default()] {
        let request = Request::EnsureZone { name: name.clone(), limits: other, lease: true };
        let Answer::Failed { reason, .. } = node.admin().ask(&request).unwrap() else { panic!("{other:?}") };
        assert_eq!(reason, "zone leased exists with 10 B and share 1; omit the limits, or change them first");
        let held = node.zone("leased").limits;
        assert_eq!((held.memory, held.share), (limits.memory, limits.share));
    }
    assert!(matches!(node.admin().ask(&request), Ok(Answer::Zone { .. })), "the same limits");
    drop(admin);
    client.wait_for_hangup();
    until("the zone is gone", || !socket.exists());
    assert!(matches!(node.admin().ask(&Request::FindZone { name }), Ok(Answer::UnknownZone { .. })));
}

fn zones_of_a_budget_have_one_limit_together() {
    let mut node = Node::start();
    // Not those of the configuration: a new broker makes them what that says.
    for name in ["x", "y"] {
        let limits = ZoneLimits { memory: Some(100 * MIB), ..ZoneLimits::default() };
        let name: control::ZoneName = name.parse().unwrap();
        let request = Request::CreateZone { name: name.clone(), settings: ZoneSettings::from(limits) };
        assert!(matches!(node.admin().ask(&request), Ok(Answer::Zone { .. })));
        change(&node, name.as_str(), ZoneChange { budgets: Some(vec!["both".into()]), ..ZoneChange::default() });
    }
    let request = Request::SetBudget { name: "both".into(), memory: Some(70 * MIB) };
    assert!(matches!(node.admin().ask(&request), Ok(Answer::Budgets { .. })));
    let (a, b) = (Client::connect(&node.socket("x")), Client::connect(&node.socket("y")));
    assert_eq!(a.ask(&format!("+{}", 60 * MIB)), "granted");
    assert_eq!(b.ask(&format!("+{}", 20 * MIB)), "OverLimit");
    assert_eq!(b.ask(&format!("+{}", 10 * MIB)), "granted");
    // Each sees what is left for it.
    assert_eq!(b.ask("?"), format!("({}, Some({}))", 70 * MIB, 70 * MIB));
    assert_eq!(node.zone("y").charges_refused, 1);
    // A successor knows it, too.
    node.kill_broker();
    node.restart();
    until("the workers are back", || node.zone("x").used == 60 * MIB);
    assert_eq!(b.ask("+1"), "OverLimit");
    let request = Request::SetBudget { name: "both".into(), memory: None };
    node.admin().ask(&request).unwrap();
    assert_eq!(b.ask(&format!("+{}", 20 * MIB)), "granted");
}

/// Does something as a process of a container would, as far as its control group tells; false where this machine does
/// not let us make one.
fn in_container(digit: char, mut run: impl FnMut()) -> bool {
    let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap();
    let places = groups.lines().filter_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next()?, fields.next()?.trim_start_matches('/'));
        let hierarchy = controllers.strip_prefix("name=").unwrap_or(controllers);
        Some(Path::new("/sys/fs/cgroup").join(hierarchy).join(path))
    });
    for home in places {
        let group = home.join(digit.to_string().repeat(64));
        if std::fs::create_dir(&group).is_err() {
            continue;
        }
        let number = std::process::id().to_string();
        let moved = std::fs::write(group.join("cgroup.procs"), &number).is_ok();
        if moved {
            run();
            std::fs::write(home.join("cgroup.procs"), &number).unwrap();
        }
        let _ = std::fs::remove_dir(&group);
        if moved {
            return true;
        }
    }
    testkit::not_tried("no control group can be made here");
    false
}

fn containers_of_a_zone_are_parts_of_it() {
    let mut node = Node::start();
    let limits = ZoneLimits { memory: Some(100 * MIB), pinned: Some(10 * MIB), ..ZoneLimits::default() };
    let mut settings = ZoneSettings::from(limits);
    settings.bindings.split = true;
    let name: control::ZoneName = "claim".parse().unwrap();
    let Ok(Answer::Zone { socket, .. }) = node.admin().ask(&Request::CreateZone { name: name.clone(), settings })
    else {
        panic!()
    };
    let mut clients = Vec::new();
    for digit in ['a', 'b', 'a'] {
        if !in_container(digit, || clients.push(Client::connect(&socket))) {
            return;
        }
    }
    // Two containers, one of them with two programs: each has its own account, and all draw on one.
    assert_eq!(clients[0].ask(&format!("+{}", 50 * MIB)), "granted");
    assert_eq!(clients[1].ask(&format!("+{}", 60 * MIB)), "OverLimit");
    assert_eq!(clients[1].ask(&format!("+{}", 40 * MIB)), "granted");
    assert_eq!(clients[2].ask(&format!("+{}", 10 * MIB)), "granted");
    assert_eq!(clients[2].ask("?"), format!("({}, Some({}))", 100 * MIB, 100 * MIB));
    assert_eq!(clients[0].ask(&format!("p{}", 8 * MIB)), "granted");
    assert_eq!(clients[1].ask(&format!("p{}", 3 * MIB)), "OverLimit");
    assert_eq!(clients[1].ask(&format!("p{}", 2 * MIB)), "granted");
    let part = |digit: char| format!("claim.{}", digit.to_string().repeat(12));
    let (a, b) = (node.zone(&part('a')), node.zone(&part('b')));
    assert_eq!((a.used, a.clients, b.used, b.clients), (60 * MIB, 2, 40 * MIB, 1));
    assert_eq!(node.zone("claim").clients, 0);
    // A zone that only has the name of a part is none.
    let named: control::ZoneName = part('c').parse().unwrap();
    let request = Request::CreateZone { name: named.clone(), settings: ZoneSettings::default() };
    assert!(matches!(node.admin().ask(&request), Ok(Answer::Zone { .. })));
    let mut third = None;
    assert!(in_container('c', || third = Some(Client::connect(&socket))));
    assert_eq!((node.zone(&part('c')).clients, node.zone("claim").clients), (0, 1));
    assert!(matches!(node.admin().ask(&Request::RemoveZone { name: named, force: false }), Ok(Answer::Removed)));
    drop(third);
    // A successor finds them as they were, and they go with the whole.
    node.kill_broker();
    node.restart();
    until("the workers are back", || node.zone(&part('b')).clients == 1);
    assert_eq!(clients[1].ask("+1"), "OverLimit");
    // What one takes without asking counts for all of them, though it is within what one alone might have.
    let fallen = node.zone(&part('b')).workers[0].pid;
    measure(&node, format!("{fallen} {}\n", 95 * MIB));
    clients[1].wait_for_hangup();
    until("it is ended", || node.zone(&part('b')).overdrafts == 1);
    let left = format!("({}, Some({}))", 60 * MIB, 100 * MIB);
    until("its account is closed", || clients[0].ask("?") == left);
    std::fs::remove_file(beside(&node.state_dir, "meter")).unwrap();
    assert!(matches!(node.admin().ask(&Request::RemoveZone { name, force: true }), Ok(Answer::Removed)));
    clients.iter().for_each(Client::wait_for_hangup);
    until("nothing is left", || node.status().zones.iter().all(|zone| !zone.name.as_str().starts_with("claim")));
}

fn change(node: &Node, zone: &str, change: ZoneChange) -> Answer {
    node.admin().ask(&Request::ChangeZone { name: zone.parse().unwrap(), change }).unwrap()
}

fn a_lowered_limit_takes_nothing_away_and_gives_nothing() {
    let node = Node::start();
    let client = Client::connect(&node.socket("a"));
    assert_eq!(client.ask(&format!("+{}", 60 * MIB)), "granted");
    let lower = ZoneChange { memory: Change::Set(10 * MIB), ..ZoneChange::default() };
    assert!(matches!(change(&node, "a", lower), Answer::Zone { limits, .. } if limits.memory == Some(10 * MIB)));
    // What is there stays, and the program sees the new limit at once.
    assert_eq!(client.ask("?"), format!("({}, Some({}))", 60 * MIB, 10 * MIB));
    assert_eq!(client.ask("+1"), "OverLimit");
    client.ask(&format!("-{}", 51 * MIB));
    until("there is room under the new limit", || client.ask(&format!("+{MIB}")) == "granted");
    assert_eq!(client.ask("+1"), "OverLimit");
    change(&node, "a", ZoneChange { memory: Change::Clear, ..ZoneChange::default() });
    assert_eq!(client.ask(&format!("+{}", 500 * MIB)), "granted");
    let zone = node.zone("a");
    assert_eq!((zone.limits.memory, zone.limits.share), (None, 50));
}

fn pinned_memory_has_an_account_of_its_own() {
    let mut node = Node::start();
    change(&node, "a", ZoneChange { pinned: Change::Set(10 * MIB), ..ZoneChange::default() });
    let (first, second) = (Client::connect(&node.socket("a")), Client::connect(&node.socket("a")));
    assert_eq!(first.ask(&format!("p{}", 6 * MIB)), "granted");
    assert_eq!(second.ask(&format!("p{}", 6 * MIB)), "OverLimit");
    assert_eq!(second.ask(&format!("+{}", 90 * MIB)), "granted", "GPU memory has a limit of its own");
    let zone = node.zone("a");
    assert_eq!((zone.pinned, zone.used, zone.pins_refused, zone.charges_refused), (6 * MIB, 90 * MIB, 1, 0));
    // A successor finds both accounts as they are.
    node.kill_broker();
    assert_eq!(first.ask(&format!("u{MIB}")), "released");
    node.restart();
    // The configuration knows of no limit, and counts again after a restart.
    change(&node, "a", ZoneChange { pinned: Change::Set(10 * MIB), ..ZoneChange::default() });
    until("both are settled", || node.zone("a").pinned == 5 * MIB && node.zone("a").used == 90 * MIB);
    assert_eq!(second.ask(&format!("p{}", 6 * MIB)), "OverLimit");
    assert_eq!(second.ask(&format!("p{}", 5 * MIB)), "granted");
    // What is given back twice is given back once.
    first.ask(&format!("u{}", u64::MAX));
    until("it is back", || node.zone("a").pinned == 5 * MIB);
    drop((first, second));
    until("all is back", || node.zone("a").pinned == 0 && node.zone("a").used == 0);
}

fn memory_that_was_never_asked_for_counts_and_is_ended() {
    let node = Node::start();
    let measure = |text: String| measure(&node, text);
    let (honest, fallen) = (Client::connect(&node.socket("a")), Client::connect(&node.socket("a")));
    assert_eq!(honest.ask(&format!("+{}", 20 * MIB)), "granted");
    assert_eq!(fallen.ask(&format!("+{}", 10 * MIB)), "granted");
    let pid_of = |charged: u64| node.zone("a").workers.iter().find(|worker| worker.charged == charged).unwrap().pid;
    let (first, second) = (pid_of(20 * MIB), pid_of(10 * MIB));
    // The driver takes some for itself, which is no crime, and counts.
    measure(format!("{first} {}\n{second} {}\n1 5\n999999999 7\n", 25 * MIB, 50 * MIB));
    until("it counts", || node.zone("a").used == 75 * MIB);
    assert_eq!((node.zone("a").driver_memory, node.zone("a").overdrafts), (45 * MIB, 0));
    assert_eq!(honest.ask(&format!("+{}", 30 * MIB)), "OverLimit");
    // One that takes far more than its zone may have, without a word, is ended; its neighbour is not.
    measure(format!("{first} {}\n{second} {}\n", 25 * MIB, 300 * MIB));
    fallen.wait_for_hangup();
    until("its memory is the zone's again", || node.zone("a").used == 25 * MIB);
    assert_eq!(node.zone("a").overdrafts, 1);
    assert_eq!(honest.ask(&format!("+{}", 30 * MIB)), "granted");
    // Who uses no more than was granted to it costs no more.
    measure(format!("{first} {}\n", 45 * MIB));
    until("only what was granted counts", || node.zone("a").used == 50 * MIB);
    std::fs::remove_file(beside(&node.state_dir, "meter")).unwrap();
}

fn many_small_overdrafts_of_a_zone_are_one() {
    let node = Node::start();
    let clients: Vec<Client> = (0..4).map(|_| Client::connect(&node.socket("a"))).collect();
    // None of them has more than is allowed to all together.
    let pids: Vec<u32> = node.zone("a").workers.iter().map(|worker| worker.pid).collect();
    let lines: Vec<String> = pids.iter().map(|pid| format!("{pid} {}\n", 40 * MIB)).collect();
    measure(&node, lines.concat());
    until("one is ended", || node.zone("a").overdrafts == 1);
    until("the others fit", || node.zone("a").used == 120 * MIB);
    assert_eq!(node.zone("a").overdrafts, 1, "with the allowance they fit");
    let alive = pids.iter().filter(|pid| is_alive(**pid)).count();
    assert_eq!(alive, 3);
    drop(clients);
}

fn a_warm_context_is_paid_for_by_who_gets_it() {
    let mut node = Node::start_with(|state_dir| {
        std::fs::write(beside(state_dir, "context"), (60 * MIB).to_string()).unwrap();
    });
    until("a spare waits", || node.status().spare_workers == 1);
    assert_eq!(node.zone("a").used, 0, "the node's");
    let first = Client::connect(&node.socket("a"));
    assert_eq!(node.zone("a").used, 60 * MIB, "it has done nothing yet");
    // There is no room for a second one: who comes gets a worker that has none, and is refused one.
    let second = Client::connect(&node.socket("a"));
    assert_eq!(node.zone("a").used, 60 * MIB);
    assert_eq!(second.ask(&format!("+{}", 60 * MIB)), "OverLimit");
    assert_eq!(Client::connect(&node.socket("b")).ask(&format!("+{}", 40 * MIB)), "granted");
    // A successor knows it, and what a worker gives back of it is its own.
    node.kill_broker();
    node.restart();
    until("the workers are back", || node.zone("a").used == 60 * MIB);
    first.ask(&format!("-{}", 60 * MIB));
    until("it is given back", || second.ask(&format!("+{}", 60 * MIB)) == "granted");
    drop(second);
    until("and free again", || node.zone("a").used == 0);
}

fn every_zone_has_workers_whatever_others_do() {
    // Ten are set aside, so 38 are for clients: 28 are guaranteed, 4 are kept for newcomers, and 6 are first come, first
    // served.
    let node = Node::start_with(|state_dir| std::fs::write(beside(state_dir, "slots"), "48").unwrap());
    let create = |zone: &str, settings: ZoneSettings| {
        let request = Request::CreateZone { name: zone.parse().unwrap(), settings };
        assert!(matches!(node.admin().ask(&request), Ok(Answer::Zone { .. })));
    };
    for zone in ["x", "y", "z"] {
        let labels = Labels { namespace: "greedy".into(), ..Labels::default() };
        create(zone, ZoneSettings { labels, ..ZoneSettings::default() });
    }
    create("more", ZoneLimits { workers: Some(8), ..ZoneLimits::default() }.into());
    let fill = |zone: &str| {
        let mut clients = Vec::new();
        let why = loop {
            match Client::try_connect(&node.socket(zone)) {
                Ok(client) => clients.push(client),
                Err((status, text)) => break (status, text),
            }
        };
        assert_eq!(why.0, Some(WelcomeStatus::ZoneFull));
        assert!(why.1.contains("no worker to spare"), "{}", why.1);
        clients
    };
    let greedy: Vec<Vec<Client>> = ["x", "y", "z"].map(fill).into();
    assert_eq!(greedy.iter().map(Vec::len).collect::<Vec<_>>(), [4 + 3, 4, 4], "one owner has half of what is free");
    let others = ["a", "b", "more"].map(fill);
    assert_eq!([0, 1, 2].map(|zone: usize| others[zone].len()), [4 + 3, 4, 8]);
    until("what was refused is counted", || node.zone("b").clients_refused == 1);
    create("late", ZoneSettings::default());
    assert_eq!(fill("late").len(), 4, "a zone that comes when all is taken");
    drop((greedy, others));
}

/// What the meter finds from now on: numbers of processes, and bytes.
fn measure(node: &Node, text: String) {
    let file = beside(&node.state_dir, "meter");
    // Replaced at once: the meter must not read half of it.
    control::atomic_file::write_volatile(&file, text.as_bytes()).unwrap();
}

fn zones_are_made_changed_killed_and_removed() {
    let mut node = Node::start();
    let name: control::ZoneName = "made".parse().unwrap();
    let mut settings = ZoneSettings::from(ZoneLimits { memory: Some(MIB), ..ZoneLimits::default() });
    settings.labels.pod = "pod-1".to_owned();
    settings.access.mode = 0o600;
    let create = Request::CreateZone { name: name.clone(), settings: settings.clone() };
    let Answer::Zone { socket, .. } = node.admin().ask(&create).unwrap() else { panic!() };
    let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&socket).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600);
    assert!(matches!(node.admin().ask(&create), Ok(Answer::Failed { .. })), "it is there already");
    settings.limits.share = 0;
    let nonsense = Request::CreateZone { name: "other".parse().unwrap(), settings };
    assert!(matches!(node.admin().ask(&nonsense), Ok(Answer::Failed { .. })));
    // A successor knows it, with what was changed.
    change(&node, "made", ZoneChange { memory: Change::Set(2 * MIB), cap: Change::Set(30), ..ZoneChange::default() });
    node.kill_broker();
    node.restart();
    let zone = node.zone("made");
    assert_eq!((zone.limits.memory, zone.limits.cap, zone.labels.pod.as_str()), (Some(2 * MIB), Some(30), "pod-1"));

    let (first, second, other) =
        (Client::connect(&socket), Client::connect(&socket), Client::connect(&node.socket("a")));
    assert_eq!(first.ask("+5"), "granted");
    let remove = |force| node.admin().ask(&Request::RemoveZone { name: name.clone(), force }).unwrap();
    assert!(matches!(remove(false), Answer::Failed { .. }), "it is in use");
    let kill = Request::KillZone { name: name.clone(), programs: false };
    assert!(matches!(node.admin().ask(&kill), Ok(Answer::Killed { workers: 2 })));
    first.wait_for_hangup();
    second.wait_for_hangup();
    until("the ledger is empty", || node.zone("made").used == 0 && node.zone("made").clients == 0);
    assert_eq!(other.ask("+5"), "granted");
    // The zone itself goes on.
    assert_eq!(Client::connect(&socket).ask("+5"), "granted");
    assert!(matches!(remove(true), Answer::Removed));
    assert!(!socket.exists());
    assert!(matches!(node.admin().ask(&kill), Ok(Answer::UnknownZone { .. })));

    // With the programs themselves; this process must not be one of them.
    drop(other);
    until("only the child is there", || node.zone("a").clients == 0);
    let mut child = start_client_process(&node);
    node.admin().ask(&Request::KillZone { name: "a".parse().unwrap(), programs: true }).unwrap();
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&child.wait().unwrap()), Some(9));
}

fn figures_outlive_worker_and_broker() {
    let mut node = Node::start();
    let (first, second) = (Client::connect(&node.socket("a")), Client::connect(&node.socket("a")));
    assert_eq!(first.ask("c100"), "counted");
    assert_eq!(second.ask("c1000"), "counted");
    assert_eq!(node.zone("a").stats.calls, 1106);
    // One killed right after it has counted loses nothing.
    assert_eq!(first.ask("c10000"), "counted");
    let workers = node.zone("a").workers;
    let pid = workers.iter().find(|worker| worker.stats.calls == 10103).unwrap().pid;
    let pid_of_second = workers.iter().find(|worker| worker.pid != pid).unwrap().pid;
    kill(pid);
    first.wait_for_hangup();
    until("it is gone", || node.zone("a").clients == 1);
    assert_eq!(node.zone("a").stats.calls, 11106);
    node.kill_broker();
    node.restart();
    // Collectors of totals must never see one fall: neither before the worker has shown its page, nor after.
    assert_eq!((node.zone("a").stats.calls, node.zone("a").clients_served), (11106, 2));
    assert_eq!(second.ask("c1"), "counted");
    until("the worker has shown its page", || node.zone("a").stats.calls == 11107);
    // One that ends while no broker is there takes along what it did, but nobody is told less than before.
    node.kill_broker();
    kill(pid_of_second);
    second.wait_for_hangup();
    node.restart();
    until("its end is known", || node.zone("a").clients == 0);
    assert_eq!(node.zone("a").stats.calls, 11107);
    let third = Client::connect(&node.socket("a"));
    assert_eq!(third.ask("c5000"), "counted");
    assert_eq!(node.zone("a").stats.calls, 10103 + 5003);
}

fn a_status_of_any_length_arrives() {
    let node = Node::start();
    for number in 0..400 {
        let mut settings = ZoneSettings::default();
        settings.labels.pod = "p".repeat(200);
        let name = format!("zone-{number}").parse().unwrap();
        assert!(matches!(node.admin().ask(&Request::CreateZone { name, settings }), Ok(Answer::Zone { .. })));
    }
    let status = node.status();
    assert_eq!(status.zones.len(), 402);
    assert!(serde_json::to_vec(&status).unwrap().len() > control::admin::MAX_MESSAGE);
}

fn a_new_configuration_counts_and_a_wrong_one_does_not() {
    let node = Node::start();
    let file = beside(&node.state_dir, "toml");
    let reload = |text: &str| {
        std::fs::write(&file, text).unwrap();
        rustix::process::kill_process(Pid::from_raw(node.broker.id() as i32).unwrap(), Signal::HUP).unwrap();
    };
    let names = || node.status().zones.iter().map(|zone| zone.name.as_str().to_owned()).collect::<Vec<_>>();
    let client = Client::connect(&node.socket("b"));
    reload("[zones.a]\nmemory = \"7MiB\"\n[zones.new]\n");
    until("the new zone is there", || names().contains(&"new".to_owned()));
    assert_eq!(node.zone("a").limits.memory, Some(7 * MIB));
    // A zone that is no longer configured stays as long as it is used.
    assert_eq!(client.ask("+5"), "granted");
    reload("[zones.a]\nmemory = \"much\"\n");
    until("it has been read", || node.status().reloads_failed == 1);
    assert_eq!(names(), ["a", "b", "new"]);
    assert_eq!(node.zone("a").limits.memory, Some(7 * MIB));
    drop(client);
    until("the client has left", || node.zone("b").clients == 0);
    reload("[zones.a]\nmemory = \"9MiB\"\n");
    until("only what is configured is left", || names() == ["a"]);
    assert_eq!(node.zone("a").limits.memory, Some(9 * MIB));
    std::fs::remove_file(file).unwrap();
}

fn ledgers_are_empty_after_kills_at_random() {
    let mut node = Node::start();
    let mut random = testkit::Random::new(std::process::id().into());
    let mut children: Vec<Child> = Vec::new();
    for round in 0..60 {
        match random.below(4) {
            0 if !children.is_empty() => {
                let mut child = children.swap_remove(random.below(children.len()));
                child.kill().unwrap();
                child.wait().unwrap();
            }
            1 => {
                let workers = node.zone("a").workers;
                if !workers.is_empty() {
                    let pid = workers[random.below(workers.len())].pid;
                    // It may have followed its client meanwhile.
                    let _ = rustix::process::kill_process(Pid::from_raw(pid as i32).unwrap(), Signal::KILL);
                }
            }
            2 if round % 10 == 9 => {
                node.kill_broker();
                node.restart();
            }
            _ if children.len() < 2 && node.zone("a").clients < 2 => children.push(start_client_process(&node)),
            _ => {}
        }
    }
    for mut child in children {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    until("nothing is charged and nobody is left", || {
        let zone = node.zone("a");
        zone.used == 0 && zone.clients == 0
    });
}
