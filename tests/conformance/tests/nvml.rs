//! NVML in a zone: a C program asks our `libnvidia-ml.so.1`, and sees the zone's own GPU, memory and processes.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use conformance::harness::{Binaries, Honest, Place, Proxy, ZONE_MEMORY, until};
use idm::bootstrap::{self, Answer, Inquiry};

const MIB: u64 = 1 << 20;
/// Every function of the library, and what it answers.
const TABLE: &str = include_str!("../../../crates/libnvml/table/nvml.abi");

fn place() -> Place {
    Place::with_nvml(env!("CARGO_BIN_EXE_conformance"))
}

fn compile(place: &Place) -> PathBuf {
    let program = place.path().join("probe");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/nvml/probe.c");
    let status = Command::new("cc").args(["-std=gnu11", "-w", "-o"]).arg(&program).arg(source).arg("-ldl").status();
    assert!(status.expect("a C compiler").success());
    program
}

/// What the probe says, line by line: everything up to the first number is the question.
fn answers(mut command: Command) -> BTreeMap<String, String> {
    let output = command.output().expect("it runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    let split = |line: &str| {
        let words: Vec<&str> = line.split(' ').collect();
        // Codes are numbers; versions in questions begin with a letter.
        let end = words.iter().position(|word| word.parse::<i64>().is_ok()).expect("an answer");
        (words[..end].join(" "), words[end..].join(" "))
    };
    text.lines().map(split).collect()
}

fn probe(program: &Path, place: &Place, socket: &Path) -> BTreeMap<String, String> {
    let mut command = Command::new(program);
    command.env("LD_LIBRARY_PATH", place.path().join("lib")).env("BULKHEAD_SOCKET", socket);
    command.env_remove("BULKHEAD_TRACE").env_remove("BULKHEAD_LOG");
    answers(command)
}

#[test]
fn a_zone_sees_its_own_memory_and_processes_and_nobody_elses() {
    let place = place();
    let program = compile(&place);
    let proxy = Proxy::start(&place, &["a", "b"]);
    // Before any client has come.
    let empty = probe(&program, &place, &proxy.socket("a"));
    assert_eq!(empty["memory"], format!("0 {ZONE_MEMORY} 0 {ZONE_MEMORY}"));
    assert_eq!((empty["processes"].as_str(), empty["no room"].as_str()), ("0", "0 0"));

    let mut ours = Honest::start(&place, &proxy.socket("a"));
    let mut theirs = Honest::start(&place, &proxy.socket("b"));
    assert_eq!(ours.ask(&format!("alloc {}", 100 * MIB)), "ok");
    assert_eq!(theirs.ask(&format!("alloc {}", 50 * MIB)), "ok");
    let used = proxy.zone("a").used;
    let seen = probe(&program, &place, &proxy.socket("a"));
    assert_eq!(seen["memory"], format!("0 {ZONE_MEMORY} {used} {}", ZONE_MEMORY - used));
    assert_eq!(seen["memory v2"], seen["memory"]);
    assert_eq!(seen["processes"], format!("0 {}={used}", ours.pid()));
    // The name is the program's, as it was started.
    let name = place.player_path().display();
    assert_eq!(seen["hidden processes"], format!("0 {}={used}={name}", ours.pid()));
    // NVML_ERROR_INSUFFICIENT_SIZE, and how many there are.
    assert_eq!((seen["no room"].as_str(), seen["graphics"].as_str()), ("7 1", "0 0"));

    // A limit that is changed while programs run is seen at once.
    let admin = place.state().join("admin.sock");
    let mut change = place.bulkhead(&["zones", "set", "a", "--memory", "128MiB", "--socket"]);
    assert!(change.arg(&admin).output().expect("it runs").status.success());
    let seen = probe(&program, &place, &proxy.socket("a"));
    assert_eq!(seen["memory"], format!("0 {} {used} {}", 128 * MIB, (128 * MIB).saturating_sub(used)));

    ours.quit();
    proxy.zone_is_empty("a");
    assert_eq!(probe(&program, &place, &proxy.socket("a"))["memory"], format!("0 {} 0 {}", 128 * MIB, 128 * MIB));
    theirs.quit();
    proxy.stop();
    place.nothing_is_left();
}

