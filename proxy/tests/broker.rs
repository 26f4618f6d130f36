//! A broker as a process, with workers and clients that do what the tests say. This program is all of them: its first
//! argument says which. Nothing here needs root.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use idm::bootstrap::{self, Hello, Welcome, WelcomeStatus};
use libtest_mimic::{Arguments, Trial};
use proxy::backend::Backend;
use proxy::broker::{Broker, Config, Meter, Reload, Suspend, state_dir};
use proxy::control::admin::{AdminClient, Answer, Request, Status, ZoneStatus};
use proxy::control::wire::ToBroker;
use proxy::control::zone::{Change, ZoneChange, ZoneSettings};
use proxy::control::{BrokerLink, ZoneLimits};
use proxy::jail::Demand;
use proxy::meter::{self, Reading};
use proxy::packet;
use proxy::statistics;
use rustix::event::{PollFd, PollFlags};
use rustix::process::{Pid, Signal};

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

const TESTS: [(&str, fn()); 31] = [
    ("a_client_gets_a_worker_and_leaves_nothing", a_client_gets_a_worker_and_leaves_nothing),
    ("a_zone_has_one_limit_for_all_its_workers", a_zone_has_one_limit_for_all_its_workers),
    ("a_killed_client_frees_its_ledger", a_killed_client_frees_its_ledger),
    ("a_worker_that_does_not_follow_its_client_is_ended", a_worker_that_does_not_follow_its_client_is_ended),
    ("a_killed_worker_is_noticed_by_its_client_only", a_killed_worker_is_noticed_by_its_client_only),
    ("a_successor_takes_over", a_successor_takes_over),
    ("requests_wait_for_the_successor", requests_wait_for_the_successor),
    ("a_second_broker_is_refused", a_second_broker_is_refused),
    ("hostile_hellos_hurt_nobody", hostile_hellos_hurt_nobody),
    ("silent_clients_hold_up_nobody", silent_clients_hold_up_nobody),
    ("descriptors_that_linger_hold_up_nobody", descriptors_that_linger_hold_up_nobody),
    ("clients_that_leave_again_leave_no_workers", clients_that_leave_again_leave_no_workers),
    ("a_zone_made_again_owes_nothing", a_zone_made_again_owes_nothing),
    ("a_worker_that_breaks_the_protocol_is_ended", a_worker_that_breaks_the_protocol_is_ended),
    ("a_fallen_worker_hurts_nobody", a_fallen_worker_hurts_nobody),
    ("a_stranger_cannot_join_as_worker", a_stranger_cannot_join_as_worker),
    ("silent_strangers_keep_nobody_from_joining", silent_strangers_keep_nobody_from_joining),
    (
        "workers_share_neither_stderr_nor_session_with_the_broker",
        workers_share_neither_stderr_nor_session_with_the_broker,
    ),
    ("a_worker_that_says_it_rests_moves_nobody", a_worker_that_says_it_rests_moves_nobody),
    ("whose_memory_is_moved_is_known_by_more_than_a_number", whose_memory_is_moved_is_known_by_more_than_a_number),
    ("leased_zones_go_with_their_operator", leased_zones_go_with_their_operator),
    ("a_lowered_limit_takes_nothing_away_and_gives_nothing", a_lowered_limit_takes_nothing_away_and_gives_nothing),
    ("pinned_memory_has_an_account_of_its_own", pinned_memory_has_an_account_of_its_own),
    ("memory_that_was_never_asked_for_counts_and_is_ended", memory_that_was_never_asked_for_counts_and_is_ended),
    ("zones_are_made_changed_killed_and_removed", zones_are_made_changed_killed_and_removed),
    ("figures_outlive_worker_and_broker", figures_outlive_worker_and_broker),
    ("a_status_of_any_length_arrives", a_status_of_any_length_arrives),
    ("a_new_configuration_counts_and_a_wrong_one_does_not", a_new_configuration_counts_and_a_wrong_one_does_not),
    ("zones_of_a_budget_have_one_limit_together", zones_of_a_budget_have_one_limit_together),
    ("containers_of_a_zone_are_parts_of_it", containers_of_a_zone_are_parts_of_it),
    ("ledgers_are_empty_after_kills_at_random", ledgers_are_empty_after_kills_at_random),
];

