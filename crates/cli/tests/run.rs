//! `bulkhead` as a user meets it: statuses, signals, and what is left behind. The program that runs here needs no GPU;
//! what it needs of one is tested elsewhere.

mod common;

use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use common::{connect, hung_up};
use idm::bootstrap;
use testkit::{Directory, Signal, signal, until};

/// A directory of its own for each test: state directories, library, sockets.
struct Place {
    path: Directory,
}

impl Place {
    fn new() -> Self {
        let path = testkit::directory();
        std::fs::create_dir(path.join("lib")).unwrap();
        std::fs::create_dir(path.join("run")).unwrap();
        // `run` looks for the file and does not open it; the programs here load no CUDA.
        std::fs::write(path.join("lib/libcuda.so.1"), "").unwrap();
        Self { path }
    }

    fn bulkhead(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_bulkhead"));
        command.args(arguments).stdin(Stdio::null());
        command.env("BULKHEAD_LIB_DIR", self.path.join("lib")).env("XDG_RUNTIME_DIR", self.path.join("run"));
        command.env_remove("BULKHEAD_LOG").env_remove("NOTIFY_SOCKET");
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.bulkhead(arguments).output().unwrap()
    }

    /// What `run` keeps while it runs.
    fn left_behind(&self) -> Vec<PathBuf> {
        std::fs::read_dir(self.path.join("run")).unwrap().map(|entry| entry.unwrap().path()).collect()
    }

    /// Processes that know of this place.
    fn processes(&self) -> Vec<u32> {
        let needle = self.path.to_str().unwrap().as_bytes();
        let mut found = Vec::new();
        for entry in std::fs::read_dir("/proc").unwrap().flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
            let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
            if pid != std::process::id() && line.windows(needle.len()).any(|part| part == needle) {
                found.push(pid);
            }
        }
        found
    }

    fn nothing_is_left(&self) {
        until("nothing is left", || self.left_behind().is_empty() && self.processes().is_empty());
    }
}

/// A proxy, which is killed where a test fails before it has ended it.
struct Proxy(Child);

impl Drop for Proxy {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// One line on stderr, with these words, and this status.
fn refused(output: &Output, status: i32, words: &[&str]) {
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(status), "{text}");
    assert_eq!(text.lines().count(), 1, "{text}");
    assert!(text.starts_with("bulkhead: "), "{text}");
    for word in words {
        assert!(text.contains(word), "{word:?} is not in {text}");
    }
}

/// Starts `run` with a shell script whose first line of output says that it runs.
fn start(place: &Place, script: &str) -> (Child, BufReader<std::process::ChildStdout>, String) {
    // Started in the background, as CI may be, this process ignores SIGINT, by nohup SIGHUP, and its children would too.
    // What is caught here is the default again in them.
    let act_by_default = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(true));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGHUP] {
        signal_hook::flag::register_conditional_default(signal, act_by_default.clone()).unwrap();
    }
    let mut command = place.bulkhead(&["run", "--backend", "soft", "--", "sh", "-c", script]);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    (child, output, line.trim().to_owned())
}

/// The one broker of a private directory: the process with `--private` on its command line.
fn private_broker(place: &Place) -> Option<u32> {
    place.processes().into_iter().find(|pid| {
        std::fs::read(format!("/proc/{pid}/cmdline"))
            .is_ok_and(|line| line.windows(9).any(|part| part == b"--private"))
    })
}

#[test]
fn the_programs_status_and_environment_are_passed_on() {
    let place = Place::new();
    let output = place.run(&["run", "--backend", "soft", "--", "sh", "-c", "env; exit 42"]);
    assert_eq!(output.status.code(), Some(42));
    let text = String::from_utf8(output.stdout).unwrap();
    let library = place.path.join("lib");
    for line in [
        format!("LD_LIBRARY_PATH={}", library.display()),
        format!("TRITON_LIBCUDA_PATH={}", library.display()),
        format!("BULKHEAD_SOCKET={}", place.path.join("run").display()),
        // Without it CuPy compiles what the software GPU cannot run.
        "CUPY_COMPILE_WITH_PTX=1".to_owned(),
    ] {
        assert!(text.lines().any(|known| known.starts_with(&line)), "{line}");
    }
    let mut command = place.bulkhead(&["run", "--backend", "soft", "--", "sh", "-c", "echo $CUPY_COMPILE_WITH_PTX"]);
    let output = command.env("CUPY_COMPILE_WITH_PTX", "0").output().unwrap();
    assert_eq!(output.stdout, b"0\n", "what the user says counts");
    let output = place.run(&["run", "--backend", "soft", "--", "sh", "-c", "kill -TERM $$"]);
    assert_eq!(output.status.code(), Some(128 + 15));
    place.nothing_is_left();
}

