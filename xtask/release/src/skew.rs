//! `release skew`: this version beside the previous one, both built from their sources. Where versions do not go together, that
//! must be said in one line to whoever started the program, and in the proxy's log. And a client that runs goes on through an
//! upgrade of the proxy and through the way back.

mod node;

use anyhow::{Context, Result, bail, ensure};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use xtask::programs::{self, Linkage};
use xtask::{paths, sh, stage, toolchain};

use node::Node;

/// What counts as previous versions as long as no release has a tag: 0.1.0 before the proxy became three processes, and after
/// that. Clients of neither speak today's protocol.
const BEFORE_TAGS: [&str; 2] = ["244fef5", "551c282"];

/// A tree like `target/stage`, and what to call it.
struct Version {
    name: &'static str,
    stage: PathBuf,
}

/// With `staged`, this version is what is in `target/stage`.
pub(crate) fn run(from: Option<&str>, staged: bool) -> Result<()> {
    if !staged {
        stage::build(&stage::Options { debug: true, strip: false })?;
    }
    for commit in from.map_or_else(previous, |from| vec![from.to_owned()]) {
        println!("the previous version is {commit}");
        beside(&Version { name: "previous", stage: build(&commit)? })?;
    }
    Ok(())
}

/// Everything with one previous version.
fn beside(old: &Version) -> Result<()> {
    let new = &Version { name: "this", stage: paths::stage() };
    toolchain::ensure_compiler()?;
    let mut all = programs::all()?;
    all.retain(|program| ["vecadd", "steady"].contains(&program.name.as_str()));
    let built = programs::build(&programs::own(&all, &[Linkage::Static])?, &[])?;
    let program = |name: &str| {
        let found = built.iter().find(|binary| binary.program.name == name);
        found.map(|binary| binary.path.clone()).with_context(|| format!("there is no program {name}"))
    };
    let (vecadd, steady) = (program("vecadd")?, program("steady")?);
    for (client, proxy) in [(new, new), (old, new), (new, old)] {
        let says = start(client, proxy, &vecadd)?;
        println!("client library of {} version, proxy of {} version: {says}", client.name, proxy.name);
    }
    for (command, proxy) in [(old, new), (new, old)] {
        let says = operate(command, proxy)?;
        println!(
            "`bulkhead status` and `zones` of {} version, proxy of {} version: {says}",
            command.name, proxy.name
        );
    }
    upgrade(old, new, &steady)
}

/// The last tag before this commit.
fn previous() -> Vec<String> {
    let mut git = Command::new("git");
    git.arg("-C").arg(paths::root()).args(["describe", "--tags", "--abbrev=0", "--match", "v*", "HEAD^"]);
    sh::output(&mut git).map_or_else(|_| BEFORE_TAGS.map(str::to_owned).to_vec(), |tag| vec![tag.trim().to_owned()])
}

/// Builds a commit in a clone, once. All of them build in one directory: what others wrote is mostly the same in each.
fn build(commit: &str) -> Result<PathBuf> {
    let dir = paths::target().join("skew");
    let (clone, target, kept) = (dir.join(commit), dir.join("target"), dir.join(format!("{commit}-stage")));
    if !kept.exists() {
        let _ = fs::remove_dir_all(&clone);
        fs::create_dir_all(&clone)?;
        sh::output(Command::new("git").args(["clone", "--quiet"]).arg(paths::root()).arg(&clone))?;
        sh::output(Command::new("git").arg("-C").arg(&clone).args(["checkout", "--quiet", commit]))?;
        let mut cargo = sh::cargo();
        cargo.current_dir(&clone).args(["xtask", "build", "--debug"]).env("CARGO_TARGET_DIR", &target);
        sh::run(&mut cargo)?;
        fs::rename(target.join("stage"), &kept).context("the previous version was not staged")?;
    }
    Ok(kept)
}

/// A new client: it works, or is refused as it should be. Gives which.
fn start(client: &Version, proxy: &Version, program: &Path) -> Result<String> {
    let node = Node::start(&proxy.stage)?;
    let output = sh::capture(&mut node.client(&client.stage, program))?;
    let log = node.end()?;
    judge(&output, &log)
        .with_context(|| format!("client library of {} version, proxy of {} version", client.name, proxy.name))
}