// The parts that are played.

fn as_broker(folder: &Path) {
    let zone = |name: &str| {
        let limits = ZoneLimits { memory: Some(100 * MIB), share: 50, ..ZoneLimits::default() };
        (name.parse().unwrap(), ZoneSettings::from(limits))
    };
    let config = Config {
        state_dir: folder.to_owned(),
        private: false,
        backend: Backend::Soft { devices: 1, memory: 1 << 30, only: Vec::new() },
        zones: vec![zone("a"), zone("b")],
        grants: Vec::new(),
        spare_workers: 1,
        worker_program: "/proc/self/exe".into(),
        worker_arguments: vec!["as-worker".into()],
        json_logs: false,
        jail: Demand::Off,
        worker_uids: 0x3000_0000,
        context_memory: 0,
        meter: Some(Meter {
            arguments: vec!["as-meter".into(), beside(folder, "meter").into()],
            libraries: None,
            allowance: 50 * MIB,
        }),
        max_clients_per_zone: 8,
        watchdog: None,
        suspend: std::fs::read_to_string(beside(folder, "suspend")).ok().map(|seconds| Suspend {
            after: Duration::from_secs(seconds.parse().unwrap()),
            arguments: vec!["as-mover".into(), beside(folder, "moves").into()],
            libraries: None,
        }),
    };
    let mut broker = match Broker::start(config) {
        Ok(broker) => broker,
        Err(error) => {
            eprintln!("{error}");
            std::process::exit(75);
        }
    };
    let (reload, asked) = std::os::unix::net::UnixStream::pair().unwrap();
    signal_hook::low_level::pipe::register(signal_hook::consts::SIGHUP, asked).unwrap();
    let file = beside(folder, "toml");
    let read = move || match proxy::config::load(&file) {
        Ok(file) => {
            Some(Reload { zones: file.zones, grants: file.grants, spare_workers: 1, max_clients_per_zone: 8 })
        }
        Err(error) => {
            eprintln!("{error}");
            None
        }
    };
    broker.reload_on(reload.into(), read).unwrap();
    println!("ready");
    let (signals, _writer) = packet::pair().unwrap();
    broker.run(signals, None).unwrap();
}

/// Does what its client says: `+n` charges, `-n` releases, `?` asks, `cn` counts n calls, `pn` and `un` pin, `x` breaks the protocol, `h` stays when left, `e`
/// writes to stderr, `r` says that it rests, `i` tells who it is, `s` tells its session and where stderr leads.
fn as_worker(arguments: &[String]) {
    let control = io::stdin().as_fd().try_clone_to_owned().unwrap();
    let raw = control.try_clone().unwrap();
    let rejoin =
        arguments.iter().position(|argument| argument == "--rejoin").map(|at| PathBuf::from(&arguments[at + 1]));
    let link = BrokerLink::with_rejoin(control, rejoin);
    // A spare may find its broker killed already.
    let Ok(()) = link.report_ready(0, 13000) else { return };
    let Ok(assignment) = link.wait_for_assignment() else { return };
    let calls = &assignment.statistics.calls;
    statistics::add(calls, 3);
    let mut hang = false;
    loop {
        let mut buffer = [0; 64];
        let received = match packet::receive(&assignment.client, &mut buffer) {
            Ok(received) if received.len > 0 => received,
            _ if hang => loop {
                std::thread::park();
            },
            _ => return,
        };
        let text = std::str::from_utf8(&buffer[..received.len]).unwrap();
        let number = text[1..].parse().unwrap_or(0);
        let answer = match text.as_bytes()[0] {
            b'+' => link.charge(number).map_or_else(|denied| format!("{denied:?}"), |()| "granted".to_owned()),
            b'-' => {
                link.release(number);
                "released".to_owned()
            }
            b'?' => format!("{:?}", link.zone_usage()),
            b'p' => link.pin(number).map_or_else(|denied| format!("{denied:?}"), |()| "granted".to_owned()),
            b'u' => {
                link.unpin(number);
                "released".to_owned()
            }
            b'c' => {
                statistics::add(calls, number);
                "counted".to_owned()
            }
            b'e' => {
                let written = io::Write::write_all(&mut io::stderr(), b"said\n");
                written.map_or_else(|error| format!("{:?}", error.kind()), |()| "said".to_owned())
            }
            b's' => {
                let leads = rustix::process::getsid(None).ok() == Some(rustix::process::getpid());
                format!("{leads} {}", std::fs::read_link("/proc/self/fd/2").unwrap().display())
            }
            b'r' => {
                let resting = ToBroker::new(proxy::control::wire::to_broker::RESTING);
                packet::send(&raw, zerocopy::IntoBytes::as_bytes(&resting), &[]).unwrap();
                "resting".to_owned()
            }
            b'i' => identity(),
            b'f' => {
                fall(&raw, number);
                packet::send(&assignment.client, b"done", &[]).unwrap();
                continue;
            }
            b'x' => {
                packet::send(&raw, &[0xff; 77], &[]).unwrap();
                continue;
            }
            _ => {
                hang = true;
                "hanging".to_owned()
            }
        };
        packet::send(&assignment.client, answer.as_bytes(), &[]).unwrap();
    }
}

