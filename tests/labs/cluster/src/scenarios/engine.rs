//! Containers with a part of a GPU, without Kubernetes: what every engine that knows CDI must do.

use crate::lab;
use anyhow::{Context, Result, ensure};
use std::process::Output;
use xtask::images;

/// No more rights than the restricted standard leaves to pods.
const RESTRICTED: [&str; 4] = ["--network=none", "--cap-drop=all", "--user=1000", "--security-opt=no-new-privileges"];

/// Where the DaemonSet puts our libraries on the host.
const LIBRARIES: &str = "/opt/bulkhead/current/lib/bulkhead";

/// An engine's command line.
pub(super) type Engine<'a> = &'a dyn Fn(&[&str]) -> Result<Output>;

/// `more`: arguments of `run` that only this engine needs.
pub(super) fn play(zone: &str, engine: Engine<'_>, more: &[&str]) -> Result<()> {
    let archive = images::archives().into_iter().find(|archive| archive.ends_with("examples.tar"));
    fine(engine, &["load", "--quiet", "--input", &archive.context("no image of examples")?.display().to_string()])?;
    let file = format!("/etc/cdi/{zone}.yaml");
    lab::run(&["zones", "create", zone, "--memory", "2GiB"])?;
    std::fs::create_dir_all("/etc/cdi")?;
    lab::run(&["cdi", "generate", "--zone", zone, "--output", &file])?;
    lab::run(&["cdi", "validate", &file])?;
    let image = images::name("examples");
    let run = [&["run", "--rm"][..], &RESTRICTED, more].concat();
    let device = format!("--device=bulkhead.dev/zone={zone}");
    for program in [&["vecadd"][..], &["oom", "2147483648"]] {
        passes(engine, &[&run[..], &[&device, &image], program].concat())?;
    }
    // By hand, as it is done where the engine does not know CDI.
    let mounts = ["libcuda.so.1", "libnvidia-ml.so.1"]
        .map(|name| format!("--volume={LIBRARIES}/{name}:/usr/lib/x86_64-linux-gnu/{name}:ro"));
    let socket = format!("--volume=/run/bulkhead/zones/{zone}:/run/bulkhead/zone:ro");
    passes(engine, &[&run[..], &[&mounts[0], &mounts[1], &socket, &image, "vecadd"]].concat())?;
    // Without the device there is no GPU.
    let output = engine(&[&run[..], &[&image, "vecadd"]].concat())?;
    let said = String::from_utf8_lossy(&output.stdout);
    ensure!(said.contains("FAIL") && !output.status.success(), "without the device a program said {said}");

    // A second file with the same device: runtimes refuse both, and validate says which.
    std::fs::copy(&file, "/etc/cdi/again.yaml")?;
    let refused = lab::run(&["cdi", "validate"]).err().map(|error| format!("{error:#}")).unwrap_or_default();
    ensure!(refused.contains("again.yaml") && refused.contains(&file), "validate said {refused:?}");
    for file in [&file, "/etc/cdi/again.yaml"] {
        std::fs::remove_file(file)?;
    }
    lab::run(&["zones", "remove", zone]).map(drop)
}

fn passes(engine: Engine<'_>, words: &[&str]) -> Result<()> {
    let said = fine(engine, words)?;
    ensure!(said.lines().last() == Some("PASS"), "{} said {said}", words.join(" "));
    Ok(())
}

fn fine(engine: Engine<'_>, words: &[&str]) -> Result<String> {
    let output = engine(words)?;
    let (said, why) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    ensure!(output.status.success(), "{}: {said}{why}", words.join(" "));
    Ok(said.into_owned())
}