/// What our `nvidia-smi` says, and how it ends.
fn smi(binary: &Path, place: &Place, socket: &Path, arguments: &[&str]) -> (Option<i32>, String) {
    let mut command = place.program(binary, socket);
    let output = command.args(arguments).env_remove("LD_LIBRARY_PATH").output().expect("it runs");
    (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
}

#[test]
fn nvidia_smi_shows_the_zone_as_nvml_does() {
    let place = place();
    let proxy = Proxy::start(&place, &["a", "b"]);
    let binary = Binaries::find().expect("Bulkhead is built").smi();
    let mut ours = Honest::start(&place, &proxy.socket("a"));
    let mut theirs = Honest::start(&place, &proxy.socket("b"));
    assert_eq!(ours.ask(&format!("alloc {}", 20 * MIB)), "ok");
    assert_eq!(theirs.ask(&format!("alloc {}", 10 * MIB)), "ok");
    let ask = |arguments: &[&str]| {
        let (code, text) = smi(&binary, &place, &proxy.socket("a"), arguments);
        assert_eq!(code, Some(0), "{arguments:?}: {text}");
        text
    };
    let used = proxy.zone("a").used / MIB;
    let bare = "--format=csv,noheader,nounits";
    let asked = "--query-gpu=index,name,memory.total,memory.used,memory.free";
    let (total, free) = (ZONE_MEMORY / MIB, (ZONE_MEMORY - proxy.zone("a").used) / MIB);
    assert_eq!(ask(&[asked, bare]), format!("0, Bulkhead softgpu, {total}, {used}, {free}\n"));
    let processes = ask(&["--query-compute-apps=pid,process_name,used_memory", bare]);
    assert_eq!(processes, format!("{}, {}, {used}\n", ours.pid(), place.player_path().display()), "nobody else's");
    let table = ask(&[]);
    assert!(
        table.contains(&format!("{used}MiB / {total:>6}MiB")) && table.contains(&ours.pid().to_string()),
        "{table}"
    );
    assert!(!table.contains(&format!(" {} ", theirs.pid())), "{table}");
    assert!(ask(&["-L"]).starts_with("GPU 0: Bulkhead softgpu (UUID: GPU-"));
    assert!(ask(&["-q", "-d", "MEMORY"]).contains(&format!(": {used} MiB")));
    for (arguments, code) in [(&["-i", "7"][..], 6), (&["-pm", "1"], 4), (&["dmon"], 3), (&["--nonsense"], 2)] {
        assert_eq!(smi(&binary, &place, &proxy.socket("a"), arguments).0, Some(code), "{arguments:?}");
    }
    let (code, text) = smi(&binary, &place, Path::new("/nowhere/sock"), &[]);
    assert!(code == Some(9) && text.contains("/nowhere/sock"), "{code:?}: {text}");
    ours.quit();
    theirs.quit();
    proxy.stop();
    place.nothing_is_left();
}

#[test]
fn processes_have_the_numbers_of_their_own_container() {
    if !testkit::is_root() {
        return;
    }
    let place = place();
    compile(&place);
    let proxy = Proxy::start(&place, &["a"]);
    // In a pid namespace of its own, and seen from outside at the same time.
    let script = "mkfifo input && \
                  { \"$PLAYER\" client < input > output & } && exec 3> input && \
                  until grep -q ready output; do sleep 0.02; done && \
                  ./probe && echo \"client 0 $!\" && echo outside 0 && \
                  until test -e seen; do sleep 0.02; done; echo quit >&3; wait";
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "--mount-proc", "sh", "-c", script]).current_dir(place.path());
    command.env("LD_LIBRARY_PATH", place.path().join("lib")).env("BULKHEAD_SOCKET", proxy.socket("a"));
    command.env("PLAYER", place.player_path());
    let inside = std::thread::spawn(move || answers(command));
    until("the client runs", || proxy.zone("a").clients == 1);
    let outside = probe(&place.path().join("probe"), &place, &proxy.socket("a"));
    std::fs::write(place.path().join("seen"), "").expect("a file in /tmp");
    let inside = inside.join().expect("no panic");
    let number = |seen: &BTreeMap<String, String>| seen["processes"].split_once('=').expect("a process").0.to_owned();
    assert_eq!(number(&inside), inside["client"]);
    assert_ne!(number(&outside), number(&inside));
    proxy.zone_is_empty("a");
    proxy.stop();
    place.nothing_is_left();
}