/// Of this process: number, start time and user, as the kernel tells them.
fn identity() -> String {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let start = stat.rsplit_once(')').unwrap().1.split_whitespace().nth(19).unwrap().to_owned();
    format!("{} {start} {}", std::process::id(), rustix::process::getuid().as_raw())
}

/// Writes down what it was to move, and fails.
fn as_mover(file: &Path, arguments: &[String]) {
    let mut moves = std::fs::File::options().append(true).create(true).open(file).unwrap();
    io::Write::write_all(&mut moves, format!("{}\n", arguments.join(" ")).as_bytes()).unwrap();
    std::process::exit(70);
}

/// What a worker may do that its client has taken over: messages of every kind with whatever in them, descriptors that are
/// nothing, answers never read.
fn fall(control: &OwnedFd, seed: u64) {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut roll = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let null = std::fs::File::open("/dev/null").unwrap();
    let memory = rustix::fs::memfd_create("fallen", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    // Some break the protocol with their first messages, some only lie.
    let gentle = seed.is_multiple_of(2);
    for _ in 0..5000 {
        let kinds = [3, 4, 4, 4, 5, 8, 9, 10, 11];
        let kind = if gentle { kinds[roll() as usize % kinds.len()] } else { (roll() % 14) as u32 };
        let mut message = ToBroker::new(kind);
        let near = [0, 1, 4096, MIB, 100 * MIB, 1 << 40, u64::MAX, u64::MAX - 4096, roll()];
        (message.seq, message.value) = (roll(), near[roll() as usize % near.len()]);
        message.account = [0, 0, 1, 2, u32::MAX][roll() as usize % if gentle { 3 } else { 5 }];
        message.details.kind = roll() % 7;
        message.details.size = near[roll() as usize % near.len()];
        message.details.offset = near[roll() as usize % near.len()];
        message.details.len = near[roll() as usize % near.len()];
        message.details.flags = roll() % 16;
        message.token[..8].copy_from_slice(&roll().to_le_bytes());
        let fds = [null.as_fd(), memory.as_fd()];
        let fds = &fds[..roll() as usize % 3];
        let bytes = zerocopy::IntoBytes::as_bytes(&message);
        let bytes = if !gentle && roll() % 50 == 0 { &bytes[..roll() as usize % bytes.len()] } else { bytes };
        match packet::send(control, bytes, fds) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => std::thread::yield_now(),
            // We were ended, or are about to be.
            Err(_) => break,
            Ok(_) => {}
        }
    }
}

/// Reads what processes use from a file, lines of number and bytes, for as long as somebody listens.
fn as_meter(file: &Path) {
    let socket = io::stdin().as_fd().try_clone_to_owned().unwrap();
    let reading = |line: &str| {
        let (pid, bytes) = line.split_once(' ')?;
        Some(Reading { pid: pid.parse().ok()?, reserved: 0, bytes: bytes.parse().ok()? })
    };
    loop {
        let text = std::fs::read_to_string(file).unwrap_or_default();
        let readings: Vec<Reading> = text.lines().filter_map(reading).collect();
        // No file is no meter: it says nothing, and is still there.
        if file.exists() && meter::send(&socket, &readings).is_err() {
            return;
        }
        let mut fds = [PollFd::new(&socket, PollFlags::RDHUP)];
        let moment = rustix::event::Timespec { tv_sec: 0, tv_nsec: 5_000_000 };
        if rustix::event::poll(&mut fds, Some(&moment)).unwrap_or(0) > 0 {
            return;
        }
    }
}

