//! A node as its operator meets it: the configuration, zones while they are used, metrics and logs. The programs here
//! only connect; what they would compute is tested elsewhere.

mod common;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use common::{connect, hung_up};
use serde_json::{Value, json};
use testkit::{NOBODY, until};

const PROGRAM: &str = env!("CARGO_BIN_EXE_bulkhead");

fn bulkhead(arguments: &[&str]) -> Command {
    testkit::bulkhead(PROGRAM, arguments)
}

/// A proxy on the software GPU, and what an operator asks of it.
struct Node(testkit::Node);

impl Deref for Node {
    type Target = testkit::Node;

    fn deref(&self) -> &testkit::Node {
        &self.0
    }
}

impl Node {
    fn start(config: &str) -> Self {
        Self(testkit::Node::start(PROGRAM, &[], config))
    }

    fn logged(&self, event: &str) -> Value {
        self.proxy().logged(event)
    }

    fn admin_socket(&self) -> String {
        self.state().join("admin.sock").to_str().unwrap().to_owned()
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.admin(arguments)
    }

    fn zone(&self, name: &str) -> Value {
        self.0.zone(name).unwrap_or(Value::Null)
    }

    fn configure(&self, text: &str) {
        self.write_config(text);
        self.reload();
    }

    fn http(&self) -> SocketAddr {
        self.logged("listening for metrics and status page")["address"].as_str().unwrap().parse().unwrap()
    }

    fn get(&self, path: &str) -> (u16, String) {
        ask(self.http(), &format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n"))
    }

    /// The value of one sample of the metrics.
    fn metric(&self, name: &str) -> Option<f64> {
        let (status, text) = self.get("/metrics");
        assert_eq!(status, 200);
        text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
    }
}

fn ask(address: SocketAddr, request: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    // A server that has seen enough may close before it has read all.
    let _ = stream.write_all(request.as_bytes());
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (header, body) = answer.split_once("\r\n\r\n").unwrap();
    (header.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

fn refused(output: &Output, status: i32, words: &[&str]) {
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(status), "{text}");
    assert!(text.lines().all(|line| line.starts_with("bulkhead: ")), "{text}");
    for word in words {
        assert!(text.contains(word), "{word:?} is not in {text}");
    }
}

#[test]
fn an_exporter_without_an_address_is_no_failure_to_systemd() {
    let directory = testkit::directory();
    let config = directory.join("b.toml");
    std::fs::write(&config, "[proxy]\nbackend = \"soft\"\n").unwrap();
    let socket = directory.join("notify");
    let systemd = std::os::unix::net::UnixDatagram::bind(&socket).unwrap();
    let mut command = bulkhead(&["exporter", "--config", config.to_str().unwrap()]);
    assert!(command.env("NOTIFY_SOCKET", &socket).status().unwrap().success());
    let mut told = [0; 64];
    systemd.set_nonblocking(true).unwrap();
    let len = systemd.recv(&mut told).unwrap();
    assert!(told[..len].starts_with(b"READY=1"));
}

#[cfg(feature = "xen")]
#[test]
fn an_image_that_is_made_is_told_as_json() {
    let directory = testkit::directory();
    let root = directory.join("root.tar");
    let mut archive = tar::Builder::new(std::fs::File::create(&root).unwrap());
    let mut header = tar::Header::new_gnu();
    header.set_size(5);
    header.set_mode(0o644);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    archive.append_data(&mut header, "etc/word", &b"hello"[..]).unwrap();
    archive.finish().unwrap();
    drop(archive);
    let made = directory.join("tenant.cpio.gz");
    let words = ["image", "root", root.to_str().unwrap(), "--output", made.to_str().unwrap()];
    let told = bulkhead(&[&words[..], &["--json"]].concat()).output().unwrap();
    assert!(told.status.success(), "{told:?}");
    let told: Value = serde_json::from_slice(&told.stdout).unwrap();
    let bytes = made.metadata().unwrap().len();
    assert_eq!(told, json!({ "files": [{ "path": made, "bytes": bytes }] }));
    let line = bulkhead(&words).output().unwrap();
    assert!(String::from_utf8_lossy(&line.stdout).starts_with(&format!("{}: ", made.display())), "{line:?}");
    // A disk without room, which every system has one of.
    let full = bulkhead(&["image", "root", root.to_str().unwrap(), "--output", "/dev/full"]).output().unwrap();
    refused(&full, 73, &["/dev/full"]);
}

/// The files of a support bundle, by their names.
fn unpacked(bundle: &Path) -> std::collections::BTreeMap<String, String> {
    let file = std::fs::File::open(bundle).unwrap();
    let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(file));
    let read = |entry: std::io::Result<tar::Entry<'_, _>>| {
        let mut entry = entry.unwrap();
        let name = entry.path().unwrap().strip_prefix("bulkhead-support").unwrap().display().to_string();
        let mut bytes = Vec::new();
        entry.read_to_end(&mut bytes).unwrap();
        (name, String::from_utf8_lossy(&bytes).into_owned())
    };
    archive.entries().unwrap().map(read).collect()
}

