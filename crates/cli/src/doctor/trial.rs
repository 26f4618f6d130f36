//! Probes the GPUs and runs the self-test.

use std::process::Command;
use std::time::Duration;

use backend::selftest::Step;

use super::driver;
use super::finding::Finding;
use super::scene::Scene;
use super::service::Way;
use crate::args::{BackendArg, BackendArgs};
use crate::text::counted;
use crate::{helper, library, verbs};

const TIMEOUT: Duration = Duration::from_secs(180);
/// The zone of the self-test in a running proxy.
const ZONE: &str = "bulkhead-doctor";

/// What the driver reports about its GPUs, if there is a driver.
pub(super) fn survey(scene: &Scene, backend: &BackendArgs, findings: &mut Vec<Finding>) {
    if scene.is_container() && scene.is_tenant() {
        return;
    }
    if !scene.exists("/dev/nvidiactl") {
        if backend.backend == Some(BackendArg::Nvidia) {
            findings.push(Finding::error(
                "gpus",
                "--backend nvidia, but /dev/nvidiactl does not exist",
                "`bulkhead run --backend nvidia` and a proxy with this backend do not start",
                "there is no NVIDIA GPU, or its driver is not loaded",
                "load the driver, or leave --backend out to use the software GPU",
            ));
        }
        return;
    }
    let survey = match verbs::topology::ask(backend) {
        Ok(survey) => survey,
        Err(failure) => {
            findings.push(Finding::error(
                "gpus",
                failure.line,
                "workers cannot start; cuInit fails in every zone",
                "the driver cannot initialize: version mismatch with its module, missing device nodes, or a broken GPU",
                "check nvidia-smi and dmesg (Xid)",
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
                "only one worker can start: cuCtxCreate returns 46 (device unavailable) in others",
                "this mode allows one process at a time, or none",
                "run `nvidia-smi --compute-mode 0`",
            ));
        }
        match gpu.ecc {
            Some(true) => findings.push(Finding::ok("gpus", format!("{name} has ECC enabled"))),
            Some(false) => findings.push(Finding::warning(
                "gpus",
                format!("{name} has ECC disabled"),
                "bits of other tenants' data may flip, by accident or by a tenant that hammers memory rows",
                "its memory does not correct errors, and zones share it",
                "run `nvidia-smi -e 1` and reset the GPU before tenants that do not trust each other share it",
            )),
            None => {}
        }
        if gpu.mig.as_ref().is_some_and(|mig| mig.enabled && mig.slices.is_empty()) {
            findings.push(Finding::error(
                "gpus",
                format!("{name} has MIG enabled but no instances"),
                "cuInit returns 100 (no device)",
                "with MIG enabled, only instances can be used",
                "create instances (`nvidia-smi mig -cgi ...`), or disable MIG",
            ));
        }
    }
    if survey.backend == "nvidia" {
        findings.push(Finding::ok(
            "gpus",
            format!("{}, CUDA {}", counted(survey.gpus.len() as u64, "GPU"), survey.cuda_version),
        ));
    }
}

/// Runs a small CUDA program in a zone: memory, copies, a kernel, sharing.
pub(super) fn selftest(scene: &Scene, way: Way, backend: &BackendArgs, findings: &mut Vec<Finding>) {
    let place = match way {
        Way::Zone => "in this zone",
        Way::Operator => "in a zone of the running proxy",
        Way::Private => "in a zone of a private proxy",
        Way::None => {
            findings.push(Finding::note("self-test", "skipped: no zone to run it in"));
            return;
        }
    };
    let command = match command(scene, way, backend) {
        Ok(command) => command,
        Err(why) => {
            findings.push(Finding::error(
                "self-test",
                why,
                "programs cannot find the client library",
                "it is neither beside this program nor in a directory of the loader",
                "install it, or set BULKHEAD_LIB_DIR to its directory",
            ));
            return;
        }
    };
    let said = match helper::run(command, TIMEOUT) {
        Ok(said) => said,
        Err(error) => return findings.push(failed(&format!("cannot start: {error}"))),
    };
    let steps: Vec<Step> = said.output.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let broken = steps.iter().find_map(|step| Some((&step.name, step.failure.as_ref()?)));
    match (broken, said.failure()) {
        (Some((name, why)), _) => findings.push(failed(&format!("step {name:?} failed {place}: {why}"))),
        (None, Some(why)) => findings.push(failed(&format!("{why} ({place})"))),
        (None, None) => {
            let names: Vec<&str> = steps.iter().map(|step| step.name.as_str()).collect();
            findings.push(Finding::ok("self-test", format!("passed {place}: {}", names.join(", "))));
        }
    }
}

fn failed(seen: &str) -> Finding {
    Finding::error(
        "self-test",
        seen,
        "CUDA programs fail in the same way",
        "see the other findings; otherwise a bug in Bulkhead",
        "fix the other findings first; set BULKHEAD_LOG=1 to log failing calls, and check the proxy's log",
    )
}

fn command(scene: &Scene, way: Way, backend: &BackendArgs) -> Result<Command, String> {
    let own = std::env::current_exe().map_err(|error| error.to_string())?;
    if way == Way::Zone {
        let mut command = helper::own();
        command.arg("selftest");
        // If the loader finds the client library by itself, test that one.
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
        // A limit makes `run` create the zone, which ends with it.
        Way::Operator => command.arg("--socket").arg(&scene.admin_socket).args(["--zone", ZONE, "--share", "1"]),
        _ => command.args(backend.to_arguments()),
    };
    command.arg("--").arg(own).arg("selftest");
    Ok(command)
}
