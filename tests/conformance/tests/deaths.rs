//! Each part of Bulkhead is killed in turn: who must notice does, who must not does not, and nothing is left.

use std::io::Read;
use std::os::fd::AsRawFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output, Stdio};

use conformance::harness::{Honest, Place, Proxy, ZONE_MEMORY, is_alive, on_node, signal, until};
use rustix::process::Signal;

const MIB: u64 = 1 << 20;
/// The worker is gone: what every call answers then.
const DEVICE_UNAVAILABLE: &str = "error 46";
const OUT_OF_MEMORY: &str = "error 2";

const PLAYER: &str = env!("CARGO_BIN_EXE_conformance");

fn place() -> Place {
    Place::new(PLAYER)
}

#[test]
fn a_killed_client_takes_its_worker_and_its_memory_along() {
    on_node(PLAYER, &["a"], |node| {
        let mut client = node.client("a");
        assert_eq!(client.ask(&format!("alloc {}", 100 * MIB)), "ok");
        assert_eq!(client.ask("pinned 1000000"), "ok");
        assert_eq!(client.ask("compute"), "ok");
        assert!(node.zone("a").used >= 100 * MIB);
        let worker = node.worker_of(client.pid()).expect("it has a worker").pid;
        client.kill();
        until("the worker is gone", || !is_alive(worker));
        node.zone_is_empty("a");
        // All of the zone's memory is there for the next one.
        let mut next = node.client("a");
        assert_eq!(next.ask(&format!("alloc {}", ZONE_MEMORY - 8 * MIB)), "ok");
        assert_eq!(next.ask(&format!("alloc {}", 8 * MIB)), OUT_OF_MEMORY);
        next.quit();
    });
}

#[test]
fn a_client_killed_while_its_kernel_runs_is_gone_as_well() {
    on_node(PLAYER, &["a"], |node| {
        let mut client = node.client("a");
        let worker = node.worker_of(client.pid()).expect("it has a worker").pid;
        assert_eq!(client.ask("spin"), "ok");
        client.tell("sync");
        client.kill();
        until("the worker is gone", || !is_alive(worker));
        node.zone_is_empty("a");
    });
}

#[test]
fn a_client_that_ends_without_cleaning_up_leaves_nothing() {
    on_node(PLAYER, &["a"], |node| {
        for (command, code, signal) in [("exit 3", Some(3), None), ("abort", None, Some(6))] {
            let mut client = node.client("a");
            assert_eq!(client.ask(&format!("alloc {MIB}")), "ok");
            assert_eq!(client.ask("pinned 5000"), "ok");
            client.tell(command);
            let status = client.wait();
            assert_eq!((status.code(), status.signal()), (code, signal));
            node.zone_is_empty("a");
        }
    });
}

#[test]
fn a_killed_worker_is_an_error_to_its_client_and_nothing_to_others() {
    on_node(PLAYER, &["a", "b"], |node| {
        let mut victim = node.client("a");
        let mut sibling = node.client("a");
        let mut neighbour = node.client("b");
        assert_eq!(victim.ask(&format!("alloc {}", 50 * MIB)), "ok");
        let worker = node.worker_of(victim.pid()).expect("it has a worker").pid;
        signal(worker, Signal::KILL);
        until("the worker is gone", || !is_alive(worker));
        // Every kind of call comes back: those that are posted, that wait, that copy.
        for command in ["sync", "compute", "alloc 1000", "pinned 1000", "sync"] {
            assert_eq!(victim.ask(command), DEVICE_UNAVAILABLE, "{command}");
        }
        for honest in [&mut sibling, &mut neighbour] {
            assert_eq!(honest.ask("compute"), "ok");
        }
        let mut next = node.client("a");
        assert_eq!(next.ask("compute"), "ok");
        until("its memory is back", || node.zone("a").used < 50 * MIB);
        assert_eq!(victim.kill().signal(), Some(9));
        sibling.quit();
        neighbour.quit();
        next.quit();
        node.zone_is_empty("a");
    });
}

#[test]
fn a_worker_killed_under_a_waiting_client_ends_the_wait() {
    on_node(PLAYER, &["a"], |node| {
        let mut client = node.client("a");
        let worker = node.worker_of(client.pid()).expect("it has a worker").pid;
        assert_eq!(client.ask("spin"), "ok");
        client.tell("sync");
        signal(worker, Signal::KILL);
        assert_eq!(client.hear(), DEVICE_UNAVAILABLE);
        drop(client);
        node.zone_is_empty("a");
    });
}

#[test]
fn clients_go_on_without_a_broker_and_the_next_one_takes_them_over() {
    on_node(PLAYER, &["a", "b"], |node| {
        let mut first = node.client("a");
        let mut other = node.client("b");
        assert_eq!(first.ask(&format!("alloc {}", 100 * MIB)), "ok");
        let used = node.zone("a").used;
        let worker = node.worker_of(first.pid()).expect("it has a worker").pid;
        node.kill();
        for honest in [&mut first, &mut other] {
            assert_eq!(honest.ask("compute"), "ok");
            assert_eq!(honest.ask("sync"), "ok");
        }
        node.restart();
        assert_eq!(node.worker_of(first.pid()).expect("it still has its worker").pid, worker);
        assert_eq!(node.zone("a").used, used);
        // The limit holds over the change, and what is freed comes back.
        until("the worker has joined", || first.ask(&format!("alloc {}", 100 * MIB)) == "ok");
        assert_eq!(first.ask(&format!("alloc {}", 100 * MIB)), OUT_OF_MEMORY);
        assert_eq!(node.zone("a").used, used + 100 * MIB);
        assert_eq!(first.ask("free"), "ok");
        assert_eq!(first.ask("free"), "ok");
        until("the ledger is right", || node.zone("a").used == used - 100 * MIB);
        let mut next = node.client("a");
        assert_eq!(next.ask("compute"), "ok");
        for honest in [first, other, next] {
            honest.quit();
        }
        node.zone_is_empty("a");
        node.zone_is_empty("b");
    });
}