/// Of a proxy that serves: what it was told, what it knows and what it counts.
#[test]
fn a_support_bundle_tells_of_the_proxy_that_runs() {
    let node = Node::start("# api notes\n[zones.team-a]\nmemory = \"64MiB\"\n");
    let bundle = node.directory.join("bundle.tar.gz");
    let words = ["doctor", "--no-self-test", "--bundle", bundle.to_str().unwrap(), "--socket", &node.admin_socket()];
    let output = bulkhead(&words).output().unwrap();
    assert!(String::from_utf8_lossy(&output.stderr).contains("wrote"), "{output:?}");
    let found = unpacked(&bundle);
    let config = &found["config.toml"];
    assert!(config.starts_with(&format!("# {}\n", node.config().display())), "{config}");
    assert!(config.contains("memory = \"64MiB\""), "{config}");
    let status: Value = serde_json::from_str(&found["status.json"]).unwrap();
    assert_eq!((&status["backend"], &status["zones"][0]["name"]), (&json!("soft"), &json!("team-a")));
    assert!(found["metrics.txt"].contains("zone=\"team-a\""), "{}", found["metrics.txt"]);
    assert!(found["zones.json"].contains("team-a"), "{}", found["zones.json"]);
    assert!(found["state-dir.txt"].contains("admin.sock"));
    // Without systemd there is no journal: then the bundle says why.
    assert!(!found["logs.txt"].is_empty());
}

#[test]
fn a_configuration_is_checked_line_by_line() {
    let directory = testkit::directory();
    let path = directory.join("check.toml").to_str().unwrap().to_owned();
    let check = |text: &str, more: &[&str]| {
        std::fs::write(&path, text).unwrap();
        bulkhead(&[&["proxy", "--check", "--config", &path], more].concat()).output().unwrap()
    };
    let output = check("[proxy]\nbackend = \"soft\"\n[zones.a]\nmemory = \"2GiB\"\n", &[]);
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(text, format!("{path}: valid; backend soft, 1 zone\n"));
    let output = check("[proxy]\nspare = 1\n\n[zones.a]\n  memry = \"2GiB\"\nshare = \"much\"\n", &[]);
    let places = [format!("{path}:2:1: "), format!("{path}:5:3: "), format!("{path}:6:9: ")];
    refused(&output, 78, &places.each_ref().map(String::as_str));
    refused(&output, 78, &["did you mean \"memory\"?"]);
    assert_eq!(String::from_utf8_lossy(&output.stderr).lines().count(), 3);
    let json = |text: &str| {
        let output = check(text, &["--json"]);
        (output.status.code(), serde_json::from_slice::<Value>(&output.stdout).unwrap())
    };
    let valid = json!({ "file": path, "valid": true, "backend": "soft", "zones": ["a"] });
    assert_eq!(json("[proxy]\nbackend = \"soft\"\n[zones.a]\n"), (Some(0), valid));
    let (status, wrong) = json("[proxy]\nspare = 1\n");
    assert_eq!((status, &wrong["valid"]), (Some(78), &json!(false)));
    assert_eq!((&wrong["problems"][0]["line"], &wrong["problems"][0]["column"]), (&json!(2), &json!(1)));
    refused(&bulkhead(&["proxy", "--json"]).output().unwrap(), 2, &["--check"]);
    refused(&check("[[[", &[]), 78, &[":1:"]);
    refused(&bulkhead(&["proxy", "--check", "--config", "/nowhere.toml"]).output().unwrap(), 78, &["/nowhere.toml"]);
    if !Path::new("/dev/nvidiactl").exists() {
        // The file is right, and this machine has no such GPU; the command line goes before the file.
        refused(&check("[proxy]\nbackend = \"nvidia\"\n", &[]), 67, &["/dev/nvidiactl"]);
        assert!(check("[proxy]\nbackend = \"nvidia\"\n", &["--backend", "soft"]).status.success());
    }
}