/// Charges 40 MiB and waits to be killed.
fn as_client(socket: &Path) {
    let client = Client::connect(socket);
    println!("{}", client.ask(&format!("+{}", 40 * MIB)));
    loop {
        std::thread::park();
    }
}

// What the tests use.

/// A file beside the broker's folder.
fn beside(folder: &Path, kind: &str) -> PathBuf {
    folder.with_extension(kind)
}

struct Node {
    folder: PathBuf,
    broker: Child,
}

impl Node {
    fn start() -> Self {
        let folder = Self::folder();
        Self { broker: start_broker(&folder), folder }
    }

    /// One that moves memory of those who are idle for so many seconds.
    fn suspending(seconds: &str) -> Self {
        let folder = Self::folder();
        std::fs::write(beside(&folder, "suspend"), seconds).unwrap();
        Self { broker: start_broker(&folder), folder }
    }

    fn folder() -> PathBuf {
        let mut random = [0; 8];
        rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty()).unwrap();
        std::env::temp_dir().join(format!("bulkhead-test-{:x}", u64::from_ne_bytes(random)))
    }

    fn socket(&self, zone: &str) -> PathBuf {
        self.folder.join("zones").join(zone).join("sock")
    }

    fn admin(&self) -> AdminClient {
        AdminClient::connect(&self.folder.join("admin.sock")).unwrap()
    }

    fn status(&self) -> Status {
        match self.admin().ask(&Request::Status).unwrap() {
            Answer::Status(status) => status,
            other => panic!("{other:?}"),
        }
    }

    fn zone(&self, name: &str) -> ZoneStatus {
        self.status().zones.into_iter().find(|zone| zone.name.as_str() == name).unwrap()
    }

    fn kill_broker(&mut self) {
        self.broker.kill().unwrap();
        self.broker.wait().unwrap();
    }

    fn restart(&mut self) {
        self.broker = start_broker(&self.folder);
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.broker.kill();
        let _ = self.broker.wait();
        state_dir::remove(&self.folder);
        for kind in ["suspend", "moves"] {
            let _ = std::fs::remove_file(beside(&self.folder, kind));
        }
    }
}

fn start_broker(folder: &Path) -> Child {
    let mut child =
        Command::new("/proc/self/exe").arg("as-broker").arg(folder).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    io::BufRead::read_line(&mut io::BufReader::new(child.stdout.take().unwrap()), &mut line).unwrap();
    assert_eq!(line, "ready\n");
    child
}

struct Client {
    socket: OwnedFd,
}

impl Client {
    fn connect(path: &Path) -> Self {
        let broker = bootstrap::connect(path).unwrap();
        bootstrap::send(&broker, &Hello::new(cuda_abi::wire::fingerprint(), 0), &[]).unwrap();
        let (welcome, mut fds) = bootstrap::recv::<Welcome>(&broker).unwrap();
        assert_eq!(welcome.status(), Some(WelcomeStatus::Ok), "{}", welcome.text());
        Self { socket: fds.remove(0) }
    }

    fn ask(&self, text: &str) -> String {
        packet::send(&self.socket, text.as_bytes(), &[]).unwrap();
        let mut buffer = [0; 64];
        let received = packet::receive(&self.socket, &mut buffer).unwrap();
        String::from_utf8(buffer[..received.len].to_vec()).unwrap()
    }

    fn wait_for_hangup(&self) {
        assert_eq!(packet::receive(&self.socket, &mut [0; 64]).map(|received| received.len).unwrap_or(0), 0);
    }
}

