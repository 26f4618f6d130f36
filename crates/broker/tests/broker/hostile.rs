//! Clients and workers that mean harm.

use super::*;

pub fn hostile_hellos_hurt_nobody() {
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
            let timeout = rustix::event::Timespec { tv_sec: 60, tv_nsec: 0 };
            assert_eq!(rustix::event::poll(&mut fds, Some(&timeout)), Ok(1), "round {round}");
        }
    }
    assert_eq!(steady.ask("+5"), "granted");
    until("the zone serves again", || node.zone("a").clients == 0);
    assert_eq!(Client::connect(&node.socket("a")).ask("+5"), "granted");
}

/// The first message of a client library of version 0.1.0, before the proxy became three processes, as it was recorded.
#[rustfmt::skip]
const PREVIOUS_HELLO: [u8; 56] = [
    0x42, 0x6b, 0x48, 0x69, 0x01, 0, 0, 0, 0x18, 0x32, 0x89, 0x82, 0x5f, 0x66, 0xc4, 0x55, 0, 0, 0, 0, 0x1a, 0x2a, 0, 0,
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
];

/// Of the previous version, and of one that is yet to come.
pub fn clients_of_other_versions_are_told_so() {
    let node = Node::start();
    let previous: Hello = zerocopy::FromBytes::read_from_bytes(&PREVIOUS_HELLO).unwrap();
    let later =
        Hello { version: 2, flags: u32::MAX, reserved: [7; 4], ..Hello::new(cuda_abi::wire::fingerprint(), 0) };
    for hello in [previous, later] {
        let broker = bootstrap::connect(&node.socket("a")).unwrap();
        bootstrap::send(&broker, &hello, &[]).unwrap();
        let (welcome, fds) = bootstrap::recv::<Welcome>(&broker).unwrap();
        assert_eq!(welcome.status(), Some(WelcomeStatus::VersionMismatch));
        let text = welcome.text();
        assert!(text.starts_with(&format!("this proxy is version {}", env!("CARGO_PKG_VERSION"))), "{text}");
        assert!(text.ends_with("install both from one release"), "not cut short: {text}");
        assert!(fds.is_empty());
    }
    assert_eq!(node.zone("a").clients_refused, 2);
    assert_eq!(Client::connect(&node.socket("a")).ask("+5"), "granted");
}

pub fn silent_clients_hold_up_nobody() {
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
pub fn lingering() -> (OwnedFd, std::net::TcpStream) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut near = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (far, _) = listener.accept().unwrap();
    near.set_nonblocking(true).unwrap();
    while io::Write::write(&mut near, &[0; 65_536]).is_ok() {}
    rustix::net::sockopt::set_socket_linger(&near, Some(Duration::from_secs(3600))).unwrap();
    (near.into(), far)
}

/// Who closes such a descriptor waits; it must not be the one whom all others wait for.
pub fn descriptors_that_linger_hold_up_nobody() {
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

/// Descriptors that the broker has open.
fn open_in(node: &Node) -> usize {
    std::fs::read_dir(format!("/proc/{}/fd", node.broker.id())).unwrap().count()
}

/// Kinds of what wakes the broker's loop, in the low four bits of what the kernel keeps for it.
const CLIENTS: u64 = 7;
const CLIENTS_OF_WORKERS: u64 = 10;
const SCHEDULER: u64 = 13;

/// How many of one kind can wake the broker's loop.
fn watched_by(node: &Node, kind: u64) -> usize {
    let data_of = |line: &str| {
        let data = line.strip_prefix("tfd:")?.split_once("data:")?.1.split_whitespace().next()?;
        u64::from_str_radix(data, 16).ok()
    };
    let files = std::fs::read_dir(format!("/proc/{}/fdinfo", node.broker.id())).unwrap();
    let texts = files.filter_map(|file| std::fs::read_to_string(file.unwrap().path()).ok());
    let sets = texts.map(|text| text.lines().filter_map(data_of).collect::<Vec<u64>>());
    // Other threads have sets of their own; only the loop's has the scheduler in it.
    let of_loop = sets.filter(|set| set.contains(&SCHEDULER)).max_by_key(Vec::len).unwrap();
    of_loop.into_iter().filter(|data| data & 31 == kind).count()
}

/// As many descriptors as a message can have.
fn send_many(socket: &OwnedFd) {
    send_many_behind(socket, &std::fs::File::open("/dev/null").unwrap().into());
}

/// The same; this one is closed before the others.
fn send_many_behind(socket: &OwnedFd, first: &OwnedFd) {
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
    let null = std::fs::File::open("/dev/null").unwrap();
    let mut fds = [null.as_fd(); 253];
    fds[0] = first.as_fd();
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(253))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    assert!(ancillary.push(SendAncillaryMessage::ScmRights(&fds)));
    // The broker may have had enough of it.
    let _ = rustix::net::sendmsg(socket, &[io::IoSlice::new(b"x")], &mut ancillary, SendFlags::NOSIGNAL);
}