#[test]
fn a_reload_changes_zones_and_a_wrong_file_nothing() {
    let node = Node::start("[defaults]\nshare = 7\n[zones.a]\nmemory = \"1GiB\"\n");
    assert_eq!(node.zone("a")["limits"]["share"], 7);
    let client = connect(&node.socket("a")).unwrap();
    node.configure("[zones.a]\nmemory = \"2GiB\"\npod = \"p\"\n[zones.b]\n");
    node.logged("configuration reloaded");
    assert_eq!(node.zone("a")["limits"]["memory"], 2_u64 << 30);
    assert_eq!(node.zone("a")["labels"]["pod"], "p");
    assert_eq!(node.zone("b")["limits"]["share"], 100);
    node.configure("[zones.a]\nmemory = \"x\"\n");
    assert!(node.logged("configuration")["problem"].as_str().unwrap().contains("b.toml:2:10: "));
    node.logged("invalid configuration; keeping the previous one");
    assert_eq!(node.zone("a")["limits"]["memory"], 2_u64 << 30);
    assert!(!node.zone("b").is_null());
    assert!(!hung_up(&client), "its program goes on");
    node.configure("[proxy]\nsoft_devices = 2\n");
    node.logged("some configuration changes need a restart to take effect");
    node.logged("zone is no longer configured, but has clients; keeping it");
    assert!(node.zone("b").is_null() && !node.zone("a").is_null());
}

/// Whether a user gets in at a path.
fn enters(uid: u32, gid: u32, socket: &Path) -> Result<(), std::io::ErrorKind> {
    testkit::as_user(uid, gid, || {
        control::packet::connect(socket).map_err(|error| error.kind())?;
        assert!(connect(socket).is_some(), "{} answers", socket.display());
        Ok(())
    })
}

#[test]
fn local_users_enter_their_own_zones_only() {
    const DENIED: Result<(), std::io::ErrorKind> = Err(std::io::ErrorKind::PermissionDenied);
    const GONE: Result<(), std::io::ErrorKind> = Err(std::io::ErrorKind::NotFound);
    const GROUP: u32 = 4242;
    if !testkit::is_root() {
        return;
    }
    let config = format!("[zones.a]\n[zones.own]\nuid = {NOBODY}\n[zones.team]\ngid = {GROUP}\nmode = \"0660\"\n");
    let mut node = Node::start(&config);
    let of_user = |zone: &str, node: &Node| node.state().join("users").join(zone).join("sock");
    for round in 0..2 {
        for zone in ["a", "own", "team"] {
            assert_eq!(enters(NOBODY, NOBODY, &node.socket(zone)), DENIED, "{zone}");
            // What is mounted into a container is the directory: nobody has to come to it by its path.
            let directory = std::fs::File::open(node.socket(zone).parent().unwrap()).unwrap();
            let inside = format!("/proc/self/fd/{}/sock", std::os::fd::AsRawFd::as_raw_fd(&directory));
            let expected = if zone == "team" { DENIED } else { Ok(()) };
            assert_eq!(enters(1234, 1234, Path::new(&inside)), expected, "{zone}, round {round}");
        }
        let [own, team] = ["own", "team"].map(|zone| of_user(zone, &node));
        assert_eq!(enters(NOBODY, NOBODY, &own), Ok(()), "round {round}");
        assert_eq!(enters(NOBODY, NOBODY, &team), DENIED);
        assert_eq!(enters(1234, GROUP, &team), Ok(()), "round {round}");
        assert_eq!((enters(1234, GROUP, &own), enters(1234, 1234, &team)), (DENIED, DENIED));
        assert_eq!(enters(NOBODY, GROUP, &of_user("a", &node)), GONE, "it has no local users");
        let version = testkit::as_user(NOBODY, NOBODY, || std::fs::read(own.with_file_name("driver-version")));
        assert_eq!(version.unwrap(), std::fs::read(node.socket("own").with_file_name("driver-version")).unwrap());
        assert_eq!(node.zone("own")["socket"], own.to_str().unwrap());
        assert_eq!(node.zone("a")["socket"], node.socket("a").to_str().unwrap());
        if round == 0 {
            node.0.proxy = None;
            node.0.start_proxy();
        }
    }
    // Who may come is what the configuration says now, whatever those who might come before have kept.
    let (own, kept) = (of_user("own", &node), node.directory.join("kept"));
    std::fs::create_dir(&kept).unwrap();
    std::os::unix::fs::chown(&kept, Some(NOBODY), Some(NOBODY)).unwrap();
    let kept = kept.join("sock");
    testkit::as_user(NOBODY, NOBODY, || std::fs::hard_link(&own, &kept)).unwrap();
    node.configure(&format!("[zones.a]\nuid = {NOBODY}\n[zones.own]\nuid = 1234\n[zones.team]\n"));
    node.logged("configuration reloaded");
    assert_eq!(enters(NOBODY, NOBODY, &of_user("a", &node)), Ok(()));
    assert_eq!((enters(NOBODY, NOBODY, &own), enters(1234, 1, &own)), (DENIED, Ok(())));
    assert_eq!(enters(NOBODY, NOBODY, &kept), Err(std::io::ErrorKind::ConnectionRefused));
    assert_eq!(enters(1234, GROUP, &of_user("team", &node)), GONE);
    let made = node.json(&["zones", "create", "made", "--uid", "1234"]);
    assert_eq!(made["socket"], of_user("made", &node).to_str().unwrap());
    assert_eq!(enters(1234, 1, &of_user("made", &node)), Ok(()));
    assert!(node.run(&["zones", "remove", "made", "--force"]).status.success());
    assert!(!of_user("made", &node).parent().unwrap().exists());
}