/// Waits for something that must come true; a test that never ends is the failure.
fn until(what: &str, mut true_yet: impl FnMut() -> bool) {
    let start = Instant::now();
    while !true_yet() {
        assert!(start.elapsed() < Duration::from_secs(60), "never came true: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn kill(pid: u32) {
    rustix::process::kill_process(Pid::from_raw(pid as i32).unwrap(), Signal::KILL).unwrap();
}

fn alive(pid: u32) -> bool {
    // A zombie of another parent than us has ended, too.
    std::fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| !stat.rsplit_once(')').unwrap().1.trim_start().starts_with('Z'))
}

// The tests.

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
    until("the worker is gone", || !alive(worker));
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
    assert!(alive(worker));
    // One whose client is dead may not.
    let mut child = start_client_process(&node);
    let other = node.zone("a").workers.iter().map(|worker| worker.pid).find(|pid| *pid != worker).unwrap();
    rustix::process::kill_process(Pid::from_raw(other as i32).unwrap(), Signal::STOP).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    until("the stopped worker is ended", || !alive(other));
    assert!(alive(worker));
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
    until("the adopted worker is gone", || !alive(worker));
    until("its charge is back", || node.zone("a").used == 50 * MIB);
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
    let output = Command::new("/proc/self/exe").arg("as-broker").arg(&node.folder).output().unwrap();
    assert_eq!(output.status.code(), Some(75));
    assert!(String::from_utf8_lossy(&output.stderr).contains("another proxy"));
    assert_eq!(Client::connect(&node.socket("a")).ask("+1"), "granted");
}

fn hostile_hellos_hurt_nobody() {
    let node = Node::start();
    let steady = Client::connect(&node.socket("b"));
    let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
    for round in 0..300 {
        let broker = bootstrap::connect(&node.socket("a")).unwrap();
        let mut bytes = zerocopy::IntoBytes::as_bytes(&Hello::new(cuda_abi::wire::fingerprint(), 0)).to_vec();
        for _ in 0..1 + round % 5 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let at = (seed >> 33) as usize % bytes.len();
            bytes[at] ^= (seed >> 20) as u8;
        }
        match round % 4 {
            0 => bytes.truncate((seed >> 40) as usize % bytes.len()),
            1 => bytes.resize(bytes.len() + 1 + (seed >> 40) as usize % 5000, 7),
            _ => {}
        }
        // Descriptors that nobody asked for come along.
        let gift = [broker.as_fd()];
        let _ = packet::send(&broker, &bytes, if round % 3 == 0 { &gift } else { &[] });
        if round % 7 != 0 {
            // An answer or a hang-up, but no silence.
            let mut fds = [PollFd::new(&broker, PollFlags::IN)];
            let patience = rustix::event::Timespec { tv_sec: 60, tv_nsec: 0 };
            assert_eq!(rustix::event::poll(&mut fds, Some(&patience)), Ok(1), "round {round}");
        }
    }
    assert_eq!(steady.ask("+5"), "granted");
    until("the zone serves again", || node.zone("a").clients == 0);
    assert_eq!(Client::connect(&node.socket("a")).ask("+5"), "granted");
}

fn silent_clients_hold_up_nobody() {
    let node = Node::start();
    let silent: Vec<OwnedFd> = (0..200).map(|_| bootstrap::connect(&node.socket("a")).unwrap()).collect();
    assert_eq!(Client::connect(&node.socket("b")).ask("+5"), "granted");
    // They are dropped, and then their own zone is free again, too.
    for socket in &silent {
        assert_eq!(packet::receive(socket, &mut [0; 64]).map(|received| received.len).unwrap_or(0), 0);
    }
    assert_eq!(Client::connect(&node.socket("a")).ask("+5"), "granted");
}

/// One end of a connection whose last close takes an hour, and the other end.
fn lingering() -> (OwnedFd, std::net::TcpStream) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut near = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (far, _) = listener.accept().unwrap();
    near.set_nonblocking(true).unwrap();
    while io::Write::write(&mut near, &[0; 65_536]).is_ok() {}
    rustix::net::sockopt::set_socket_linger(&near, Some(Duration::from_secs(3600))).unwrap();
    (near.into(), far)
}