/// One descriptor takes an hour to close, and behind it come more than the broker may have: they must not be read.
pub fn messages_full_of_descriptors_hold_up_nobody() {
    let node = Node::start();
    let steady = Client::connect(&node.socket("b"));
    let few = rustix::process::Rlimit { current: Some(4096), maximum: Some(4096) };
    let pid = Pid::from_raw(node.broker.id() as i32);
    rustix::process::prlimit(pid, rustix::process::Resource::Nofile, few).unwrap();
    let before = open_in(&node);
    let (near, far) = lingering();
    let peers: Vec<OwnedFd> = (0..60).map(|_| bootstrap::connect(&node.socket("a")).unwrap()).collect();
    peers.iter().for_each(|peer| bootstrap::send(peer, &bootstrap::Rendezvous::default(), &[]).unwrap());
    // Stopped, until nobody but the broker has it.
    rustix::process::kill_process(pid.unwrap(), Signal::STOP).unwrap();
    packet::send(&peers[0], b"x", &[near.as_fd()]).unwrap();
    drop(near);
    rustix::process::kill_process(pid.unwrap(), Signal::CONT).unwrap();
    until("it is sent away", || watched_by(&node, CLIENTS) == peers.len() - 1);
    peers[1..].iter().for_each(send_many);
    for _ in 0..20 {
        assert_eq!(steady.ask("+5"), "granted");
        assert_eq!(Client::connect(&node.socket("b")).ask("+5"), "granted");
    }
    let more = open_in(&node).saturating_sub(before);
    assert!(more < 2600, "{more} descriptors are held for one zone");
    drop(far);
    assert_eq!(Client::connect(&node.socket("a")).ask("+5"), "granted");
}

/// What was let go of, and cannot be closed yet, must not keep the loop busy.
pub fn what_waits_to_be_closed_wakes_nobody() {
    let node = Node::start();
    assert_eq!(Client::connect(&node.socket("b")).ask("+5"), "granted", "it has started all that it starts");
    let (near, far) = lingering();
    let pid = Pid::from_raw(node.broker.id() as i32).unwrap();
    rustix::process::kill_process(pid, Signal::STOP).unwrap();
    let clients: Vec<OwnedFd> = (0..40).map(|_| bootstrap::connect(&node.socket("a")).unwrap()).collect();
    packet::send(&clients[0], b"?", &[near.as_fd()]).unwrap();
    clients[1..].iter().for_each(|client| packet::send(client, b"?", &[]).unwrap());
    drop(near);
    let before = open_in(&node);
    rustix::process::kill_process(pid, Signal::CONT).unwrap();
    // Some more or less: a spare worker that starts comes with descriptors that go again, and the one that lingers is in no
    // list any more.
    until("they wait to be closed", || open_in(&node) >= before + 25);
    until("they are forgotten all the same", || watched_by(&node, CLIENTS) == 0);
    assert!(open_in(&node) >= before + 25, "they are not closed yet");
    drop((far, clients));
}

/// Each time costs the broker something.
pub fn a_worker_joins_only_so_often() {
    let node = Node::start();
    let (client, other) = (Client::connect(&node.socket("a")), Client::connect(&node.socket("b")));
    let before = open_in(&node);
    let mut joined = 0;
    let answers = |text: &str| -> bool {
        let sent = packet::send(&client.socket, text.as_bytes(), &[]);
        sent.is_ok() && packet::receive(&client.socket, &mut [0; 64]).is_ok_and(|received| received.len > 0)
    };
    // It charges something only when it has a broker.
    while answers("j") && answers("+1") {
        joined += 1;
        assert!(joined < 50, "it joins for ever");
    }
    assert!(joined > 0, "one that has lost a message may come back");
    until("it is gone", || node.zone("a").clients == 0);
    until("nothing of it is left", || open_in(&node) <= before);
    assert_eq!(other.ask("+5"), "granted");
}

