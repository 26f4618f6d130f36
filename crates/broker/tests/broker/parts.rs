//! The parts that are played: broker, worker, meter, client.

use super::*;

/// What a test has put beside the state directory.
fn number(state_dir: &Path, kind: &str) -> Option<usize> {
    std::fs::read_to_string(beside(state_dir, kind)).ok()?.parse().ok()
}

pub fn as_broker(state_dir: &Path) {
    let zone = |name: &str| {
        let limits = ZoneLimits { memory: Some(100 * MIB), share: 50, ..ZoneLimits::default() };
        (name.parse().unwrap(), ZoneSettings::from(limits))
    };
    let config = Config {
        state_dir: state_dir.to_owned(),
        private: false,
        backend: Backend::Soft {
            devices: number(state_dir, "gpus").unwrap_or(1) as u32,
            memory: 1 << 30,
            instances: 0,
            only: Vec::new(),
        },
        zones: vec![zone("a"), zone("b")],
        grants: Vec::new(),
        spare_workers: 1,
        jail: Demand::Off,
        driver_filter: control::driver_filter::DriverFilter::Off,
        worker_uids: 0x3000_0000,
        context_memory: number(state_dir, "context").unwrap_or(0) as u64,
        host_defaults: HostDefaults::default(),
        max_workers: number(state_dir, "slots").unwrap_or(SLOTS),
        meter: Some(Meter { allowance: 50 * MIB }),
        max_clients_per_zone: 8,
        watchdog: None,
        suspend: Suspend {
            after: std::fs::read_to_string(beside(state_dir, "suspend"))
                .ok()
                .map(|seconds| Duration::from_secs(seconds.parse().unwrap())),
            // Workers here have no memory to move.
            with_context: true,
            ..Suspend::default()
        },
    };
    let helper =
        |name: &str, file| Helper { arguments: vec![name.into(), beside(state_dir, file).into()], libraries: None };
    let settings = Settings {
        state_dir: state_dir.to_owned(),
        backend: config.backend.clone(),
        jail: config.jail,
        worker_uids: config.worker_uids,
        program: "/proc/self/exe".into(),
        worker_arguments: vec!["as-worker".into()],
        meter: Some(helper("as-meter", "meter")),
        mover: Some(helper("as-mover", "moves")),
        preemptor: None,
        preemption_test: None,
        json_logs: false,
        host_memory: None,
        host_processes: None,
    };
    let mut broker = match Broker::start(config, Arc::new(Local::open(settings))) {
        Ok(broker) => broker,
        Err(error) => {
            eprintln!("{error}");
            std::process::exit(75);
        }
    };
    let (reload, asked) = std::os::unix::net::UnixStream::pair().unwrap();
    signal_hook::low_level::pipe::register(signal_hook::consts::SIGHUP, asked).unwrap();
    let file = beside(state_dir, "toml");
    let read = move || match config::load(&file) {
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
/// writes to stderr, `r` says that it is suspended, `i` tells who it is, `s` tells its session and where stderr leads, `j` hangs up and
/// joins the broker again, `d` gives its client what it watches the client by.
pub fn as_worker(arguments: &[String]) {
    let control = io::stdin().as_fd().try_clone_to_owned().unwrap();
    let raw = control.try_clone().unwrap();
    let mut rejoin =
        arguments.iter().position(|argument| argument == "--rejoin").map(|at| PathBuf::from(&arguments[at + 1]));
    let state_dir = rejoin.as_deref().and_then(|path| path.ancestors().nth(3)).map(Path::to_owned);
    if let Some(state_dir) = state_dir.filter(|state_dir| beside(state_dir, "previous").exists()) {
        rejoin = Some(state_dir.join("rejoin/workers.sock"));
    }
    let link = BrokerLink::with_rejoin(control, rejoin, false);
    let suspended = link.clone();
    link.on_order(move |order| match order {
        Order::Suspend { timeout, .. } if suspended.suspension().suspend(timeout) => {
            suspended.tell_suspended(None, false);
        }
        Order::Rejoined => suspended.tell_suspended(None, false),
        Order::Resume => suspended.suspension().resume(),
        _ => suspended.tell_busy(),
    });
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
        // A GPU's index may stand before the number.
        let (gpu, number) = text[1..].split_once(':').unwrap_or(("0", &text[1..]));
        let (gpu, number): (u32, u64) = (gpu.parse().unwrap(), number.parse().unwrap_or(0));
        let answer = match text.as_bytes()[0] {
            b'+' => link.charge(gpu, number).map_or_else(|denied| format!("{denied:?}"), |()| "granted".to_owned()),
            b'-' => {
                link.release(gpu, number);
                "released".to_owned()
            }
            b'?' => format!("{:?}", link.zone_usage(gpu)),
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
                let suspended = ToBroker::new(control::messages::to_broker::SUSPENDED);
                packet::send(&raw, zerocopy::IntoBytes::as_bytes(&suspended), &[]).unwrap();
                "suspended".to_owned()
            }
            b'i' => identity(),
            b'j' => {
                hang_up_on_broker(&assignment.client);
                "hung up".to_owned()
            }
            b'd' => {
                let watched = assignment.client_pidfd.as_ref().unwrap();
                packet::send(&assignment.client, b"yours", &[watched.as_fd()]).unwrap();
                continue;
            }
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

/// Ends all connections of this process but that to its client: the one to the broker is among them, whatever its number.
fn hang_up_on_broker(client: &OwnedFd) {
    use std::os::fd::{AsRawFd, BorrowedFd};
    for entry in std::fs::read_dir("/proc/self/fd").unwrap() {
        let path = entry.unwrap().path();
        let is_socket = std::fs::read_link(&path).is_ok_and(|target| target.to_string_lossy().starts_with("socket:"));
        let number: i32 = path.file_name().unwrap().to_str().unwrap().parse().unwrap();
        if is_socket && number != client.as_raw_fd() {
            // SAFETY: the link's thread keeps it open, and is its only other user.
            let socket = unsafe { BorrowedFd::borrow_raw(number) };
            let _ = rustix::net::shutdown(socket, rustix::net::Shutdown::Both);
        }
    }
}

/// Of this process: number, start time and user, as the kernel tells them.
pub fn identity() -> String {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let start = stat.rsplit_once(')').unwrap().1.split_whitespace().nth(19).unwrap().to_owned();
    format!("{} {start} {}", std::process::id(), rustix::process::getuid().as_raw())
}

/// Writes down what it was to move, and fails.
pub fn as_mover(file: &Path, arguments: &[String]) {
    let mut moves = std::fs::File::options().append(true).create(true).open(file).unwrap();
    io::Write::write_all(&mut moves, format!("{}\n", arguments.join(" ")).as_bytes()).unwrap();
    std::process::exit(70);
}

/// What a worker may do that its client has taken over: messages of every kind with whatever in them, descriptors that are
/// nothing, answers never read.
pub fn fall(control: &OwnedFd, seed: u64) {
    let mut random = testkit::Random::new(seed);
    let mut roll = move || random.word();
    let null = std::fs::File::open("/dev/null").unwrap();
    let memory = rustix::fs::memfd_create("fallen", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    // Some break the protocol with their first messages, some only lie.
    let gentle = seed.is_multiple_of(2);
    const EXPORT: u32 = control::messages::to_broker::EXPORT;
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
        // Only what is offered may come with one.
        let most = if gentle && kind != EXPORT { 1 } else { 3 };
        let fds = &fds[..roll() as usize % most];
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

/// Reads what processes use from a file, lines of number, bytes and perhaps a GPU, for as long as somebody listens.
pub fn as_meter(file: &Path) {
    let socket = io::stdin().as_fd().try_clone_to_owned().unwrap();
    let reading = |line: &str| {
        let mut words = line.split(' ');
        let (pid, bytes) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        let gpu = words.next().map_or(Some(0), |gpu| gpu.parse().ok())?;
        Some(Reading { pid, gpu, bytes })
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
pub fn as_client(socket: &Path) {
    let client = Client::connect(socket);
    println!("{}", client.ask(&format!("+{}", 40 * MIB)));
    loop {
        std::thread::park();
    }
}