#[test]
fn functions_answer_as_the_native_library_does() {
    let place = place();
    let program = compile(&place);
    let mut command = place.bulkhead(&["run", "--backend", "soft", "--memory", "64MiB", "--"]);
    command.arg(&program);
    let seen = answers(command);
    let expected = [
        ("before init", "1"),
        ("init", "0"),
        ("again", "0"),
        ("count", "0 1"),
        ("handle", "0"),
        ("no such index", "2"),
        ("name", "0 Bulkhead softgpu"),
        ("short name", "7"),
        ("by uuid", "0 1"),
        ("no such uuid", "6"),
        ("by bus", "0 1"),
        ("memory", "0 67108864 0 67108864"),
        ("memory v3", "25"),
        ("table", "0 1"),
        ("hidden handle", "0 1"),
        ("hidden processes", "0"),
        ("hidden graphics", "0 0"),
        ("hidden gap", "3"),
        ("temperature", "3"),
        ("set", "4"),
        ("bad handle", "2"),
        ("cuda", "0 13000"),
        // Initialised twice, so that the second shutdown is the last.
        ("shutdown", "0 0 0 1 1"),
    ];
    for (question, answer) in expected {
        assert_eq!(seen[question], answer, "{question}");
    }
    assert!(seen["uuid"].starts_with("0 GPU-"), "{}", seen["uuid"]);
    assert!(seen["pci"].starts_with("0 0000:") && seen["pci"].contains(" 00000000:"), "{}", seen["pci"]);
    place.nothing_is_left();
}

#[test]
fn without_a_proxy_there_is_no_driver() {
    let place = place();
    let program = compile(&place);
    let seen = probe(&program, &place, Path::new("/nowhere/sock"));
    assert_eq!((seen["before init"].as_str(), seen["init"].as_str()), ("1", "9"));
}

#[test]
fn every_function_of_the_table_is_exported() {
    // SAFETY: our own library, whose loading does nothing.
    let library =
        unsafe { libloading::Library::new(place().path().join("lib/libnvidia-ml.so.1")) }.expect("it loads");
    let names = TABLE.lines().filter(|line| line.starts_with("nvml")).filter_map(|line| line.split(' ').next());
    let mut count = 0;
    for name in names {
        // SAFETY: the address is not used.
        let symbol = unsafe { library.get::<unsafe extern "C" fn()>(name) };
        assert!(symbol.is_ok(), "{name} is not exported");
        count += 1;
    }
    assert!(count >= 404, "{count}");
}

#[test]
fn a_new_broker_answers_as_the_old_one_did() {
    let place = place();
    let program = compile(&place);
    let mut proxy = Proxy::start(&place, &["a"]);
    let mut client = Honest::start(&place, &proxy.socket("a"));
    assert_eq!(client.ask(&format!("alloc {}", 20 * MIB)), "ok");
    let before = probe(&program, &place, &proxy.socket("a"));
    proxy.kill();
    proxy.restart();
    let after = probe(&program, &place, &proxy.socket("a"));
    assert_eq!(before, after);
    client.quit();
    proxy.stop();
    place.nothing_is_left();
}

#[test]
fn those_who_ask_and_do_not_listen_hold_up_nobody() {
    let place = place();
    let program = compile(&place);
    let proxy = Proxy::start(&place, &["a", "b"]);
    // More than may wait for the cards to be known, and afterwards as many as there is room for.
    for _ in 0..3 {
        let asked: Vec<_> = (0..200)
            .filter_map(|_| {
                let socket = bootstrap::connect(&proxy.socket("a")).ok()?;
                bootstrap::send(&socket, &Inquiry::default(), &[]).ok()?;
                Some(socket)
            })
            .collect();
        assert_eq!(probe(&program, &place, &proxy.socket("b"))["init"], "0");
        drop(asked);
    }
    // A question with anything in it gets no answer.
    let socket = bootstrap::connect(&proxy.socket("a")).unwrap();
    bootstrap::send(&socket, &Inquiry { reserved: [0, 0, 0, 0, 0, 1], ..Inquiry::default() }, &[]).unwrap();
    assert!(bootstrap::recv_within::<Answer>(&socket, conformance::harness::TIMEOUT).is_err());
    until("the zone has no client", || proxy.zone("a").clients == 0);
    assert_eq!(probe(&program, &place, &proxy.socket("a"))["init"], "0");
    proxy.stop();
    place.nothing_is_left();
}