/// A worker may give away what it watches its client by. The broker's loop would hear of the client's end for ever.
pub fn a_client_that_somebody_holds_is_forgotten() {
    let node = Node::start();
    let client = Client::connect(&node.socket("a"));
    packet::send(&client.socket, b"d", &[]).unwrap();
    let held = packet::receive(&client.socket, &mut [0; 64]).unwrap().fds;
    assert_eq!(held.len(), 1);
    assert_eq!(watched_by(&node, CLIENTS_OF_WORKERS), 1);
    kill(node.zone("a").workers[0].pid);
    until("the worker is gone", || node.zone("a").clients == 0);
    assert_eq!(watched_by(&node, CLIENTS_OF_WORKERS), 0);
    drop(held);
}

pub fn clients_that_leave_again_leave_no_workers() {
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
pub fn a_zone_made_again_owes_nothing() {
    let node = Node::start();
    let name: control::ZoneName = "again".parse().unwrap();
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
        until("the worker before it is gone", || !is_alive(gone));
        assert_eq!(client.ask("?"), format!("({}, Some({}))", 50 * MIB, 100 * MIB));
        assert_eq!(node.zone("again").used, 50 * MIB, "round {round}");
        assert!(matches!(node.admin().ask(&remove), Ok(Answer::Removed)));
    }
}

pub fn a_worker_that_breaks_the_protocol_is_ended() {
    let node = Node::start();
    let (bad, good) = (Client::connect(&node.socket("a")), Client::connect(&node.socket("a")));
    assert_eq!(bad.ask("+5"), "granted");
    packet::send(&bad.socket, b"x", &[]).unwrap();
    bad.wait_for_hangup();
    until("its charge is back", || node.zone("a").used == 0);
    assert_eq!(good.ask("+5"), "granted");
}