/// Whoever closes such a descriptor waits; it must not be the one whom all others wait for.
fn descriptors_that_linger_hold_up_nobody() {
    let node = Node::start();
    let steady = Client::connect(&node.socket("b"));
    let hello = Hello::new(cuda_abi::wire::fingerprint(), 0);
    let bytes = zerocopy::IntoBytes::as_bytes(&hello);
    let mut far_ends = Vec::new();
    for way in 0..3 {
        let (near, far) = lingering();
        far_ends.push(far);
        // Stopped meanwhile: had it closed its own already, closing ours would be what waits.
        let pid = Pid::from_raw(node.broker.id() as i32).unwrap();
        rustix::process::kill_process(pid, Signal::STOP).unwrap();
        let broker = bootstrap::connect(&node.socket("a")).unwrap();
        match way {
            // With the first message.
            0 => packet::send(&broker, bytes, &[near.as_fd()]).unwrap(),
            // With one that is nothing.
            1 => packet::send(&broker, b"?", &[near.as_fd()]).unwrap(),
            // Unread, in a connection that is closed.
            _ => {
                packet::send(&broker, bytes, &[]).unwrap();
                packet::send(&broker, bytes, &[near.as_fd()]).unwrap();
            }
        }
        drop((near, broker));
        rustix::process::kill_process(pid, Signal::CONT).unwrap();
        assert_eq!(steady.ask("+5"), "granted");
        assert_eq!(Client::connect(&node.socket("b")).ask("+5"), "granted");
    }
    // Its own zone gets no more of them in than are being closed, and all when they are.
    let silent: Vec<OwnedFd> = (0..200).map(|_| bootstrap::connect(&node.socket("a")).unwrap()).collect();
    drop(silent);
    assert_eq!(steady.ask("+5"), "granted");
    drop(far_ends);
    assert_eq!(Client::connect(&node.socket("a")).ask("+5"), "granted");
}

fn clients_that_leave_again_leave_no_workers() {
    let node = Node::start();
    for _ in 0..5 {
        let hello = Hello::new(cuda_abi::wire::fingerprint(), 0);
        let clients: Vec<OwnedFd> = (0..8).map(|_| bootstrap::connect(&node.socket("a")).unwrap()).collect();
        clients.iter().for_each(|client| bootstrap::send(client, &hello, &[]).unwrap());
        drop(clients);
    }
    until("all clients are gone", || node.zone("a").clients == 0);
    until("one spare is left", || node.status().spare_workers == 1);
    assert_eq!(Client::connect(&node.socket("a")).ask("+5"), "granted");
}

/// What workers of the zone before it held is not taken off it when they are gone.
fn a_zone_made_again_owes_nothing() {
    let node = Node::start();
    let name: proxy::control::ZoneName = "again".parse().unwrap();
    let settings = ZoneSettings::from(ZoneLimits { memory: Some(100 * MIB), ..ZoneLimits::default() });
    for round in 0..20 {
        let create = Request::CreateZone { name: name.clone(), settings: settings.clone() };
        let Answer::Zone { socket, .. } = node.admin().ask(&create).unwrap() else { panic!("round {round}") };
        let client = Client::connect(&socket);
        assert_eq!(client.ask(&format!("+{}", 60 * MIB)), "granted", "round {round}");
        let gone = node.zone("again").workers[0].pid;
        let remove = Request::RemoveZone { name: name.clone(), force: true };
        assert!(matches!(node.admin().ask(&remove), Ok(Answer::Removed)));
        let Answer::Zone { socket, .. } = node.admin().ask(&create).unwrap() else { panic!("round {round}") };
        let client = Client::connect(&socket);
        assert_eq!(client.ask(&format!("+{}", 50 * MIB)), "granted", "round {round}");
        until("the worker before it is gone", || !alive(gone));
        assert_eq!(client.ask("?"), format!("({}, Some({}))", 50 * MIB, 100 * MIB));
        assert_eq!(node.zone("again").used, 50 * MIB, "round {round}");
        assert!(matches!(node.admin().ask(&remove), Ok(Answer::Removed)));
    }
}

