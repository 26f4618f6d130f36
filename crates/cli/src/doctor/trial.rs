//! GPUs looked at, and a program tried on one.

use std::process::Command;
use std::time::Duration;

use proxy::survey::selftest::Step;

use super::driver;
use super::finding::Finding;
use super::scene::Scene;
use super::service::Way;
use crate::args::BackendArgs;
use crate::{helper, library, verbs};

const PATIENCE: Duration = Duration::from_secs(180);
/// The zone of the self-test, where a proxy makes one for it.
const ZONE: &str = "bulkhead-doctor";

/// What the driver says of its GPUs, where it is there to be asked.
pub fn survey(scene: &Scene, backend: &BackendArgs, findings: &mut Vec<Finding>) {
    if !scene.exists("/dev/nvidiactl") || (scene.is_container() && scene.is_tenant()) {
        return;
    }
    let survey = match verbs::topology::ask(backend) {
        Ok(survey) => survey,
        Err(failure) => {
            findings.push(Finding::error(
                "gpus",
                failure.line,
                "workers do not start; cuInit fails in every zone",
                "the driver does not start: of another version than its module, without its nodes, or the GPU is broken",
                "nvidia-smi and dmesg (Xid) say more",
            ));
            return;
        }
    };
    for gpu in &survey.gpus {
        let name = format!("GPU {} ({})", gpu.index, gpu.name);
        if gpu.pageable_memory_access {
            findings.push(driver::pageable_access(&name));
        }
        if gpu.compute_mode.as_deref().is_some_and(|mode| mode != "default") {
            findings.push(Finding::error(
                "gpus",
                format!("{name} is in compute mode {}", gpu.compute_mode.as_deref().unwrap_or_default()),
                "the second worker fails: cuCtxCreate answers 46 (device unavailable)",
                "the GPU takes one process at a time, or none",
                "nvidia-smi --compute-mode 0",
            ));
        }
        if gpu.mig.as_ref().is_some_and(|mig| mig.enabled && mig.slices.is_empty()) {
            findings.push(Finding::error(
                "gpus",
                format!("{name} has MIG on and no slices"),
                "cuInit answers 100: the GPU is not there",
                "with MIG on, only slices can be used",
                "make slices (`nvidia-smi mig -cgi ...`), or switch MIG off",
            ));
        }
    }
    if survey.backend == "nvidia" {
        findings.push(Finding::ok("gpus", format!("{} GPU(s), CUDA {}", survey.gpus.len(), survey.cuda_version)));
    }
}

/// Runs a small CUDA program in a zone: memory, copies, a kernel, sharing.
pub fn selftest(scene: &Scene, way: Way, backend: &BackendArgs, findings: &mut Vec<Finding>) {
    let place = match way {
        Way::Zone => "in this zone",
        Way::Operator => "in a zone of the running proxy",
        Way::Private => "in a zone of a proxy of its own",
        Way::None => {
            findings.push(Finding::note("self-test", "left out: there is no zone to run it in"));
            return;
        }
    };
    let command = match command(scene, way, backend) {
        Ok(command) => command,
        Err(why) => {
            findings.push(Finding::error(
                "self-test",
                why,
                "programs do not find Bulkhead's library",
                "it lies neither beside this program nor where the loader looks",
                "install it, or set BULKHEAD_LIB_DIR to its directory",
            ));
            return;
        }
    };
    let said = match helper::run(command, PATIENCE) {
        Ok(said) => said,
        Err(error) => return findings.push(failed(&format!("cannot start it: {error}"))),
    };
    let steps: Vec<Step> = said.output.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let broken = steps.iter().find_map(|step| Some((&step.name, step.failure.as_ref()?)));
    match (broken, said.failure()) {
        (Some((name, why)), _) => findings.push(failed(&format!("to {name} fails {place}: {why}"))),
        (None, Some(why)) => findings.push(failed(&format!("{why} ({place})"))),
        (None, None) => {
            let names: Vec<&str> = steps.iter().map(|step| step.name.as_str()).collect();
            findings.push(Finding::ok("self-test", format!("works {place}: {}", names.join(", "))));
        }
    }
}

fn failed(seen: &str) -> Finding {
    Finding::error(
        "self-test",
        seen,
        "CUDA programs fail in the same way",
        "what else is found here, or a fault of Bulkhead's",
        "mend what else is found; BULKHEAD_LOG=1 has the program say which calls fail, the proxy's log has the rest",
    )
}

fn command(scene: &Scene, way: Way, backend: &BackendArgs) -> Result<Command, String> {
    let own = std::env::current_exe().map_err(|error| error.to_string())?;
    if way == Way::Zone {
        let mut command = helper::own();
        command.arg("selftest");
        // Where the loader finds ours by itself, it is that one which is to be tried.
        let found = super::loader::candidates(scene);
        if found.first().is_none_or(|first| first.kind != super::loader::Kind::Ours) {
            let dir = library::find().map_err(|failure| failure.line)?;
            library::put_in_front(&mut command, &dir, &scene.zone_socket());
        }
        return Ok(command);
    }
    library::find().map_err(|failure| failure.line)?;
    let mut command = helper::own();
    command.arg("run");
    match way {
        // A limit has the zone made, and it goes with the run.
        Way::Operator => command.arg("--socket").arg(&scene.admin_socket).args(["--zone", ZONE, "--share", "1"]),
        _ => command.args(backend.to_arguments()),
    };
    command.arg("--").arg(own).arg("selftest");
    Ok(command)
}