pub fn a_fallen_worker_hurts_nobody() {
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

pub fn a_stranger_cannot_join_as_worker() {
    let node = Node::start();
    let client = Client::connect(&node.socket("a"));
    for bytes in [vec![0; 0], vec![1; 10], vec![2, 0, 0, 0], vec![0xff; 88], vec![0; 4096]] {
        let socket = packet::connect(&node.rejoin()).unwrap();
        packet::send(&socket, &bytes, &[]).unwrap();
        assert_eq!(packet::receive(&socket, &mut [0; 512]).map(|received| received.len).unwrap_or(0), 0);
    }
    assert_eq!(client.ask("+5"), "granted");
}

pub fn a_worker_that_says_it_is_suspended_moves_nobody() {
    // Memory is moved on this node, and nobody is idle for long enough.
    let node = Node::suspending("3600");
    let (client, other) = (Client::connect(&node.socket("a")), Client::connect(&node.socket("b")));
    for _ in 0..20 {
        assert_eq!(client.ask("r"), "suspended");
    }
    assert_eq!((client.ask("+5"), other.ask("+5")), ("granted".into(), "granted".into()));
    assert!(!beside(&node.state_dir, "moves").exists(), "nobody asked it to");
}

pub fn whose_memory_is_moved_is_known_by_more_than_a_number() {
    let node = Node::suspending("1");
    let client = Client::connect(&node.socket("a"));
    let worker = client.ask("i");
    let moves = beside(&node.state_dir, "moves");
    // No worker here measures GPU time, so the broker looks only when somebody asks it something.
    until("it is idle", || node.zone("a").clients == 1 && moves.exists());
    until("it is written", || std::fs::read_to_string(&moves).is_ok_and(|text| text.ends_with('\n')));
    assert_eq!(std::fs::read_to_string(&moves).unwrap(), format!("out {worker}\n"));
    assert_eq!(client.ask("+5"), "granted", "it goes on where it was");
    assert_eq!(node.zone("a").suspensions, 0);
}

pub fn silent_strangers_keep_nobody_from_joining() {
    let mut node = Node::start();
    let client = Client::connect(&node.socket("a"));
    let worker = Pid::from_raw(node.zone("a").workers[0].pid as i32).unwrap();
    // It looks for the new broker only when others are there already.
    rustix::process::kill_process(worker, Signal::STOP).unwrap();
    node.kill_broker();
    node.restart();
    let path = node.rejoin();
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

/// Clients of guests come through a door that only the Xen backend can open, whatever mounts its unit gives it: under the
/// shipped units it has a mount namespace of its own, as a container has.
pub fn guests_come_through_their_own_door_only() {
    if !testkit::is_root() {
        return;
    }
    let node = Node::start();
    let says = |path: PathBuf| {
        // A thread may have a mount namespace of its own once it shares nothing else that goes with it.
        std::thread::spawn(move || {
            let apart = rustix::thread::UnshareFlags::FS | rustix::thread::UnshareFlags::NEWNS;
            // SAFETY: of this thread alone, which ends here.
            unsafe { rustix::thread::unshare_unsafe(apart) }.unwrap();
            let broker = bootstrap::connect(&path).unwrap();
            let hello = Hello::new(cuda_abi::wire::fingerprint(), bootstrap::HELLO_BRINGS_REGION);
            bootstrap::send(&broker, &hello, &[]).unwrap();
            bootstrap::recv::<Welcome>(&broker).unwrap().0.status()
        })
        .join()
        .unwrap()
    };
    assert_eq!(says(node.state_dir.join("guests/a")), Some(WelcomeStatus::Ok));
    assert_ne!(says(node.socket("a")), Some(WelcomeStatus::Ok), "no container brings pages of its own choice");
    let path = node.state_dir.join("guests/a");
    let by_nobody = testkit::as_user(NOBODY, NOBODY, || bootstrap::connect(&path).map(drop));
    assert!(by_nobody.is_err(), "nor does a local user");
}

/// Many strangers, each with one descriptor that takes an hour to close, and behind it as many as a message can have.
pub fn strangers_among_workers_take_no_descriptors() {
    if !testkit::is_root() {
        return;
    }
    let node = Node::start();
    let steady = Client::connect(&node.socket("b"));
    assert_eq!(steady.ask("+5"), "granted");
    let path = node.rejoin();
    let by_path = testkit::as_user(NOBODY, NOBODY, || packet::connect(&path).map(drop));
    assert_eq!(by_path.unwrap_err().kind(), io::ErrorKind::PermissionDenied);
    let pid = Pid::from_raw(node.broker.id() as i32);
    let few = rustix::process::Rlimit { current: Some(4096), maximum: Some(4096) };
    rustix::process::prlimit(pid, rustix::process::Resource::Nofile, few).unwrap();
    until("a spare waits again", || node.status().spare_workers == 1);
    let before = open_in(&node);
    // They come all the same, as they would to a socket that everybody can find.
    let directory = std::fs::File::open(path.parent().unwrap()).unwrap();
    let path = PathBuf::from(format!("/proc/self/fd/{}/sock", std::os::fd::AsRawFd::as_raw_fd(&directory)));
    rustix::process::kill_process(pid.unwrap(), Signal::STOP).unwrap();
    let mut far_ends = Vec::new();
    for _ in 0..100 {
        let stranger = testkit::as_user(NOBODY, NOBODY, || packet::connect(&path)).unwrap();
        let (near, far) = lingering();
        send_many_behind(&stranger, &near);
        far_ends.push(far);
    }
    rustix::process::kill_process(pid.unwrap(), Signal::CONT).unwrap();
    for _ in 0..20 {
        assert_eq!(steady.ask("+5"), "granted");
        assert_eq!(Client::connect(&node.socket("a")).ask("+5"), "granted");
        let more = open_in(&node).saturating_sub(before);
        assert!(more < 200, "{more} descriptors are held for strangers");
    }
    // When all is closed, nobody is kept out.
    drop(far_ends);
    until("all of it is closed", || open_in(&node) <= before);
    until("others are heard again", || {
        let socket = packet::connect(&node.rejoin()).unwrap();
        packet::send(&socket, b"?", &[]).unwrap();
        packet::receive(&socket, &mut [0; 64]).is_ok_and(|received| received.len == 0)
    });
}

pub fn workers_share_neither_stderr_nor_session_with_the_broker() {
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
