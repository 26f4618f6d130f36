//! Running other programs.

use anyhow::{Context, Result, bail};
use std::process::{Command, Output, Stdio};
use std::sync::Mutex;

/// The cargo that runs us.
pub fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(crate::paths::root());
    // What cargo told us about our own package. Build scripts that look at such variables would run again, and much be built
    // again, each time that somebody builds with us after he has built without.
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if ["CARGO_PKG_", "CARGO_MANIFEST_"].iter().any(|start| text.starts_with(start)) {
            command.env_remove(&name);
        }
    }
    command
}

/// Runs `command` with its output on the terminal.
pub fn run(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| not_started(command))?;
    if !status.success() {
        bail!("{}: {status}", name(command));
    }
    Ok(())
}

/// Runs `command`, and gives what it printed; an error carries what it said on stderr.
pub fn output(command: &mut Command) -> Result<String> {
    let output = capture(command)?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("{}: {}\n{}", name(command), output.status, said.trim_end());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

pub fn capture(command: &mut Command) -> Result<Output> {
    command.stdin(Stdio::null()).output().with_context(|| not_started(command))
}

/// Whether a program of this name can be started at all.
pub fn exists(program: &str) -> bool {
    let mut probe = Command::new(program);
    probe.arg("--version").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    probe.status().is_ok()
}

/// Installs a package of Debian's when `program` is not there; who may not, or has no apt-get, is told what is needed.
pub fn install(program: &str, package: &str) -> Result<()> {
    if exists(program) {
        return Ok(());
    }
    println!("installing {package}");
    let apt_get =
        |words: &[&str]| output(Command::new("apt-get").env("DEBIAN_FRONTEND", "noninteractive").args(words));
    let install = ["install", "--yes", "--no-install-recommends", package];
    // A fresh image has no package lists yet.
    let done = apt_get(&install).or_else(|_| apt_get(&["update"]).and_then(|_| apt_get(&install)));
    done.map(drop)
        .with_context(|| format!("{program} is needed, and apt-get cannot install {package} (Debian, Ubuntu) here"))
}

fn name(command: &Command) -> String {
    let words = [command.get_program()].into_iter().chain(command.get_args());
    words.map(|word| word.to_string_lossy()).take(4).collect::<Vec<_>>().join(" ")
}

fn not_started(command: &Command) -> String {
    format!("cannot start {}", command.get_program().to_string_lossy())
}

/// Does `work` for every item, as many at once as there are cores; results come in the order of the items.
pub fn parallel<T: Sync, R: Send>(items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let workers = std::thread::available_parallelism().map_or(2, usize::from).min(items.len());
    let next = Mutex::new(0..items.len());
    let results = Mutex::new(Vec::with_capacity(items.len()));
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                loop {
                    let Some(index) = next.lock().expect("no panic holds it").next() else { break };
                    let result = work(&items[index]);
                    results.lock().expect("no panic holds it").push((index, result));
                }
            });
        }
    });
    let mut results = results.into_inner().expect("all workers are done");
    results.sort_by_key(|(index, _)| *index);
    results.into_iter().map(|(_, result)| result).collect()
}