#[test]
fn bad_input_is_one_clear_line_with_a_status_of_its_own() {
    let place = Place::new();
    refused(&place.run(&["run", "--memory", "much", "--", "true"]), 2, &["--memory", "much", "2GiB"]);
    refused(&place.run(&["run", "--zone", "../x", "--", "true"]), 2, &["--zone", "../x"]);
    refused(&place.run(&["run", "--share", "0", "--", "true"]), 2, &["--share"]);
    refused(&place.run(&["run", "--memory", "2", "--", "true"]), 2, &["no unit", "2GiB"]);
    // An option that is misspelt is not taken for the program.
    refused(&place.run(&["run", "--mem", "2GiB", "--", "true"]), 2, &["--mem", "--memory"]);
    refused(&place.run(&["run", "--update", "--", "true"]), 2, &["--socket"]);
    refused(&place.run(&["run"]), 2, &["CMD"]);
    refused(&place.run(&["run", "--backend", "abacus", "--", "true"]), 2, &["abacus", "soft"]);
    refused(&place.run(&["run", "--", "no-such-program"]), 127, &["no-such-program"]);
    refused(&place.run(&["run", "--", "/etc/passwd"]), 126, &["/etc/passwd"]);
    // The same failures have the same statuses, whoever runs the program, and are told before anything is waited for.
    refused(&place.run(&["ipc", "wait", "name", "--", "no-such-program"]), 127, &["no-such-program"]);
    refused(&place.run(&["ipc", "wait", "name", "--", "/etc/passwd"]), 126, &["/etc/passwd"]);
    refused(&place.run(&["ipc", "wait", "name", "--zone-socket", "/nowhere/sock"]), 69, &["/nowhere/sock"]);
    refused(&place.run(&["doctor", "--program", "/nope"]), 127, &["/nope"]);
    refused(&place.run(&["doctor", "--program", "no-such-program"]), 127, &["no-such-program"]);
    let named = place.run(&["doctor", "--no-self-test", "--program", "sh"]);
    assert!(String::from_utf8_lossy(&named.stdout).contains("0 errors"), "what PATH has is found: {named:?}");
    refused(&place.run(&["install", "--host-root", "/nope"]), 2, &["--host-root", "/nope"]);
    refused(&place.run(&["doctor", "--bundle", "/etc/passwd"]), 70, &["/etc/passwd", "exists"]);
    refused(&place.run(&["doctor", "--bundle", "/nowhere/bundle.tar.gz"]), 70, &["/nowhere/bundle.tar.gz"]);
    refused(&place.run(&["run", "--socket", "/nowhere/admin.sock", "--", "true"]), 69, &["/nowhere/admin.sock"]);
    if !Path::new("/dev/nvidiactl").exists() {
        refused(&place.run(&["run", "--backend", "nvidia", "--", "true"]), 67, &["/dev/nvidiactl"]);
        let doctor = place.run(&["doctor", "--backend", "nvidia", "--no-self-test"]);
        assert_eq!(doctor.status.code(), Some(1));
        assert!(String::from_utf8_lossy(&doctor.stdout).contains("--backend nvidia"), "{doctor:?}");
    }
    if !Path::new("/dev/xen/xenbus").exists() {
        refused(&place.run(&["xen-backend"]), 71, &["xenstore"]);
    }
    let listed = place.run(&["cdi", "list", "--spec-dir", "/nowhere"]);
    assert!(listed.status.success() && listed.stdout.is_empty(), "{listed:?}");
    assert!(String::from_utf8_lossy(&listed.stderr).contains("no devices in /nowhere"), "{listed:?}");
    // A socket that nobody listens at.
    let stale = place.path.join("stale.sock");
    drop(bootstrap::listen(&stale).unwrap());
    refused(&place.run(&["run", "--socket", stale.to_str().unwrap(), "--", "true"]), 69, &["stale.sock", "refused"]);
    let mut command = place.bulkhead(&["run", "--", "true"]);
    refused(&command.env("BULKHEAD_LIB_DIR", "/nowhere").output().unwrap(), 68, &["libcuda.so.1", "/nowhere"]);
    place.nothing_is_left();
}

#[test]
fn a_full_disk_is_named() {
    if !testkit::is_root() {
        return;
    }
    let place = Place::new();
    // In a mount namespace of its own, the directory is a file system with hardly any room.
    let script = format!(
        "mount -t tmpfs -o size=16k full {run} && exec {program} run --backend soft -- true",
        run = place.path.join("run").display(),
        program = env!("CARGO_BIN_EXE_bulkhead")
    );
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", &script]).stdin(Stdio::null());
    command.env("BULKHEAD_LIB_DIR", place.path.join("lib")).env("XDG_RUNTIME_DIR", place.path.join("run"));
    let output = command.output().unwrap();
    refused(&output, 73, &["No space left"]);
    place.nothing_is_left();
}