fn a_worker_that_breaks_the_protocol_is_ended() {
    let node = Node::start();
    let (bad, good) = (Client::connect(&node.socket("a")), Client::connect(&node.socket("a")));
    assert_eq!(bad.ask("+5"), "granted");
    packet::send(&bad.socket, b"x", &[]).unwrap();
    bad.wait_for_hangup();
    until("its charge is back", || node.zone("a").used == 0);
    assert_eq!(good.ask("+5"), "granted");
}

fn a_fallen_worker_hurts_nobody() {
    let node = Node::start();
    let neighbour = Client::connect(&node.socket("b"));
    assert_eq!(neighbour.ask(&format!("+{}", 30 * MIB)), "granted");
    let sibling = Client::connect(&node.socket("a"));
    assert_eq!(sibling.ask(&format!("+{}", 20 * MIB)), "granted");
    for seed in 1..=12 {
        let fallen = Client::connect(&node.socket("a"));
        packet::send(&fallen.socket, format!("f{seed}").as_bytes(), &[]).unwrap();
        // It is ended, or has said all of it.
        let _ = packet::receive(&fallen.socket, &mut [0; 64]);
        // Nobody's account but its own can change, and its zone's limit holds.
        let (a, b) = (node.zone("a"), node.zone("b"));
        assert_eq!(b.used, 30 * MIB, "another zone's account was changed");
        assert!(a.used <= 100 * MIB, "a zone has more than its limit: {}", a.used);
        drop(fallen);
        until("its account is closed", || node.zone("a").used == 20 * MIB);
        // What the others of its zone hold, and what they are told, is right.
        assert_eq!(sibling.ask(&format!("+{}", 81 * MIB)), "OverLimit");
        assert_eq!(sibling.ask(&format!("+{MIB}")), "granted");
        assert_eq!(sibling.ask(&format!("-{MIB}")), "released");
        until("it is given back", || node.zone("a").used == 20 * MIB);
    }
}

fn a_stranger_cannot_join_as_worker() {
    let node = Node::start();
    let client = Client::connect(&node.socket("a"));
    for bytes in [vec![0; 0], vec![1; 10], vec![2, 0, 0, 0], vec![0xff; 88], vec![0; 4096]] {
        let socket = packet::connect(&node.folder.join("rejoin/workers.sock")).unwrap();
        packet::send(&socket, &bytes, &[]).unwrap();
        assert_eq!(packet::receive(&socket, &mut [0; 512]).map(|received| received.len).unwrap_or(0), 0);
    }
    assert_eq!(client.ask("+5"), "granted");
}

fn a_worker_that_says_it_rests_moves_nobody() {
    // Memory is moved on this node, and nobody is idle for long enough.
    let node = Node::suspending("3600");
    let (client, other) = (Client::connect(&node.socket("a")), Client::connect(&node.socket("b")));
    for _ in 0..20 {
        assert_eq!(client.ask("r"), "resting");
    }
    assert_eq!((client.ask("+5"), other.ask("+5")), ("granted".into(), "granted".into()));
    assert!(!beside(&node.folder, "moves").exists(), "nobody asked it to");
}

fn whose_memory_is_moved_is_known_by_more_than_a_number() {
    let node = Node::suspending("1");
    let client = Client::connect(&node.socket("a"));
    let worker = client.ask("i");
    let moves = beside(&node.folder, "moves");
    // No worker here measures GPU time, so the broker looks only when somebody asks it something.
    until("it is idle", || node.zone("a").clients == 1 && moves.exists());
    until("it is written", || std::fs::read_to_string(&moves).is_ok_and(|text| text.ends_with('\n')));
    assert_eq!(std::fs::read_to_string(&moves).unwrap(), format!("out {worker}\n"));
    assert_eq!(client.ask("+5"), "granted", "it goes on where it was");
    assert_eq!(node.zone("a").suspensions, 0);
}

