//! Two pods, or two containers of one, that share GPU memory: in every combination of host IPC, host PID and privilege.
//!
//! With NVIDIA's stack it works in two of the eight rows. Here each row must work, because nothing of it matters: the
//! processes have a socket of their zone in common with Bulkhead, and with each other a handle of 64 bytes.

use std::process::{Command, ExitCode};

use conformance::harness::{Honest, Place, Proxy};

/// One of the eight rows.
#[derive(Clone, Copy)]
struct Row {
    host_ipc: bool,
    host_pid: bool,
    privileged: bool,
}

impl Row {
    /// The program in namespaces of its own, as a container has them: the first process of its pid namespace, in an empty
    /// network, with no way to gain rights.
    fn container(self, program: &Command) -> Command {
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "--mount", "--net", "--uts", "--cgroup"]);
        if !self.host_ipc {
            command.arg("--ipc");
        }
        if !self.host_pid {
            command.args(["--pid", "--fork", "--kill-child", "--mount-proc"]);
        }
        command.arg("--");
        if !self.privileged {
            command.args(["setpriv", "--no-new-privs", "--bounding-set=-all", "--inh-caps=-all", "--"]);
        }
        command.arg(program.get_program()).args(program.get_args());
        for (name, value) in program.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command
    }
}

/// A producer writes, a consumer reads and writes, both see it, in order; then the producer is gone.
fn share(place: &Place, proxy: &Proxy<'_>, row: Row, zones: [&str; 2]) {
    let start = |zone: &str| Honest::from_command(row.container(&place.player(&["sharer"], &proxy.socket(zone))));
    let [mut producer, mut consumer] = zones.map(start);
    let mut said = |who: usize, line: &str| match who {
        0 => producer.ask(line),
        _ => consumer.ask(line),
    };
    for line in ["alloc 5000000", "event", "fill 7", "record"] {
        assert_eq!(said(0, line), "ok", "{line}");
    }
    // The classic hand-over: bytes in a file of a folder that both see.
    let file = place.path().join("handles");
    std::fs::write(&file, format!("{} {}", said(0, "handle"), said(0, "event-handle"))).expect("a file");
    let text = std::fs::read_to_string(&file).expect("the file");
    let (memory, event) = text.split_once(' ').expect("two handles");
    assert!(said(1, &format!("open {memory}")).starts_with("0x"));
    for (line, answer) in
        [(&*format!("open-event {event}"), "ok"), ("wait", "ok"), ("later", "ok"), ("result", "7"), ("fill 8", "ok")]
    {
        assert_eq!(said(1, line), answer, "{line}");
    }
    assert_eq!(said(0, "read"), "8");
    producer.quit();
    assert_eq!(consumer.ask("read"), "8");
    assert_eq!(consumer.ask("close"), "ok");
    consumer.quit();
}

fn namespaces_are_allowed() -> bool {
    let row = Row { host_ipc: false, host_pid: false, privileged: false };
    row.container(&Command::new("true")).status().is_ok_and(|status| status.success())
}

fn main() -> ExitCode {
    if std::env::args().any(|word| word == "--list") {
        return ExitCode::SUCCESS;
    }
    if !namespaces_are_allowed() {
        println!("test truth_table ... ignored, this machine allows no namespaces, or has no unshare and setpriv");
        return ExitCode::SUCCESS;
    }
    let place = Place::new(env!("CARGO_BIN_EXE_conformance"));
    let proxy = Proxy::start(&place, &["a", "b"]);
    let socket = place.state().join("admin.sock");
    let granted = place
        .bulkhead(&["grants", "allow", "a", "b", "--read-write", "--socket", socket.to_str().expect("a plain path")])
        .status();
    assert!(granted.expect("bulkhead runs").success());
    println!("| hostIPC | hostPID | privileged | two pods | one pod, two containers |\n|---|---|---|---|---|");
    for number in 0..8 {
        let row = Row { host_ipc: number & 4 != 0, host_pid: number & 2 != 0, privileged: number & 1 != 0 };
        share(&place, &proxy, row, ["a", "b"]);
        share(&place, &proxy, row, ["a", "a"]);
        let word = |flag: bool| if flag { "yes" } else { "no" };
        let (ipc, pid, privileged) = (word(row.host_ipc), word(row.host_pid), word(row.privileged));
        println!("| {ipc} | {pid} | {privileged} | works | works |");
    }
    proxy.stop();
    place.nothing_is_left();
    println!("\ntest result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out");
    ExitCode::SUCCESS
}