#[test]
fn grants_are_given_by_hand_and_by_the_file() {
    let node = Node::start("[zones.a]\nreadable_by = [\"b\"]\n[zones.b]\n[zones.c]\n");
    let pairs = || -> Vec<String> {
        let grants = node.json(&["grants", "list"]);
        let pair = |grant: &Value| {
            let field = |name: &str| grant[name].as_str().unwrap().to_owned();
            format!("{} {} {}", field("from"), field("to"), field("access"))
        };
        grants.as_array().unwrap().iter().map(pair).collect()
    };
    assert_eq!(pairs(), ["a b read-only"]);
    node.json(&["grants", "allow", "c", "a", "--read-write", "--expires", "1000"]);
    assert_eq!(pairs(), ["a b read-only", "c a read-write"]);
    let text = String::from_utf8(node.run(&["grants", "list"]).stdout).unwrap();
    assert!(text.lines().any(|line| line.starts_with("c ") && line.contains("read-write")), "{text}");
    refused(&node.run(&["grants", "allow", "a", "a"]), 65, &["itself"]);
    refused(&node.run(&["grants", "allow", "a", "x"]), 66, &["zone \"x\" does not exist", "a, b, c"]);
    refused(&node.run(&["grants", "revoke", "x", "a"]), 66, &["zone \"x\" does not exist"]);
    refused(&node.run(&["grants", "allow", "a", "../x"]), 2, &["../x"]);
    refused(&node.run(&["grants", "revoke", "b", "a"]), 65, &["b grants a nothing"]);
    // What the file no longer says goes; what was given by hand stays, until its zone goes.
    node.configure("[zones.a]\nwritable_by = [\"c\"]\n[zones.b]\n[zones.c]\n");
    node.logged("configuration reloaded");
    assert_eq!(pairs(), ["c a read-write", "a c read-write"]);
    assert_eq!(node.json(&["grants", "revoke", "c", "a"])["ended"], 0);
    node.json(&["grants", "allow", "b", "a"]);
    assert!(node.run(&["zones", "remove", "b"]).status.success());
    assert_eq!(pairs(), ["a c read-write"]);
}