#[test]
fn signals_reach_the_program() {
    let place = Place::new();
    for (number, name) in [(Signal::TERM, "TERM"), (Signal::INT, "INT"), (Signal::USR1, "USR1"), (Signal::HUP, "HUP")]
    {
        let script = format!("trap 'echo got; exit 9' {name}; echo on; while :; do sleep 0.01; done");
        let (mut child, mut output, line) = start(&place, &script);
        assert_eq!(line, "on");
        signal(child.id(), number);
        let mut rest = String::new();
        output.read_to_string(&mut rest).unwrap();
        assert_eq!(rest.trim(), "got", "{name}");
        assert_eq!(child.wait().unwrap().code(), Some(9), "{name}");
    }
    place.nothing_is_left();
}

#[test]
fn run_killed_leaves_nothing() {
    let place = Place::new();
    let (mut child, mut output, socket) = start(&place, "echo $BULKHEAD_SOCKET; exec sleep 1000");
    let client = connect(Path::new(&socket)).unwrap();
    assert!(!place.left_behind().is_empty());
    signal(child.id(), Signal::KILL);
    assert_eq!(child.wait().unwrap().signal(), Some(9));
    place.nothing_is_left();
    until("the worker is gone", || hung_up(&client));
    // Its output ends when the program, which held it, is gone.
    output.read_to_string(&mut String::new()).unwrap();
}

#[test]
fn run_and_broker_killed_leave_a_dir_that_the_next_run_removes() {
    let place = Place::new();
    let (mut child, _output, _) = start(&place, "echo on; exec sleep 1000");
    let broker = private_broker(&place).unwrap();
    // Stopped, it cannot start another one before it is killed.
    signal(child.id(), Signal::STOP);
    signal(broker, Signal::KILL);
    signal(child.id(), Signal::KILL);
    child.wait().unwrap();
    until("all processes are gone", || place.processes().is_empty());
    assert_eq!(place.left_behind().len(), 1);
    assert!(place.run(&["run", "--backend", "soft", "--", "true"]).status.success());
    place.nothing_is_left();
}

#[test]
fn a_killed_private_broker_is_replaced_and_its_clients_go_on() {
    let place = Place::new();
    for number in [Signal::KILL, Signal::TERM] {
        let (mut child, _output, socket) = start(&place, "echo $BULKHEAD_SOCKET; exec sleep 1000");
        let client = connect(Path::new(&socket)).unwrap();
        let broker = private_broker(&place).unwrap();
        signal(broker, number);
        until("there is a new broker", || private_broker(&place).is_some_and(|pid| pid != broker));
        let mut second = None;
        until("the new one serves", || {
            second = second.take().or_else(|| connect(Path::new(&socket)));
            second.is_some()
        });
        assert!(!hung_up(&client), "the first client has lost its worker");
        signal(child.id(), Signal::TERM);
        assert_eq!(child.wait().unwrap().code(), Some(128 + 15));
        until("both workers are gone", || hung_up(&client) && hung_up(second.as_ref().unwrap()));
    }
    place.nothing_is_left();
}

#[test]
fn zones_of_a_running_proxy() {
    let place = Place::new();
    let state = place.path.join("state");
    let admin = state.join("admin.sock");
    let (state, admin) = (state.to_str().unwrap(), admin.to_str().unwrap());
    let arguments =
        ["proxy", "--state-dir", state, "--backend", "soft", "--jail", "best-effort", "--zone", "team:memory=1GiB"];
    let mut proxy = Proxy(place.bulkhead(&arguments).stderr(Stdio::null()).spawn().unwrap());
    until("the proxy serves", || place.run(&["status", "--socket", admin]).status.success());

    let limited_on_one = ["zones", "create", "x", "--gpu", "0", "--memory", "1GiB", "--socket", admin];
    refused(&place.run(&limited_on_one), 2, &["--gpus"]);
    assert!(place.run(&[&limited_on_one[..], &["--gpus", "0"]].concat()).status.success());
    assert!(place.run(&["zones", "remove", limited_on_one[2], "--socket", admin]).status.success());
    let zone = |arguments: &[&str]| place.run(&[&["run", "--socket", admin], arguments].concat());
    let output = zone(&["--zone", "team", "--", "sh", "-c", "echo $BULKHEAD_SOCKET"]);
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), format!("{state}/zones/team/sock"));
    refused(&zone(&["--zone", "other", "--", "true"]), 66, &["other", "team"]);
    // What others rely on is changed only by those who say so.
    refused(&zone(&["--zone", "team", "--memory", "3GiB", "--", "true"]), 65, &["team", "1 GiB", "--update"]);
    refused(&zone(&["--zone", "team", "--share", "7", "--", "true"]), 65, &["share 100", "--update"]);
    assert!(zone(&["--zone", "team", "--memory", "1GiB", "--", "true"]).status.success());
    assert!(zone(&["--zone", "team", "--share", "7", "--update", "--", "true"]).status.success());
    // One that is made for a run goes with it.
    let output = zone(&["--zone", "made", "--memory", "1MiB", "--", "sh", "-c", "test -S $BULKHEAD_SOCKET"]);
    assert!(output.status.success());
    until("the zone is gone", || !Path::new(state).join("zones/made").exists());
    let mut second = place.bulkhead(&arguments);
    refused(&second.env("BULKHEAD_LOG", "warn").output().unwrap(), 75, &["another proxy", state]);
    let status = place.run(&["status", "--socket", admin, "--json"]);
    let status: serde_json::Value = serde_json::from_slice(&status.stdout).unwrap();
    assert_eq!(status["zones"][0]["limits"]["memory"], 1 << 30);
    assert_eq!(status["zones"][0]["limits"]["share"], 7);
    // The variable in place of the option.
    let status = place.bulkhead(&["status"]).env("BULKHEAD_ADMIN_SOCKET", admin).output().unwrap();
    assert!(status.status.success());

    signal(proxy.0.id(), Signal::TERM);
    assert!(proxy.0.wait().unwrap().success());
    assert!(!Path::new(admin).exists() && !Path::new(state).join("zones/team/sock").exists());
    place.nothing_is_left();
}