fn judge(output: &Output, log: &str) -> Result<String> {
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if output.status.success() && stdout.lines().last() == Some("PASS") {
        return Ok("works".to_owned());
    }
    let ours: Vec<&str> = stderr.lines().filter(|line| line.starts_with("bulkhead: ")).collect();
    let [line] = ours[..] else {
        bail!("it is neither served nor refused in one line: {}\n{stdout}{stderr}{log}", output.status);
    };
    ensure!(line.starts_with("bulkhead: the proxy refused: ") && line.contains("version"), "refused with {line:?}");
    let logged = log.lines().any(|line| line.contains("refused") && line.to_lowercase().contains("version"));
    ensure!(logged, "the proxy's log does not say that a client was refused, and why:\n{log}");
    ensure!(!output.status.success(), "it was refused, and says that all is well");
    Ok(format!("refused, {line:?}"))
}

/// What an operator does, and plugins do with the same requests: each works, or says in one line what is wrong.
fn operate(command: &Version, proxy: &Version) -> Result<String> {
    let node = Node::start(&proxy.stage)?;
    let admin = node.admin().display().to_string();
    let verbs: [&[&str]; 5] = [
        &["status"],
        &["zones", "create", "more", "--memory", "512MiB", "--share", "50"],
        &["zones", "list"],
        &["zones", "set", "more", "--memory", "256MiB"],
        &["zones", "remove", "more"],
    ];
    let mut refused = Vec::new();
    for words in verbs {
        let mut bulkhead = Command::new(command.stage.join("bin/bulkhead"));
        let output = sh::capture(bulkhead.args(words).args(["--socket", &admin]))?;
        let stderr = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        match output.status.success() {
            true => {}
            false if stderr.lines().count() == 1 && stderr.starts_with("bulkhead: ") => refused.push(stderr),
            false => bail!(
                "`bulkhead {}` of {} version with the proxy of {}: {stderr}",
                words.join(" "),
                command.name,
                proxy.name
            ),
        }
    }
    node.end()?;
    Ok(if refused.is_empty() { "works".to_owned() } else { format!("in part refused, {refused:?}") })
}

/// A client of the old version runs while the proxy becomes the new one, and the old one again. Where the old one refuses the way
/// back, it says so in one line, and nothing is lost: the new one goes on.
fn upgrade(old: &Version, new: &Version, program: &Path) -> Result<()> {
    let node = Node::start(&old.stage)?;
    let mut client = node.steady(&old.stage, program)?;
    client.goes_on()?;
    let node = node.replaced_by(&new.stage).map_err(|(_, error)| error)?;
    client.goes_on().context("after the upgrade")?;
    ensure!(node.clients()? == 1, "the new proxy does not count the client that goes on");
    let mut second = node.steady(&new.stage, program).context("a client of the new version")?;
    second.goes_on().context("a client of the new version after the upgrade")?;
    println!("a client goes on through the upgrade, and new ones start beside it");
    let mut clients = vec![client, second];
    let node = match node.replaced_by(&old.stage) {
        Ok(node) => {
            let mut third = node.steady(&old.stage, program).context("a client of the old version")?;
            third.goes_on().context("a client of the old version after the way back")?;
            clients.push(third);
            println!("all of them go on through the way back, and new ones of the old version start");
            node
        }
        Err((dir, error)) => {
            let line = refusal(&error)?;
            println!("the way back is refused: {line:?}");
            Node::on(&new.stage, dir)?
        }
    };
    for client in &mut clients {
        client.goes_on().context("after the way back")?;
    }
    for client in clients {
        client.end()?;
    }
    node.end()?;
    Ok(())
}

/// The line with which a proxy refuses to start.
fn refusal(error: &anyhow::Error) -> Result<String> {
    let text = format!("{error:#}");
    let lines: Vec<&str> = text.lines().filter(|line| line.starts_with("bulkhead: ")).collect();
    match lines[..] {
        [line] => Ok(line.to_owned()),
        _ => bail!("the way back fails, and not in one line: {text}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;

    fn output(code: i32, stdout: &str, stderr: &str) -> Output {
        let status = std::process::ExitStatus::from_raw(code << 8);
        Output { status, stdout: stdout.into(), stderr: stderr.into() }
    }

    #[test]
    fn only_what_works_or_is_refused_in_one_line_and_logged_is_fine() {
        assert_eq!(judge(&output(0, "PASS\n", ""), "").unwrap(), "works");
        let line = "bulkhead: the proxy refused: this proxy is version 2";
        let log = "WARN client refused zone=a refusal=this proxy is version 2\n";
        assert!(judge(&output(1, "error 803\n", line), log).unwrap().starts_with("refused"));
        for (wrong, log) in [
            (output(1, "error 803\n", line), ""),
            (output(0, "", line), log),
            (output(1, "", ""), log),
            (output(1, "", "bulkhead: no word from the worker"), log),
            (output(1, "", &format!("{line}\n{line}")), log),
        ] {
            assert!(judge(&wrong, log).is_err(), "{wrong:?}");
        }
    }
}