#[test]
fn zones_are_managed_while_they_are_used() {
    let node = Node::start("");
    let made =
        node.json(&["zones", "create", "t", "--memory", "1GiB", "--cap", "40", "--pod", "p", "--mode", "0600"]);
    assert_eq!(made["limits"]["cap"], 40);
    let socket = PathBuf::from(made["socket"].as_str().unwrap());
    refused(&node.run(&["zones", "create", "t"]), 65, &["t", "already"]);
    refused(&node.run(&["zones", "set", "u", "--share", "3"]), 66, &["zone \"u\" does not exist", "t"]);
    for verb in ["freeze", "thaw", "kill", "remove"] {
        refused(&node.run(&["zones", verb, "u"]), 66, &["zone \"u\" does not exist", "t"]);
    }
    refused(&node.run(&["zones", "set", "t"]), 2, &["nothing to change"]);
    refused(&node.run(&["zones", "set", "t", "--cap", "101"]), 2, &["--cap", "100"]);
    refused(&node.run(&["zones", "create", "../x"]), 2, &["../x"]);
    let set = node.json(&["zones", "set", "t", "--memory", "unlimited", "--share", "3"]);
    assert_eq!(
        (&set["limits"]["memory"], &set["limits"]["share"], &set["limits"]["cap"]),
        (&Value::Null, &3.into(), &40.into())
    );

    let (first, second) = (connect(&socket).unwrap(), connect(&socket).unwrap());
    let text = String::from_utf8(node.run(&["zones", "list"]).stdout).unwrap();
    assert!(text.lines().any(|line| line.starts_with("t ") && line.contains("40%")), "{text}");
    refused(&node.run(&["zones", "remove", "t"]), 65, &["2 clients"]);
    assert_eq!(node.json(&["zones", "kill", "t"])["killed"], 2);
    until("both are told", || hung_up(&first) && hung_up(&second));
    until("the workers are gone", || node.zone("t")["clients"] == 0);
    let third = connect(&socket).expect("the zone is still there");
    assert!(node.run(&["zones", "remove", "t", "--force"]).status.success());
    until("it is told, too", || hung_up(&third));
    assert!(node.zone("t").is_null() && !socket.exists());
    refused(&bulkhead(&["zones", "list", "--socket", "/nowhere"]).output().unwrap(), 69, &["/nowhere"]);
    let killed = node.logged("zone killed");
    assert_eq!((&killed["zone"], &killed["level"], &killed["workers"]), (&"t".into(), &"warn".into(), &2.into()));
}

#[test]
fn names_are_waited_for_with_a_programs_status_and_in_json() {
    let node = Node::start("[zones.a]\n");
    let ipc = |arguments: &[&str]| {
        let mut command = bulkhead(&[&["ipc"], arguments].concat());
        command.env("BULKHEAD_SOCKET", node.socket("a"));
        command
    };
    let mut publisher = ipc(&["publish", "n", "--consumers", "2", "--json"]);
    let publisher = publisher.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let killed = ipc(&["wait", "n", "--", "sh", "-c", "kill -TERM $$"]).output().unwrap();
    assert_eq!(killed.status.code(), Some(128 + 15));
    let failed = ipc(&["wait", "n", "--", "sh", "-c", "exit 7"]).output().unwrap();
    assert_eq!(failed.status.code(), Some(7));
    let output = publisher.wait_with_output().unwrap();
    refused(&output, 80, &["2 consumers died"]);
    let lines = String::from_utf8(output.stdout).unwrap();
    let events: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let died = events.iter().filter(|event| event["event"] == "died" && event["zone"] == "a").count();
    assert_eq!((events.len(), died), (4, 2), "{lines}");
}