#[test]
fn who_waits_for_a_proxy_is_told_so() {
    let place = Place::new();
    let state = place.path.join("state");
    let admin = state.join("admin.sock");
    let (state, admin) = (state.to_str().unwrap(), admin.to_str().unwrap());
    let arguments = ["proxy", "--state-dir", state, "--backend", "soft", "--jail", "best-effort", "--zone", "team"];
    let start = || {
        let proxy = Proxy(place.bulkhead(&arguments).stderr(Stdio::null()).spawn().unwrap());
        until("the proxy serves", || place.run(&["status", "--socket", admin]).status.success());
        proxy
    };
    let mut proxy = start();
    let mut command =
        place.bulkhead(&["run", "--socket", admin, "--zone", "team", "--", "sh", "-c", "echo on; read line"]);
    let mut run = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(run.stderr.take().unwrap()).lines();
    let mut said = BufReader::new(run.stdout.take().unwrap()).lines();
    assert_eq!(said.next().unwrap().unwrap(), "on");
    signal(proxy.0.id(), Signal::KILL);
    proxy.0.wait().unwrap();
    assert!(lines.next().unwrap().unwrap().contains("the proxy is gone"));
    let mut proxy = start();
    assert!(lines.next().unwrap().unwrap().contains("the proxy is back"));
    drop(run.stdin.take());
    assert!(!run.wait().unwrap().success(), "read met the end of its input");
    signal(proxy.0.id(), Signal::TERM);
    assert!(proxy.0.wait().unwrap().success());
    place.nothing_is_left();
}

#[test]
fn an_ordinary_user_is_told_how_to_run_a_proxy() {
    if !testkit::is_root() {
        return;
    }
    let place = Place::new();
    std::fs::create_dir(place.path.join("roots")).unwrap();
    let state = place.path.join("roots/state");
    let script =
        format!("exec {} proxy --backend soft --state-dir {}", env!("CARGO_BIN_EXE_bulkhead"), state.display());
    let arguments = ["--reuid", "65534", "--clear-groups", "sh", "-c", &script];
    let output = Command::new("setpriv").args(arguments).stdin(Stdio::null()).output().unwrap();
    refused(&output, 74, &["Permission denied", "--state-dir"]);
}

#[test]
fn without_a_gpu_the_cpu_is_named() {
    if Path::new("/dev/nvidiactl").exists() {
        return;
    }
    let place = Place::new();
    let said = |arguments: &[&str]| String::from_utf8(place.run(arguments).stderr).unwrap();
    assert!(said(&["run", "--", "true"]).contains("computing on the CPU"));
    assert!(said(&["run", "--backend", "auto", "--", "true"]).contains("computing on the CPU"));
    assert!(!said(&["run", "--backend", "soft", "--", "true"]).contains("CPU"));
}

#[test]
fn root_gets_the_whole_jail_or_a_clear_refusal() {
    let place = Place::new();
    let output = place.run(&["run", "--backend", "soft", "--jail", "require", "--", "true"]);
    let text = String::from_utf8_lossy(&output.stderr);
    match output.status.code() {
        Some(0) => assert!(text.is_empty(), "{text}"),
        Some(72) => assert!(text.contains("missing: "), "{text}"),
        other => panic!("{other:?}: {text}"),
    }
    place.nothing_is_left();
}
