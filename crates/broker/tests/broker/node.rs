//! What the tests use: a broker that runs, and clients of it.

use super::*;

/// A file beside the broker's state directory.
pub fn beside(state_dir: &Path, kind: &str) -> PathBuf {
    state_dir.with_extension(kind)
}

pub struct Node {
    pub state_dir: PathBuf,
    pub broker: Child,
    /// Where the state directory is, and what lies beside it.
    _directory: Directory,
}

impl Node {
    pub fn start() -> Self {
        Self::start_with(|_| {})
    }

    /// Starts a broker when its state directory is prepared.
    pub fn start_with(prepare: impl FnOnce(&Path)) -> Self {
        let directory = testkit::directory();
        let state_dir = directory.join("s");
        prepare(&state_dir);
        Self { broker: start_broker(&state_dir), state_dir, _directory: directory }
    }

    /// One that moves memory of those who are idle for so many seconds.
    pub fn suspending(seconds: &str) -> Self {
        Self::start_with(|state_dir| std::fs::write(beside(state_dir, "suspend"), seconds).unwrap())
    }

    pub fn socket(&self, zone: &str) -> PathBuf {
        self.state_dir.join("zones").join(zone).join("sock")
    }

    /// Where workers find a new broker.
    pub fn rejoin(&self) -> PathBuf {
        self.state_dir.join("workers/rejoin/sock")
    }

    /// One whose workers look for a new broker where the previous version listened.
    pub fn of_previous_version() -> Self {
        Self::start_with(|state_dir| {
            std::fs::create_dir_all(state_dir.join("rejoin")).unwrap();
            std::fs::write(beside(state_dir, "previous"), "").unwrap();
        })
    }

    pub fn admin(&self) -> AdminClient {
        AdminClient::connect(&self.state_dir.join("admin.sock")).unwrap()
    }

    pub fn status(&self) -> Status {
        match self.admin().ask(&Request::Status).unwrap() {
            Answer::Status(status) => status,
            other => panic!("{other:?}"),
        }
    }

    pub fn zone(&self, name: &str) -> ZoneStatus {
        self.status().zones.into_iter().find(|zone| zone.name.as_str() == name).unwrap()
    }

    pub fn kill_broker(&mut self) {
        self.broker.kill().unwrap();
        self.broker.wait().unwrap();
    }

    pub fn restart(&mut self) {
        self.broker = start_broker(&self.state_dir);
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.broker.kill();
        let _ = self.broker.wait();
    }
}

pub fn start_broker(state_dir: &Path) -> Child {
    let mut child =
        Command::new("/proc/self/exe").arg("as-broker").arg(state_dir).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    io::BufRead::read_line(&mut io::BufReader::new(child.stdout.take().unwrap()), &mut line).unwrap();
    assert_eq!(line, "ready\n");
    child
}

pub struct Client {
    pub socket: OwnedFd,
}

impl Client {
    pub fn connect(path: &Path) -> Self {
        Self::try_connect(path).unwrap_or_else(|(status, text)| panic!("{status:?}: {text}"))
    }

    /// A client, or what it was refused with.
    pub fn try_connect(path: &Path) -> Result<Self, (Option<WelcomeStatus>, String)> {
        let broker = bootstrap::connect(path).unwrap();
        bootstrap::send(&broker, &Hello::new(cuda_abi::wire::fingerprint(), 0), &[]).unwrap();
        let (welcome, mut fds) = bootstrap::recv::<Welcome>(&broker).unwrap();
        if welcome.status() != Some(WelcomeStatus::Ok) {
            return Err((welcome.status(), welcome.text().to_owned()));
        }
        let socket = fds.remove(0);
        // The worker of these tests has no use for what it shares with us.
        bootstrap::recv::<Attach>(&socket).unwrap();
        Ok(Self { socket })
    }

    pub fn ask(&self, text: &str) -> String {
        packet::send(&self.socket, text.as_bytes(), &[]).unwrap();
        let mut buffer = [0; 64];
        let received = packet::receive(&self.socket, &mut buffer).unwrap();
        String::from_utf8(buffer[..received.len].to_vec()).unwrap()
    }

    pub fn wait_for_hangup(&self) {
        assert_eq!(packet::receive(&self.socket, &mut [0; 64]).map(|received| received.len).unwrap_or(0), 0);
    }
}

pub fn kill(pid: u32) {
    testkit::signal(pid, Signal::KILL);
}