#[test]
fn top_shows_zones_and_programs_once() {
    let node = Node::start("[zones.a]\nmemory = \"1GiB\"\n");
    let _client = connect(&node.socket("a")).unwrap();
    let top = node.json(&["top", "--once", "--interval", "0.1"]);
    let zone = &top["zones"][0];
    assert_eq!((&zone["name"], &zone["clients"]), (&"a".into(), &1.into()));
    assert_eq!(zone["workers"][0]["client_pid"], std::process::id());
    assert!(zone["rates"]["calls_per_second"].is_number() && zone["workers"][0]["rates"].is_object());
    assert!(zone["rates"].get("gpu_share").is_none() || zone["stats"].get("gpu_time_ns").is_some());
    // The output is no terminal, so it is printed once.
    let output = node.run(&["top", "--interval", "0.1"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("ZONE / CLIENT") && text.contains(" 1.0G ") && text.contains("\ntotal "), "{text}");
    assert!(text.contains(&std::process::id().to_string()) && !text.contains('\x1b'), "{text}");
    let served = node.logged("client served");
    assert_eq!((&served["zone"], &served["pid"]), (&"a".into(), &std::process::id().into()));
    assert!(served["worker"].is_u64() && served["time"].as_str().unwrap().ends_with('Z'));
}

/// Characters that take room: escape sequences are `ESC [`, digits and an `m`.
fn visible(line: &str) -> usize {
    let parts = line.split("\x1b[").enumerate();
    let text = |(index, part): (usize, &str)| match index {
        0 => part.chars().count(),
        _ => part.split_once('m').map_or(0, |(_, rest)| rest.chars().count()),
    };
    parts.map(text).sum()
}

/// On a terminal it draws again and again, until `q`, and leaves the terminal as it was.
#[test]
fn top_is_live_on_a_terminal() {
    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
    use rustix::termios::{tcgetattr, tcsetwinsize};
    let node = Node::start("[zones.a]\nmemory = \"1GiB\"\n");
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&master).unwrap();
    unlockpt(&master).unwrap();
    let name = ptsname(&master, Vec::new()).unwrap();
    let slave = std::fs::File::options().read(true).write(true).open(name.to_str().unwrap()).unwrap();
    let size = rustix::termios::Winsize { ws_row: 10, ws_col: 50, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(&master, size).unwrap();
    let local_modes = || tcgetattr(&slave).unwrap().local_modes;
    let before = local_modes();
    let mut command = bulkhead(&["top", "--interval", "0.1", "--socket", &node.admin_socket()]);
    let end = || Stdio::from(slave.try_clone().unwrap());
    let mut top = command.stdin(end()).stdout(end()).stderr(end()).spawn().unwrap();
    let mut seen = Vec::new();
    let read_until = |seen: &mut Vec<u8>, enough: &dyn Fn(&str) -> bool| {
        while !enough(&String::from_utf8_lossy(seen)) {
            let mut part = [0; 4096];
            let count = rustix::io::read(&master, &mut part).unwrap();
            seen.extend_from_slice(&part[..count]);
        }
    };
    read_until(&mut seen, &|text| text.matches("\x1b[H").count() >= 3);
    assert_ne!(local_modes(), before, "keys come at once");
    rustix::io::write(&master, b"x?").unwrap();
    read_until(&mut seen, &|text| text.contains("sort by name"));
    rustix::io::write(&master, b"mq").unwrap();
    assert!(top.wait().unwrap().success());
    read_until(&mut seen, &|text| text.ends_with("\x1b[?1049l"));
    assert_eq!(local_modes(), before);
    let text = String::from_utf8_lossy(&seen).into_owned();
    let frame = text.split("\x1b[H").nth(2).unwrap();
    assert!(frame.contains(" 1.0G"), "{frame:?}");
    assert!(text.contains("Keys of bulkhead top"), "the key for help was taken: {text:?}");
    assert!(frame.lines().all(|line| visible(line.split("\x1b[K").next().unwrap()) <= 50), "{frame:?}");
}

#[test]
fn metrics_health_and_the_page_are_served() {
    let config = "[http]\nlisten = \"127.0.0.1:0\"\ndcgm_names = true\n\
                  [zones.a]\nmemory = \"1GiB\"\npod = \"p\"\nnamespace = \"n\"\ncontainer = \"c\"\n";
    let node = Node::start(config);
    let labels = "{zone=\"a\",pod=\"p\",namespace=\"n\",container=\"c\"}";
    assert_eq!(node.get("/healthz"), (200, "ok\n".to_owned()));
    until("it is ready", || node.get("/readyz").0 == 200);
    assert_eq!(node.metric(&format!("bulkhead_zone_workers{labels}")), Some(0.0));
    assert_eq!(node.metric(&format!("bulkhead_zone_memory_limit_bytes{labels}")), Some(1_073_741_824.0));
    let on_gpu = labels.replace('}', ",gpu=\"0\"}");
    assert_eq!(node.metric(&format!("DCGM_FI_DEV_FB_FREE{on_gpu}")), Some(1024.0));
    assert_eq!(node.metric(&format!("bulkhead_zone_gpu_memory_limit_bytes{on_gpu}")), Some(1_073_741_824.0));
    let client = connect(&node.socket("a")).unwrap();
    until("the program is seen", || node.metric(&format!("bulkhead_zone_workers{labels}")) == Some(1.0));
    drop(client);
    until("its end is seen", || node.metric(&format!("bulkhead_zone_workers{labels}")) == Some(0.0));
    assert_eq!(node.metric(&format!("bulkhead_zone_clients_total{labels}")), Some(1.0));

    let status: Value = serde_json::from_str(&node.get("/api/status").1).unwrap();
    assert_eq!((&status["backend"], &status["zones"][0]["name"]), (&"soft".into(), &"a".into()));
    // What the page shows of the time before it was opened.
    let history = || serde_json::from_str::<Value>(&node.get("/api/history").1).unwrap();
    until("a look was kept", || history()["looks"].as_array().is_some_and(|looks| !looks.is_empty()));
    let kept = history();
    assert!(kept["host"].as_str().is_some_and(|host| !host.is_empty()), "{kept}");
    assert!(kept["looks"][0]["age_ms"].is_u64() && kept["looks"][0]["zones"]["a"]["memory"].is_u64(), "{kept}");
    let (code, page) = node.get("/");
    assert!(code == 200 && page.contains("<title>Bulkhead</title>"));
    // It brings everything along.
    assert!(
        !page.contains("http://") || page.matches("http://").count() == page.matches("http://www.w3.org/").count()
    );
    assert!(!page.contains("https://") && !page.contains("src="));

    let address = node.http();
    assert_eq!(node.get("/nothing").0, 404);
    assert_eq!(ask(address, "POST / HTTP/1.1\r\n\r\n").0, 405);
    assert_eq!(ask(address, "\r\n\r\n").0, 400);
    assert_eq!(ask(address, "GET /api/status HTTP/1.1\r\nHost: evil.example\r\n\r\n").0, 421);
    assert_eq!(ask(address, &format!("GET / HTTP/1.1\r\nX: {}\r\n\r\n", "x".repeat(20_000))).0, 431);
    let (code, body) = ask(address, "HEAD /metrics HTTP/1.1\r\n\r\n");
    assert_eq!((code, body.as_str()), (200, ""));
}

#[test]
fn readers_that_dawdle_hold_up_neither_others_nor_the_broker() {
    let node = Node::start("[http]\nlisten = \"127.0.0.1:0\"\n[zones.a]\n");
    let address = node.http();
    // Some say nothing, some say half, some never read; fewer than are served at a time.
    let mut idle: Vec<TcpStream> = (0..20).map(|_| TcpStream::connect(address).unwrap()).collect();
    for (at, stream) in idle.iter_mut().enumerate() {
        let _ = match at % 3 {
            0 => Ok(()),
            1 => stream.write_all(b"GET /met"),
            _ => stream.write_all(b"GET / HTTP/1.1\r\n\r\n"),
        };
    }
    assert_eq!(node.get("/healthz").0, 200);
    assert!(connect(&node.socket("a")).is_some());
    // More than are served are closed, and the rest is let go in time; then there is room again.
    let flood: Vec<TcpStream> = (0..200).map(|_| TcpStream::connect(address).unwrap()).collect();
    assert!(connect(&node.socket("a")).is_some(), "the broker does not care");
    drop((idle, flood));
    until("it serves again", || {
        let mut stream = TcpStream::connect(address).unwrap();
        let mut answer = String::new();
        let _ = stream.write_all(b"GET /healthz HTTP/1.1\r\n\r\n");
        let _ = stream.read_to_string(&mut answer);
        answer.ends_with("ok\n")
    });
}

#[test]
fn an_address_that_is_taken_is_named() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let directory = testkit::directory();
    let state = directory.join("s").to_str().unwrap().to_owned();
    let output =
        bulkhead(&["proxy", "--backend", "soft", "--http", &address, "--state-dir", &state]).output().unwrap();
    refused(&output, 70, &[&address]);
    assert!(!Path::new(&state).exists(), "nothing was started");
}