fn silent_strangers_keep_nobody_from_joining() {
    let mut node = Node::start();
    let client = Client::connect(&node.socket("a"));
    let worker = Pid::from_raw(node.zone("a").workers[0].pid as i32).unwrap();
    // It looks for the new broker only when others are there already.
    rustix::process::kill_process(worker, Signal::STOP).unwrap();
    node.kill_broker();
    node.restart();
    let path = node.folder.join("rejoin/workers.sock");
    let mut silent: std::collections::VecDeque<OwnedFd> = (0..300).map(|_| packet::connect(&path).unwrap()).collect();
    rustix::process::kill_process(worker, Signal::CONT).unwrap();
    let asked = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // Others come as fast as their time is up.
            while !asked.load(std::sync::atomic::Ordering::Relaxed) {
                silent.push_back(packet::connect(&path).unwrap());
                silent.pop_front();
            }
        });
        until("the worker has joined", || client.ask("+5") == "granted");
        asked.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}

fn workers_share_neither_stderr_nor_session_with_the_broker() {
    let mut node = Node::start();
    let client = Client::connect(&node.socket("a"));
    let stderr = std::fs::read_link(format!("/proc/{}/fd/2", node.broker.id())).unwrap();
    let told = client.ask("s");
    assert!(told.starts_with("true pipe:") && !told.ends_with(&*stderr.to_string_lossy()), "{told}");
    assert_eq!(client.ask("e"), "said");
    // Nobody listens while there is no broker, which does no harm; the next one does.
    node.kill_broker();
    assert_eq!(client.ask("e"), "BrokenPipe");
    node.restart();
    until("it is heard again", || client.ask("e") == "said");
    assert_ne!(client.ask("s"), told);
}

fn leased_zones_go_with_their_operator() {
    let node = Node::start();
    let admin = node.admin();
    let name: proxy::control::ZoneName = "leased".parse().unwrap();
    let limits = ZoneLimits { memory: Some(10), share: 1, ..ZoneLimits::default() };
    let request = Request::EnsureZone { name: name.clone(), limits, lease: true };
    let Answer::Zone { socket, .. } = admin.ask(&request).unwrap() else { panic!() };
    let client = Client::connect(&socket);
    assert_eq!(client.ask("+11"), "OverLimit");
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
        let name: proxy::control::ZoneName = name.parse().unwrap();
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
    testing::not_tried("no control group can be made here");
    false
}

fn containers_of_a_zone_are_parts_of_it() {
    let mut node = Node::start();
    let mut settings = ZoneSettings::from(ZoneLimits { memory: Some(100 * MIB), ..ZoneLimits::default() });
    settings.ties.split = true;
    let name: proxy::control::ZoneName = "claim".parse().unwrap();
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
    let part = |digit: char| format!("claim.{}", digit.to_string().repeat(12));
    let (a, b) = (node.zone(&part('a')), node.zone(&part('b')));
    assert_eq!((a.used, a.clients, b.used, b.clients), (60 * MIB, 2, 40 * MIB, 1));
    assert_eq!(node.zone("claim").clients, 0);
    // A zone that only has the name of a part is none.
    let named: proxy::control::ZoneName = part('c').parse().unwrap();
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
    let file = beside(&node.folder, "meter");
    let measure = |text: String| {
        // Whole or not at all: the meter must not read half of it.
        std::fs::write(file.with_extension("new"), text).unwrap();
        std::fs::rename(file.with_extension("new"), &file).unwrap();
    };
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
    std::fs::remove_file(file).unwrap();
}

fn zones_are_made_changed_killed_and_removed() {
    let mut node = Node::start();
    let name: proxy::control::ZoneName = "made".parse().unwrap();
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
    // Whoever collects totals must never see one fall: neither before the worker has shown its page, nor after.
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
    assert!(serde_json::to_vec(&status).unwrap().len() > proxy::control::admin::MAX_MESSAGE);
}

fn a_new_configuration_counts_and_a_wrong_one_does_not() {
    let node = Node::start();
    let file = beside(&node.folder, "toml");
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
    let mut seed = std::process::id().wrapping_mul(2_654_435_761);
    let mut random = move |below: u32| {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (seed >> 8) % below
    };
    let mut children: Vec<Child> = Vec::new();
    for round in 0..60 {
        match random(4) {
            0 if !children.is_empty() => {
                let mut child = children.swap_remove(random(children.len() as u32) as usize);
                child.kill().unwrap();
                child.wait().unwrap();
            }
            1 => {
                let workers = node.zone("a").workers;
                if !workers.is_empty() {
                    let pid = workers[random(workers.len() as u32) as usize].pid;
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