#[test]
fn a_client_that_died_while_there_was_no_broker_is_off_the_books() {
    on_node(PLAYER, &["a"], |node| {
        let mut client = node.client("a");
        assert_eq!(client.ask(&format!("alloc {}", 100 * MIB)), "ok");
        let worker = node.worker_of(client.pid()).expect("it has a worker").pid;
        node.kill();
        client.kill();
        until("the worker has followed its client", || !is_alive(worker));
        node.restart();
        node.zone_is_empty("a");
    });
}

/// `bulkhead run` with a client that does what it is told.
fn run(place: &Place, options: &[&str]) -> Command {
    let player = place.player_path().to_str().expect("a plain path").to_owned();
    place.bulkhead(&[&["run", "--backend", "soft"], options, &["--", &player, "client"]].concat())
}

#[test]
fn run_killed_leaves_nothing() {
    let place = place();
    let mut client = Honest::from_command(run(&place, &["--memory", "64MiB"]));
    assert_eq!(client.ask("compute"), "ok");
    assert_eq!(client.ask(&format!("alloc {}", 100 * MIB)), OUT_OF_MEMORY);
    client.kill();
    place.nothing_is_left();
}

#[test]
fn run_passes_on_how_the_program_ended() {
    let place = place();
    for (command, status) in [("exit 3", 3), ("exit 0", 0), ("abort", 128 + 6)] {
        let mut client = Honest::from_command(run(&place, &[]));
        client.tell(command);
        assert_eq!(client.wait().code(), Some(status), "{command}");
    }
    let mut client = Honest::from_command(run(&place, &[]));
    signal(client.pid(), Signal::TERM);
    assert_eq!(client.wait().code(), Some(128 + 15));
    place.nothing_is_left();
}

#[test]
fn runs_own_broker_killed_is_replaced_under_a_running_program() {
    let place = place();
    let mut client = Honest::from_command(run(&place, &["--memory", "200MiB"]));
    assert_eq!(client.ask(&format!("alloc {}", 100 * MIB)), "ok");
    let broker = || place.left_behind().iter().find(|line| line.contains("--private")).cloned();
    let pid = |line: &str| -> u32 {
        line.trim_start_matches("process ").split(':').next().and_then(|pid| pid.parse().ok()).expect("a process")
    };
    let first = pid(&broker().expect("there is a broker"));
    signal(first, Signal::KILL);
    assert_eq!(client.ask("compute"), "ok");
    until("there is another broker", || broker().is_some_and(|line| pid(&line) != first));
    until("the worker has joined it", || client.ask(&format!("alloc {}", 50 * MIB)) == "ok");
    assert_eq!(client.ask(&format!("alloc {}", 60 * MIB)), OUT_OF_MEMORY);
    client.quit();
    place.nothing_is_left();
}

fn refused(output: &Output, status: i32, words: &[&str]) {
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(status), "{text}");
    assert_eq!(text.lines().count(), 1, "one line: {text}");
    for word in words {
        assert!(text.contains(word), "{word:?} is not in {text}");
    }
}

#[test]
fn bad_input_is_one_line_and_a_status_of_its_own() {
    let place = place();
    let run = |arguments: &[&str]| place.bulkhead(arguments).output().expect("bulkhead runs");
    let stale = place.path().join("stale.sock");
    drop(idm::bootstrap::listen(&stale).expect("a socket"));
    let stale = stale.to_str().expect("a plain path");
    refused(&run(&["run", "--memory", "2 parsecs", "--", "true"]), 2, &["2 parsecs"]);
    refused(&run(&["run", "--zone", "a/b", "--", "true"]), 2, &["a/b"]);
    refused(&run(&["run", "--socket", stale, "--", "true"]), 69, &["stale.sock"]);
    refused(&run(&["run", "--backend", "soft", "--", "/no/such/program"]), 127, &["/no/such/program"]);
    let plain = place.path().join("plain");
    std::fs::write(&plain, "no program").expect("a file");
    refused(&run(&["run", "--backend", "soft", "--", plain.to_str().expect("a plain path")]), 126, &["plain"]);
    place.nothing_is_left();
}

/// Containers have directories mounted, and see only what becomes of those.
#[test]
fn the_directories_of_a_proxy_are_those_of_the_next() {
    let place = place();
    let proxy = Proxy::start(&place, &["a"]);
    let dirs = [place.state(), place.state().join("zones/a")];
    let mounted = dirs.map(|dir| std::fs::File::open(dir).expect("a directory"));
    proxy.stop();
    let proxy = Proxy::start(&place, &["a"]);
    for (dir, file) in mounted.iter().zip(["admin.sock", "sock"]) {
        let mut seen = std::fs::read_dir(format!("/proc/self/fd/{}", dir.as_raw_fd())).expect("a directory");
        assert!(seen.any(|entry| entry.is_ok_and(|entry| entry.file_name() == file)), "{file}");
    }
    proxy.stop();
    place.nothing_is_left();
}

#[test]
fn a_program_without_a_proxy_is_told_so() {
    let place = place();
    let nowhere = place.path().join("nowhere/sock");
    let mut command = place.player(&["client"], &nowhere);
    let mut child =
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("it starts");
    let mut text = String::new();
    child.stderr.take().expect("piped").read_to_string(&mut text).expect("text");
    assert!(!child.wait().expect("our child").success());
    let line = format!("bulkhead: no proxy at {}", nowhere.display());
    assert!(text.lines().any(|known| known.starts_with(&line)), "{text}");
    place.nothing_is_left();
}
