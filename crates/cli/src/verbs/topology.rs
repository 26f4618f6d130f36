//! `bulkhead topology`: the GPUs and the links between them.

use std::fmt::Write;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::Duration;

use backend::survey::{self, Gpu, Kind, Survey};
use control::backend::Backend;
use control::size::Size;

use crate::args::{BackendArgs, TopologyArgs};
use crate::doctor::scene::Scene;
use crate::exit::{Exit, Failure};
use crate::{helper, library, verbs};

/// A driver on a busy node takes seconds to start.
const TIMEOUT: Duration = Duration::from_secs(120);

pub(crate) fn run(args: &TopologyArgs) -> Result<ExitCode, Failure> {
    let here = Scene::of_this_machine(PathBuf::new(), None);
    let in_zone = args.backend.may_be_either() && here.is_tenant() && !here.exists("/dev/nvidiactl");
    let progress = crate::progress::Progress::of("asking the driver about its GPUs");
    let survey = if in_zone { ask_in_zone(&here)? } else { ask(&args.backend)? };
    drop(progress);
    if args.json {
        return verbs::status::print_json(&survey);
    }
    verbs::man::print(table(&survey).as_bytes())
}

/// Probes the GPUs in a separate process.
pub(crate) fn ask(backend: &BackendArgs) -> Result<Survey, Failure> {
    // Report a missing backend before starting a process for it.
    choose(backend)?;
    let mut command = helper::own();
    command.arg("survey").args(backend.to_arguments());
    survey_of(command)
}

/// Probes them as a client of this zone.
fn ask_in_zone(here: &Scene) -> Result<Survey, Failure> {
    let mut command = helper::own();
    command.args(["survey", "--zone"]);
    // If it is not beside this program, the loader finds it.
    if let Ok(dir) = library::find() {
        library::put_in_front(&mut command, &dir, &here.zone_socket());
    }
    survey_of(command)
}

fn survey_of(command: Command) -> Result<Survey, Failure> {
    let failed = |why: String| Failure::new(Exit::Failure, format!("cannot probe the GPUs: {why}"));
    let said = helper::run(command, TIMEOUT).map_err(|error| failed(error.to_string()))?;
    match said.failure() {
        Some(why) => Err(failed(why)),
        None => serde_json::from_str(&said.output).map_err(|error| failed(error.to_string())),
    }
}

fn choose(backend: &BackendArgs) -> Result<Backend, Failure> {
    Backend::choose(&backend.options()).map_err(|error| Failure::new(Exit::NoBackend, error.to_string()))
}

/// The process that probes.
pub(crate) fn look(backend: &BackendArgs, zone: bool) -> Result<ExitCode, Failure> {
    let survey = if zone { survey::look_in_zone() } else { survey::look(&choose(backend)?) };
    verbs::status::print_json(&survey.map_err(|error| Failure::new(Exit::Failure, error.to_string()))?)
}

pub(crate) fn table(survey: &Survey) -> String {
    let mut text = format!("backend {}, CUDA {}", survey.backend, survey.cuda_version);
    if let Some(version) = &survey.driver_version {
        let _ = write!(text, ", driver {version}");
    }
    text.push('\n');
    if let Some(why) = &survey.without_nvml {
        let _ = writeln!(text, "NVLink, MIG and compute modes are unknown: {why}");
    }
    text.push('\n');
    text.push_str(&gpus(&survey.gpus));
    for gpu in survey.gpus.iter() {
        for slice in gpu.mig.iter().flat_map(|mig| &mig.slices) {
            let (size, memory) = (&slice.profile, Size(slice.memory_bytes));
            let _ = writeln!(text, "  MIG {}:{}  {size}  {}  {memory}", gpu.index, slice.index, slice.uuid);
        }
    }
    if survey.gpus.len() > 1 {
        text.push('\n');
        text.push_str(&matrix(survey));
    }
    text
}

/// Aligns columns to their widest cell.
fn columns(rows: &[Vec<String>]) -> String {
    let count = rows.first().map_or(0, Vec::len);
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..count).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let cells: Vec<String> = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        let _ = writeln!(text, "{}", cells.join("  ").trim_end());
    }
    text
}

fn gpus(gpus: &[Gpu]) -> String {
    let head = ["GPU", "NAME", "UUID", "PCI", "MEMORY", "SMS", "CC", "MIG", "NVLINK", "NUMA"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    for gpu in gpus {
        let mig = gpu.mig.as_ref().map_or("-", |mig| if mig.enabled { "on" } else { "off" });
        let nvlink = gpu.nvlink.as_ref().map_or("-".to_owned(), |nvlink| match nvlink.active {
            0 => "down".to_owned(),
            active => format!("{active} links, version {}", nvlink.version),
        });
        rows.push(vec![
            gpu.index.to_string(),
            gpu.name.clone(),
            gpu.uuid.clone(),
            gpu.pci_bus_id.clone(),
            Size(gpu.memory_bytes).to_string(),
            gpu.multiprocessors.to_string(),
            gpu.compute_capability.clone(),
            mig.to_owned(),
            nvlink,
            gpu.numa_node.map_or("-".to_owned(), |node| node.to_string()),
        ]);
    }
    columns(&rows)
}

/// The link between each pair of GPUs, and whether peer access is possible.
fn matrix(survey: &Survey) -> String {
    let name = |gpu: &Gpu| format!("GPU{}", gpu.index);
    let head = std::iter::once(String::new()).chain(survey.gpus.iter().map(name));
    let mut rows: Vec<Vec<String>> = vec![head.collect()];
    let mut kinds: Vec<Kind> = Vec::new();
    for (gpu, links) in survey.gpus.iter().zip(&survey.links) {
        let mut row = vec![name(gpu)];
        for link in links {
            let same = |known: &Kind| known.meaning() == link.kind.meaning();
            if link.kind != Kind::Itself && !kinds.iter().any(same) {
                kinds.push(link.kind);
            }
            let marks = match (link.kind, link.peer_access, link.native_atomics) {
                (Kind::Itself, ..) => "",
                (_, false, _) => " -",
                (_, true, false) => " peer",
                (_, true, true) => " peer+atomics",
            };
            row.push(format!("{}{marks}", link.kind.short()));
        }
        rows.push(row);
    }
    let mut text = columns(&rows);
    text.push('\n');
    for kind in kinds {
        let short = if matches!(kind, Kind::NvLink(_)) { "NV#".to_owned() } else { kind.short() };
        let _ = writeln!(text, "{short:<8}{}", kind.meaning());
    }
    let _ = writeln!(text, "peer    peer access: kernels on one GPU can access memory of the other; -: they cannot");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_shows_every_pair() {
        let survey =
            survey::look(&Backend::Soft { devices: 2, memory: 1 << 30, instances: 0, only: Vec::new() }).unwrap();
        let text = table(&survey);
        assert!(text.contains("GPU0  X                 MEM peer+atomics\n"), "{text}");
        assert!(text.contains("1.0 GiB") || text.contains("1 GiB") || text.contains("1GiB"), "{text}");
        assert!(text.contains("MEM     the machine's memory"), "{text}");
    }
}
