//! `cargo xtask demo`: one CUDA program in two zones at once on the software GPU, each with its own memory limit.

use anyhow::{Context, Result, bail};
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Mutex;
use std::sync::mpsc::{Sender, channel};
use xtask::programs::{self, Linkage};
use xtask::{stage, toolchain};

struct Zone {
    name: &'static str,
    mebibytes: u32,
}

const ZONES: [Zone; 2] = [Zone { name: "alice", mebibytes: 1024 }, Zone { name: "bob", mebibytes: 256 }];

/// The program's last line before it waits for us.
const HOLDS_ITS_MEMORY: &str = "memory I can get";

pub(crate) fn run() -> Result<()> {
    // The one waits for the network, the other for the processor.
    let (fetched, bulkhead) = std::thread::scope(|scope| {
        let fetching = scope.spawn(toolchain::ensure_compiler);
        let bulkhead = stage::build_for_demo();
        (fetching.join().expect("fetching does not panic"), bulkhead)
    });
    fetched?;
    let bulkhead = bulkhead?;
    let all = programs::all()?;
    let demo = all.iter().filter(|program| program.name == "demo");
    let wanted = demo.map(|program| Ok((program, toolchain::own_runtime()?, Linkage::Static)));
    let built = programs::build(&wanted.collect::<Result<Vec<_>>>()?, &[])?;
    let binary = &built.first().context("tests/programs/demo.cu is missing")?.path;

    println!("\nOne CUDA program, two zones at once, no GPU:\n");
    let mut children = Vec::new();
    for zone in &ZONES {
        let memory = format!("{}MiB", zone.mebibytes);
        println!("  bulkhead run --zone {} --memory {memory} --backend soft -- demo", zone.name);
        children.push(start(&bulkhead, zone, &memory, binary)?);
    }
    println!();
    let results = show(children)?;
    println!();
    for (zone, fine) in ZONES.iter().zip(&results) {
        println!("{}: {}", zone.name, if *fine { "all as it should be" } else { "FAILED" });
    }
    if results.contains(&false) {
        bail!("the demo did not come out right");
    }
    Ok(())
}

fn start(bulkhead: &Path, zone: &Zone, memory: &str, binary: &Path) -> Result<Child> {
    let mut command = Command::new(bulkhead);
    command.args(["run", "--zone", zone.name, "--memory", memory, "--backend", "soft", "--"]);
    command.arg(binary).arg(zone.mebibytes.to_string());
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().context("cannot start bulkhead")
}

/// Prints what the zones say, line by line, with their names. Each holds its memory until all have it or have ended;
/// then their stdin is closed, which lets them go.
fn show(mut children: Vec<Child>) -> Result<Vec<bool>> {
    let (arrived, arrivals) = channel();
    let open = children.iter_mut().map(|child| child.stdin.take()).collect::<Vec<Option<ChildStdin>>>();
    let terminal = Mutex::new(());
    std::thread::scope(|scope| {
        for (zone, child) in ZONES.iter().zip(&mut children) {
            let (terminal, arrived) = (&terminal, arrived.clone());
            let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
            scope.spawn(move || prefix(zone.name, stdout, terminal, Some(arrived)));
            scope.spawn(move || prefix(zone.name, stderr, terminal, None));
        }
        for _ in &ZONES {
            let _ = arrivals.recv();
        }
        drop(open);
    });
    children.iter_mut().map(|child| Ok(child.wait()?.success())).collect()
}

fn prefix(name: &str, stream: Option<impl Read>, terminal: &Mutex<()>, mut arrived: Option<Sender<()>>) {
    let lines = stream.into_iter().flat_map(|stream| BufReader::new(stream).lines());
    for line in lines.map_while(Result::ok) {
        let held = terminal.lock();
        println!("{name:>8} │ {line}");
        drop(held);
        if line.starts_with(HOLDS_ITS_MEMORY) {
            arrived.take().map(|arrived| arrived.send(()));
        }
    }
    arrived.map(|arrived| arrived.send(()));
}
